"""Opening: the lock, the segments, whether one follows the other, and where the last one ends.

A folder holds

    00000000000000000001.log    a segment, named by its first record
    begins                      where the oldest segment begins, so that its loss is noticed
    closed                      where the log ended when it was closed in order
    lock                        held by the process that writes; its pid is inside
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from motet.errors import LogCorrupted, LogInUse, StorageError, WrittenByAnotherVersion
from motet.runtime.log.files import NEW, Mark, remove_file, replace_file, sync_folder, write_all
from motet.runtime.log.layout import (
    FORMAT,
    HEADER_BYTES,
    SEAL,
    SEAL_BYTES,
    BadHeader,
    Header,
    decode_header,
    own_sequence,
    seal,
)
from motet.runtime.log.scan import Broken, Place, beginning, pread, walk
from motet.runtime.log.tail import damage

log = logging.getLogger("motet.log")

BEGINS = "begins"
CLOSED = "closed"
LOCK = "lock"
WAYPOINT_BYTES = 64 * 1024
"""A ranged read begins at most about this far before the record it looks for."""

WAY_OUT = (
    "nothing was changed; restore the folder from a backup, or move it away and start with an "
    "empty one"
)


@dataclass(frozen=True, eq=False)
class Segment:
    path: Path
    header: Header
    waypoints: list[Place] = field(default_factory=list)
    """Places in this file where a read may begin, ascending."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def first(self) -> int:
        return self.header.first

    def passed(self, place: Place) -> None:
        """Remember a place now and then. Whoever reads or writes may come by here."""
        if self._is_far(place):
            with self.lock:
                if self._is_far(place):
                    self.waypoints.append(place)

    def _is_far(self, place: Place) -> bool:
        points = self.waypoints
        return not points or place.offset - points[-1].offset >= WAYPOINT_BYTES


@dataclass
class Opened:
    """A log as it was found, ready to be continued."""

    segments: tuple[Segment, ...]
    end: Place
    """Where the next record goes, in the last segment."""
    cut_bytes: int
    has_mark: bool
    lock: int | None


def segment_path(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}.log"


def segment_files(directory: Path) -> list[Path]:
    names = sorted(n for n in os.listdir(directory) if re.fullmatch(r"\d{20}\.log", n))
    return [directory / name for name in names]


def broken(path: Path, place: Place, problem: str) -> LogCorrupted:
    return LogCorrupted(
        f"{path}: record {place.sequence} at offset {place.offset} is broken: {problem}; {WAY_OUT}"
    )


def missing(directory: Path, first: int, last: int) -> LogCorrupted:
    return LogCorrupted(f"{directory}: {gap(first, last)}; {WAY_OUT}")


def gap(first: int, last: int) -> str:
    return f"the segment with records {first} to {last} is missing"


# ── the lock ─────────────────────────────────────────────────────────────────────────────


