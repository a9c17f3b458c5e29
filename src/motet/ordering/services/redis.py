"""Redis pub/sub: `redis://host:port`. It keeps nothing: who is not connected misses messages."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

from redis.asyncio.connection import Connection as Socket
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from motet.errors import Disconnected, MisuseError, NotAuthorised, UnavailableError
from motet.ordering.services.base import OPEN_TIMEOUT_S, Notify, Service, Topics, Url
from motet.ordering.services.reconnection import (
    Answers,
    Patterns,
    Reconnecting,
    ServiceConnection,
)

PORT = 6379
PING_S = 5.0
SILENCE_S = 15.0
ADVICE = "start one with `redis-server --port {port}`"
TOPICS = Topics("Redis", "", 1000)
SPECIAL = re.compile(r"\\(.)|\*|\?|\[(\^?)([^]]+)\]", re.DOTALL)
NOT_ALLOWED = ("NOPERM", "NOAUTH", "WRONGPASS")


def check_pattern(pattern: str) -> None:
    """`orders.*` is all topics that begin so; `?` is one character, `[ab]` is one of these."""
    if not pattern or not pattern.isprintable() or not any(char in pattern for char in "*?["):
        raise MisuseError(f"{pattern!r} is not a pattern of Redis; write for example 'orders.*'")


def matches(pattern: str, topic: str) -> bool:
    return _expression(pattern).fullmatch(topic) is not None


@lru_cache
def _expression(pattern: str) -> re.Pattern[str]:
    found, at = "", 0
    for special in SPECIAL.finditer(pattern):
        found += re.escape(pattern[at : special.start()])
        at = special.end()
        literal, negated, chars = special.groups()
        if literal is not None:
            found += re.escape(literal)
        elif chars is not None:
            inner = re.escape(chars).replace("\\-", "-")
            found += f"[{negated}{inner}]"
        else:
            found += ".*" if special[0] == "*" else "."
    return re.compile(found + re.escape(pattern[at:]), re.DOTALL)


def redis(url: str) -> Service:
    at = Url(url, PORT)
    if at.path and not at.path.isdigit():
        raise MisuseError(f"{url!r} has the path {at.path!r}; it has to be a number")
    name = f"Redis at {at.server}"
    return Reconnecting(
        name,
        ADVICE.format(port=at.port),
        lambda notify: RedisConnection(at, name, notify),
        TOPICS.check,
        patterns=Patterns(check_pattern, matches),
    )


class Pipe:
    """A socket of redis-py. The commands of one iteration of the loop leave together, and answers
    are taken as they come. (Its pipelines and `PubSub` wait for the answers of each batch, and
    connect again by themselves without telling.)"""

    def __init__(self, url: Url, take: Callable[[object], None], failed: Callable[[str], None]):
        self._socket = Socket(
            host=url.host,
            port=url.port,
            username=url.user,
            password=url.password,
            socket_connect_timeout=OPEN_TIMEOUT_S,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._take = take
        self._failed = failed
        self._waiting: list[tuple[str | bytes, ...]] = []
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self.heard_s = 0.0

    async def open(self) -> None:
        await self._socket.connect()  # type: ignore[no-untyped-call]
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        for task in (self._writer, self._reader):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        with suppress(RedisError, OSError):
            await self._socket.disconnect()

    def send(self, *command: str | bytes) -> None:
        self._waiting.append(command)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                commands, self._waiting = self._waiting, []
                packed = self._socket.pack_commands(commands)
                await self._socket.send_packed_command(packed, check_health=False)
        except (RedisError, OSError) as error:
            self._failed(str(error))

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    answer = await self._socket.read_response(disconnect_on_error=False)
                except (ResponseError, AuthenticationError) as error:
                    answer = error
                self.heard_s = loop.time()
                self._take(answer)
        except (RedisError, OSError) as error:
            self._failed(str(error))


class RedisConnection(ServiceConnection):
    """Two sockets: one that has subscribed may not publish."""

    def __init__(self, url: Url, name: str, notify: Notify) -> None:
        self._name = name
        self._notify = notify
        self._answers = Answers(name)
        self._publishing = Pipe(url, self._published, self._answers.fail)
        self._subscribing = Pipe(url, self._came, self._answers.fail)
        self._sent: deque[asyncio.Future[None] | None] = deque()
        self._asked: deque[asyncio.Future[None]] = deque()
        self._pulse: asyncio.Task[None] | None = None
        self._patterns: set[str] = set()

    async def open(self) -> None:
        try:
            await self._publishing.open()
            await self._subscribing.open()
        except AuthenticationError as error:
            raise NotAuthorised(f"{self._name} refuses this user: {error}") from error
        except (RedisError, OSError) as error:
            raise Disconnected(f"{self._name} does not answer: {error}") from error
        self._pulse = asyncio.create_task(self._ping())

    async def close(self) -> None:
        self._answers.fail("it was closed")
        if self._pulse is not None:
            self._pulse.cancel()
        await self._publishing.close()
        await self._subscribing.close()

    async def broken(self) -> str:
        return await asyncio.shield(self._answers.broken)

    async def subscribe(self, topics: Sequence[str]) -> None:
        await asyncio.gather(*[self._ask("SUBSCRIBE", topic) for topic in topics])

    async def subscribe_patterns(self, patterns: Sequence[str]) -> None:
        self._patterns.update(patterns)
        await asyncio.gather(*[self._ask("PSUBSCRIBE", pattern) for pattern in patterns])

    async def unsubscribe(self, topic: str) -> None:
        if topic in self._patterns:
            self._patterns.discard(topic)
            await self._ask("PUNSUBSCRIBE", topic)
        else:
            await self._ask("UNSUBSCRIBE", topic)

    def _ask(self, command: str, topic: str) -> asyncio.Future[None]:
        future = self._answers.expect()
        self._asked.append(future)
        self._subscribing.send(command, topic)
        return future

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        assert not header, "Redis has none"
        future = self._answers.expect()
        self._sent.append(future)
        self._publishing.send("PUBLISH", topic, body)
        await future

    def _published(self, answer: object) -> None:
        future = self._sent.popleft()
        if future is not None and not future.done():
            self._settle(future, answer)

    def _came(self, answer: object) -> None:
        match answer:
            case [b"message", bytes(topic), bytes(body)]:
                self._notify(topic.decode(), body)
            case [b"pmessage", _, bytes(topic), bytes(body)]:
                self._notify(topic.decode(), body)
            case [b"pong", *_] | b"PONG" | "PONG":
                pass
            case _ if self._asked:
                future = self._asked.popleft()
                if not future.done():
                    self._settle(future, answer)

    def _settle(self, future: asyncio.Future[None], answer: object) -> None:
        if not isinstance(answer, ResponseError | AuthenticationError):
            future.set_result(None)
        elif (
            isinstance(answer, AuthenticationError)
            or str(answer).startswith(NOT_ALLOWED)
            or "permission" in str(answer)
        ):
            future.set_exception(NotAuthorised(f"{self._name} refuses it: {answer}"))
        else:
            future.set_exception(UnavailableError(f"{self._name} refuses it: {answer}"))

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        pipes = (self._publishing, self._subscribing)
        for pipe in pipes:
            pipe.heard_s = loop.time()
        while True:
            self._sent.append(None)
            for pipe in pipes:
                pipe.send("PING")
            await asyncio.sleep(PING_S)
            silent_s = loop.time() - min(pipe.heard_s for pipe in pipes)
            if silent_s > SILENCE_S:
                self._answers.fail(f"nothing came for {silent_s:.0f} s")
                return
