"""Versions of an archive: its files, and up to which ticks.

    DIR/_versions/00000012.json    a complete list of files; the newest version is current
    DIR/events/day=…/pubend=…/     files of this version and of a few earlier ones
    DIR/_staging, DIR/_checkpoint  work in progress

A version is written to a temporary file, synced, and hard-linked under its number. A link cannot
replace a file, so of two writers with the same number one fails, looks again and takes the next.
Readers use the files of one version; replaced files stay for a while, for earlier readers.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from motet.errors import MisuseError, StorageError

VERSIONS: Final = "_versions"
EVENTS: Final = "events"
STAGING: Final = "_staging"
CHECKPOINT: Final = "_checkpoint"
KEPT_VERSIONS: Final = 10
SETTLED_S: Final = 600.0
GRACE_S: Final = 3600.0
"""How long replaced files stay: readers may still use them."""
STAGING_TIMES: Final = 24
"""Work in progress may take this many times longer."""
ATTEMPTS: Final = 100
FORMAT: Final = 1


class ArchiveFile(Struct, frozen=True):
    path: str
    """Relative to the folder of the archive."""
    day: str
    pubend: str
    rows: int
    size_bytes: int
    first_tick: int
    last_tick: int


class RetiredFile(Struct, frozen=True):
    """A file that was replaced at this time; a reader may still use it."""

    path: str
    at_s: float


class Version(Struct, frozen=True):
    number: int
    cause: str
    filter: str
    """The filter that brokers applied; empty: none."""
    columns: tuple[str, ...]
    """Attributes with a column of their own, as `level:int`."""
    since: Mapping[str, int]
    """By pubend, the first tick that the log had when the archive began; of later pubends, all."""
    upto: Mapping[str, int]
    """By pubend, the first tick that is not archived."""
    files: tuple[ArchiveFile, ...]
    retired: tuple[RetiredFile, ...] = ()
    format: int = FORMAT

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)


class Manifest:
    def __init__(self, folder: Path) -> None:
        if "://" in str(folder) or str(folder).startswith(("hdfs:", "s3:", "s3a:", "gs:")):
            raise MisuseError(
                f"{folder}: an archive must be in a file system that driver and executors share; "
                f"its versions need hard links, which object stores do not have"
            )
        if folder.exists() and not folder.is_dir():
            raise MisuseError(f"{folder} is a file; name a folder for the archive")
        self.folder = folder.absolute()
        self._versions = self.folder / VERSIONS

    # ── reading ──────────────────────────────────────────────────────────────────────────

    @property
    def exists(self) -> bool:
        return any(self._numbers())

    def newest(self) -> Version:
        for number in sorted(self._numbers(), reverse=True):
            try:
                return self._load(number)
            except FileNotFoundError:  # removed since it was listed: there is a newer one
                return self.newest()
        raise MisuseError(f"{self.folder} is not an archive; `motet pipeline archive` creates one")

    def _numbers(self) -> list[int]:
        return _numbers_in(self._versions)

    def _path(self, number: int) -> Path:
        return self._versions / _name(number)

    def _load(self, number: int) -> Version:
        path = self._path(number)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Version)
        except msgspec.DecodeError as problem:
            raise StorageError(
                f"{path} is damaged: {problem}; restore it, or go back to the previous version: "
                f"remove it and {self.folder / CHECKPOINT}"
            ) from None
        if found.format != FORMAT:
            raise StorageError(f"{path} was written by another release (format {found.format})")
        return found

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def begin(self, filter: str, columns: Iterable[str], since: Mapping[str, int]) -> Version:
        """The newest version, checked against filter and columns; or a first one."""
        self._versions.mkdir(parents=True, exist_ok=True)
        wanted = Version(1, "begin", filter, tuple(columns), dict(since), {}, ())
        if not self.exists and self._publish(wanted):
            return wanted
        found = self.newest()
        self.check(filter, wanted.columns)
        return found

    def check(self, filter: str, columns: Iterable[str]) -> None:
        """`MisuseError` if the archive has another filter or other columns."""
        if not self.exists:
            return
        found, asked = self.newest(), tuple(columns)
        if found.filter != filter:
            raise MisuseError(
                f"{self.folder} was begun with {_filtered(found.filter)}, not with "
                f"{_filtered(filter)}; continue with that, or use another folder"
            )
        missing = [each for each in found.columns if each not in asked]
        strange = [each for each in asked if each not in found.columns]
        if missing or strange:
            told = [f"{each} is missing" for each in missing]
            told += [f"{each} is new" for each in strange]
            first = _columned(found.columns)
            raise MisuseError(
                f"{self.folder} was begun with {first}; {', '.join(told)}: continue with {first}, "
                f"or use another folder"
            )

    def append(
        self,
        files: Iterable[ArchiveFile],
        upto: Mapping[str, int],
        since: Mapping[str, int] | None = None,
    ) -> Version:
        """Add events up to these ticks. `since`: where the archive ended when they were read."""
        added = tuple(files)

        def grown(old: Version) -> Version:
            if since is not None and dict(old.upto) != dict(since):
                raise StorageError(f"another job is archiving into {self.folder}; this job stops")
            # A batch may end before the archive does: without a checkpoint it begins where no
            # transaction is split, which may be earlier.
            ends = {name: max(tick, old.upto.get(name, 0)) for name, tick in upto.items()}
            return msgspec.structs.replace(
                old, cause="append", upto={**old.upto, **ends}, files=(*old.files, *added)
            )

        return self._change(grown)

    def replace(self, old: Iterable[ArchiveFile], new: Iterable[ArchiveFile]) -> Version:
        """The same events in other files."""
        gone, come, now_s = frozenset(old), tuple(new), time.time()
        sorted_gone = sorted(gone, key=lambda each: each.path)
        if sum(each.rows for each in gone) != sum(each.rows for each in come):
            raise StorageError("compaction changed the number of rows, so its files are not used")

        def replaced(before: Version) -> Version:
            if not gone <= set(before.files):
                raise StorageError("another process has compacted these files already; try again")
            files = (*(each for each in before.files if each not in gone), *come)
            retired = (*before.retired, *(RetiredFile(each.path, now_s) for each in sorted_gone))
            return msgspec.structs.replace(before, cause="compaction", files=files, retired=retired)

        return self._change(replaced)

    def _change(self, changed: Callable[[Version], Version]) -> Version:
        for _ in range(ATTEMPTS):
            old = self.newest()
            new = msgspec.structs.replace(changed(old), number=old.number + 1)
            if self._publish(new):
                self._prune(new.number)
                return new
        raise StorageError(f"{self.folder}: other jobs keep writing versions; stop all but one job")

    def _prune(self, newest: int) -> None:
        """Remove old versions, but no recent ones: a slow writer would find its own number free
        again, and use it for a version older than the newest."""
        settled_s = time.time() - SETTLED_S
        for number in self._numbers():
            path = self._path(number)
            with contextlib.suppress(FileNotFoundError):  # other processes prune, too
                if number <= newest - KEPT_VERSIONS and path.stat().st_mtime <= settled_s:
                    path.unlink()

    def _publish(self, version: Version) -> bool:
        """Write a version durably under its number; False if that is taken."""
        beside = self._versions / f".{uuid.uuid4().hex}.json"
        try:
            write_durably(beside, msgspec.json.encode(version))
            os.link(beside, self._path(version.number))
        except FileExistsError:
            return False
        finally:
            beside.unlink(missing_ok=True)  # also if the disk is full
        sync_folder(self._versions)
        return True

    # ── tidying ──────────────────────────────────────────────────────────────────────────

    def sweep(self, grace_s: float = GRACE_S, now_s: float | None = None) -> int:
        """Remove files that were replaced long ago, and files that no version ever named because
        their writer died. Returns their number."""
        before_s = (time.time() if now_s is None else now_s) - grace_s
        version = self.newest()
        over = {each.path for each in version.retired if each.at_s <= before_s}
        for name in over:
            (self.folder / name).unlink(missing_ok=True)
        if over:
            self._change(lambda old: msgspec.structs.replace(old, retired=_without(old, over)))
        stale_s = before_s - STAGING_TIMES * grace_s
        old = [*self._old_files(EVENTS, before_s), *self._old_files(STAGING, stale_s)]
        old += [each for each in self._old_files(VERSIONS, before_s) if each.name[0] == "."]
        folders = self._old_folders(stale_s)
        # Read again after listing: a writer may have named some of them meanwhile.
        version = self.newest()
        named = {each.path for each in version.files} | {each.path for each in version.retired}
        strays = [path for path in old if str(path.relative_to(self.folder)) not in named]
        for path in strays:
            path.unlink(missing_ok=True)
        for folder in folders:
            with contextlib.suppress(OSError):  # not empty, or already removed
                folder.rmdir()
        return len(over) + len(strays)

    def _old_files(self, below: str, limit_s: float) -> Iterator[Path]:
        """Other processes may move or remove files meanwhile: vanished ones are skipped."""
        for folder, _, names in os.walk(self.folder / below):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime <= limit_s:
                        yield path

    def _old_folders(self, limit_s: float) -> list[Path]:
        """Folders in staging, the deepest first."""
        found = []
        for folder, folders, _ in os.walk(self.folder / STAGING):
            for name in folders:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime <= limit_s:
                        found.append(path)
        return sorted(found, key=lambda each: (-len(each.parts), each))


def is_archive(folder: Path) -> bool:
    """True also for an archive without events, and for one whose versions are lost: which of its
    files are valid is then unknown."""
    versions = folder / VERSIONS
    return versions.is_dir() and ((folder / EVENTS).is_dir() or bool(_numbers_in(versions)))


def _numbers_in(versions: Path) -> list[int]:
    """Files with other names, such as copies, are not versions."""
    if not versions.is_dir():
        return []
    found = ((path.name, path.name.removesuffix(".json")) for path in versions.iterdir())
    return [int(stem) for name, stem in found if stem.isdecimal() and name == _name(int(stem))]


def _name(number: int) -> str:
    return f"{number:08d}.json"


def _without(version: Version, over: set[str]) -> tuple[RetiredFile, ...]:
    return tuple(each for each in version.retired if each.path not in over)


def write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _filtered(text: str) -> str:
    return f"the filter {text!r}" if text else "no filter"


def _columned(columns: Sequence[str]) -> str:
    return f"`columns={','.join(columns)}`" if columns else "no `columns`"