def take_lock(directory: Path) -> int:
    path = directory / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise LogInUse(
            f"{directory} is in use by process {pid}; stop it first, or name another folder"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


# ── headers ──────────────────────────────────────────────────────────────────────────────


def read_header(path: Path) -> Header:
    with path.open("rb") as file:
        return decode_header(file.read(HEADER_BYTES))


def checked_header(path: Path, purpose: str) -> Header:
    try:
        header = read_header(path)
    except BadHeader as error:
        if error.format is not None:
            raise WrittenByAnotherVersion(
                f"{path} is a log of format {error.format}, and this release writes format "
                f"{FORMAT}; start the release that wrote it and run `motet journal snapshot "
                f"{path.parent}`, then start this one"
            ) from None
        raise LogCorrupted(f"{path}: {error}; {WAY_OUT}") from None
    if header.purpose != purpose:
        raise LogCorrupted(
            f"{path} belongs to a log for {header.purpose!r}, not for {purpose!r}; name the "
            f"folder of the right one"
        )
    return header


def another_version(path: Path, found: int, wanted: int) -> WrittenByAnotherVersion:
    return WrittenByAnotherVersion(
        f"{path} was written by version {found} of the machine, and this one is version {wanted}; "
        f"start the release that wrote it and run `motet journal snapshot {path.parent}`, then "
        f"start this one"
    )


def create_segment(directory: Path, header: Header) -> Segment:
    """There whole, under its name, or not at all."""
    path = segment_path(directory, header.first)
    replace_file(path, header.encode())
    segment = Segment(path, header)
    segment.passed(beginning(header))
    return segment


# ── opening ──────────────────────────────────────────────────────────────────────────────


class Opening:
    """Goes through a folder once. With `writable` it mends what a crash left unfinished."""

    def __init__(self, directory: Path, purpose: str, version: int, writable: bool) -> None:
        self.directory = directory
        self.purpose = purpose
        self.version = version
        self.writable = writable
        self._cut_bytes = 0

    def open(self) -> Opened:
        lock = None
        if self.writable:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = take_lock(self.directory)
        try:
            return self._opened(lock)
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise

    def _opened(self, lock: int | None) -> Opened:
        files = segment_files(self.directory)
        begins = Mark.read(self.directory / BEGINS)
        closed = Mark.read(self.directory / CLOSED)
        if self.writable:
            self._sweep()
        if not files:
            self._must_be_empty(begins or closed)
            self._anchor()
            segments = [create_segment(self.directory, Header(self.purpose, self.version, 1, 0))]
        else:
            segments = [Segment(path, checked_header(path, self.purpose)) for path in files]
            for segment in segments:
                if segment.path != segment_path(self.directory, segment.first):
                    raise LogCorrupted(
                        f"{segment.path} holds the records from {segment.first} on: it was "
                        f"renamed; {WAY_OUT}"
                    )
            segments = self._kept(segments, begins)
        if begins is None and self.writable:
            Mark(segments[0].first, segments[0].header.chain).write(self.directory / BEGINS)
        for before, after in pairwise(segments):
            self._check_succession(before, after, after is segments[-1])
        end, torn_bytes = self._end(segments[-1])
        self._check_closing(segments[-1], end, torn_bytes, closed)
        self._mend(segments[-1], end, torn_bytes)
        segments = self._of_this_version(segments, end)
        if end.sequence == segments[-1].first:
            end = beginning(segments[-1].header)
        return Opened(tuple(segments), end, self._cut_bytes, closed is not None, lock)

    def _anchor(self) -> None:
        """The folder itself may be new, and those above it, and none of them durable yet."""
        for folder in self.directory.absolute().parents:
            with contextlib.suppress(OSError):  # not ours to read, and then not ours to create
                sync_folder(folder)

    def _sweep(self) -> None:
        for name in os.listdir(self.directory):
            if name.endswith(NEW):
                remove_file(self.directory / name)

    def _must_be_empty(self, mark: Mark | None) -> None:
        if mark is not None:
            raise LogCorrupted(
                f"{self.directory}: all segments are missing, and there were some; {WAY_OUT}"
            )
        if not self.writable:
            raise StorageError(f"there is no log in {self.directory}; name the right folder")

    def _kept(self, segments: list[Segment], begins: Mark | None) -> list[Segment]:
        """Without what was trimmed, but not removed before a crash."""
        begin = begins.sequence if begins else 1
        trimmed = [each for each in segments if each.first < begin]
        kept = segments[len(trimmed) :]
        if not kept or kept[0].first > begin:
            last = kept[0].first - 1 if kept else begin
            raise missing(self.directory, begin, last)
        if begins is not None and kept[0].header.chain != begins.chain:
            raise LogCorrupted(f"{kept[0].path} belongs to another log; {WAY_OUT}")
        if self.writable and trimmed:
            for each in trimmed:
                remove_file(each.path)
            sync_folder(self.directory)
        return kept

    def _check_succession(self, before: Segment, after: Segment, is_last: bool) -> None:
        """Does `before` end with the seal that names `after`?"""
        descriptor = os.open(before.path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            wanted = seal(after.first, after.header.chain)
            found = pread(descriptor, SEAL_BYTES, max(size - SEAL_BYTES, 0))
        finally:
            os.close(descriptor)
        if found == wanted:
            return
        sequence = own_sequence(found, SEAL)
        if before.first <= sequence < after.first:
            raise missing(self.directory, sequence, after.first - 1)
        if is_last and after.path.stat().st_size == HEADER_BYTES:
            self._finish_roll(before, after)
            return
        raise LogCorrupted(
            f"{before.path} does not end with a seal that names record {after.first}: it was cut "
            f"or changed behind offset {max(size - SEAL_BYTES, 0)}, or {after.path.name} belongs "
            f"to another log; {WAY_OUT}"
        )

    def _finish_roll(self, before: Segment, after: Segment) -> None:
        """A crash came after the new segment was there, and before the old one was sealed."""
        end, torn_bytes = self._end(before)
        if (end.sequence, end.chain) != (after.first, after.header.chain):
            raise LogCorrupted(
                f"{before.path} ends before record {end.sequence} at offset {end.offset}, but "
                f"{after.path.name} goes on with record {after.first}; {WAY_OUT}"
            )
        self._mend(before, end, torn_bytes)
        if self.writable:
            descriptor = os.open(before.path, os.O_WRONLY | os.O_APPEND)
            try:
                write_all(descriptor, seal(end.sequence, end.chain))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _end(self, segment: Segment) -> tuple[Place, int]:
        """Where the last whole record ends, and how many torn bytes follow. Damage raises."""
        end = beginning(segment.header)
        segment.waypoints[:] = [end]
        descriptor = os.open(segment.path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            for step in walk(descriptor, end, size):
                if step.kind == SEAL:
                    raise LogCorrupted(
                        f"{self.directory}: the segment that begins with record "
                        f"{step.sequence} is missing; {WAY_OUT}"
                    )
                end = step.after
                segment.passed(end)
        except Broken as error:
            offset = error.place.offset
            reason = damage(pread(descriptor, size - offset, offset), error.place)
            if reason:
                raise broken(segment.path, error.place, f"{error}, and {reason}") from None
        finally:
            os.close(descriptor)
        return end, size - end.offset

    def _mend(self, segment: Segment, end: Place, torn_bytes: int) -> None:
        """Cut a torn tail, and make the rest durable: a process that was killed may have written
        what it never synced, and it counts as durable from now on."""
        self._cut_bytes += torn_bytes
        if not self.writable:
            return
        descriptor = os.open(segment.path, os.O_RDWR)
        try:
            if torn_bytes:
                log.warning(
                    "%s: cut %d bytes of a group that a crash tore before record %d was durable",
                    segment.path,
                    torn_bytes,
                    end.sequence,
                )
                os.ftruncate(descriptor, end.offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _check_closing(self, last: Segment, end: Place, torn: int, closed: Mark | None) -> None:
        if closed is None or (
            (end.sequence - 1, end.chain) == (closed.sequence, closed.chain) and not torn
        ):
            return
        raise LogCorrupted(
            f"{last.path}: the log was closed behind record {closed.sequence}, but its last "
            f"whole record is {end.sequence - 1}, and {torn} bytes follow at offset {end.offset}; "
            f"{WAY_OUT}"
        )

    def _of_this_version(self, segments: list[Segment], end: Place) -> list[Segment]:
        """Another version must not leave records behind, but may leave an empty log."""
        for segment in segments:
            found = segment.header.version
            if found == self.version:
                continue
            if len(segments) > 1 or end.sequence > segment.first:
                raise another_version(segment.path, found, self.version)
            if not self.writable:
                return segments
            remove_file(self.directory / CLOSED)
            sync_folder(self.directory)
            header = segment.header._replace(version=self.version)
            return [create_segment(self.directory, header)]
        return segments
