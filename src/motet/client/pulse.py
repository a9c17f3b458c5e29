"""Signs of life that a blocking handler cannot stop.

The sockets of a client live on the application's own event loop: every hand-over to another
thread would cost a wake-up in each direction. Measured in four runs on a busy machine with two
cores, an I/O thread made the p50 of a round trip 1.7 to 3.2 times as long (best run: 165 µs
against 98 µs) and left 49 to 87 % of the throughput. So it is only the heartbeat that has a
thread, one for the whole process, and it writes to the socket itself.

Why it never tears a frame: all writes of a client pass through `Line.send`, under the line's
lock. The thread holds the same lock and writes only when the transport has nothing buffered, so
the last byte in the socket is the end of a frame. The heartbeat is a few bytes; should the kernel
take only some of them, the thread finishes the frame before it lets the lock go, or shuts the
connection down. If something *is* buffered, a frame is half written and only the loop can go on:
then no heartbeat is possible, and a handler that blocks for too long right then costs the
connection, not the session, which is resumed.

Connections without a socket (in-process) beat from the loop: if that is stuck, so is the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from motet.protocol.frames import Beat
from motet.runtime.codec import encode
from motet.runtime.tcp import PREFIX
from motet.runtime.transport import Connection

log = logging.getLogger("motet.client")

BEAT = encode(Beat())
FRAMED_BEAT = PREFIX.pack(len(BEAT)) + BEAT
FINISH_BOUND_S = 1.0


class Line:
    """A connection that two threads may write to: the loop's frames, and the pulse's beats."""

    def __init__(self, connection: Connection, heartbeat_s: float) -> None:
        self.connection = connection
        self.heartbeat_s = heartbeat_s
        self._lock = threading.Lock()
        self._sent_at = time.monotonic()
        self._socket = _duplicate_socket(connection)
        self._timer: asyncio.TimerHandle | None = None
        self.ended = False
        if self._socket is None or not self._join_pulse(self._socket):
            self._beat_later(asyncio.get_running_loop())

    def _join_pulse(self, own: socket.socket) -> bool:
        try:
            _pulse.add(self)
        except RuntimeError:  # no more threads: the loop must do
            own.close()
            self._socket = None
            return False
        return True

    def keep_pace(self, heartbeat_s: float) -> None:
        """From now on beat this often: the broker goes by its own heartbeat."""
        self.heartbeat_s = heartbeat_s
        if self.ended:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._beat_later(asyncio.get_running_loop())
        else:
            _pulse.hurry()

    def send(self, bodies: Sequence[bytes]) -> None:
        """On the loop's thread only."""
        with self._lock:
            self._sent_at = time.monotonic()
            self.connection.send(bodies)

    def end(self) -> None:
        """The connection is gone: stop beating and let go of the socket."""
        if self.ended:
            return
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            _pulse.remove(self)
            with self._lock:
                self._socket.close()
                self._socket = None

    def beat(self) -> None:
        """On the pulse's thread only."""
        with self._lock:
            quiet_s = time.monotonic() - self._sent_at
            if self._socket is None or quiet_s < self.heartbeat_s / 2:
                return
            if self.connection.backlog_bytes:
                return
            with contextlib.suppress(OSError):  # the loop will hear of it itself
                self._write(self._socket, FRAMED_BEAT)
                self._sent_at = time.monotonic()

    def _write(self, to: socket.socket, frame: bytes) -> None:
        try:
            written = to.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return  # the kernel has plenty to send: that is life enough
        deadline = time.monotonic() + FINISH_BOUND_S
        while written < len(frame):
            ready = select.select((), (to,), (), max(0.0, deadline - time.monotonic()))[1]
            if not ready:
                to.shutdown(socket.SHUT_RDWR)
                return
            with contextlib.suppress(BlockingIOError):
                written += to.send(frame[written:], socket.MSG_DONTWAIT)

    def _beat_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self.heartbeat_s, self._beat_from_loop, loop)

    def _beat_from_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.ended:
            self.send((BEAT,))
            self._beat_later(loop)


class Pulse:
    """The one thread: looks after every line with a socket, sleeps when there is none."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Also in a forked child: two processes that write to one socket would tear frames."""
        self._lines: set[Line] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, line: Line) -> None:
        with self._changed:
            self._lines.add(line)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="motet-pulse", daemon=True)
                try:
                    self._thread.start()
                except BaseException:
                    self._lines.discard(line)
                    raise
            self._changed.notify()

    def hurry(self) -> None:
        """A line has a new pace, which may be shorter than the current nap."""
        with self._changed:
            self._changed.notify()

    def remove(self, line: Line) -> None:
        with self._changed:
            self._lines.discard(line)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                lines = list(self._lines)
            for line in lines:
                try:
                    line.beat()
                except Exception:  # one line must not cost the others their beats
                    log.exception("%s beats no more", line.connection)
                    self.remove(line)
            with self._changed:
                shortest_s = min((line.heartbeat_s for line in self._lines), default=60.0)
                self._changed.wait(shortest_s / 2)


_pulse = Pulse()
os.register_at_fork(after_in_child=_pulse.reset)


def _duplicate_socket(connection: Connection) -> socket.socket | None:
    """A second handle on the socket below, if there is one, and a descriptor to spare for it."""
    below = connection.descriptor
    if below is None:
        return None
    try:
        own = socket.dup(below)
    except OSError as problem:
        log.warning("beats come from the event loop, for want of a descriptor: %s", problem)
        return None
    try:
        return socket.socket(fileno=own)
    except OSError:
        socket.close(own)
        return None
