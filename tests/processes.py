"""Processes of this machine, as the system lists them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


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
