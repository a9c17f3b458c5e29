"""The floor of a latency: how long one hop takes here, with all these processes around.

    python -m motet.experiments.echo

is a server that sends back what it gets; it prints its port. `hop_s` measures half of the way there
and back, through the same delaying hop as the links of the overlay.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from statistics import median

HOST = "127.0.0.1"
MESSAGE = bytes(200)
"""About what a message of a transaction takes."""


def hop_s(port: int, times: int, pause_s: float = 0.0) -> float:
    """One way, in the middle of so many."""
    took = []
    with socket.create_connection((HOST, port)) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(times):
            time.sleep(pause_s)
            began = time.perf_counter()
            line.sendall(MESSAGE)
            left = len(MESSAGE)
            while left:
                left -= len(line.recv(left))
            took.append((time.perf_counter() - began) / 2)
    return median(took)


def _serve(line: socket.socket) -> None:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with line:
        while data := line.recv(65536):
            line.sendall(data)


def main() -> None:
    listening = socket.create_server((HOST, 0))
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(listening,), daemon=True).start()
    sys.stdin.read()


def _accept(listening: socket.socket) -> None:
    while True:
        line, _ = listening.accept()
        threading.Thread(target=_serve, args=(line,), daemon=True).start()


if __name__ == "__main__":
    main()
