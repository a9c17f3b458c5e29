"""The log on disk, and the thread that writes and syncs it, group by group.

The thread takes the whole queue, writes it with one write, syncs it, reports it, and only then
looks for more: while one group is being synced, the next one gathers. Records arrive encoded, so
that the thread rarely needs the interpreter, for which it would wait behind a busy event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from motet.errors import ClosedError, LogCorrupted, LogTrimmed, MisuseError
from motet.runtime.log.contract import (
    MAX_APPEND_BYTES,
    USER_KINDS,
    Durability,
    Extent,
    Record,
)
from motet.runtime.log.files import (
    Mark,
    disk_failed,
    remove_file,
    steadily,
    sync_folder,
    unreadable,
    usable,
    write_all,
)
from motet.runtime.log.folder import (
    BEGINS,
    CLOSED,
    WAY_OUT,
    LogSegment,
    OpenedLog,
    broken,
    create_segment,
    open_log_folder,
)
from motet.runtime.log.layout import (
    HEADER_BYTES,
    MAX_PURPOSE_BYTES,
    SEAL,
    Broken,
    Encoder,
    Header,
    LogPlace,
    beginning,
    milestone,
    seal,
    walk,
)

SEGMENT_BYTES = 64 << 20
MAX_GROUP_BYTES = 8 << 20
"""A larger group is closed, so that no sync takes too long."""

MAX_UNSYNCED_S = 1.0


class EncodedBatch(NamedTuple):
    """Records to write: their bytes in two pieces, the sequence of the last one, the checksum."""

    head: bytes
    data: bytes
    sequence: int
    chain: int


Item = EncodedBatch | Callable[[], None] | threading.Event | None
"""Records to append; an action to run; an event to set when reached; or None, to stop."""

_fdatasync = getattr(os, "fdatasync", os.fsync)


class Writer:
    """Other threads may call `put`, `roll`, `trim`, `then`, `sync` and `stop`, and read `durable`,
    `segments` and `failure`; everything else belongs to the thread."""

    def __init__(
        self, directory: Path, opened: OpenedLog, durability: Durability, said: Callable[[], None]
    ) -> None:
        self.segments = opened.segments
        """Replaced, never changed in place, so that readers can keep a reference."""
        self.durable = opened.end.sequence - 1
        self.failure: Exception | None = None
        self._directory = directory
        self._is_relaxed = durability is Durability.MAY_LOSE_A_SECOND
        self._said = said
        self._lock = opened.lock
        self._has_mark = opened.has_mark
        self._end = opened.end
        self._in_order = True
        self._starts_group = True
        """Is everything that was written synced?"""
        self._unsynced_since = 0.0
        self._touched = self.segments[-1].path
        """The path that a failure would be about."""
        self._file = os.open(self._touched, os.O_WRONLY | os.O_APPEND)
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self.put = self._queue.put
        self.thread = threading.Thread(target=self._run, name="motet-log", daemon=True)
        self.thread.start()

    # ── called by other threads, executed by this one ────────────────────────────────────

    def roll(self, header: Header) -> None:
        """Begin the segment with this header after everything queued so far."""
        self.put(lambda: self._roll(header))

    def trim(self, upto: int) -> None:
        self.put(lambda: self._trim(upto))

    def then(self, action: Callable[[], None]) -> None:
        self.put(self._sync)
        self.put(action)

    def sync(self) -> None:
        """Return when everything queued before is durable, or when the log has failed."""
        done = threading.Event()
        if self._is_relaxed:
            self.put(self._sync)
        self.put(done)
        done.wait()

    def stop(self, *, in_order: bool = True) -> None:
        """If not `in_order`, no mark of an orderly end is written."""
        self._in_order = in_order
        self.put(None)
        self.thread.join()

    # ── the thread ───────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            self._fail(error)
            self._refuse()
        else:
            try:
                if self._in_order:
                    self._leave_mark()
            except Exception as error:
                self._fail(error)
        os.close(self._file)
        if self._lock is not None:
            os.close(self._lock)

    def _refuse(self) -> None:
        """Write nothing more, but release callers that wait for the thread."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()

    def _turn(self) -> bool:
        """Process one group and the item queued after it. False if that item was to stop."""
        item = self._next()
        if type(item) is EncodedBatch:
            item = self._write_group(item)
        if item is None:
            return False
        if isinstance(item, threading.Event):
            item.set()
        elif not isinstance(item, EncodedBatch):
            item()
        return True

    def _next(self) -> Item:
        """Wait for the next item, but only until unsynced records are due to be synced."""
        if self._starts_group:
            return self._queue.get()
        left_s = self._unsynced_since + MAX_UNSYNCED_S - time.monotonic()
        if left_s > 0:
            with contextlib.suppress(Empty):
                return self._queue.get(timeout=left_s)
        return self._sync

    def _write_group(self, batch: EncodedBatch) -> Item:
        """Write this batch and those queued after it; return the first other item."""
        _, sequence, chain = self._end
        parts = [milestone(sequence, chain)] if self._starts_group else []
        size = 0
        item: Item = _nobody
        while True:
            parts += batch[:2]
            size += len(batch.data)
            if size >= MAX_GROUP_BYTES:
                break
            try:
                following = self._queue.get_nowait()
            except Empty:
                break
            if type(following) is not EncodedBatch:
                item = following
                break
            batch = following
        try:
            self._write(b"".join(parts), batch)
        except Exception:
            self.put(item)  # a caller may wait for it
            raise
        return item

    def _write(self, data: bytes, last: EncodedBatch) -> None:
        self._remove_mark()
        write_all(self._file, data)
        if not self._is_relaxed:
            _fdatasync(self._file)
        elif self._starts_group:
            self._starts_group = False
            self._unsynced_since = time.monotonic()
        self._end = LogPlace(self._end.offset + len(data), last.sequence + 1, last.chain)
        self.segments[-1].passed(self._end)
        self.durable = last.sequence
        self._said()

    def _sync(self) -> None:
        if not self._starts_group:
            _fdatasync(self._file)
            self._starts_group = True

    def _roll(self, header: Header) -> None:
        """The new segment is created before the old one is sealed, and the seal is durable before
        the new one is written to: so a missing segment is always detected."""
        self._sync()
        self._remove_mark()
        self._touched = self._directory
        segment = create_segment(self._directory, header)
        self._touched = self.segments[-1].path
        write_all(self._file, seal(header.first, header.chain))
        os.fsync(self._file)
        os.close(self._file)
        self._touched = segment.path
        self._file = os.open(segment.path, os.O_WRONLY | os.O_APPEND)
        self._end = LogPlace(HEADER_BYTES, header.first, header.seed)
        self.segments = (*self.segments, segment)

    def _trim(self, upto: int) -> None:
        """The new beginning is durable before older segments are removed."""
        segments, count = self.segments, 0
        while count < len(segments) - 1 and segments[count + 1].first <= upto + 1:
            count += 1
        if not count:
            return
        self._touched = self._directory
        self._remove_mark()
        first = segments[count]
        Mark(first.first, first.header.chain).write(self._directory / BEGINS)
        self.segments = segments[count:]
        for each in segments[:count]:
            remove_file(each.path)
        sync_folder(self._directory)
        self._touched = segments[-1].path

    def _remove_mark(self) -> None:
        if self._has_mark:
            remove_file(self._directory / CLOSED)
            sync_folder(self._directory)
            self._has_mark = False

    def _leave_mark(self) -> None:
        self._sync()
        if not self._has_mark:
            self._touched = self._directory / CLOSED
            Mark(self._end.sequence - 1, self._end.chain).write(self._touched)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, OSError):
            kept = f"the records up to {self.durable} are durable"
            error = disk_failed(self._touched, error, kept)
        self.failure = error
        self._said()


