"""MQTT 5: `mqtt://host:port`, at QoS 1. Brokers drop messages from queues that are full."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import paho.mqtt.client as paho
from aiomqtt import Client, Message, MqttError, ProtocolVersion
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from motet.errors import Disconnected, MisuseError, NotAuthorised
from motet.ordering.services.base import (
    HEADER,
    OPEN_TIMEOUT_S,
    Notify,
    Service,
    Topics,
    Url,
    words_match,
)
from motet.ordering.services.reconnection import (
    Answers,
    Patterns,
    Reconnecting,
    ServiceConnection,
)

PORT = 1883
KEEPALIVE_S = 10
CALLS = 64
"""How many publications may wait for their acknowledgement; more wait here, in sequence."""
CALL_S = 10.0
LEAVE_S = 1.0
TOPICS_PER_CALL = 100
NO_RETAINED = SubscribeOptions.RETAIN_DO_NOT_SEND
ADVICE = "start one with `mosquitto -p {port}`"
TOPICS = Topics("MQTT", "+#\0", 1000)
MOST_HEADER_BYTES = 60_000
"""MQTT counts the bytes of a text in two bytes."""

T = TypeVar("T")

log = logging.getLogger("motet.ordering.mqtt")
log.setLevel(logging.ERROR)  # aiomqtt warns of every eleventh publication that is under way


def check_pattern(pattern: str) -> None:
    """`orders/#` is all topics that begin so, and `orders`; `orders/+` those with one word more."""
    words = pattern.split("/")
    if (
        not pattern
        or not pattern.isprintable()
        or "#" in words[:-1]
        or any(char in word and len(word) > 1 for char in "+#" for word in words)
    ):
        raise MisuseError(f"{pattern!r} is not a pattern of MQTT; write for example 'orders/#'")


def matches(pattern: str, topic: str) -> bool:
    return words_match(pattern, topic, separator="/", one="+", any_number="#")


def mqtt(url: str) -> Service:
    at = Url(url, PORT)
    name = f"MQTT at {at.server}"
    return Reconnecting(
        name,
        ADVICE.format(port=at.port),
        lambda notify: MqttConnection(at, name, notify),
        TOPICS.check,
        patterns=Patterns(check_pattern, matches),
        most_header_bytes=MOST_HEADER_BYTES,
    )


class PassingQueue(asyncio.Queue[Message]):
    """A queue of aiomqtt that passes each message on at once: nothing ever waits in it."""

    def __init__(self, notify: Notify) -> None:
        super().__init__()
        self._notify = notify

    def put_nowait(self, item: Message) -> None:
        payload, given = item.payload, getattr(item.properties, "UserProperty", ())
        header = next((value for name, value in given if name == HEADER), "")
        self._notify(item.topic.value, payload if isinstance(payload, bytes) else b"", header)


class LoopClient(Client):
    """aiomqtt asks the loop to watch a socket for writing only in the next iteration. It may be
    closed by then, and its number belong to a socket of another connection."""

    def _on_socket_register_write(self, client: paho.Client, userdata: Any, sock: Any) -> None:
        try:
            on_the_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # paho connects in a thread
            on_the_loop = False
        if not on_the_loop:
            super()._on_socket_register_write(client, userdata, sock)
            return

        def write() -> None:
            try:
                client.loop_write()
            except Exception as error:
                if not self._disconnected.done():
                    self._disconnected.set_exception(error)

        self._loop.add_writer(sock.fileno(), write)


class MqttConnection(ServiceConnection):
    def __init__(self, url: Url, name: str, notify: Notify) -> None:
        self._url = url
        self._name = name
        self._notify = notify
        self._client: Client | None = None
        self._answers = Answers(name)
        self._watch: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Future[Any]] = set()

    async def open(self) -> None:
        url = self._url
        try:
            # paho connects in a thread, which nothing can end: first see whether anybody is there
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self._client = client = LoopClient(
                url.host,
                url.port,
                username=url.user,
                password=url.password,
                protocol=ProtocolVersion.V5,
                clean_start=True,
                keepalive=KEEPALIVE_S,
                timeout=OPEN_TIMEOUT_S / 2,
                queue_type=cast("type[asyncio.Queue[Message]]", self._inbox),
                max_concurrent_outgoing_calls=CALLS,
                socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
                logger=log,
            )
            await client.__aenter__()
        except MqttConnectError as error:
            raise NotAuthorised(f"{self._name} refuses the connection: {error}") from error
        except (OSError, MqttError) as error:
            raise Disconnected(f"{self._name} does not answer: {error}") from error
        client.timeout = CALL_S
        self._watch = asyncio.create_task(self._until_it_breaks(client))

    def _inbox(self, maxsize: int) -> PassingQueue:
        del maxsize  # nothing waits
        return PassingQueue(self._notify)

    async def _until_it_breaks(self, client: Client) -> None:
        try:
            async for _ in client.messages:
                pass
        except MqttError as error:
            self._fail(str(error.__cause__ or error))

    async def subscribe(self, topics: Sequence[str]) -> None:
        options = SubscribeOptions(qos=1, retainHandling=NO_RETAINED)
        for at in range(0, len(topics), TOPICS_PER_CALL):
            asked = topics[at : at + TOPICS_PER_CALL]
            filters = [(topic, options) for topic in asked]
            codes = await self._call(self._there.subscribe(filters))
            for topic, code in zip(asked, codes, strict=True):
                if isinstance(code, ReasonCode) and code.is_failure:
                    raise NotAuthorised(f"{self._name} refuses topic {topic!r}: {code}")

    async def unsubscribe(self, topic: str) -> None:
        await self._call(self._there.unsubscribe(topic))

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        properties = None
        if header:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.UserProperty = [(HEADER, header)]
        await self._call(self._there.publish(topic, body, 1, properties=properties))

    async def broken(self) -> str:
        return await asyncio.shield(self._answers.broken)

    async def close(self) -> None:
        self._fail("it was closed")
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        client, self._client = self._client, None
        if client is not None:
            client.timeout = LEAVE_S
            with suppress(MqttError, asyncio.CancelledError):
                await client.__aexit__(None, None, None)

    @property
    def _there(self) -> Client:
        if self._client is None or self._answers.broken.done():
            raise Disconnected(self._answers.text())
        return self._client

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """aiomqtt would wait for an answer also when the connection is broken. With Python 3.11 it
        may swallow a cancellation, so ours must not pass through it."""
        calling = asyncio.ensure_future(call)
        self._calls.add(calling)
        try:
            await asyncio.wait((calling,))
            if calling.cancelled():
                raise Disconnected(self._answers.text())
            return calling.result()
        except MqttError as error:
            self._fail(str(error))
            raise Disconnected(f"{self._name} did not answer: {error}") from error
        finally:
            self._calls.discard(calling)
            calling.cancel()

    def _fail(self, why: str) -> None:
        self._answers.fail(why)
        for call in list(self._calls):
            call.cancel()
