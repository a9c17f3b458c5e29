"""TCP keeps the promises of every transport, and survives what only sockets do."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from motet.client.line.transport import SharedTcp
from motet.errors import AddressError, Disconnected
from motet.runtime.addresses import transport_for
from motet.runtime.tcp import TcpTransport, host_and_port
from motet.runtime.transport import MAX_FRAME_BYTES, Connection, Handler, Transport
from tests.conformance.transport_suite import Recorder, TransportSuite
from tests.waiting import PATIENCE_S, eventually

MALFORMED = (
    "motet://",
    "motet://127.0.0.1",
    "motet://:1",
    "motet://127.0.0.1:x",
    "motet://127.0.0.1:70000",
    "motet://127.0.0.1:1/path",
    "motet://me@127.0.0.1:1",
    "http://127.0.0.1:1",
    f"motet://{'x' * 300}:1",
    "motet",
    "",
)


class TestTcp(TransportSuite):
    address = "motet://127.0.0.1:0"
    malformed = MALFORMED
    nobody = "motet://127.0.0.1:1"
    sockets = True


class TestSharedTcp(TestTcp):
    """The client's side of it, which the heartbeat thread may write to as well."""

    def transport(self, address: str) -> Transport:
        transport_for(address)  # checks the scheme
        return SharedTcp()


async def test_names_that_do_not_resolve() -> None:
    with pytest.raises(Disconnected):
        await TcpTransport().connect("motet://nobody.invalid:1", Recorder)
    with pytest.raises(AddressError):
        await TcpTransport().listen("motet://nobody.invalid:0", Recorder)


def test_ipv6_addresses_keep_their_brackets() -> None:
    assert host_and_port("motet://[::1]:7") == ("::1", 7)
    assert host_and_port("localhost:7") == ("localhost", 7)


class Raw:
    """A listener, and a bare socket connected to it."""

    def __init__(self) -> None:
        self.recorders: list[Recorder] = []

    def accept(self, connection: Connection) -> Handler:
        self.recorders.append(Recorder(connection))
        return self.recorders[-1]

    async def __aenter__(self) -> Raw:
        transport = TcpTransport(lambda error: str(error).encode())
        self.listening = await transport.listen("motet://127.0.0.1:0", self.accept)
        self.reader, self.writer = await asyncio.open_connection(
            *host_and_port(self.listening.address)
        )
        await eventually(lambda: bool(self.recorders))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await self.listening.close()
        await eventually(lambda: all(r.closings for r in self.recorders))

    @property
    def recorder(self) -> Recorder:
        return self.recorders[0]

    async def last_words(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()


async def test_frames_cut_anywhere_arrive_whole() -> None:
    bodies = [b"", b"a", b"bc" * 50, bytes(70_000), b"end"]
    stream = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    async with Raw() as raw:
        cuts = [*range(1, 120), 30_000, 65_000, 70_000, len(stream)]
        start = 0
        for cut in cuts:
            raw.writer.write(stream[start:cut])
            await raw.writer.drain()
            await asyncio.sleep(0)
            start = cut
        await eventually(lambda: len(raw.recorder.bodies) == len(bodies))
        assert raw.recorder.bodies == bodies


async def test_a_length_above_the_limit_ends_the_connection_before_the_body() -> None:
    async with Raw() as raw:
        raw.writer.write(struct.pack(">I", 2) + b"ok" + struct.pack(">I", MAX_FRAME_BYTES + 1))
        words = await raw.last_words()
        assert b"above the limit" in words
        assert raw.recorder.bodies == [b"ok"]
        raw.writer.close()
        await eventually(lambda: bool(raw.recorder.closings))
        assert "above the limit" in raw.recorder.closings[0]


async def test_the_last_frame_reaches_a_peer_that_keeps_sending() -> None:
    async with Raw() as raw:
        raw.writer.write(b"\xff" * 4 + bytes(5_000_000))
        assert b"above the limit" in await raw.last_words()


async def test_a_peer_that_ends_mid_frame_is_told() -> None:
    async with Raw() as raw:
        raw.writer.write(struct.pack(">I", 100) + b"half")
        raw.writer.write_eof()
        assert b"middle of a frame" in await raw.last_words()
        await eventually(lambda: bool(raw.recorder.closings))
        assert raw.recorder.bodies == []


async def test_a_peer_that_dies_mid_frame() -> None:
    async with Raw() as raw:
        raw.writer.write(struct.pack(">I", 100) + b"half")
        await raw.writer.drain()
        await asyncio.sleep(0.01)
        linger = struct.pack("ii", 1, 0)  # reset instead of an orderly end
        raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        raw.writer.close()
        await eventually(lambda: bool(raw.recorder.closings))
        assert raw.recorder.bodies == []
        assert len(raw.recorder.closings) == 1


async def test_an_announced_frame_that_never_comes_costs_no_memory() -> None:
    async with Raw() as raw:
        raw.writer.write(struct.pack(">I", MAX_FRAME_BYTES))
        await raw.writer.drain()
        await asyncio.sleep(0.01)
        assert len(raw.recorder.connection._buffer) < 1_000_000  # type: ignore[attr-defined]


async def test_a_connection_that_is_gone_costs_no_memory() -> None:
    async with Raw() as raw:
        raw.writer.write(struct.pack(">I", MAX_FRAME_BYTES) + bytes(2_000_000))
        await raw.writer.drain()
        connection = raw.recorder.connection
        await eventually(lambda: connection.received_bytes > 2_000_000)
        raw.writer.close()
        await eventually(lambda: bool(raw.recorder.closings))
        assert len(connection._buffer) == 0  # type: ignore[attr-defined]
        assert not hasattr(connection, "_handler"), "a cycle that few collections would find"
