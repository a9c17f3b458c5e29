"""Sealed segments on disk, and the catalogue that lists those that must exist.

00000000000000000001.arrow   the records from 1 on, by columns
00000000000000000001.index   its layout and checksums
catalogue                    all of these that belong to the log
"""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from motet import errors
from motet.errors import LogCorrupted, StorageError
from motet.model import Filter
from motet.runtime.log import Extent, FileLog
from motet.runtime.log.files import remove_file, replace_file, run_module, sync_folder, unreadable
from motet.runtime.log.folder import WAY_OUT
from motet.runtime.pubend.columns import Index, damaged, read_columns, read_index
from motet.runtime.pubend.outline import Grain, OutlineEntry, sealed_entries
from motet.runtime.pubend.reading import RecordSlice
from motet.runtime.pubend.sealing import SealingOutcome, arrow_path, index_path, seal_segment
from motet.runtime.pubend.selection import prepare
from motet.runtime.pubend.state import SealedPart
from motet.runtime.pubend.tables import Room, TableSlice, Wishes, read_tables

SEALING: Final = "motet.runtime.pubend.sealing"
CATALOGUE: Final = "catalogue"
DAMAGED: Final = ".damaged"
"""The suffix of files that were accepted as lost."""
OPEN_INDEXES: Final = 8
CHUNK_BYTES: Final = 1 << 20


class Catalogue(Struct, frozen=True):
    begins: int
    """Records before this one were sealed, and have been removed since."""
    sealed: list[SealedPart]


