"""What every transport offers: ordered frames both ways until the connection ends.

A frame is a length and a body. Nobody above this interface sees the length; nobody below it
looks into the body. All calls and callbacks happen on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from motet.errors import FrameError

MAX_FRAME_BYTES = 8 * 1024 * 1024
"""A frame larger than this ends the connection, whoever sent it, before it is read."""

HIGH_MARK_BYTES = 1024 * 1024
LOW_MARK_BYTES = 256 * 1024
"""Above the high mark a connection is congested, until its backlog is below the low mark."""

CLOSE_BOUND_S = 2.0
"""How long a closing connection may take to write what it has and hear the other side end."""


class Handler(Protocol):
    """The upper side of a connection."""

    def frames(self, bodies: Sequence[bytes]) -> None:
        """Frames arrived: all that one read brought, in order."""

    def closed(self, reason: str) -> None:
        """The connection is gone; called exactly once, nothing follows."""

    def writable(self) -> None:
        """The backlog went below the low mark after `Connection.congested` was true."""


class Connection(Protocol):
    """The lower side. `send` never blocks and never fails: after the end it does nothing."""

    @property
    def peer(self) -> str: ...

    @property
    def descriptor(self) -> int | None:
        """The socket below, if there is one that is open: for signs of life from another thread."""

    @property
    def backlog_bytes(self) -> int:
        """Bytes accepted by `send` that the other side has not taken yet."""

    @property
    def received_bytes(self) -> int:
        """Grows with every byte that arrives, also within a frame: the sign of life."""

    @property
    def congested(self) -> bool:
        """The backlog is above the high mark; whoever can wait should."""

    def send(self, bodies: Sequence[bytes]) -> None:
        """Frame the bodies and write them at once. Oversized ones raise `FrameError`."""

    def close(self, reason: str = "") -> None:
        """Close after what was sent has been written, bounded in time. No frame comes up after."""

    def abort(self, reason: str = "") -> None:
        """Close now; what was not written yet is lost."""

    def pause_reading(self) -> None:
        """Take nothing until `resume_reading`: the other side's backlog grows. Not for brokers."""

    def resume_reading(self) -> None: ...


Accept = Callable[[Connection], Handler]

Farewell = Callable[[FrameError], bytes]
"""The body of the last frame to a peer that broke the framing: transports cannot write one
themselves, because they know nothing of what frames mean."""


class Listening(Protocol):
    @property
    def address(self) -> str:
        """The address as bound, with the real port."""

    async def close(self) -> None:
        """Accept nobody any more. Connections that are up stay up."""


class Transport(Protocol):
    scheme: str

    async def listen(self, address: str, accept: Accept) -> Listening:
        """Raises `AddressError` if the address is malformed or taken."""

    async def connect(self, address: str, accept: Accept) -> Connection:
        """Raises `Disconnected` if nobody answers, `AddressError` if the address is malformed."""


def oversized(length: int) -> FrameError:
    return FrameError(f"a frame of {length} bytes is above the limit of {MAX_FRAME_BYTES}")


def check_sizes(bodies: Sequence[bytes]) -> int:
    """The bytes of all bodies together; raises before anything of them is sent."""
    total = 0
    for body in bodies:
        length = len(body)
        if length > MAX_FRAME_BYTES:
            raise oversized(length)
        total += length
    return total
