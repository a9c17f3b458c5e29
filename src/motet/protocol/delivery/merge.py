"""Total order: several pubends as one stream at a client, the same for everybody who merges them.

Events are ordered by (tick, pubend). One is released when every merged pubend has passed its tick;
a pubend that is quiet is asked for silence up to there. A pubend that is down stops the merge.

What has been released never comes again, so a pubend takes part only above that. Nobody is owed
what lies below: a pubend that will take part stops the merge from the moment on at which it is
heard of, and starts its subscriptions above all that was released by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from motet.protocol.delivery.cuts import Cuts
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.ranges import Range
from motet.protocol.publication import Publication

RUN_EVENTS = 1024
RUN_BYTES = 512 << 10
"""What goes into one frame at most; a merge may have held back far more."""


class Item(NamedTuple):
    """An event, or a range that is lost. It is released at its tick, and ends the range."""

    tick: int
    publication: Publication | None
    subscriptions: tuple[int, ...]
    since: int
    upto: int
    block: tuple[str, int, int] | None = None
    """The transaction that it belongs to, and where the events of that begin and end."""


class Blocked(NamedTuple):
    """Events wait for a pubend, since then."""

    pubend: str
    since_s: float


class Merge:
    __slots__ = ("_expected", "_finished", "_floors", "_horizons", "_queues", "_top", "released")

    def __init__(self, tick: int = 0, pubend: str = "") -> None:
        self.released = (tick, pubend)
        """The place of the last event that the client has been given."""
        self._horizons: dict[str, int] = {}
        self._queues: dict[str, deque[Item]] = {}
        self._floors: dict[str, int] = {}
        """Above which each pubend takes part."""
        self._expected: dict[str, None] = {}
        """Pubends that will take part: nothing is released before they do."""
        self._finished: dict[str, bool] = {}
        """Nobody waits for these; for good, if true: they leave when they have been released."""
        self._top = 0
        """The highest tick that anything here ever had."""

    # ── who takes part ───────────────────────────────────────────────────────────────────

    def expect_only(self, pubends: Iterable[str]) -> None:
        """These will take part, from a tick on that is not known yet."""
        self._expected = {each: None for each in pubends if each not in self._horizons}

    def join(self, pubend: str, given: int) -> None:
        """It takes part: the client has all of it up to a tick. If more was released of others
        meanwhile, it takes part above that, and is owed nothing below."""
        tick, last = self.released
        floor = max(given, tick if pubend <= last else tick - 1)
        self._expected.pop(pubend, None)
        self._finished.pop(pubend, None)
        self._horizons[pubend] = self._floors[pubend] = floor
        self._queues.setdefault(pubend, deque())

    def leave(self, pubend: str) -> None:
        """It takes part no more, and what waits of it is not wanted."""
        for table in (self._expected, self._horizons, self._queues, self._floors, self._finished):
            table.pop(pubend, None)

    def finish(self, pubend: str) -> None:
        """Nobody waits for it any longer; what has come of it is still wanted."""
        self._expected.pop(pubend, None)
        if pubend in self._horizons:
            self._finished[pubend] = False

    # ── what comes ───────────────────────────────────────────────────────────────────────

    def take(self, delivered: Delivered, cuts: Cuts) -> None:
        pubend = delivered.pubend
        if pubend in self._finished:
            self._come_back(pubend)
        queue, floor = self._queues[pubend], self._floors[pubend]
        each = delivered.each or [delivered.every] * len(delivered.ticks)
        for low, high in delivered.lost:
            queue.append(Item(high, None, (), low, high))
        for tick, publication, subscriptions in zip(
            delivered.ticks, delivered.batch, each, strict=True
        ):
            if tick > floor:
                record = cuts.block_at(tick) if tick <= cuts.top else None
                block = None if record is None else (record.tx, record.tick, record.last)
                queue.append(Item(tick, publication, subscriptions, tick, tick, block))
        if queue:
            self._top = max(self._top, queue[-1].tick)

    def lose(self, pubend: str, since: int, upto: int) -> None:
        """It has been destroyed: nothing of it comes any more."""
        self._expected.pop(pubend, None)
        if pubend in self._queues:
            self._finished[pubend] = True
            self._queues[pubend].append(Item(since, None, (), since, upto))
            self._top = max(self._top, since)

    def reached(self, pubend: str, tick: int) -> None:
        if pubend in self._finished and tick > self._horizons[pubend]:
            self._come_back(pubend)
        if tick > self._horizons.get(pubend, tick):
            self._horizons[pubend] = tick

    def _come_back(self, pubend: str) -> None:
        """Others have not waited for it: what lies below them is too late, and told as a loss."""
        standing = self._horizons[pubend]
        self.join(pubend, standing)
        if self._floors[pubend] > standing:
            floor = self._floors[pubend]
            self._queues[pubend].append(Item(floor, None, (), standing + 1, floor))

    # ── what goes ────────────────────────────────────────────────────────────────────────

    def release(self) -> list[Delivered]:
        """Everything up to the lowest horizon, in order."""
        bound = self._bound()
        ready: list[tuple[int, str, Item]] = []
        for pubend, queue in self._queues.items():
            while queue and queue[0].tick <= bound:
                item = queue.popleft()
                ready.append((item.tick, pubend, item))
        for pubend in [p for p, good in self._finished.items() if good and not self._queues[p]]:
            self.leave(pubend)
        if not ready:
            return []
        ready.sort(key=lambda entry: entry[:2])
        self.released = max(self.released, ready[-1][:2])
        return _runs(ready)

    def _bound(self) -> int:
        if self._expected:
            return self.released[0]
        if not self._finished:
            return min(self._horizons.values(), default=0)
        waited = (t for p, t in self._horizons.items() if p not in self._finished)
        return min(waited, default=self._top)

    def wanted(self, pubend: str) -> int:
        """Up to which tick this pubend is waited for."""
        return max(min(self._floors.get(pubend, 0), self.released[0]), self._top)

    def late(self) -> list[str]:
        """The pubends that others wait for."""
        top = self._top
        found = [p for p, tick in self._horizons.items() if tick < top and p not in self._finished]
        return found if any(self._queues.values()) else []

    def blocker(self) -> str | None:
        """Of those that events wait for here, the one that is furthest behind."""
        if not any(self._queues.values()):
            return None
        if self._expected:
            return next(iter(self._expected))
        waited = [(t, p) for p, t in self._horizons.items() if p not in self._finished]
        return min(waited)[1] if waited else None


def _runs(ready: list[tuple[int, str, Item]]) -> list[Delivered]:
    """Frames of one pubend each, none of them too large."""
    found: list[Delivered] = []
    items: list[Item] = []
    pubend, volume = ready[0][1], 0
    for _, whose, item in ready:
        if items and (whose != pubend or len(items) == RUN_EVENTS or volume >= RUN_BYTES):
            found.append(_run(pubend, items))
            items, volume = [], 0
        pubend = whose
        items.append(item)
        if item.publication is not None:
            volume += len(memoryview(item.publication.body))
    found.append(_run(pubend, items))
    return found


def _run(pubend: str, items: list[Item]) -> Delivered:
    lost: tuple[Range, ...] = tuple((i.since, i.upto) for i in items if i.publication is None)
    events = [item for item in items if item.publication is not None]
    batch = [item.publication for item in events if item.publication is not None]
    each = [item.subscriptions for item in events]
    every: tuple[int, ...] = ()
    if each and each.count(each[0]) == len(each):
        every, each = each[0], []
    ticks = [item.tick for item in events]
    blocks = tuple(dict.fromkeys(item.block for item in events if item.block is not None))
    return Delivered(pubend, items[-1].upto, ticks, batch, every, each, lost, blocks)
