"""What the machine itself allows: the hop that does nothing, and the disk alone.

Every figure of a broker is printed beside one of these, measured in the same run. A hop runs in
a process of its own, so that its CPU time is its alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from motet.runtime.addresses import transport_for
from motet.runtime.loop import run
from motet.runtime.tcp import PREFIX, host_and_port
from motet.runtime.transport import Connection, Handler

EVENT_BYTES = 142
BATCH = 64
WINDOW_BYTES = 1024 * 1024
"""What the source keeps under way."""


@dataclass(frozen=True)
class HopFigures:
    cpu_us_per_event: float
    events_per_s: float


# ── in the process of the hop ────────────────────────────────────────────────────────────


class _BareHop(asyncio.Protocol):
    """Cuts the stream into frames, looks into none, writes once per read."""

    onward: asyncio.Transport

    def __init__(self) -> None:
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        start, parts, end = 0, [], len(data)
        while end - start >= 4:
            stop = start + 4 + PREFIX.unpack_from(data, start)[0]
            if stop > end:
                break
            parts.append(data[start:stop])
            start = stop
        self._rest = data[start:]
        if parts:
            self.onward.write(b"".join(parts))


class _MotetHop:
    """The same through Motet's own transport."""

    def __init__(self, onward: Connection) -> None:
        self._onward = onward

    def frames(self, bodies: Sequence[bytes]) -> None:
        self._onward.send(bodies)

    def closed(self, reason: str) -> None: ...

    def writable(self) -> None: ...


class _Sink:
    """Takes frames, counts them, says nothing."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.taken = 0
        self.arrived = asyncio.Event()

    def frames(self, bodies: Sequence[bytes]) -> None:
        self.taken += len(bodies)
        self.arrived.set()

    def closed(self, reason: str) -> None: ...

    def writable(self) -> None: ...


async def _hop(kind: str, sink: str) -> None:
    """Print the address, pass on, print the CPU time for every line on standard input."""
    loop = asyncio.get_running_loop()
    if kind == "bare":
        onward, _ = await loop.create_connection(asyncio.Protocol, *host_and_port(sink))
        _BareHop.onward = onward
        server = await loop.create_server(_BareHop, "127.0.0.1", 0)
        address = f"motet://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        out = await transport_for(sink).connect(sink, _Sink)
        there = "motet://127.0.0.1:0"
        listening = await transport_for(there).listen(there, lambda _: _MotetHop(out))
        address = listening.address
    print(address, flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(time.process_time()), flush=True)


# ── in the process that measures ─────────────────────────────────────────────────────────


async def _measure_hop(kind: str, seconds: float) -> HopFigures:
    sinks: list[_Sink] = []

    def accept(connection: Connection) -> Handler:
        sinks.append(_Sink(connection))
        return sinks[-1]

    there = "motet://127.0.0.1:0"
    transport = transport_for(there)
    listening = await transport.listen(there, accept)
    command = [sys.executable, "-m", "motet.bench.floor", kind, listening.address]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    loop = asyncio.get_running_loop()
    try:

        async def ask() -> float:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
            return float(await loop.run_in_executor(None, _line, child))

        address = await loop.run_in_executor(None, _line, child)
        source = await transport.connect(address, _Sink)
        await _pump(source, sinks[0], seconds / 5)
        cpu_s, taken, began = await ask(), sinks[0].taken, time.perf_counter()
        await _pump(source, sinks[0], seconds)
        took_s = time.perf_counter() - began
        cpu_s, events = await ask() - cpu_s, (sinks[0].taken - taken) * BATCH
        source.abort()
    finally:
        child.kill()
        child.communicate()
        await listening.close()
    return HopFigures(cpu_us_per_event=cpu_s / events * 1e6, events_per_s=events / took_s)


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


async def _pump(source: Connection, sink: _Sink, seconds: float) -> None:
    """Keep a window of batches under way, and wait at the end until all have arrived."""
    batch = bytes(BATCH * EVENT_BYTES)
    window = WINDOW_BYTES // len(batch)
    sent = first = sink.taken
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or sink.taken < sent:
        room = window - (sent - sink.taken)
        if room > 0 and time.perf_counter() < end:
            source.send([batch] * room)
            sent += room
        sink.arrived.clear()
        await sink.arrived.wait()
    assert sent > first


def passthrough(seconds: float = 1.0, kind: str = "motet") -> HopFigures:
    """The floor of a hop: framed batches of 142-byte events, passed on undecoded.

    `kind` "motet" is the transport that brokers use, with nothing above it; "bare" is a plain
    asyncio protocol that does the same, and slower, since it copies more.
    """
    return run(_measure_hop(kind, seconds))


def fsyncs(folder: Path, count: int, record_bytes: int, per_s: float = 0) -> list[float]:
    """Seconds that each of so many appends to a bare file took until it was synced; one after
    the other, or at a rate: a disk that has just rested is slower."""
    times: list[float] = []
    file = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        record = os.urandom(record_bytes)
        for _ in range(count):
            if per_s:
                time.sleep(1 / per_s)
            began = time.perf_counter()
            os.write(file, record)
            os.fdatasync(file)
            times.append(time.perf_counter() - began)
    finally:
        os.close(file)
    return times


def main(arguments: Sequence[str]) -> None:
    kind, sink = arguments
    run(_hop(kind, sink))


if __name__ == "__main__":
    main(sys.argv[1:])
