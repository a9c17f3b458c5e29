"""One connection of a client: passes on what it hears, and judges its silence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from motet.client.pulse import Line
from motet.runtime.transport import Connection

SILENCE_S = 10.0
"""A connection that brings nothing for so long is dead. Brokers beat every two seconds."""
TICKS = 4


class Listener(Protocol):
    def connected(self, line: Line) -> None: ...

    def heard(self, bodies: Sequence[bytes]) -> None: ...

    def relieved(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


class Ear:
    """A transport's handler."""

    def __init__(self, listener: Listener, connection: Connection, heartbeat_s: float) -> None:
        self._listener = listener
        self._line = Line(connection, heartbeat_s)
        self._loop = asyncio.get_running_loop()
        self._tick_s = max(SILENCE_S, TICKS * heartbeat_s) / TICKS
        self._received_bytes = 0
        self._silent_ticks = 0
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        listener.connected(self._line)

    def frames(self, bodies: Sequence[bytes]) -> None:
        self._listener.heard(bodies)

    def closed(self, reason: str) -> None:
        self._timer.cancel()
        self._line.end()
        self._listener.disconnected(reason)

    def writable(self) -> None:
        self._listener.relieved()

    def _tick(self) -> None:
        """Ticks are counted, not seconds: while a handler blocks the loop nobody can hear."""
        received_bytes = self._line.connection.received_bytes
        silent = received_bytes == self._received_bytes
        self._received_bytes = received_bytes
        self._silent_ticks = self._silent_ticks + 1 if silent else 0
        if self._silent_ticks >= TICKS:
            self._line.connection.abort(f"nothing was heard for {TICKS * self._tick_s:g} s")
        else:
            self._timer = self._loop.call_later(self._tick_s, self._tick)
