"""One connection of a client: heartbeats that nothing stops, and frames that nothing tears."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from motet.client.line.line import BEAT, FRAMED_BEAT, Line
from motet.client.line.transport import HeartbeatThread, SharedTransport, heartbeats
from motet.runtime.tcp import PREFIX, TcpConnection
from motet.runtime.transport import Connection, Handler
from tests.waiting import PATIENCE_S, eventually, wait_until


class Listener:
    def __init__(self) -> None:
        self.line: Line
        self.ended: list[str] = []
        self.heard_bodies: list[bytes] = []

    def connected(self, line: Line) -> None:
        self.line = line

    def heard(self, bodies: Sequence[bytes]) -> None:
        self.heard_bodies.extend(bodies)

    def relieved(self) -> None: ...

    def disconnected(self, reason: str) -> None:
        self.ended.append(reason)


def sockets() -> tuple[socket.socket, socket.socket]:
    """Both ends of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


@asynccontextmanager
async def connected(heartbeat_s: float) -> AsyncIterator[tuple[Listener, socket.socket]]:
    near, far = sockets()
    listener = Listener()
    SharedTransport(near).begin(TcpConnection(lambda below: Line(listener, below), None))
    listener.line.keep_pace(heartbeat_s)
    try:
        yield listener, far
    finally:
        listener.line.connection.abort()
        await eventually(lambda: bool(listener.ended))
        far.close()


def read(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 20)
    except BlockingIOError:
        return b""


def beats_while_blocked(far: socket.socket) -> bytes:
    """What comes first, as much as three beats are. Blocks the loop's thread meanwhile."""
    received = b""

    def received_all() -> bool:
        nonlocal received
        received += read(far)
        return len(received) >= 3 * len(FRAMED_BEAT)

    wait_until(received_all)
    return received[: 3 * len(FRAMED_BEAT)]


def frames_of(data: bytes) -> list[bytes]:
    """Raises if a frame is torn, or its end is missing."""
    found = []
    while data:
        (length,) = PREFIX.unpack_from(data)
        assert len(data) >= 4 + length, "the last frame is not complete"
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


async def test_heartbeats_go_on_while_a_handler_blocks_the_loop() -> None:
    async with connected(0.04) as (listener, far):
        assert beats_while_blocked(far) == FRAMED_BEAT * 3
        listener.line.connection.abort()
        await eventually(lambda: bool(listener.ended))
        assert listener.line not in heartbeats
        read(far)
        time.sleep(0.1)
        assert read(far) == b""


async def test_a_line_uses_the_heartbeat_of_its_broker_at_once() -> None:
    async with connected(60.0) as (listener, far):
        time.sleep(0.05)  # the thread has gone to sleep for long
        listener.line.keep_pace(0.04)
        assert beats_while_blocked(far) == FRAMED_BEAT * 3
    listener.line.keep_pace(0.04)  # harmless after the end


async def test_a_frame_that_is_half_written_is_finished_while_a_handler_blocks() -> None:
    """The kernel takes a part of a large frame, then the loop is stuck: only the heartbeat thread
    can go on. The broker gets all of the frame, and heartbeats behind it."""
    large = os.urandom(6_000_000)
    async with connected(0.02) as (listener, far):
        listener.line.send([large])
        assert listener.line.connection.backlog_bytes
        received = b""
        deadline = time.monotonic() + PATIENCE_S
        while len(received) < len(large) + 4 + 3 * len(FRAMED_BEAT):
            assert time.monotonic() < deadline
            received += read(far)
            time.sleep(0.001)
        while len(received) % len(FRAMED_BEAT) != (len(large) + 4) % len(FRAMED_BEAT):
            received += read(far)
        assert [frame for frame in frames_of(received) if frame != BEAT] == [large]
        assert frames_of(received)[-1] == BEAT
        assert not listener.line.connection.backlog_bytes


