"""One connection of a client to a broker: frames both ways, heartbeats, detection of silence; and
the dialer, which reconnects to the broker of the session or, if that is gone, to another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from motet.client.line.transport import SharedTcp, SharedTransport, heartbeats
from motet.errors import Disconnected, MotetError
from motet.protocol.frames import Beat
from motet.runtime import tcp
from motet.runtime.addresses import transport_for
from motet.runtime.codec import encode
from motet.runtime.redial import Backoff
from motet.runtime.transport import Connection

log = logging.getLogger("motet.client")


FIRST_HEARTBEAT_S = 2.0
"""Used until the broker has announced its own."""
SILENT_BEATS = 3
"""A connection that is silent for this many of the broker's heartbeats is considered dead."""
SHORTEST_SILENCE_S = 1.0
"""A lower limit for short heartbeats: a busy machine may be late by several of them."""
TICKS = 4

BEAT = encode(Beat())
FRAMED_BEAT = tcp.PREFIX.pack(len(BEAT)) + BEAT


class Listener(Protocol):
    def connected(self, line: Line) -> None: ...

    def heard(self, bodies: Sequence[bytes]) -> None: ...

    def relieved(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


class Line:
    """A transport's handler. Over a socket, the heartbeat thread beats, so that a handler that
    blocks the loop does not cost the session. Inside one process the loop beats: if it is stuck,
    so is the broker."""

    def __init__(self, listener: Listener, connection: Connection) -> None:
        self.connection = connection
        self.send = connection.send
        self.frames, self.writable = listener.heard, listener.relieved
        self.heartbeat_s = FIRST_HEARTBEAT_S
        self._listener = listener
        below = connection.transport if isinstance(connection, tcp.TcpConnection) else None
        self._shared = below if isinstance(below, SharedTransport) else None
        self._loop = asyncio.get_running_loop()
        self._received_bytes = 0
        self._silent_ticks = 0
        self._ended = False
        self._beating: asyncio.TimerHandle | None = None
        self._watching = self._loop.call_later(self._silence_s / TICKS, self._watch)
        if self._shared is None or not heartbeats.add(self):
            self._beat_later()
        try:
            listener.connected(self)
        except BaseException as problem:
            self.closed(str(problem))  # the transport has no handler that would call it
            raise

    def closed(self, reason: str) -> None:
        self._ended = True
        self._watching.cancel()
        heartbeats.remove(self)
        if self._beating is not None:
            self._beating.cancel()
        self._listener.disconnected(reason)

    # ── signs of life ────────────────────────────────────────────────────────────────────

    def keep_pace(self, heartbeat_s: float) -> None:
        """Use the broker's heartbeat from now on."""
        self.heartbeat_s = heartbeat_s
        if self._ended:
            return
        if self._beating is not None:
            self._beating.cancel()
            self._beat_later()
        else:
            heartbeats.hurry(self)

    def beat(self) -> None:
        """Called on the heartbeat thread."""
        if self._shared is not None:
            self._shared.beat(FRAMED_BEAT, self.heartbeat_s / 2)

    def _beat_later(self) -> None:
        self._beating = self._loop.call_later(self.heartbeat_s, self._beat_from_loop)

    def _beat_from_loop(self) -> None:
        self.connection.send((BEAT,))
        self._beat_later()

    @property
    def _silence_s(self) -> float:
        return max(SHORTEST_SILENCE_S, SILENT_BEATS * self.heartbeat_s)

    def _watch(self) -> None:
        """Counts ticks, not seconds: while a handler blocks the loop, frames cannot be read."""
        received_bytes = self.connection.received_bytes
        silent = received_bytes == self._received_bytes
        self._received_bytes = received_bytes
        self._silent_ticks = self._silent_ticks + 1 if silent else 0
        if self._silent_ticks >= TICKS:
            self.connection.abort(f"no frame was received for {self._silence_s:g} s")
        else:
            self._watching = self._loop.call_later(self._silence_s / TICKS, self._watch)

    def __repr__(self) -> str:
        return f"<Line to {self.connection.peer}>"


async def dial(address: str, listener: Listener) -> None:
    """Connect and pass the line to the listener. `Disconnected` if the broker does not answer,
    `AddressError` if the address is malformed."""
    over_tcp = address.startswith(f"{tcp.SCHEME}://")
    transport = SharedTcp() if over_tcp else transport_for(address)
    await transport.connect(address, lambda connection: Line(listener, connection))


LONGEST_PAUSE_S = 2.0
MOST_HASTE = 8
"""How many redirections in a row are followed without a pause."""
FAILOVER_S = 5.0
"""How long only the broker of the session is tried: at another one a new session begins."""


class Dialer:
    """Tries the addresses in order, from `address` on. Pauses grow between attempts.

    A client that has moved alternates between the address that it was given and its former one,
    whose broker knows where the session is. The address at which it is welcomed replaces the
    former one.
    """

    def __init__(self, addresses: Sequence[str], listener: Listener) -> None:
        self.address = addresses[0]
        self.find: Callable[[str], str] | None = None
        """Returns the address of a broker that cannot tell it, or an empty text."""
        self.settled = False
        """The session stays at this address: no other one is tried."""
        self._addresses = list(addresses)
        self._at = 0  # the place of `address`: an address may be given twice
        self._listener = listener
        self._backoff = Backoff(last_s=LONGEST_PAUSE_S)
        self._moved_to = ""
        self._next = ""  # the address for the next attempt, if it is certain
        self._hasty = False  # without a pause before it
        self._redirections = 0  # since the last welcome
        self._lost = asyncio.Event()
        self._lost_at = 0.0
        self._keeping: asyncio.Task[None] | None = None

    async def dial(self) -> None:
        """Connect to the current address."""
        try:
            await dial(self.address, self._listener)
        except MotetError:
            raise
        except Exception as problem:
            text = f"cannot use the connection to {self.address}: {problem}"
            raise Disconnected(text) from problem

    def keep(self) -> None:
        """Reconnect from now on whenever the connection is lost. Idempotent."""
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def lost(self) -> None:
        """The connection is lost."""
        if not self._lost.is_set():
            self._lost_at = self._lost_at or asyncio.get_running_loop().time()
            self._lost.set()

    def welcomed(self) -> None:
        """The broker has opened or resumed the session."""
        self._backoff.reset()
        self._lost_at = 0.0
        self._addresses[self._at] = self.address
        self._moved_to = self._next = ""
        self._hasty = False
        self._redirections = 0

    @property
    def is_redirected(self) -> bool:
        """The session is at another address than the one that welcomed it last."""
        return bool(self._redirections)

    def redirect(self, broker: str, address: str) -> None:
        """The session has moved: connect there as soon as this connection is lost."""
        if not address and self.find is not None:
            address = self.find(broker)
        self._redirections += 1
        # If it is the same place again, that could not be reached just now.
        self._hasty = address != self._moved_to and self._redirections <= MOST_HASTE
        if address:
            self._moved_to = self._next = address

    def hurry(self) -> None:
        """Connect to the address that the client was given, as soon as this connection is lost."""
        self._next = self._moved_to
        self._hasty = True

    def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()

    async def stopped(self) -> None:
        self.stop()
        if self._keeping is not None:
            await asyncio.wait({self._keeping})

    async def _keep(self) -> None:
        while True:
            await self._lost.wait()
            if not self._hasty:
                await asyncio.sleep(self._backoff.wait_s())
            self._hasty = False
            self._lost.clear()
            self._choose()
            try:
                await self.dial()
            except Disconnected as problem:
                log.info("%s", problem)
                self.lost()
            except Exception:  # a resource that this machine lacks now may be free later
                log.exception("cannot connect to %s", self.address)
                self.lost()

    def _choose(self) -> None:
        """After `FAILOVER_S` at the current address, use the next one for each attempt; while the
        session is elsewhere, its address and the former one in turn."""
        former = self._addresses[self._at]
        if self._next:
            self.address, self._next = self._next, ""
            return
        if self._moved_to:
            self.address = former if self.address == self._moved_to else self._moved_to
            return
        gone_s = asyncio.get_running_loop().time() - self._lost_at
        if not self.settled and gone_s >= FAILOVER_S:
            self._at = (self._at + 1) % len(self._addresses)
            self.address = self._addresses[self._at]