class FileLog:
    """Segments in a folder. Use `open` to create one; one process at a time may write.

    `append`, `watch`, `trim`, `roll` and `close` are called from one thread, `read` from any.
    """

    def __init__(
        self, directory: Path, opened: OpenedLog, segment_bytes: int, durability: Durability
    ) -> None:
        self.directory = directory
        self.cut_bytes = opened.cut_bytes
        """The size of the torn tail that was found on opening."""
        self._segments = opened.segments
        self._encoder = Encoder(opened.end.sequence - 1, opened.end.chain)
        self._header = opened.segments[-1].header
        self._segment_bytes = segment_bytes
        self._room_bytes = segment_bytes - opened.end.offset
        """How much fits into the open segment, roughly: milestones do not count."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: Callable[[], None] = _nobody
        self._failed: Callable[[Exception], None] | None = None
        self._is_closed = False
        self._writer: Writer | None = None
        if opened.lock is not None:
            try:
                self._writer = Writer(directory, opened, durability, self._said)
            except BaseException:
                os.close(opened.lock)
                raise

    @staticmethod
    def open(
        directory: Path,
        *,
        purpose: str,
        version: int,
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = Durability.FSYNC,
        writable: bool = True,
    ) -> FileLog:
        """Continue the log in a folder, or begin one. If not `writable`, open it for reading only,
        without a lock and without changing anything."""
        if not 0 < len(purpose.encode()) <= MAX_PURPOSE_BYTES:
            raise MisuseError(f"a purpose has 1 to {MAX_PURPOSE_BYTES} bytes, not {purpose!r}")
        directory = Path(directory)
        with usable(directory):
            opening = partial(open_log_folder, directory, purpose, version, writable)
            opened = opening() if writable else steadily(opening, directory)
            return FileLog(directory, opened, segment_bytes, durability)

    # ── positions ────────────────────────────────────────────────────────────────────────

    @property
    def first(self) -> int:
        return self._kept[0].first

    @property
    def appended(self) -> int:
        return self._encoder.sequence

    @property
    def durable(self) -> int:
        return self._writer.durable if self._writer else self._encoder.sequence

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The files with their first and last records, oldest first. All but the last one are
        sealed, so nothing is added to them."""
        kept = self._kept
        lasts = [*(each.first - 1 for each in kept[1:]), self.appended]
        return tuple(
            Extent(each.path, each.first, last) for each, last in zip(kept, lasts, strict=True)
        )

    @property
    def _kept(self) -> tuple[LogSegment, ...]:
        return self._writer.segments if self._writer else self._segments

    def chain_before(self, sequence: int) -> int | None:
        """The checksum of everything before a record, if a segment begins with that record."""
        found = (each.header.chain for each in self._kept if each.first == sequence)
        return next(found, None)

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def append(self, payloads: Sequence[bytes], kind: int = 0) -> int:
        """Append records in order; returns the position at which all of them are durable. It only
        encodes and queues them: the thread does the slow part."""
        writer = self._usable_writer()
        encoder = self._encoder
        if not 0 <= kind < USER_KINDS:
            raise MisuseError(f"the kind of a record is 0 to {USER_KINDS - 1}, not {kind}")
        if not payloads:
            return encoder.sequence
        if sum(map(len, payloads)) > MAX_APPEND_BYTES:
            raise MisuseError(f"one append takes at most {MAX_APPEND_BYTES} bytes")
        if self._room_bytes <= 0:
            self._roll(writer)
        head, data = encoder.encode(payloads, kind)
        self._room_bytes -= len(head) + len(data)
        writer.put(EncodedBatch(head, data, encoder.sequence, encoder.chain))
        return encoder.sequence

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Call `durable` on the running event loop whenever `durable` grows. Call `failed` once if
        it can never grow again: a failed sync is not retried."""
        self._loop = asyncio.get_running_loop()
        self._told, self._failed = durable, failed
        if self._writer and self._writer.failure:
            self._said()

    def trim(self, upto: int) -> None:
        """Let the thread remove whole segments up to `upto`, but never the open one: call `roll`
        first to remove everything."""
        self._usable_writer().trim(upto)

    def roll(self) -> None:
        """Seal the open segment and begin another, after everything appended so far."""
        writer = self._usable_writer()
        if self.appended >= self._header.first:
            self._roll(writer)

    def _roll(self, writer: Writer) -> None:
        encoder = self._encoder
        self._header = self._header._replace(first=encoder.sequence + 1, chain=encoder.chain)
        writer.roll(self._header)
        encoder.chain = self._header.seed
        self._room_bytes = self._segment_bytes - HEADER_BYTES

    def then(self, action: Callable[[], None]) -> None:
        """Run an action in the thread, after everything requested so far is done and everything
        appended so far is durable. If it fails, so does the log."""
        self._usable_writer().then(action)

    def sync(self) -> None:
        """For tools without an event loop: return when everything appended is durable (and synced),
        and everything requested before is done."""
        writer = self._usable_writer()
        writer.sync()
        if writer.failure:
            raise writer.failure

    async def close(self) -> None:
        """Make all appended records durable, stop the thread, release the lock, write the closing
        mark. Raises if that fails, or if an appended record is not durable."""
        await asyncio.get_running_loop().run_in_executor(None, self.shut)

    def shut(self) -> None:
        """`close` for callers without an event loop."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._writer:
            known = self._writer.failure
            self._writer.stop()
            failure = self._writer.failure
            if failure and (failure is not known or self._writer.durable < self.appended):
                raise failure

    async def abandon(self) -> None:
        """Stop the thread and release the lock. The next `open` finds out whether the last write
        succeeded and where the log ends."""
        if not self._is_closed:
            self._is_closed = True
            if self._writer:
                stop = partial(self._writer.stop, in_order=False)
                await asyncio.get_running_loop().run_in_executor(None, stop)

    def _usable_writer(self) -> Writer:
        if self._writer is None:
            raise MisuseError(f"{self.directory} was opened for reading only")
        if self._writer.failure:
            raise self._writer.failure
        if self._is_closed:
            raise ClosedError(f"the log in {self.directory} was closed before")
        return self._writer

    def _said(self) -> None:
        """Called in the thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no listener
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        assert self._writer is not None
        failed = self._failed
        if self._writer.failure and failed is not None:
            self._failed = None
            failed(self._writer.failure)
        else:
            self._told()

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def read(self, first: int, last: int | None = None) -> Iterator[Record]:
        """The durable records from `first` to `last`, both included, verified while reading."""
        if first < 1:
            raise MisuseError(f"records count from 1; there is no record {first}")
        durable = self.durable
        last = durable if last is None else min(last, durable)
        segments = self._kept
        if first < segments[0].first:
            raise self._trimmed(first, segments[0].first)
        return self._records(segments, first, last)

    def _trimmed(self, asked: int, first: int) -> LogTrimmed:
        return LogTrimmed(
            f"{self.directory}: record {asked} was trimmed, the oldest one kept is {first}; "
            "continue from there, or from a snapshot"
        )

    def _records(self, segments: tuple[LogSegment, ...], first: int, last: int) -> Iterator[Record]:
        begin = bisect_right(segments, first, key=lambda each: each.first) - 1
        for at, segment in enumerate(segments[begin:], begin + 1):
            if segment.first > last:
                return
            until = min(last, segments[at].first - 1) if at < len(segments) else last
            try:
                descriptor = os.open(segment.path, os.O_RDONLY)
            except FileNotFoundError:
                begins = Mark.read(self.directory / BEGINS)
                if begins is None or begins.sequence <= segment.first:
                    raise LogCorrupted(f"{segment.path} is missing; {WAY_OUT}") from None
                raise self._trimmed(max(first, segment.first), begins.sequence) from None
            try:
                yield from _records_of(segment, descriptor, first, until)
            except Broken as error:
                raise broken(segment.path, error.place, str(error)) from None
            except OSError as error:
                raise unreadable(segment.path, error) from error
            finally:
                os.close(descriptor)


def _records_of(segment: LogSegment, descriptor: int, first: int, last: int) -> Iterator[Record]:
    """The records of one segment; raises `Broken` if it ends before `last`."""
    at = bisect_right(segment.waypoints, first, key=lambda place: place.sequence) - 1
    place = segment.waypoints[at] if at >= 0 else beginning(segment.header)
    for step in walk(descriptor, place, os.fstat(descriptor).st_size):
        if step.kind == SEAL or place.sequence > last:
            break
        place = step.after
        segment.passed(place)
        if step.sequence >= first and place.sequence <= last + 1:
            yield from step.records()
        else:
            yield from (each for each in step.records() if first <= each.sequence <= last)
        if place.sequence > last:
            return
    if place.sequence <= last:
        raise Broken(place, "the file ends before it")


def _nobody() -> None:
    """No watcher is set yet, or the queue is empty for now."""
