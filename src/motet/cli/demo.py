"""`motet demo`: three brokers, a little story, and the promises counted."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from motet.bench import figures
from motet.cli.ending import FAILED, FINE
from motet.cli.options import Json
from motet.cli.voice import out, say, say_json
from motet.demo import report as promises
from motet.demo.story import play
from motet.runtime.loop import run


def demo(
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.txt and report.json there.")
    ] = None,
    json: Json = False,
) -> int:
    """See an overlay of three brokers route by content, lose one of them, and recover.

    Exit status 0 only if every promise was kept.
    """

    def tell(text: str) -> None:
        if not json:
            out().print(text)

    clients = logging.getLogger("motet.client")
    loudness = clients.level
    clients.setLevel(logging.ERROR)  # the story tells of lost sessions itself
    try:
        results = run(play(tell))
    finally:
        clients.setLevel(loudness)
    if report is not None:
        promises.write(results, report)
    if json:
        say_json(figures.report(results))
    else:
        say("")
        out().print(promises.table(results))
        say("\nevery promise was kept" if promises.kept(results) else "\nA PROMISE IS BROKEN")
    return FINE if promises.kept(results) else FAILED
