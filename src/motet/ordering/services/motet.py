"""Motet itself: `motet://host:port`. A topic is an attribute of events, which come exactly once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from motet.client import Advertisement, Client, Subscription, connect
from motet.errors import ClosedError, Disconnected, MisuseError, UnavailableError
from motet.model import Event, attr
from motet.model.limits import MAX_EVENT_BYTES
from motet.ordering.services.base import (
    CALL_TIMEOUT_S,
    HEADER,
    OPEN_TIMEOUT_S,
    Interrupted,
    Notify,
    Service,
    Topics,
)
from motet.runtime.addresses import check_address

TOPIC = "motet_topic"
ORDER = HEADER.replace("-", "_")
TOPICS = Topics("Motet", "\0", 1000)
WINDOW = 4096


class MotetService(Service):
    """The client reconnects by itself. What is under way meanwhile is published once, later."""

    lossless = True
    most_bytes = MAX_EVENT_BYTES - 2048
    """The rest is for the topic."""
    most_header_bytes = MAX_EVENT_BYTES // 4

    def __init__(self, url: str) -> None:
        check_address(url)
        self._url = url
        self.name = f"Motet at {url.partition('://')[2]}"
        self._client: Client | None = None
        self._notify: Notify | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._advertising: asyncio.Task[Advertisement] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def open(self, notify: Notify, interrupted: Interrupted) -> None:
        if self._client is not None or self._closed:
            raise MisuseError(f"{self.name} was opened before; make another one")
        self._notify = notify
        try:
            self._client = await connect(
                self._url,
                connect_timeout=OPEN_TIMEOUT_S,
                window=WINDOW,
                on_resumed=lambda _: interrupted("the connection to the broker broke"),
                on_session_lost=lambda _: interrupted("the broker has lost the session"),
            )
        except Disconnected as error:
            raise type(error)(f"{self.name} does not answer: {error}") from error

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if self._advertising is not None:
            self._advertising.cancel()
        if client is not None:
            await client.close()

    async def subscribe(self, topic: str) -> None:
        TOPICS.check(topic)
        client = self._there()
        if topic not in self._subscriptions:
            self._subscriptions[topic] = await client.subscribe(
                attr(TOPIC) == topic,
                name=f"topic {topic}",
                callback=self._came,
                timeout=CALL_TIMEOUT_S,
            )

    async def unsubscribe(self, topic: str) -> None:
        self._there()
        subscription = self._subscriptions.pop(topic, None)
        if subscription is not None:
            with suppress(UnavailableError):  # it is gone here, and will be there
                await subscription.unsubscribe(timeout=CALL_TIMEOUT_S)

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        TOPICS.check(topic)
        client = self._there()
        if not client.connected:
            raise Disconnected(f"{self.name} is away; the client is reconnecting")
        self.check_body(body, header)
        attributes = {TOPIC: topic, ORDER: header} if header else {TOPIC: topic}
        async with self._turn:  # in sequence, also while the window is full
            await self._advertised(client)
            receipt = await client.send(attributes, body)
        await receipt

    async def _advertised(self, client: Client) -> None:
        """Who only subscribes advertises nothing."""
        if self._advertising is None or (
            self._advertising.done() and self._advertising.exception() is not None
        ):
            self._advertising = asyncio.create_task(_advertise(client))
        await asyncio.shield(self._advertising)

    def _came(self, event: Event) -> None:
        topic = event[TOPIC]
        if self._notify is not None and isinstance(topic, str):
            header = event.get(ORDER, "")
            self._notify(topic, event.payload, header if isinstance(header, str) else "")

    def _there(self) -> Client:
        if self._client is None:
            raise ClosedError(f"{self.name} is {'closed' if self._closed else 'not open'}")
        return self._client


async def _advertise(client: Client) -> Advertisement:
    return await client.advertise(attr(TOPIC).is_not_null(), timeout=CALL_TIMEOUT_S)
