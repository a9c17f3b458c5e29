"""A real broker process, and a peer that sends raw frames to it."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from motet.fleet.process import BrokerProcess
from motet.model import Filter, encode_event
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Done,
    Farewell,
    Publish,
    Status,
    StatusRequest,
    SubscribeRequest,
    Welcome,
)
from motet.runtime.codec import decode, encode
from motet.runtime.tcp import host_and_port
from tests.waiting import PATIENCE_S

F = TypeVar("F")

SMALL_BACKLOG = """
import sys
from functools import partial
from motet.cli import broker
from motet.cli.main import main
broker.Wiring = partial(broker.Wiring, max_backlog_bytes=int(sys.argv.pop(1)))
main()
"""
"""The program of a broker that holds few bytes for a client that does not read."""


def body(**attributes: object) -> msgspec.Raw:
    return msgspec.Raw(encode_event(attributes, b"payload"))  # type: ignore[arg-type]


class RawBroker(BrokerProcess):
    """A volatile broker that is spoken to with raw frames. `async with` starts it."""

    def __init__(
        self,
        folder: Path,
        *,
        neighbour: str = "",
        listen: str = "motet://127.0.0.1:0",
        backlog_bytes: int | None = None,
    ) -> None:
        small = (sys.executable, "-c", SMALL_BACKLOG, str(backlog_bytes))
        options = ["--listen", listen, "--durability", "volatile"]
        super().__init__(
            "B1",
            [*options, "--link", neighbour] if neighbour else options,
            folder,
            program=() if backlog_bytes is None else small,
        )
        self._wait = not neighbour  # it is not there, so nothing gets effective
        self._speakers: list[Speaker] = []

    async def __aenter__(self) -> RawBroker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for speaker in self._speakers:
            speaker.close()
        self.end()

    async def speaker(self) -> Speaker:
        speaker = Speaker(*await asyncio.open_connection(*host_and_port(self.address)))
        self._speakers.append(speaker)
        return speaker

    async def client(self, name: str) -> Speaker:
        speaker = await self.speaker()
        speaker.say(ClientHello(PROTOCOL_VERSION, name))
        await speaker.hear(Welcome)
        return speaker

    async def publisher(self, name: str = "p", space: str = "x >= 0") -> Speaker:
        client = await self.client(name)
        client.say(AdvertiseRequest(1, Filter.parse(space), self._wait))
        await client.hear(Done)
        return client

    async def subscriber(self, name: str = "s", text: str = "x >= 0") -> Speaker:
        client = await self.client(name)
        client.say(SubscribeRequest(1, Filter.parse(text), self._wait))
        await client.hear(Done)
        return client


class Speaker:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.published = 0

    def say(self, *frames: Frame) -> None:
        self.say_bytes(*(encode(frame) for frame in frames))

    def say_bytes(self, *bodies: bytes) -> None:
        self.writer.write(b"".join(struct.pack(">I", len(each)) + each for each in bodies))

    def publish(self, *bodies: msgspec.Raw, sure: bool = False) -> None:
        self.say(Publish(self.published + 1, list(bodies), sure))
        self.published += len(bodies)

    async def hear_any(self) -> Frame:
        """The next frame that is not just a sign of life."""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                (length,) = struct.unpack(">I", await self.reader.readexactly(4))
                frame = decode(await self.reader.readexactly(length))
            if not isinstance(frame, Beat):
                return frame

    async def hear(self, kind: type[F]) -> F:
        """The next frame of this kind; those before it are passed over."""
        while True:
            frame = await self.hear_any()
            if isinstance(frame, kind):
                return frame
            assert not isinstance(frame, Farewell), frame

    async def last_word(self) -> Farewell:
        """A `Farewell`, and behind it the end."""
        farewell = await self.hear(Farewell)
        assert await asyncio.wait_for(self.reader.read(), PATIENCE_S) == b""
        self.writer.close()
        return farewell

    async def status(self) -> Status:
        self.say(StatusRequest())
        return await self.hear(Status)

    def close(self) -> None:
        self.writer.close()
