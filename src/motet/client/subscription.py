"""Events that match a filter: how they wait for the application, and reach it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Self

from motet.client.standing import Standing, Withdraw
from motet.errors import MisuseError, MotetError
from motet.model import Event, Filter, decode_body
from motet.protocol.publication import Publication

log = logging.getLogger("motet.client")

Callback = Callable[[Event], object | Awaitable[object]]

DEFAULT_BUFFER = 65_536
FINISH_BOUND_S = 1.0
BREATH = 256
"""An iterator that never has to wait gives the loop a turn after this many events."""


class Subscription(Standing, AsyncIterator[Event]):
    """Events that match a filter: iterate over it, or give `subscribe` a callback.

    What arrives waits in a buffer of bounded length. When it is full, the newest events are
    dropped and counted: `dropped` says how many, and the log says so once.
    """

    kind = "subscribe"

    def __init__(
        self,
        wanted: Filter,
        withdraw: Withdraw,
        *,
        buffer: int = DEFAULT_BUFFER,
        callback: Callback | None = None,
    ) -> None:
        super().__init__(wanted, withdraw)
        self.dropped = 0
        """Events lost because this application did not read them in time."""
        self.callback_errors = 0
        self.last_callback_error: Exception | asyncio.CancelledError | None = None
        self._capacity = buffer
        self._buffer: deque[Publication] = deque()
        self._wakers: list[Callable[[], None]] = []
        self.bell: Callable[[], None] | None = None
        """Rung on the loop's thread after every arrival and at the end."""
        self._breath = BREATH
        self._callback = callback
        self._calling: asyncio.Task[None] | None = None
        if callback is not None:
            self._calling = asyncio.get_running_loop().create_task(self._call(callback))

    # ── for the application ──────────────────────────────────────────────────────────────

    async def unsubscribe(self, *, wait: str = "overlay", timeout: float = 10.0) -> None:
        """Take it back. Nothing more arrives; what is buffered can still be read. Twice is
        harmless."""
        await self._take_back(wait, timeout)

    @property
    def buffered(self) -> int:
        """Events that have arrived and were not read yet."""
        return len(self._buffer)

    def __aiter__(self) -> Self:
        if self._callback is not None:
            raise MisuseError("this subscription hands its events to a callback already")
        return self

    async def __anext__(self) -> Event:
        self._breath -= 1
        if self._breath <= 0:
            self._breath = BREATH
            await asyncio.sleep(0)
        buffer = self._buffer
        while not buffer:
            if self._over:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._next_arrival()
        return _event(buffer.popleft())

    def get_nowait(self) -> Event | None:
        """The next event if one is buffered. Safe to call from any thread."""
        try:
            return _event(self._buffer.popleft())
        except IndexError:
            return None

    # ── for the client ───────────────────────────────────────────────────────────────────

    def arrive(self, publication: Publication) -> None:
        buffer = self._buffer
        if len(buffer) < self._capacity:
            buffer.append(publication)
            if self._wakers or self.bell is not None:
                self._wake()
        else:
            self.lose(1)

    def lose(self, count: int) -> None:
        if not self.dropped:
            log.warning("%r does not read fast enough; its newest events are dropped", self)
        self.dropped += count

    def end(self, error: MotetError | None) -> None:
        super().end(error)
        self._wake()

    @property
    def calling(self) -> asyncio.Task[None] | None:
        """What hands the events to the callback, if there is one."""
        return self._calling

    def _wake(self) -> None:
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()
        if self.bell is not None:
            self.bell()

    async def _next_arrival(self) -> None:
        self._breath = BREATH
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def waker() -> None:
            if not arrived.done():
                arrived.set_result(None)

        self._wakers.append(waker)
        try:
            await arrived
        except asyncio.CancelledError:
            if waker in self._wakers:
                self._wakers.remove(waker)
            raise

    async def _call(self, callback: Callback) -> None:
        while True:
            try:
                event = await self.__anext__()
            except (StopAsyncIteration, MotetError):
                return
            try:
                result = callback(event)
                if inspect.isawaitable(result):
                    await result
            except asyncio.CancelledError as error:
                # It may come from something that the callback awaits; then we go on.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._failed(error)
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception | asyncio.CancelledError) -> None:
        self.callback_errors += 1
        self.last_callback_error = error
        log.error("the callback of %r failed", self, exc_info=error)


async def finish(entries: Iterable[Standing]) -> None:
    """Let callbacks see what is buffered; stop those that take too long, all at the same time."""
    me = asyncio.current_task()  # a callback may end its subscription; it cannot wait for itself
    callings = (entry.calling for entry in entries if isinstance(entry, Subscription))
    others = {calling for calling in callings if calling is not None and calling is not me}
    if others:
        _, late = await asyncio.wait(others, timeout=FINISH_BOUND_S)
        for task in late:
            task.cancel()


def _event(publication: Publication) -> Event:
    attributes, payload = decode_body(publication.body)
    return Event.delivered(attributes, payload, publication.publisher, publication.sequence)
