"""Opens a log: the lock, the segments, their succession, and where the last one ends.

A folder holds
    00000000000000000001.log    a segment, named by its first record
    begins                      where the oldest segment begins, so that its loss is detected
    closed                      where the log ended when it was closed in order
    lock                        held by the process that writes; contains its pid
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
from motet.runtime.log.files import (
    NEW,
    Mark,
    opened,
    remove_file,
    replace_file,
    sync_folder,
    usable,
    write_all,
)
from motet.runtime.log.layout import (
    FORMAT,
    HEADER_BYTES,
    SEAL,
    SEAL_BYTES,
    BadHeader,
    Broken,
    Header,
    LogPlace,
    beginning,
    damage,
    decode_header,
    own_sequence,
    pread,
    seal,
    walk,
)

log = logging.getLogger("motet.log")

BEGINS = "begins"
CLOSED = "closed"
LOCK = "lock"
WAYPOINT_BYTES = 64 * 1024
"""A ranged read starts at most about this far before the record it looks for."""

WAY_OUT = (
    "nothing was changed; restore the folder from a backup, or move it away and start with an "
    "empty one"
)


@dataclass(frozen=True, eq=False)
class LogSegment:
    path: Path
    header: Header
    waypoints: list[LogPlace] = field(default_factory=list)
    """Places in this file where a read may start, ascending."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def first(self) -> int:
        return self.header.first

    def passed(self, place: LogPlace) -> None:
        """Remember a place about every `WAYPOINT_BYTES`. Readers and the writer call this."""
        if self._is_far(place):
            with self.lock:
                if self._is_far(place):
                    self.waypoints.append(place)

    def _is_far(self, place: LogPlace) -> bool:
        points = self.waypoints
        return not points or place.offset - points[-1].offset >= WAYPOINT_BYTES


@dataclass
class OpenedLog:
    """A log as it was found, ready to be continued."""

    segments: tuple[LogSegment, ...]
    end: LogPlace
    """Where the next record goes, in the last segment."""
    cut_bytes: int
    has_mark: bool
    lock: int | None


def segment_path(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}.log"


def segment_files(directory: Path) -> list[Path]:
    names = sorted(n for n in os.listdir(directory) if re.fullmatch(r"\d{20}\.log", n))
    return [directory / name for name in names]


def broken(path: Path, place: LogPlace, problem: str) -> LogCorrupted:
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


def create_segment(directory: Path, header: Header) -> LogSegment:
    """Create it completely, under its name, or not at all."""
    path = segment_path(directory, header.first)
    replace_file(path, header.encode())
    segment = LogSegment(path, header)
    segment.passed(beginning(header))
    return segment


# ── opening ──────────────────────────────────────────────────────────────────────────────


def open_log_folder(directory: Path, purpose: str, version: int, writable: bool) -> OpenedLog:
    """Go through a folder once. If `writable`, repair what a crash left unfinished."""
    lock = None
    if writable:
        directory.mkdir(parents=True, exist_ok=True)
        lock = take_lock(directory)
    try:
        return _Opening(directory, purpose, version, writable).opened(lock)
    except BaseException:
        if lock is not None:
            os.close(lock)
        raise


class _Opening:
    def __init__(self, directory: Path, purpose: str, version: int, writable: bool) -> None:
        self.directory = directory
        self.purpose = purpose
        self.version = version
        self.writable = writable
        self._cut_bytes = 0

    def opened(self, lock: int | None) -> OpenedLog:
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
            segments = [LogSegment(path, checked_header(path, self.purpose)) for path in files]
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
        return OpenedLog(tuple(segments), end, self._cut_bytes, closed is not None, lock)

    def _anchor(self) -> None:
        """The folder itself and those above it may be new, and not durable yet."""
        for folder in self.directory.absolute().parents:
            with contextlib.suppress(OSError):  # not ours to read, so not created by us
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

    def _kept(self, segments: list[LogSegment], begins: Mark | None) -> list[LogSegment]:
        """The segments without those that were trimmed, but not removed before a crash."""
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

    def _check_succession(self, before: LogSegment, after: LogSegment, is_last: bool) -> None:
        """Check that `before` ends with the seal that names `after`."""
        with opened(before.path) as descriptor:
            size = os.fstat(descriptor).st_size
            wanted = seal(after.first, after.header.chain)
            found = pread(descriptor, SEAL_BYTES, max(size - SEAL_BYTES, 0))
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

    def _finish_roll(self, before: LogSegment, after: LogSegment) -> None:
        """A crash came after the new segment was created, and before the old one was sealed."""
        end, torn_bytes = self._end(before)
        if (end.sequence, end.chain) != (after.first, after.header.chain):
            raise LogCorrupted(
                f"{before.path} ends before record {end.sequence} at offset {end.offset}, but "
                f"{after.path.name} continues with record {after.first}; {WAY_OUT}"
            )
        self._mend(before, end, torn_bytes)
        if self.writable:
            with opened(before.path, os.O_WRONLY | os.O_APPEND) as descriptor:
                write_all(descriptor, seal(end.sequence, end.chain))
                os.fsync(descriptor)

    def _end(self, segment: LogSegment) -> tuple[LogPlace, int]:
        """Where the last whole record ends, and how many torn bytes follow. Raises if damaged."""
        end = beginning(segment.header)
        segment.waypoints[:] = [end]
        with opened(segment.path) as descriptor:
            size = os.fstat(descriptor).st_size
            try:
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
        return end, size - end.offset

    def _mend(self, segment: LogSegment, end: LogPlace, torn_bytes: int) -> None:
        """Cut a torn tail and make the rest durable: a killed process may have written records that
        it never synced, and these count as durable from now on."""
        self._cut_bytes += torn_bytes
        if not self.writable:
            return
        with opened(segment.path, os.O_RDWR) as descriptor:
            if torn_bytes:
                log.warning(
                    "%s: cut %d bytes of a group that a crash tore before record %d was durable",
                    segment.path,
                    torn_bytes,
                    end.sequence,
                )
                os.ftruncate(descriptor, end.offset)
            os.fsync(descriptor)

    def _check_closing(
        self, last: LogSegment, end: LogPlace, torn: int, closed: Mark | None
    ) -> None:
        if closed is None or (
            (end.sequence - 1, end.chain) == (closed.sequence, closed.chain) and not torn
        ):
            return
        raise LogCorrupted(
            f"{last.path}: the log was closed behind record {closed.sequence}, but its last "
            f"whole record is {end.sequence - 1}, and {torn} bytes follow at offset {end.offset}; "
            f"{WAY_OUT}"
        )

    def _of_this_version(self, segments: list[LogSegment], end: LogPlace) -> list[LogSegment]:
        """A log of another version must be empty; it is then continued in this version."""
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


