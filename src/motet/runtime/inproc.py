"""Frames between two ends in one event loop, with the behaviour of a socket.

Nothing arrives before `send` has returned, and one read takes at most as much as a socket's would.
Limits and marks are the same. Each event loop has its own names: two loops never meet here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from motet.errors import AddressError, Disconnected
from motet.runtime.transport import (
    CLOSE_BOUND_S,
    HIGH_MARK_BYTES,
    LOW_MARK_BYTES,
    MAX_FRAME_BYTES,
    Accept,
    Connection,
    Handler,
    Listening,
    oversized,
)

SCHEME = "inproc"
READ_BYTES = 256 * 1024

_names: WeakKeyDictionary[Any, dict[str, InprocListening]] = WeakKeyDictionary()


def name_in(address: str) -> str:
    scheme, _, name = address.partition("://")
    if scheme != SCHEME or not name or "/" in name or name != name.strip():
        raise AddressError(f"{address!r} is not an address; write {SCHEME}://name")
    return name


class InprocConnection:
    """One end of a connection. Its inbox holds the frames of `other` that are not read yet."""

    def __init__(self, peer: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.peer = peer
        self._other: InprocConnection
        self._handler: Handler
        self._inbox: deque[bytes] = deque()
        self.received_bytes = 0
        self.backlog_bytes = 0
        """Bytes in the inbox of the other end."""
        self.congested = False
        self._reading = True
        self._scheduled = False
        self._other_ended = False
        self._closing = False
        self._gone = False
        self._reason = ""
        self._bound: asyncio.TimerHandle | None = None

    @classmethod
    def pair(cls, address: str) -> tuple[InprocConnection, InprocConnection]:
        near, far = cls(address), cls(f"{address}#peer")
        near._other, far._other = far, near
        return near, far

    def serve(self, accept: Accept) -> None:
        self._handler = accept(self)

    # ── calls from the upper side ────────────────────────────────────────────────────────

    def send(self, bodies: Sequence[bytes]) -> None:
        lengths = list(map(len, bodies))
        if lengths and max(lengths) > MAX_FRAME_BYTES:
            raise oversized(max(lengths))
        other = self._other
        if self._closing or other._closing:  # a closed end discards input, as a socket does
            return
        other._inbox.extend(bodies)
        self.backlog_bytes += sum(lengths)
        if self.backlog_bytes > HIGH_MARK_BYTES:
            self.congested = True
        if not other._scheduled and not other._gone:
            other._scheduled = True
            self._loop.call_soon(other._read)

    def close(self, reason: str = "") -> None:
        if self._closing:
            return
        self._end(reason)
        self._other._other_ended = True
        self._other._wake()
        self._wake()
        self._bound = self._loop.call_later(CLOSE_BOUND_S, self._abort_both)

    def abort(self, reason: str = "") -> None:
        if not self._gone:
            self._end(reason)
            self._abort_both()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._wake()

    # ── one read ─────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        if not self._scheduled and not self._gone:
            self._scheduled = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._scheduled = False
        if self._gone:
            return
        inbox = self._inbox
        if self._reading and inbox:
            bodies = [inbox.popleft()]
            size = len(bodies[0])
            while inbox and size + len(inbox[0]) <= READ_BYTES:
                size += len(inbox[0])
                bodies.append(inbox.popleft())
            self.received_bytes += size + len(bodies)
            sender = self._other
            if not sender._gone:
                sender.backlog_bytes -= size
            if sender.congested and sender.backlog_bytes < LOW_MARK_BYTES:
                sender.congested = False  # the sender is told in a later turn of the loop
                self._loop.call_soon(sender._say_writable)
            try:
                self._handler.frames(bodies)
            except Exception:
                self.abort("the handler failed")  # as asyncio does with a failing protocol
                raise
        if self._inbox and self._reading:
            self._wake()
        elif self._other_ended and not self._inbox:
            self._lose("closed by the other side")

    def _say_writable(self) -> None:
        if not self._closing and not self.congested:
            self._handler.writable()

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def _end(self, reason: str) -> None:
        """From here on, the handler of this end gets only `closed`."""
        self._closing = True
        self._reason = self._reason or reason or "closed on this side"
        self._inbox.clear()
        self._other.backlog_bytes = 0
        self._reading = True

    def _lose(self, reason: str) -> None:
        """This end is gone, so the other end need not wait for it."""
        self._gone = self._closing = True
        self.congested = False
        self.backlog_bytes = 0
        if self._bound is not None:
            self._bound.cancel()
        self._other._other_ended = True
        self._other._wake()
        self._handler.closed(self._reason or reason)

    def _abort_both(self) -> None:
        """Frames in transit in either direction are lost, as when a socket is reset."""
        for end in (self, self._other):
            end._inbox.clear()
            end.backlog_bytes = 0
            end._reading = True
            end._other_ended = True
            end._wake()


class InprocListening:
    def __init__(self, name: str, accept: Accept, names: dict[str, InprocListening]) -> None:
        self._name = name
        self._names = names
        self.accept = accept

    @property
    def address(self) -> str:
        return f"{SCHEME}://{self._name}"

    async def close(self) -> None:
        if self._names.get(self._name) is self:
            del self._names[self._name]


class InprocTransport:
    scheme = SCHEME

    async def listen(self, address: str, accept: Accept) -> Listening:
        name = name_in(address)
        names = _names.setdefault(asyncio.get_running_loop(), {})
        if name in names:
            raise AddressError(f"{address} is in use in this process; choose another name")
        listening = names[name] = InprocListening(name, accept, names)
        return listening

    async def connect(self, address: str, accept: Accept) -> Connection:
        name = name_in(address)
        await asyncio.sleep(0)  # callers must not rely on connecting without a turn of the loop
        listening = _names.get(asyncio.get_running_loop(), {}).get(name)
        if listening is None:
            raise Disconnected(f"no broker answers at {address} in this event loop")
        near, far = InprocConnection.pair(address)
        far.serve(listening.accept)
        near.serve(accept)
        return near
