"""The matching engines alone: the one in C beside the one in Python and trying every filter.

    python -m motet.bench.match SUBSCRIPTIONS     what so many weigh; says it in one line of JSON

Every round measures all sides of a comparison, one after the other, in CPU time of this thread,
so that neighbours on the machine disturb all of them alike; medians over the rounds are reported.
The floor of the engine in C is the engine in Python, and its floor is trying every filter: here
a ratio says how many times faster, or, where less is better, which part of the time is left.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from statistics import median
from time import thread_time
from typing import Final, TypeVar

from motet.bench import stand, workload
from motet.bench.figures import Figure, Progress
from motet.errors import MisuseError
from motet.matching import FilterIndex, NaiveIndex, create_index
from motet.model import Filter, Value, encode_event

T = TypeVar("T")

HOPS: Final = 4
MEGA: Final = 1_000_000
GIB: Final = 1024**3
ENGINES: Final = {"C": "native", "Python": "python"}
LEAST_RATE: Final = {10_000: 300_000.0, 100_000: 25_000.0}
"""Events per second and core that the engine in C is to reach."""


@dataclass(frozen=True)
class Effort:
    rounds: int
    seconds: float
    """CPU time per round and side."""
    largest_for_python: int
    changes: int
    """Filters that are removed and added again."""


SHORT: Final = Effort(rounds=3, seconds=0.25, largest_for_python=10_000, changes=5_000)
LONG: Final = Effort(rounds=7, seconds=0.5, largest_for_python=100_000, changes=20_000)


def run(short: bool = False, progress: Progress | None = None) -> list[Figure]:
    """All figures of matching; `progress` is told what is measured now."""
    tell = progress or (lambda _: None)
    effort = SHORT if short else LONG
    figures: list[Figure] = []
    for count in (1_000, 10_000, 100_000):
        tell(f"{count:,} subscriptions, 0.1 % match")
        sides = Sides(count, 0.001, effort)
        figures += sides.rates(effort)
        if count == 100_000:
            tell(f"adding, removing and covering at {count:,} subscriptions")
            figures += sides.changes(effort)
    tell("10,000 subscriptions, 1 % match, next hops")
    figures += Sides(10_000, 0.01, effort).next_hops(effort, 8.0)
    tell("10 subscriptions, next hops")
    figures += Sides(10, 0.01, effort).next_hops(effort, 0.5)
    if not short:
        tell("memory of 1,000,000 subscriptions")
        figures += memory()
    return figures


class Sides:
    """The engines to compare, filled with the same filters."""

    def __init__(self, count: int, share: float, effort: Effort) -> None:
        self.count = count
        self.about = f"{count:,} subscriptions, {share:.1%} match"
        self.filters = workload.filters(count, share)
        self.events = workload.events(200)
        self.indexes: dict[str, FilterIndex] = {}
        for name, engine in ENGINES.items():
            if name == "Python" and count > effort.largest_for_python:
                continue
            try:
                self.indexes[name] = _filled(create_index(engine), self.filters)
            except MisuseError:
                continue  # not built here
        self.indexes["every filter"] = _filled(NaiveIndex(), self.filters)

    def rates(self, effort: Effort) -> list[Figure]:
        """Events per second, answered with the keys that match."""
        questions = {name: _each(index.match, self.events) for name, index in self.indexes.items()}
        rates = {name: 1 / cost_s for name, cost_s in _costs_s(questions, effort).items()}
        figures = []
        for (name, rate), floor in zip(
            rates.items(), [*list(rates.values())[1:], None], strict=True
        ):
            goal = LEAST_RATE.get(self.count) if name == "C" else None
            figures.append(
                Figure(f"matching, {name}: {self.about}", rate, "events/s", floor, goal, "at least")
            )
        return figures

    def next_hops(self, effort: Effort, most_us: float) -> list[Figure]:
        """Microseconds per event, answered with the mask of next hops."""
        del self.indexes["every filter"]
        bodies = [encode_event(event, b"") for event in self.events]
        questions = {name: _each(index.hops, self.events) for name, index in self.indexes.items()}
        if "C" in self.indexes:
            questions["C, encoded"] = _each(self.indexes["C"].hops_encoded, bodies)
        costs = {name: cost * 1e6 for name, cost in _costs_s(questions, effort).items()}
        floor = costs["Python"]
        return [
            Figure(
                f"next hops, {name}: {self.about}",
                cost_us,
                "µs",
                None if name == "Python" else floor,
                most_us if name == "C" else None,
            )
            for name, cost_us in costs.items()
        ]

    def changes(self, effort: Effort) -> list[Figure]:
        """Microseconds to remove, to add, and to ask who covers."""
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
            Figure(
                f"who covers this filter, {at}",
                covering["by rows"],
                "µs",
                covering["pairwise"],
                200.0,
            ),
        ]


# ── measuring ────────────────────────────────────────────────────────────────────────────


def _each(ask: Callable[[T], object], things: Sequence[T]) -> Callable[[int], None]:
    """Ask so many questions, over and over the same things."""
    endless = cycle(things)
    return lambda count: _drain(map(ask, islice(endless, count)))


def _drain(results: Iterable[object]) -> None:
    for _ in results:
        pass


def _spent_s(work: Callable[[], None]) -> float:
    start = thread_time()
    work()
    return thread_time() - start


def _costs_s(questions: Mapping[str, Callable[[int], None]], effort: Effort) -> dict[str, float]:
    """CPU seconds per question, as the median of rounds in which all sides take their turn."""
    batches = {name: _batch(ask, effort.seconds) for name, ask in questions.items()}
    costs: dict[str, list[float]] = {name: [] for name in questions}
    gc.collect()
    gc.disable()
    try:
        for _ in range(effort.rounds):
            for name, ask in questions.items():
                batch = batches[name]
                costs[name].append(_spent_s(partial(ask, batch)) / batch)
    finally:
        gc.enable()
    return {name: median(each) for name, each in costs.items()}


def _batch(ask: Callable[[int], None], seconds: float) -> int:
    """How many questions fill the time; finding out also warms up."""
    batch, spent = 1, 0.0
    while True:
        spent = _spent_s(partial(ask, batch))
        if spent >= seconds / 4:
            return max(1, int(batch * seconds / spent))
        batch = max(2 * batch, int(batch * seconds / 8 / max(spent, 1e-6)))


def _filled(index: FilterIndex, filters: Sequence[Filter]) -> FilterIndex:
    _fill(index, filters, range(len(filters)))
    return index


def _fill(index: FilterIndex, filters: Sequence[Filter], keys: Iterable[int]) -> None:
    for key in keys:
        index.add(key, filters[key], key % HOPS)


# ── memory ───────────────────────────────────────────────────────────────────────────────


def memory() -> list[Figure]:
    """What a million subscriptions weigh, in a process of its own."""
    heard = stand.hear_from("match", MEGA)
    return [
        Figure(
            "memory, the index alone: 1,000,000 subscriptions", heard["index"], "GiB", None, 1.0
        ),
        Figure("memory, with the filters: 1,000,000 subscriptions", heard["all"], "GiB"),
        Figure("adding, from empty to 1,000,000 subscriptions", heard["add_us"], "µs", None, 10.0),
        Figure("matching: 1,000,000 subscriptions, 0.1 % match", heard["events_per_s"], "events/s"),
    ]


def weigh(count: int) -> dict[str, float]:
    gc.disable()
    before = stand.rss_bytes(os.getpid())
    filters = workload.filters(count, 0.001)
    filters_only = stand.rss_bytes(os.getpid())
    index = create_index()
    add_s = _spent_s(lambda: _fill(index, filters, range(count)))
    everything = stand.rss_bytes(os.getpid())
    events: list[dict[str, Value]] = workload.events(100)
    match_s = _spent_s(lambda: _drain(map(index.match, events)))
    return {
        "index": (everything - filters_only) / GIB,
        "all": (everything - before) / GIB,
        "add_us": add_s / count * 1e6,
        "events_per_s": len(events) / match_s,
    }


if __name__ == "__main__":
    print(json.dumps(weigh(int(sys.argv[1]))))
