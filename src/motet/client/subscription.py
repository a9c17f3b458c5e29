"""Events that match a filter: how they wait for the application, and reach it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from itertools import repeat
from types import MappingProxyType
from typing import Literal, Self

from motet.client.progress import Progress
from motet.client.standing import Standing, Withdraw
from motet.errors import EventsLost, MisuseError, MotetError
from motet.model import Event, Filter, decode_body
from motet.protocol.publication import InTransaction, Publication

log = logging.getLogger("motet.client")

Callback = Callable[[Event], object | Awaitable[object]]
OnLoss = Literal["count", "raise"]
Placed = tuple[str, int, Publication]
"""An exactly-once event: its pubend, its tick, and itself."""
Item = Publication | Placed | EventsLost

DEFAULT_BUFFER = 65_536
FINISH_BOUND_S = 1.0
BREATH = 256
"""An iterator that never has to wait gives the loop a turn after this many events."""


class Subscription(Standing, AsyncIterator[Event]):
    """Events that match a filter: iterate over it, or give `subscribe` a callback.

    What arrives waits in a buffer. When it is full, the newest best-effort events are dropped and
    counted: `dropped` says how many, and the log says so once. Exactly-once events are never
    dropped: the broker sends no more while too many of them are not done with. Asking for the
    next event says that all that was taken before is done with, whoever took it.
    """

    kind = "subscribe"

    def __init__(
        self,
        wanted: Filter,
        withdraw: Withdraw,
        name: str = "",
        *,
        buffer: int = DEFAULT_BUFFER,
        callback: Callback | None = None,
        on_loss: OnLoss = "count",
        progress: Progress | None = None,
        cursors: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(wanted, withdraw, name)
        self.dropped = 0
        """Events lost because this application did not read them in time."""
        self.lost = 0
        """How often the broker has reported that exactly-once events are gone for good. Nobody
        knows how many they were, nor whether they would have matched."""
        self.callback_errors = 0
        self.last_callback_error: Exception | asyncio.CancelledError | None = None
        self._capacity = buffer
        self._buffer: deque[Item] = deque()
        self._arrivals = 0  # into the buffer, ever
        self._in_hand = 0  # 1 while the application is not done with what it took last
        self._batches: dict[str, deque[tuple[int, list[int]]]] = {}
        """By pubend, what the application may not be done with: the number of the last arrival
        of each batch, and its ticks."""
        self._acknowledged = 0
        """If the application says itself what it is done with: so many arrivals."""
        self._after = dict(cursors or {})
        """By pubend, events up to this tick were done with before."""
        self._on_loss = on_loss
        self._progress = progress
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

    @property
    def cursors(self) -> Mapping[str, int]:
        """By pubend, the tick up to which the application is done with every event of this
        subscription, as of now. An event that is being handled is not done with: write its own
        `pubend` and `tick` down together with its effects."""
        found = {} if self._progress is None else self._progress.cursors_of(self)
        return MappingProxyType({**found, **self._after})

    def __aiter__(self) -> Self:
        if self._callback is not None:
            raise MisuseError("this subscription hands its events to a callback already")
        return self

    async def __anext__(self) -> Event:
        self._breath -= 1
        if self._breath <= 0:
            self._breath = BREATH
            self._in_hand = 0
            if self._progress is not None:
                self._progress.begin()
                if self._batches:
                    self._progress.tell()
            await asyncio.sleep(0)
        buffer = self._buffer
        while not buffer:
            if self._over:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._in_hand = 0
            if self._progress is not None:
                self._progress.begin()
                if self._batches and not self._progress.armed:
                    self._progress.arm()
            await self._next_arrival()
        item = buffer.popleft()
        self._in_hand = 1
        if self._batches and self._progress is not None and not self._progress.armed:
            self._progress.arm()
        return _event(item)

    def get_nowait(self) -> Event | None:
        """The next event if one is buffered. Safe to call from any thread."""
        self._in_hand = 1  # before it is taken: meanwhile the loop may count what is done with
        item: Item | None = None
        try:
            item = self._buffer.popleft()
        except IndexError:
            self._in_hand = 0
            if self._progress is not None and not self._progress.begun:
                self._progress.begin_from_any_thread()
        if self._batches and self._progress is not None and not self._progress.armed:
            self._progress.arm_from_any_thread()
        return None if item is None else _event(item)

    # ── for the client ───────────────────────────────────────────────────────────────────

    def arrive(self, publication: Publication) -> None:
        buffer = self._buffer
        if len(buffer) < self._capacity:
            buffer.append(publication)
            self._arrivals += 1
            if self._wakers or self.bell is not None:
                self._wake()
        else:
            self.lose(1)

    def bring(self, pubend: str, ticks: list[int], batch: list[Publication]) -> None:
        """Exactly-once events, in order. However full the buffer is: the broker's window bounds
        what comes before the application is done with it."""
        if self._after and (after := self._after.pop(pubend, 0)):
            known = bisect_right(ticks, after)
            ticks, batch = ticks[known:], batch[known:]
            if not ticks:
                self._after[pubend] = after  # there may be more
                return
        self._arrivals += len(ticks)
        self._owe(pubend, ticks)
        self._buffer.extend(zip(repeat(pubend), ticks, batch))
        self._wake()

    def miss(self, pubend: str, first: int, last: int) -> None:
        """Exactly-once events are lost, behind all that has come."""
        self.lost += 1
        if self._on_loss == "raise":
            self._arrivals += 1
            self._owe(pubend, [first])
            self._buffer.append(EventsLost(pubend, first, last))
            self._wake()

    def _owe(self, pubend: str, ticks: list[int]) -> None:
        batches = self._batches.get(pubend)
        if batches is None:
            batches = self._batches[pubend] = deque()
        batches.append((self._arrivals, ticks))

    def owed(self) -> dict[str, int]:
        """By pubend with events that the application is not done with: the tick before them."""
        if self._over:  # whatever it still reads, it has no use for the rest
            self._batches.clear()
        if self._progress is not None and self._progress.manual:
            done = self._acknowledged
        else:
            # First what waits, then what is in hand: readers in other threads do it the other way.
            done = self._arrivals - len(self._buffer)
            done -= self._in_hand
        found: dict[str, int] = {}
        for pubend, batches in list(self._batches.items()):
            while batches and batches[0][0] <= done:
                batches.popleft()
            if batches:
                last, ticks = batches[0]
                found[pubend] = ticks[max(0, len(ticks) - (last - done))] - 1
            else:
                del self._batches[pubend]
        return found

    def acknowledge(self) -> None:
        """The application is done with everything that it has taken."""
        if self._callback is None:  # else its callback may be at work
            self._in_hand = 0
        self._acknowledged = self._arrivals - len(self._buffer) - self._in_hand

    def put_back(self) -> None:
        """What was not read will come again, to the next process of this client."""
        self._batches.clear()
        kept = [item for item in self._buffer if isinstance(item, Publication)]
        self._buffer.clear()
        self._buffer.extend(kept)

    def inherit(self, left: Standing) -> None:
        """With all that has come for it meanwhile, losses in their place: who wants them only
        counted has them counted already."""
        super().inherit(left)
        assert isinstance(left, Subscription)
        self.lost, self.dropped = left.lost, left.dropped
        while left._buffer:
            item = left._buffer.popleft()
            if isinstance(item, Publication):
                self.arrive(item)
            elif isinstance(item, EventsLost):
                self.lost -= 1
                self.miss(item.pubend, item.first, item.last)
            else:
                self.bring(item[0], [item[1]], [item[2]])
        left._batches.clear()

    def lose(self, count: int) -> None:
        if not self.dropped:
            log.warning("%r does not read fast enough; its newest events are dropped", self)
        self.dropped += count

    def end(self, error: MotetError | None) -> None:
        super().end(error)
        if self._batches and self._progress is not None and not self._progress.armed:
            self._progress.arm()
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


def _event(item: Item) -> Event:
    if isinstance(item, Publication):
        attributes, payload = decode_body(item.body)
        return Event.delivered(attributes, payload, item.publisher, item.sequence)
    if isinstance(item, EventsLost):
        raise item
    pubend, tick, publication = item
    attributes, payload = decode_body(publication.body)
    publisher, sequence = publication.publisher, publication.sequence
    if type(publication) is InTransaction:
        where = (pubend, tick, publication.tx)
        return Event.delivered(attributes, payload, publisher, sequence, *where)
    return Event.delivered(attributes, payload, publisher, sequence, pubend, tick)
