"""A broker's own pubend, on disk or in memory: what the driver does with `Output.log`."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Protocol

from msgspec.structs import asdict

from motet.broker.grouping import GATHER_EVENTS, Grouping
from motet.broker.late import LoggedReadable
from motet.broker.reading import Readable
from motet.broker.remembered import Remembered
from motet.protocol.contract import (
    Input,
    LogCut,
    Logged,
    LogItem,
    LogRead,
    LogRun,
    LogStart,
    Output,
    Persisted,
)
from motet.protocol.delivery.spans import CutRecord, Record, Span, StartRecord
from motet.protocol.delivery.state import ReadWanted
from motet.protocol.publication import Publication
from motet.runtime.journal import Journal
from motet.runtime.pubend import Cut, Lost, PubendLog, Run, Start

KEPT_BYTES = 64 << 20
"""What a pubend in memory keeps for those who have not caught up."""

Told = Callable[[int], None]
Failed = Callable[[Exception], None]


class Cancellable(Protocol):
    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Cancellable]
"""Do something after so many seconds."""


class Pubend(Protocol):
    def watch(self, durable: Told, failed: Failed) -> None:
        """Tell, on the event loop, how many of the records appended in this life are durable."""

    def append(self, items: Sequence[LogItem]) -> None: ...

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Nothing comes any more from these sessions (publisher, epoch)."""

    def read(self, want: ReadWanted) -> list[Span]: ...

    def acknowledged(self, tick: int) -> None: ...

    def describe(self) -> dict[str, Any]: ...

    def readable(self) -> Sequence[Readable]:
        """What late readers may read."""

    async def close(self) -> None: ...

    async def abandon(self) -> None: ...


class Desk:
    """Between the driver and the pubend, if the broker has one."""

    def __init__(self, pubend: Pubend | None, turn: Callable[[Input], None], fail: Failed) -> None:
        self._pubend = pubend
        self._turn = turn
        self._fail = fail

    def open(self) -> None:
        if self._pubend is not None:
            self._pubend.watch(lambda count: self._turn(Logged(count)), self._fail)

    def carry(self, output: Output) -> None:
        assert self._pubend is not None
        if output.log:
            self._pubend.append(output.log)
        for want in output.reads:
            asyncio.get_running_loop().call_soon(self._read, want)

    def _read(self, want: ReadWanted) -> None:
        assert self._pubend is not None
        try:
            spans = self._pubend.read(want)
        except Exception as failure:  # what it promised to keep cannot be read
            self._fail(failure)
            return
        self._turn(LogRead(want, spans))

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        if self._pubend is None:
            return
        try:
            self._pubend.forget(sessions)
        except Exception as failure:  # the log takes no more records
            self._fail(failure)

    def let_go(self, tick: int) -> None:
        """Everybody is done with the pubend up to here."""
        if self._pubend is not None:
            self._pubend.acknowledged(tick)

    def describe(self) -> dict[str, Any]:
        return {} if self._pubend is None else self._pubend.describe()

    def readable(self) -> Sequence[Readable]:
        return () if self._pubend is None else self._pubend.readable()

    async def close(self) -> None:
        if self._pubend is not None:
            await self._pubend.close()

    async def abandon(self) -> None:
        """The broker has failed: let go without claiming anything."""
        if self._pubend is not None:
            await self._pubend.abandon()


class Confirms:
    """What the core wants to hear, and the pubend to forget, when the journal has reached a
    position."""

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
        """If there is something to be confirmed at all."""
        if output.confirm or output.forgotten:
            self._awaited.append((position, output))
            if position <= self._journal.durable and not self._arranged:
                self._arranged = True
                asyncio.get_running_loop().call_soon(self._look)

    def before(self, then: Callable[[], None]) -> Callable[[], None]:
        """What to do when the journal has grown."""

        def grown() -> None:
            self._look()
            then()

        return grown

    def _look(self) -> None:
        """They are numbered in order, so the last one speaks for all before it."""
        self._arranged = False
        confirmed = 0
        while self._awaited and self._awaited[0][0] <= self._journal.durable:
            _, output = self._awaited.popleft()
            if output.forgotten:
                self._forget(output.forgotten)
            confirmed = output.confirm or confirmed
        if confirmed:
            self._turn(Persisted(confirmed))


