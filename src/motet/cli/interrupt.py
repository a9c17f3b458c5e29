"""Commands that run until someone has seen enough."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from motet.cli.ending import FINE


async def until_interrupted(work: Coroutine[Any, Any, int]) -> int:
    """The work's exit status; Ctrl-C and SIGTERM end it, and that is fine."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return FINE
