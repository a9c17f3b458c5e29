"""The log on disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from motet.errors import ClosedError, LogCorrupted, LogTrimmed, MisuseError
from motet.runtime.log.contract import (
    MAX_APPEND_BYTES,
    USER_KINDS,
    Durability,
    Extent,
    Record,
)
from motet.runtime.log.files import Mark, unreadable, usable
from motet.runtime.log.folder import BEGINS, WAY_OUT, Opened, Opening, Segment, broken
from motet.runtime.log.layout import HEADER_BYTES, MAX_PURPOSE_BYTES, SEAL, Encoder
from motet.runtime.log.scan import Broken, beginning, walk
from motet.runtime.log.writer import Batch, Writer

SEGMENT_BYTES = 64 << 20
LOOKS = 10
"""How often to look again at a log that changes while it is looked at."""


class FileLog:
    """Segments in a folder. Open it with `open`; one process at a time may write.

    `append`, `watch`, `trim`, `roll` and `close` are called from one thread, `read` from any.
    """

    def __init__(
        self, directory: Path, opened: Opened, segment_bytes: int, durability: Durability
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
        """Continue the log in a folder, or begin one. Not writable: a look at what is there,
        without a lock, that changes nothing."""
        if not 0 < len(purpose.encode()) <= MAX_PURPOSE_BYTES:
            raise MisuseError(f"a purpose has 1 to {MAX_PURPOSE_BYTES} bytes, not {purpose!r}")
        directory = Path(directory)
        with usable(directory):
            for attempt in range(LOOKS):
                before = [] if writable else _state(directory)
                try:
                    opened = Opening(directory, purpose, version, writable).open()
                    break
                except (LogCorrupted, FileNotFoundError):
                    # Somebody who writes may have rolled or trimmed under our eyes.
                    if writable or attempt == LOOKS - 1 or _state(directory) == before:
                        raise
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
        sealed: nothing is added to them any more."""
        kept = self._kept
        lasts = [*(each.first - 1 for each in kept[1:]), self.appended]
        return tuple(
            Extent(each.path, each.first, last) for each, last in zip(kept, lasts, strict=True)
        )

    @property
    def _kept(self) -> tuple[Segment, ...]:
        return self._writer.segments if self._writer else self._segments

    def chain_before(self, sequence: int) -> int | None:
        """The checksum of everything before a record, if a segment begins with it."""
        found = (each.header.chain for each in self._kept if each.first == sequence)
        return next(found, None)

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def append(self, payloads: Sequence[bytes], kind: int = 0) -> int:
        """Take records, in order; the position at which all of them are durable. It encodes and
        queues them: the thread does what takes time."""
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
        writer.put(Batch(head, data, encoder.sequence, encoder.chain))
        return encoder.sequence

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Call `durable` on the running event loop whenever `durable` grows. Call `failed` once
        if it never will again: a failed sync is not retried."""
        self._loop = asyncio.get_running_loop()
        self._told, self._failed = durable, failed
        if self._writer and self._writer.failure:
            self._said()

    def trim(self, upto: int) -> None:
        """Whole segments up to `upto` go as soon as the thread gets to it, but never the open one:
        `roll` first to be rid of everything."""
        self._usable_writer().trim(upto)

    def roll(self) -> None:
        """Seal the open segment and begin another, behind everything appended so far."""
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
        """Do something in the thread, when everything asked for so far is done and everything
        appended so far is durable. If it fails, so does the log."""
        self._usable_writer().then(action)

    def sync(self) -> None:
        """For tools without an event loop: return when everything appended is durable (and
        synced), and everything asked for before is done."""
        writer = self._usable_writer()
        writer.sync()
        if writer.failure:
            raise writer.failure

    async def close(self) -> None:
        """Make durable what was appended, stop the thread, release the lock, leave the closing
        mark. Raises if that fails, or something appended is not durable."""
        await asyncio.get_running_loop().run_in_executor(None, self.shut)

    def shut(self) -> None:
        """`close` for those without an event loop."""
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
        """Stop the thread and release the lock. Whether what it did last worked out, and where
        the log ends, is for the next one to find out."""
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
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
            f"go on from there, or from a snapshot"
        )

    def _records(self, segments: tuple[Segment, ...], first: int, last: int) -> Iterator[Record]:
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
                    raise LogCorrupted(f"{segment.path} has gone; {WAY_OUT}") from None
                raise self._trimmed(max(first, segment.first), begins.sequence) from None
            try:
                yield from _records_of(segment, descriptor, first, until)
            except Broken as error:
                raise broken(segment.path, error.place, str(error)) from None
            except OSError as error:
                raise unreadable(segment.path, error) from error
            finally:
                os.close(descriptor)


def _records_of(segment: Segment, descriptor: int, first: int, last: int) -> Iterator[Record]:
    """The records of one segment, which must be there up to `last`."""
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


def _state(directory: Path) -> list[tuple[str, int, int]]:
    """What tells whether anything in a folder was changed meanwhile."""
    found = []
    for entry in os.scandir(directory):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat()
            found.append((entry.name, status.st_size, status.st_mtime_ns))
    return sorted(found)


def _nobody() -> None:
    """Nobody watches yet."""
