"""`motet pipeline`: what Spark does with events."""

from __future__ import annotations

from typing import Annotated

import typer

from motet.cli.options import Json
from motet.cli.pipeline_flow import Master, archive, insight, replay, workload

pipeline = typer.Typer(
    name="pipeline",
    help="Work on events with Spark: archive, replay, insight, workloads, audit.",
    no_args_is_help=True,
)
# What a command does is in `pipeline_jobs` and `pipeline_runs`, imported when one is called: other
# commands do not have to wait for it, and need neither Spark nor Java.


for command in (archive, replay, insight, workload):
    pipeline.command()(command)


@pipeline.command()
def audit(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder of histories.")],
    master: Master = None,
    slack: Annotated[
        float,
        typer.Option(min=0.0, help="So many seconds may the clocks of those who wrote it differ."),
    ] = 0.0,
    json: Json = False,
) -> int:
    """Judge a history: was anything lost, doubled, misrouted, torn, or out of order?

    Brokers and clients write one if the environment variable MOTET_HISTORY names a folder (or
    `motet broker --history DIR`, `motet.connect(…, history=DIR)`), the simulator with `motet sim
    --history DIR`. All that is in the folder is judged together.

    Exit status 1 if a guarantee is broken; then the events that prove it are shown.
    """
    from motet.cli import pipeline_runs

    return pipeline_runs.audit(directory, master, slack, json)
