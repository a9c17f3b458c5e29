"""Who keeps an overlay up in a folder, and how far it is: `up.json` and a lock beside it.

Whoever holds the lock runs the overlay. The lock is what counts, not the process id: after a
crash the id may belong to somebody else.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, TextIO

from motet.cli.ending import Misuse

STATE, LOCK = "up.json", "up.lock"


class Marker:
    """Of the process that runs the overlay."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._generation = 0
        self._lock: TextIO | None = None

    def claim(self) -> None:
        """`Misuse` if another process runs an overlay in this folder."""
        while self._lock is None:
            self._lock = self._try_lock()
        self.write("starting")

    def _try_lock(self) -> TextIO | None:
        """None if whoever had it has just removed the file: then it locks nothing."""
        path = self._directory / LOCK
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = path.open("a", encoding="utf-8")
        except OSError as problem:
            raise Misuse(f"{self._directory} cannot be written: {problem}", "--dir DIR") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            pid = _read(self._directory).get("pid", "unknown")
            raise Misuse(
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
        told = {
            "pid": os.getpid(),
            "generation": self._generation,
            "state": state,
            "error": error,
        }
        fresh.write_text(json.dumps(told) + "\n", encoding="utf-8")
        fresh.replace(path)

    def advance(self, error: str = "") -> None:
        """Something was done, or refused for this reason."""
        self._generation += 1
        self.write("up", error)

    def release(self) -> None:
        if self._lock is not None:
            (self._directory / STATE).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


def running(directory: Path) -> dict[str, Any]:
    """What the process that runs the overlay of a folder says; `Misuse` if there is none."""
    nobody = Misuse(f"no overlay is running in {directory}/", "`motet up --dir DIR` starts one")
    try:
        lock = (directory / LOCK).open(encoding="utf-8")
    except OSError:
        raise nobody from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            told = _read(directory)
            if told:
                return told
    raise nobody


def _read(directory: Path) -> dict[str, Any]:
    try:
        told = json.loads((directory / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
