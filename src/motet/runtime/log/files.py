"""Syncs, renames and small marks that survive a power failure."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from motet.errors import DiskFailed, LogCorrupted, StorageError

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
    errno.ENOENT: "somebody has removed it; leave the folder alone",
}
"""What can be done about a write that failed, by the reason that the system gives."""

NEW = ".new"
"""The ending of a file that is not finished. Nobody reads it; opening removes it."""


class Mark(NamedTuple):
    """A place in the log, remembered in a small file beside the segments."""

    sequence: int
    chain: int

    def write(self, path: Path) -> None:
        text = f"motet log mark {self.sequence} {self.chain}\n".encode()
        replace_file(path, text + b"%08x\n" % crc32(text))

    @staticmethod
    def read(path: Path) -> Mark | None:
        """None if there is no such mark."""
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
    """One write, unless the system takes it in pieces."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


def sync_folder(path: Path) -> None:
    """What was created, renamed or removed in a folder stays so after a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Put a file there whole, or not at all."""
    new = path.with_name(path.name + NEW)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
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
    """Errors of the operating system, said clearly."""
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
