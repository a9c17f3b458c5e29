"""`motet demo`: the whole story, and the promises counted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motet.cli.options import Json


def demo(
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR", help="A workflow log: XES, CSV or Parquet [one is made up]."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="Which column of the log is the case, step, agent, time; may be repeated.",
        ),
    ] = None,
    size: Annotated[
        int, typer.Option(min=1, help="So many cases are made up, if no log is named.")
    ] = 1200,
    seconds: Annotated[
        float, typer.Option(min=5.0, max=600.0, help="So long the log flows.")
    ] = 45.0,
    seed: Annotated[int, typer.Option(help="Of the log that is made up.")] = 7,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="An empty folder for the report [run/demo-…]."),
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's master; brokers are on this machine.")
    ] = "local[2]",
    json: Json = False,
) -> int:
    """See a workflow log flow through five brokers while its cases change hands, a broker is
    killed, and Spark reads, archives, looks at and judges all of it.

    DIR gets report.html and everything that was written. Exit status 0 only if every promise was
    kept.
    """
    from motet.cli import demo_run

    return demo_run.demo(log, column or [], size, seconds, seed, report, master, json)
