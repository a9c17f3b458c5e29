"""Processes that load the sites of a sequencer with raw frames; and what the floor of a site is: a
process that reads the same frames, syncs one record for each read, and answers.

The workload is that of the paper: clients with 10 of 1,000 topics each, and events, both drawn by
the same power law over all topics: 0.5 % of the topics (geographic), or 40 % (spray), get 80 %.
"""

from __future__ import annotations

import asyncio
import bisect
import os
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from motet.protocol.contract import Output, Received
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.sequencing.messages import (
    Changed,
    ChangeRequest,
    NumberRequest,
    Numbers,
    OrderHello,
    OrderWelcome,
    TopicIds,
    TopicQuery,
)
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.transport import Connection
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet_labs.bench.floor import ANYWHERE
from motet_labs.processes import percentiles, serve, tell

TOPICS_PER_CLIENT: Final = 10
BATCH: Final = 64
"""Requests in one frame."""
AHEAD: Final = 16
"""Frames of one publisher that are not answered."""
JOINS_AHEAD: Final = 64
PATIENCE_S: Final = 60.0
BEAT_S: Final = 1.0


# ── the workload ─────────────────────────────────────────────────────────────────────────


class Draw:
    """Topics by their rank, 0 is the most popular. Rank r is as likely as a value between r + 1 and
    r + 2 by the power law with this exponent, as in `motet.spark.workload`."""

    def __init__(self, exponent: float, topics: int, seed: int) -> None:
        rise = 1.0 - exponent
        self._random = random.Random(seed)
        self._ends = [((rank + 2) ** rise - 1.0) / rise for rank in range(topics)]

    def topic(self) -> int:
        return bisect.bisect_left(self._ends, self._random.random() * self._ends[-1])

    def topics(self, count: int) -> tuple[int, ...]:
        return tuple([self.topic() for _ in range(count)])

    def different(self, count: int) -> tuple[int, ...]:
        found: dict[int, None] = {}
        while len(found) < count:
            found[self.topic()] = None
        return tuple(found)


# ── a site within this process ───────────────────────────────────────────────────────────


