"""`motet sim`: overlays in virtual time, with faults, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.ending import Misuse
from motet.cli.options import Json

_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")
MOST_SEEDS = 10_000_000


def sim(
    seeds: Annotated[str, typer.Option(help="Like 0-999, or 3,7,20-29.")] = "0-99",
    profile: Annotated[
        str, typer.Option(help="What may go wrong: calm, mixed, delivery, transactions, ...")
    ] = "",
    mutations: Annotated[
        bool, typer.Option(help="Also plant deliberate bugs and see that each is caught.")
    ] = True,
    jobs: Annotated[int, typer.Option(min=0, max=1024, help="Processes; 0 is one per core.")] = 0,
    replay: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Tell one seed step by step.")
    ] = None,
    every_step: Annotated[
        bool,
        typer.Option("--every-step", help="Small calm runs, each with a crash at every step."),
    ] = False,
    crash_at: Annotated[
        int | None, typer.Option(min=1, metavar="STEP", help="With --replay: crash in this step.")
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write each run there, for `motet pipeline audit`."),
    ] = None,
    json: Json = False,
) -> int:
    """Run the real broker and client code in virtual time, break things, check every guarantee.

    The same seed gives the same run, always. A violation prints its seed and the command that
    tells how it came to be. Exit status 0 only if nothing is violated and every planted bug is
    caught.
    """
    chosen = parse_seeds(seeds)
    from motet.cli import trials

    if replay is not None:
        return trials.replay(replay, profile, crash_at, json)
    if every_step:
        if profile not in ("", "calm", "delivery"):
            raise Misuse(
                "--every-step brings its own fault",
                "leave --profile out, or --profile delivery for exactly-once events",
            )
        return trials.crash_everywhere(chosen, profile, jobs, json)
    folder = str(history.resolve()) if history is not None else ""
    return trials.run(chosen, profile, mutations, jobs, json, folder)


def parse_seeds(text: str) -> Sequence[int]:
    """`0-999`, `7`, `3,7,20-29`; in this order, each once."""
    chosen: dict[int, None] = {}
    for part in text.split(","):
        found = _RANGE.match(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise Misuse(f"{text!r} is not a choice of seeds", "like 0-999, or 3,7,20-29")
        if last - first >= MOST_SEEDS:
            raise Misuse(f"more than {MOST_SEEDS:,} seeds at once", "run them in several parts")
        chosen |= dict.fromkeys(range(first, last + 1))
    return list(chosen)
