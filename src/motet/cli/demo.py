"""`motet demo`: the whole story, with the guarantees checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from motet.cli.console import Misuse
from motet.cli.options import Json, option

CASES, SEED = 1200, 7
Log = Annotated[
    Path | None,
    option("FILE|DIR", "A workflow log: XES, CSV or Parquet.", show_default="a generated one"),
]
Column = Annotated[
    list[str] | None,
    option(
        "NAME=COLUMN",
        "The column of the log that holds the case, step, agent or time; may be repeated.",
    ),
]
Size = Annotated[
    int | None, option("N", "Number of cases in the generated log.", min=1, show_default=str(CASES))
]
Seconds = Annotated[
    float, option("SECONDS", "How long publishing the log takes.", min=5.0, max=600.0)
]


def demo(
    log: Log = None,
    column: Column = None,
    size: Size = None,
    seconds: Seconds = 45.0,
    seed: Annotated[
        int | None, option("N", "Seed of the generated log.", show_default=str(SEED))
    ] = None,
    report: Annotated[
        Path | None, option("DIR", "An empty folder for the report.", show_default="run/demo-TIME")
    ] = None,
    master: Annotated[
        str, option("URL", "Spark's master; the brokers run on this machine.")
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