class LoggedPubend:
    """The real one."""

    def __init__(self, log: PubendLog, defer: Later) -> None:
        self._log = log
        self._defer = defer
        self._late = LoggedReadable(log)
        self._awaited: deque[tuple[int, int]] = deque()
        self._appended = 0
        self._waiting: list[LogItem] = []
        self._grouping = Grouping()
        self._timer: Cancellable | None = None
        self._failed: Failed = _raised

    def watch(self, durable: Told, failed: Failed) -> None:
        def grown() -> None:
            count, awaited, position = 0, self._awaited, self._log.durable
            while awaited and awaited[0][0] <= position:
                count = awaited.popleft()[1]
            if count:
                durable(count)
            self._late.grown()

        self._failed = failed
        self._log.watch(grown, failed)

    def append(self, items: Sequence[LogItem]) -> None:
        self._waiting += items
        # A start is not kept waiting: whoever subscribes may have to wait for it.
        events = sum(len(i.bodies) if type(i) is LogRun else GATHER_EVENTS for i in items)
        wait_s = self._grouping.wait_s(events, time.monotonic())
        if not wait_s:
            self._hand_over()
        elif self._timer is None:
            self._timer = self._defer(wait_s, self._waited)

    def _waited(self) -> None:
        try:
            self._hand_over()
        except Exception as failure:  # the log takes no more records
            self._failed(failure)

    def _hand_over(self) -> None:
        """Everything that waits goes to the log, for one commit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items, self._waiting = self._waiting, []
        self._grouping.begin(time.monotonic())
        log, position = self._log, 0
        for kind, same in groupby(items, type):
            if kind is LogRun:
                position = log.append_runs([Run.of(*item) for item in same])
            elif kind is LogStart:
                for item in same:
                    position = log.append_start(Start(*item))
            else:
                for item in same:
                    position = log.append_cut(Cut(*item))
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
            # Announced as silence: the log holds no tick for it, and never will.
            spans.append(Span(read_upto + 1, want.upto))
        return spans

    def acknowledged(self, tick: int) -> None:
        self._log.acknowledged(tick)

    def readable(self) -> Sequence[Readable]:
        return (self._late,)

    def remembered(self) -> Remembered:
        log = self._log
        published = {session: log.published(*session) for session in log.sessions()}
        skipped = {session: log.skipped(*session) for session in published}
        return Remembered(log.last_tick, published, skipped, log.destroyed_upto)

    def describe(self) -> dict[str, Any]:
        log = self._log
        return {
            "pubend": log.pubend,
            "first_tick": log.first_tick,
            "last_tick": log.last_tick,
            "bytes": log.size_bytes,
            "sealed_bytes": log.sealed_bytes,
            "events": log.events,
            "acknowledged": log.everybody_has,
            "lost_upto": log.lost_upto,
            "lost_events": log.lost_events,
            "destroyed_upto": log.destroyed_upto,
            "cursors": log.cursors,
            "retention": asdict(log.retention),
        }

    async def close(self) -> None:
        if self._waiting:
            self._hand_over()
        await self._log.close()

    async def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._log.log.abandon()


def _raised(failure: Exception) -> None:
    raise failure


def _span(batch: Any) -> Span:
    if isinstance(batch, Lost):
        return Span(batch.since, batch.upto, lost=True)
    ticks: list[int] = []
    events: list[Publication] = []
    records: list[Record] = []
    for record in batch.records:
        if isinstance(record, Run):
            ticks.extend(range(record.first_tick, record.first_tick + record.count))
            publisher = record.publisher
            events += [
                Publication(publisher, sequence, body)
                for sequence, body in enumerate(record.bodies, record.first_sequence)
            ]
        elif isinstance(record, Start):
            records.append(StartRecord(record.tick, record.op, record.tentative))
        elif isinstance(record, Cut):
            records.append(cut_record(record))
    return Span(batch.since, batch.upto, ticks, events, tuple(records))


def cut_record(cut: Cut) -> CutRecord:
    """As it travels in the stream."""
    return CutRecord(cut.tick, cut.tx, cut.switches, cut.pubends, cut.last, cut.number, cut.orders)


class VolatilePubend:
    """Keeps what it can in memory. What it had to let go is answered as lost."""

    def __init__(self, defer: Callable[[Callable[[], None]], Any]) -> None:
        self._defer = defer
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
        self._defer(self._tell)

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        """It remembers none."""

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
        """From this tick on. Who asks is behind, more so if we looked at all before."""
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
                yield item.tick, cut_record(Cut(*item))

    def acknowledged(self, tick: int) -> None:
        while self._items and _last(self._items[0]) <= tick:
            self._let_go()

    def describe(self) -> dict[str, Any]:
        return {"bytes": self._bytes, "first_tick": self._floor + 1}

    def readable(self) -> Sequence[Readable]:
        """What everybody has is gone here, and so is everything with the broker."""
        return ()

    async def close(self) -> None:
        """There is nothing to keep."""

    abandon = close


def _size(item: LogItem) -> int:
    if type(item) is LogRun:
        return sum([len(memoryview(body)) for body in item.bodies])
    return 100


def _last(item: LogItem) -> int:
    return item.first_tick + len(item.bodies) - 1 if isinstance(item, LogRun) else item.tick
