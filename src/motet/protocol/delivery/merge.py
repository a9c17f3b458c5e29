"""Total order: several pubends as one stream at a client, the same for everybody who merges them.

Events are ordered by (tick, pubend). One is released when every merged pubend has passed its tick;
a pubend that is quiet is asked for silence up to there. A pubend that is down stops the merge.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.ranges import Range
from motet.protocol.publication import Publication


class Item(NamedTuple):
    """An event, or a range that is lost and stands at its lowest tick."""

    tick: int
    publication: Publication | None
    subscriptions: tuple[int, ...]
    upto: int


class Merge:
    __slots__ = ("_horizons", "_joins", "_queues", "released")

    def __init__(self, released: int) -> None:
        self.released = released
        """The highest tick that the client has been given of any pubend."""
        self._horizons: dict[str, int] = {}
        self._queues: dict[str, deque[Item]] = {}
        self._joins: dict[str, int] = {}

    def join(self, pubend: str, tick: int) -> int:
        """A pubend takes part above the given tick, and above everything released."""
        tick = max(tick, self.released)
        self._horizons[pubend] = self._joins[pubend] = tick
        self._queues[pubend] = deque()
        return tick

    def rejoin(self, pubend: str, given: int) -> None:
        """A pubend goes on where its client stopped. All of it below the highest tick that was
        released has been released before."""
        self._horizons[pubend] = given
        self._queues[pubend] = deque()

    def leave(self, pubend: str) -> None:
        self._horizons.pop(pubend, None)
        self._queues.pop(pubend, None)
        self._joins.pop(pubend, None)

    def take(self, delivered: Delivered) -> None:
        queue = self._queues[delivered.pubend]
        each = delivered.each or [delivered.every] * len(delivered.ticks)
        for low, high in delivered.lost:
            queue.append(Item(low, None, (), high))
        for tick, publication, subscriptions in zip(
            delivered.ticks, delivered.batch, each, strict=True
        ):
            queue.append(Item(tick, publication, subscriptions, tick))

    def reached(self, pubend: str, tick: int) -> None:
        if tick > self._horizons[pubend]:
            self._horizons[pubend] = tick

    def release(self) -> list[Delivered]:
        """Everything up to the lowest horizon, in order."""
        bound = min(self._horizons.values(), default=0)
        ready: list[tuple[int, str, Item]] = []
        for pubend, queue in self._queues.items():
            while queue and queue[0].tick <= bound:
                item = queue.popleft()
                ready.append((item.tick, pubend, item))
        ready.sort(key=lambda entry: entry[:2])
        found: list[Delivered] = []
        first = 0
        for at in range(1, len(ready) + 1):
            if at == len(ready) or ready[at][1] != ready[first][1]:
                found.append(_run(ready[first][1], [entry[2] for entry in ready[first:at]]))
                first = at
        if ready:
            self.released = max(self.released, ready[-1][0])
        return found

    def wanted(self, pubend: str) -> int:
        """Up to which tick the others wait for this pubend."""
        top = self._joins.get(pubend, 0)
        for queue in self._queues.values():
            if queue:
                top = max(top, queue[-1].tick)
        return top

    def late(self) -> list[str]:
        """The pubends that others wait for."""
        return [each for each, tick in self._horizons.items() if tick < self.wanted(each)]

    def joined(self) -> bool:
        """Have all pubends passed the tick above which they take part?"""
        return all(self._horizons[each] >= tick for each, tick in self._joins.items())


def _run(pubend: str, items: list[Item]) -> Delivered:
    lost: tuple[Range, ...] = tuple((i.tick, i.upto) for i in items if i.publication is None)
    events = [item for item in items if item.publication is not None]
    batch = [item.publication for item in events if item.publication is not None]
    each = [item.subscriptions for item in events]
    every: tuple[int, ...] = ()
    if each and each.count(each[0]) == len(each):
        every, each = each[0], []
    ticks = [item.tick for item in events]
    return Delivered(pubend, items[-1].upto, ticks, batch, every, each, lost)
