"""The log of one pubend: its events by tick, until every client has acknowledged them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from motet.errors import InvariantError, MisuseError, StorageError
from motet.model import Filter
from motet.runtime.log import Durability, Extent, FileLog
from motet.runtime.pubend.reading import EventBatch, Lost, StreamReading
from motet.runtime.pubend.records import (
    CHECKPOINT,
    CURSOR,
    CUT,
    ENDED,
    LOSS,
    PREDECESSORS,
    RUN,
    START,
    Bodies,
    Cursor,
    EndedSessions,
    EventRun,
    Loss,
    Start,
    StoredCut,
    StoredPredecessors,
    encode,
)
from motet.runtime.pubend.retention import Disk, Retention, Trimmed, letting_go
from motet.runtime.pubend.shelf import FileShelf
from motet.runtime.pubend.state import (
    DurableTicks,
    LivePart,
    Part,
    SealedPart,
    SegmentedLog,
    open_stream,
)
from motet.runtime.pubend.tables import TableReading

PURPOSE: Final = "pubend"
VERSION: Final = 1
SEGMENT_BYTES: Final = 64 << 20
_NEVER_ROLLS: Final = 1 << 62
"""We decide when a segment begins, because each begins with a checkpoint."""


class Holdings(NamedTuple):
    """What a log keeps, and what it had to remove."""

    events: int
    """The number of events kept."""
    size_bytes: int
    sealed_bytes: int
    acknowledged: int
    """The last tick that every client has acknowledged; 0 if there is none."""
    lost_upto: int
    """The last tick of a part that was removed while still owed; 0 if none was."""
    lost_events: int | None
    """The number of events in such parts; None, unknown, if a whole log was destroyed."""
    destroyed_upto: int
    """Everything up to this tick was lost with its log; 0 if no log was ever destroyed."""


class Cursors:
    """The named cursors of a log. Each says how far its owner has come."""

    def __init__(self, log: PubendLog) -> None:
        self._log = log

    def ticks(self) -> dict[str, int]:
        """By name, the last tick that its owner has acknowledged."""
        known = self._log.state.cursors
        return {name: known[name].tick or 0 for name in sorted(known)}

    def expires_s(self, name: str) -> float:
        """When a cursor is abandoned unless it is set again."""
        return self._log.state.cursors[name].touched_s + self._log.retention.cursor_age_s

    def set(self, name: str, tick: int) -> int:
        """Acknowledge everything up to this tick for a named owner, which is owed the rest;
        returns the position at which that is durable. It may go back."""
        log = self._log
        if not 0 <= tick <= log.last_tick:
            raise MisuseError(f"{log.pubend} has ticks up to {log.last_tick}, not yet {tick}")
        return log.touch(name, tick)

    def remove(self, name: str) -> int:
        if name not in self._log.state.cursors:
            return self._log.log.appended
        return self._log.touch(name, None)


class PubendLog:
    """Everything but `read` is called from one thread; `read` from any."""

    def __init__(
        self,
        log: SegmentedLog,
        pubend: str,
        *,
        shelf: FileShelf,
        retention: Retention | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        now_s: Callable[[], float] = time.time,
        begin_behind: int = 0,
    ) -> None:
        """Continue the pubend on an open log, or begin one: see also `open`."""
        self.log = log
        self.retention = retention or Retention()
        self._shelf = shelf
        self._now_s = now_s
        self._segment_bytes = segment_bytes
        self.pubend = pubend
        opened = open_stream(log, shelf, pubend, begin_behind, now_s())
        self.state = state = opened.state
        """State that needs no reading. Only the log changes it."""
        self._parts: tuple[Part, ...] = opened.parts
        """Replaced, never changed in place, so that readers can keep a reference."""
        self._reading = StreamReading(pubend, log, shelf, lambda: self._parts)
        self.tables = TableReading(self._reading)
        """The same as `read`, as tables, piece by piece."""
        self.cursors = Cursors(self)
        self._durable_ticks = DurableTicks(state.last_tick, state.block)
        if opened.begins_segment:
            self._checkpoint()
        for part in shelf.given_up:
            self._note(LOSS, Loss(max(part.last_tick, state.lost_upto), part.events))

    @staticmethod
    def open(
        directory: Path,
        pubend: str,
        *,
        retention: Retention | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = Durability.FSYNC,
        accept_loss: bool = False,
        now_s: Callable[[], float] = time.time,
        begin_behind: int = 0,
    ) -> PubendLog:
        """Continue the pubend whose log is in a folder, or begin one. A new one with `begin_behind`
        reports everything up to that tick as lost. With `accept_loss`, damaged or missing sealed
        files are given up, and their ticks reported as lost."""
        log = FileLog.open(
            directory,
            purpose=PURPOSE,
            version=VERSION,
            segment_bytes=_NEVER_ROLLS,
            durability=durability,
        )
        try:
            shelf = FileShelf(Path(directory), log, PURPOSE, accept_loss=accept_loss)
            return PubendLog(
                log,
                pubend,
                shelf=shelf,
                retention=retention,
                segment_bytes=segment_bytes,
                now_s=now_s,
                begin_behind=begin_behind,
            )
        except BaseException:
            log.shut()
            raise

    # ── positions ────────────────────────────────────────────────────────────────────────

    @property
    def last_tick(self) -> int:
        """The last tick that was used; 0 if none was."""
        return self.state.last_tick

    @property
    def durable_tick(self) -> int:
        """The last tick that survives a crash: reads end there."""
        return self._durable_ticks.last(self.log.durable)

    @property
    def whole_tick(self) -> int:
        """The same for late readers: it excludes incomplete transactions."""
        return self._durable_ticks.whole(self.log.durable)

    @property
    def first_tick(self) -> int:
        """The oldest tick that is kept; older ones are reported as lost."""
        return self._parts[0].floor + 1

    @property
    def appended(self) -> int:
        """The position of the last record appended."""
        return self.log.appended

    @property
    def durable(self) -> int:
        """The position of the last record that survives a crash."""
        return self.log.durable

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """As for every log: see `motet.runtime.log.Log`."""
        self.log.watch(durable, failed)

    # ── the stream ───────────────────────────────────────────────────────────────────────

    def append_run(
        self, first_tick: int, publisher: str, epoch: str, first_sequence: int, bodies: Bodies
    ) -> int:
        """Append consecutive events of a publisher's session, which get consecutive ticks; returns
        the position at which they are durable. Duplicates (see `state.last_published`) raise."""
        return self.append_runs([EventRun.of(first_tick, publisher, epoch, first_sequence, bodies)])

    def append_runs(self, runs: Sequence[EventRun]) -> int:
        """The same with several runs: all of them, or none. It costs less than one by one."""
        runs = [run for run in runs if run.count]
        if not runs:
            return self.log.appended
        self._check(runs)
        payloads = [encode(run) for run in runs]
        state, live = self.state, self._room()
        first = self.log.appended + 1
        position = self.log.append(payloads, RUN)
        for sequence, (run, payload) in enumerate(zip(runs, payloads, strict=True), first):
            live.passed(sequence, run.first_tick, run.count, len(payload))
            state.apply(RUN, run)
            state.size_bytes += len(payload)
        self._await(position)
        return position

    def _check(self, runs: Sequence[EventRun]) -> None:
        last_tick = self.last_tick
        published: dict[tuple[str, str], int] = {}
        for run in runs:
            if run.first_tick <= last_tick:
                raise self._backwards(run.first_tick, last_tick)
            session = run.publisher, run.epoch
            known = published.get(session) or self.state.last_published(*session)
            if run.epoch and run.first_sequence <= known:
                raise MisuseError(
                    f"{run.publisher} has published up to {known} in session {run.epoch}, so an "
                    f"event {run.first_sequence} would be there twice"
                )
            last_tick, published[session] = run.last_tick, run.last_sequence

    def _await(self, position: int) -> None:
        self._durable_ticks.appended(position, self.last_tick, self.log.durable)

    def append_start(self, start: Start) -> int:
        """A subscription starts; returns the position at which that is durable."""
        return self.append_starts([start])

    def append_starts(self, starts: Sequence[Start]) -> int:
        """The same with several starts: all of them, or none. It costs less than one by one."""
        last_tick = self.last_tick
        for start in starts:
            if start.tick <= last_tick:
                raise self._backwards(start.tick, last_tick)
            last_tick = start.tick
        payloads = [encode(start) for start in starts]
        state, live = self.state, self._room()
        first = self.log.appended + 1
        position = self.log.append(payloads, START)
        for sequence, (start, payload) in enumerate(zip(starts, payloads, strict=True), first):
            live.passed(sequence, start.tick, 0, len(payload))
            state.apply(START, start)
            state.size_bytes += len(payload)
        self._await(position)
        return position

    def append_cut(self, cut: StoredCut) -> int:
        """A transaction takes effect; its events follow. Returns the position as for starts."""
        self._durable_ticks.begins(cut.tick, cut.last)
        return self._append_one(CUT, cut)

    def append_predecessors(self, record: StoredPredecessors) -> int:
        """A publisher continues here; returns the position as for starts."""
        return self._append_one(PREDECESSORS, record)

    def _append_one(self, kind: int, record: StoredCut | StoredPredecessors) -> int:
        if record.tick <= self.state.last_tick:
            raise self._backwards(record.tick, self.last_tick)
        position = self._append(kind, encode(record), record.tick)
        self.state.apply(kind, record)
        self._await(position)
        return position

    def _backwards(self, tick: int, last: int) -> MisuseError:
        return MisuseError(f"tick {tick} is not behind {last}, the last one of {self.pubend}")

    def forget(self, sessions: Iterable[tuple[str, str]]) -> int:
        """These sessions (publisher, epoch) publish nothing any more."""
        ended = EndedSessions([each for each in sessions if self.state.last_published(*each)])
        return self._note(ENDED, ended) if ended.sessions else self.log.appended

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def read(
        self,
        since: int,
        upto: int | None = None,
        *,
        filter: Filter | None = None,
        limit_events: int | None = None,
        limit_bytes: int | None = None,
    ) -> Iterator[EventBatch | Lost]:
        """The durable stream from tick `since` to tick `upto`, both included, in order. Every tick
        of the range that is durable now is in exactly one batch or loss, unless a limit ends the
        read early. The first event is always returned, whatever its size."""
        if since < 1:
            raise MisuseError(f"ticks count from 1; there is no tick {since}")
        if limit_events is not None and limit_events < 1:
            raise MisuseError(f"limit_events must be at least 1, not {limit_events}")
        durable = self.durable_tick
        last = durable if upto is None else min(upto, durable)
        return self._reading.batches(since, last, filter, limit_events, limit_bytes)

    # ── segments ─────────────────────────────────────────────────────────────────────────

    def roll(self) -> None:
        """Begin another segment, unless the last one is empty."""
        if self._open.size_bytes:
            self.log.roll()
            position, cut = self.log.appended + 1, self.state.last_cut
            live = LivePart(position, self.last_tick, self._now_s(), cut)
            self._parts = (*self._parts, live)
            self._checkpoint()

    @property
    def _open(self) -> LivePart:
        last = self._parts[-1]
        assert isinstance(last, LivePart)
        return last

    def _room(self) -> LivePart:
        """The segment for the next records."""
        if self._open.size_bytes >= self._segment_bytes:
            self.roll()
        return self._open

    def _append(self, kind: int, payload: bytes, tick: int) -> int:
        live = self._room()
        position = self.log.append((payload,), kind)
        live.passed(position, tick, 0, len(payload))
        self.state.size_bytes += len(payload)
        return position

    def _note(self, kind: int, record: Cursor | EndedSessions | Loss) -> int:
        """Append a record of our own, which has no tick."""
        position = self._append(kind, encode(record), self.last_tick)
        self.state.apply(kind, record)
        return position

    def touch(self, cursor: str, tick: int | None) -> int:
        """For `Cursors`: record how far the owner of a cursor has come."""
        return self._note(CURSOR, Cursor(cursor, tick, self._now_s()))

    def _checkpoint(self) -> None:
        self.log.append((encode(self.state.checkpoint(self._open.began_s)),), CHECKPOINT)

    # ── sealing ──────────────────────────────────────────────────────────────────────────

    async def seal(self, closed_before_s: float = inf) -> int:
        """Rewrite by columns the segments that were closed by the given time; returns how many. A
        separate process does the work. If it fails, everything stays as it is."""
        count = 0
        while (found := self._sealable(closed_before_s)) is not None:
            try:
                sealed = await self._shelf.seal(found[1])
            except StorageError:
                if found[0] in self._parts:
                    raise
                continue  # it was trimmed while the process worked on it
            count += self._put_away(found[0], sealed)
        return count

    def seal_here(self) -> int:
        """The same without an event loop; blocks the caller."""
        count = 0
        while (found := self._sealable()) is not None:
            count += self._put_away(found[0], self._shelf.seal_here(found[1]))
        return count

    def _sealable(self, closed_before_s: float = inf) -> tuple[LivePart, Extent] | None:
        """The oldest segment in rows, if the checkpoint after it is durable."""
        for part, following in pairwise(self._parts):
            is_closed = following.began_s <= closed_before_s
            is_closed = is_closed and following.first_sequence <= self.log.durable
            if isinstance(part, LivePart) and is_closed:
                for extent in self.log.extents:
                    if extent.first == part.first_sequence:
                        return part, extent
            if isinstance(part, LivePart):
                break
        return None

    def _put_away(self, live: LivePart, sealed: SealedPart) -> bool:
        """False if the segment was trimmed in the meantime."""
        if live not in self._parts:
            return False
        at = self._parts.index(live)
        behind = self._parts[at + 1].floor
        if (live.first_sequence, live.floor, behind) != (
            sealed.first_sequence,
            sealed.floor,
            sealed.last_tick,
        ):
            raise InvariantError(f"{sealed} is not the segment behind tick {live.floor}")
        # Readers must find the columns before the rows are removed.
        self._parts = (*self._parts[:at], sealed, *self._parts[at + 1 :])
        self._shelf.add(sealed)
        return True

    def verify(self) -> None:
        """Read every sealed file; raise if one is not as it was written."""
        self._shelf.verify()

    async def close(self) -> None:
        await self.log.close()

    # ── retention ────────────────────────────────────────────────────────────────────────

    def acknowledged(self, tick: int) -> None:
        """Every client that is owed this stream has acknowledged everything up to this tick."""
        if tick > self.state.acknowledged:
            self.state.acknowledged = min(tick, self.last_tick)

    @property
    def holdings(self) -> Holdings:
        state, parts = self.state, self._parts
        return Holdings(
            events=sum(part.events for part in parts),
            size_bytes=sum(part.size_bytes for part in parts),
            sealed_bytes=sum(part.size_bytes for part in parts if isinstance(part, SealedPart)),
            acknowledged=state.acknowledged,
            lost_upto=state.lost_upto,
            lost_events=None if state.destroyed_upto else state.lost_events,
            destroyed_upto=state.destroyed_upto,
        )

    def trim(self, disk: Disk | None = None) -> Trimmed:
        """Remove what retention allows. The files are removed soon after."""
        now_s, keep = self._now_s(), self.retention
        expired = self._expire(now_s - keep.cursor_age_s)
        if now_s - self._open.began_s >= keep.segment_age_s:
            self.roll()
        owed_behind, parts = self._owed_behind(), self._parts
        gone = letting_go(parts, keep, now_s, owed_behind, disk)
        if gone.parts:
            self._let_go(parts[: gone.parts], parts[gone.parts].floor, owed_behind, gone.lost)
        return Trimmed(self._parts[0].floor, gone.events, gone.lost, expired)

    def _expire(self, before_s: float) -> tuple[str, ...]:
        known = self.state.cursors
        expired = tuple(name for name in sorted(known) if known[name].touched_s < before_s)
        for name in expired:
            self.cursors.remove(name)
        return expired

    def _owed_behind(self) -> int:
        """Nothing up to this tick is owed to a client or a cursor."""
        return min([self.state.acknowledged, *self.cursors.ticks().values()])

    def _let_go(self, gone: Sequence[Part], floor: int, owed_behind: int, lost: int) -> None:
        """The loss is durable before any file is removed."""
        if lost or (floor > owed_behind and floor > self.state.lost_upto):
            self._note(LOSS, Loss(max(floor, self.state.lost_upto), lost))
        self._parts = self._parts[len(gone) :]
        first = self._parts[0]
        self._shelf.trim(first.first_sequence)
        if isinstance(first, LivePart):
            self.log.trim(first.first_sequence - 1)
