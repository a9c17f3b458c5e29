"""The handles of an application's advertisements and subscriptions.

Events wait in a subscription for the application. Acknowledgements are sent to the broker a little
later and for many events at once: a frame per event would cost more than the event. Usually only
the broker's window waits for them, and it is far wider than what arrives in the meantime; a broker
that needs them sooner asks (`hurry`). A durable client acknowledges soon, because a later process
receives all unacknowledged events again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import repeat
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from motet.client.loop_guard import LoopGuard
from motet.client.session.machine import ClientMachine
from motet.errors import EventsLost, MisuseError, MotetError
from motet.model import Event, Filter, decode_body
from motet.protocol.publication import Publication, TransactionPublication

log = logging.getLogger("motet.client")


Withdraw = Callable[["Registration", str, float], Awaitable[None]]
"""Withdraws an operation: where to wait, and how long. The operation stays in force until the
request is made."""


class Registration:
    """An advertisement or a subscription: in force until it is removed."""

    kind: ClassVar[Literal["advertise", "subscribe"]]

    def __init__(self, wanted: Filter, withdraw: Withdraw, name: str = "") -> None:
        self.filter = wanted
        self.name = name or str(wanted)
        """By this name a plan, or a later process of a durable client, finds it."""
        self.chosen_name = name
        """Empty if its name is the text of its filter."""
        self.claimed = True
        """False while it is in force only because an earlier process of the client left it."""
        self.handle = 0
        """Set once the operation is made; stays the same when a session is lost and renewed."""
        self.begins_in = ""
        """The undecided transaction that begins it."""
        self.ends_in = ""
        """The transaction that ends it, or has ended it."""
        self.leaving = False
        """Its removal was requested; it stays in force if an undecided transaction holds it."""
        self._facade: Any = None
        """Its synchronous facade, if there is one."""
        self._withdraw = withdraw
        self._error: MotetError | None = None
        self._over = False

    @property
    def active(self) -> bool:
        return not self._over and not self.leaving

    @property
    def ended(self) -> bool:
        """No more events will arrive."""
        return self._over

    @property
    def error(self) -> MotetError | None:
        """Why it ended, unless the application ended it."""
        return self._error

    async def _take_back(self, wait: str, timeout: float) -> None:
        await self._withdraw(self, wait, timeout)

    def _inherit(self, left: Registration) -> None:
        """For the client: replace the registration that an earlier process has left."""
        left.claimed = True
        self.handle = left.handle

    def _end(self, error: MotetError | None) -> None:
        """For the client: it has ended, by choice or by `error`."""
        if not self._over:
            self._over = True
            self._error = error

    def _disown(self, error: MotetError) -> None:
        """In a forked child: it has ended. Wakes nobody, because all who wait are the parent's."""
        self._over = True
        self._error = error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        # If the body failed, its error matters more than the removal: do not wait long.
        await self._take_back("overlay" if error is None else "local", 10.0)

    def __repr__(self) -> str:
        state = "in force" if self.active else "over"
        return f"<{type(self).__name__} {str(self.filter)!r}, {state}>"


class Advertisement(Registration):
    """The right to publish events within a filter, until `unadvertise`."""

    kind = "advertise"

    async def unadvertise(self, *, wait: str = "overlay", timeout: float = 10.0) -> None:
        """Remove it. Events within it are refused from now on. Idempotent."""
        await self._take_back(wait, timeout)


LAG_S = 0.01
PATIENT_S = 1.0
"""The lag where few events arrive and no broker waits for acknowledgements."""
MANY_EVENTS = 256
HASTE_S = 1.0
"""How long after `hurry` acknowledgements are sent with the short lag."""


