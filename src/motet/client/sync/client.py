"""The client without `await`, for scripts and threads.

    with motet.connect_sync("motet://127.0.0.1:7701", client_id="alice") as client:
        client.advertise("process = 'p1'")
        with client.subscribe("step > 1") as subscription:
            client.publish({"process": "p1", "step": 2})
            print(subscription.get(timeout=1.0))

An event loop in a thread of its own does the work; any number of threads may use the client.
Publications are handed over in bulk and events are taken straight out of the buffer, so the two
threads meet once per burst, not once per event.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from functools import wraps
from math import inf
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

from msgspec import Raw

from motet.client.checks import check_iterable, checked_flag, checked_time, checked_wait
from motet.client.client import LEAVE_S, Client, SessionOptions, connect
from motet.client.driver import ClientSession
from motet.client.explanation import Explanation, Made, Sketch
from motet.client.local import LocalOptions, LocalOverlay, local
from motet.client.plan import Plan
from motet.client.publications import EventEncoder, Publishable, not_accepted, not_settled
from motet.client.registrations import check_callback
from motet.client.session.machine import DEFAULT_WINDOW
from motet.client.subscription import Advertisement, Registration, Subscription
from motet.client.sync.facade import (
    Facade,
    Forwarded,
    Host,
    LoopThread,
    blocking,
    iterate,
    opening,
    taking,
)
from motet.client.sync.roles import (
    RoleOnLoop,
    SyncHandler,
    SyncOnStarted,
    SyncRole,
    check_part,
    check_plain,
    hand_over,
)
from motet.client.transaction import Invitation, Transaction
from motet.errors import ClosedError, MotetError
from motet.model import Event, Filter

if TYPE_CHECKING:
    from motet.client.local import Topology

log = logging.getLogger("motet.client")

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")


class SyncReceipt:
    """The result of `send`; `wait` returns once the broker has accepted the event."""

    __slots__ = ("_client", "ordinal")

    def __init__(self, client: SyncClient, ordinal: int) -> None:
        self._client = client
        self.ordinal = ordinal

    def wait(self, timeout: float | None = None) -> None:
        """Raises `NotAdvertised` or another refusal; `NoAnswer`, a `TimeoutError`, if it takes
        longer."""
        timeout = checked_wait(timeout)
        if not self._client._settled(self.ordinal, timeout):
            raise not_accepted(timeout or 0.0, sent=True)

    @property
    def settled(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        client = self._client
        return self.ordinal <= client._wrapped._ledger.settled or client.closed

    def __repr__(self) -> str:
        return f"<SyncReceipt {self.ordinal}>"


class RegistrationAttributes:
    """The attributes that the facades of advertisements and subscriptions share."""

    kind = Forwarded[str]()
    filter = Forwarded[Filter]()
    name = Forwarded[str]()
    active = Forwarded[bool]()
    ended = Forwarded[bool]()
    error = Forwarded[MotetError | None]()
    claimed = Forwarded[bool]()


class SyncAdvertisement(RegistrationAttributes, Facade[Advertisement]):
    """The right to publish events within a filter, until `unadvertise`."""

    unadvertise = blocking(Advertisement.unadvertise)


class SyncSubscription(RegistrationAttributes, Facade[Subscription]):
    """Iterate over it, or `get` one event at a time, from any thread."""

    unsubscribe = blocking(Subscription.unsubscribe)
    dropped = Forwarded[int]()
    lost = Forwarded[int]()
    buffered = Forwarded[int]()
    callback_errors = Forwarded[int]()
    last_callback_error = Forwarded[Exception | asyncio.CancelledError | None]()
    cursors = Forwarded[Mapping[str, int]](on_loop=True)

    def __init__(self, entry: Subscription, host: Host) -> None:
        super().__init__(entry, host)
        self._arrival = threading.Condition()
        self._waiting = 0
        entry._bell = self._ring

    def _ring(self) -> None:
        # Read without the lock: a waiting thread counts itself before it looks for an event, so
        # either it sees the event that has just arrived, or this method sees the thread.
        if self._waiting:
            with self._arrival:
                self._arrival.notify_all()

    def get(self, timeout: float | None = None) -> Event:
        """The next event; `TimeoutError` if none comes in time, `ClosedError` after the end.

        Asking for it acknowledges all events that any thread took before, unless that is manual.
        """
        timeout = checked_wait(timeout)
        event = self.get_nowait()
        if event is not None:
            return event
        entry = self._wrapped
        deadline = inf if timeout is None else time.monotonic() + timeout
        with self._arrival:
            self._waiting += 1
            try:
                while True:
                    over = entry.ended
                    event = entry.get_nowait()
                    if event is not None:
                        return event
                    if over:
                        raise entry.error or ClosedError("the subscription is over")
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError(f"no event within {timeout:g} s")
                    self._arrival.wait(min(left_s, threading.TIMEOUT_MAX))
            finally:
                self._waiting -= 1

    def get_nowait(self) -> Event | None:
        """As `Subscription.get_nowait`: None instead of waiting."""
        event = self._wrapped.get_nowait()
        if event is None:
            self._host.check_process()
        return event

    def call_back(self, callback: Callable[[Event], object]) -> None:
        """Start a thread that takes the events from now on and calls `callback`."""
        threading.Thread(target=_read_for, args=(self, callback), daemon=True).start()

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Iterate until the end, or until no event has come for `timeout` seconds."""
        return self._events(checked_wait(timeout))

    def _events(self, timeout: float | None) -> Iterator[Event]:
        while True:
            try:
                yield self.get(timeout)
            except (ClosedError, TimeoutError):
                return


