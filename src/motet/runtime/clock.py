"""Time as the core wants it: seconds that never run backwards."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float: ...


class MonotonicClock:
    """Real time since an arbitrary moment; a jump of the wall clock does not show.

    A broker that goes on after a crash, or after the machine was started anew, begins where its
    journal ends: the time in between did not pass for it."""

    def __init__(self, since: float = 0.0) -> None:
        self._ahead_s = since - time.monotonic() if since else 0.0

    def now(self) -> float:
        return time.monotonic() + self._ahead_s


def fresh_incarnation() -> int:
    """A number that no earlier life of a broker without state has had: the time of its birth."""
    return time.time_ns() // 1_000
