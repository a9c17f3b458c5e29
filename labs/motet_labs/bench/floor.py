"""What the machine itself allows: a hop that does nothing, an echo, and the bare disk.

Every figure of a broker is printed beside one of these, measured in the same run. A hop runs in a
process of its own, so that its CPU time is its alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from motet.fleet.process import cpu_s
from motet.runtime.addresses import transport_for
from motet.runtime.loop import run
from motet.runtime.tcp import PREFIX, host_and_port
from motet.runtime.transport import Connection, Handler
from motet_labs.bench.workload import EVENT_BYTES
from motet_labs.processes import tell, worker

HOST = "127.0.0.1"
ANYWHERE = f"motet://{HOST}:0"
BATCH = 64
WINDOW_BYTES = 1024 * 1024
"""The amount of data that the source keeps in flight."""
MESSAGE = bytes(200)
"""Approximate size of a transaction message."""


class HopFigures(NamedTuple):
    cpu_us_per_event: float
    events_per_s: float


# ── a hop ────────────────────────────────────────────────────────────────────────────────


class _BareHop(asyncio.Protocol):
    """Splits the stream into frames, decodes none, writes once per read."""

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


class CountingSink:
    """Receives and counts frames; sends nothing."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.taken = 0
        self.arrived = asyncio.Event()

    def frames(self, bodies: Sequence[bytes]) -> None:
        self.taken += len(bodies)
        self.arrived.set()

    def closed(self, reason: str) -> None:
        del reason
        self.arrived.set()

    def writable(self) -> None: ...


class _MotetHop(CountingSink):
    """Like the bare hop, but through Motet's own transport; `connection` leads onward."""

    def frames(self, bodies: Sequence[bytes]) -> None:
        self.connection.send(bodies)


async def hop(kind: str, sink: str) -> None:
    """Print the address, and forward until the process is killed."""
    if kind == "bare":
        loop = asyncio.get_running_loop()
        onward, _ = await loop.create_connection(asyncio.Protocol, *host_and_port(sink))
        _BareHop.onward = onward
        server = await loop.create_server(_BareHop, HOST, 0)
        address = f"motet://{HOST}:{server.sockets[0].getsockname()[1]}"
    else:
        out = await transport_for(sink).connect(sink, CountingSink)
        listening = await transport_for(ANYWHERE).listen(ANYWHERE, lambda _: _MotetHop(out))
        address = listening.address
    tell({"address": address})
    await asyncio.Event().wait()


async def _measure_hop(kind: str, seconds: float) -> HopFigures:
    sinks: list[CountingSink] = []

    def accept(connection: Connection) -> Handler:
        sinks.append(CountingSink(connection))
        return sinks[-1]

    transport = transport_for(ANYWHERE)
    listening = await transport.listen(ANYWHERE, accept)
    with worker(hop, kind, listening.address) as child:
        address = (await asyncio.to_thread(child.hear))["address"]
        source = await transport.connect(address, CountingSink)
        await _pump(source, sinks[0], seconds / 5)
        cpu, taken, began = cpu_s(child.pid), sinks[0].taken, time.perf_counter()
        await _pump(source, sinks[0], seconds)
        took_s, cpu = time.perf_counter() - began, cpu_s(child.pid) - cpu
        events = (sinks[0].taken - taken) * BATCH
        source.abort()
    await listening.close()
    return HopFigures(cpu_us_per_event=cpu / events * 1e6, events_per_s=events / took_s)


async def _pump(source: Connection, sink: CountingSink, seconds: float) -> None:
    """Keep a window of batches in flight; at the end wait until all have arrived."""
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
    """The floor of a hop: framed batches of 142-byte events, forwarded undecoded.

    `kind` "motet" is the transport that brokers use, with nothing above it; "bare" is a plain
    asyncio protocol that does the same, but slower, since it copies more.
    """
    return run(_measure_hop(kind, seconds))


# ── an echo ──────────────────────────────────────────────────────────────────────────────


class _Echo(asyncio.Protocol):
    """Sends everything back."""

    _back: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._back = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._back.write(data)


async def echo() -> None:
    """Print the port, and serve until the process is killed."""
    server = await asyncio.get_running_loop().create_server(_Echo, HOST, 0)
    tell({"port": server.sockets[0].getsockname()[1]})
    await server.serve_forever()


def half_round_trip_s(port: int, times: int, pause_s: float = 0.0) -> float:
    """The median time of one hop to an echo, with all other processes of the run present."""
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


# ── the disk ─────────────────────────────────────────────────────────────────────────────


def fsyncs(folder: Path, count: int, record_bytes: int, per_s: float = 0) -> list[float]:
    """Seconds until each append to a bare file was synced; back to back, or at a rate: a disk that
    was just idle is slower."""
    times: list[float] = []
    file = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        record = os.urandom(record_bytes)
        for _ in range(count):
            if per_s:
                time.sleep(max(0.0, 1 / per_s - (times[-1] if times else 0.0)))
            began = time.perf_counter()
            os.write(file, record)
            os.fdatasync(file)
            times.append(time.perf_counter() - began)
    finally:
        os.close(file)
    return times
