"""What a ranged read gives: batches of the stream, and losses said aloud."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from motet.errors import FrameError, LogCorrupted
from motet.model import Filter, decode_attributes, decode_body, encode_event
from motet.runtime.pubend.records import Run, Ticked

BATCH_EVENTS: Final = 4096
BATCH_BYTES: Final = 1 << 20
SCANNED_EVENTS: Final = 16_384
"""A batch ends beyond one of these, so that nobody waits long for the next."""


class Projection(Struct, frozen=True):
    """Which attributes of an event are wanted, and whether its payload is. Bodies are then encoded
    anew, without the rest."""

    attributes: tuple[str, ...]
    payload: bool = True


class Batch(Struct, frozen=True):
    """The stream from tick `since` to tick `upto`. A tick in between that is in no record was
    silent, or filtered out."""

    since: int
    upto: int
    records: list[Ticked]
    events: int
    scanned: int
    """How many events there were before the filter."""
    size_bytes: int


class Lost(Struct, frozen=True):
    """The ticks from `since` to `upto` are not kept any more; there may have been events."""

    since: int
    upto: int


class Sifted(NamedTuple):
    """What is kept of a piece of the stream that ends with this tick."""

    records: list[Ticked]
    upto: int
    scanned: int
    events: int
    size_bytes: int


class Sieve(Struct, frozen=True):
    """What a read keeps of every event."""

    filter: Filter | None = None
    projection: Projection | None = None

    @property
    def keeps_all(self) -> bool:
        return self.filter is None and self.projection is None

    def sifted(self, run: Run) -> Sifted:
        if self.keeps_all:
            return Sifted([run], run.last_tick, run.count, run.count, run.size_bytes)
        kept = list(self._sift(run))
        events = sum(each.count for each in kept)
        size = sum(each.size_bytes for each in kept)
        return Sifted([*kept], run.last_tick, run.count, events, size)

    def _sift(self, run: Run) -> Iterator[Run]:
        """What the filter keeps of a run, as the projection wants it."""
        if self.filter is None:
            yield self.projected(run)
            return
        bodies = run.bodies
        matches = self.filter.matches
        try:
            kept = [at for at, body in enumerate(bodies) if matches(decode_attributes(body))]
        except FrameError as error:
            raise unreadable_event(run, error) from error
        for first, count in stretches(kept):
            piece = run if count == run.count else run.piece(bodies, first, count)
            yield self.projected(piece)

    def projected(self, run: Run) -> Run:
        wanted = self.projection
        if wanted is None:
            return run
        made = []
        for body in run.bodies:
            try:
                attributes, payload = decode_body(body)
            except FrameError as error:
                raise unreadable_event(run, error) from error
            chosen = {name: attributes[name] for name in wanted.attributes if name in attributes}
            made.append(encode_event(chosen, payload if wanted.payload else b""))
        return run.piece(made, 0, run.count)


def unreadable_event(run: Run, error: Exception) -> LogCorrupted:
    return LogCorrupted(
        f"an event of {run.publisher} with a tick from {run.first_tick} to {run.last_tick} was "
        f"logged in a form that cannot be read: {error}; leave these ticks out"
    )


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
    """Records on their way into batches, within the limits of one read."""

    def __init__(self, since: int, limit_events: int | None, limit_bytes: int | None) -> None:
        self.since = since
        """Where the batch begins that is being gathered."""
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

    def take(self, sifted: Sifted) -> int | None:
        """Take all of it, or what fits. If nothing more does: the tick behind which to go on
        another time."""
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
        if type(record) is not Run:
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

    def _fitting(self, run: Run) -> int:
        """How many events of a run there is room for; the first event of a read always fits."""
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

    def skip(self, since: int) -> None:
        """The next batch begins here; what is before was said in another way."""
        self.since = since

    def out(self, upto: int) -> Batch:
        """What was gathered; everything up to this tick was looked at."""
        batch = Batch(self.since, upto, self._records, self._events, self._scanned, self._bytes)
        self.since = upto + 1
        self._records = []
        self._events = self._scanned = self._bytes = 0
        return batch
