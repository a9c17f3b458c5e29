"""Folders that are filled from nothing, and only then are of use. One that somebody has begun to
fill, and did not finish, is emptied by who comes next."""

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
"""Is there, and locked, while a folder is filled. Spark passes over files whose names begin so."""
_BEGUN: Final = b"begun\n"
"""In the mark: all that is in the folder was put there under it, and may be removed."""


def check_free(folder: Path, advice: str) -> None:
    """`MisuseError` if a folder has something in it that must not be lost, or is none."""
    if folder.exists() and not folder.is_dir():
        raise MisuseError(f"{folder} is not a folder; {advice}")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise _taken(folder, advice)


def _taken(folder: Path, advice: str) -> MisuseError:
    return MisuseError(f"{folder} has something in it already; {advice}")


@contextmanager
def filling(folder: Path, advice: str = "name an empty folder") -> Iterator[None]:
    """It is empty at the beginning of the block, and finished if that comes to its end."""
    check_free(folder, advice)
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    with locked(mark, f"somebody else fills {folder} now; {advice}") as lock:
        if not os.fstat(lock.fileno()).st_size:
            # Nobody has begun under this mark: what is here was finished since we looked.
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
    """A file that is there, and nobody else's during the block; a new one if there is none.
    `MisuseError` with this problem if somebody has it. Who removes it does that in the block."""
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
    """Else whoever had it has just removed it: then it locks nothing."""
    try:
        return os.path.samestat(path.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False
