"""`motet demo`: the whole story, and the promises counted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motet.cli.ending import Misuse
from motet.cli.options import Json

CASES, SEED = 1200, 7


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
        int | None,
        typer.Option(min=1, help=f"So many cases are made up, if no log is named [{CASES}]."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=5.0, max=600.0, help="So long the log flows.")
    ] = 45.0,
    seed: Annotated[int | None, typer.Option(help=f"Of the log that is made up [{SEED}].")] = None,
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
    given = {"--size": size, "--seed": seed}
    said = [name for name, value in given.items() if value is not None]
    if log is not None and said:
        raise Misuse(
            f"{' and '.join(said)}: for a log that is made up, and --log names one that is there",
            f"leave {' and '.join(said)} out; all cases of {log} are shown",
        )
    if log is None and column:
        raise Misuse("--column: of which log?", "name it with --log")
    from motet.cli import demo_run

    cases, number = CASES if size is None else size, SEED if seed is None else seed
    return demo_run.demo(log, column or [], cases, seconds, number, report, master, json)
