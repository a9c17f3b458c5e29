"""Questions about the broker's status, answered in the order in which they were asked."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from motet.errors import Disconnected, MotetError
from motet.protocol.session.messages import Status, StatusRequest
from motet.runtime.codec import encode

if TYPE_CHECKING:
    from motet.client.pulse import Line

MOST_OPEN = 1024


class Questions:
    def __init__(self, address: str) -> None:
        self._address = address
        self._askers: deque[asyncio.Future[dict[str, Any]]] = deque()

    async def ask(
        self, line: Line | None, timeout_s: float, clients: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """The broker's own account of its state, and where these clients are."""
        if line is None:
            raise Disconnected(f"no connection to {self._address}")
        if len(self._askers) >= MOST_OPEN:
            raise Disconnected(f"{self._address} answers no question about its status")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._askers.append(answer)  # and it stays, for answers come in order
        line.send((encode(StatusRequest(clients)),))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise Disconnected(f"{self._address} told no status within {timeout_s:g} s") from None

    def answered(self, frame: Status) -> None:
        if self._askers:
            asker = self._askers.popleft()
            if not asker.done():
                asker.set_result(frame.state)

    def fail(self, error: MotetError) -> None:
        while self._askers:
            asker = self._askers.popleft()
            if not asker.done():
                asker.set_exception(error)