class InProcess:
    """The core of a site with subscribed streams, without sockets, codec or journal."""

    def __init__(self, exponent: float, mode: str, clients: int, topics: int) -> None:
        self.core = SiteCore(SiteConfig("S1", mode=mode))
        self._draw = Draw(exponent, topics, seed=1)
        self._first = 1
        self._step(OrderHello(PROTOCOL_VERSION, "publisher"))
        out = self._step(TopicQuery(tuple(map(_name, range(topics)))))
        answer = out.deliver[-1][1]
        assert isinstance(answer, TopicIds)
        self._ids = [answer.ids[_name(rank)] for rank in range(topics)]
        for number in range(clients):
            chosen = self._draw.different(TOPICS_PER_CLIENT)
            self._step(ChangeRequest(str(number), 1, tuple(self._ids[rank] for rank in chosen)))

    def _step(self, frame: Any) -> Output:
        return self.core.step(Received(1, frame), 0.0)

    def requests(self, events: int) -> list[NumberRequest]:
        """The next frames of the publisher, each of which confirms all before it."""
        made = []
        for _ in range(-(-events // BATCH)):
            topics = tuple(self._ids[rank] for rank in self._draw.topics(BATCH))
            made.append(NumberRequest(self._first, topics, self._first - 1))
            self._first += BATCH
        return made

    def run(self, requests: Sequence[NumberRequest]) -> list[Output]:
        step = self.core.step
        return [step(Received(1, request), 0.0) for request in requests]

    def measure(self, warm_up: int, events: int) -> dict[str, float]:
        """CPU per timestamp, and entries in them."""
        self.run(self.requests(warm_up))
        requests = self.requests(events)
        began = time.process_time()
        outputs = self.run(requests)
        took_s = time.process_time() - began
        stamps = [
            stamp
            for out in outputs
            for _, frame in out.deliver
            if isinstance(frame, Numbers)
            for stamp in frame.stamps
        ]
        assert len(stamps) == len(requests) * BATCH
        entries = sum(len(stamp.entries) // 2 for stamp in stamps if stamp is not None)
        return {"us": took_s / len(stamps) * 1e6, "entries": entries / len(stamps)}


class Machines:
    """Worker."""

    async def measure(
        self, exponent: float, mode: str, clients: int, topics: int, warm_up: int, events: int
    ) -> dict[str, float]:
        return InProcess(exponent, mode, clients, topics).measure(warm_up, events)


async def machines() -> None:
    tell({"ready": True})
    await serve(Machines())


def _name(rank: int) -> str:
    return f"topic-{rank}"


# ── a site as a process, through sockets ─────────────────────────────────────────────────


class SitePeer:
    """Raw frames to and from a site, or to an echo, which takes anything."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._heard: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._ended = ""
        self._beating = asyncio.get_running_loop().create_task(self._beat())

    def frames(self, bodies: Sequence[bytes]) -> None:
        self._heard.extend(bodies)
        self._arrived.set()

    def closed(self, reason: str) -> None:
        self._ended = reason or "closed"
        self._arrived.set()

    def writable(self) -> None: ...

    def say(self, *frames: Frame) -> None:
        self._connection.send([encode(frame) for frame in frames])

    def send(self, body: bytes) -> None:
        self._connection.send((body,))

    async def hear(self) -> bytes:
        """The next frame that is no heartbeat."""
        while True:
            while self._heard:
                body = self._heard.popleft()
                if body != BEAT:
                    return body
            assert not self._ended, self._ended
            self._arrived.clear()
            async with asyncio.timeout(PATIENCE_S):
                await self._arrived.wait()

    async def expect(self, kind: type) -> Any:
        while True:
            frame = decode(await self.hear())
            if isinstance(frame, kind):
                return frame

    async def _beat(self) -> None:
        while not self._ended:
            await asyncio.sleep(BEAT_S)
            self._connection.send((BEAT,))

    def close(self) -> None:
        self._beating.cancel()
        self._connection.abort()


BEAT: Final = encode(Beat())
_parts: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_TAG: Final = msgspec.msgpack.encode("num=")


async def _peer(address: str, client: str) -> SitePeer:
    """Introduced as an instance; an echo says the same back."""
    made: list[SitePeer] = []

    def handler(connection: Connection) -> SitePeer:
        made.append(SitePeer(connection))
        return made[0]

    await transport_for(address).connect(address, handler)
    peer = made[0]
    peer.say(OrderHello(PROTOCOL_VERSION, client))
    return peer


class Load:
    """Streams, and a publisher that keeps some frames of requests under way."""

    def __init__(self, peer: SitePeer, exponent: float, topics: int, *, echo: bool) -> None:
        self._peer = peer
        self._echo = echo
        self._draw = Draw(exponent, topics, seed=2)
        self._ids = list(range(topics))
        self._first = 1
        self._changes = 0

    async def join(self, streams: int) -> None:
        if self._echo:
            return
        await self._peer.expect(OrderWelcome)
        self._peer.say(TopicQuery(tuple(_name(rank) for rank in self._ids)))
        ids = (await self._peer.expect(TopicIds)).ids
        self._ids = [ids[_name(rank)] for rank in self._ids]
        for start in range(0, streams, JOINS_AHEAD):
            some = range(start, min(start + JOINS_AHEAD, streams))
            for number in some:
                chosen = self._draw.different(TOPICS_PER_CLIENT)
                topics = tuple(self._ids[rank] for rank in chosen)
                self._peer.say(ChangeRequest(f"stream-{number}", 1, topics))
            for _ in some:
                changed = await self._peer.expect(Changed)
                assert not changed.error, changed

    def _request(self, count: int) -> bytes:
        topics = tuple(self._ids[rank] for rank in self._draw.topics(count))
        request = encode(NumberRequest(self._first, topics, max(0, self._first - 1 - self._open)))
        self._first += count
        self._open += count
        return request

    _open = 0
    """Requests that are not answered. The others are confirmed, in their sequence."""

    def _answered(self, body: bytes) -> int:
        """How many requests a frame answers."""
        if self._echo:
            return len(decode(body).topics)  # type: ignore[union-attr]
        parts = _parts.decode(body)
        return len(_parts.decode(parts[2])) if bytes(parts[0]) == _TAG else 0

    async def numbers(self, frames: int) -> dict[str, float]:
        """This many frames of requests as fast as the site answers."""
        if self._echo and self._first == 1:
            await self._peer.hear()  # the hello
        answered = 0
        began = time.perf_counter()
        left = frames
        while answered < frames * BATCH:
            while left and self._open < AHEAD * BATCH:
                self._peer.send(self._request(BATCH))
                left -= 1
            count = self._answered(await self._peer.hear())
            self._open -= count
            answered += count
        return {"per_s": answered / (time.perf_counter() - began)}

    async def alone(self, times: int) -> dict[str, float]:
        """One request after the other."""
        took_us = []
        for _ in range(times):
            began = time.perf_counter()
            self._peer.send(self._request(1))
            while not (count := self._answered(await self._peer.hear())):
                pass
            self._open -= count
            took_us.append((time.perf_counter() - began) * 1e6)
        return percentiles(took_us)


# ── changes ──────────────────────────────────────────────────────────────────────────────


class ChangeLoad:
    """A stream that has the first of some topics, and adds the others."""

    def __init__(self, home: SitePeer, stream: str, topics: Sequence[int]) -> None:
        self._home = home
        self._stream = stream
        self._topics = tuple(topics)
        self._count = 0

    async def change(self, topics: Sequence[int]) -> float:
        """Microseconds between the request and the cut: as long as the stream stops."""
        self._count += 1
        began = time.perf_counter()
        self._home.say(ChangeRequest(self._stream, self._count, tuple(topics)))
        changed = await self._home.expect(Changed)
        took_us = (time.perf_counter() - began) * 1e6
        assert changed.number == self._count, changed
        assert not changed.error, changed
        return took_us

    async def add(self, times: int) -> dict[str, float]:
        took_us = []
        for _ in range(times):
            await self.change(self._topics[:1])
            took_us.append(await self.change(self._topics))
        return percentiles(took_us)


async def _ids(address: str, client: str, names: Sequence[str]) -> tuple[SitePeer, list[int]]:
    """The connection of a subscriber, and topics that live there."""
    peer = await _peer(address, client)
    await peer.expect(OrderWelcome)
    peer.say(TopicQuery(tuple(names)))
    ids = (await peer.expect(TopicIds)).ids
    return peer, [ids[name] for name in names]


# ── the worker of both ───────────────────────────────────────────────────────────────────


class Loads:
    """Worker: publishers at sites and at an echo, and streams that change."""

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}
        self._changes: dict[str, ChangeLoad] = {}

    async def publisher(
        self, name: str, address: str, exponent: float, topics: int, streams: int
    ) -> None:
        """Without streams, its other side is an echo."""
        peer = await _peer(address, f"publisher {name}")
        self._loads[name] = load = Load(peer, exponent, topics, echo=not streams)
        await load.join(streams)

    async def stream(self, name: str, addresses: Sequence[str], per_site: int) -> None:
        """With topics of these sites, lowest first."""
        topics: list[int] = []
        homes = []
        for number, address in enumerate(addresses, 1):
            names = [f"S{number}.{each}" for each in range(per_site)]
            peer, ids = await _ids(address, f"subscriber {name}", names)
            homes.append(peer)
            topics += ids
        for peer in homes[1:]:
            peer.close()
        self._changes[name] = ChangeLoad(homes[0], name, topics)
        await self._changes[name].change(topics[:1])

    async def numbers(self, name: str, frames: int) -> dict[str, float]:
        return await self._loads[name].numbers(frames)

    async def alone(self, name: str, times: int) -> dict[str, float]:
        return await self._loads[name].alone(times)

    async def add(self, name: str, times: int) -> dict[str, float]:
        return await self._changes[name].add(times)


async def loads() -> None:
    tell({"ready": True})
    await serve(Loads())


# ── the floor ────────────────────────────────────────────────────────────────────────────


class SyncedEcho:
    """Answers each read with the same frames, after one synced record."""

    def __init__(self, connection: Connection, file: int) -> None:
        self._connection = connection
        self._file = file

    def frames(self, bodies: Sequence[bytes]) -> None:
        os.write(self._file, b"".join(bodies))
        os.fdatasync(self._file)
        self._connection.send(bodies)

    def closed(self, reason: str) -> None: ...

    def writable(self) -> None: ...


async def synced_echo(folder: str) -> None:
    """Print the address, and serve until the process is killed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = os.open(Path(folder) / "echo", flags, 0o644)
    listening = await transport_for(ANYWHERE).listen(
        ANYWHERE, lambda connection: SyncedEcho(connection, file)
    )
    tell({"address": listening.address})
    await asyncio.Event().wait()


# ── a long history for the checkers ──────────────────────────────────────────────────────


def deliveries(count: int, sessions: int, topics: int) -> Iterator[tuple[str, list[Any]]]:
    """Sessions that all got the same events in the same order, as the checkers take them."""
    from motet.testing.ordering.history import Given

    draw = random.Random(3)
    numbers = [0] * topics
    steps = []
    for event in range(count // sessions):
        topic = draw.randrange(topics)
        numbers[topic] += 1
        steps.append(Given(f"topic-{topic}", numbers[topic], event))
    for session in range(sessions):
        yield f"session-{session}", list(steps)
