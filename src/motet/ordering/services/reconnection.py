"""A service behind a connection that can break: it is made again, with all subscriptions."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from motet.errors import ClosedError, Disconnected, MisuseError, MotetError, NoAnswer
from motet.ordering.services.base import (
    CALL_TIMEOUT_S,
    OPEN_TIMEOUT_S,
    Interrupted,
    Notify,
    Service,
)
from motet.runtime.redial import Backoff

LAST_WAIT_S = 2.0

log = logging.getLogger("motet.ordering")


class ServiceConnection(ABC):
    """One connection to a service, until it breaks. What waits for an answer then raises
    `Disconnected`."""

    most_bytes = 1 << 20
    """The largest body, known when it is open."""

    @abstractmethod
    async def open(self) -> None:
        """Connect. `close` is called also if this raises, or is cancelled."""

    @abstractmethod
    async def subscribe(self, topics: Sequence[str]) -> None:
        """Return when all are effective. A topic that is subscribed already may come again."""

    async def subscribe_patterns(self, patterns: Sequence[str]) -> None:
        """As `subscribe`, if the service has patterns. It may not tell them from topics."""
        await self.subscribe(patterns)

    @abstractmethod
    async def unsubscribe(self, topic: str) -> None:
        """Of a topic or a pattern."""

    @abstractmethod
    async def publish(self, topic: str, body: bytes, header: str = "") -> None: ...

    @abstractmethod
    async def broken(self) -> str:
        """Return when the connection cannot be used any more, and why."""

    @abstractmethod
    async def close(self) -> None:
        """End it, whatever its state; must not raise."""


class Patterns(NamedTuple):
    """What a service takes for a pattern, and which topics it then gives."""

    check: Callable[[str], None]
    """Raises `MisuseError`."""
    matches: Callable[[str, str], bool]


class Reconnecting(Service):
    """Publications fail while there is no connection; subscriptions wait for one."""

    def __init__(
        self,
        name: str,
        advice: str,
        connect: Callable[[Notify], ServiceConnection],
        check_topic: Callable[[str], None],
        *,
        patterns: Patterns | None = None,
        most_header_bytes: int = 0,
        lossless: bool = False,
        forget: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`advice`: what to do if nobody answers. `connect` makes a connection that is not open.
        `forget` is called with a topic that is not subscribed any more."""
        self.name = name
        self.lossless = lossless
        self._advice = advice
        self._connect = connect
        self._check_topic = check_topic
        self.most_header_bytes = most_header_bytes
        self._patterns = patterns
        self._forget = forget
        self._topics: dict[str, bool] = {}
        """What is subscribed, and whether it is a pattern."""
        self._connection: ServiceConnection | None = None
        self._back: asyncio.Future[None] | None = None  # a connection is there again
        self._why = ""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self, notify: Notify, interrupted: Interrupted) -> None:
        if self._task is not None or self._closed:
            raise MisuseError(f"{self.name} was opened before; make another one")
        try:
            connection = await self._connected(notify)
        except Disconnected as error:
            raise type(error)(f"{error}; {self._advice}") from error
        self._connection = connection
        self._task = asyncio.create_task(self._keep(connection, notify, interrupted))

    async def close(self) -> None:
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        if self._back is not None and not self._back.done():
            self._back.set_result(None)

    async def subscribe(self, topic: str) -> None:
        self._check_topic(topic)
        await self._subscribe(topic, False)

    async def subscribe_pattern(self, pattern: str) -> None:
        self.check_pattern(pattern)
        await self._subscribe(pattern, True)

    def check_pattern(self, pattern: str) -> None:
        if self._patterns is None:
            super().check_pattern(pattern)
        else:
            self._patterns.check(pattern)

    def matches(self, pattern: str, topic: str) -> bool:
        return self._patterns is not None and self._patterns.matches(pattern, topic)

    async def _subscribe(self, topic: str, is_pattern: bool) -> None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                while not await self._subscribed(topic, is_pattern):
                    await asyncio.sleep(0)
        except TimeoutError as error:
            raise NoAnswer(f"{self.name} does not confirm topic {topic!r}: {self._why}") from error

    async def _subscribed(self, topic: str, is_pattern: bool) -> bool:
        connection = await self._up()
        try:
            await _subscribe_to(connection, {topic: is_pattern})
        except Disconnected:
            await connection.broken()
            return False
        if connection is not self._connection:
            return False
        self._topics[topic] = is_pattern
        return True

    async def unsubscribe(self, topic: str) -> None:
        self._check_open()
        self._topics.pop(topic, None)
        connection = self._connection
        if connection is not None:
            with suppress(Disconnected, TimeoutError):  # the next connection has it not
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await connection.unsubscribe(topic)
        self._forget(topic)

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        connection = self._connection
        if connection is None:
            self._check_open()
            raise Disconnected(f"{self.name} is away: {self._why}")
        self._check_topic(topic)
        self.check_body(body, header)
        await connection.publish(topic, body, header)

    def _check_open(self) -> None:
        if self._task is None:
            raise ClosedError(f"{self.name} is {'closed' if self._closed else 'not open'}")

    async def _up(self) -> ServiceConnection:
        while True:
            self._check_open()
            if self._connection is not None:
                return self._connection
            if self._back is None or self._back.done():
                self._back = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._back)

    async def _keep(
        self, connection: ServiceConnection, notify: Notify, interrupted: Interrupted
    ) -> None:
        backoff = Backoff(last_s=LAST_WAIT_S)
        while True:
            why = await connection.broken()
            self._connection, self._why = None, why
            log.info("%s: connection lost: %s", self.name, why)
            await connection.close()
            while self._connection is None:
                await asyncio.sleep(backoff.wait_s())
                try:
                    self._connection = connection = await self._connected(notify)
                except MotetError as error:
                    self._why = str(error)
            backoff.reset()
            if self._back is not None and not self._back.done():
                self._back.set_result(None)
            log.info("%s: connected again", self.name)
            interrupted(why)

    async def _connected(self, notify: Notify) -> ServiceConnection:
        """A new connection, with the topics that are subscribed."""
        connection = self._connect(notify)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await connection.open()
                self.most_bytes = connection.most_bytes
                asked: set[str] = set()
                while new := {each: p for each, p in self._topics.items() if each not in asked}:
                    await _subscribe_to(connection, new)
                    asked.update(new)
                for topic in sorted(asked.difference(self._topics)):
                    await connection.unsubscribe(topic)
        except BaseException as error:
            await connection.close()
            if isinstance(error, TimeoutError) and not isinstance(error, MotetError):
                raise NoAnswer(
                    f"{self.name} does not answer: nothing came within {OPEN_TIMEOUT_S:g} s"
                ) from error
            raise
        return connection


async def _subscribe_to(connection: ServiceConnection, wanted: Mapping[str, bool]) -> None:
    topics = [each for each, is_pattern in wanted.items() if not is_pattern]
    patterns = [each for each, is_pattern in wanted.items() if is_pattern]
    if topics:
        await connection.subscribe(topics)
    if patterns:
        await connection.subscribe_patterns(patterns)


class Answers:
    """Futures of one connection, which all fail when it breaks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[str] = self._loop.create_future()

    def expect(self) -> asyncio.Future[None]:
        if self.broken.done():
            raise Disconnected(self.text())
        future = self._loop.create_future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def fail(self, why: str) -> None:
        if self.broken.done():
            return
        self.broken.set_result(why)
        for future in list(self._open):
            if not future.done():
                future.set_exception(Disconnected(self.text()))
                future.exception()  # nobody may be waiting any more

    def text(self) -> str:
        return f"the connection to {self._name} broke: {self.broken.result()}"
