"""The state that a pubend has without reading its stream, and its recovery.

Every segment begins with a checkpoint, which holds the state of all segments before it. So opening
a log reads only its last segment, and the first records of the others.

A part has every tick after its floor, up to the floor of the next part. So a tick is in one part or
older than all of them, and a tick without a record in its part was silent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from motet.errors import LogCorrupted, StorageError, WrittenByAnotherVersion
from motet.runtime.log import Extent, Log, Record
from motet.runtime.log.folder import WAY_OUT
from motet.runtime.pubend.records import (
    CHECKPOINT,
    CURSOR,
    CUT,
    DECODERS,
    ENDED,
    LOSS,
    PREDECESSORS,
    RUN,
    START,
    TICKED,
    Checkpoint,
    Cursor,
    EndedSessions,
    EventRun,
    Loss,
    Start,
    StoredCut,
    StoredPredecessors,
    first_tick_of,
)

if TYPE_CHECKING:
    from motet.runtime.pubend.shelf import FileShelf

MOST_SKIPPED = 64
"""Per session. A client with more unanswered refusals misuses the broker."""


class StreamState:
    """Changes only by `apply`. A checkpoint holds all of it, so reading may begin at any."""

    def __init__(self, pubend: str) -> None:
        self.pubend = pubend
        self.last_tick = 0
        self.acknowledged = 0
        """Every client has acknowledged up to this tick. Soft: a checkpoint has a lower bound."""
        self.lost_upto = 0
        self.lost_events = 0
        self.destroyed_upto = 0
        """The log of the stream up to here was destroyed, and its content is unknown."""
        self.last_cut = 0
        """The number of the last cut."""
        self.block = (0, 0)
        """The tick of the last cut, and the last tick of its events."""
        self.events = 0
        self.size_bytes = 0
        """The total of the whole stream so far, kept or not."""
        self.published: dict[str, dict[str, int]] = {}
        self.cursors: dict[str, Cursor] = {}
        self.skipped: dict[str, dict[str, list[int]]] = {}
        """Sequences below the last one that are not in the log: they were refused, or needed no
        log. A publisher that did not get the answer asks for it after a restart."""

    def apply(self, kind: int, record: Any) -> None:
        _APPLY[kind](self, record)

    def checkpoint(self, began_s: float) -> Checkpoint:
        fields = (name for name in Checkpoint.__struct_fields__ if name != "began_s")
        return Checkpoint(began_s=began_s, **{name: getattr(self, name) for name in fields})

    def sessions(self) -> list[tuple[str, str]]:
        """Every (publisher, epoch) that has published something."""
        return [(publisher, epoch) for publisher, each in self.published.items() for epoch in each]

    def last_skipped(self, publisher: str, epoch: str) -> tuple[int, ...]:
        """The last sequences below the last one that are not in the log."""
        return tuple(self.skipped.get(publisher, {}).get(epoch, ()))

    def last_published(self, publisher: str, epoch: str) -> int:
        """The last sequence of a session in the log, durable or not; 0 if there is none."""
        sessions = self.published.get(publisher)
        return sessions.get(epoch, 0) if sessions else 0

    def _run(self, run: EventRun) -> None:
        self.last_tick = run.last_tick
        self.events += run.count
        if not run.epoch:
            return  # of a transaction, which is logged once anyway
        sessions = self.published.get(run.publisher)
        if sessions is None:
            sessions = self.published[run.publisher] = {}
        before = sessions.get(run.epoch, 0)
        if run.first_sequence > before + 1:
            self._skip(run, before)
        sessions[run.epoch] = run.last_sequence

    def _skip(self, run: EventRun, before: int) -> None:
        known = self.skipped.setdefault(run.publisher, {}).setdefault(run.epoch, [])
        first = max(before + 1, run.first_sequence - MOST_SKIPPED)
        known.extend(range(first, run.first_sequence))
        del known[:-MOST_SKIPPED]

    def _start(self, start: Start) -> None:
        self.last_tick = start.tick

    def _cut(self, cut: StoredCut) -> None:
        self.last_tick = cut.tick
        self.last_cut = max(self.last_cut, cut.number)
        self.block = (cut.tick, cut.last)

    def _predecessors(self, record: StoredPredecessors) -> None:
        self.last_tick = record.tick

    def _cursor(self, cursor: Cursor) -> None:
        if cursor.tick is None:
            self.cursors.pop(cursor.name, None)
        else:
            self.cursors[cursor.name] = cursor

    def _ended(self, ended: EndedSessions) -> None:
        for publisher, epoch in ended.sessions:
            for table in (self.published, self.skipped):
                sessions = table.get(publisher, {})
                sessions.pop(epoch, None)
                if not sessions:
                    table.pop(publisher, None)

    def _loss(self, loss: Loss) -> None:
        self.lost_upto = loss.upto
        self.lost_events += loss.events

    def _checkpoint(self, found: Checkpoint) -> None:
        acknowledged = max(self.acknowledged, found.acknowledged)
        for name in vars(self):
            setattr(self, name, getattr(found, name))
        self.acknowledged = acknowledged


_APPLY: Final[dict[int, Callable[[StreamState, Any], None]]] = {
    RUN: StreamState._run,
    START: StreamState._start,
    CUT: StreamState._cut,
    CURSOR: StreamState._cursor,
    ENDED: StreamState._ended,
    LOSS: StreamState._loss,
    CHECKPOINT: StreamState._checkpoint,
    PREDECESSORS: StreamState._predecessors,
}


# ── which ticks are durable ──────────────────────────────────────────────────────────────

MOST_AWAITED: Final = 4096


class DurableTicks:
    """One thread appends, any thread may query."""

    def __init__(self, last_tick: int, block: tuple[int, int]) -> None:
        """`block` is the last cut, and the last tick of its events."""
        self._tick = last_tick
        self._awaited: deque[tuple[int, int]] = deque()
        """(position, last tick) of appended records that may not be durable yet."""
        self._blocks: deque[tuple[int, int]] = deque([block] if block[1] > last_tick else [])
        """(tick of the cut, last tick) of transactions that may not be completely durable yet."""
        self._lock = Lock()

    def appended(self, position: int, last_tick: int, durable: int) -> None:
        """The log ends there; it is durable up to the position `durable`."""
        self._awaited.append((position, last_tick))
        if len(self._awaited) > MOST_AWAITED:
            self.last(durable)

    def begins(self, tick: int, last: int) -> None:
        """A cut will be appended, and then its events up to tick `last`."""
        if last > tick:
            with self._lock:
                self._blocks.append((tick, last))

    def last(self, durable: int) -> int:
        """The last tick that survives a crash."""
        with self._lock:
            while self._awaited and self._awaited[0][0] <= durable:
                self._tick = self._awaited.popleft()[1]
            return self._tick

    def whole(self, durable: int) -> int:
        """The last durable tick that is in no incompletely durable transaction."""
        last = self.last(durable)
        with self._lock:
            while self._blocks and self._blocks[0][1] <= last:
                self._blocks.popleft()
            return min(last, self._blocks[0][0] - 1) if self._blocks else last


# ── parts ────────────────────────────────────────────────────────────────────────────────

INDEX_BYTES: Final = 256 * 1024
"""A read in a live part starts at most about this far before the tick it looks for."""


class LivePart:
    """A segment of the log, in rows. Grows while it is the last part."""

    is_lost = False

    def __init__(
        self, first_sequence: int, floor: int, began_s: float, cut_before: int = 0
    ) -> None:
        self.first_sequence = first_sequence
        self.floor = floor
        self.began_s = began_s
        self.cut_before = cut_before
        """The number of the last cut up to the floor."""
        self.events = 0
        self.size_bytes = 0
        self._indexed_bytes = 0
        # Readers run while one thread appends: an entry of `_ticks` is in `_sequences` already.
        self._sequences = [first_sequence]
        self._ticks = [floor]

    def passed(self, sequence: int, first_tick: int, events: int, size_bytes: int) -> None:
        """A record of the stream was appended or read."""
        if self.size_bytes - self._indexed_bytes >= INDEX_BYTES:
            self._sequences.append(sequence)
            self._ticks.append(first_tick)
            self._indexed_bytes = self.size_bytes
        self.events += events
        self.size_bytes += size_bytes

    def sequence_before(self, tick: int) -> int:
        """The sequence of a record at or before the one with this tick."""
        return self._sequences[max(bisect_right(self._ticks, tick) - 1, 0)]


class SealedPart(Struct, frozen=True):
    """A segment that was rewritten by columns, and removed."""

    first_sequence: int
    last_sequence: int
    """The last record that was rewritten."""
    floor: int
    last_tick: int
    events: int
    size_bytes: int
    began_s: float
    arrow_bytes: int
    arrow_checksum: int
    index_checksum: int
    is_lost: bool = False
    """The files were damaged or missing, and the operator accepted the loss."""
    cut_before: int = 0
    """The number of the last cut up to the floor."""


Part = LivePart | SealedPart


def part_with(parts: tuple[Part, ...], tick: int) -> int:
    """The number of the part that has this tick; -1 if it is older than all."""
    return bisect_right(parts, tick - 1, key=lambda part: part.floor) - 1


# ── opening ──────────────────────────────────────────────────────────────────────────────


class SegmentedLog(Log, Protocol):
    """The interface of the log below a pubend."""

    @property
    def extents(self) -> tuple[Extent, ...]: ...

    def roll(self) -> None: ...


class OpenedStream(NamedTuple):
    state: StreamState
    parts: tuple[Part, ...]
    begins_segment: bool
    """The last segment is empty: it lacks its checkpoint."""


def decoded(record: Record, where: object) -> Any:
    """The content of a record."""
    decode = DECODERS.get(record.kind)
    if decode is None:
        raise WrittenByAnotherVersion(
            f"{where}: record {record.sequence} is of kind {record.kind}, which this release does "
            f"not know; start the release that wrote it"
        )
    try:
        return decode(record.payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogCorrupted(
            f"{where}: record {record.sequence} is whole, but cannot be read: {error}; {WAY_OUT}"
        ) from None


def open_stream(
    log: SegmentedLog, shelf: FileShelf, pubend: str, begin_behind: int, now_s: float
) -> OpenedStream:
    """The stream on a log and a shelf. A new log reports everything up to `begin_behind` as
    lost."""
    done = shelf.last_sequence
    extents = [each for each in log.extents if each.last > done or each.first > done]
    found = [_checkpoint_of(log, each) for each in extents]
    state = StreamState(pubend)
    parts: list[Part] = list(shelf.sealed)
    for at, (extent, checkpoint) in enumerate(zip(extents, found, strict=True)):
        if checkpoint is None:
            continue
        if checkpoint.pubend != pubend:
            raise StorageError(
                f"{extent.path} is of pubend {checkpoint.pubend}, not of {pubend}; name the "
                f"folder of the right one"
            )
        live = LivePart(extent.first, checkpoint.last_tick, checkpoint.began_s, checkpoint.last_cut)
        after = found[at + 1] if at + 1 < len(found) else None
        if after is None:
            state.apply(CHECKPOINT, checkpoint)
            _read_segment(log, extent, live, state)
        else:
            live.events = after.events - checkpoint.events
            live.size_bytes = after.size_bytes - checkpoint.size_bytes
        parts.append(live)
    begins_segment = found[-1] is None
    if begins_segment:
        if state.last_tick == 0 and shelf.sealed:
            raise LogCorrupted(f"{extents[-1].path} lacks its first record; {WAY_OUT}")
        if state.last_tick == 0:
            state.last_tick = state.lost_upto = state.destroyed_upto = begin_behind
        parts.append(LivePart(extents[-1].first, state.last_tick, now_s, state.last_cut))
    return OpenedStream(state, tuple(parts), begins_segment)


def _checkpoint_of(log: Log, extent: Extent) -> Checkpoint | None:
    """The first record of a segment; None if there is none yet."""
    if extent.last < extent.first:
        return None
    (first,) = log.read(extent.first, extent.first)
    if first.kind != CHECKPOINT:
        raise LogCorrupted(f"{extent.path} does not begin with a checkpoint; {WAY_OUT}")
    checkpoint: Checkpoint = decoded(first, extent.path)
    return checkpoint


def _read_segment(log: Log, extent: Extent, live: LivePart, state: StreamState) -> None:
    """Apply everything after the checkpoint."""
    for record in log.read(extent.first + 1, extent.last):
        content = decoded(record, extent.path)
        size = len(record.payload)
        first_tick = state.last_tick
        if record.kind in TICKED:
            first_tick = first_tick_of(content)
            if first_tick <= state.last_tick:
                raise LogCorrupted(
                    f"{extent.path}: record {record.sequence} has tick {first_tick}, which is "
                    f"not behind {state.last_tick}; {WAY_OUT}"
                )
        events = content.count if record.kind == RUN else 0
        live.passed(record.sequence, first_tick, events, size)
        state.apply(record.kind, content)
        state.size_bytes += size
