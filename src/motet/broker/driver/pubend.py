"""A broker's own pubend, on disk or in memory: it carries out `Output.log`.

Records go to the log at once, or together with those that follow soon. A group commit costs the
same CPU for one record as for fifty, and on a fast disk it ends before the next record arrives: a
steady trickle would pay one commit per record. So records may wait a moment for others, if waiting
brings any (`Grouping`). This is tried, ever more rarely while it does not help: a client that
publishes one event and waits for its result brings no others, and should not wait. The first record
after a pause does not wait either, nor does a batch that is large enough for its own group.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Protocol

from msgspec.structs import asdict

from motet.broker.driver.history import LogHistory
from motet.broker.driver.side_requests import ReadableLog
from motet.broker.folder.journal import Journal
from motet.protocol.contract import (
    Input,
    LogCut,
    LogItem,
    LogPredecessors,
    LogRun,
    LogStart,
    Output,
    Persisted,
    Remembered,
)
from motet.protocol.delivery.spans import CutRecord, PredecessorRecord, Record, Span, StartRecord
from motet.protocol.delivery.stream import ReadWanted
from motet.protocol.publication import Publication
from motet.runtime.pubend import (
    EventRun,
    Lost,
    PubendLog,
    Start,
    StoredCut,
    StoredPredecessors,
)

KEPT_BYTES = 64 << 20
"""How much a pubend in memory keeps for subscribers that are behind."""
GATHER_S = 0.008
"""The interval between groups while waiting helps: an event may be delayed by this much."""
GATHER_EVENTS = 64
"""This many events share a commit cheaply enough to start it at once."""
FIRST_TRY = 16
RAREST_TRY = 256
"""The number of groups without waiting before waiting is tried again."""

Told = Callable[[int], None]
Failed = Callable[[Exception], None]


Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]
"""Run something after this many seconds."""


class Pubend(Protocol):
    def watch(self, durable: Told, failed: Failed) -> None:
        """Report, on the event loop, how many of the records appended in this life are durable."""

    def append(self, items: Sequence[LogItem]) -> None: ...

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        """These sessions (publisher, epoch) publish nothing any more."""

    def read(self, want: ReadWanted) -> list[Span]: ...

    def acknowledged(self, tick: int) -> None: ...

    def describe(self) -> dict[str, Any]: ...

    @property
    def readable(self) -> ReadableLog | None:
        """The log as late readers may read it."""

    async def close(self) -> None: ...

    async def abandon(self) -> None: ...


class Confirms:
    """Confirmations for the core, and sessions to forget for the pubend, each due when the journal
    has reached a position."""

    def __init__(
        self,
        journal: Journal,
        turn: Callable[[Input], None],
        forget: Callable[[Sequence[tuple[str, str]]], None],
    ) -> None:
        self._journal = journal
        self._turn = turn
        self._forget = forget
        self._awaited: deque[tuple[int, Output]] = deque()
        self._arranged = False

    def add(self, position: int, output: Output) -> None:
        self._awaited.append((position, output))
        if position <= self._journal.durable and not self._arranged:
            self._arranged = True
            asyncio.get_running_loop().call_soon(self._look)

    def before(self, then: Callable[[], None]) -> Callable[[], None]:
        """The callback for a growing journal."""

        def grown() -> None:
            self._look()
            then()

        return grown

    def _look(self) -> None:
        """Confirmations are numbered in order, so the last one covers all before it."""
        self._arranged = False
        confirmed = 0
        while self._awaited and self._awaited[0][0] <= self._journal.durable:
            _, output = self._awaited.popleft()
            if output.forgotten:
                self._forget(output.forgotten)
            confirmed = output.confirm or confirmed
        if confirmed:
            self._turn(Persisted(confirmed))


class LettingGo:
    """The tick up to which the log of the broker's own pubend may be trimmed.

    The core releases a tick when every client has acknowledged it, in the step that writes the fact
    that proves it. A crash can lose a fact that is not durable, and then clients need the tick
    again. So a tick waits until all facts are durable that the journal had when it was released."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._upto = self._next = 0
        self._position = 0
        """The position in the journal that `_next` waits for."""

    def upto(self, done_with: int) -> int:
        """The last tick that may be trimmed, given the tick that the core releases now."""
        journal = self._journal
        if journal.durable >= self._position:
            self._upto, self._next, self._position = self._next, done_with, journal.appended
        if journal.durable >= self._position:
            self._upto = self._next
        return self._upto


