"""Versions of an archive: which files it has, and up to which ticks.

    DIR/_versions/00000012.json    what there is, complete; the newest counts
    DIR/events/day=…/pubend=…/     files, of this version and of a few before it
    DIR/_staging, DIR/_checkpoint  what is under way

A version is written beside, synced, and linked under its number: a link cannot replace, so of two
writers that want the same number one fails, looks again and takes the next. Readers take the files
of one version; files that were replaced stay for a while, for whoever still reads them.
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
"""Files that others have replaced stay for so long: somebody may be reading them."""
STAGING_TIMES: Final = 24
"""What is under way may take so many times longer."""
ATTEMPTS: Final = 100
FORMAT: Final = 1


class ArchiveFile(Struct, frozen=True):
    path: str
    """Below the folder of the archive."""
    day: str
    pubend: str
    rows: int
    size_bytes: int
    first_tick: int
    last_tick: int


class Retired(Struct, frozen=True):
    """A file that others have replaced, and when: somebody may still read it."""

    path: str
    at_s: float


class Version(Struct, frozen=True):
    number: int
    cause: str
    filter: str
    """What the brokers were asked for; nothing: all."""
    columns: tuple[str, ...]
    """Attributes with a column of their own, as `level:int`."""
    since: Mapping[str, int]
    """By pubend, the first tick that the log had when the archive began; others from their
    first."""
    upto: Mapping[str, int]
    """By pubend, the first tick that is not archived."""
    files: tuple[ArchiveFile, ...]
    retired: tuple[Retired, ...] = ()
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
                f"{folder}: an archive is a folder of a file system that driver and executors "
                f"share; its versions rest on links, which object stores do not have"
            )
        if folder.exists() and not folder.is_dir():
            raise MisuseError(f"{folder} is a file: an archive is a folder")
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
            except FileNotFoundError:  # swept since it was listed: there is a newer one
                return self.newest()
        raise MisuseError(f"{self.folder} is no archive: `motet pipeline archive` makes one")

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
                f"{path} is damaged: {problem}; restore it, or remove it to go back to the version "
                f"before, and remove {self.folder / CHECKPOINT} as well"
            ) from None
        if found.format != FORMAT:
            raise StorageError(f"{path} was written by another release (format {found.format})")
        return found

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def begin(self, filter: str, columns: Iterable[str], since: Mapping[str, int]) -> Version:
        """The version that there is, if it is of this filter and these columns; or a first one."""
        self._versions.mkdir(parents=True, exist_ok=True)
        wanted = Version(1, "begin", filter, tuple(columns), dict(since), {}, ())
        if not self.exists and self._publish(wanted):
            return wanted
        found = self.newest()
        self.check(filter, wanted.columns)
        return found

    def check(self, filter: str, columns: Iterable[str]) -> None:
        """`MisuseError` if there is an archive of another filter, or with other columns."""
        if not self.exists:
            return
        found, asked = self.newest(), tuple(columns)
        if found.filter != filter:
            raise MisuseError(
                f"{self.folder} was begun with {_filtered(found.filter)}, not with "
                f"{_filtered(filter)}; go on with that, or take another folder"
            )
        missing = [each for each in found.columns if each not in asked]
        strange = [each for each in asked if each not in found.columns]
        if missing or strange:
            told = [f"{each} is missing" for each in missing]
            told += [f"{each} is new" for each in strange]
            first = _columned(found.columns)
            raise MisuseError(
                f"{self.folder} was begun with {first}; {', '.join(told)}: go on with {first}, or "
                f"take another folder"
            )

    def append(
        self,
        files: Iterable[ArchiveFile],
        upto: Mapping[str, int],
        since: Mapping[str, int] | None = None,
    ) -> Version:
        """More events, up to these ticks. `since`: where the archive ended for who made them."""
        added = tuple(files)

        def grown(old: Version) -> Version:
            if since is not None and dict(old.upto) != dict(since):
                raise StorageError(
                    f"another job archives into {self.folder} at the same time; this one ends"
                )
            # A batch may end before the archive does: without a checkpoint it begins where no
            # transaction is torn, which may be earlier.
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
            raise StorageError(
                "files that replace others have another number of rows; nothing done"
            )

        def replaced(before: Version) -> Version:
            if not gone <= set(before.files):
                raise StorageError("somebody else has compacted these files meanwhile; try again")
            files = (*(each for each in before.files if each not in gone), *come)
            retired = (*before.retired, *(Retired(each.path, now_s) for each in sorted_gone))
            return msgspec.structs.replace(before, cause="compaction", files=files, retired=retired)

        return self._change(replaced)

    def _change(self, changed: Callable[[Version], Version]) -> Version:
        for _ in range(ATTEMPTS):
            old = self.newest()
            new = msgspec.structs.replace(changed(old), number=old.number + 1)
            if self._publish(new):
                self._prune(new.number)
                return new
        raise StorageError(f"{self.folder}: others write versions all the time; is that meant?")

    def _prune(self, newest: int) -> None:
        """Old versions go, but not the numbers of young ones: a writer that is slow would find its
        own number free again, and take it behind the others."""
        settled_s = time.time() - SETTLED_S
        for number in self._numbers():
            path = self._path(number)
            with contextlib.suppress(FileNotFoundError):  # others prune, too
                if number <= newest - KEPT_VERSIONS and path.stat().st_mtime <= settled_s:
                    path.unlink()

    def _publish(self, version: Version) -> bool:
        """On disk, and under its number, unless that is taken."""
        beside = self._versions / f".{uuid.uuid4().hex}.json"
        try:
            write_durably(beside, msgspec.json.encode(version))
            os.link(beside, self._path(version.number))
        except FileExistsError:
            return False
        finally:
            beside.unlink(missing_ok=True)  # the disk may be full
        sync_folder(self._versions)
        return True

    # ── tidying ──────────────────────────────────────────────────────────────────────────

    def sweep(self, grace_s: float = GRACE_S, now_s: float | None = None) -> int:
        """Remove files that were replaced long ago, and those that no version ever named, because
        their writer died; how many."""
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
        # Asked for again, behind the list: a writer may have named some of them meanwhile.
        version = self.newest()
        named = {each.path for each in version.files} | {each.path for each in version.retired}
        strays = [path for path in old if str(path.relative_to(self.folder)) not in named]
        for path in strays:
            path.unlink(missing_ok=True)
        for folder in folders:
            with contextlib.suppress(OSError):  # something is in it, or it has gone meanwhile
                folder.rmdir()
        return len(over) + len(strays)

    def _old_files(self, below: str, limit_s: float) -> Iterator[Path]:
        """Others move and remove files and folders meanwhile: what has vanished is not there."""
        for folder, _, names in os.walk(self.folder / below):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime <= limit_s:
                        yield path

    def _old_folders(self, limit_s: float) -> list[Path]:
        """Where files were staged, the deepest first."""
        found = []
        for folder, folders, _ in os.walk(self.folder / STAGING):
            for name in folders:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime <= limit_s:
                        found.append(path)
        return sorted(found, key=lambda each: (-len(each.parts), each))


def is_archive(folder: Path) -> bool:
    """Its versions say which files count: so it is also one without any event, and one whose
    versions are lost, since nobody knows what its files are then."""
    versions = folder / VERSIONS
    return versions.is_dir() and ((folder / EVENTS).is_dir() or bool(_numbers_in(versions)))


def _numbers_in(versions: Path) -> list[int]:
    """What is called otherwise, a copy perhaps, is no version."""
    if not versions.is_dir():
        return []
    found = ((path.name, path.name.removesuffix(".json")) for path in versions.iterdir())
    return [int(stem) for name, stem in found if stem.isdecimal() and name == _name(int(stem))]


def _name(number: int) -> str:
    return f"{number:08d}.json"


def _without(version: Version, over: set[str]) -> tuple[Retired, ...]:
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
