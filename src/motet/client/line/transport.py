"""A socket that two threads may write to: the event loop's, and the one that sends heartbeats.

It is an asyncio transport over a socket of its own. Reading happens on the event loop. Writing has
one path, under one lock: bytes that the kernel does not accept at once wait in a buffer, and the
next thread that writes continues there. So frames of the two threads are never interleaved, and a
frame that the loop has begun is finished even while a handler blocks the loop. TLS belongs here,
too: records are made under the same lock.

Passing each frame to another thread would cost a wake-up in each direction (decision 33).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections import deque
from itertools import islice
from typing import Any, Protocol

from motet.runtime import tcp
from motet.runtime.transport import Accept, Connection

log = logging.getLogger("motet.client")


class Beating(Protocol):
    heartbeat_s: float

    def beat(self) -> None:
        """Send a heartbeat unless something was just sent. Called at least twice per heartbeat."""


class HeartbeatThread:
    """Sleeps while there are no connections. It looks at all of them whenever it wakes, so only a
    line that cannot wait until then wakes it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Also in a forked child: two processes that write to one socket would split frames."""
        self._lines: set[Beating] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0
        """When its sleep ends; a time that has passed: it is awake, and looks before it sleeps."""

    def add(self, line: Beating) -> bool:
        """Returns whether there is a thread for it."""
        with self._changed:
            self._lines.add(line)
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="motet-heartbeat", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads
                    self._lines.discard(line)
                    return False
                self._thread = thread
            self._hurry(line)
        return True

    def hurry(self, line: Beating) -> None:
        """A line has a new heartbeat, which may be shorter than the current sleep."""
        with self._changed:
            self._hurry(line)

    def _hurry(self, line: Beating) -> None:
        if time.monotonic() + line.heartbeat_s / 2 < self._wakes_at:
            self._changed.notify()

    def remove(self, line: Beating) -> None:
        with self._changed:
            self._lines.discard(line)

    def __contains__(self, line: Beating) -> bool:
        return line in self._lines

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._wakes_at = math.inf
                    self._changed.wait()
                lines = list(self._lines)
            for line in lines:
                try:
                    line.beat()
                except Exception:  # one line must not stop the heartbeats of the others
                    log.exception("%r sends no more heartbeats", line)
                    self.remove(line)
            with self._changed:
                shortest_s = min((line.heartbeat_s for line in self._lines), default=60.0)
                self._wakes_at = time.monotonic() + shortest_s / 2
                self._changed.wait(shortest_s / 2)


heartbeats = HeartbeatThread()
os.register_at_fork(after_in_child=heartbeats.reset)


BUFFERS_AT_ONCE = 64


class SharedTransport(asyncio.Transport):
    """Made on the event loop with a connected, non-blocking socket. All methods except `beat` are
    for the loop's thread."""

    def __init__(self, below: socket.socket) -> None:
        super().__init__({"socket": below, "peername": below.getpeername()})
        self._loop = asyncio.get_running_loop()
        self._socket = below
        self._number = below.fileno()
        self._protocol: Any = None
        self._reading = False
        self._lost = False
        # The following is changed only under the lock.
        self._lock = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._wrote_at = time.monotonic()
        self._closing = False
        self._ending = False  # nothing is written after what is unsent
        # The following is used only on the loop's thread.
        self._awaiting_room = False
        self._congested = False
        self._high, self._low = 64 * 1024, 16 * 1024

    def begin(self, protocol: asyncio.BufferedProtocol) -> None:
        """Set the protocol; an exception from it ends the connection."""
        self._protocol = protocol
        protocol.connection_made(self)
        self.resume_reading()

    # ── the heartbeat thread ─────────────────────────────────────────────────────────────

    def beat(self, frame: bytes, quiet_s: float) -> None:
        """Send a heartbeat if nothing was written for `quiet_s`: finish the frame that the loop has
        begun, or write this one. It never blocks."""
        with self._lock:
            if self._closing or time.monotonic() - self._wrote_at < quiet_s:
                return
            problem = self._drain()
            if problem is None and not self._unsent and not self._ending:
                problem = self._push(frame)
            calm = problem is None and not self._unsent and not self._congested
        if not calm:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the client
                self._loop.call_soon_threadsafe(self._look, problem)

    # ── writing ──────────────────────────────────────────────────────────────────────────

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._lock:
            if self._closing or self._ending:
                return
            problem = self._push(data)
            done = problem is None and not self._unsent
        if not done:
            self._look(problem)

    def write_eof(self) -> None:
        with self._lock:
            if self._closing or self._ending:
                return
            self._ending = True
            if self._unsent:
                return
        self._socket.shutdown(socket.SHUT_WR)

    def _push(self, data: bytes | bytearray | memoryview) -> OSError | None:
        """Under the lock: write it after everything else, as far as the kernel accepts it."""
        self._wrote_at = time.monotonic()
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as problem:
                return problem
        if sent < len(data):
            self._unsent.append(memoryview(data)[sent:])
            self._unsent_bytes += len(data) - sent
        return None

    def _drain(self) -> OSError | None:
        """Under the lock: write what is unsent, as far as the kernel accepts it."""
        unsent = self._unsent
        while unsent:
            try:
                sent = self._socket.sendmsg(list(islice(unsent, BUFFERS_AT_ONCE)))
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as problem:
                return problem
            self._wrote_at = time.monotonic()
            self._unsent_bytes -= sent
            while sent:
                first = unsent.popleft()
                if sent < len(first):
                    unsent.appendleft(first[sent:])
                    break
                sent -= len(first)
        return None

    def _writable(self) -> None:
        with self._lock:
            problem = None if self._closing and not self._unsent else self._drain()
        self._look(problem)

    def _look(self, problem: OSError | None = None) -> None:
        """Update writers, flow control and closing after a change of what is unsent."""
        if self._lost:
            return
        if problem is not None:
            self._fail(problem)
            return
        left_bytes = self._unsent_bytes
        if left_bytes and not self._awaiting_room:
            self._awaiting_room = True
            self._loop.add_writer(self._number, self._writable)
        elif not left_bytes and self._awaiting_room:
            self._awaiting_room = False
            self._loop.remove_writer(self._number)
        if not left_bytes:
            if self._closing:
                self._lose(None)
            elif self._ending:
                with contextlib.suppress(OSError):  # reading will notice it
                    self._socket.shutdown(socket.SHUT_WR)
        if left_bytes > self._high and not self._congested:
            self._congested = True
            self._protocol.pause_writing()
        elif left_bytes <= self._low and self._congested:
            self._congested = False
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    # ── reading ──────────────────────────────────────────────────────────────────────────

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._number)

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._loop.add_reader(self._number, self._readable)

    def _readable(self) -> None:
        try:
            length = self._socket.recv_into(self._protocol.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._fail(problem)
            return
        try:
            if length:
                self._protocol.buffer_updated(length)
            elif not self._protocol.eof_received():
                self.close()
            else:
                self.pause_reading()
        except Exception as problem:
            context = {"message": "a handler failed", "exception": problem, "transport": self}
            self._loop.call_exception_handler(context)
            self._fail(problem)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Write what is unsent, then close."""
        self.pause_reading()
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._look()

    def abort(self) -> None:
        self._fail(None)

    def _fail(self, problem: Exception | None) -> None:
        with self._lock:
            self._closing = True
            self._unsent.clear()
            self._unsent_bytes = 0
        self._lose(problem)

    def _lose(self, problem: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self.pause_reading()
        if self._awaiting_room:
            self._awaiting_room = False
            self._loop.remove_writer(self._number)
        self._loop.call_soon(self._tell_lost, problem)

    def _tell_lost(self, problem: Exception | None) -> None:
        try:
            self._protocol.connection_lost(problem)
        finally:
            with self._lock:  # no beat may reach another socket with the same number
                self._socket.close()

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol


class SharedTcp(tcp.TcpTransport):
    """TCP as brokers speak it, over sockets that two threads of this side may write to."""

    async def connect(self, address: str, accept: Accept) -> Connection:
        async with tcp.reaching(address) as (host, port):
            below = await _connected(host, port)
        connection = tcp.TcpConnection(accept, self._farewell)
        SharedTransport(below).begin(connection)
        return connection


async def _connected(host: str, port: int) -> socket.socket:
    """Connect to the first of the host's addresses that answers."""
    loop = asyncio.get_running_loop()
    found = _literal(host, port) or await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem: OSError | None = None
    for family, kind, protocol, _, place in found:
        try:
            below = socket.socket(family, kind, protocol)
        except OSError as lacking:
            problem = lacking
            continue
        try:
            below.setblocking(False)
            await loop.sock_connect(below, place)
        except OSError as refused:
            below.close()
            problem = refused
        except BaseException:
            below.close()
            raise
        else:
            return below
    raise problem or OSError(f"{host} has no address")


def _literal(host: str, port: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    """For a numeric address; asking a resolver, in a thread, would take longer than connecting."""
    for family, place in ((socket.AF_INET, (host, port)), (socket.AF_INET6, (host, port, 0, 0))):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place)]
    return []
