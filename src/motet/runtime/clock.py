"""Time as the core wants it: seconds that never run backwards."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float: ...


class SteadyClock:
    """The time of day when it was made, and real time from there: a jump of the wall clock does
    not show. It never begins before `since`, where a journal ends, so that it does not run
    backwards across restarts either."""

    def __init__(self, since: float = 0.0) -> None:
        self._ahead_s = max(time.time(), since) - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._ahead_s


def fresh_incarnation() -> int:
    """A number that no earlier life of a broker without state has had: the time of its birth."""
    return time.time_ns() // 1_000
