"""The twin of a pubend's log: the same records, durable after a while, read from memory.

It lets go of what everybody has acknowledged, and beyond a number of events also of what somebody
is still owed. What it has let go of is lost to whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

from motet.broker.pubend import cut_record
from motet.broker.remembered import Remembered
from motet.protocol.contract import LogCut, LogItem, LogStart
from motet.protocol.delivery.spans import Record, Span, StartRecord
from motet.protocol.delivery.state import ReadWanted
from motet.protocol.publication import Publication
from motet.runtime.pubend.records import (
    CUT,
    DECODERS,
    ENDED,
    RUN,
    START,
    Cut,
    Ended,
    Run,
    Start,
    encode,
)
from motet.runtime.pubend.standing import Standing
from motet.testing.clock import Agenda
from motet.testing.log import SimulatedLog


class SimulatedPubend:
    def __init__(
        self, agenda: Agenda, sync_s: Callable[[], float], kept_events: int | None = None
    ) -> None:
        self.log = SimulatedLog(agenda, sync_s)
        self.floor = 0
        """The last tick that is not kept any more."""
        self.lost_upto = 0
        """The last tick that went although somebody was owed it."""
        self._kept_events = kept_events
        self._events = 0
        self._before = 0
        """Records that earlier lives have left."""
        self._decoded: dict[int, Run | Start | Cut] = {}
        self._gone = Standing("")
        """What is known of records that were let go."""
        self._forgotten: dict[tuple[str, str], None] = {}
        """Sessions that are over; the log below counts records of the stream only."""

    def watch(self, durable: Callable[[int], None], failed: Callable[[Exception], None]) -> None:
        """A life begins; `durable` is told how many of its records are."""
        self._before = self.log.appended
        self._decoded.clear()
        self._events = sum(_count(each) for each in self._records())
        self.log.watch(lambda: durable(self.log.durable - self._before), failed)

    @property
    def durable(self) -> int:
        return self.log.durable - self._before

    def append(self, items: Sequence[LogItem]) -> None:
        for item in items:
            if isinstance(item, LogStart):
                self.log.append([encode(Start(*item))], START)
            elif isinstance(item, LogCut):
                self.log.append([encode(Cut(*item))], CUT)
            else:
                self.log.append([encode(Run.of(*item))], RUN)
                self._events += len(item.bodies)

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        self._forgotten.update(dict.fromkeys(sessions))

    def remembered(self) -> Remembered:
        standing = deepcopy(self._gone)
        for record in self._records():
            standing.apply(_kind(record), record)
        standing.apply(ENDED, Ended(list(self._forgotten)))
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

    # ── letting go ───────────────────────────────────────────────────────────────────────

    def acknowledged(self, tick: int) -> None:
        """Everybody is done with all up to here; what is too much goes, too."""
        count = 0
        for record in self._records():
            too_many = self._kept_events is not None and self._events > self._kept_events
            if _last(record) > tick and not too_many:
                break
            count += 1
            self._events -= _count(record)
            self.floor = _last(record)
            self._gone.apply(_kind(record), record)
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
            if isinstance(record, Start):
                if since <= record.tick <= upto:
                    records.append(StartRecord(record.tick, record.op, record.tentative))
                continue
            if isinstance(record, Cut):
                if since <= record.tick <= upto:
                    records.append(cut_record(record))
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

    def _records(self) -> list[Run | Start | Cut]:
        found: list[Run | Start | Cut] = []
        known = self._decoded
        for each in self.log.read(self.log.first):
            record = known.get(each.sequence)
            if record is None:
                decoded = DECODERS[each.kind](each.payload)
                assert isinstance(decoded, Run | Start | Cut)
                record = known[each.sequence] = decoded
            found.append(record)
        return found


def _last(record: Run | Start | Cut) -> int:
    return record.last_tick if isinstance(record, Run) else record.tick


def _count(record: Run | Start | Cut) -> int:
    return len(record.bodies) if isinstance(record, Run) else 0


def _kind(record: Run | Start | Cut) -> int:
    return {Run: RUN, Start: START, Cut: CUT}[type(record)]
