"""`motet experiment`: what the papers measured, measured again here."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.options import Json

experiment = typer.Typer(
    name="experiment",
    help="Repeat the experiments of the papers: figures beside theirs, pictures, JSON.",
    no_args_is_help=True,
)

DEFAULT_OUT = Path("run/exactly-once")


class Part(StrEnum):
    OVERHEAD = "overhead"
    LINK = "link"
    BROKER = "broker"
    PUBLISHER = "publisher"


@experiment.command("exactly-once")
def exactly_once(
    part: Annotated[
        list[Part] | None, typer.Option("--part", help="Only this part; may be repeated.")
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="Less than a minute; less of everything.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the page, the JSON and the pictures go.")
    ] = DEFAULT_OUT,
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Pictures, which need matplotlib.")
    ] = True,
    json: Json = False,
) -> int:
    """What exactly-once delivery costs, and how it meets failures: section 4 of its paper.

    overhead: CPU of the brokers and latency, best effort against exactly once, for a growing
    number of subscribers. link, broker, publisher: link b1–s1, broker b1 and the publishers'
    broker p1 stall, fail and come back; latency over time, who asks for what again, and whether
    anything is lost or doubled.

    DIR gets exactly-once.md, a page with all tables and pictures, and exactly-once.json, with
    every event and nack. Exit status 1 if an exactly-once event was lost, doubled or out of order.
    """
    from motet.cli import trial_runs

    return trial_runs.exactly_once([each.value for each in part or Part], short, out, plots, json)