async def test_two_threads_never_interleave_their_frames() -> None:
    """One writes frames of all sizes, the other heartbeats without a pause."""
    async with connected(60.0) as (listener, far):
        shared = listener.line._shared
        assert shared is not None
        stop = threading.Event()

        def hammer() -> None:
            while not stop.is_set():
                shared.beat(FRAMED_BEAT, 0.0)

        received = bytearray()

        def drain() -> None:
            while not stop.is_set() or not caught_up.is_set():
                data = read(far)
                received.extend(data)
                if stop.is_set() and not data:
                    caught_up.set()
                time.sleep(0.0005)

        caught_up = threading.Event()
        threads = [threading.Thread(target=work) for work in (hammer, drain)]
        for thread in threads:
            thread.start()
        bodies = [bytes([n % 251]) * (1 + 977 * n % 40_000) for n in range(400)]
        for n, body in enumerate(bodies):
            listener.line.send([body])
            if n % 20 == 0:
                await asyncio.sleep(0)
        await eventually(lambda: not listener.line.connection.backlog_bytes)
        stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        found = frames_of(bytes(received))
        assert [body for body in found if body != BEAT] == bodies
        assert BEAT in found


async def test_a_lost_peer_is_noticed_by_the_first_thread_that_writes() -> None:
    async with connected(0.02) as (listener, far):
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.close()
        time.sleep(0.1)  # the thread writes into the reset connection; the loop cannot
        await eventually(lambda: bool(listener.ended))
        assert len(listener.ended) == 1


async def test_without_a_thread_the_loop_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    monkeypatch.setattr(heartbeats, "_thread", None)
    async with connected(0.02) as (listener, far):
        assert listener.line not in heartbeats
        await eventually(lambda: BEAT in read(far))


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_line_that_fails_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "motet.client")

    class Broken:
        heartbeat_s = 0.02

        def beat(self) -> None:
            raise AttributeError("half made")

    broken = Broken()
    heartbeats.add(broken)
    async with connected(0.02) as (_, far):
        await eventually(lambda: broken not in heartbeats)
        await eventually(lambda: bool(read(far)))


async def test_a_listener_that_fails_leaves_no_line_and_no_descriptor() -> None:
    class Failing(Listener):
        def connected(self, line: Line) -> None:
            self.line = line
            raise ValueError("not now")

    near, far = sockets()
    listener = Failing()
    with pytest.raises(ValueError, match="not now"):
        SharedTransport(near).begin(TcpConnection(lambda below: Line(listener, below), None))
    assert listener.ended == ["not now"]
    assert listener.line not in heartbeats
    await eventually(lambda: near.fileno() < 0)
    far.close()


class CountedLine:
    def __init__(self, heartbeat_s: float) -> None:
        self.heartbeat_s = heartbeat_s
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1


async def test_a_new_line_wakes_the_heartbeat_thread_only_if_it_cannot_wait() -> None:
    """A thread that wakes looks at all lines: with many clients that connect, that is dear."""
    beating = HeartbeatThread()
    calm = CountedLine(3600.0)
    try:
        beating.add(calm)
        await eventually(lambda: calm.beats == 1 and beating._wakes_at > time.monotonic())
        others = [CountedLine(3600.0) for _ in range(20)]
        for other in others:
            beating.add(other)
            beating.hurry(other)
            await asyncio.sleep(0.001)  # a thread that was woken begins to look
        hasty = CountedLine(0.2)
        beating.add(hasty)
        await eventually(lambda: hasty.beats >= 1)
        beating.remove(hasty)
        assert calm.beats <= 2 + hasty.beats
        quickened = others[0]
        quickened.heartbeat_s = 0.01
        beats = quickened.beats
        beating.hurry(quickened)
        await eventually(lambda: quickened.beats >= beats + 2)
    finally:
        for line in list(beating._lines):
            beating.remove(line)


async def test_an_exception_of_a_handler_ends_the_connection() -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    class Failing(Handler):
        def __init__(self, connection: Connection) -> None:
            self.closings: list[str] = []
            del connection

        def frames(self, bodies: Sequence[bytes]) -> None:
            raise ValueError(f"{len(bodies)} frames too many")

        def closed(self, reason: str) -> None:
            self.closings.append(reason)

        def writable(self) -> None: ...

    near, far = sockets()
    made: list[Failing] = []

    def accept(connection: Connection) -> Handler:
        made.append(Failing(connection))
        return made[0]

    SharedTransport(near).begin(TcpConnection(accept, None))
    far.send(FRAMED_BEAT)
    await eventually(lambda: made[0].closings == ["1 frames too many"])
    assert isinstance(told[0]["exception"], ValueError)
    far.close()
