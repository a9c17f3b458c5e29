"""The thread that writes and syncs, group by group.

It takes everything that waits, writes it with one write, syncs it, says so, and only then looks
for more: while one group is being synced, the next one gathers. Records come encoded, so that the
thread rarely needs the interpreter, which a busy event loop would make it wait for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from motet.runtime.log.contract import Durability
from motet.runtime.log.files import Mark, disk_failed, remove_file, sync_folder, write_all
from motet.runtime.log.folder import BEGINS, CLOSED, Opened, create_segment
from motet.runtime.log.layout import HEADER_BYTES, Header, milestone, seal
from motet.runtime.log.scan import Place

MAX_GROUP_BYTES = 8 << 20
"""A group is closed beyond this, so that no sync takes for ever."""

MAX_UNSYNCED_S = 1.0


class Batch(NamedTuple):
    """Records to write: their bytes in two pieces, the last one's sequence, the checksum."""

    head: bytes
    data: bytes
    sequence: int
    chain: int


Item = Batch | Callable[[], None] | threading.Event | None
"""Records to append; something to do; somebody who waits; or None, to stop."""

_fdatasync = getattr(os, "fdatasync", os.fsync)


class Writer:
    """Others call `put`, `trim`, `sync` and `stop`, and read `durable`, `segments` and `failure`;
    everything else belongs to the thread."""

    def __init__(
        self, directory: Path, opened: Opened, durability: Durability, said: Callable[[], None]
    ) -> None:
        self.segments = opened.segments
        """Never changed in place: who reads takes what is there."""
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
        """What a failure would be about."""
        self._file = os.open(self._touched, os.O_WRONLY | os.O_APPEND)
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self.put = self._queue.put
        self.thread = threading.Thread(target=self._run, name="motet-log", daemon=True)
        self.thread.start()

    # ── asked for by others, done by the thread ──────────────────────────────────────────

    def roll(self, header: Header) -> None:
        """Begin the segment with this header behind everything put so far."""
        self.put(lambda: self._roll(header))

    def trim(self, upto: int) -> None:
        self.put(lambda: self._trim(upto))

    def then(self, action: Callable[[], None]) -> None:
        self.put(self._sync)
        self.put(action)

    def sync(self) -> None:
        """Return when everything put before is durable, or nothing will be any more."""
        done = threading.Event()
        if self._is_relaxed:
            self.put(self._sync)
        self.put(done)
        done.wait()

    def stop(self, *, in_order: bool = True) -> None:
        """Without order, no mark says that this was the end."""
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
        """Nothing more is written, but whoever waits for the thread must not wait for ever."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()

    def _turn(self) -> bool:
        """One group, and what was asked for behind it. False if that was to stop."""
        item = self._next()
        if type(item) is Batch:
            item = self._write_group(item)
        if item is None:
            return False
        if isinstance(item, threading.Event):
            item.set()
        elif not isinstance(item, Batch):
            item()
        return True

    def _next(self) -> Item:
        """Wait for something to do; with something unsynced, no longer than it may be."""
        if self._starts_group:
            return self._queue.get()
        left_s = self._unsynced_since + MAX_UNSYNCED_S - time.monotonic()
        if left_s > 0:
            with contextlib.suppress(Empty):
                return self._queue.get(timeout=left_s)
        return self._sync

    def _write_group(self, batch: Batch) -> Item:
        """Write this and all that waits behind it, up to something else, which is returned."""
        _, sequence, chain = self._end
        parts = [milestone(sequence, chain)] if self._starts_group else []
        size = 0
        item: Item = _nothing
        while True:
            parts += batch[:2]
            size += len(batch.data)
            if size >= MAX_GROUP_BYTES:
                break
            try:
                following = self._queue.get_nowait()
            except Empty:
                break
            if type(following) is not Batch:
                item = following
                break
            batch = following
        try:
            self._write(b"".join(parts), batch)
        except Exception:
            self.put(item)  # somebody may wait for it
            raise
        return item

    def _write(self, data: bytes, last: Batch) -> None:
        self._remove_mark()
        write_all(self._file, data)
        if not self._is_relaxed:
            _fdatasync(self._file)
        elif self._starts_group:
            self._starts_group = False
            self._unsynced_since = time.monotonic()
        self._end = Place(self._end.offset + len(data), last.sequence + 1, last.chain)
        self.segments[-1].passed(self._end)
        self.durable = last.sequence
        self._said()

    def _sync(self) -> None:
        if not self._starts_group:
            _fdatasync(self._file)
            self._starts_group = True

    def _roll(self, header: Header) -> None:
        """The new segment is there before the old one is sealed, and the seal is durable before
        anything is written to the new one: a missing segment is always noticed."""
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
        self._end = Place(HEADER_BYTES, header.first, header.seed)
        self.segments = (*self.segments, segment)

    def _trim(self, upto: int) -> None:
        """What is kept is known durably before the rest goes."""
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


def _nothing() -> None:
    """The queue is empty for now."""
