"""The thread that writes and syncs, group by group.

It takes everything that waits, writes it with one write, syncs it, says so, and only then looks
for more: while one group is being synced, the next one gathers.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from motet.errors import StorageError
from motet.runtime.log.contract import Durability
from motet.runtime.log.files import Mark, disk_failed, remove_file, sync_folder, write_all
from motet.runtime.log.folder import BEGINS, CLOSED, Opened, Segment, create_segment
from motet.runtime.log.layout import HEADER_BYTES, Encoder, Header
from motet.runtime.log.scan import Place

MAX_GROUP_BYTES = 8 << 20
"""A group is closed beyond this, so that neither memory nor one sync grows without bound."""

MAX_UNSYNCED_S = 1.0

Item = tuple[list[bytes], int] | Callable[[], None] | threading.Event | None
"""Records to append; something to do; somebody who waits; or None, to stop."""

_fdatasync = getattr(os, "fdatasync", os.fsync)


class Writer:
    """Everything here but `put`, `durable`, `segments` and `failure` belongs to the thread."""

    def __init__(
        self,
        directory: Path,
        opened: Opened,
        segment_bytes: int,
        durability: Durability,
        said: Callable[[], None],
    ) -> None:
        self.segments = opened.segments
        """Never changed in place: who reads takes what is there."""
        self.durable = opened.end.sequence - 1
        self.failure: Exception | None = None
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._is_relaxed = durability is Durability.MAY_LOSE_A_SECOND
        self._said = said
        self._lock = opened.lock
        self._has_mark = opened.has_mark
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._encoder = Encoder(opened.end.sequence - 1, opened.end.chain)
        self._offset = opened.end.offset
        self._file = os.open(self._open_segment.path, os.O_WRONLY | os.O_APPEND)
        self._touched = self._open_segment.path
        """What a failure would be about."""
        self._starts_group = True
        self._unsynced_since: float | None = None
        self.put = self._queue.put
        self.thread = threading.Thread(target=self._run, name="motet-log", daemon=True)
        self.thread.start()

    # ── asked for by others, done by the thread ──────────────────────────────────────────

    def roll(self) -> None:
        self.put(self._roll)

    def trim(self, upto: int) -> None:
        self.put(lambda: self._trim(upto))

    def sync(self) -> None:
        """Return when everything put before is durable, or nothing will be any more."""
        done = threading.Event()
        self.put(self._sync)
        self.put(done)
        done.wait()

    def stop(self) -> None:
        self.put(None)
        self.thread.join()

    # ── the thread ───────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._leave_mark()
        except Exception as error:
            self._fail(error)
            self._refuse()
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
        encoder = self._encoder
        while isinstance(item, tuple):
            payloads, kind = item
            if self._starts_group:
                self._starts_group = False
                encoder.begin(payloads[0], kind)
                payloads = payloads[1:]
            encoder.add(payloads, kind)
            item = self._nothing
            if encoder.size_bytes < MAX_GROUP_BYTES:
                with contextlib.suppress(Empty):
                    item = self._queue.get_nowait()
        if encoder.size_bytes:
            self._write()
        if item is None:
            return False
        if isinstance(item, threading.Event):
            item.set()
        else:
            item()
        return True

    def _next(self) -> Item:
        """Wait for something to do; with something unsynced, no longer than it may be."""
        if self._unsynced_since is None:
            return self._queue.get()
        left_s = self._unsynced_since + MAX_UNSYNCED_S - time.monotonic()
        if left_s > 0:
            with contextlib.suppress(Empty):
                return self._queue.get(timeout=left_s)
        return self._sync

    def _nothing(self) -> None:
        """The queue is empty for now."""

    def _write(self) -> None:
        encoder = self._encoder
        data = encoder.take()
        self._remove_mark()
        write_all(self._file, data)
        self._offset += len(data)
        if self._is_relaxed:
            if self._unsynced_since is None:
                self._unsynced_since = time.monotonic()
        else:
            _fdatasync(self._file)
            self._starts_group = True
        self._open_segment.passed(Place(self._offset, encoder.sequence + 1, encoder.chain))
        self.durable = encoder.sequence
        self._said()
        if self._offset >= self._segment_bytes:
            self._roll()

    def _sync(self) -> None:
        if self._unsynced_since is not None:
            self._unsynced_since = None
            _fdatasync(self._file)
            self._starts_group = True

    @property
    def _open_segment(self) -> Segment:
        return self.segments[-1]

    def _roll(self) -> None:
        """The new segment is there before the old one is sealed, and the seal is durable before
        anything is written to the new one: a missing segment is always noticed."""
        if self._offset == HEADER_BYTES:
            return
        self._sync()
        self._remove_mark()
        encoder = self._encoder
        before = self._open_segment.header
        header = Header(before.purpose, before.version, encoder.sequence + 1, encoder.chain)
        self._touched = self._directory
        segment = create_segment(self._directory, header)
        self._touched = self._open_segment.path
        encoder.seal()
        write_all(self._file, encoder.take())
        os.fsync(self._file)
        os.close(self._file)
        self._touched = segment.path
        self._file = os.open(segment.path, os.O_WRONLY | os.O_APPEND)
        self._offset = HEADER_BYTES
        self._starts_group = True
        encoder.chain = header.seed
        self.segments = (*self.segments, segment)

    def _trim(self, upto: int) -> None:
        """What is kept is known durably before the rest goes."""
        segments = self.segments
        count = 0
        while count < len(segments) - 1 and segments[count + 1].first <= upto + 1:
            count += 1
        if not count:
            return
        gone, first = segments[:count], segments[count]
        self._touched = self._directory
        self._remove_mark()
        Mark(first.first, first.header.chain).write(self._directory / BEGINS)
        self.segments = segments[count:]
        for each in gone:
            remove_file(each.path)
        sync_folder(self._directory)
        self._touched = self._open_segment.path

    def _remove_mark(self) -> None:
        if self._has_mark:
            remove_file(self._directory / CLOSED)
            sync_folder(self._directory)
            self._has_mark = False

    def _leave_mark(self) -> None:
        self._sync()
        if not self._has_mark:
            self._touched = self._directory / CLOSED
            Mark(self._encoder.sequence, self._encoder.chain).write(self._touched)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, OSError):
            kept = f"the records up to {self.durable} are durable"
            error = disk_failed(self._touched, error, kept)
        elif not isinstance(error, StorageError):
            error.add_note("in the thread that writes a log")
        self.failure = error
        self._said()
