"""Total order: several pubends merged into one stream, the same for every client that does so.

Events are ordered by (tick, pubend). One is released when every merged pubend has passed its tick;
a quiet pubend is asked for silence up to that tick. A pubend that is down stops the merge.

Released ticks never return, so a pubend joins only above them, and no client is owed what lies
below. Two rules ensure that (decision 21). First, a pubend that will join stops the merge as soon
as the broker hears of it, and starts its subscriptions above everything released by then:
`routing.starts.Joins` says which pubends these are. Second, a broker's own ticks lie above all
events given to its clients and above all silence that it has announced, even after a crash:
`TicksReserved` is journaled first, for some seconds in advance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from motet.model import Hop
from motet.protocol.delivery.blocks import Cuts
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.spans import Range
from motet.protocol.publication import Publication
from motet.protocol.routing.machine import Routing

AHEAD = 10_000_000
"""Ticks reserved per fact: one fact in ten seconds."""


class TotalOrder:
    def __init__(self, routing: Routing) -> None:
        self._subscriptions = routing.state.subscriptions
        self._awaited = routing.joins.awaited
        self.clients: dict[str, None] = {}
        """Connected clients in total order."""

    def enter(self, client: str) -> list[str]:
        """A client connects. Returns the pubends that it must wait for."""
        self.clients[client] = None
        return self.awaited(client)

    def leave(self, client: str) -> None:
        self.clients.pop(client, None)

    def awaited(self, client: str) -> list[str]:
        """The pubends at which subscriptions of a client are about to start."""
        own = self._subscriptions.from_source(Hop.client(client))
        found = (pubend for each in own for pubend in self._awaited.get(each.id, ()))
        return list(dict.fromkeys(found))


class Reserve:
    """The ticks that this broker has reserved in its journal.

    A step that uses a tick above `sure` needs a fact in the same step; so does every further step
    until that fact is known to be durable."""

    def __init__(self, reserved: int) -> None:
        self.sure = self._asked = reserved

    def need(self, tick: int) -> int:
        """The tick to reserve up to before this one is used; 0 if none."""
        if tick <= self.sure:
            return 0
        if tick > self._asked:
            self._asked = tick + AHEAD
        return self._asked

    def durable(self, upto: int) -> None:
        self.sure = max(self.sure, upto)


RUN_EVENTS = 1024
RUN_BYTES = 512 << 10
"""Limits of one frame; a merge may have held back far more."""


class Item(NamedTuple):
    """An event or a lost range. It is released at `tick`, and covers `since` to `upto`."""

    tick: int
    publication: Publication | None
    subscriptions: tuple[int, ...]
    since: int
    upto: int
    block: tuple[str, int, int] | None = None
    """The transaction of the event, with the ticks of its cut and of its last event."""


class Blocked(NamedTuple):
    """The pubend that events wait for, and since when."""

    pubend: str
    since_s: float


class Merge:
    __slots__ = (
        "_expected",
        "_finished",
        "_floors",
        "_given_up",
        "_horizons",
        "_queues",
        "_top",
        "released",
    )

    def __init__(self, tick: int = 0, pubend: str = "") -> None:
        self.released = (tick, pubend)
        """The position of the last event that the client has been given."""
        self._horizons: dict[str, int] = {}
        self._queues: dict[str, deque[Item]] = {}
        self._floors: dict[str, int] = {}
        """By pubend: the tick above which it takes part."""
        self._expected: dict[str, None] = {}
        """Pubends that will join: nothing is released before they do."""
        self._given_up: dict[str, None] = {}
        """Pubends that were expected for too long."""
        self._finished: dict[str, bool] = {}
        """Pubends that the merge does not wait for. True: permanently; they leave once empty."""
        self._top = 0
        """The highest tick that any item ever had."""

    # ── members ──────────────────────────────────────────────────────────────────────────

    def expect_only(self, pubends: Iterable[str]) -> None:
        """These pubends will join, at a tick that is not known yet."""
        coming = [each for each in pubends if each not in self._horizons]
        self._given_up = {each: None for each in coming if each in self._given_up}
        self._expected = {each: None for each in coming if each not in self._given_up}

    def join(self, pubend: str, given: int) -> None:
        """A pubend joins; the client has all of it up to `given`. If other pubends were released
        further meanwhile, it joins above that, and nothing below is owed; if that was because the
        merge gave it up, its ticks below are reported as lost."""
        tick, last = self.released
        floor = max(given, tick if pubend <= last else tick - 1)
        self._expected.pop(pubend, None)
        self._finished.pop(pubend, None)
        self._horizons[pubend] = self._floors[pubend] = floor
        queue = self._queues.setdefault(pubend, deque())
        if self._given_up.pop(pubend, 0) is None and floor > given:
            queue.append(Item(floor, None, (), given + 1, floor))

    def leave(self, pubend: str) -> None:
        """A pubend leaves, and its waiting events are dropped."""
        self._given_up.pop(pubend, None)
        for table in (self._expected, self._horizons, self._queues, self._floors, self._finished):
            table.pop(pubend, None)

    def finish(self, pubend: str) -> None:
        """Stop waiting for a pubend, but keep its waiting events."""
        if self._expected.pop(pubend, 0) is None:
            self._given_up[pubend] = None
        if pubend in self._horizons:
            self._finished[pubend] = False

    # ── input ────────────────────────────────────────────────────────────────────────────

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
        """The pubend has been destroyed: no more events of it will come."""
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
        """The merge did not wait for this pubend: its ticks below are reported as lost."""
        standing = self._horizons[pubend]
        self.join(pubend, standing)
        if self._floors[pubend] > standing:
            floor = self._floors[pubend]
            self._queues[pubend].append(Item(floor, None, (), standing + 1, floor))

    # ── release ──────────────────────────────────────────────────────────────────────────

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
        """The tick up to which the merge waits for this pubend."""
        return max(min(self._floors.get(pubend, 0), self.released[0]), self._top)

    def late(self) -> list[str]:
        """The pubends that waiting events wait for."""
        top = self._top
        found = [p for p, tick in self._horizons.items() if tick < top and p not in self._finished]
        return found if any(self._queues.values()) else []

    def blocker(self) -> str | None:
        """Of the pubends that events wait for, the one that is furthest behind."""
        if not any(self._queues.values()):
            return None
        if self._expected:
            return next(iter(self._expected))
        waited = [(t, p) for p, t in self._horizons.items() if p not in self._finished]
        return min(waited)[1] if waited else None


def _runs(ready: list[tuple[int, str, Item]]) -> list[Delivered]:
    """Frames of one pubend each, within the size limits."""
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
