"""Links that take time: everything that goes through here arrives so much later, in order.

    python -m motet.experiments.delaying DELAY_S PORT …

Prints one JSON line: for every port of the machine, the one that leads to it. One thread reads and
notes when, one writes when it is time: a sleep is exact to some ten microseconds, the timers of an
event loop are not. Ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

HOST = "127.0.0.1"
CHUNK_BYTES = 256 * 1024
BUFFER_BYTES = 8 * 1024 * 1024
"""One connection that is not read from must not hold up the others."""

Due = tuple[float, socket.socket, bytes]
"""When, to whom, what; nothing: the end."""


class Delaying:
    def __init__(self, delay_s: float, ports: Sequence[int]) -> None:
        self._delay_s = delay_s
        self._selector = selectors.DefaultSelector()
        self._far: dict[socket.socket, socket.socket] = {}
        self._due: deque[Due] = deque()
        self._more = threading.Semaphore(0)
        self.ports: dict[int, int] = {}
        for port in ports:
            listening = socket.create_server((HOST, 0), backlog=128)
            self.ports[port] = listening.getsockname()[1]
            self._selector.register(listening, selectors.EVENT_READ, port)

    def read(self) -> None:
        while True:
            for key, _ in self._selector.select():
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if key.data:
                    self._join(found.accept()[0], key.data)
                else:
                    self._take(found)

    def _join(self, near: socket.socket, port: int) -> None:
        try:
            far = socket.create_connection((HOST, port))
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            self._far[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _take(self, near: socket.socket) -> None:
        try:
            data = near.recv(CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(near)
        self._due.append((time.monotonic() + self._delay_s, self._far[near], data))
        self._more.release()

    def write(self) -> None:
        while True:
            self._more.acquire()
            at, far, data = self._due.popleft()
            left_s = at - time.monotonic()
            if left_s > 0:
                time.sleep(left_s)
            with contextlib.suppress(OSError):
                if data:
                    far.sendall(data)
                else:
                    far.shutdown(socket.SHUT_WR)


def main(arguments: Sequence[str]) -> None:
    delay_s, *ports = arguments
    hop = Delaying(float(delay_s), [int(port) for port in ports])
    for work in (hop.read, hop.write):
        threading.Thread(target=work, daemon=True).start()
    print(json.dumps(hop.ports), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