class FileShelf:
    """`add` and `trim` are called from the thread that owns the log, `read` from any."""

    def __init__(
        self, folder: Path, log: FileLog, purpose: str, *, accept_loss: bool = False
    ) -> None:
        self.given_up: tuple[SealedPart, ...] = ()
        """Parts that were damaged or missing on opening, and were accepted as lost."""
        self._folder = folder
        self._log = log
        self._purpose = purpose
        self._indexes: OrderedDict[int, Index] = OrderedDict()
        catalogue = self._read_catalogue()
        self._begins = catalogue.begins
        self.sealed = tuple(catalogue.sealed)
        self._check_succession()
        if accept_loss:
            self._give_up()
        else:
            for each in self.sealed:
                self._check_presence(each)
        self._sweep()
        log.trim(self.last_sequence)
        if self.sealed:
            prepare()

    @property
    def last_sequence(self) -> int:
        """Records of the log up to this one are sealed here, or were removed from here."""
        return self.sealed[-1].last_sequence if self.sealed else self._begins - 1

    # ── sealing ──────────────────────────────────────────────────────────────────────────

    async def seal(self, extent: Extent) -> SealedPart:
        """Seal in another process. `StorageError` if it fails: then nothing has changed."""
        words = ("-P", "-m", SEALING, extent.path, self._folder, self._purpose)
        code, said, last_words = await run_module(*words)
        try:
            outcome = msgspec.json.decode(said, type=SealingOutcome)
        except msgspec.MsgspecError:
            raise StorageError(
                f"{extent.path} could not be sealed: the process ended with code {code}, "
                f"{last_words or 'without a word'}; it stays as it is"
            ) from None
        if outcome.sealed is None:
            kind = getattr(errors, outcome.error, StorageError)
            raise kind(outcome.text)
        return outcome.sealed

    def seal_here(self, extent: Extent) -> SealedPart:
        """For tools without an event loop."""
        return seal_segment(extent.path, self._folder, self._purpose)

    # ── changes ──────────────────────────────────────────────────────────────────────────

    def add(self, part: SealedPart) -> None:
        """Its files are durable. Its segment is removed once the catalogue lists the part."""
        self.sealed = (*self.sealed, part)
        self._remember()
        self._log.trim(part.last_sequence)

    def trim(self, first: int) -> None:
        """Remove parts with records before `first`."""
        gone = [part for part in self.sealed if part.first_sequence < first]
        self.sealed = self.sealed[len(gone) :]
        self._begins = first
        self._remember()
        if gone:
            paths = [path for part in gone for path in self._paths(part)]
            self._log.then(lambda: self._remove_files(paths))

    def _remember(self) -> None:
        data = _encoded(Catalogue(self._begins, list(self.sealed)))
        self._log.then(lambda: replace_file(self._folder / CATALOGUE, data))

    def _remove_files(self, paths: list[Path]) -> None:
        for path in paths:
            remove_file(path)
        sync_folder(self._folder)

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def read(
        self, part: SealedPart, since: int, upto: int, filter: Filter | None
    ) -> Iterator[RecordSlice]:
        """The matching records of a range of ticks, piece by piece. Raises `FileNotFoundError` if
        the part was removed."""
        with self._gone(part):
            index = self._index(part)
            yield from read_columns(self._paths(part)[0], index, since, upto, filter)

    def tables(
        self,
        part: SealedPart,
        since: int,
        upto: int,
        filter: Filter | None,
        wishes: Wishes,
        room: Room,
    ) -> Iterator[TableSlice]:
        """The same as tables, until there is no room."""
        with self._gone(part):
            index, path = self._index(part), self._paths(part)[0]
            yield from read_tables(path, index, since, upto, filter, wishes, room)

    def entries(
        self, part: SealedPart, since: int, upto: int, grain: Grain
    ) -> Iterator[OutlineEntry]:
        """Its records without their content."""
        with self._gone(part):
            index, path = self._index(part), self._paths(part)[0]
            yield from sealed_entries(path, index, since, upto, grain)

    def kinds(self, part: SealedPart, names: Sequence[str]) -> dict[str, set[str]] | None:
        """The kinds of the values of these attributes; None if the columns do not tell."""
        with self._gone(part):
            index = self._index(part)
        if any(map(index.may_have, names)):
            return None
        found: dict[str, set[str]] = {name: set() for name in names}
        for block in index.blocks:
            for name in names:
                found[name].update(block.columns.get(name, ()))
        return found

    @contextlib.contextmanager
    def _gone(self, part: SealedPart) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if part in self.sealed:
                raise damaged(Path(error.filename), "it is missing") from None
            raise

    def _index(self, part: SealedPart) -> Index:
        known = self._indexes.get(part.first_sequence)
        if known is None:
            known = read_index(self._paths(part)[1], part.index_checksum)
            self._indexes[part.first_sequence] = known
            while len(self._indexes) > OPEN_INDEXES:
                self._indexes.popitem(last=False)
        return known

    def verify(self) -> None:
        """Read every sealed file; raise if one is not as it was written."""
        for part in self.sealed:
            if not part.is_lost:
                self._check_content(part)

    # ── opening ──────────────────────────────────────────────────────────────────────────

    def _paths(self, part: SealedPart) -> tuple[Path, Path]:
        first = part.first_sequence
        return arrow_path(self._folder, first), index_path(self._folder, first)

    def _read_catalogue(self) -> Catalogue:
        path = self._folder / CATALOGUE
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            if self._log.appended:
                raise LogCorrupted(f"{path} is missing; {WAY_OUT}") from None
            empty = Catalogue(1, [])
            replace_file(path, _encoded(empty))
            return empty
        except OSError as error:
            raise unreadable(path, error) from error
        if crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise LogCorrupted(f"{path} is damaged; {WAY_OUT}")
        return msgspec.msgpack.decode(data[:-4], type=Catalogue)

    def _check_succession(self) -> None:
        """There must be no gap between sealed records and records in rows."""
        if self.last_sequence + 1 < self._log.first:
            raise LogCorrupted(
                f"{self._folder}: the records {self.last_sequence + 1} to {self._log.first - 1} "
                f"are neither in the log nor in the {CATALOGUE}; {WAY_OUT}"
            )

    def _give_up(self) -> None:
        kept: list[SealedPart] = []
        for part in self.sealed:
            try:
                if not part.is_lost:
                    self._check_presence(part)
                    self._check_content(part)
                kept.append(part)
            except StorageError:
                kept.append(replace(part, is_lost=True, events=0, size_bytes=0))
                self.given_up = (*self.given_up, part)
        if self.given_up:
            self.sealed = tuple(kept)
            self._remember()
            self._set_aside([path for each in self.given_up for path in self._paths(each)])

    def _set_aside(self, paths: list[Path]) -> None:
        """Keep damaged files: something in them may still be recovered."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                path.rename(path.with_name(path.name + DAMAGED))
        sync_folder(self._folder)

    def _check_presence(self, part: SealedPart) -> None:
        if part.is_lost:
            return
        arrow, index = self._paths(part)
        try:
            size = arrow.stat().st_size
            index_size = index.stat().st_size
        except FileNotFoundError as error:
            raise damaged(Path(error.filename), "it is missing") from None
        if size != part.arrow_bytes:
            raise damaged(arrow, f"it has {size} bytes, not {part.arrow_bytes}")
        if index_size != part.size_bytes - part.arrow_bytes:
            raise damaged(index, f"it has {index_size} bytes")

    def _check_content(self, part: SealedPart) -> None:
        arrow, index = self._paths(part)
        read_index(index, part.index_checksum)
        checksum = 0
        try:
            with arrow.open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    checksum = crc32(data, checksum)
        except OSError as error:
            raise unreadable(arrow, error) from error
        if checksum != part.arrow_checksum:
            raise damaged(arrow, "its checksum is wrong")

    def _sweep(self) -> None:
        """Remove the remains of a crash: files whose rows still exist, or that were trimmed."""
        known = {path.name for part in self.sealed for path in self._paths(part)}
        for path in sorted(self._folder.iterdir()):
            if not re.fullmatch(r"\d{20}\.(arrow|index)", path.name) or path.name in known:
                continue
            first = int(path.name[:20])
            if self._begins <= first <= self.last_sequence:
                raise LogCorrupted(f"{path} is not in the {CATALOGUE}; {WAY_OUT}")
            remove_file(path)


def _encoded(catalogue: Catalogue) -> bytes:
    data = msgspec.msgpack.encode(catalogue)
    return data + crc32(data).to_bytes(4, "little")
