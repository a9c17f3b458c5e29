"""Subscriptions that cover each other in the shapes of paper 3 (its figure 7), and events for them.

The paper does not give its filters. Here an event has a `group` and an `x`, and a filter wants an
interval of one group. A group has one subscription per node of a shape. Clients fill one group
after the other, so that no two have the same filter: a copy would cover all that the original
covers, and no move of either would uncover anything.

    covered    the first covers all others, which are apart
    chained    each covers the next, and what that covers
    tree       each covers two more, and what they cover
    distinct   none covers any
    random     for each client, any node of any of the four
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from motet.errors import MisuseError

WIDTH: Final = 10
"""Subscriptions in a group, as in the paper."""
SHAPES: Final = ("covered", "chained", "tree", "distinct")
RANDOM: Final = "random"
WORKLOADS: Final = (*SHAPES, RANDOM)
STRIDE: Final = 7919
"""A prime, so that the events of a group come by every x."""


@dataclass(frozen=True)
class WantedInterval:
    """What one subscriber wants; `node` counts from 1."""

    group: int
    shape: str
    node: int
    low: int
    high: int
    direct: int
    """Number of nodes that it covers directly: they are uncovered when it leaves."""

    @property
    def filter(self) -> str:
        return f"group = {self.group} and x between {self.low} and {self.high}"

    def covers(self, other: WantedInterval) -> bool:
        return (
            self is not other
            and self.group == other.group
            and self.low <= other.low
            and other.high <= self.high
        )


def draw(workload: str, clients: int, width: int = WIDTH, seed: int = 1) -> list[WantedInterval]:
    """One filter per client."""
    if workload not in WORKLOADS:
        raise MisuseError(f"unknown workload {workload!r}; choose from {', '.join(WORKLOADS)}")
    if workload != RANDOM:
        return [_wanted(at // width, workload, at % width + 1, width) for at in range(clients)]
    dice, copies, groups = Random(seed), Counter[tuple[str, int]](), dict[tuple[str, int], int]()
    chosen = []
    for _ in range(clients):
        shape, node = dice.choice(SHAPES), dice.randint(1, width)
        copy = copies[shape, node]
        copies[shape, node] += 1
        chosen.append(_wanted(groups.setdefault((shape, copy), len(groups)), shape, node, width))
    return chosen


def covered(wanted: Sequence[WantedInterval]) -> list[int]:
    """For each: how many of the others it covers."""
    groups: dict[int, list[WantedInterval]] = {}
    for each in wanted:
        groups.setdefault(each.group, []).append(each)
    return [sum(map(each.covers, groups[each.group])) for each in wanted]


def _wanted(group: int, shape: str, node: int, width: int) -> WantedInterval:
    low, high = _interval(shape, node, width)
    direct = sum(_parent(shape, other) == node for other in range(2, width + 1))
    return WantedInterval(group, shape, node, low, high, direct)


def _parent(shape: str, node: int) -> int | None:
    if node == 1 or shape == "distinct":
        return None
    return {"covered": 1, "chained": node - 1, "tree": node // 2}[shape]


def _interval(shape: str, node: int, width: int) -> tuple[int, int]:
    match shape:
        case "covered" if node == 1:
            return 0, 10 * width + 9
        case "chained":
            return node, 2 * width + 1 - node
        case "tree":
            # The binary digits of the number are the path from the root, left or right.
            size = 1 << (width.bit_length() + 1)
            low = 0
            for digit in bin(node)[3:]:
                size //= 2
                low += size if digit == "1" else 0
            return low, low + size - 1
    return 10 * node, 10 * node + 9


# ── events ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EventSpace:
    """The events of all publishers: the group and the x of each follow from its number."""

    groups: int
    span: int
    """All x are below."""

    @classmethod
    def of(cls, wanted: Sequence[WantedInterval]) -> EventSpace:
        return cls(max(each.group for each in wanted) + 1, max(each.high for each in wanted) + 1)

    def event(self, publisher: int, number: int) -> dict[str, int]:
        group = (number + publisher) % self.groups
        return {"group": group, "x": self._x(number), "by": publisher, "n": number}

    def expected(self, wanted: WantedInterval, publisher: int, numbers: range) -> Iterator[int]:
        """Those events of a publisher that match."""
        skip = (wanted.group - publisher - numbers.start) % self.groups
        for number in numbers[skip :: self.groups]:
            if wanted.low <= self._x(number) <= wanted.high:
                yield number

    def _x(self, number: int) -> int:
        return (number // self.groups * STRIDE) % self.span
