"""Which nacks passed where and when, as the brokers tell it.

A broker remembers its last nacks with their times. They are collected again and again, so that
neither a broker's death nor its short memory hides one for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import NamedTuple

from motet.experiments.overlay import Overlay

LOOK_S = 0.5
TICKS_PER_MS = 1000


class NackNoted(NamedTuple):
    """`at` is a time of our monotonic clock; the range is how much time of a pubend's stream
    was asked for, as the paper counts it."""

    at: float
    broker: str
    way: str
    neighbour: str
    pubend: str
    range_ms: float


class NackWatch:
    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        # Brokers count from the time of day, and never jump; neither do we.
        self._ahead_s = time.time() - time.monotonic()
        self._seen: dict[NackNoted, None] = {}

    @property
    def noted(self) -> list[NackNoted]:
        return sorted(self._seen)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        for broker, state in (await self._overlay.statuses()).items():
            for each in state["delivery"]["recent_nacks"]:
                found = NackNoted(
                    each["at"] - self._ahead_s,
                    broker,
                    each["way"],
                    each["neighbour"].partition("/")[0],
                    each["pubend"],
                    each["ticks"] / TICKS_PER_MS,
                )
                self._seen[found] = None


def total_ms(
    noted: Iterable[NackNoted], way: str, brokers: Iterable[str], neighbours: Iterable[str] = ()
) -> float:
    """What was asked for in one direction, by these brokers; of these neighbours only, if any."""
    of, by = set(neighbours), set(brokers)
    return sum(
        each.range_ms
        for each in noted
        if each.way == way and each.broker in by and (not of or each.neighbour in of)
    )
