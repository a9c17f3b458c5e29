"""Processes: a script in one of its own, and those that the system lists."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable

import psutil

from tests.waiting import PATIENCE_S


def printed_by(script: str) -> list[str]:
    """The words that a Python script prints in a process of its own. Scripts that fork need one: to
    fork a process that runs pytest's threads would test those."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def descendants(pid: int) -> set[int]:
    return {process.pid for process in psutil.Process(pid).children(recursive=True)}


def living(pids: Iterable[int]) -> set[int]:
    """Those that run. A zombie does not: it waits until its exit status is read."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found
