"""Waiting for what must become true, for as long as a busy machine may need for it.

A test that succeeds does not wait longer than it has to, so the limit is generous: it only decides
how long a failure takes. Never sleep for a while and then assert; wait for the condition.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 120.0
JOB_S = 800.0
"""For a whole job of Spark, or a command that runs several."""
POLL_S = 0.01


async def eventually(
    condition: Callable[[], Any | Awaitable[Any]], within: float = PATIENCE_S
) -> None:
    """Returns as soon as the condition, which may be awaitable, is true."""
    deadline = time.monotonic() + within
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, f"not true within {within:g} s: {_source(condition)}"
        await asyncio.sleep(POLL_S)


def wait_until(condition: Callable[[], Any], within: float = PATIENCE_S) -> None:
    """`eventually` outside of an event loop."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not true within {within:g} s: {_source(condition)}"
        time.sleep(POLL_S)


def _source(condition: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
