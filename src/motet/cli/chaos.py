"""`motet chaos`: real broker processes under traffic, broken on purpose, judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motet.cli.ending import Misuse
from motet.cli.options import Json

MOST_BROKERS = 64
LONGEST_S = 600.0
"""The checkers look at every event and every subscription: twice the time, four times the work."""
SHAPES = ("line", "star", "tree")
PROFILES = ("control", "delivery", "transactions")

Watched = Annotated[
    str,
    typer.Option(
        help="What is watched: control, delivery (exactly-once events) or transactions "
        "(streams that are handed over)."
    ),
]


def _check(seconds: float, shape: str, profile: str, covering: bool) -> None:
    if not 0 < seconds <= LONGEST_S:
        raise Misuse(
            f"{seconds:g} seconds is no time to run for",
            f"more than 0, at most {LONGEST_S:g}; several seeds show more than one long run",
        )
    if shape not in SHAPES:
        raise Misuse(f"{shape!r} is no shape of an overlay", f"one of {', '.join(SHAPES)}")
    if profile not in PROFILES:
        raise Misuse(f"{profile!r} is no profile", f"one of {', '.join(PROFILES)}")
    if profile != "control" and covering:
        raise Misuse(
            "an overlay with covering does not deliver exactly once", "leave --covering out"
        )


def chaos(
    brokers: Annotated[
        int, typer.Option(min=1, max=MOST_BROKERS, help="Broker processes in the overlay.")
    ] = 5,
    seconds: Annotated[
        float, typer.Option(help="How long things break; healing and judging come on top.")
    ] = 60.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Draw the same faults as another run did.")
    ] = None,
    shape: Annotated[
        str, typer.Option(help=f"Who is linked to whom: {', '.join(SHAPES)}.")
    ] = "tree",
    profile: Watched = "control",
    covering: Annotated[bool, typer.Option(help="Let covering filters suppress others.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="A new folder for journals, logs and the story of the run; if none is given, a "
            "temporary one, kept only if something is violated.",
        ),
    ] = None,
    durability: Annotated[str, typer.Option(hidden=True)] = "fsync",
    json: Json = False,
) -> int:
    """Start an overlay of real processes, break it under traffic, and check every guarantee.

    Brokers are killed with SIGKILL, also while they recover, stopped, and paused; links are cut
    and stalled; clients lose their connections and are restarted. Then all is mended, and once
    everything is at rest, what the brokers' folders hold is compared with what was acknowledged.
    With --profile delivery, publishers, subscribers and brokers between them are apart, events are
    exactly once, and every arrival counts.
    With --profile transactions, live streams go from handler to handler by plans and by dynamic
    transactions, and each event must reach exactly one of them.
    Exit status 0 only if nothing is violated.
    """
    _check(seconds, shape, profile, covering)
    from motet.cli import storms

    plan = storms.plan(brokers, seconds, seed, shape, profile, covering, durability)
    return storms.run(plan, directory, json)
