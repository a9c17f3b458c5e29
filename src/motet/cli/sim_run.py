"""The work of `motet sim`: seeds and mutations spread over processes, with a bar and a report; or
fresh seeds until it is interrupted, with each finding recorded.

Separate from its command because it imports the whole simulator, which would slow down the other
commands.

Seeds that have been run before find nothing new; fresh ones do. Each finding is one line of JSON in
`FOLDER/findings.jsonl`, on disk before the next seed is judged.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import motet
from motet.cli.console import FAILED, FINE, Misuse, err, out, remark, say, say_json, table
from motet.fleet.process import cores
from motet.testing.bugs.catalogue import MUTATIONS
from motet.testing.faults import DEFAULT_PROFILE, PROFILES, profile
from motet.testing.simulation import (
    Catch,
    Result,
    Violation,
    catch,
    crashes_of,
    merge,
    replay_command,
    simulate,
    tell_story,
)

T = TypeVar("T")

SHOWN_VIOLATIONS = 10


def replay(seed: int, profile_name: str, crash_at: int | None, fault: str, json: bool) -> int:
    """Run one seed, step by step."""
    name = _known(profile_name)
    if json:
        result = simulate(seed, name, story=True, crash_at=crash_at, fault=fault)
        say_json(result.to_json() | {"seed": seed, "story": list(result.story)})
        return FAILED if result.violations else FINE
    violated = False
    for line in tell_story(seed, name, crash_at, fault):
        violated = violated or line.startswith("VIOLATED")
        say(line)
    return FAILED if violated else FINE


def run(
    seeds: Sequence[int],
    profile_name: str,
    mutations: bool,
    jobs: int,
    json: bool,
    history: str = "",
) -> int:
    """Run all seeds, then all mutations; returns the exit status. Histories of the seeds go into
    the folder `history`, if given."""
    name = _known(profile_name)
    processes = jobs or cores()
    with _bar() as bar:
        arguments = [(seed, name, history) for seed in seeds]
        runs = _each(_simulated, arguments, processes, bar, "seeds")
        catches: list[Catch] = []
        if mutations:
            planted = [(mutation,) for mutation in MUTATIONS]
            catches = _each(catch, planted, processes, bar, "mutations")
    return _judge(merge(runs, name), catches, json)


def crash_everywhere(
    seeds: Sequence[int], profile_name: str, fault: str, jobs: int, json: bool
) -> int:
    """Run each seed once for every step of a broker in it, with a crash there, or another fault."""
    name = profile_name or "calm"
    steps = {seed: crashes_of(seed, name, fault) for seed in seeds}
    every = [(seed, name, step, fault) for seed in seeds for step in steps[seed]]
    with _bar() as bar:
        runs = _each(_crashed, every, jobs or cores(), bar, "crashes")
    return _judge(merge(runs, name), [], json)


def _simulated(seed: int, profile_name: str, history: str) -> Result:
    return simulate(seed, profile_name, history=history)


def _crashed(seed: int, profile_name: str, step: int, fault: str) -> Result:
    return simulate(seed, profile_name, crash_at=step, fault=fault)


def _judge(result: Result, catches: Sequence[Catch], json: bool) -> int:
    caught = sum(each.caught for each in catches)
    if json:
        say_json(result.to_json((len(catches), caught)))
    else:
        _show(result, catches)
    return FINE if not result.violations and caught == len(catches) else FAILED


def _known(profile_name: str) -> str:
    name = profile_name or DEFAULT_PROFILE
    profile(name)  # reject an unknown one at once
    return name


# ── running ──────────────────────────────────────────────────────────────────────────────


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}"),
        console=err(),
        disable=not err().is_terminal,
    )


def _each(
    work: Callable[..., T],
    jobs: Sequence[tuple[Any, ...]],
    processes: int,
    bar: Progress,
    what: str,
) -> list[T]:
    """Do the work for every job; results in the order of the jobs, whichever finishes first."""
    task = bar.add_task(what, total=len(jobs), remark="")
    results: dict[int, T] = {}
    wrong = 0
    for number, result in _finished(work, jobs, processes):
        results[number] = result
        if isinstance(result, Result):
            wrong += bool(result.violations)
        bar.update(task, advance=1, remark=f"{wrong} violated" if wrong else "")
    return [results[number] for number in range(len(jobs))]


def _finished(
    work: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int
) -> Iterator[tuple[int, T]]:
    processes = min(processes, len(jobs))
    if processes <= 1:
        yield from ((number, work(*job)) for number, job in enumerate(jobs))
        return
    # Fresh interpreters: a run must not depend on earlier work of its process.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running = {pool.submit(work, *job): number for number, job in enumerate(jobs)}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


# ── telling ──────────────────────────────────────────────────────────────────────────────


def _show(result: Result, catches: Sequence[Catch]) -> None:
    say(f"{result.seeds:,} seeds, {result.steps:,} steps, profile {result.profile}")
    faults = ", ".join(f"{kind} {count:,}" for kind, count in result.faults.items())
    say(f"faults: {faults or 'none'}\n")
    violated = [violation.guarantee for violation in result.violations]
    shown = table("", "guarantee", "checked", "violated", right=("checked", "violated"))
    for guarantee, count in result.checked.items():
        shown.add_row(guarantee, f"{count:,}", str(violated.count(guarantee)))
    out().print(shown)
    if catches:
        say("")
        planted = table("", "planted bug", "caught", "by", "seeds", right=("seeds",))
        for each in catches:
            by = ", ".join(each.guarantees) or "–"
            planted.add_row(each.mutation, "yes" if each.caught else "NO", by, str(each.seeds))
        out().print(planted)
    for complaint in result.complaints()[:SHOWN_VIOLATIONS]:
        say(f"\n{complaint}")
    if len(result.violations) > SHOWN_VIOLATIONS:
        say(f"\nand {len(result.violations) - SHOWN_VIOLATIONS} more violations")
    missed = [each.mutation for each in catches if not each.caught]
    verdict = "no violations" if not result.violations else "VIOLATED"
    caught = f"; {len(catches) - len(missed)} of {len(catches)} planted bugs caught"
    say(f"\n{verdict}{caught if catches else ''}; trace {result.trace_hash}")


# ── fresh seeds ──────────────────────────────────────────────────────────────────────────

FINDINGS: Final = "findings.jsonl"
SEEDS: Final = 10**9
"""Seeds are drawn below this: short enough to type, too many to draw one twice."""
REMARK_S: Final = 60.0
"""How often the progress is printed without a terminal."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Bounds:
    """The limits of a hunt; None: no limit."""

    seeds: int | None = None
    seconds: float | None = None


