"""A real broker process, and someone who speaks raw frames to it."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from typing import TypeVar

import msgspec

from motet.model import Filter, encode_event
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Done,
    Goodnight,
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

PROGRAM = """
import sys
from motet.protocol.config import BrokerConfig
from motet.broker.core.broker import BrokerCore
from motet.broker.driver.driver import BrokerDriver
from motet.broker.overlay.topology import Wiring
from motet.broker.driver.service import serve
from motet.errors import MotetError
from motet.runtime.loop import run

name, neighbours, listen, bound = sys.argv[1:]
config = BrokerConfig(name, tuple(filter(None, neighbours.split(","))), incarnation=1)
wiring = Wiring(listen, max_backlog_bytes=int(bound))


async def work():
    driver = BrokerDriver(BrokerCore(config), wiring)
    return await serve(driver, ready=lambda driver: print(driver.address, flush=True))


try:
    status = run(work())
except MotetError as error:
    sys.exit(f"{type(error).__name__}: {error}")
sys.exit(status)
"""


def body(**attributes: object) -> msgspec.Raw:
    return msgspec.Raw(encode_event(attributes, b"payload"))  # type: ignore[arg-type]


class BrokerProcess:
    def __init__(
        self,
        *,
        neighbours: str = "",
        listen: str = "motet://127.0.0.1:0",
        bound_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._arguments = ("B1", neighbours, listen, str(bound_bytes))
        self._wait = not neighbours  # they are not there, so nothing gets effective
        self.process: asyncio.subprocess.Process
        self.address = ""
        self._speakers: list[Speaker] = []

    async def __aenter__(self) -> BrokerProcess:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, *self._arguments, stdout=pipe, stderr=pipe
        )
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        self.address = line.decode().strip()
        return self

    async def __aexit__(self, *_: object) -> None:
        for speaker in self._speakers:
            speaker.close()
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()

    @property
    def alive(self) -> bool:
        os.kill(self.process.pid, 0)
        return self.process.returncode is None

    async def stopped(self) -> tuple[int, str]:
        """Exit status and what it wrote to standard error."""
        _, errors = await asyncio.wait_for(self.process.communicate(), PATIENCE_S)
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

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
            assert not isinstance(frame, Goodnight), frame

    async def last_word(self) -> Goodnight:
        """A goodnight, and behind it the end."""
        goodnight = await self.hear(Goodnight)
        assert await asyncio.wait_for(self.reader.read(), PATIENCE_S) == b""
        self.writer.close()
        return goodnight

    async def status(self) -> Status:
        self.say(StatusRequest())
        return await self.hear(Status)

    def close(self) -> None:
        self.writer.close()
