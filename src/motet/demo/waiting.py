"""Waiting for what must come true, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from motet.errors import UnavailableError

PATIENCE_S: Final = 60.0
POLL_S: Final = 0.05

Condition = Callable[[], bool | Awaitable[bool]]


async def becomes_true(condition: Condition, patience_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)


async def must_become_true(condition: Condition, otherwise: str) -> None:
    if not await becomes_true(condition):
        raise UnavailableError(f"{otherwise} within {PATIENCE_S:g} s")
