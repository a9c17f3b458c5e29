"""Staged rows of sinks in files: one file per attempt, appended to piece by piece.

    FOLDER/<job>/<epoch>-<partition>-<attempt>.rows      see decision 29

A piece is a head (index, count, length, checksum) and the bodies of its events, one after the
other. An incomplete tail is cut when the attempt continues, as if it had never arrived. Nothing is
guaranteed before `seal`; after it, `check` finds all rows, or reports that they are lost.

Everything here is called by one thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Raw

from motet.errors import LogCorrupted, ProtocolError, StagingLost, UnavailableError
from motet.protocol.sinks.messages import Attempt, StagedPart
from motet.protocol.sinks.state import Batch, StagedBlock
from motet.runtime.log.files import disk_failed, opened, remove_file, sync_folder, write_all
from motet.runtime.pubend.records import packed

HEAD: Final = Struct(">IIII")
SUFFIX: Final = ".rows"
LEAST_FREE: Final = 0.05
"""Nothing more is staged if less of the disk is free: the log needs the rest."""
LONGEST_BYTES: Final = 16 << 20
"""The maximum length of a piece, because a piece arrives in one frame."""
MOST_OPEN: Final = 4096
"""The number of attempts whose place is cached; the place of any other is read from its file."""

_bodies: Final = msgspec.msgpack.Decoder(list[Raw]).decode


class StagedPlace(NamedTuple):
    """How far a file has been written."""

    pieces: int = 0
    rows: int = 0
    size_bytes: int = 0
    checksum: int = 0

    def behind(self, count: int, head: bytes, checksum: int) -> StagedPlace:
        length = HEAD.unpack(head)[2]
        size = self.size_bytes + HEAD.size + length
        chained = crc32(checksum.to_bytes(4, "big"), self.checksum)
        return StagedPlace(self.pieces + 1, self.rows + count, size, chained)


class StagedPiece(NamedTuple):
    rows: int
    data: bytes
    place: StagedPlace
    """The place after this piece."""

    @property
    def bodies(self) -> list[Raw]:
        return _bodies(packed(self.rows, self.data))


class Staging:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Attempt, StagedPlace] = {}
        self._synced: set[Path] = set()
        """Folders whose directory entries are durable."""
        self._reading: tuple[str, int, Iterator[StagedPiece]] | None = None
        """The block that is being copied, the next row, and the pieces from there."""

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def add(self, attempt: Attempt, index: int, bodies: list[Raw]) -> None:
        """Append a piece; a piece that is already there changes nothing. It is not durable yet."""
        place = self._place(attempt)
        if index < place.pieces:
            return
        if index > place.pieces:
            raise StagingLost(
                f"piece {index} of attempt {attempt.name} has come, but only {place.pieces} before "
                "it are here: its broker was restarted, and lost the rest"
            )
        path = self._path(attempt.sink, attempt.job, file_name(attempt))
        data = b"".join(bodies)
        checksum = crc32(data)
        head = HEAD.pack(index, len(bodies), len(data), checksum)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._check_room()
            flags = os.O_WRONLY | os.O_CREAT | (0 if index else os.O_TRUNC)
            with opened(path, flags) as descriptor:
                os.lseek(descriptor, place.size_bytes, os.SEEK_SET)
                write_all(descriptor, head + data)
        except OSError as problem:
            raise UnavailableError(f"rows cannot be staged in {path}: {problem}") from problem
        self._remember(attempt, place.behind(len(bodies), head, checksum))

    def seal(self, attempt: Attempt, pieces: int) -> StagedPart:
        """End an attempt and make all of its pieces durable."""
        place = self._place(attempt)
        if place.pieces != pieces:
            raise StagingLost(
                f"attempt {attempt.name} has sent {pieces} pieces, and {place.pieces} are here"
            )
        path = self._path(attempt.sink, attempt.job, file_name(attempt))
        if pieces:
            try:
                with opened(path, os.O_RDWR) as descriptor:
                    os.ftruncate(descriptor, place.size_bytes)
                    os.fsync(descriptor)
                sync_folder(path.parent)
                if path.parent not in self._synced:
                    for folder in (self._folder, self._folder.parent):
                        sync_folder(folder)
                    self._synced.add(path.parent)
            except FileNotFoundError:
                self._places.pop(attempt, None)
                raise StagingLost(f"{path} is missing") from None
            except OSError as problem:
                raise disk_failed(path, problem, "nothing of it was acknowledged") from problem
        self._places.pop(attempt, None)
        return StagedPart(attempt.partition, attempt.name, *place[1:])

    def _place(self, attempt: Attempt) -> StagedPlace:
        """How far an attempt has come; read from its file if it is not cached."""
        known = self._places.get(attempt)
        if known is None:
            known = StagedPlace()
            path = self._path(attempt.sink, attempt.job, file_name(attempt))
            with contextlib.suppress(FileNotFoundError):
                for piece in read_pieces(path):
                    known = piece.place
            self._remember(attempt, known)
        return known

    def _remember(self, attempt: Attempt, place: StagedPlace) -> None:
        self._places[attempt] = place
        if len(self._places) > MOST_OPEN:
            del self._places[next(iter(self._places))]

    def _check_room(self) -> None:
        disk = shutil.disk_usage(self._folder)
        if disk.free < LEAST_FREE * disk.total:
            raise UnavailableError(
                f"{self._folder}: only {disk.free >> 20} MiB of the disk are free, which the log "
                "needs; make room"
            )

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def check(self, batch: Batch, parts: Iterable[StagedPart]) -> None:
        """Raise `StagingLost` unless all parts are there as they were sealed."""
        for part in parts:
            place = StagedPlace()
            path = self._path(batch.sink, batch.job, part_name(batch.epoch, part))
            if part.rows:
                try:
                    for piece in read_pieces(path):
                        place = piece.place
                except OSError as problem:
                    raise StagingLost(
                        f"{path}, with {part.rows} staged rows, cannot be read: {problem}; nothing "
                        "of the batch was committed: write it again"
                    ) from None
            if place[1:] != part_sum(part):
                raise StagingLost(
                    f"{path} is damaged: of {part.rows} rows, {place.rows} are whole; nothing "
                    "of the batch was committed: write it again"
                )

    def rows(self, block: StagedBlock, at: int) -> list[Raw]:
        """The next rows of a committed block, starting at row `at`."""
        if self._reading is None or self._reading[:2] != (block.tx, at):
            self._reading = (block.tx, at, self._pieces_from(block, at))
        piece = next(self._reading[2])
        self._reading = (block.tx, at + piece.rows, self._reading[2])
        return piece.bodies

    def _pieces_from(self, block: StagedBlock, at: int) -> Iterator[StagedPiece]:
        skipped = at
        for part in block.parts:
            if part.rows <= skipped:
                skipped -= part.rows
                continue
            path = self._path(block.client, block.job, part_name(block.epoch, part))
            place = StagedPlace()
            try:
                for piece in read_pieces(path):
                    place = piece.place
                    if place.rows > part.rows:
                        break
                    if skipped >= piece.rows:
                        skipped -= piece.rows
                    elif skipped:
                        rest = piece.bodies[skipped:]
                        yield StagedPiece(len(rest), b"".join(rest), place)
                        skipped = 0
                    else:
                        yield piece
            except OSError as problem:
                raise _damaged(path, str(problem)) from problem
            if place[1:] != part_sum(part):
                raise _damaged(path, f"{place.rows} of {part.rows} rows are whole")

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def drop(self, batch: Batch, before: bool = False) -> int:
        """Remove the files of a batch, or with `before` of all up to it; return their number."""
        folder = self._path(batch.sink, batch.job, "").parent
        count = 0
        for path in _listed(folder):
            epoch = int(path.name.partition("-")[0])
            if epoch == batch.epoch or (before and epoch < batch.epoch):
                remove_file(path)
                count += 1
        self._remove(folder)
        dead = [a for a in self._places if (a.sink, a.job) == batch[:2] and a.epoch <= batch.epoch]
        for attempt in dead:
            if attempt.epoch == batch.epoch or before:
                del self._places[attempt]
        return count

    def sweep(self, needed: Iterable[Batch], before_s: float) -> int:
        """Remove files that are unneeded and unchanged since `before_s`; return their number."""
        kept = {(self._path(b.sink, b.job, "").parent, b.epoch) for b in needed}
        count = 0
        for folder in sorted(self._folder.iterdir()) if self._folder.exists() else ():
            for path in _listed(folder):
                epoch = int(path.name.partition("-")[0])
                with contextlib.suppress(FileNotFoundError):
                    if (folder, epoch) not in kept and path.stat().st_mtime < before_s:
                        remove_file(path)
                        count += 1
            self._remove(folder)
        return count

    def _remove(self, folder: Path) -> None:
        """Remove the folder if it is empty."""
        with contextlib.suppress(OSError):
            folder.rmdir()
            self._synced.discard(folder)

    def describe(self) -> dict[str, int]:
        files = [p for f in self._folder.glob("*") for p in _listed(f)]
        return {"files": len(files), "bytes": sum(p.stat().st_size for p in files if p.exists())}

    def _path(self, sink: str, job: str, name: str) -> Path:
        """Clients choose these names, so only a hash of them gets into a path."""
        return self._folder / _digest(sink, job) / (name or "-")


def file_name(attempt: Attempt) -> str:
    return f"{attempt.epoch}-{attempt.partition}-{_digest(attempt.name)}{SUFFIX}"


def part_name(epoch: int, part: StagedPart) -> str:
    return f"{epoch}-{part.partition}-{_digest(part.name)}{SUFFIX}"


def part_sum(part: StagedPart) -> tuple[int, int, int]:
    return (part.rows, part.size_bytes, part.checksum)


def read_pieces(path: Path) -> Iterator[StagedPiece]:
    """The pieces of a file up to the first incomplete or damaged one."""
    place = StagedPlace()
    with path.open("rb") as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            index, count, length, checksum = HEAD.unpack(head)
            if index != place.pieces or length > LONGEST_BYTES:
                return
            data = file.read(length)
            if len(data) < length or crc32(data) != checksum:
                return
            place = place.behind(count, head, checksum)
            yield StagedPiece(count, data, place)


def age_before_s(lease_s: float) -> float:
    return time.time() - lease_s


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob(f"[0-9]*-*{SUFFIX}"))
    except OSError:
        return []


def _digest(*names: str) -> str:
    return sha256(msgspec.msgpack.encode(names)).hexdigest()[:32]


def _damaged(path: Path, what: str) -> LogCorrupted:
    return LogCorrupted(
        f"{path} is damaged ({what}), and its rows are committed, but not all in the log yet; "
        "restore it from a backup"
    )


def check_attempt(attempt: Attempt, most_chars: int) -> None:
    names = (attempt.sink, attempt.job, attempt.name)
    if not all(0 < len(name) <= most_chars for name in names):
        raise ProtocolError(f"sink, job and attempt have names of 1 to {most_chars} characters")
    if attempt.epoch < 0 or attempt.partition < 0:
        raise ProtocolError("epochs and partitions count from 0")
