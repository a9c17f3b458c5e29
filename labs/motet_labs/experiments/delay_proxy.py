"""Links with a delay: all data arrives later by this time, in order.

Per connection and direction, one thread reads and one writes when the data is due: a sleep is exact
to some ten microseconds, the timers of an event loop are not. `motet.fleet.proxy` runs on an event
loop: it cuts and stalls links, and delays nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread

from motet.fleet.process import HOST
from motet_labs.processes import tell

CHUNK_BYTES = 256 * 1024


def delay(delay_s: float, ports: Sequence[int]) -> None:
    """Print, for every port, the port that leads to it with a delay. Ends with standard input."""
    through: dict[int, int] = {}
    for port in ports:
        listening = socket.create_server((HOST, 0), backlog=128)
        through[port] = listening.getsockname()[1]
        Thread(target=_accept, args=(listening, port, delay_s), daemon=True).start()
    tell(through)
    sys.stdin.read()
    os._exit(0)


def _accept(listening: socket.socket, port: int, delay_s: float) -> None:
    while True:
        near, _ = listening.accept()
        try:
            far = socket.create_connection((HOST, port))
        except OSError:
            near.close()
            continue
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            due: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
            Thread(target=_read, args=(one, due, delay_s), daemon=True).start()
            Thread(target=_write, args=(other, due), daemon=True).start()


def _read(near: socket.socket, due: SimpleQueue[tuple[float, bytes]], delay_s: float) -> None:
    data = b"some"
    while data:
        try:
            data = near.recv(CHUNK_BYTES)
        except OSError:
            data = b""  # end of the stream
        due.put((time.monotonic() + delay_s, data))


def _write(far: socket.socket, due: SimpleQueue[tuple[float, bytes]]) -> None:
    data = b"some"
    while data:
        at, data = due.get()
        time.sleep(max(0.0, at - time.monotonic()))
        with contextlib.suppress(OSError):
            if data:
                far.sendall(data)
            else:
                far.shutdown(socket.SHUT_WR)
