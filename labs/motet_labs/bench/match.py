"""The matching engines alone: the one in C, the one in Python, and trying every filter.

Every round measures all sides of a comparison in turn, in CPU time of this thread, so that other
processes disturb all of them alike; medians over the rounds are reported. The floor of the engine
in C is the engine in Python, and its floor is trying every filter. So a ratio is a speedup, or,
where less is better, the remaining share of the time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from statistics import median
from time import thread_time
from typing import Final, NamedTuple, TypeVar

from motet.errors import MisuseError
from motet.fleet.process import rss_bytes
from motet.matching import FilterIndex, NaiveIndex, create_index
from motet.model import Filter, encode_event
from motet_labs.bench import workload
from motet_labs.figures import Figure, Progress, Samples, Size
from motet_labs.processes import hear_from

T = TypeVar("T")
Question = Callable[[int], None]
"""Called with the number of times to ask."""

HOPS: Final = 4
GIB: Final = 1024**3
ENGINES: Final = {"C": "native", "Python": "python"}
LEAST_RATE: Final = {10_000: 300_000.0, 100_000: 25_000.0}
"""Events per second and core that the engine in C must reach."""


class MatchEffort(NamedTuple):
    rounds: int
    seconds: float
    """CPU time per round and side."""
    largest_for_python: int
    changes: int
    """Filters that are removed and added again."""
    counts: tuple[int, ...] = (1_000, 10_000, 100_000)
    """Subscriptions; changes are measured at the last one."""
    hops_count: int = 10_000
    memory_count: int = 0
    """Subscriptions whose memory is measured; 0: not measured."""


EFFORTS: Final = {
    Size.LEAST: MatchEffort(1, 0.005, 500, 50, (100, 500), 500, 500),
    Size.SHORT: MatchEffort(rounds=3, seconds=0.25, largest_for_python=10_000, changes=5_000),
    Size.LONG: MatchEffort(7, 0.5, 100_000, changes=20_000, memory_count=1_000_000),
}


def run(size: Size, progress: Progress) -> list[Figure]:
    effort = EFFORTS[size]
    figures: list[Figure] = []
    for count in effort.counts:
        progress(f"{count:,} subscriptions, 0.1 % match")
        sides = Sides(count, 0.001, effort)
        figures += sides.rates(effort)
        if count == effort.counts[-1]:
            progress(f"adding, removing and covering at {count:,} subscriptions")
            figures += sides.changes(effort)
    progress(f"{effort.hops_count:,} subscriptions, 1 % match, next hops")
    figures += Sides(effort.hops_count, 0.01, effort).next_hops(effort, 8.0)
    progress("10 subscriptions, next hops")
    figures += Sides(10, 0.01, effort).next_hops(effort, 0.5)
    if effort.memory_count:
        progress(f"memory of {effort.memory_count:,} subscriptions")
        figures += memory(effort.memory_count)
    return figures


class Sides:
    """The engines to compare, filled with the same filters."""

    def __init__(self, count: int, share: float, effort: MatchEffort) -> None:
        self.count = count
        self.about = f"{count:,} subscriptions, {share:.1%} match"
        self.filters = workload.filters(count, share)
        self.events = workload.events(200)
        self.indexes: dict[str, FilterIndex] = {}
        for name, engine in ENGINES.items():
            if name == "Python" and count > effort.largest_for_python:
                continue
            try:
                self.indexes[name] = _fill(create_index(engine), self.filters)
            except MisuseError:
                continue  # not built here
        self.indexes["every filter"] = _fill(NaiveIndex(), self.filters)

    def rates(self, effort: MatchEffort) -> list[Figure]:
        """Events per second, answered with the keys that match."""
        questions = {name: _each(index.match, self.events) for name, index in self.indexes.items()}
        rates = {name: 1 / cost_s for name, cost_s in _costs_s(questions, effort).items()}
        figures, floors = [], [*rates.values(), None][1:]
        for (name, rate), floor in zip(rates.items(), floors, strict=True):
            goal, what = LEAST_RATE.get(self.count) if name == "C" else None, self.about
            name = f"matching, {name}: {what}"
            figures.append(Figure(name, rate, "events/s", floor, goal, "at least"))
        return figures

    def next_hops(self, effort: MatchEffort, most_us: float) -> list[Figure]:
        """Microseconds per event, answered with the mask of next hops."""
        del self.indexes["every filter"]
        bodies = [encode_event(event, b"") for event in self.events]
        questions = {name: _each(index.hops, self.events) for name, index in self.indexes.items()}
        if "C" in self.indexes:
            questions["C, encoded"] = _each(self.indexes["C"].hops_encoded, bodies)
        costs = {name: cost * 1e6 for name, cost in _costs_s(questions, effort).items()}
        floors, goals = dict.fromkeys(("C", "C, encoded"), costs["Python"]), {"C": most_us}
        return [
            Figure(f"next hops, {name}: {self.about}", us, "µs", floors.get(name), goals.get(name))
            for name, us in costs.items()
        ]

    def changes(self, effort: MatchEffort) -> list[Figure]:
        """Microseconds to remove, to add, and to find the covering filters."""
        index = self.indexes.get("C") or self.indexes["Python"]
        naive = self.indexes["every filter"]
        keys = range(effort.changes)
        removing, adding = [], []
        for _ in range(effort.rounds):
            removing.append(_spent_s(lambda: _drain(map(index.remove, keys))))
            adding.append(_spent_s(lambda: _fill(index, self.filters, keys)))
        asked = {
            "by rows": _each(index.covering, self.filters[:200]),
            "pairwise": _each(naive.covering, self.filters[:200]),
        }
        covering = {name: cost * 1e6 for name, cost in _costs_s(asked, effort).items()}
        at = f"at {self.count:,} subscriptions"
        per_change_us = 1e6 / effort.changes
        return [
            Figure(f"adding {at}", median(adding) * per_change_us, "µs", None, 10.0),
            Figure(f"removing {at}", median(removing) * per_change_us, "µs", None, 10.0),
            Figure(f"who covers this filter, {at}",
                   covering["by rows"], "µs", covering["pairwise"], 200.0),
        ]  # fmt: skip


def _each(ask: Callable[[T], object], things: Sequence[T]) -> Question:
    """Ask the given number of questions, cycling through the same things."""
    endless = cycle(things)
    return lambda count: _drain(map(ask, islice(endless, count)))


def _drain(results: Iterable[object]) -> None:
    for _ in results:
        pass


def _spent_s(work: Callable[[], object]) -> float:
    start = thread_time()
    work()
    return thread_time() - start


def _costs_s(questions: Mapping[str, Question], effort: MatchEffort) -> dict[str, float]:
    """CPU seconds per question: the median of rounds in which all sides take their turn."""
    batches = {name: _batch(ask, effort.seconds) for name, ask in questions.items()}
    costs = Samples()
    gc.collect()
    gc.disable()
    try:
        for _ in range(effort.rounds):
            for name, ask in questions.items():
                batch = batches[name]
                costs[name].append(_spent_s(partial(ask, batch)) / batch)
    finally:
        gc.enable()
    return costs.medians()


def _batch(ask: Question, seconds: float) -> int:
    """How many questions fill the time; finding out also warms up."""
    batch, spent = 1, 0.0
    while True:
        spent = _spent_s(partial(ask, batch))
        if spent >= seconds / 4:
            return max(1, int(batch * seconds / spent))
        batch = max(2 * batch, int(batch * seconds / 8 / max(spent, 1e-6)))


def _fill(
    index: FilterIndex, filters: Sequence[Filter], keys: Iterable[int] | None = None
) -> FilterIndex:
    for key in range(len(filters)) if keys is None else keys:
        index.add(key, filters[key], key % HOPS)
    return index


def memory(count: int) -> list[Figure]:
    """The memory of very many subscriptions, in a process of its own."""
    heard = hear_from(weigh, count)
    what = f"{count:,} subscriptions"
    return [
        Figure(f"memory, the index alone: {what}", heard["index"], "GiB", None, 1.0),
        Figure(f"memory, with the filters: {what}", heard["all"], "GiB"),
        Figure(f"adding, from empty to {what}", heard["add_us"], "µs", None, 10.0),
        Figure(f"matching: {what}, 0.1 % match", heard["events_per_s"], "events/s"),
    ]


def weigh(count: int) -> dict[str, float]:
    gc.disable()
    before = rss_bytes(os.getpid())
    filters = workload.filters(count, 0.001)
    filters_only = rss_bytes(os.getpid())
    index = create_index()
    add_s = _spent_s(lambda: _fill(index, filters))
    everything = rss_bytes(os.getpid())
    events = workload.events(100)
    match_s = _spent_s(lambda: _drain(map(index.match, events)))
    return {
        "index": (everything - filters_only) / GIB,
        "all": (everything - before) / GIB,
        "add_us": add_s / count * 1e6,
        "events_per_s": len(events) / match_s,
    }
