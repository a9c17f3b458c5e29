"""The twin of a pubend's log: the same records, durable with a delay, read from memory.

It drops records that all clients have acknowledged and, above a maximum number of events, also
events that are still owed. Dropped ticks are reported as lost to every reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Final

from motet.broker.driver.pubend import record_of
from motet.errors import InvariantError
from motet.protocol.contract import (
    LogCut,
    LogItem,
    LogPredecessors,
    LogRun,
    LogStart,
    Remembered,
)
from motet.protocol.delivery.spans import Record, Span
from motet.protocol.delivery.stream import ReadWanted
from motet.protocol.publication import Publication
from motet.runtime.pubend.records import (
    CUT,
    DECODERS,
    ENDED,
    PREDECESSORS,
    RUN,
    START,
    EndedSessions,
    EventRun,
    Start,
    StoredCut,
    StoredPredecessors,
    Ticked,
    encode,
)
from motet.runtime.pubend.state import StreamState
from motet.testing.clock import Agenda
from motet.testing.log import SimulatedLog


class SimulatedPubend:
    def __init__(
        self, agenda: Agenda, sync_s: Callable[[], float], kept_events: int | None = None
    ) -> None:
        self.log = SimulatedLog(agenda, sync_s)
        self.floor = 0
        """The last tick that has been dropped."""
        self.lost_upto = 0
        """The last tick that was dropped although its events were still owed."""
        self._kept_events = kept_events
        self._events = 0
        self._last_tick = 0
        self._before = 0
        """The number of records from earlier lives."""
        self._decoded: dict[int, Ticked] = {}
        self._gone = StreamState("")
        """The state that results from the dropped records."""
        self._forgotten: dict[tuple[str, str], int] = {}
        """Sessions that have ended or left, and the last record before that; the log itself has
        only records of the stream. A session that comes back publishes behind it."""

    def watch(self, durable: Callable[[int], None], failed: Callable[[Exception], None]) -> None:
        """A life begins; `durable` is called with the number of its records that are durable."""
        self._before = self.log.appended
        for session, last in self._forgotten.items():
            self._forgotten[session] = min(last, self._before)  # a crash takes records
        self._end_sessions(self._gone, self.log.first - 1)
        self._decoded.clear()
        records = self._records()
        self._events = sum(_count(each) for each in records)
        self._last_tick = max((_last(each) for each in records), default=self.floor)
        self.log.watch(lambda: durable(self.log.durable - self._before), failed)

    @property
    def durable(self) -> int:
        return self.log.durable - self._before

    def append(self, items: Sequence[LogItem]) -> None:
        for item in items:
            self._go_up(item)
            if isinstance(item, LogStart):
                self.log.append([encode(Start(*item))], START)
            elif isinstance(item, LogCut):
                self.log.append([encode(StoredCut(*item))], CUT)
            elif isinstance(item, LogPredecessors):
                self.log.append([encode(StoredPredecessors(*item))], PREDECESSORS)
            else:
                self.log.append([encode(EventRun.of(*item))], RUN)
                self._events += len(item.bodies)

    def _go_up(self, item: LogItem) -> None:
        """Like the real log, refuse a tick that is not above all earlier ones."""
        if isinstance(item, LogRun):
            first, last = item.first_tick, item.first_tick + len(item.bodies) - 1
        else:
            first = last = item.tick
        if first <= self._last_tick:
            raise InvariantError(f"tick {first} is logged behind tick {self._last_tick}")
        self._last_tick = last

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        self._forgotten.update(dict.fromkeys(sessions, self.log.appended))
        self._end_sessions(self._gone, self.log.first - 1)

    def remembered(self) -> Remembered:
        standing = deepcopy(self._gone)
        for sequence, record in enumerate(self._records(), self.log.first):
            standing.apply(_kind(record), record)
            self._end_sessions(standing, sequence)
        published = {
            (publisher, epoch): last
            for publisher, sessions in standing.published.items()
            for epoch, last in sessions.items()
        }
        skipped = {
            (publisher, epoch): tuple(sequences)
            for publisher, sessions in standing.skipped.items()
            for epoch, sequences in sessions.items()
        }
        return Remembered(standing.last_tick, published, skipped)

    def _end_sessions(self, state: StreamState, last: int) -> None:
        """Apply what follows this record."""
        ended = [session for session, known in self._forgotten.items() if known == last]
        if ended:
            state.apply(ENDED, EndedSessions(ended))

    # ── dropping ─────────────────────────────────────────────────────────────────────────

    def acknowledged(self, tick: int) -> None:
        """All clients have acknowledged everything up to `tick`: drop it, and any excess."""
        count = 0
        for record in self._records():
            too_many = self._kept_events is not None and self._events > self._kept_events
            if _last(record) > tick and not too_many:
                break
            count += 1
            self._events -= _count(record)
            self.floor = _last(record)
            self._gone.apply(_kind(record), record)
            self._end_sessions(self._gone, self.log.first + count - 1)
            if self.floor > tick:
                self.lost_upto = self.floor
        if count:
            for sequence in range(self.log.first, self.log.first + count):
                self._decoded.pop(sequence, None)
            self.log.trim(self.log.first + count - 1)

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def read(self, want: ReadWanted) -> list[Span]:
        spans: list[Span] = []
        since = want.since
        if since <= self.floor:
            spans.append(Span(since, min(self.floor, want.upto), lost=True))
            since = self.floor + 1
        if since <= want.upto:
            spans.append(self._collect(since, want.upto, want.most_events))
        return spans

    def _collect(self, since: int, upto: int, most_events: int) -> Span:
        ticks: list[int] = []
        batch: list[Publication] = []
        records: list[Record] = []
        for record in self._records():
            if not isinstance(record, EventRun):
                if since <= record.tick <= upto:
                    records.append(record_of(record))
                continue
            for number, body in enumerate(record.bodies):
                tick = record.first_tick + number
                if not since <= tick <= upto:
                    continue
                if len(ticks) == most_events:
                    upto = tick - 1
                    break
                ticks.append(tick)
                batch.append(Publication(record.publisher, record.first_sequence + number, body))
        kept = tuple(each for each in records if each.tick <= upto)
        return Span(since, upto, ticks, batch, kept)

    def _records(self) -> list[Ticked]:
        found: list[Ticked] = []
        known = self._decoded
        for each in self.log.read(self.log.first):
            record = known.get(each.sequence)
            if record is None:
                decoded = DECODERS[each.kind](each.payload)
                assert isinstance(decoded, Ticked)
                record = known[each.sequence] = decoded
            found.append(record)
        return found


def _last(record: Ticked) -> int:
    return record.last_tick if isinstance(record, EventRun) else record.tick


def _count(record: Ticked) -> int:
    return len(record.bodies) if isinstance(record, EventRun) else 0


def _kind(record: Ticked) -> int:
    return KINDS[type(record)]


KINDS: Final[dict[type, int]] = {
    EventRun: RUN,
    Start: START,
    StoredCut: CUT,
    StoredPredecessors: PREDECESSORS,
}
