"""The seeds and mutations of `motet sim`: spread over processes, shown with a bar, told.

Apart from its command because it imports the whole simulator, for which the other commands
should not have to wait.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from motet.bench.figures import cores
from motet.cli.ending import FAILED, FINE
from motet.cli.voice import err, out, say, say_json, table
from motet.testing.faults import DEFAULT_PROFILE, profile
from motet.testing.mutations import MUTATIONS
from motet.testing.simulation import (
    Catch,
    Result,
    catch,
    crashes_of,
    merge,
    simulate,
    tell_story,
)

T = TypeVar("T")

SHOWN_VIOLATIONS = 10


def replay(seed: int, profile_name: str, crash_at: int | None, json: bool) -> int:
    """One seed, step by step."""
    name = _known(profile_name)
    if json:
        result = simulate(seed, name, story=True, crash_at=crash_at)
        say_json(result.to_json() | {"seed": seed, "story": list(result.story)})
        return FAILED if result.violations else FINE
    violated = False
    for line in tell_story(seed, name, crash_at):
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
    """All seeds, then all mutations; the exit status. Histories of the seeds go into a folder, if
    one is named."""
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


def crash_everywhere(seeds: Sequence[int], profile_name: str, jobs: int, json: bool) -> int:
    """Each seed once for every step of a broker in it, with a crash there."""
    name = profile_name or "calm"
    every = [(seed, name, step) for seed in seeds for step in crashes_of(seed, name)]
    with _bar() as bar:
        runs = _each(_crashed, every, jobs or cores(), bar, "crashes")
    return _judge(merge(runs, name), [], json)


def _simulated(seed: int, profile_name: str, history: str) -> Result:
    return simulate(seed, profile_name, history=history)


def _crashed(seed: int, profile_name: str, step: int) -> Result:
    return simulate(seed, profile_name, crash_at=step)


def _judge(result: Result, catches: Sequence[Catch], json: bool) -> int:
    caught = sum(each.caught for each in catches)
    if json:
        say_json(result.to_json((len(catches), caught)))
    else:
        _show(result, catches)
    return FINE if not result.violations and caught == len(catches) else FAILED


def _known(profile_name: str) -> str:
    name = profile_name or DEFAULT_PROFILE
    profile(name)  # an unknown one is told at once
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
    """The work for every job, in the order of the jobs, whoever finishes first."""
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
    # Fresh interpreters: a run must not depend on what its process did before.
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
        say(f"\nand {len(result.violations) - SHOWN_VIOLATIONS} violations more")
    missed = [each.mutation for each in catches if not each.caught]
    verdict = "nothing is violated" if not result.violations else "VIOLATED"
    caught = f"; {len(catches) - len(missed)} of {len(catches)} planted bugs caught"
    say(f"\n{verdict}{caught if catches else ''}; trace {result.trace_hash}")