# ── reports on a folder, damaged or not: read-only, for tools ───────────────────────────


@dataclass
class SegmentReport:
    """One file. `last` is `first - 1` if it has no records."""

    file: Path
    first: int = 0
    last: int = 0
    records: int = 0
    bytes: int = 0
    sealed: bool = False
    torn_bytes: int = 0
    """What opening the log would cut."""
    problem: str = ""
    """Why opening or reading the log would stop here, or ""."""


@dataclass
class _Look:
    report: SegmentReport
    header: Header | None = None
    end: LogPlace | None = None
    """After the last record, before the seal; None if the file is damaged."""

    def blame(self, problem: str) -> None:
        """Only the first problem is kept, because it explains most of the others."""
        self.report.problem = self.report.problem or problem


def inspect(directory: Path) -> list[SegmentReport]:
    """Verify every record of every segment. Damage is reported, never raised."""
    with usable(directory):
        files = segment_files(directory)
    looks = [_look(path) for path in files]
    for before, after in pairwise(looks):
        _compare(before, after, after is looks[-1])
    if looks and looks[-1].report.sealed:
        following = looks[-1].report.last + 1
        looks[-1].blame(f"the segment that begins with record {following} is missing")
    for name, compare in ((BEGINS, _compare_begin), (CLOSED, _compare_end)):
        path = directory / name
        try:
            mark = Mark.read(path)
        except (StorageError, OSError) as error:
            looks.append(_Look(SegmentReport(path, problem=str(error))))
            continue
        if mark is None:
            continue
        if files:
            compare(mark, looks[: len(files)])
        else:
            problem = "all segments are missing, and there were some"
            looks.append(_Look(SegmentReport(path, problem=problem)))
    return [look.report for look in looks]


def _look(path: Path) -> _Look:
    look = _Look(SegmentReport(path))
    report = look.report
    try:
        report.bytes = path.stat().st_size
        look.header = header = read_header(path)
        report.first, report.last = header.first, header.first - 1
        if path != segment_path(path.parent, header.first):
            look.blame(f"it holds the records from {header.first} on: it was renamed")
        _go_through(look, header)
    except BadHeader as error:
        look.blame(str(error))
    except OSError as error:
        look.blame(f"it cannot be read: {error.strerror or error}")
    return look


def _go_through(look: _Look, header: Header) -> None:
    report, end = look.report, beginning(header)
    with opened(report.file) as descriptor:
        try:
            for step in walk(descriptor, end, report.bytes):
                if step.kind == SEAL:
                    report.sealed = True
                else:
                    end = step.after
                    report.last = end.sequence - 1
                    report.records += len(step.payloads)
            look.end = end
            if not report.sealed:  # a milestone with nothing after it
                report.torn_bytes = report.bytes - end.offset
        except Broken as error:
            offset = error.place.offset
            tail = pread(descriptor, report.bytes - offset, offset)
            reason = "" if report.sealed else damage(tail, error.place)
            if reason or report.sealed:
                record = f"record {error.place.sequence} at offset {offset} is broken: {error}"
                look.blame(f"{record}, and {reason}" if reason else record)
            else:
                report.torn_bytes = report.bytes - end.offset
                look.end = end


def _compare(before: _Look, after: _Look, is_last: bool) -> None:
    """Check that one segment follows the other."""
    header, end = after.header, before.end
    if header is None or end is None:
        return
    if end.sequence < header.first and before.report.sealed:
        after.blame(gap(end.sequence, header.first - 1))
    elif (end.sequence, end.chain) != (header.first, header.chain):
        if before.report.torn_bytes or not before.report.sealed:
            before.blame(f"it was cut at offset {end.offset}, behind record {end.sequence - 1}")
        else:
            after.blame(f"it does not follow {before.report.file.name}")
    elif not before.report.sealed and not (is_last and not after.report.records):
        before.blame("its seal is missing")


def _compare_begin(mark: Mark, looks: list[_Look]) -> None:
    kept = [each for each in looks if each.header and each.header.first >= mark.sequence]
    if not kept or kept[0].report.first > mark.sequence:
        last = kept[0].report.first - 1 if kept else mark.sequence
        (kept or looks)[0].blame(gap(mark.sequence, last))


def _compare_end(mark: Mark, looks: list[_Look]) -> None:
    last, end = looks[-1], looks[-1].end
    if end is None:
        return
    if (end.sequence - 1, end.chain) != (mark.sequence, mark.chain) or last.report.torn_bytes:
        last.blame(
            f"the log was closed behind record {mark.sequence}, and now ends behind record "
            f"{end.sequence - 1}"
        )