class Grouping:
    """Tracks the records that arrive and leave, and decides how long those present wait."""

    def __init__(self) -> None:
        self._began_at = float("-inf")
        self._events = 0
        self._half_way = 0.0
        self._is_late = False
        """A record arrived in the second half of the wait: more will follow."""
        self._waits = False
        self._try_in = self._patience = FIRST_TRY

    def wait_s(self, events: int, now: float) -> float:
        """More records arrived: how long all present ones should wait; 0: not at all."""
        left_s = self._began_at + GATHER_S - now
        if not self._events:
            self._half_way = now + left_s / 2
        elif now > self._half_way:
            self._is_late = True
        self._events += events
        if not self._waits or self._events >= GATHER_EVENTS:
            return 0.0
        return max(0.0, left_s)

    def begin(self, now: float) -> None:
        """All records present go to the log."""
        if not self._waits:
            self._try_in -= 1
            self._waits = self._try_in <= 0
        elif self._is_late or self._events >= GATHER_EVENTS:
            self._patience = FIRST_TRY
        elif now - self._began_at < 2 * GATHER_S:  # else it came after a pause and did not wait
            self._waits = False
            self._try_in = self._patience
            self._patience = min(2 * self._patience, RAREST_TRY)
        self._began_at = now
        self._events = 0
        self._is_late = False