def _read_for(subscription: SyncSubscription, callback: Callable[[Event], object]) -> None:
    entry = subscription._wrapped
    try:
        for event in subscription:
            try:
                callback(event)
            except Exception as error:
                entry.callback_errors += 1
                entry.last_callback_error = error
                log.exception("the callback of %r failed", subscription)
    except MotetError as error:
        log.warning("%r ended: %s", subscription, error)


SyncRegistration = SyncAdvertisement | SyncSubscription


def facade_of(entry: Registration, host: Host) -> SyncRegistration:
    """The one facade of a registration; there is only one because it is told of arrivals."""
    if entry._facade is None:
        if isinstance(entry, Subscription):
            entry._facade = SyncSubscription(entry, host)
        else:
            assert isinstance(entry, Advertisement)
            entry._facade = SyncAdvertisement(entry, host)
    found: SyncRegistration = entry._facade
    return found


def _advertised(entry: Advertisement, owner: Facade[Any]) -> SyncAdvertisement:
    return cast(SyncAdvertisement, facade_of(entry, owner._host))


def _subscribed(entry: Subscription, owner: Facade[Any]) -> SyncSubscription:
    return cast(SyncSubscription, facade_of(entry, owner._host))


def _subscribing(
    method: Callable[Concatenate[W, P], Awaitable[Subscription]],
) -> Callable[Concatenate[Facade[W], P], SyncSubscription]:
    """The same method, blocking; a callback runs in a thread of its own."""

    @wraps(method)
    def call(self: Facade[W], /, *args: P.args, **kwargs: P.kwargs) -> SyncSubscription:
        options: dict[str, Any] = dict(kwargs)
        callback = options.pop("callback", None)
        check_callback(callback, options.get("on_loss", "count"))
        check_plain("a callback", callback)

        async def work() -> SyncSubscription:
            return _subscribed(await method(self._wrapped, *args, **options), self)

        subscription = self._run(work())
        if callback is not None:
            subscription.call_back(callback)
        return subscription

    return call


class SyncTransaction(Facade[Transaction]):
    """The verbs of `Transaction`, from any thread.

    with client.transaction() as tx:
        tx.invite({"assign": "agent-1", "instance": "x1"})
        tx.unsubscribe(updates)
    """

    id = Forwarded[str]()
    committed = Forwarded[bool | None]()
    timeout = Forwarded[float]()
    isolated = Forwarded[bool]()
    made = Forwarded[list[Made]]()
    advertise = opening(Transaction.advertise, _advertised)
    subscribe = _subscribing(Transaction.subscribe)
    unadvertise = taking(Transaction.unadvertise, SyncAdvertisement, str)
    unsubscribe = taking(Transaction.unsubscribe, SyncSubscription, str)
    publish = blocking(Transaction.publish)
    invite = blocking(Transaction.invite)
    commit = blocking(Transaction.commit)
    abort = blocking(Transaction.abort)

    def explain(self, sketch: Sketch | None = None) -> Explanation:
        """As `Transaction.explain`; `client.explain(tx)` asks the overlay."""
        return self._look(lambda: self._wrapped.explain(sketch))


def _begun(tx: Transaction, owner: Facade[Any]) -> SyncTransaction:
    return SyncTransaction(tx, owner._host)


SyncOnSession = Callable[["SyncClient"], object]


