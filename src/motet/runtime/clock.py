"""Time as the core wants it: seconds that never run backwards."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float: ...


class MonotonicClock:
    """Real time since an arbitrary moment; a jump of the wall clock does not show."""

    def now(self) -> float:
        return time.monotonic()


def fresh_incarnation() -> int:
    """A number that no earlier life of a broker without state has had: the time of its birth."""
    return time.time_ns() // 1_000