class LoggedPubend:
    """The pubend on disk."""

    def __init__(
        self, log: PubendLog, defer: Later | None = None, history: LogHistory | None = None
    ) -> None:
        self.readable = ReadableLog(log)
        self._log = log
        self._defer = defer
        self._history = history
        self._awaited: deque[tuple[int, int]] = deque()
        self._appended = 0
        self._waiting: list[LogItem] = []
        self._grouping = Grouping()
        self._timer: asyncio.TimerHandle | None = None
        self._failed: Failed = _raised

    def watch(self, durable: Told, failed: Failed) -> None:
        def grown() -> None:
            count, awaited, position = 0, self._awaited, self._log.durable
            while awaited and awaited[0][0] <= position:
                count = awaited.popleft()[1]
            if count and self._history is not None:
                self._history.durable(count)
            if count:
                durable(count)
            self.readable.grown()

        self._failed = failed
        self._log.watch(grown, failed)

    def append(self, items: Sequence[LogItem]) -> None:
        if self._history is not None:
            self._history.appended(items)
        self._waiting += items
        # A start is not delayed: a subscriber may wait for it.
        events = sum(len(i.bodies) if type(i) is LogRun else GATHER_EVENTS for i in items)
        wait_s = self._grouping.wait_s(events, time.monotonic())
        if not wait_s:
            self._hand_over()
        elif self._timer is None:
            defer = self._defer or asyncio.get_running_loop().call_later
            self._timer = defer(wait_s, self._waited)

    def _waited(self) -> None:
        try:
            self._hand_over()
        except Exception as failure:  # the log takes no more records
            self._failed(failure)

    def _hand_over(self) -> None:
        """Append all waiting records to the log, for one commit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items, self._waiting = self._waiting, []
        self._grouping.begin(time.monotonic())
        log, position = self._log, 0
        for kind, same in groupby(items, type):
            if kind is LogRun:
                position = log.append_runs([EventRun.of(*item) for item in same])
            elif kind is LogStart:
                position = log.append_starts([Start(*item) for item in same])
            elif kind is LogCut:
                for item in same:
                    position = log.append_cut(StoredCut(*item))
            else:
                for item in same:
                    position = log.append_predecessors(StoredPredecessors(*item))
        self._appended += len(items)
        self._awaited.append((position, self._appended))

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        if self._waiting:  # perhaps with the last events of these sessions
            self._hand_over()
        self._log.forget(sessions)

    def read(self, want: ReadWanted) -> list[Span]:
        found = self._log.read(
            want.since, want.upto, limit_events=want.most_events, limit_bytes=want.most_bytes
        )
        spans = [_span(each) for each in found]
        read_upto = spans[-1].upto if spans else want.since - 1
        if read_upto >= min(self._log.durable_tick, want.upto) and read_upto < want.upto:
            # Announced as silence: the log has no event at these ticks, and never will.
            spans.append(Span(read_upto + 1, want.upto))
        return spans

    def acknowledged(self, tick: int) -> None:
        self._log.acknowledged(tick)

    def remembered(self) -> Remembered:
        state = self._log.state
        published = {session: state.last_published(*session) for session in state.sessions()}
        skipped = {session: state.last_skipped(*session) for session in published}
        return Remembered(state.last_tick, published, skipped, state.destroyed_upto)

    def describe(self) -> dict[str, Any]:
        log, holdings = self._log, self._log.holdings
        return {
            "pubend": log.pubend,
            "first_tick": log.first_tick,
            "last_tick": log.last_tick,
            "bytes": holdings.size_bytes,
            "sealed_bytes": holdings.sealed_bytes,
            "events": holdings.events,
            "acknowledged": holdings.acknowledged,
            "lost_upto": holdings.lost_upto,
            "lost_events": holdings.lost_events,
            "destroyed_upto": holdings.destroyed_upto,
            "cursors": log.cursors.ticks(),
            "retention": asdict(log.retention),
        }

    async def close(self) -> None:
        if self._waiting:
            self._hand_over()
        await self._log.close()
        if self._history is not None:
            self._history.close()

    async def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._log.log.abandon()
        if self._history is not None:
            self._history.close()


def _raised(failure: Exception) -> None:
    raise failure


def _span(batch: Any) -> Span:
    if isinstance(batch, Lost):
        return Span(batch.since, batch.upto, lost=True)
    ticks: list[int] = []
    events: list[Publication] = []
    records: list[Record] = []
    for record in batch.records:
        if isinstance(record, EventRun):
            ticks.extend(range(record.first_tick, record.first_tick + record.count))
            publisher = record.publisher
            events += [
                Publication(publisher, sequence, body)
                for sequence, body in enumerate(record.bodies, record.first_sequence)
            ]
        else:
            records.append(record_of(record))
    return Span(batch.since, batch.upto, ticks, events, tuple(records))


def record_of(stored: Start | StoredCut | StoredPredecessors) -> Record:
    """The record as it travels in the stream."""
    if isinstance(stored, Start):
        return StartRecord(stored.tick, stored.op, stored.tentative)
    if isinstance(stored, StoredPredecessors):
        return PredecessorRecord(stored.tick, stored.publisher, stored.predecessors, stored.cut)
    switches, pubends = stored.switches, stored.pubends
    return CutRecord(
        stored.tick, stored.tx, switches, pubends, stored.last, stored.number, stored.orders
    )


class VolatilePubend:
    """Keeps as much as fits in memory. Events that it had to drop are reported as lost."""

    readable = None
    """No late readers: acknowledged events are dropped, and the others end with the broker."""

    def __init__(self, defer: Callable[[Callable[[], None]], Any] | None = None) -> None:
        self._defer = defer
        """Schedules the report of durable records; by default the next turn of the loop."""
        self._items: deque[LogItem] = deque()
        self._bytes = 0
        self._floor = 0
        self._appended = 0
        self._told: Told | None = None

    def watch(self, durable: Told, failed: Failed) -> None:
        del failed
        self._told = durable

    def append(self, items: Sequence[LogItem]) -> None:
        self._items.extend(items)
        self._appended += len(items)
        self._bytes += sum(map(_size, items))
        while self._bytes > KEPT_BYTES and len(self._items) > 1:
            self._let_go()
        (self._defer or asyncio.get_running_loop().call_soon)(self._tell)

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        """No sessions are remembered."""

    def _tell(self) -> None:
        if self._told is not None:
            self._told(self._appended)

    def _let_go(self) -> None:
        gone = self._items.popleft()
        self._bytes -= _size(gone)
        self._floor = _last(gone)

    def read(self, want: ReadWanted) -> list[Span]:
        spans: list[Span] = []
        since = want.since
        if since <= self._floor:
            spans.append(Span(since, min(self._floor, want.upto), lost=True))
            since = self._floor + 1
        if since <= want.upto:
            spans.append(self._collect(since, want.upto, want.most_events))
        return spans

    def _collect(self, since: int, upto: int, most: int) -> Span:
        ticks: list[int] = []
        batch: list[Publication] = []
        records: list[Record] = []
        for tick, entry in self._entries(since):
            if tick > upto:
                break
            if len(ticks) == most:
                upto = tick - 1
                break
            if isinstance(entry, Publication):
                ticks.append(tick)
                batch.append(entry)
            else:
                records.append(entry)
        return Span(since, upto, ticks, batch, tuple(records))

    def _entries(self, since: int) -> Iterator[tuple[int, Publication | Record]]:
        """The entries from this tick on; a scan of all would delay a late reader further."""
        first = bisect_left(self._items, since, key=_last)
        for item in islice(self._items, first, None):
            if type(item) is LogRun:
                for at in range(max(0, since - item.first_tick), len(item.bodies)):
                    sequence = item.first_sequence + at
                    publication = Publication(item.publisher, sequence, item.bodies[at])
                    yield item.first_tick + at, publication
            elif isinstance(item, LogStart):
                yield item.tick, StartRecord(*item)
            elif isinstance(item, LogCut):
                yield item.tick, record_of(StoredCut(*item))
            elif isinstance(item, LogPredecessors):
                yield item.tick, PredecessorRecord(*item[:4])

    def acknowledged(self, tick: int) -> None:
        while self._items and _last(self._items[0]) <= tick:
            self._let_go()

    def describe(self) -> dict[str, Any]:
        return {"bytes": self._bytes, "first_tick": self._floor + 1}

    async def close(self) -> None:
        """Nothing to store."""

    abandon = close


def _size(item: LogItem) -> int:
    if type(item) is LogRun:
        return sum([len(memoryview(body)) for body in item.bodies])
    return 100


def _last(item: LogItem) -> int:
    return item.first_tick + len(item.bodies) - 1 if isinstance(item, LogRun) else item.tick
