"""Frames between two ends in one event loop, with the manners of a socket.

Nothing arrives before `send` has returned, one read takes at most as much as a socket's would,
limits and marks are the same. Names belong to an event loop: two loops never meet here.
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
    Accept,
    Connection,
    Handler,
    Listening,
    check_sizes,
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
    """One end. What `other` sent and we have not taken yet waits in our inbox."""

    def __init__(self, peer: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._peer = peer
        self._other: InprocConnection
        self._handler: Handler
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._received = 0
        self._reading = True
        self._scheduled = False
        self._congested = False
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

    # ── what the upper side calls ────────────────────────────────────────────────────────

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def descriptor(self) -> None:
        return None

    @property
    def backlog_bytes(self) -> int:
        return 0 if self._gone else self._other._inbox_bytes

    @property
    def received_bytes(self) -> int:
        return self._received

    @property
    def congested(self) -> bool:
        return self._congested

    def send(self, bodies: Sequence[bytes]) -> None:
        total = check_sizes(bodies)
        other = self._other
        if self._closing or other._closing:  # who closes discards what comes, as a socket does
            return
        other._inbox.extend(bodies)
        other._inbox_bytes += total
        if other._inbox_bytes > HIGH_MARK_BYTES:
            self._congested = True
        other._wake()

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
        if self._reading and self._inbox:
            bodies = self._take()
            self._relieve()
            try:
                self._handler.frames(bodies)
            except Exception:
                self.abort("the handler failed")  # as asyncio does with a failing protocol
                raise
        if self._inbox and self._reading:
            self._wake()
        elif self._other_ended and not self._inbox:
            self._lose("closed by the other side")

    def _take(self) -> list[bytes]:
        inbox = self._inbox
        bodies = [inbox.popleft()]
        size = len(bodies[0])
        while inbox and size + len(inbox[0]) <= READ_BYTES:
            body = inbox.popleft()
            size += len(body)
            bodies.append(body)
        self._inbox_bytes -= size
        self._received += size + len(bodies)
        return bodies

    def _relieve(self) -> None:
        """Tell the sender, in its own turn, that there is room again."""
        other = self._other
        if other._congested and self._inbox_bytes < LOW_MARK_BYTES:
            other._congested = False
            self._loop.call_soon(other._say_writable)

    def _say_writable(self) -> None:
        if not self._closing and not self._congested:
            self._handler.writable()

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def _end(self, reason: str) -> None:
        """From here on nothing comes up to our handler but `closed`."""
        self._closing = True
        self._reason = self._reason or reason or "closed on this side"
        self._inbox.clear()
        self._inbox_bytes = 0
        self._reading = True

    def _lose(self, reason: str) -> None:
        """Our end is gone; so the other one has nobody to wait for."""
        self._gone = self._closing = True
        self._congested = False
        if self._bound is not None:
            self._bound.cancel()
        self._other._other_ended = True
        self._other._wake()
        self._handler.closed(self._reason or reason)

    def _abort_both(self) -> None:
        """What is under way in either direction is lost, as when a socket is reset."""
        for end in (self, self._other):
            end._inbox.clear()
            end._inbox_bytes = 0
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
        await asyncio.sleep(0)  # nobody may rely on connecting without a turn of the loop
        listening = _names.get(asyncio.get_running_loop(), {}).get(name)
        if listening is None:
            raise Disconnected(f"nobody answers at {address} in this event loop")
        near, far = InprocConnection.pair(address)
        far.serve(listening.accept)
        near.serve(accept)
        return near
