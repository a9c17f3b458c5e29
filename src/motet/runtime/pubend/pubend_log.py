"""The log of one pubend: its events, numbered by ticks, until everybody has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final

from motet.errors import InvariantError, MisuseError, StorageError
from motet.model import Filter
from motet.runtime.log import Durability, Extent, FileLog
from motet.runtime.pubend.batches import Batch, Lost, Projection, Sieve
from motet.runtime.pubend.durable_ticks import DurableTicks
from motet.runtime.pubend.file_shelf import FileShelf
from motet.runtime.pubend.opening import Opening, SegmentedLog
from motet.runtime.pubend.parts import Live, Part, Sealed
from motet.runtime.pubend.reading import Reading
from motet.runtime.pubend.records import (
    CHECKPOINT,
    CURSOR,
    CUT,
    ENDED,
    LOSS,
    RUN,
    START,
    Bodies,
    Cursor,
    Cut,
    Ended,
    Loss,
    Run,
    Start,
    encode,
)
from motet.runtime.pubend.retention import Disk, Retention, Trimmed, letting_go
from motet.runtime.pubend.shelf import Shelf
from motet.runtime.pubend.table_reading import TableReading

PURPOSE: Final = "pubend"
VERSION: Final = 1
SEGMENT_BYTES: Final = 64 << 20
_NEVER_ROLLS: Final = 1 << 62
"""Segments begin when we say so, because each begins with a checkpoint."""


class PubendLog:
    """Everything but `read` is called from one thread; `read` from any."""

    def __init__(
        self,
        log: SegmentedLog,
        pubend: str,
        *,
        shelf: Shelf,
        retention: Retention | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        now_s: Callable[[], float] = time.time,
        begin_behind: int = 0,
    ) -> None:
        """Continue the pubend on a log that is open, or begin one: see also `open`."""
        self.log = log
        self.retention = retention or Retention()
        self._shelf = shelf
        self._now_s = now_s
        self._segment_bytes = segment_bytes
        opened = Opening(log, log.extents, shelf, pubend, begin_behind).open(now_s())
        self._standing = opened.standing
        self._parts: tuple[Part, ...] = opened.parts
        """Never changed in place: who reads takes what is there."""
        standing = self._standing
        self._durable_ticks = DurableTicks(standing.last_tick, standing.block)
        if opened.begins_segment:
            self._checkpoint()
        for part in shelf.given_up:
            self._note(LOSS, Loss(max(part.last_tick, self.lost_upto), part.events))

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
        """Continue the pubend whose log is in a folder, or begin one; one that begins behind a
        tick reports all up to it as lost. With `accept_loss`, sealed files that are damaged or
        missing are given up, and their ticks reported as lost."""
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
    def pubend(self) -> str:
        return self._standing.pubend

    @property
    def last_tick(self) -> int:
        """The last tick that was given away; 0 if none was."""
        return self._standing.last_tick

    @property
    def durable_tick(self) -> int:
        """The last tick that survives a crash: reads end there."""
        return self._durable_ticks.last(self.log.durable)

    @property
    def whole_tick(self) -> int:
        """The same for late readers: none of a transaction before all is there."""
        return self._durable_ticks.whole(self.log.durable)

    @property
    def first_tick(self) -> int:
        """The oldest tick that is kept; what is older is answered as lost."""
        return self._parts[0].floor + 1

    @property
    def appended(self) -> int:
        """The position of the last record taken."""
        return self.log.appended

    @property
    def durable(self) -> int:
        """The position of the last record that survives a crash."""
        return self.log.durable

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """As every log does: see `motet.runtime.log.Log`."""
        self.log.watch(durable, failed)

    # ── the stream ───────────────────────────────────────────────────────────────────────

    def append_run(
        self, first_tick: int, publisher: str, epoch: str, first_sequence: int, bodies: Bodies
    ) -> int:
        """Take consecutive events of a publisher's session, which get consecutive ticks; the
        position at which they are durable. What `published` knows already must not come again."""
        return self.append_runs([Run.of(first_tick, publisher, epoch, first_sequence, bodies)])

    def append_runs(self, runs: Sequence[Run]) -> int:
        """The same with several runs: all of them, or none. It costs less than one by one."""
        runs = [run for run in runs if run.count]
        if not runs:
            return self.log.appended
        self._check(runs)
        payloads = [encode(run) for run in runs]
        standing, live = self._standing, self._room()
        first = self.log.appended + 1
        position = self.log.append(payloads, RUN)
        for sequence, (run, payload) in enumerate(zip(runs, payloads, strict=True), first):
            live.passed(sequence, run.first_tick, run.count, len(payload))
            standing.apply(RUN, run)
            standing.size_bytes += len(payload)
        self._await(position)
        return position

    def _check(self, runs: Sequence[Run]) -> None:
        last_tick = self.last_tick
        published: dict[tuple[str, str], int] = {}
        for run in runs:
            if run.first_tick <= last_tick:
                raise self._backwards(run.first_tick, last_tick)
            session = run.publisher, run.epoch
            known = published.get(session) or self.published(*session)
            if run.epoch and run.first_sequence <= known:
                raise MisuseError(
                    f"{run.publisher} has published up to {known} in session {run.epoch}, so an "
                    f"event {run.first_sequence} would be there twice"
                )
            last_tick, published[session] = run.last_tick, run.last_sequence

    def _await(self, position: int) -> None:
        self._durable_ticks.appended(position, self.last_tick, self.log.durable)

    def append_start(self, start: Start) -> int:
        """A subscription begins; the position at which that is durable."""
        return self._append_one(START, start)

    def append_cut(self, cut: Cut) -> int:
        """A transaction takes effect; its events follow. The position as with starts."""
        self._durable_ticks.begins(cut.tick, cut.last)
        return self._append_one(CUT, cut)

    def _append_one(self, kind: int, record: Start | Cut) -> int:
        if record.tick <= self._standing.last_tick:
            raise self._backwards(record.tick, self.last_tick)
        position = self._append(kind, encode(record), record.tick)
        self._standing.apply(kind, record)
        self._await(position)
        return position

    def _backwards(self, tick: int, last: int) -> MisuseError:
        return MisuseError(f"tick {tick} is not behind {last}, the last one of {self.pubend}")

    def published(self, publisher: str, epoch: str) -> int:
        """The last sequence that a publisher's session has in the log, durable or about to be; 0
        if it has none."""
        return self._standing.last_published(publisher, epoch)

    def skipped(self, publisher: str, epoch: str) -> tuple[int, ...]:
        """The last sequences below that one which the log never got."""
        return tuple(self._standing.skipped.get(publisher, {}).get(epoch, ()))

    def sessions(self) -> list[tuple[str, str]]:
        """Every (publisher, epoch) that `published` remembers."""
        published = self._standing.published
        return [(publisher, epoch) for publisher in published for epoch in published[publisher]]

    def forget(self, sessions: Iterable[tuple[str, str]]) -> int:
        """Nothing comes any more from these sessions (publisher, epoch)."""
        ended = Ended([each for each in sessions if self.published(*each)])
        return self._note(ENDED, ended) if ended.sessions else self.log.appended

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def read(
        self,
        since: int,
        upto: int | None = None,
        *,
        filter: Filter | None = None,
        projection: Projection | None = None,
        limit_events: int | None = None,
        limit_bytes: int | None = None,
    ) -> Iterator[Batch | Lost]:
        """The durable stream from tick `since` to tick `upto`, both included, in order. Every
        tick of the range that is durable now lies in exactly one batch or loss, unless a limit
        ends the read before. The first event always comes, whatever its size."""
        if since < 1:
            raise MisuseError(f"ticks count from 1; there is no tick {since}")
        if limit_events is not None and limit_events < 1:
            raise MisuseError("a read that may return no event gets nowhere")
        durable = self.durable_tick
        last = durable if upto is None else min(upto, durable)
        reading = self._reading(Sieve(filter, projection))
        return reading.batches(since, last, limit_events, limit_bytes)

    def _reading(self, sieve: Sieve) -> Reading:
        return Reading(self.pubend, self.log, self._shelf, lambda: self._parts, sieve)

    @property
    def tables(self) -> TableReading:
        """The same as tables, piece by piece."""
        return TableReading(self._reading, self._shelf, lambda: self._parts)

    # ── segments ─────────────────────────────────────────────────────────────────────────

    def roll(self) -> None:
        """Begin another segment, unless there is nothing in the last one."""
        if self._open.size_bytes:
            self.log.roll()
            position, cut = self.log.appended + 1, self._standing.last_cut
            live = Live(position, self.last_tick, self._now_s(), cut)
            self._parts = (*self._parts, live)
            self._checkpoint()

    @property
    def _open(self) -> Live:
        last = self._parts[-1]
        assert isinstance(last, Live)
        return last

    def _room(self) -> Live:
        """The segment that the next records go into."""
        if self._open.size_bytes >= self._segment_bytes:
            self.roll()
        return self._open

    def _append(self, kind: int, payload: bytes, tick: int) -> int:
        live = self._room()
        position = self.log.append((payload,), kind)
        live.passed(position, tick, 0, len(payload))
        self._standing.size_bytes += len(payload)
        return position

    def _note(self, kind: int, record: Cursor | Ended | Loss) -> int:
        """A record of our own, which has no tick."""
        position = self._append(kind, encode(record), self.last_tick)
        self._standing.apply(kind, record)
        return position

    def _checkpoint(self) -> None:
        self.log.append((encode(self._standing.checkpoint(self._open.began_s)),), CHECKPOINT)

    # ── sealing ──────────────────────────────────────────────────────────────────────────

    async def seal(self, closed_before_s: float = inf) -> int:
        """Rewrite by columns what gets no more records, since the time given at the latest; how
        many segments that were. A process of its own does the work. If it fails, everything stays
        as it is."""
        count = 0
        while (found := self._sealable(closed_before_s)) is not None:
            try:
                sealed = await self._shelf.seal(found[1])
            except StorageError:
                if found[0] in self._parts:
                    raise
                continue  # it was trimmed under the hands of the process
            if sealed is None:
                break
            count += self._put_away(found[0], sealed)
        return count

    def seal_here(self) -> int:
        """The same without an event loop, which would have to wait."""
        count = 0
        while (found := self._sealable()) is not None:
            sealed = self._shelf.seal_here(found[1])
            if sealed is None:
                break
            count += self._put_away(found[0], sealed)
        return count

    def _sealable(self, closed_before_s: float = inf) -> tuple[Live, Extent] | None:
        """The oldest segment in rows, if the checkpoint behind it is durable."""
        for part, following in pairwise(self._parts):
            is_closed = following.began_s <= closed_before_s
            is_closed = is_closed and following.first_sequence <= self.log.durable
            if isinstance(part, Live) and is_closed:
                for extent in self.log.extents:
                    if extent.first == part.first_sequence:
                        return part, extent
            if isinstance(part, Live):
                break
        return None

    def _put_away(self, live: Live, sealed: Sealed) -> bool:
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
        # Who reads must find the columns before the rows go.
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
        """Whoever is owed this stream has everything up to this tick."""
        if tick > self._standing.acknowledged:
            self._standing.acknowledged = min(tick, self.last_tick)

    @property
    def lost_upto(self) -> int:
        """The last tick of a part that went although somebody was owed it; 0 if none did."""
        return self._standing.lost_upto

    @property
    def lost_events(self) -> int | None:
        """How many went that way; None if a whole log did, and nobody knows."""
        return None if self.destroyed_upto else self._standing.lost_events

    @property
    def destroyed_upto(self) -> int:
        """Up to this tick everything was lost with the log that held it; 0 if that never was."""
        return self._standing.destroyed_upto

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self._parts)

    @property
    def sealed_bytes(self) -> int:
        return sum(part.size_bytes for part in self._parts if isinstance(part, Sealed))

    @property
    def events(self) -> int:
        """How many are kept."""
        return sum(part.events for part in self._parts)

    @property
    def everybody_has(self) -> int:
        """The last tick that was `acknowledged`; 0 if none was."""
        return self._standing.acknowledged

    def expires_s(self, cursor: str) -> float:
        """When a cursor is abandoned unless it is set again."""
        return self._standing.cursors[cursor].touched_s + self.retention.cursor_age_s

    @property
    def cursors(self) -> dict[str, int]:
        """By name, the last tick that its owner is done with."""
        known = self._standing.cursors
        return {name: known[name].tick or 0 for name in sorted(known)}

    def set_cursor(self, name: str, tick: int) -> int:
        """Somebody with a name is done with everything up to this tick, and is owed what comes
        behind; the position at which that is durable. It may go back."""
        if not 0 <= tick <= self.last_tick:
            raise MisuseError(f"{self.pubend} has ticks up to {self.last_tick}, not yet {tick}")
        return self._note(CURSOR, Cursor(name, tick, self._now_s()))

    def remove_cursor(self, name: str) -> int:
        if name not in self._standing.cursors:
            return self.log.appended
        return self._note(CURSOR, Cursor(name, None, self._now_s()))

    def trim(self, disk: Disk | None = None) -> Trimmed:
        """Let go what may go. The files follow soon."""
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
        known = self._standing.cursors
        expired = tuple(name for name in sorted(known) if known[name].touched_s < before_s)
        for name in expired:
            self.remove_cursor(name)
        return expired

    def _owed_behind(self) -> int:
        """Nobody is owed anything up to this tick."""
        return min([self._standing.acknowledged, *self.cursors.values()])

    def _let_go(self, gone: Sequence[Part], floor: int, owed_behind: int, lost: int) -> None:
        """What was lost is durable before it is lost."""
        if lost or (floor > owed_behind and floor > self.lost_upto):
            self._note(LOSS, Loss(max(floor, self.lost_upto), lost))
        self._parts = self._parts[len(gone) :]
        first = self._parts[0]
        self._shelf.trim(first.first_sequence)
        if isinstance(first, Live):
            self.log.trim(first.first_sequence - 1)
