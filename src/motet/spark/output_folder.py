"""Output folders that are valid only when complete. An unfinished one is cleared by the next
writer."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from motet.errors import MisuseError

MARK: Final = "_unfinished"
"""Exists, and is locked, while a folder is filled. Spark ignores names that begin with `_`."""
_BEGUN: Final = b"begun\n"
"""Content of the mark: everything in the folder was written under it and may be removed."""


def check_free(folder: Path, advice: str) -> None:
    """`MisuseError` if this is not a folder, or has files that must not be lost."""
    if folder.exists() and not folder.is_dir():
        raise MisuseError(f"{folder} is not a folder; {advice}")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise _taken(folder, advice)


def _taken(folder: Path, advice: str) -> MisuseError:
    return MisuseError(f"{folder} is not empty; {advice}")


@contextmanager
def filling(folder: Path, advice: str = "name an empty folder") -> Iterator[None]:
    """The folder is empty when the block begins, and complete if the block ends normally."""
    check_free(folder, advice)
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    with locked(mark, f"another process is writing into {folder}; {advice}") as lock:
        if not os.fstat(lock.fileno()).st_size:
            # No writer began under this mark: another one completed the folder after the check
            # above.
            if any(each != mark for each in folder.iterdir()):
                mark.unlink()
                raise _taken(folder, advice)
            lock.write(_BEGUN)
            lock.flush()
        _empty(folder, mark)
        yield
        mark.unlink()


def _empty(folder: Path, mark: Path) -> None:
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each != mark:
            each.unlink()


@contextmanager
def locked(path: Path, problem: str) -> Iterator[BinaryIO]:
    """Hold an exclusive lock on a file, which is created if missing. Raises `MisuseError(problem)`
    if another process holds the lock. Remove the file only within the block."""
    while True:
        with path.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MisuseError(problem) from None
            if _is_at(path, lock):
                yield lock
                return


def _is_at(path: Path, lock: BinaryIO) -> bool:
    """False if the previous holder has just removed the file: the lock is then void."""
    try:
        return os.path.samestat(path.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False