@dataclass
class HuntTally:
    """The progress of the hunt."""

    began: float = field(default_factory=time.monotonic)
    seeds: Counter[str] = field(default_factory=Counter)
    """By profile."""
    found: Counter[str] = field(default_factory=Counter)
    steps: int = 0

    def add(self, result: Result) -> None:
        self.seeds[result.profile] += 1
        self.found[result.profile] += bool(result.violations)
        self.steps += result.steps

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def __str__(self) -> str:
        return f"{self.seeds.total():,} seeds, {self.found.total():,} with a violation"


def hunt(profile_name: str, jobs: int, bounds: Bounds, folder: Path, json: bool) -> int:
    """Run until a bound or a signal; `FAILED` if a seed has violated a guarantee."""
    names = [profile_name] if profile_name else list(PROFILES)
    for name in names:
        profile(name)  # reject an unknown one before anything is written
    journal = _Journal(folder)
    tally = HuntTally()
    progress = _Progress(tally, quiet=json)
    seeds = contextlib.closing(_bounded(_results(names, jobs or cores()), bounds, tally))
    with _stoppable(), progress.shown, seeds as results:
        for result in results:
            with _undisturbed():
                tally.add(result)
                if result.violations:
                    finding = journal.add(result)
                    say_json(finding) if json else _show_finding(result)
            progress.tell()
    _summarize(tally, journal.path, json)
    return FAILED if tally.found.total() else FINE


# ── seeds ────────────────────────────────────────────────────────────────────────────────


def _bounded(
    results: Generator[Result, None, None], bounds: Bounds, tally: HuntTally
) -> Generator[Result, None, None]:
    with contextlib.closing(results):
        for result in itertools.islice(results, bounds.seeds):
            yield result
            if bounds.seconds is not None and tally.elapsed_s >= bounds.seconds:
                return


