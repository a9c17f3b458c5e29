"""The folder of a supervised overlay: its lock, its state in `up.json`, the brokers that a command
has chosen for a restart, remains of a failed start.

The process that holds the lock runs the overlay. The lock counts, not the process id in `up.json`:
after a crash the id may belong to another process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from motet.broker.folder.recovery import read_durable
from motet.errors import MisuseError, MotetError
from motet.fleet.fleet import TOPOLOGY

STATE, LOCK, CHOICE = "up.json", "up.lock", "restart.json"


class FolderError(MisuseError):
    """The folder cannot be used for this; `hint` says what to do instead."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


def unwritable(directory: Path, problem: Exception) -> FolderError:
    return FolderError(f"{directory} cannot be written: {problem}", "--dir DIR")


class RunFolder:
    """For the process that runs the overlay."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._generation = 0
        self._lock: TextIO | None = None

    def claim(self) -> None:
        """Lock the folder; raises `FolderError` if another process runs an overlay in it."""
        while self._lock is None:
            self._lock = self._try_lock()
        self.write("starting")

    def _try_lock(self) -> TextIO | None:
        """None if the previous holder has just removed the file: it locks nothing."""
        path = self._directory / LOCK
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = path.open("a", encoding="utf-8")
        except OSError as problem:
            raise unwritable(self._directory, problem) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            pid = _read(self._directory).get("pid", "unknown")
            raise FolderError(
                f"an overlay is running in {self._directory}/ already (pid {pid})",
                "stop it, or choose another --dir",
            ) from None
        if path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
            return lock
        lock.close()
        return None

    def write(self, state: str, error: str = "") -> None:
        path = self._directory / STATE
        fresh = path.with_suffix(".new")
        told = {"pid": os.getpid(), "generation": self._generation, "state": state, "error": error}
        fresh.write_text(json.dumps(told) + "\n", encoding="utf-8")
        fresh.replace(path)

    def advance(self, error: str = "") -> None:
        """A change was made, or was refused with this error."""
        self._generation += 1
        self.write("up", error)

    def chosen(self) -> list[str]:
        """The brokers that a command has chosen for the next restart; empty: all of them."""
        try:
            told = json.loads((self._directory / CHOICE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            told = []
        (self._directory / CHOICE).unlink(missing_ok=True)
        return told if isinstance(told, list) else []

    def release(self) -> None:
        if self._lock is not None:
            (self._directory / CHOICE).unlink(missing_ok=True)
            (self._directory / STATE).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


def running(directory: Path) -> dict[str, Any]:
    """The state written by the process that runs the overlay of a folder; raises `FolderError` if
    there is no such process."""
    none = FolderError(f"no overlay is running in {directory}/", "`motet up --dir DIR` starts one")
    try:
        lock = (directory / LOCK).open(encoding="utf-8")
    except OSError:
        raise none from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            told = _read(directory)
            if told:
                return told
    raise none


@contextlib.contextmanager
def changing(directory: Path) -> Iterator[None]:
    """For a command that changes the overlay of a folder: one at a time, because it recognises the
    end of its own change by the generation."""
    running(directory)
    folder = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FolderError(
                f"another command is changing the overlay in {directory}/", "wait until it ends"
            ) from None
        yield
    finally:
        os.close(folder)


def choose(directory: Path, names: Sequence[str]) -> None:
    """Choose the brokers of the next restart; none: all of them."""
    path = directory / CHOICE
    if not names:
        path.unlink(missing_ok=True)
        return
    try:
        path.write_text(json.dumps(list(names)) + "\n", encoding="utf-8")
    except OSError as problem:
        raise unwritable(directory, problem) from None


def _read(directory: Path) -> dict[str, Any]:
    try:
        told = json.loads((directory / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


class Leftovers:
    """The files of an overlay that could not be started. Create this before any of them: files that
    already exist are kept."""

    def __init__(self, directory: Path, names: Iterable[str]) -> None:
        self._directory = directory
        paths = [directory / name for name in names]
        paths += [path.with_name(f"{path.name}.log") for path in paths]
        paths += [directory / TOPOLOGY, directory / LOCK]
        self._new = [path for path in paths if not path.exists()]
        """The lock is the last: when it is gone, the others are gone, too."""
        above = (directory, *directory.parents)
        self._folders = [folder for folder in above if not folder.exists()]

    def remove(self, problem: Exception) -> str:
        """Remove them, and return a text that says so. The log of a broker is kept if the error
        refers to it, and its folder if it had a client, because it may owe that client events."""
        kept = []
        for path in self._new:
            if not path.exists():
                continue
            if str(path) in str(problem):
                kept.append(f"{path} (the error names it)")
            elif path.is_dir() and _was_used(path):
                kept.append(f"{path} (a client has used it)")
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if self._folders:
            (self._directory / STATE).unlink(missing_ok=True)  # removed in any case, but later
        for folder in self._folders:  # innermost first
            with contextlib.suppress(OSError):
                folder.rmdir()
        said = f"all brokers are stopped, and the files created in {self._directory}/ are removed"
        return said + (f"; kept: {', '.join(kept)}" if kept else "")


def _was_used(folder: Path) -> bool:
    try:
        return read_durable(folder)[0].sessions.issued > 0
    except MotetError:
        return False  # it never listened
