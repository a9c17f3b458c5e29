"""`motet sim`: overlays in virtual time, with faults, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.console import Misuse
from motet.cli.options import DEFAULT_DIRECTORY, Json, option, switch

_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")
MOST_SEEDS = 10_000_000
RANDOM = "random"
Seeds = Annotated[
    str, option("SEEDS", "Seeds to run, like 0-999 or 3,7,20-29; random: fresh seeds until Ctrl-C.")
]
Profile = Annotated[
    str,
    option(
        "NAME",
        "The faults and the load: calm, mixed, delivery, transactions, …",
        show_default="mixed; with --seeds random, all profiles in turn",
    ),
]
Mutations = Annotated[
    bool,
    typer.Option(
        help="Also plant known bugs and check that each is caught; never with random seeds."
    ),
]
Jobs = Annotated[
    int | None,
    option(
        "N",
        "Number of processes; 0 means one per core.",
        min=0,
        max=1024,
        show_default="0; 1 with --seeds random",
    ),
]
Replay = Annotated[int | None, option("SEED", "Print every step of one seed.", min=0)]
EveryStep = Annotated[
    bool, switch("--every-step", "Crash a broker at every step of small runs without other faults.")
]
CrashAt = Annotated[
    int | None, option("STEP", "With --replay: crash a broker in this step.", min=1)
]
Fault = Annotated[
    str,
    option(
        "NAME",
        "With --every-step or --crash-at: another fault than a crash: cut, pause, amnesia, …",
        show_default="kill",
    ),
]
History = Annotated[
    Path | None, option("DIR", "Record each run there, for `motet pipeline audit`.")
]
Limit = Annotated[int | None, option("N", "With --seeds random: stop after N seeds.", min=1)]
Seconds = Annotated[
    float | None, option("SECONDS", "With --seeds random: stop after this time.", min=0)
]
Findings = Annotated[Path, option("DIR", "With --seeds random: folder for findings.")]


def sim(
    seeds: Seeds = "0-99",
    profile: Profile = "",
    mutations: Mutations = True,
    jobs: Jobs = None,
    limit: Limit = None,
    seconds: Seconds = None,
    findings: Findings = DEFAULT_DIRECTORY / "hunt",
    replay: Replay = None,
    every_step: EveryStep = False,
    crash_at: CrashAt = None,
    fault: Fault = "",
    history: History = None,
    json: Json = False,
) -> int:
    """Simulate overlays with faults and check every guarantee.

    The simulator runs the real broker and client code in virtual time. The same seed always gives
    the same run. For each violation, its seed and the command that replays it are printed. Exit
    status 0 only if no guarantee is violated and every planted bug is caught.
    """
    if seeds == RANDOM:
        if replay is not None or every_step or history is not None:
            raise Misuse(
                "--seeds random cannot be used with --replay, --every-step or --history",
                "omit them, or name seeds: --seeds 0-999",
            )
        from motet.cli import sim_run

        bounds = sim_run.Bounds(limit, seconds)
        return sim_run.hunt(profile, 1 if jobs is None else jobs, bounds, findings, json)
    if limit is not None or seconds is not None:
        raise Misuse("--limit and --seconds apply only to random seeds", "add --seeds random")
    if fault and not (every_step or crash_at is not None):
        raise Misuse(
            "--fault applies to a single step", "add --every-step, or --replay SEED --crash-at STEP"
        )
    chosen, jobs = parse_seeds(seeds), jobs or 0
    from motet.cli import sim_run

    if replay is not None:
        return sim_run.replay(replay, profile, crash_at, fault or "kill", json)
    if every_step:
        if profile not in ("", "calm", "delivery", "moves", "mobility", "ordering"):
            raise Misuse(
                f"--every-step cannot be used with --profile {profile}: it has its own fault",
                "omit --profile, or use --profile delivery for exactly-once events, or moves for "
                "clients that move, or ordering for order across topics",
            )
        return sim_run.crash_everywhere(chosen, profile, fault or "kill", jobs, json)
    folder = str(history.resolve()) if history is not None else ""
    return sim_run.run(chosen, profile, mutations, jobs, json, folder)


def parse_seeds(text: str) -> Sequence[int]:
    """Parse `0-999`, `7`, `3,7,20-29`; in this order, each once."""
    chosen: dict[int, None] = {}
    for part in text.split(","):
        found = _RANGE.match(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise Misuse(f"cannot read the seeds {text!r}", "write 0-999, or 3,7,20-29, or random")
        if last - first >= MOST_SEEDS:
            raise Misuse(
                f"{text!r} has more than {MOST_SEEDS:,} seeds", "run them in several parts"
            )
        chosen |= dict.fromkeys(range(first, last + 1))
    return list(chosen)
