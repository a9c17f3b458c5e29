"""How far pubends may be read so that no transaction is split and no publisher's events swapped.

All pubends have their transactions in the same order, that of the decisions. So one can always
advance from a position that splits no transaction: a transaction of several pubends is taken when
it is next at all of them, and later steps wait for it. A pubend that is already past it, because
the others were not read at that time, is not waited for.

A publisher that moves continues in another pubend. There its events are in steps that come behind
the earlier pubends, each up to a tick. Such a step is taken when these ticks are. A publisher's
events were logged one after the other, so some step can always be taken. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from motet.client.logs import REST, LogStep
from motet.model.ids import NO_LIMIT
from motet.spark.options import Vector

Steps = Mapping[str, Sequence[LogStep]]
"""By pubend, the next steps of its log."""


class Advance(NamedTuple):
    vector: Vector
    events: int
    size_bytes: int
    lagging: dict[str, tuple[str, ...]]
    """Waiting transactions, and for each the pubends that have no further step yet."""
    ahead: dict[str, int]
    """By pubend: the tick up to which it must be read before a step elsewhere can be taken."""


def advance(
    start: Vector,
    steps: Steps,
    most_events: int = NO_LIMIT,
    most_bytes: int = NO_LIMIT,
    behind: Mapping[str, int] | None = None,
    gone: Mapping[str, tuple[int, int]] | None = None,
) -> Advance:
    """Advance, by time, from a position that splits no transaction to another one. The first group
    is always taken, whatever its size. `behind`: cuts up to these numbers lie before the start.
    `gone`: by pubend, the first and the last tick of a range that its log has lost."""
    walk = _Walk(start, steps, behind or {}, gone or {})
    events = size = 0
    while (found := walk.next_group()) is not None:
        more = sum(step.events for _, step in found)
        more_bytes = sum(step.size_bytes for _, step in found)
        if events and more and (events + more > most_events or size + more_bytes > most_bytes):
            return Advance(walk.vector, events, size, {}, {})
        walk.take(found)
        events += more
        size += more_bytes
    return Advance(walk.vector, events, size, walk.lagging(), walk.ahead())


class _Walk:
    def __init__(
        self,
        start: Vector,
        steps: Steps,
        behind: Mapping[str, int],
        gone: Mapping[str, tuple[int, int]],
    ) -> None:
        self.vector = dict(start)
        self._behind = behind
        self._gone = gone
        self._steps = {name: steps.get(name, ()) for name in sorted(start)}
        self._at = dict.fromkeys(self._steps, 0)

    def _head(self, pubend: str) -> LogStep | None:
        at, steps = self._at[pubend], self._steps[pubend]
        return steps[at] if at < len(steps) else None

    def next_group(self) -> list[tuple[str, LogStep]] | None:
        """The earliest step that waits for no pubend, with its counterparts elsewhere."""
        best: list[tuple[str, LogStep]] | None = None
        for pubend in self._steps:
            step = self._head(pubend)
            if step is None or (best is not None and step.upto >= best[0][1].upto):
                continue
            group = self._group(pubend, step)
            if group is not None:
                best = group
        return best

    def _group(self, pubend: str, step: LogStep) -> list[tuple[str, LogStep]] | None:
        group = [(pubend, step)]
        for other in self._others(pubend, step):
            head = self._head(other)
            if head is None or head.tx != step.tx:
                return None
            group.append((other, head))
        return None if any(self._unread(each) for _, each in group) else group

    def _unread(self, step: LogStep) -> dict[str, int]:
        """What must be read before a step: up to which tick of which pubends."""
        return {p: tick for p, tick in step.after if p in self.vector and not self._has(p, tick)}

    def _has(self, pubend: str, tick: int) -> bool:
        first, last = self._gone.get(pubend, (0, 0))
        at = self.vector[pubend]
        return at > tick or (at >= first and tick <= last)

    def _others(self, pubend: str, step: LogStep) -> list[str]:
        """The other pubends at which the transaction of a step is still to come."""
        others = [other for other in joint(step, self._steps) if other != pubend]
        return [other for other in others if not self._is_past(other, step.number)]

    def _is_past(self, pubend: str, number: int) -> bool:
        head = self._head(pubend)
        return self._behind.get(pubend, 0) >= number or (head is not None and head.number > number)

    def take(self, group: list[tuple[str, LogStep]]) -> None:
        for pubend, step in group:
            self.vector[pubend] = step.upto + 1
            self._at[pubend] += 1

    def lagging(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for pubend in self._steps:
            step = self._head(pubend)
            if step is not None:
                others = self._others(pubend, step)
                found[step.tx] = tuple(each for each in others if self._head(each) is None)
        return {tx: missing for tx, missing in found.items() if missing}

    def ahead(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for pubend in self._steps:
            step = self._head(pubend)
            for other, tick in self._unread(step).items() if step is not None else ():
                found[other] = max(tick, found.get(other, 0))
        return found


def joint(step: LogStep, read: Container[str]) -> list[str]:
    """The pubends that are read and have events of a step's transaction, if there are several."""
    if len(step.pubends) < 2:
        return []
    members = [each for each in step.pubends if each in read]
    return members if len(members) > 1 else []


def whole_floor(first: Vector, steps: Steps, gone: Mapping[str, int]) -> Vector:
    """The earliest position that splits no transaction, if pubends begin at `first` and cuts up to
    the numbers in `gone` were removed. The rest of a split transaction is skipped."""
    floor, torn = dict(first), set[str]()
    while True:
        before = dict(floor)
        for pubend in sorted(floor):
            for step in steps.get(pubend, ()):
                members = joint(step, floor)
                is_torn = step.number == REST or any(gone[each] >= step.number for each in members)
                if is_torn or (members and step.tx in torn):
                    floor[pubend] = max(floor[pubend], step.upto + 1)
            for step in steps.get(pubend, ()):
                if step.upto < floor[pubend] and joint(step, floor):
                    torn.add(step.tx)
        if floor == before:
            return floor
