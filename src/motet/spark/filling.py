"""Folders that are filled from nothing, and only then are of use. One that somebody has begun to
fill, and did not finish, is emptied by who comes next."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from motet.errors import MisuseError

MARK: Final = "_unfinished"
"""Is there, and locked, while a folder is filled. Spark passes over files whose names begin so."""


def check_free(folder: Path, advice: str) -> None:
    """`MisuseError` if a folder has something in it that must not be lost, or is none."""
    if folder.exists() and not folder.is_dir():
        raise MisuseError(f"{folder} is not a folder; {advice}")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise MisuseError(f"{folder} has something in it already; {advice}")


@contextmanager
def filling(folder: Path, advice: str = "name an empty folder") -> Iterator[None]:
    """It is empty at the beginning of the block, and finished if that comes to its end."""
    check_free(folder, advice)
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    with mark.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MisuseError(f"somebody else fills {folder} now; {advice}") from None
        for each in folder.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each != mark:
                each.unlink()
        yield
        mark.unlink()
