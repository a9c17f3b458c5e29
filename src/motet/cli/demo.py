"""`motet demo`: the whole story, with the guarantees checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motet.cli.console import Misuse
from motet.cli.options import Json

CASES, SEED = 1200, 7
Log = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|DIR",
        help="A workflow log: XES, CSV or Parquet.",
        show_default="a generated one",
    ),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=COLUMN",
        help="The column of the log that holds the case, step, agent or time; may be repeated.",
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of cases in the generated log.",
        show_default=str(CASES),
    ),
]
Seconds = Annotated[
    float,
    typer.Option(min=5.0, max=600.0, metavar="SECONDS", help="How long publishing the log takes."),
]


def demo(
    log: Log = None,
    column: Column = None,
    size: Size = None,
    seconds: Seconds = 45.0,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed of the generated log.", show_default=str(SEED)),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="An empty folder for the report.", show_default="run/demo-TIME"
        ),
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark's master; the brokers run on this machine.")
    ] = "local[2]",
    json: Json = False,
) -> int:
    """Show a live workflow on five brokers, with a broker killed.

    A workflow log is published through five brokers while its cases are handed over and one broker
    is killed. Spark reads, archives, analyses and audits the events.

    The folder of --report gets report.html and all data. Exit status 0 only if every guarantee was
    kept.
    """
    given = {"--size": size, "--seed": seed}
    said = [name for name, value in given.items() if value is not None]
    if log is not None and said:
        raise Misuse(
            f"{' and '.join(said)} cannot be used with --log, only with a generated log",
            f"omit {' and '.join(said)}; all cases of {log} are shown",
        )
    if log is None and column:
        raise Misuse("--column needs a log", "name it with --log FILE")
    from motet.cli import demo_run

    cases, number = CASES if size is None else size, SEED if seed is None else seed
    return demo_run.demo(log, column or [], cases, seconds, number, report, master, json)