class SyncSession(Facade[ClientSession]):
    """The state of a client's session."""

    epoch = Forwarded[str]()
    address = Forwarded[str]()
    resumed = Forwarded[bool]()
    published = Forwarded[int]()
    unsettled = Forwarded[int]()
    lost_sessions = Forwarded[int]()
    lost_events = Forwarded[int]()
    dropped_by_broker = Forwarded[int]()
    cursors = Forwarded[Mapping[str, int]](on_loop=True)


class SyncClient(Facade[Client]):
    """Made by `connect_sync`. The verbs of `Client`, without `await`."""

    client_id = Forwarded[str]()
    broker = Forwarded[str]()
    connected = Forwarded[bool]()
    closed = Forwarded[bool]()
    status = blocking(Client.status)
    move = blocking(Client.move)
    advertise = opening(Client.advertise, _advertised)
    subscribe = _subscribing(Client.subscribe)
    unadvertise = taking(Client.unadvertise, SyncAdvertisement, str)
    unsubscribe = taking(Client.unsubscribe, SyncSubscription, str)
    transaction = opening(Client.transaction, _begun)
    execute = blocking(Client.execute)
    explain = taking(Client.explain, SyncTransaction, Plan)
    outcome = taking(Client.outcome, SyncTransaction, str)

    def __init__(
        self,
        client: Client,
        thread: LoopThread,
        *,
        owns_thread: bool = True,
        on_session_lost: SyncOnSession | None = None,
        on_resumed: SyncOnSession | None = None,
    ) -> None:
        super().__init__(client, Host(self._in_order, thread.check_process))
        client._driver.on_session_lost = self._in_thread(on_session_lost)
        client._driver.on_resumed = self._in_thread(on_resumed)
        self._thread = thread
        self._owns_thread = owns_thread
        self._encoder = EventEncoder()
        self._room = threading.Condition()
        self._queue: list[tuple[Raw, bool]] = []
        self._made = 0
        self._pumping: asyncio.Task[None] | None = None
        self._woken = False
        self._error: MotetError | None = None
        self.session = SyncSession(client.session, self._host)
        thread.at_stop(self._leave)

    def _in_thread(self, callback: SyncOnSession | None) -> Callable[[], Awaitable[object]] | None:
        if callback is None:
            return None
        return lambda: asyncio.get_running_loop().run_in_executor(None, callback, self)

    @property
    def registrations(self) -> tuple[SyncRegistration, ...]:
        """As `Client.registrations`."""
        client, host = self._wrapped, self._host
        return self._tell(lambda: tuple(facade_of(entry, host) for entry in client.registrations))

    @property
    def subscriptions(self) -> tuple[SyncSubscription, ...]:
        """As `Client.subscriptions`."""
        return tuple(e for e in self.registrations if isinstance(e, SyncSubscription))

    def _in_order(self, work: Coroutine[Any, Any, T], /, patience_s: float | None = None) -> T:
        """Run a request after everything that this client published before it, or, with
        `patience_s`, after that time."""

        async def publications() -> None:
            if self._pumping is not None:
                await asyncio.wait({self._pumping}, timeout=patience_s)

        return self._thread.call(work, publications)

    # ── transactions ─────────────────────────────────────────────────────────────────────

    def participate(
        self,
        handler: SyncHandler | SyncRole | None = None,
        *,
        on_started: SyncOnStarted | None = None,
        timeout: float = 10.0,
    ) -> None:
        """As `Client.participate`, with a `SyncRole` for a `Role`. The callables and the methods of
        the role run in threads of their own, and may block."""
        check_part(handler)
        check_plain("on_started", on_started)
        checked_time(timeout)
        client = self._wrapped
        role = handler if isinstance(handler, SyncRole) else None
        plain = None if isinstance(handler, SyncRole) else handler

        def begun(tx: Transaction) -> SyncTransaction:
            return _begun(tx, self)

        def subscribed(entry: Subscription) -> SyncSubscription:
            return _subscribed(entry, self)

        async def handle(invitation: Invitation, tx: Transaction) -> None:
            assert plain is not None
            await asyncio.get_running_loop().run_in_executor(None, plain, invitation, begun(tx))

        def start(entry: Subscription) -> None:
            assert on_started is not None
            own = subscribed(entry)
            asyncio.get_running_loop().run_in_executor(None, hand_over, on_started, own)

        async def take_part() -> None:
            if role is not None:
                on_loop = RoleOnLoop(role, begun, subscribed)
                client._driver.participation.register(on_loop, type(role))
            await client.participate(
                None if plain is None else handle,
                on_started=None if on_started is None else start,
                timeout=timeout,
            )

        self._run(take_part())

    def started(self) -> Iterator[SyncSubscription]:
        """As `Client.started`."""

        async def items() -> AsyncIterator[SyncSubscription]:
            async for entry in self._wrapped.started():
                yield _subscribed(entry, self)

        with suppress(ClosedError):
            yield from iterate(self._thread.call, items())

    # ── publications ─────────────────────────────────────────────────────────────────────

    def publish(
        self,
        event: Publishable,
        payload: bytes = b"",
        *,
        best_effort: bool | None = None,
        timeout: float | None = None,
    ) -> None:
        """As `Client.publish`: waits until the event is durable."""
        if timeout is None:
            self.send(event, payload, best_effort=best_effort).wait()
            return
        until = time.monotonic() + checked_time(timeout)
        receipt = self._send(event, payload, best_effort, until)
        if receipt is None or not self._settled(receipt.ordinal, until - time.monotonic()):
            raise not_accepted(timeout, sent=receipt is not None)

    def publish_many(
        self, events: Iterable[Publishable], *, best_effort: bool | None = None
    ) -> None:
        """As `Client.publish_many`."""
        check_iterable("publish_many", events)
        for receipt in [self.send(event, best_effort=best_effort) for event in events]:
            receipt.wait()

    def send(
        self, event: Publishable, payload: bytes = b"", *, best_effort: bool | None = None
    ) -> SyncReceipt:
        """As `Client.send`: waits only while too many events are unsettled."""
        receipt = self._send(event, payload, best_effort, None)
        assert receipt is not None
        return receipt

    def send_nowait(
        self, event: Publishable, payload: bytes = b"", *, best_effort: bool | None = None
    ) -> SyncReceipt | None:
        """As `Client.send_nowait`: returns None instead of waiting."""
        return self._send(event, payload, best_effort, 0.0)

    def _send(
        self,
        event: Publishable,
        payload: bytes,
        best_effort: bool | None,
        until: float | None,
    ) -> SyncReceipt | None:
        """None if there is no room before the time `until`."""
        self._thread.check_process()  # before the lock, which the parent may have held
        body = self._encoder.body(event, payload)
        sure = (
            self._wrapped._sure
            if best_effort is None
            else not checked_flag("best_effort", best_effort)
        )
        with self._room:
            while len(self._queue) >= DEFAULT_WINDOW and self._error is None:
                left_s = None if until is None else until - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self._room.wait(left_s)
            self._check_open()
            self._queue.append((body, sure))
            self._made = ordinal = self._made + 1
            asleep, self._woken = not self._woken, True
        if asleep:
            self._thread.soon(self._wake)
        return SyncReceipt(self, ordinal)

    def send_many(
        self, events: Iterable[Publishable], *, best_effort: bool | None = None
    ) -> SyncReceipt | None:
        """As `Client.send_many`."""
        check_iterable("send_many", events)
        last = None
        for event in events:
            last = self.send(event, best_effort=best_effort)
        return last

    def flush(self, timeout: float | None = None) -> None:
        """As `Client.flush`."""
        timeout = checked_wait(timeout)
        made = self._made
        if not self._settled(made, timeout, check=False):
            raise not_settled(made - self._wrapped._ledger.settled, timeout or 0.0)
        self._in_order(self._wrapped.flush())

    def _settled(self, ordinal: int, timeout: float | None, *, check: bool = True) -> bool:
        """Wait until a publication is settled, and `check` that it was not refused. False: it took
        too long."""
        ledger = self._wrapped._ledger

        async def reach() -> None:
            if self._pumping is not None:
                await asyncio.wait({self._pumping})
            if ordinal > self._wrapped._driver.made:
                self._check_open()
            await ledger.reach(ordinal)

        async def is_settled() -> bool:
            try:
                async with asyncio.timeout(timeout):
                    await reach()
            except TimeoutError as problem:
                if isinstance(problem, MotetError):
                    raise
                return False
            if check:
                ledger.check(ordinal)
            return True

        return self._thread.call(is_settled())

    def _check_open(self) -> None:
        if self._error is None and self._wrapped.closed:
            self._error = self._wrapped._driver.error
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        self._pumping = self._thread.loop.create_task(self._pump())

    async def _pump(self) -> None:
        """On the loop: stage the publications that threads have queued, as the window has room."""
        driver = self._wrapped._driver
        try:
            while True:
                with self._room:
                    bodies, self._queue = self._queue, []
                    self._woken = bool(bodies)
                    self._room.notify_all()
                if not bodies:
                    return
                for body, sure in bodies:
                    if not driver.has_room:
                        await driver.room()
                    driver.stage(body, sure)
        except MotetError as error:
            with self._room:
                self._error = error
                self._room.notify_all()

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def acknowledge(self) -> None:
        """As `Client.acknowledge`."""
        self._tell(self._wrapped.acknowledge)

    def close(
        self,
        *,
        timeout: float = LEAVE_S,
        discard_session: bool = False,
        acknowledge: bool = True,
    ) -> None:
        """As `Client.close`. If it fails or is interrupted, the client is closed all the same."""
        timeout_s = checked_time(timeout)
        if not self._thread.running:
            return
        self._thread.check_caller()
        client = self._wrapped
        try:
            self._in_order(
                client.close(
                    timeout=timeout_s, discard_session=discard_session, acknowledge=acknowledge
                ),
                patience_s=timeout_s,
            )
            self._thread.not_at_stop(self._leave)
        except ClosedError:
            pass  # another thread has closed it meanwhile
        except BaseException:
            # Not `call`: a second interrupt must not cancel it.
            with suppress(ClosedError):
                leave = client._driver.leave(LEAVE_S / 4, forget=discard_session)
                self._thread.submit(leave).result()
            raise
        finally:
            self._end_sending()
            if self._owns_thread:
                self._thread.stop()

    async def _leave(self) -> None:
        """The loop stops, and so does this client."""
        try:
            await self._wrapped._driver.leave(0.0)
        finally:
            self._end_sending()

    def _end_sending(self) -> None:
        with self._room:
            self._error = self._error or ClosedError(f"client {self.client_id!r} was closed")
            self._room.notify_all()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(acknowledge=error is None)


