"""RabbitMQ: `amqp://host:port/vhost`. Its queues live as long as their connections, so who is not
connected misses messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import aio_pika
import aiormq.exceptions
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractExchange,
    AbstractIncomingMessage,
    AbstractQueue,
)

from motet.errors import Disconnected, MisuseError, NotAuthorised, UnavailableError
from motet.ordering.services.base import (
    CALL_TIMEOUT_S,
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

PORT = 5672
EXCHANGE = "amq.topic"
"""RabbitMQ has it from the start."""
HEARTBEAT_S = 5
LEAVE_S = 1.0
MOST_HEADER_BYTES = 64 * 1024
"""Headers of a message travel in one frame, of 128 KiB by default."""
ADVICE = "start one with `rabbitmq-server`"
TOPICS = Topics("RabbitMQ", "*#", 255)


def check_pattern(pattern: str) -> None:
    """`orders.#` is all topics that begin so, and `orders`; `orders.*` those with one word more."""
    words = pattern.split(".")
    if (
        not pattern
        or not pattern.isprintable()
        or any(char in word and len(word) > 1 for char in "*#" for word in words)
    ):
        raise MisuseError(f"{pattern!r} is not a pattern of RabbitMQ; write for example 'orders.#'")
    if len(pattern.encode()) > 255:
        raise MisuseError("a pattern has at most 255 bytes for RabbitMQ")


PATTERNS = Patterns(check_pattern, partial(words_match, separator=".", one="*", any_number="#"))


def rabbitmq(url: str) -> Service:
    """With `?exchange=NAME` another one than `amq.topic`; it must exist, and be of type topic."""
    at = Url(url, PORT, options=("exchange",))
    name = f"RabbitMQ at {at.server}"
    return Reconnecting(
        name,
        ADVICE,
        lambda notify: RabbitConnection(at, name, notify),
        TOPICS.check,
        patterns=PATTERNS,
        most_header_bytes=MOST_HEADER_BYTES,
    )


class RabbitConnection(ServiceConnection):
    """Two channels, because one that has made an error is closed: one that publishes, with
    confirmations, and one with a queue of our own, to which topics are bound."""

    def __init__(self, url: Url, name: str, notify: Notify) -> None:
        self._url = url
        self._name = name
        self._notify = notify
        self._answers = Answers(name)
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange
        self._queue: AbstractQueue
        self._wanted: set[str] = set()

    async def open(self) -> None:
        url = self._url
        try:
            self._connection = connection = await aio_pika.connect(
                host=url.host,
                port=url.port,
                login=url.user or "guest",
                password=url.password or "guest",
                virtualhost=url.path or "/",
                timeout=OPEN_TIMEOUT_S,
                heartbeat=HEARTBEAT_S,
            )
            connection.close_callbacks.add(self._ended)
            publishing = await self._channel(connection, confirms=True)
            self._exchange = await self._topic_exchange(publishing)
            reading = await self._channel(connection, confirms=False)
            self._queue = await reading.declare_queue(exclusive=True, auto_delete=True)
            await self._queue.consume(self._came, no_ack=True)
        except aiormq.exceptions.ProbableAuthenticationError as error:
            raise NotAuthorised(f"{self._name} refuses this user: {error}") from error
        except (OSError, TimeoutError, aiormq.exceptions.AMQPError) as error:
            why = str(error) or type(error).__name__
            raise Disconnected(f"{self._name} does not answer: {why}") from error

    async def _channel(self, connection: AbstractConnection, *, confirms: bool) -> AbstractChannel:
        channel = await connection.channel(publisher_confirms=confirms)
        channel.close_callbacks.add(self._ended)
        return channel

    async def _topic_exchange(self, channel: AbstractChannel) -> AbstractExchange:
        name = self._url.option("exchange") or EXCHANGE
        try:
            await channel.get_exchange(name)
        except aiormq.exceptions.ChannelNotFoundEntity as error:
            raise MisuseError(
                f"{self._name} has no exchange {name}; make it, of type topic, or leave out "
                "`exchange`"
            ) from error
        try:
            return await channel.declare_exchange(name, "topic", durable=True)
        except aiormq.exceptions.ChannelPreconditionFailed as error:
            raise MisuseError(
                f"{self._name}: exchange {name} is not a durable one of type topic: {error}"
            ) from error

    async def subscribe(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._wanted.add(topic)
            await self._call(self._queue.bind(self._exchange, topic, timeout=CALL_TIMEOUT_S))

    async def unsubscribe(self, topic: str) -> None:
        if topic in self._wanted:
            self._wanted.discard(topic)
            await self._call(self._queue.unbind(self._exchange, topic, timeout=CALL_TIMEOUT_S))

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        message = aio_pika.Message(body, headers={HEADER: header} if header else {})
        sent = self._exchange.publish(message, topic, mandatory=False, timeout=CALL_TIMEOUT_S)
        await self._call(sent)

    async def _call(self, call: Any) -> None:
        if self._answers.broken.done():
            call.close()
            raise Disconnected(self._answers.text())
        try:
            await call
        except aiormq.exceptions.DeliveryError as error:
            raise UnavailableError(f"{self._name} does not take it: {error}") from error
        except (
            OSError,
            TimeoutError,
            RuntimeError,
            asyncio.InvalidStateError,
            aiormq.exceptions.AMQPError,
        ) as error:
            self._answers.fail(str(error) or type(error).__name__)
            raise Disconnected(f"{self._name} is away: {error}") from error
        except asyncio.CancelledError:
            if not self._answers.broken.done():
                raise
            # aiormq cancels what waits for an answer when its connection ends
            raise Disconnected(self._answers.text()) from None

    async def _came(self, message: AbstractIncomingMessage) -> None:
        header = message.headers.get(HEADER, "")
        topic = message.routing_key or ""
        self._notify(topic, message.body, header if isinstance(header, str) else "")

    def _ended(self, _: Any, error: BaseException | None = None) -> None:
        self._answers.fail(str(error or "") or "the server closed it")

    async def broken(self) -> str:
        return await asyncio.shield(self._answers.broken)

    async def close(self) -> None:
        self._answers.fail("it was closed")
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception, asyncio.CancelledError):
                async with asyncio.timeout(LEAVE_S):
                    await connection.close()
