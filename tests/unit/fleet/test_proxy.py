"""The links' way through our hands: it carries, breaks, holds back and heals."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from motet.fleet.process import HOST
from motet.fleet.proxy import LinkProxy
from tests.waiting import PATIENCE_S, eventually

AWHILE_S = 0.2


class Neighbour:
    """Listens, and sends everything back."""

    def __init__(self) -> None:
        self.server: asyncio.Server | None = None
        self.accepted = 0

    async def listen(self) -> int:
        self.server = await asyncio.start_server(self._serve, HOST, 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.accepted += 1
        try:
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class Link:
    def __init__(self, proxy: LinkProxy, neighbour: Neighbour, losses: list[str]) -> None:
        self.proxy = proxy
        self.neighbour = neighbour
        self.losses = losses

    async def dial(self) -> tuple[StreamReader, StreamWriter]:
        return await asyncio.open_connection(HOST, self.proxy.port)


@pytest_asyncio.fixture
async def link() -> AsyncIterator[Link]:
    neighbour, losses = Neighbour(), list[str]()
    proxy = LinkProxy(await neighbour.listen(), lambda: losses.append("lost"))
    await proxy.open()
    yield Link(proxy, neighbour, losses)
    await proxy.close()
    assert neighbour.server is not None
    neighbour.server.close()


async def echo(reader: StreamReader, writer: StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readexactly(len(data))


async def is_closed(reader: StreamReader) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read(1) == b""
        except OSError:
            return True


async def until_lost(link: Link, count: int) -> None:
    await eventually(lambda: len(link.losses) >= count)


async def test_the_proxy_carries_bytes_both_ways(link: Link) -> None:
    reader, writer = await link.dial()
    assert await echo(reader, writer, b"x" * 200_000) == b"x" * 200_000
    assert link.proxy.connected
    assert link.losses == []
    writer.close()
    await until_lost(link, 1)
    assert not link.proxy.connected


async def test_a_cut_resets_and_refuses_until_it_heals(link: Link) -> None:
    reader, writer = await link.dial()
    assert await echo(reader, writer, b"before") == b"before"
    before = link.proxy.changes
    link.proxy.cut()
    assert await is_closed(reader)
    await until_lost(link, 1)
    assert link.proxy.changes > before
    refused, other = await link.dial()
    assert await is_closed(refused)
    assert link.neighbour.accepted == 1
    link.proxy.heal()
    healed, healed_writer = await link.dial()
    assert await echo(healed, healed_writer, b"after") == b"after"
    for each in (writer, other, healed_writer):
        each.close()


async def test_a_stall_holds_everything_back_and_loses_nothing(link: Link) -> None:
    reader, writer = await link.dial()
    assert await echo(reader, writer, b"before") == b"before"
    link.proxy.stall()
    writer.write(b"late")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(AWHILE_S):
            await reader.readexactly(1)
    link.proxy.heal()
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.readexactly(4) == b"late"
    assert link.losses == []
    writer.close()


async def test_the_proxy_resets_a_connection_if_the_other_end_is_closed(link: Link) -> None:
    assert link.neighbour.server is not None
    link.neighbour.server.close()
    await link.neighbour.server.wait_closed()
    reader, writer = await link.dial()
    assert await is_closed(reader)
    assert not link.proxy.connected
    writer.close()
