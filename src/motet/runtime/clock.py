"""The clock of the core: seconds that never run backwards."""

from __future__ import annotations

import time


class SteadyClock:
    """Starts at the time of day and then follows the monotonic clock, so jumps of the wall clock do
    not show. It never starts before `since`, the end of a journal, so it does not run backwards
    across restarts either. Its time is `time.monotonic() + ahead_s`."""

    def __init__(self, since: float = 0.0) -> None:
        self.ahead_s = max(time.time(), since) - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self.ahead_s


def fresh_incarnation() -> int:
    """The time of creation: a number that no earlier life of a broker without state has used."""
    return time.time_ns() // 1_000
