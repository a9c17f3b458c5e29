"""Retries: how long to wait between attempts, and when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from motet.errors import MotetError

T = TypeVar("T")

FIRST_S: Final = 0.05
LAST_S: Final = 5.0


class Backoff:
    """Waits that double up to a limit. Half of each wait is random, so that clients do not all
    reconnect at the same moment."""

    def __init__(
        self, first_s: float = FIRST_S, last_s: float = LAST_S, seed: int | None = None
    ) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._next_s = first_s
        self._random = random.Random(seed)

    def reset(self) -> None:
        self._next_s = self._first_s

    def wait_s(self) -> float:
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._last_s)
        return wait_s * self._random.uniform(0.5, 1.0)


async def retry(
    attempt: Callable[[float], Awaitable[T]],
    budget_s: float,
    is_temporary: Callable[[MotetError], bool],
) -> T:
    """Call `attempt` until it succeeds or fails permanently, for at most `budget_s` in total. Each
    attempt is given the seconds that are left, and must not take longer."""
    backoff, until_s = Backoff(), time.monotonic() + budget_s
    while True:
        try:
            return await attempt(until_s - time.monotonic())
        except MotetError as problem:
            left_s = until_s - time.monotonic()
            if not is_temporary(problem):
                raise
            if left_s < FIRST_S:
                raise type(problem)(f"{problem} (tried for {budget_s:g} s)") from problem
        # At most half of the time left, so that a broker that returns late is still reached.
        await asyncio.sleep(min(backoff.wait_s(), left_s / 2))
