"""`motet chaos`: real broker processes under traffic and faults, judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motet.cli.console import Misuse
from motet.cli.options import Covering, Json, option

MOST_BROKERS = 64
LONGEST_S = 600.0
"""The checkers compare every event with every subscription: twice the time, four times the work."""
SHAPES = ("line", "star", "tree")
ORDERING = "ordering"
PROFILES = ("control", "delivery", "transactions", "mobility", ORDERING)
MOST_SITES = 8

Watched = Annotated[
    str,
    option(
        "|".join(PROFILES),
        "The guarantees under test: routing, exactly-once delivery, transactions, moves, or order "
        "across topics.",
    ),
]


def _check(
    brokers: int, seconds: float, shape: str, profile: str, covering: bool, history: bool
) -> None:
    if not 0 < seconds <= LONGEST_S:
        raise Misuse(
            f"--seconds {seconds:g} is out of range",
            f"use more than 0 and at most {LONGEST_S:g}; several seeds find more than one long run",
        )
    if shape not in SHAPES:
        raise Misuse(f"unknown shape {shape!r}", f"choose one of {', '.join(SHAPES)}")
    if profile not in PROFILES:
        raise Misuse(f"unknown profile {profile!r}", f"choose one of {', '.join(PROFILES)}")
    if profile == "mobility" and brokers < 2:
        raise Misuse(
            "--profile mobility needs two brokers, because clients move from one to another",
            "use --brokers 2 or more",
        )
    if profile == ORDERING and (covering or history):
        raise Misuse(
            "--profile ordering runs sites of a sequencer, not brokers",
            "omit --covering and --history",
        )
    if profile != "control" and covering:
        raise Misuse(
            f"--covering cannot be used with --profile {profile}: an overlay with covering does "
            "not deliver exactly once",
            "omit --covering",
        )


def chaos(
    brokers: Annotated[
        int, option("N", "Number of broker processes.", min=1, max=MOST_BROKERS)
    ] = 5,
    sites: Annotated[
        int, option("N", "Number of sites, with --profile ordering.", min=1, max=MOST_SITES)
    ] = 3,
    standbys: Annotated[
        bool,
        typer.Option(
            "--standbys",
            help="With --profile ordering: each site has a standby, and there is a witness.",
        ),
    ] = False,
    seconds: Annotated[
        float, option("SECONDS", "Duration of the faults; recovery and checks come after it.")
    ] = 60.0,
    seed: Annotated[
        int | None, option("N", "Seed of the faults; repeats them.", min=0, show_default="random")
    ] = None,
    shape: Annotated[str, option("|".join(SHAPES), "The shape of the overlay.")] = "tree",
    profile: Watched = "control",
    covering: Covering = False,
    directory: Annotated[
        Path | None,
        option(
            "DIR",
            "A new folder for journals, logs and the report of the run.",
            "--dir",
            show_default="a temporary one, kept only if a guarantee is violated",
        ),
    ] = None,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Record a history in the folder of the run, for `motet pipeline audit`.",
        ),
    ] = False,
    durability: Annotated[str, typer.Option(hidden=True)] = "fsync",
    json: Json = False,
) -> int:
    """Break an overlay of real processes and check every guarantee.

    Under traffic, brokers are killed with SIGKILL (even while they recover), stopped and paused;
    links are cut and stalled; clients lose their connections and restart. Then all faults are
    repaired. When the overlay is at rest, the brokers' folders are compared with what was
    acknowledged.

    With --profile delivery, publishers and subscribers are at different brokers, events are
    exactly-once, and every delivery is checked. With --profile transactions, plans and dynamic
    transactions hand live streams from handler to handler, and each event must reach exactly one
    of them. With --profile mobility, all these clients move between brokers, also durable ones
    while they are away, and faults hit the source, the target and the path of a move in each of
    its phases. With --profile ordering there are no brokers: sites of a sequencer, processes of
    clients and a NATS server are killed, stopped and paused, and all orders are compared.

    Exit status 0 only if no guarantee is violated.
    """
    _check(brokers, seconds, shape, profile, covering, history)
    from motet.cli import chaos_run

    if history and directory is None:
        raise Misuse("--history needs a folder that is kept", "name one with --dir DIR")
    if profile == ORDERING:
        return chaos_run.run(chaos_run.order_plan(sites, seconds, seed, standbys), directory, json)
    plan = chaos_run.plan(brokers, seconds, seed, shape, profile, covering, durability, history)
    return chaos_run.run(plan, directory, json)