def connect_sync(
    *addresses: str,
    client_id: str | None = None,
    on_session_lost: SyncOnSession | None = None,
    on_resumed: SyncOnSession | None = None,
    **options: Unpack[SessionOptions],
) -> SyncClient:
    """Open a session and use it without `await`; options as for `connect`. The callbacks run in
    threads of their own."""
    check_plain("on_session_lost", on_session_lost)
    check_plain("on_resumed", on_resumed)

    async def opened() -> Client:
        return await connect(*addresses, client_id=client_id, **options)

    client, thread = LoopThread.opened(opened())
    return SyncClient(client, thread, on_session_lost=on_session_lost, on_resumed=on_resumed)


class SyncOverlay(Facade[LocalOverlay]):
    """`LocalOverlay` for scripts: brokers and clients share one thread in the background."""

    brokers = Forwarded[tuple[str, ...]]()
    topology = Forwarded["Topology"]()
    start_broker = blocking(LocalOverlay.start_broker)
    stop_broker = blocking(LocalOverlay.stop_broker)

    def __init__(self, overlay: LocalOverlay, thread: LoopThread) -> None:
        super().__init__(overlay, thread.host)
        self._thread = thread

    def status(self) -> dict[str, dict[str, Any]]:
        """As `LocalOverlay.status`."""
        return self._tell(self._wrapped.status)

    def address(self, broker: str) -> str:
        """As `LocalOverlay.address`."""
        return self._wrapped.address(broker)

    @property
    def sequencer(self) -> str:
        """As `LocalOverlay.sequencer`."""
        return self._wrapped.sequencer

    def connect(
        self,
        client_id: str | None = None,
        *,
        broker: str | None = None,
        on_session_lost: SyncOnSession | None = None,
        on_resumed: SyncOnSession | None = None,
        **options: Unpack[SessionOptions],
    ) -> SyncClient:
        """As `LocalOverlay.connect`."""
        check_plain("on_session_lost", on_session_lost)
        check_plain("on_resumed", on_resumed)

        async def opened() -> Client:
            return await self._wrapped.connect(client_id, broker=broker, **options)

        return SyncClient(
            self._thread.call(opened()),
            self._thread,
            owns_thread=False,
            on_session_lost=on_session_lost,
            on_resumed=on_resumed,
        )

    def close(self) -> None:
        """Idempotent."""
        self._thread.finish(self._wrapped.close)

    def __exit__(self, *_: object) -> None:
        self.close()


def local_sync(brokers: int | Topology = 3, **options: Unpack[LocalOptions]) -> SyncOverlay:
    """`with motet.local_sync(brokers=3) as overlay:` — `local` without `await`."""

    async def opened() -> LocalOverlay:
        return await local(brokers, **options)

    return SyncOverlay(*LoopThread.opened(opened()))
