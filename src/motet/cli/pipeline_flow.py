"""`motet pipeline workload`, `archive`, `replay` and `insight`: what they are told."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.options import Json

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where Spark runs [local[*], or what spark-submit says]."),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same rows.")]
Brokers = Annotated[
    list[str] | None, typer.Option("--broker", metavar="URL", help="A broker; may be repeated.")
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=COLUMN",
        help="Which column of a log is the case, step, agent, time, …; may be repeated.",
    ),
]
Filter = Annotated[str, typer.Option(metavar="FILTER", help="Only these events [all].")]
Now = Annotated[
    bool, typer.Option("--available-now", help="Up to what is there now, and end [go on].")
]
Every = Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the brokers.")]


class Workload(StrEnum):
    PUBLICATIONS = "publications"
    SUBSCRIPTIONS = "subscriptions"
    COVERING = "covering"
    WORKFLOW = "workflow"


class Popularity(StrEnum):
    GEOGRAPHIC = "geographic"
    SPRAY = "spray"


class Shape(StrEnum):
    COVERED = "covered"
    CHAINED = "chained"
    TREE = "tree"
    DISTINCT = "distinct"
    RANDOM = "random"


def workload(
    kind: Annotated[Workload, typer.Argument(help="What to make.")],
    size: Annotated[
        int, typer.Argument(metavar="SIZE", min=0, help="Publications, or clients, or cases.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="An empty folder for the Parquet files.")
    ],
    seed: Seed = 0,
    popularity: Annotated[
        Popularity, typer.Option(help="0.5 % of topics, or 40 %, get 80 % of the choices.")
    ] = Popularity.GEOGRAPHIC,
    topics: Annotated[int, typer.Option(min=1, help="Of publications and subscriptions.")] = 1000,
    sites: Annotated[int, typer.Option(min=1, help="Each has favourites of its own.")] = 5,
    shape: Annotated[
        Shape, typer.Option(help="How subscriptions cover each other.")
    ] = Shape.RANDOM,
    agents: Annotated[int, typer.Option(min=1, help="Of a workflow.")] = 40,
    processes: Annotated[int, typer.Option(min=1, help="Of a workflow.")] = 3,
    master: Master = None,
    json: Json = False,
) -> int:
    """Make publications, subscriptions, or a workflow log, of any size, as Parquet.

    publications and subscriptions over topics follow power laws, with favourites at each site;
    covering: subscriptions that cover each other in a shape; workflow: cases that wait, are
    handled and change hands.
    """
    from motet.cli import pipeline_jobs

    return pipeline_jobs.workload(
        kind.value,
        size,
        out,
        {
            "seed": seed,
            "popularity": popularity.value,
            "topics": topics,
            "sites": sites,
            "shape": shape.value,
            "agents": agents,
            "processes": processes,
        },
        master,
        json,
    )


def archive(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the archive.")],
    broker: Brokers = None,
    filter: Filter = "",
    columns: Annotated[
        str, typer.Option(help="Attributes with columns of their own, like level:int,room:text.")
    ] = "",
    available_now: Now = False,
    every: Every = 10.0,
    compact: Annotated[
        bool, typer.Option("--compact", help="Make few large files of many small ones.")
    ] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="Compare the archive with the logs, row for row.")
    ] = False,
    master: Master = None,
    json: Json = False,
) -> int:
    """Keep all that is published at some brokers as Parquet files, each event once.

    It goes on where it ended, and until it is interrupted unless --available-now. Exit status 1 if
    --prove finds a difference. --compact and --prove are steps of their own: alone, they archive
    nothing.
    """
    from motet.cli import pipeline_jobs

    return pipeline_jobs.archive(
        out, broker or [], filter, columns, available_now, every, compact, prove, master, json
    )


def replay(
    source: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help="An archive, or a log: Parquet, CSV, XES.")
    ],
    broker: Brokers = None,
    speed: Annotated[
        str, typer.Option(help="10x: ten times as fast as it was; 90s: all of it in 90 s; max.")
    ] = "max",
    publishers: Annotated[int, typer.Option(min=1, help="Clients that publish, side by side.")] = 1,
    column: Column = None,
    advertise: Annotated[str, typer.Option(metavar="FILTER", help="What they advertise.")] = "true",
    keys: Annotated[
        bool, typer.Option("--keys", help="Give events source.file and source.row.")
    ] = False,
    run: Annotated[str, typer.Option(metavar="NAME", help="Another run of the same replay.")] = "",
    work: Annotated[
        Path, typer.Option(metavar="DIR", help="Where plans are kept, to go on with.")
    ] = Path("run/replay"),
    master: Master = None,
    json: Json = False,
) -> int:
    """Publish an archive, or somebody's workflow log, as events through a live overlay.

    Events come in order of time; those of a case, or of an archive's publisher, by one client. If
    it is interrupted, the same command goes on behind the last event: nothing is published twice.
    """
    from motet.cli import pipeline_jobs

    asked = pipeline_jobs.Repeat(
        source, broker or [], speed, publishers, column or [], advertise, keys, run, work, master
    )
    return pipeline_jobs.replay(asked, json)


def insight(
    source: Annotated[
        Path | None, typer.Argument(metavar="[FILE|DIR]", help="An archive, or a workflow log.")
    ] = None,
    broker: Brokers = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables and pictures go.")] = Path(
        "run/insight"
    ),
    follow: Annotated[
        bool, typer.Option("--follow", help="Look at the stream as it comes, until interrupted.")
    ] = False,
    available_now: Now = False,
    every: Every = 10.0,
    late: Annotated[
        str, typer.Option(help="How late events may be, by their own time, if they are followed.")
    ] = "7 days",
    column: Column = None,
    publish: Annotated[
        str, typer.Option(metavar="URL", help="Publish the results there, in one transaction.")
    ] = "",
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Pictures, which need matplotlib.")
    ] = True,
    master: Master = None,
    json: Json = False,
) -> int:
    """Tell what workflow events say: how long steps wait and take, who hands over to whom, which
    cases are open, what took unusually long.

    From an archive or a log; or with --broker from what is in the brokers' logs now; or with
    --follow from the stream, which goes on where it ended.
    """
    from motet.cli import pipeline_jobs

    asked = pipeline_jobs.Question(
        source, broker or [], out, follow or available_now, available_now, every, late,
        column or [], publish, plots, master,
    )  # fmt: skip
    return pipeline_jobs.insight(asked, json)
