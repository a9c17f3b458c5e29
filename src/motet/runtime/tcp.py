"""Frames over TCP: four bytes of length, big-endian, then the body.

The connection owns its read buffer and reads into it in place, so a frame is copied once, when it
leaves the buffer. The buffer grows only as bytes really arrive: a peer that announces a large frame
and sends nothing costs no memory.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

from motet.errors import AddressError, Disconnected, FrameError, NoAnswer
from motet.runtime.transport import (
    CLOSE_BOUND_S,
    HIGH_MARK_BYTES,
    LOW_MARK_BYTES,
    MAX_FRAME_BYTES,
    Accept,
    Connection,
    Farewell,
    Handler,
    Listening,
    oversized,
)

SCHEME = "motet"
CONNECT_BOUND_S = 5.0
PREFIX = struct.Struct(">I")
SMALL_BUFFER_BYTES = 64 * 1024
LARGE_BUFFER_BYTES = 256 * 1024

_length_at = PREFIX.unpack_from
_prefix = PREFIX.pack


def host_and_port(address: str) -> tuple[str, int]:
    """Parse `motet://host:port` or `host:port`."""
    text = address if "://" in address else f"{SCHEME}://{address}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as problem:
        raise AddressError(f"{address!r} is not an address: {problem}") from None
    rest = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme != SCHEME or not host or port is None or rest:
        raise AddressError(f"{address!r} is not an address; write {SCHEME}://host:port")
    return host, port


def port_to_reach(address: str) -> tuple[str, int]:
    """Parse an address to connect to: unlike one to listen at, its port cannot be 0."""
    host, port = host_and_port(address)
    if port == 0:
        raise AddressError(f"{address!r} has no port to connect to")
    try:
        host.encode("idna")
    except UnicodeError as problem:
        raise AddressError(f"{host!r} is not the name of a host: {problem}") from None
    return host, port


def address_of(host: str, port: int) -> str:
    return f"{SCHEME}://[{host}]:{port}" if ":" in host else f"{SCHEME}://{host}:{port}"


class TcpConnection(asyncio.BufferedProtocol):
    """One connection: asyncio's protocol, and an implementation of `transport.Connection`."""

    def __init__(self, accept: Accept, farewell: Farewell | None) -> None:
        self._accept = accept
        self._farewell = farewell
        self._handler: Handler
        self.transport: asyncio.Transport
        self.peer = "nobody"
        self._buffer = bytearray(SMALL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.received_bytes = 0
        self.congested = False
        self._closing = False
        self._gone = False
        self._reason = ""
        self._bound: asyncio.TimerHandle | None = None

    # ── calls from the upper side ────────────────────────────────────────────────────────

    @property
    def backlog_bytes(self) -> int:
        return 0 if self._gone else self.transport.get_write_buffer_size()

    def send(self, bodies: Sequence[bytes]) -> None:
        parts: list[bytes] = []
        for body in bodies:
            length = len(body)
            if length > MAX_FRAME_BYTES:
                raise oversized(length)
            parts.append(_prefix(length))
            parts.append(body)
        # The loop may have closed it already, and be about to tell us.
        if parts and not self._closing and not self.transport.is_closing():
            self.transport.write(b"".join(parts))

    def close(self, reason: str = "") -> None:
        """Half-close, then wait until the other side closes. Closing both directions while it still
        sends would reset the connection and destroy our last frames in transit."""
        if self._closing:
            return
        self._end(reason)
        self._bound = asyncio.get_running_loop().call_later(CLOSE_BOUND_S, self.transport.abort)
        if self.transport.is_closing():
            return
        self.transport.resume_reading()
        try:
            self.transport.write_eof()
        except OSError:  # the other side has reset the connection, and we were not told yet
            self.transport.abort()

    def abort(self, reason: str = "") -> None:
        if not self._gone:
            self._end(reason)
            self.transport.abort()

    def pause_reading(self) -> None:
        if not self._closing:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._closing:
            self.transport.resume_reading()

    def _end(self, reason: str) -> None:
        self._closing = True
        self._reason = self._reason or reason or "closed on this side"

    # ── callbacks of asyncio ─────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_MARK_BYTES, LOW_MARK_BYTES)
        try:
            raw = transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = transport.get_extra_info("peername")
            if name:
                self.peer = address_of(name[0], name[1])
            self._handler = self._accept(self)
        except BaseException as problem:
            # asyncio would keep a connection without a handler. No handler can be told of its end
            # either, so it gets another protocol.
            self.abort(str(problem))
            self._gone = True
            self.transport.set_protocol(asyncio.Protocol())
            raise

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self._closing:
            return
        filled = self._filled + nbytes
        buffer, view = self._buffer, self._view
        bodies: list[bytes] = []
        start, wanted = 0, 0
        while filled - start >= 4:
            wanted = _length_at(buffer, start)[0]
            stop = start + 4 + wanted
            if stop > filled:
                break
            bodies.append(bytes(view[start + 4 : stop]))
            start = stop
            wanted = 0
        self._keep(start, filled, wanted)
        if bodies:
            self._handler.frames(bodies)
        if wanted > MAX_FRAME_BYTES:
            self._refuse(oversized(wanted))

    def eof_received(self) -> bool:
        """Return False: asyncio then writes the remaining bytes and closes."""
        if self._filled and not self._closing:
            self._refuse(FrameError("the connection ended in the middle of a frame"))
        elif not self._closing:
            self._end("closed by the other side")
        return False

    def forsake(self) -> None:
        """Nobody waits for it any more. Its handler may know it already."""
        if hasattr(self, "_handler"):
            self.abort("the attempt to connect was cancelled")
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gone:
            return
        reason = self._reason or (str(exc) if exc else "closed by the other side")
        self._closing = self._gone = True
        self.congested = False
        if self._bound is not None:
            self._bound.cancel()
        handler = self._handler
        # Release everything large, and the handler that refers to us: a broker rarely collects
        # cycles, and a peer that connects and disconnects must not cost memory.
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._filled = 0
        del self._handler
        handler.closed(reason)

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        if not self._closing:
            self._handler.writable()

    # ── the buffer ───────────────────────────────────────────────────────────────────────

    def _keep(self, start: int, filled: int, wanted: int) -> None:
        """Move the incomplete rest to the front, and make room for the next read."""
        rest = filled - start
        if start and rest:
            self._view[:rest] = bytes(self._view[start:filled])
        self._filled = rest
        size = len(self._buffer)
        if rest == size or filled == size < LARGE_BUFFER_BYTES:
            # The read filled the buffer: the peer sends more than we read at once.
            self._resize(max(LARGE_BUFFER_BYTES, min(2 * size, wanted + 4)))
        elif size > LARGE_BUFFER_BYTES and rest + wanted < LARGE_BUFFER_BYTES:
            self._resize(LARGE_BUFFER_BYTES)

    def _resize(self, size: int) -> None:
        buffer = bytearray(size)
        buffer[: self._filled] = self._view[: self._filled]
        self._buffer = buffer
        self._view = memoryview(buffer)

    def _refuse(self, error: FrameError) -> None:
        if self._closing:  # the handler closed it in the meantime
            return
        if self._farewell is not None:
            self.send([self._farewell(error)])
        self.close(str(error))


class TcpListening:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self._address = address_of(host, port)

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # uvloop releases the port one turn later


class TcpTransport:
    scheme = SCHEME

    def __init__(self, farewell: Farewell | None = None) -> None:
        self._farewell = farewell

    async def listen(self, address: str, accept: Accept) -> Listening:
        host, port = host_and_port(address)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: TcpConnection(accept, self._farewell), host, port, backlog=1024
            )
        except OSError as problem:
            raise AddressError(_cannot_listen(host, port, problem)) from problem
        except UnicodeError as problem:
            raise AddressError(f"{host!r} is not the name of a host: {problem}") from None
        return TcpListening(server)

    async def connect(self, address: str, accept: Accept) -> Connection:
        loop = asyncio.get_running_loop()
        made: list[TcpConnection] = []

        def protocol() -> TcpConnection:
            made.append(TcpConnection(accept, self._farewell))
            return made[-1]

        try:
            async with reaching(address) as (host, port):
                _, connection = await loop.create_connection(protocol, host, port)
        except asyncio.CancelledError:
            # uvloop then closes the transport, and tells nobody
            for each in made:
                each.forsake()
            raise
        return connection


@asynccontextmanager
async def reaching(address: str) -> AsyncIterator[tuple[str, int]]:
    """Wrap an attempt to connect: a time limit, and errors that name the address."""
    host, port = port_to_reach(address)
    try:
        async with asyncio.timeout(CONNECT_BOUND_S):
            yield host, port
    except TimeoutError:
        raise NoAnswer(f"{address} did not answer within {CONNECT_BOUND_S:g} s") from None
    except OSError as problem:
        raise Disconnected(f"no broker answers at {address}: {_reason(problem)}") from problem
    except UnicodeError as problem:
        raise AddressError(f"{host!r} is not the name of a host: {problem}") from None


def _reason(problem: OSError) -> str:
    """Why a connection failed, without the address, which asyncio includes in the text."""
    if problem.errno is not None and problem.errno > 0:
        return os.strerror(problem.errno)
    return problem.strerror or str(problem)


def _cannot_listen(host: str, port: int, problem: OSError) -> str:
    if problem.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use; stop the process that holds it, "
            f"or choose another port (0 takes any free one)"
        )
    if problem.errno == errno.EACCES:
        return f"port {port} of {host} needs privileges; choose one above 1023"
    return f"cannot listen on {host}:{port}: {problem}"
