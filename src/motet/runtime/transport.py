"""The interface of every transport: ordered frames both ways until the connection ends.

A frame is a length and a body. Code above this interface never sees the length; code below it never
looks into the body. All calls and callbacks happen on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from motet.errors import FrameError

MAX_FRAME_BYTES = 8 * 1024 * 1024
"""A frame larger than this ends the connection before it is read."""

HIGH_MARK_BYTES = 1024 * 1024
LOW_MARK_BYTES = 256 * 1024
"""A connection is congested from above the high mark until its backlog is below the low mark."""

CLOSE_BOUND_S = 2.0
"""The time limit for a closing connection to write its backlog and to see the other side close."""


class Handler(Protocol):
    """The upper side of a connection."""

    def frames(self, bodies: Sequence[bytes]) -> None:
        """Called with all frames of one read, in order."""

    def closed(self, reason: str) -> None:
        """The connection is gone; called exactly once, as the last callback."""

    def writable(self) -> None:
        """The backlog went below the low mark after `Connection.congested` was true."""


class Connection(Protocol):
    """The lower side. `send` never blocks and never fails: after the end it does nothing."""

    @property
    def peer(self) -> str: ...

    @property
    def backlog_bytes(self) -> int:
        """Bytes accepted by `send` that the other side has not read yet."""

    @property
    def received_bytes(self) -> int:
        """Grows with every byte that arrives, also within a frame: the peer is alive."""

    @property
    def congested(self) -> bool:
        """The backlog is above the high mark; senders that can wait should."""

    def send(self, bodies: Sequence[bytes]) -> None:
        """Frame the bodies and write them at once. Oversized ones raise `FrameError`."""

    def close(self, reason: str = "") -> None:
        """Close after the backlog is written, within a time limit. No more frames are passed up."""

    def abort(self, reason: str = "") -> None:
        """Close now; bytes that are not written yet are lost."""

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`: the peer's backlog grows. Not for brokers."""

    def resume_reading(self) -> None: ...


Accept = Callable[[Connection], Handler]

Farewell = Callable[[FrameError], bytes]
"""Makes the body of the last frame to a peer that broke the framing. Transports cannot make it
themselves, because they do not know what frames mean."""


class Listening(Protocol):
    @property
    def address(self) -> str:
        """The address as bound, with the real port."""

    async def close(self) -> None:
        """Accept no new connections. Existing ones stay open."""


class Transport(Protocol):
    scheme: str

    async def listen(self, address: str, accept: Accept) -> Listening:
        """Raises `AddressError` if the address is malformed or taken."""

    async def connect(self, address: str, accept: Accept) -> Connection:
        """Raises `Disconnected` without an answer, `AddressError` if the address is malformed."""


def oversized(length: int) -> FrameError:
    return FrameError(f"a frame of {length} bytes is above the limit of {MAX_FRAME_BYTES}")
