"""Reads a range of ticks, from part to part, while other threads append, seal and trim.

A read yields batches of the stream, and reports losses explicitly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from motet.errors import FrameError, LogCorrupted, LogTrimmed
from motet.model import Filter, Value, decode_attributes
from motet.runtime.log import Log
from motet.runtime.pubend.records import RUN, TICKED, EventRun, Ticked, first_tick_of, last_tick_of
from motet.runtime.pubend.state import LivePart, Part, decoded, part_with

if TYPE_CHECKING:
    from motet.runtime.pubend.shelf import FileShelf

BATCH_EVENTS: Final = 4096
BATCH_BYTES: Final = 1 << 20
SCANNED_EVENTS: Final = 16_384
"""A batch ends beyond one of these, so that the reader does not wait long for the next."""


_decode_contents: Final = msgspec.msgpack.Decoder(list[tuple[dict[str, Any], bytes]]).decode
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


class EventBatch(Struct, frozen=True):
    """The stream from tick `since` to tick `upto`. A tick in between without a record was silent,
    or filtered out."""

    since: int
    upto: int
    records: list[Ticked]
    events: int
    scanned: int
    """The number of events before the filter."""
    size_bytes: int


class Lost(Struct, frozen=True):
    """The ticks from `since` to `upto` are no longer kept; there may have been events."""

    since: int
    upto: int


class RecordSlice(NamedTuple):
    """The matching records of a piece of the stream that ends with tick `upto`."""

    records: list[Ticked]
    upto: int
    scanned: int
    events: int
    size_bytes: int


def sifted(run: EventRun, filter: Filter | None) -> RecordSlice:
    """The part of a run that matches a filter."""
    if filter is None:
        return RecordSlice([run], run.last_tick, run.count, run.count, run.size_bytes)
    bodies, matches = run.bodies, filter.matches
    try:
        kept = [at for at, body in enumerate(bodies) if matches(decode_attributes(body))]
    except FrameError as error:
        raise unreadable_event(run, error) from error
    pieces = [
        run if count == run.count else run.piece(bodies, first, count)
        for first, count in stretches(kept)
    ]
    size = sum(each.size_bytes for each in pieces)
    return RecordSlice([*pieces], run.last_tick, run.count, len(kept), size)


def unreadable_event(run: EventRun, error: Exception) -> LogCorrupted:
    return LogCorrupted(
        f"an event of {run.publisher} with a tick from {run.first_tick} to {run.last_tick} was "
        f"logged in a form that cannot be read: {error}; leave these ticks out"
    )


def contents_of(run: EventRun) -> list[tuple[dict[str, Value], bytes]]:
    """The attributes and the payload of every event."""
    try:
        return _decode_contents(run.packed)
    except _MALFORMED as error:
        raise unreadable_event(run, error) from error


def stretches(places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (first, count) of consecutive ones."""
    first, count = 0, 0
    for place in places:
        if count and place == first + count:
            count += 1
        else:
            if count:
                yield first, count
            first, count = place, 1
    if count:
        yield first, count


class Gathering:
    """Collects records into batches, within the limits of one read."""

    def __init__(self, since: int, limit_events: int | None, limit_bytes: int | None) -> None:
        self.since = since
        """Where the current batch begins."""
        self._events_left = limit_events
        self._bytes_left = limit_bytes
        self._is_first = True
        self._records: list[Ticked] = []
        self._events = self._scanned = self._bytes = 0

    @property
    def wants_out(self) -> bool:
        return (
            self._bytes >= BATCH_BYTES
            or self._events >= BATCH_EVENTS
            or self._scanned >= SCANNED_EVENTS
        )

    def take(self, sifted: RecordSlice) -> int | None:
        """Take all of it, or as much as fits. Returns the tick after which a later read continues
        if nothing more fits, otherwise None."""
        self._scanned += sifted.scanned
        if self._events_left is None and self._bytes_left is None:
            self._records += sifted.records
            self._events += sifted.events
            self._bytes += sifted.size_bytes
            return None
        for record in sifted.records:
            cut = self._take(record)
            if cut is not None:
                return cut
        return None

    def _take(self, record: Ticked) -> int | None:
        """The same with one record."""
        if type(record) is not EventRun:
            self._records.append(record)
            return None
        fitting = self._fitting(record)
        if fitting == 0:
            return record.first_tick - 1
        taken = record if fitting == record.count else record.piece(record.bodies, 0, fitting)
        size = taken.size_bytes
        self._records.append(taken)
        self._events += fitting
        self._bytes += size
        self._is_first = False
        if self._events_left is not None:
            self._events_left -= fitting
        if self._bytes_left is not None:
            self._bytes_left -= size
        if fitting < record.count or self._events_left == 0:
            return taken.last_tick
        return None

    def _fitting(self, run: EventRun) -> int:
        """How many events of a run fit; the first event of a read always fits."""
        count = run.count
        if self._events_left is not None:
            count = min(count, self._events_left)
        if self._bytes_left is not None and run.size_bytes > self._bytes_left:
            left, fits = self._bytes_left, 0
            for body in run.bodies[:count]:
                left -= len(memoryview(body))
                if left < 0:
                    break
                fits += 1
            count = min(count, fits)
        return max(count, 1) if self._is_first else count

    def out(self, upto: int) -> EventBatch:
        """The batch so far; it covers everything up to this tick."""
        counts = self._events, self._scanned, self._bytes
        batch = EventBatch(self.since, upto, self._records, *counts)
        self.since = upto + 1
        self._records = []
        self._events = self._scanned = self._bytes = 0
        return batch