def _results(names: Sequence[str], processes: int) -> Generator[Result, None, None]:
    """Endless: the profiles take turns, with a random seed each time."""
    chance = random.SystemRandom()
    drawn = ((chance.randrange(SEEDS), name) for name in itertools.cycle(names))
    if processes == 1:
        yield from itertools.starmap(_judged, drawn)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_leave_signals) as pool:
        running: set[Future[Result]] = set()
        try:
            while True:
                running |= {
                    pool.submit(_judged, *next(drawn)) for _ in range(len(running), processes)
                }
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        finally:
            for child in multiprocessing.active_children():
                child.terminate()  # its results are not needed any more


def _leave_signals() -> None:
    """Ctrl-C reaches the whole group; the parent process, which assigns the seeds, handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _judged(seed: int, profile_name: str) -> Result:
    """A simulation that raises is a finding like a violation, and does not end the hunt."""
    try:
        return simulate(seed, profile_name)
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        detail = f"{type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"
        raised = Violation(seed, "raised", detail)
        return Result(1, 0, {}, {}, (raised,), "", profile_name)


# ── findings ─────────────────────────────────────────────────────────────────────────────


class _Journal:
    """Findings, one JSON object per line, added to those of earlier hunts."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FINDINGS
        self._commit = commit()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path.open("a").close()
        except OSError as problem:
            raise Misuse(
                f"findings cannot be written to {self.path}: {problem.strerror or problem}",
                "--findings DIR",
            ) from None

    def add(self, result: Result) -> dict[str, Any]:
        seed = result.violations[0].seed
        finding = {
            "profile": result.profile,
            "seed": seed,
            "violations": [
                {"guarantee": each.guarantee, "detail": each.detail} for each in result.violations
            ],
            "commit": self._commit,
            "replay": replay_command(seed, result.profile),
            "trace_hash": result.trace_hash,
            "found_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finding, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return finding


def commit() -> str:
    """The commit of the running code, with `+changes` if files differ from it; the version of the
    package if it is not run from a repository. A seed reproduces its run only with this code."""
    source = Path(motet.__file__).parent

    def git(*words: str) -> str:
        told = subprocess.run(
            ["git", *words, "--", "."], cwd=source, capture_output=True, text=True
        )
        return told.stdout.strip() if told.returncode == 0 else ""

    try:
        last = git("log", "-1", "--format=%H")
        changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    except OSError:  # there is no git
        last, changed = "", False
    return (last + "+changes" * changed) if last else f"motet {motet.__version__}"


# ── signals ──────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """The first signal ends the block; later ones do not disturb the summary."""

    def stop(*_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay signals, so that a finding is completely written and counted."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ── telling ──────────────────────────────────────────────────────────────────────────────


class _Progress:
    """A line on a terminal; elsewhere one remark per minute."""

    def __init__(self, tally: HuntTally, *, quiet: bool) -> None:
        self._tally = tally
        self._terminal = err().is_terminal
        self._quiet = quiet and self._terminal
        self._told_at = tally.began
        self.shown = Progress(
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("Ctrl-C stops the run"),
            console=err(),
            disable=not self._terminal or self._quiet,
        )
        self._task = self.shown.add_task(str(tally))

    def tell(self) -> None:
        self.shown.update(self._task, description=str(self._tally))
        now = time.monotonic()
        if not self._terminal and now - self._told_at >= REMARK_S:
            self._told_at = now
            remark(str(self._tally))


def _show_finding(result: Result) -> None:
    for complaint in result.complaints():
        say(f"profile {result.profile}, {complaint}")


def _summarize(tally: HuntTally, path: Path, json: bool) -> None:
    if json:
        say_json(
            {
                "seeds": tally.seeds.total(),
                "steps": tally.steps,
                "seconds": round(tally.elapsed_s, 1),
                "found": tally.found.total(),
                "profiles": {
                    name: {"seeds": count, "found": tally.found[name]}
                    for name, count in tally.seeds.items()
                },
                "findings": str(path),
            }
        )
        return
    shown = table("", "profile", "seeds", "found", right=("seeds", "found"))
    for name, count in tally.seeds.items():
        shown.add_row(name, f"{count:,}", f"{tally.found[name]:,}")
    out().print(shown)
    say(f"{tally}; {tally.steps:,} steps in {tally.elapsed_s:.0f} s; findings are in {path}")
