"""Publishers and subscribers at event services, in processes of their own: plainly, with the
library of the service as it is used alone, and ordered, with `motet.ordering` over the same
service.

Both sides publish the same events to the same topics; a subscriber takes all of them. A plain
publisher that nothing slows down is told every now and then how far its subscriber is, so that
no queue overflows.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import motet.ordering
from motet.client.client import Client, connect
from motet.model import attr
from motet_labs.bench.workload import EVENT_BYTES
from motet_labs.processes import serve, tell

TOPICS: Final = 10
PAYLOAD: Final = bytes(EVENT_BYTES)
TOGETHER: Final = 100
"""Publications that a plain publisher hands over at once, where the library has batches."""
PATIENCE_S: Final = 60.0
TOPIC: Final = "topic"


class Side(ABC):
    """A client of a service that publishes or subscribes, to the end of its process."""

    def __init__(self, url: str, came: Callable[[], None]) -> None:
        self.url = url
        self.came = came
        self.stack = AsyncExitStack()
        scheme = url.partition("://")[0]
        self.topics = tuple(f"{scheme}-{number}" for number in range(TOPICS))
        """Of this service alone: each topic of a sequencer belongs to one service."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def subscribe(self) -> None: ...

    @abstractmethod
    async def publish(self, events: int) -> None:
        """Return when all are with the service."""


class PlainNats(Side):
    async def open(self) -> None:
        import nats

        self._nc = await nats.connect(self.url)
        self.stack.push_async_callback(self._nc.close)

    async def subscribe(self) -> None:
        async def take(_: Any) -> None:
            self.came()

        for topic in self.topics:
            await self._nc.subscribe(topic, cb=take)
        await self._nc.flush()

    async def publish(self, events: int) -> None:
        for number in range(events):
            await self._nc.publish(self.topics[number % TOPICS], PAYLOAD)
        await self._nc.flush()


class PlainRedis(Side):
    """In pipelines; one publication after the other would wait for each answer."""

    async def open(self) -> None:
        from redis import asyncio as redis

        self._redis = redis.Redis.from_url(self.url)
        self.stack.push_async_callback(self._redis.aclose)

    async def subscribe(self) -> None:
        pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
        await pubsub.subscribe(*self.topics)
        for _ in self.topics:
            await pubsub.get_message(timeout=PATIENCE_S)

        async def take() -> None:
            async for _ in pubsub.listen():
                self.came()

        listening = asyncio.create_task(take())
        self.stack.callback(listening.cancel)

    async def publish(self, events: int) -> None:
        for start in range(0, events, TOGETHER):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for number in range(start, min(start + TOGETHER, events)):
                    pipeline.publish(self.topics[number % TOPICS], PAYLOAD)
                await pipeline.execute()


class PlainMqtt(Side):
    """At QoS 0, which is faster than the QoS 1 that ordering uses."""

    async def open(self) -> None:
        from urllib.parse import urlsplit

        from aiomqtt import Client as MqttClient
        from aiomqtt import ProtocolVersion

        where = urlsplit(self.url)
        self._client = MqttClient(
            where.hostname or "", where.port or 0, protocol=ProtocolVersion.V5
        )
        await self.stack.enter_async_context(self._client)

    async def subscribe(self) -> None:
        await self._client.subscribe([(topic, 0) for topic in self.topics])

        async def take() -> None:
            async for _ in self._client.messages:
                self.came()

        listening = asyncio.create_task(take())
        self.stack.callback(listening.cancel)

    async def publish(self, events: int) -> None:
        for number in range(events):
            await self._client.publish(self.topics[number % TOPICS], PAYLOAD)


class PlainMotet(Side):
    """Exactly once, as ordering uses it."""

    _client: Client

    async def open(self) -> None:
        self._client = await self.stack.enter_async_context(connect(self.url))

    async def subscribe(self) -> None:
        for topic in self.topics:
            await self._client.subscribe(attr(TOPIC) == topic, callback=lambda _: self.came())

    async def publish(self, events: int) -> None:
        await self._client.advertise(attr(TOPIC).is_not_null())
        for number in range(events):
            await self._client.send({TOPIC: self.topics[number % TOPICS]}, PAYLOAD)
        await self._client.flush()


class Ordered(Side):
    """Over any of them."""

    def __init__(self, url: str, sequencer: str, came: Callable[[], None]) -> None:
        super().__init__(url, came)
        self._sequencer = sequencer

    async def open(self) -> None:
        self._client = await self.stack.enter_async_context(
            motet.ordering.connect(self.url, sequencer=self._sequencer)
        )

    async def subscribe(self) -> None:
        stream = await self._client.subscribe(*self.topics)

        async def take() -> None:
            async for event in stream:
                assert not event.late
                self.came()

        taking = asyncio.create_task(take())
        self.stack.callback(taking.cancel)

    async def publish(self, events: int) -> None:
        for number in range(events):
            await self._client.send(self.topics[number % TOPICS], PAYLOAD)
        await self._client.flush()


PLAIN: Final[dict[str, type[Side]]] = {
    "nats": PlainNats, "redis": PlainRedis, "mqtt": PlainMqtt, "motet": PlainMotet
}  # fmt: skip


class ServiceEnd:
    """One side, and how many events have come."""

    def __init__(self, url: str, sequencer: str) -> None:
        self._count = self._awaited = 0
        self._all = asyncio.Event()
        self._last_at = 0.0
        plain = PLAIN[url.partition("://")[0]]
        self.side = Ordered(url, sequencer, self._came) if sequencer else plain(url, self._came)

    def _came(self) -> None:
        self._count += 1
        if self._count == self._awaited:
            self._last_at = time.monotonic()
            self._all.set()

    def expect(self, events: int) -> None:
        self._count, self._awaited = 0, events
        self._all.clear()

    async def came(self) -> dict[str, float]:
        """When the last of the expected events came, on the clock that all processes share."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._all.wait()
        except TimeoutError:
            return {"at": time.monotonic(), "lost": self._awaited - self._count}
        return {"at": self._last_at, "lost": 0}


class Ends:
    """Worker: ends at several services, plain and ordered."""

    def __init__(self) -> None:
        self._ends: dict[str, ServiceEnd] = {}

    async def open(self, name: str, url: str, sequencer: str) -> None:
        """Without a sequencer, plainly."""
        self._ends[name] = end = ServiceEnd(url, sequencer)
        await end.side.open()

    async def subscribe(self, name: str) -> None:
        await self._ends[name].side.subscribe()

    async def expect(self, name: str, events: int) -> None:
        self._ends[name].expect(events)

    async def came(self, name: str) -> dict[str, float]:
        return await self._ends[name].came()

    async def publish(self, name: str, events: int) -> dict[str, float]:
        began = time.monotonic()
        await self._ends[name].side.publish(events)
        return {"at": began}


async def ends() -> None:
    tell({"ready": True})
    await serve(Ends())