# ── from part to part ────────────────────────────────────────────────────────────────────


class Found(Protocol):
    """Something found in a part, up to a tick."""

    @property
    def upto(self) -> int: ...


FoundT = TypeVar("FoundT", bound=Found)
ReadPart = Callable[[Part, int, int], Iterator[FoundT]]
"""Reads a part from one tick to another; both are in the part."""


class StreamReading:
    """`parts` returns the current parts; `log` and `shelf` have their content."""

    def __init__(
        self, pubend: str, log: Log, shelf: FileShelf, parts: Callable[[], tuple[Part, ...]]
    ) -> None:
        self.shelf = shelf
        self.parts = parts
        self._pubend = pubend
        self._log = log

    def along(
        self,
        since: int,
        last: int,
        read: ReadPart[FoundT],
        is_full: Callable[[], bool] = lambda: False,
    ) -> Iterator[FoundT | Lost]:
        """The findings in each part from tick `since` to tick `last`, which is durable; and the
        ranges that are no longer kept."""
        at = since
        while at <= last and not is_full():
            parts = self.parts()
            number = part_with(parts, at)
            upto = min(last, parts[number + 1].floor) if number + 1 < len(parts) else last
            if number < 0 or parts[number].is_lost:
                yield Lost(at, upto)
                at = upto + 1
                continue
            try:
                for found in read(parts[number], at, upto):
                    at = found.upto + 1
                    yield found
            except (LogTrimmed, FileNotFoundError):
                # It was sealed or trimmed meanwhile: look again, from here. If the part is still
                # listed, it is really missing, and the error says so.
                if parts[number] in self.parts():
                    raise
                continue
            at = upto + 1

    def batches(
        self,
        since: int,
        last: int,
        filter: Filter | None,
        limit_events: int | None = None,
        limit_bytes: int | None = None,
    ) -> Iterator[EventBatch | Lost]:
        """The stream from tick `since` to tick `last`, which is durable."""

        def read(part: Part, first: int, upto: int) -> Iterator[RecordSlice]:
            if isinstance(part, LivePart):
                return self._rows(part, first, upto, filter)
            return self.shelf.read(part, first, upto, filter)

        gathering = Gathering(since, limit_events, limit_bytes)
        for found in self.along(since, last, read):
            if isinstance(found, Lost):
                if found.since > gathering.since:
                    yield gathering.out(found.since - 1)
                yield found
                gathering.since = found.upto + 1
                continue
            cut = gathering.take(found)
            if cut is not None or gathering.wants_out:
                yield gathering.out(found.upto if cut is None else cut)
            if cut is not None:
                return
        if last >= gathering.since:
            yield gathering.out(last)

    def batches_of_rows(
        self,
        since: int,
        upto: int,
        filter: Filter | None,
        limit_events: int | None = None,
        limit_bytes: int | None = None,
    ) -> Iterator[EventBatch]:
        """The same for a range that was just kept; `LogTrimmed` if it was trimmed meanwhile."""
        for batch in self.batches(since, upto, filter, limit_events, limit_bytes):
            if isinstance(batch, Lost):
                raise LogTrimmed("it was trimmed meanwhile")
            yield batch

    def _rows(
        self, part: LivePart, since: int, upto: int, filter: Filter | None
    ) -> Iterator[RecordSlice]:
        firsts = (each.first_sequence for each in self.parts())
        last = next((first - 1 for first in firsts if first > part.first_sequence), None)
        for record in self._log.read(part.sequence_before(since), last):
            if record.kind not in TICKED:
                continue
            content: Ticked = decoded(record, f"the log of {self._pubend}")
            if last_tick_of(content) < since:
                continue
            if first_tick_of(content) > upto:
                return
            if record.kind != RUN:
                yield RecordSlice([content], last_tick_of(content), 0, 0, 0)
                continue
            assert isinstance(content, EventRun)
            yield sifted(content.part(since, upto), filter)
