"""Processes that descend from this one: Spark's JVM, its workers, brokers. All of them ended at
once, without a word from any of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
GONE_WITHIN_S: Final = 2.0
POLL_S: Final = 0.02


def end_all() -> None:
    """Returns when none of them runs any more. All are halted before the first is killed: one that
    runs on could start another, or complain of the others."""
    halted: set[int] = set()
    while found := set(descendants(os.getpid())) - halted:
        _send(signal.SIGSTOP, found)
        halted |= found
    _send(signal.SIGKILL, halted)
    until_s = time.monotonic() + GONE_WITHIN_S
    while any(_remains(pid) for pid in halted) and time.monotonic() < until_s:
        time.sleep(POLL_S)


def _remains(pid: int) -> bool:
    """Whether a process has not ended. A child of ours is waited for: it would stay in the system's
    list, as long as somebody else takes to look after it."""
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # of one of the others, or waited for by another thread
        return pid in parents()
    return ended == 0


def descendants(ancestor: int) -> list[int]:
    """Those of a process, their children included, as they are now."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    ahead = [ancestor]
    while ahead:
        own = children.get(ahead.pop(), [])
        found += own
        ahead += own
    return found


def parents() -> dict[int, int]:
    """By process, who has started it; without those that are dead and only not yet waited for."""
    return _by_files() if (PROC / "self" / "stat").exists() else _by_command()


def _by_files() -> dict[int, int]:
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                # The name of a process may have anything in it, parentheses too.
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    found[int(folder.name)] = int(parent)
    return found


def _by_command() -> dict[int, int]:
    """Where there are no such files."""
    listing = subprocess.Popen(
        ["ps", "-A", "-o", "pid=,ppid=,state="], stdout=subprocess.PIPE, text=True
    )
    said, _ = listing.communicate()
    rows = [line.split() for line in said.splitlines()]
    found = {int(row[0]): int(row[1]) for row in rows if len(row) > 2 and row[2][0] != "Z"}
    found.pop(listing.pid, None)  # it is a child of ours, and lists itself
    return found


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