class Progress:
    def __init__(
        self,
        machine: ClientMachine,
        carry_out: Callable[[], None],
        guard: LoopGuard,
        *,
        manual: bool = False,
    ) -> None:
        self.guard = guard
        self.armed = False
        """A report to the broker is scheduled."""
        self.begun = False
        """The application has begun to read."""
        self.manual = manual
        """The application acknowledges explicitly."""
        self._machine = machine
        self._carry_out = carry_out
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._busy: dict[Subscription, None] = {}
        """At least all subscriptions with unacknowledged events; perhaps some more."""
        self._cursors: dict[str, int] = {}
        self._closed = False
        self._untold = 0
        """Events that have arrived since the last report to the broker."""
        self._hasty_until = 0.0

    def busy(self, subscription: Subscription) -> None:
        self._busy[subscription] = None

    def begin(self) -> None:
        """The application wants to read an event."""
        if not self.begun:
            self.begun = True
            self._machine.ready()
            self._carry_out()

    def begin_from_any_thread(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the client
            self._loop.call_soon_threadsafe(self.begin)

    def brought(self, events: int) -> None:
        self._untold += events
        if not self.armed:
            self.arm()
        elif MANY_EVENTS <= self._untold < MANY_EVENTS + events and self._timer is not None:
            self._timer.cancel()
            self.arm()

    def hurry(self) -> None:
        """A broker waits for acknowledgements."""
        self._hasty_until = self._loop.time() + HASTE_S
        if not self._closed:
            self.tell()

    def arm(self) -> None:
        """Schedule a report: the application has acknowledged something."""
        self.armed = True
        self._timer = self._loop.call_later(self._lag_s(), self.tell)

    def _lag_s(self) -> float:
        if self._machine.durable or self._untold >= MANY_EVENTS:
            return LAG_S
        return LAG_S if self._loop.time() < self._hasty_until else PATIENT_S

    def arm_from_any_thread(self) -> None:
        self.armed = True
        with suppress(RuntimeError):  # the loop is closed, and with it the client
            self._loop.call_soon_threadsafe(self._arm_again)

    def _arm_again(self) -> None:
        if self._timer is None and not self._closed:
            self.arm()

    def tell(self) -> None:
        """Report to the broker now."""
        self._disarm()
        self._untold = 0
        for pubend, upto in self.cursors().items():
            self._machine.processed(pubend, upto)
        self._carry_out()

    def close(self) -> None:
        """Stop reporting: the session has ended."""
        self._closed = True
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.armed = self._closed

    def cursors_of(self, subscription: Subscription) -> dict[str, int]:
        """The same as `cursors`, for one subscription."""
        now = dict(self._machine.streams.received)
        for pubend, upto in subscription._owed().items():
            now[pubend] = min(now.get(pubend, upto), upto)
        return now

    def cursors(self) -> dict[str, int]:
        """By pubend, the tick up to which the application has acknowledged everything."""
        now = dict(self._machine.streams.received)
        for subscription in list(self._busy):
            owed = subscription._owed()
            if not owed:
                del self._busy[subscription]
            for pubend, upto in owed.items():
                now[pubend] = min(now.get(pubend, upto), upto)
        self._cursors.update(now)
        return self._cursors


Callback = Callable[[Event], object | Awaitable[object]]
OnLoss = Literal["count", "raise"]
Placed = tuple[str, int, Publication]
"""An exactly-once event: its pubend, its tick, and its publication."""
Item = Publication | Placed | EventsLost

DEFAULT_BUFFER = 65_536
FINISH_BOUND_S = 1.0
BREATH = 256
"""An iterator that never has to wait yields to the loop after this many events."""


class Subscription(Registration, AsyncIterator[Event]):
    """Events that match a filter: iterate over it, or give `subscribe` a callback.

    Events wait in a buffer. When it is full, the newest best-effort events are dropped and
    counted in `dropped`; the first drop is logged. Exactly-once events are never dropped: the
    broker sends no more while too many of them are unacknowledged. Asking for the next event
    acknowledges all that any task or thread took before, unless acknowledgement is manual.
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
        progress: Progress,
        cursors: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(wanted, withdraw, name)
        self.dropped = 0
        """Best-effort events dropped because the application did not read fast enough."""
        self.lost = 0
        """How often the broker has reported permanently lost exactly-once events. Their number is
        unknown, and so is whether they would have matched."""
        self.callback_errors = 0
        self.last_callback_error: Exception | asyncio.CancelledError | None = None
        self._capacity = buffer
        self._buffer: deque[Item] = deque()
        self._arrivals = 0  # into the buffer, ever
        self._in_hand = 0  # 1 while the event taken last is unacknowledged
        self._batches: dict[str, deque[tuple[int, list[int]]]] = {}
        """By pubend, what may be unacknowledged: the number of the last arrival of each batch, and
        its ticks."""
        self._acked: dict[str, set[int]] = {}
        """By pubend, ticks of events acknowledged one by one, above the first unacknowledged
        event."""
        self._acknowledged = 0
        """With manual acknowledgement: the number of arrivals acknowledged by `acknowledge`."""
        self._after = dict(cursors or {})
        """By pubend, events up to this tick were acknowledged before."""
        self._on_loss = on_loss
        self._progress = progress
        self._wakers: list[Callable[[], None]] = []
        self._bell: Callable[[], None] | None = None
        """Called on the loop's thread after every arrival and at the end."""
        self._breath = BREATH
        self._callback = callback
        self._calling: asyncio.Task[None] | None = None
        """The task that passes events to the callback, if there is one."""
        if callback is not None:
            self._calling = asyncio.get_running_loop().create_task(self._call(callback))

    # ── for the application ──────────────────────────────────────────────────────────────

    async def unsubscribe(self, *, wait: str = "overlay", timeout: float = 10.0) -> None:
        """Remove it. No more events arrive; buffered events can still be read. Idempotent."""
        await self._take_back(wait, timeout)

    @property
    def buffered(self) -> int:
        """Events that have arrived and are not read yet."""
        return len(self._buffer)

    @property
    def cursors(self) -> Mapping[str, int]:
        """By pubend, the tick up to which the application has acknowledged every event of this
        subscription. It does not include an event that is being handled: store that event's own
        `pubend` and `tick` together with its effects."""
        return MappingProxyType({**self._progress.cursors_of(self), **self._after})

    def __aiter__(self) -> Self:
        if self._callback is not None:
            raise MisuseError("this subscription has a callback, so it cannot be iterated")
        return self

    async def __anext__(self) -> Event:
        self._breath -= 1
        if self._breath <= 0:
            self._breath = BREATH
            self._progress.guard.check()
            self._in_hand = 0
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
            self._progress.guard.check()
            self._in_hand = 0
            self._progress.begin()
            if self._batches and not self._progress.armed:
                self._progress.arm()
            await self._next_arrival()
        item = buffer.popleft()
        self._in_hand = 1
        if self._batches and not self._progress.armed:
            self._progress.arm()
        return self._event(item)

    def get_nowait(self) -> Event | None:
        """The next event if one is buffered. Safe to call from any thread."""
        self._in_hand = 1  # before it is taken: meanwhile the loop may count acknowledged events
        item: Item | None = None
        try:
            item = self._buffer.popleft()
        except IndexError:
            self._in_hand = 0
            if self._progress.guard.foreign is not None:
                raise self._progress.guard.foreign from None
            if not self._progress.begun:
                self._progress.begin_from_any_thread()
        if self._batches and not self._progress.armed:
            self._progress.arm_from_any_thread()
        return None if item is None else self._event(item)

    # ── for other modules of the client ──────────────────────────────────────────────────

    def _arrive(self, publication: Publication) -> None:
        buffer = self._buffer
        if len(buffer) < self._capacity:
            buffer.append(publication)
            self._arrivals += 1
            if self._wakers or self._bell is not None:
                self._wake()
        else:
            self._lose(1)

    def _bring(self, pubend: str, ticks: list[int], batch: list[Publication]) -> None:
        """Exactly-once events, in order. They may exceed the buffer's capacity: the broker's window
        limits unacknowledged events."""
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

    def _miss(self, pubend: str, first: int, last: int) -> None:
        """Exactly-once events are lost, after all that have arrived."""
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

    def _owed(self) -> dict[str, int]:
        """By pubend with unacknowledged events: the tick before the first of them."""
        if self._over:  # the application may still read the rest, but need not acknowledge it
            self._batches.clear()
            self._acked.clear()
        if self._progress.manual:
            done = self._acknowledged
        else:
            # First the buffer, then `_in_hand`: readers in other threads change them in the
            # opposite order.
            done = self._arrivals - len(self._buffer)
            done -= self._in_hand
        found: dict[str, int] = {}
        for pubend, batches in list(self._batches.items()):
            first = self._first_owed(batches, done, self._acked.get(pubend))
            if first is None:
                del self._batches[pubend]
                self._acked.pop(pubend, None)
            else:
                found[pubend] = first - 1
        return found

    def _first_owed(
        self, batches: deque[tuple[int, list[int]]], done: int, acked: set[int] | None
    ) -> int | None:
        """The tick of the first unacknowledged event of one pubend."""
        while batches:
            last, ticks = batches[0]
            at = max(0, len(ticks) - (last - done))
            while acked and at < len(ticks) and ticks[at] in acked:
                at += 1
            if at < len(ticks):
                return ticks[at]
            batches.popleft()
            if acked:
                acked.difference_update(ticks)
        return None

    def ack(self, pubend: str, tick: int) -> None:
        """Acknowledge one event. May be called from any thread."""
        try:
            if tick < self._batches[pubend][0][1][0]:
                return  # it is acknowledged already
        except (KeyError, IndexError):
            return
        self._acked.setdefault(pubend, set()).add(tick)
        if not self._progress.armed:
            self._progress.arm_from_any_thread()

    def _acknowledge(self) -> None:
        """Acknowledge everything that the application has taken."""
        if self._callback is None:  # else its callback may be running
            self._in_hand = 0
        self._acknowledged = self._arrivals - len(self._buffer) - self._in_hand

    def _put_back(self) -> None:
        """Drop unread exactly-once events: they will come again, to the client's next process."""
        self._batches.clear()
        kept = [item for item in self._buffer if isinstance(item, Publication)]
        self._buffer.clear()
        self._buffer.extend(kept)

    def _inherit(self, left: Registration) -> None:
        """Take over the buffered events, with losses in their place. Losses that are only to be
        counted are in `left.lost` already."""
        super()._inherit(left)
        assert isinstance(left, Subscription)
        self.lost, self.dropped = left.lost, left.dropped
        while left._buffer:
            item = left._buffer.popleft()
            if isinstance(item, Publication):
                self._arrive(item)
            elif isinstance(item, EventsLost):
                self.lost -= 1
                self._miss(item.pubend, item.first, item.last)
            else:
                self._bring(item[0], [item[1]], [item[2]])
        left._batches.clear()

    def _disown(self, error: MotetError) -> None:
        """Also drop the buffered events: the parent processes them."""
        super()._disown(error)
        self._buffer.clear()
        self._batches.clear()

    def _lose(self, count: int) -> None:
        if not self.dropped:
            log.warning("%r does not read fast enough; its newest events are dropped", self)
        self.dropped += count

    def _end(self, error: MotetError | None) -> None:
        super()._end(error)
        if self._batches and not self._progress.armed:
            self._progress.arm()
        self._wake()

    def _wake(self) -> None:
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()
        if self._bell is not None:
            self._bell()

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

    def _event(self, item: Item) -> Event:
        if isinstance(item, Publication):
            attributes, payload = decode_body(item.body)
            return Event.delivered(attributes, payload, item.publisher, item.sequence)
        if isinstance(item, EventsLost):
            if self._progress.manual:
                self.ack(item.pubend, item.first)  # the application cannot: this tells it
            raise item
        pubend, tick, publication = item
        attributes, payload = decode_body(publication.body)
        return Event.delivered(
            attributes,
            payload,
            publication.publisher,
            publication.sequence,
            pubend,
            tick,
            publication.tx if type(publication) is TransactionPublication else "",
            self,
        )

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
                # It may come from something that the callback awaits; then continue.
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


async def finish(entries: Iterable[Registration]) -> None:
    """Let callbacks process what is buffered; cancel all that take too long, at the same time."""
    me = asyncio.current_task()  # a callback that ends its subscription cannot await itself
    callings = (entry._calling for entry in entries if isinstance(entry, Subscription))
    others = {calling for calling in callings if calling is not None and calling is not me}
    if others:
        _, late = await asyncio.wait(others, timeout=FINISH_BOUND_S)
        for task in late:
            task.cancel()
