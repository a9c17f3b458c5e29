"""Syncs, renames and small marks that survive a power failure; consistent reads of files that
change; work on files in another process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import NamedTuple, TypeVar
from zlib import crc32

from motet.errors import DiskFailed, LogCorrupted, StorageError

T = TypeVar("T")

LOOKS = 10
"""The number of attempts to read files that change at the same time."""

_ROOM = "make room on the disk or replace it"
_DESCRIPTORS = "allow more open files (`ulimit -n`), or let fewer clients connect"
_RIGHTS = "give this user the right to write there"

WAYS_OUT = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EIO: "replace the disk",
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
    errno.EROFS: "mount the disk writable; if the system did that to it by itself, replace it",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOENT: "it was removed; do not change the folder of a broker",
}
"""What to do about a failed write, by the system's error number."""

NEW = ".new"
"""The suffix of an unfinished file. It is never read, and opening the log removes it."""


class Mark(NamedTuple):
    """A place in the log, stored in a small file beside the segments."""

    sequence: int
    chain: int

    def write(self, path: Path) -> None:
        text = f"motet log mark {self.sequence} {self.chain}\n".encode()
        replace_file(path, text + b"%08x\n" % crc32(text))

    @staticmethod
    def read(path: Path) -> Mark | None:
        """The mark, or None if the file does not exist."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        text, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
        words = text.split()
        if checksum != b"%08x" % crc32(text + b"\n") or len(words) != 5:
            raise LogCorrupted(f"{path} is damaged; restore the folder from a backup")
        return Mark(int(words[3]), int(words[4]))


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data: one write, unless the system takes it in pieces."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """The descriptor of a file, closed at the end of the block."""
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make created, renamed and removed entries of a folder survive a power failure."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    new = path.with_name(path.name + NEW)
    with opened(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_all(descriptor, data)
        os.fsync(descriptor)
    os.rename(new, path)
    sync_folder(path.parent)


def remove_file(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def disk_failed(path: Path, error: OSError, kept: str) -> DiskFailed:
    reason = error.strerror or str(error)
    way_out = WAYS_OUT.get(error.errno or 0, "see to the disk")
    return DiskFailed(
        f"{path} could not be written: {reason}; {kept}. Nothing more is written: {way_out}, "
        f"then start again"
    )


def unreadable(path: Path, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    return StorageError(f"{path} cannot be read: {reason}; check the disk, or use a backup")


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into clear ones."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(
            f"{error.filename or path} does not exist or cannot be created; name another one"
        ) from error
    except NotADirectoryError as error:
        raise StorageError(f"{path} is not a folder; name another one") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"{error.filename or path} cannot be used: {reason}; give this user the right to "
            f"write there, or name another folder"
        ) from error


def listing(*folders: Path) -> dict[str, tuple[int, int]]:
    """All files with their sizes and times; any change to the folders shows in it."""
    found = {}
    for folder in folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if entry.is_file():
                        found[entry.path] = (status.st_size, status.st_mtime_ns)
    return found


def steadily(look: Callable[[], T], *folders: Path) -> T:
    """The result of `look`, which reads files. A writer may change them at the same time: then it
    is tried again."""
    tries = LOOKS
    while True:
        tries, before = tries - 1, listing(*folders)
        try:
            return look()
        except (StorageError, FileNotFoundError):
            if not tries or listing(*folders) == before:
                raise


async def run_module(*words: str | Path) -> tuple[int, bytes, str]:
    """Work on files in another process, `python WORDS…`: returns its exit code, its output, and the
    last line of its errors."""
    # Not through the event loop: that forks, which copies the page tables of all our memory and
    # blocks the loop meanwhile. `Popen` shares the memory until the child executes.
    process = Popen((sys.executable, *words), stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        printed, complaint = await asyncio.to_thread(process.communicate)
    except BaseException:
        process.kill()
        raise
    last_words = complaint.decode(errors="replace").strip().rpartition("\n")[2]
    return process.returncode, printed, last_words
