"""One connection of a client: passes on what it hears, and judges its silence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from motet.client.pulse import Line
from motet.runtime.transport import Connection

FIRST_HEARTBEAT_S = 2.0
"""Until the broker has told us its own."""
SILENT_BEATS = 3
"""A connection that brings nothing for so many of the broker's heartbeats is dead."""
SHORTEST_SILENCE_S = 1.0
"""Beats may be as quick as they like: a busy machine is late by more than a few of them."""
TICKS = 4


class Listener(Protocol):
    def connected(self, line: Line) -> None: ...

    def heard(self, bodies: Sequence[bytes]) -> None: ...

    def relieved(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


class Ear:
    """A transport's handler."""

    def __init__(self, listener: Listener, connection: Connection) -> None:
        self._listener = listener
        self._line = Line(connection, FIRST_HEARTBEAT_S)
        self._loop = asyncio.get_running_loop()
        self._received_bytes = 0
        self._silent_ticks = 0
        self._timer = self._loop.call_later(self._silence_s / TICKS, self._tick)
        try:
            listener.connected(self._line)
        except BaseException as problem:
            self.closed(str(problem))  # nobody else will: the transport has no handler now
            raise

    def frames(self, bodies: Sequence[bytes]) -> None:
        self._listener.heard(bodies)

    def closed(self, reason: str) -> None:
        self._timer.cancel()
        self._line.end()
        self._listener.disconnected(reason)

    def writable(self) -> None:
        self._listener.relieved()

    @property
    def _silence_s(self) -> float:
        """Follows the pace of the line: the broker's, once it has told us."""
        return max(SHORTEST_SILENCE_S, SILENT_BEATS * self._line.heartbeat_s)

    def _tick(self) -> None:
        """Ticks are counted, not seconds: while a handler blocks the loop nobody can hear."""
        received_bytes = self._line.connection.received_bytes
        silent = received_bytes == self._received_bytes
        self._received_bytes = received_bytes
        self._silent_ticks = self._silent_ticks + 1 if silent else 0
        if self._silent_ticks >= TICKS:
            self._line.connection.abort(f"nothing was heard for {self._silence_s:g} s")
        else:
            self._timer = self._loop.call_later(self._silence_s / TICKS, self._tick)
