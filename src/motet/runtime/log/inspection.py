"""What is in a folder, damaged or not: for tools that look and never touch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from motet.errors import StorageError
from motet.runtime.log.files import Mark, usable
from motet.runtime.log.folder import BEGINS, CLOSED, gap, read_header, segment_files, segment_path
from motet.runtime.log.layout import SEAL, BadHeader, Header
from motet.runtime.log.scan import Broken, Place, beginning, pread, walk
from motet.runtime.log.tail import damage


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
    end: Place | None = None
    """Behind the last record, before the seal; None if the file is damaged."""

    def blame(self, problem: str) -> None:
        """The first problem explains most of the others."""
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
    descriptor = os.open(report.file, os.O_RDONLY)
    try:
        for step in walk(descriptor, end, report.bytes):
            if step.kind == SEAL:
                report.sealed = True
            else:
                end = step.after
                report.last = end.sequence - 1
                report.records += len(step.payloads)
        look.end = end
        if not report.sealed:  # a milestone that nothing came behind
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
    finally:
        os.close(descriptor)


def _compare(before: _Look, after: _Look, is_last: bool) -> None:
    """Does one segment follow the other?"""
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
