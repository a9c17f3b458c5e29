"""NATS core: `nats://host:port`. It keeps nothing: who is not connected misses messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from motet.errors import Disconnected, MisuseError, NotAuthorised
from motet.ordering.services.base import HEADER, Notify, Service, Topics, Url, words_match
from motet.ordering.services.reconnection import (
    Answers,
    Patterns,
    Reconnecting,
    ServiceConnection,
)

PORT = 4222
CONNECT_S = 2
PING_S = 5
UNANSWERED_PINGS = 2
LOOK_S = 0.2
MOST_HEADER_BYTES = 256 * 1024
ADVICE = "start one with `nats-server -a 127.0.0.1 -p {port}`"
TOPICS = Topics("NATS", " \t\r\n*>", 200)


def check_topic(topic: str) -> None:
    TOPICS.check(topic)
    if topic.startswith((".", "$", "_INBOX.")) or topic.endswith(".") or ".." in topic:
        raise MisuseError(f"topic {topic!r} cannot be a subject of NATS")


def check_pattern(pattern: str) -> None:
    """`orders.>` is all subjects that begin so, `orders.*` those with one word more."""
    if not pattern or not pattern.isprintable() or " " in pattern:
        raise MisuseError(f"{pattern!r} is not a pattern of NATS; write for example 'orders.>'")


PATTERNS = Patterns(check_pattern, partial(words_match, separator=".", one="*", rest=">"))


def nats_core(url: str) -> Service:
    at = Url(url, PORT)
    if at.path:
        raise MisuseError(f"{url!r} has a path; JetStream is jetstream://{at.server}/NAME")
    name = f"NATS at {at.server}"
    return Reconnecting(
        name,
        ADVICE.format(port=at.port),
        lambda notify: NatsConnection(at, name, notify),
        check_topic,
        patterns=PATTERNS,
        most_header_bytes=MOST_HEADER_BYTES,
    )


class NatsLink:
    """A connection of nats-py that does not reconnect, because what waits in its buffers would
    be published long after it has failed."""

    def __init__(self, url: Url, name: str) -> None:
        self._url = url
        self._name = name
        self.nc = Client()
        self.answers = Answers(name)
        self._error: Exception | None = None
        self._watch: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            await self.nc.connect(
                f"nats://{self._url.server}",
                user=self._url.user,
                password=self._url.password,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                ping_interval=PING_S,
                max_outstanding_pings=UNANSWERED_PINGS,
                pending_size=0,
                error_cb=self._failed,
                closed_cb=self._ended,
            )
        except (OSError, nats.errors.Error, TimeoutError) as error:
            cause = self._error or error
            if "uthorization" in str(cause):
                raise NotAuthorised(f"{self._name} refuses this user: {cause}") from error
            why = str(cause) or type(cause).__name__
            raise Disconnected(f"{self._name} does not answer: {why}") from error
        self._watch = asyncio.create_task(self._until_closed())

    async def _until_closed(self) -> None:
        """nats-py does not call `closed_cb` if it fails to write what was left."""
        while not self.nc.is_closed:
            await asyncio.sleep(LOOK_S)
        await self._ended()

    async def close(self) -> None:
        self.answers.fail("it was closed")
        if self._watch is not None:
            self._watch.cancel()
        with suppress(OSError, nats.errors.Error, AssertionError):
            await self.nc.close()
        # what it leaves if it fails to write what was left
        for subscription in self.nc._subs.values():
            subscription._stop_processing()
        if self.nc._transport is not None:
            self.nc._transport.close()  # type: ignore[no-untyped-call]

    async def subscribe(self, subject: str, take: Callable[[Msg], Awaitable[None]]) -> Subscription:
        try:
            return await self.nc.subscribe(subject, cb=take)
        except nats.errors.Error as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> Disconnected:
        if self.nc.is_closed:
            self.answers.fail(str(error))
        return Disconnected(f"{self._name} is away: {error}")

    async def _failed(self, error: Exception) -> None:
        """A message that was dropped because too many waited is lost as in an interruption."""
        self._error = error
        if isinstance(error, nats.errors.SlowConsumerError):
            self.answers.fail("messages came faster than they were taken, and were dropped")

    async def _ended(self) -> None:
        error = self._error or self.nc.last_error
        self.answers.fail((error and str(error)) or "the server closed it")


class NatsConnection(ServiceConnection):
    """NATS processes what comes from one connection in sequence. So a message to ourselves tells,
    when it is back, that the server has everything before it. (`Client.flush` does not: its ping
    overtakes what waits to be written.)"""

    def __init__(self, url: Url, name: str, notify: Notify) -> None:
        self._link = NatsLink(url, name)
        self._notify = notify
        self._subscribed: dict[str, Subscription] = {}
        self._inbox = ""
        self._round: list[asyncio.Future[None]] = []
        self._rounds: deque[list[asyncio.Future[None]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self._link.open()
        self.most_bytes = self._link.nc.max_payload
        self._inbox = self._link.nc.new_inbox()
        await self._link.subscribe(self._inbox, self._returned)

    async def subscribe(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if topic not in self._subscribed:
                self._subscribed[topic] = await self._link.subscribe(topic, self._came)
        await self._passed()

    async def unsubscribe(self, topic: str) -> None:
        subscription = self._subscribed.pop(topic, None)
        if subscription is not None:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
            await self._passed()

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        try:
            await self._link.nc.publish(topic, body, headers=headers_of(header))
        except nats.errors.Error as error:
            raise self._link.failure(error) from error
        await self._passed()

    async def broken(self) -> str:
        return await asyncio.shield(self._link.answers.broken)

    async def close(self) -> None:
        await self._link.close()
        for task in list(self._tasks):
            task.cancel()

    async def _came(self, message: Msg) -> None:
        self._notify(message.subject, message.data, header_in(message))

    def _passed(self) -> asyncio.Future[None]:
        """Done when the server has everything up to here; one message for each iteration."""
        future = self._link.answers.expect()
        if not self._round:
            task = asyncio.get_running_loop().create_task(self._mark())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._round.append(future)
        return future

    async def _mark(self) -> None:
        self._rounds.append(self._round)
        self._round = []
        with suppress(nats.errors.Error):  # then the connection has ended, and all has failed
            await self._link.nc.publish(self._inbox)

    async def _returned(self, message: Msg) -> None:
        del message
        for future in self._rounds.popleft():
            if not future.done():
                future.set_result(None)


def headers_of(header: str) -> dict[str, str] | None:
    return {HEADER: header} if header else None


def header_in(message: Msg) -> str:
    return message.headers.get(HEADER, "") if message.headers else ""
