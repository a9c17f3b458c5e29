"""What an overlay that cannot be started leaves in its folder: nothing that was not there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from motet.broker.recovery import read_durable
from motet.cli.running import LOCK, STATE
from motet.errors import MotetError

TOPOLOGY = "topology.toml"


class Traces:
    """Made before anything else is, so that it knows what was there."""

    def __init__(self, directory: Path, names: Iterable[str]) -> None:
        self._directory = directory
        paths = [directory / name for name in names]
        paths += [path.with_name(f"{path.name}.log") for path in paths]
        paths += [directory / TOPOLOGY, directory / LOCK]
        self._ours = [path for path in paths if not path.exists()]
        """The lock is the last one: whoever finds it gone finds the rest gone, too."""
        above = (directory, *directory.parents)
        self._folders = [folder for folder in above if not folder.exists()]

    def remove(self, problem: Exception) -> str:
        """Remove what has come since; what was done, in words. What a broker has said stays if
        the problem points there, and its folder if a client was there: it may be promised
        something."""
        kept = []
        for path in self._ours:
            if not path.exists():
                continue
            if str(path) in str(problem):
                kept.append(f"{path} for what it says")
            elif path.is_dir() and _was_used(path):
                kept.append(f"{path} because a client was there")
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if self._folders:
            (self._directory / STATE).unlink(missing_ok=True)  # it goes in any case, but later
        for folder in self._folders:  # innermost first
            with contextlib.suppress(OSError):
                folder.rmdir()
        said = f"everything is stopped, and what was made in {self._directory}/ is removed"
        return said + (f"; kept: {', '.join(kept)}" if kept else "")


def _was_used(folder: Path) -> bool:
    try:
        return read_durable(folder)[0].sessions.issued > 0
    except MotetError:
        return False  # it was never as far as to listen
