"""Where clients go when a broker is emptied, or when the load of all brokers is evened out: pure
planning with numbers of clients.

A plan keeps paths short: a move costs messages on each link that it crosses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, floor

TOLERANCE = 0.1
"""Brokers are even if none has more or fewer clients than the mean by more than this share."""

Links = Iterable[Sequence[str]]
Counts = Mapping[str, int]
Flows = dict[tuple[str, str], int]
"""By source and target: how many clients move."""


class Distances:
    """How many links are between two brokers of a tree. Unknown brokers are far away."""

    def __init__(self, links: Links) -> None:
        self._near: dict[str, list[str]] = {}
        self._from: dict[str, dict[str, int]] = {}
        for one, other in links:
            self._near.setdefault(one, []).append(other)
            self._near.setdefault(other, []).append(one)

    @property
    def brokers(self) -> list[str]:
        return sorted(self._near)

    def between(self, one: str, other: str) -> int:
        if one not in self._from:
            self._from[one] = self._reach(one)
        return self._from[one].get(other, len(self._near) + 1)

    def _reach(self, start: str) -> dict[str, int]:
        found = {start: 0}
        reached = [start]
        for here in reached:
            for there in self._near.get(here, ()):
                if there not in found:
                    found[there] = found[here] + 1
                    reached.append(there)
        return found


def emptiest(source: str, targets: Iterable[str], counts: Counts, distances: Distances) -> str:
    """The target with the fewest clients; of several, the nearest."""

    def cost(target: str) -> tuple[int, int, str]:
        return counts.get(target, 0), distances.between(source, target), target

    return min(targets, key=cost)


def bounds(counts: Counts, tolerance: float = TOLERANCE) -> tuple[int, int]:
    """The lowest and the highest number of clients of a broker that is not to change. There are
    always two numbers around the mean."""
    mean = sum(counts.values()) / len(counts)
    low, high = ceil(mean * (1 - tolerance)), floor(mean * (1 + tolerance))
    return min(low, floor(mean)), max(high, ceil(mean))


def is_even(counts: Counts, tolerance: float = TOLERANCE) -> bool:
    low, high = bounds(counts, tolerance)
    return all(low <= count <= high for count in counts.values())


def plan(counts: Counts, distances: Distances, tolerance: float = TOLERANCE) -> Flows:
    """The fewest moves after which the brokers are even, over short paths."""
    return _paired(_changes(counts, tolerance), distances) if counts else {}


def _changes(counts: Counts, tolerance: float) -> dict[str, int]:
    """By broker: how many clients it gains, or loses if negative."""
    low, high = bounds(counts, tolerance)
    fullest = [(-count, name) for name, count in counts.items()]
    least = [(count, name) for name, count in counts.items()]
    heapify(fullest)
    heapify(least)
    while -fullest[0][0] > high or least[0][0] < low:
        most, giver = heappop(fullest)
        heappush(fullest, (most + 1, giver))
        few, taker = heappop(least)
        heappush(least, (few + 1, taker))
    given = {name: counts[name] + most for most, name in fullest}
    taken = {name: few - counts[name] for few, name in least}
    return {name: taken[name] - given[name] for name in counts}


def _paired(changes: Mapping[str, int], distances: Distances) -> Flows:
    """Nearest pairs first."""
    left = dict(changes)
    pairs = sorted(
        (distances.between(giver, taker), giver, taker)
        for giver, gives in changes.items()
        for taker, takes in changes.items()
        if gives < 0 < takes
    )
    flows: Flows = {}
    for _, giver, taker in pairs:
        many = min(-left[giver], left[taker])
        if many > 0:
            flows[giver, taker] = many
            left[giver] += many
            left[taker] -= many
    return flows
