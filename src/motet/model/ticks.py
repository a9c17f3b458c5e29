"""Ticks: the numbers that a pubend gives to its events. They only grow."""

from __future__ import annotations

from typing import Final

TICKS_PER_S: Final = 1_000_000
"""Ticks are microseconds of the brokers' clocks: about when an event was published."""
LAST_TICK: Final = (1 << 62) - 1
"""No event gets a later one."""
NO_LIMIT: Final = 2**63 - 1
"""As many rows as there are."""
