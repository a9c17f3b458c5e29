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
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import Raw

from motet.client.checks import Since
from motet.client.client import Client, Wait, check_on_loss
from motet.client.connecting import connect
from motet.client.loop_thread import LoopThread
from motet.client.machine import DEFAULT_WINDOW
from motet.client.outgoing import Outgoing, Publishable
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import DEFAULT_BUFFER, OnLoss
from motet.client.sync_standing import SyncAdvertisement, SyncSubscription
from motet.client.sync_transaction import SyncTransacting
from motet.errors import ClosedError, MisuseError, MotetError
from motet.model import Event, Filter

log = logging.getLogger("motet.client")

T = TypeVar("T")


class SyncReceipt:
    """What `publish` returns; `wait` returns once the broker has accepted the event."""

    __slots__ = ("_client", "ordinal")

    def __init__(self, client: SyncClient, ordinal: int) -> None:
        self._client = client
        self.ordinal = ordinal

    def wait(self, timeout: float | None = None) -> None:
        """Raises `NotAdvertised` or another refusal; `TimeoutError` if it takes longer."""
        self._client._settled(self.ordinal, timeout)

    def __repr__(self) -> str:
        return f"<SyncReceipt {self.ordinal}>"


class SyncClient(SyncTransacting):
    """Made by `connect_sync`. The verbs of `Client`, without `await`."""

    def __init__(self, client: Client, thread: LoopThread, *, owns_thread: bool = True) -> None:
        self._client = client
        self._thread = thread
        self._owns_thread = owns_thread
        self._outgoing = Outgoing()
        self._room = threading.Condition()
        self._queue: list[tuple[Raw, bool]] = []
        self._made = 0
        self._pumping: asyncio.Task[None] | None = None
        self._woken = False
        self._error: MotetError | None = None

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def broker(self) -> str:
        return self._client.broker

    @property
    def session_epoch(self) -> str:
        return self._client.session_epoch

    @property
    def lost_sessions(self) -> int:
        return self._client.lost_sessions

    @property
    def dropped_by_broker(self) -> int:
        return self._client.dropped_by_broker

    @property
    def lost_events(self) -> int:
        return self._client.lost_events

    @property
    def resumed(self) -> bool:
        return self._client.resumed

    @property
    def published(self) -> int:
        return self._client.published

    @property
    def standing(self) -> tuple[Standing, ...]:
        return self._client.standing

    @property
    def cursors(self) -> Mapping[str, int]:
        """By pubend, the tick up to which the application is done with every event, as of now."""

        async def ask() -> Mapping[str, int]:
            return self._client.cursors

        return self._thread.call(ask()) if self._thread.running else self._client.cursors

    def status(self, *, timeout: float = 10.0) -> dict[str, Any]:
        return self._thread.call(self._client.status(timeout=timeout))

    # ── advertisements and subscriptions ─────────────────────────────────────────────────

    def advertise(
        self,
        filter: str | Filter,
        *,
        name: str | None = None,
        wait: Wait = "overlay",
        timeout: float = 10.0,
    ) -> SyncAdvertisement:
        async def opened() -> Advertisement:
            return await self._client.advertise(filter, name=name, wait=wait, timeout=timeout)

        return SyncAdvertisement(self._in_order(opened()), self._in_order)

    def subscribe(
        self,
        filter: str | Filter,
        *,
        name: str | None = None,
        since: Since | None = None,
        cursors: Mapping[str, int] | None = None,
        callback: Callable[[Event], object] | None = None,
        wait: Wait = "overlay",
        timeout: float = 10.0,
        buffer: int = DEFAULT_BUFFER,
        on_loss: OnLoss = "count",
    ) -> SyncSubscription:
        """Iterate over the result, or give a callback, which runs in a thread of its own."""

        async def opened() -> SyncSubscription:
            entry = await self._client.subscribe(
                filter,
                name=name,
                since=since,
                cursors=cursors,
                wait=wait,
                timeout=timeout,
                buffer=buffer,
                on_loss=on_loss,
            )
            return SyncSubscription(entry, self._in_order, self._thread.check_process)

        if callback is not None and not callable(callback):
            raise MisuseError(f"a callback must be callable, not a {type(callback).__name__}")
        check_on_loss(on_loss, callback)
        subscription = self._in_order(opened())
        if callback is not None:
            subscription.call_back(callback)
        return subscription

    def unadvertise(
        self,
        advertisement: SyncAdvertisement | str,
        *,
        wait: Wait = "overlay",
        timeout: float = 10.0,
    ) -> None:
        if not isinstance(advertisement, SyncAdvertisement | str):
            raise MisuseError(f"unadvertise takes a SyncAdvertisement, not {advertisement!r}")
        what = advertisement if isinstance(advertisement, str) else advertisement._entry
        work = self._client.unadvertise(what, wait=wait, timeout=timeout)
        self._in_order(work)

    def unsubscribe(
        self,
        subscription: SyncSubscription | str,
        *,
        wait: Wait = "overlay",
        timeout: float = 10.0,
    ) -> None:
        if not isinstance(subscription, SyncSubscription | str):
            raise MisuseError(f"unsubscribe takes a SyncSubscription, not {subscription!r}")
        what = subscription if isinstance(subscription, str) else subscription._entry
        work = self._client.unsubscribe(what, wait=wait, timeout=timeout)
        self._in_order(work)

    def _in_order(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a request after everything that this client published before it."""

        async def after_publications() -> T:
            if self._pumping is not None:
                await asyncio.wait({self._pumping})
            return await work

        try:
            return self._thread.call(after_publications())
        finally:
            work.close()  # if it never ran

    # ── publications ─────────────────────────────────────────────────────────────────────

    def publish(
        self, event: Publishable, payload: bytes = b"", *, best_effort: bool | None = None
    ) -> SyncReceipt:
        """Hand an event over; waits only while too many are under way."""
        self._thread.check_process()  # before the lock, which the parent may have held
        body = self._outgoing.body(event, payload)
        sure = self._client._sure if best_effort is None else not best_effort
        with self._room:
            while len(self._queue) >= DEFAULT_WINDOW and self._error is None:
                self._room.wait()
            self._check_open()
            self._queue.append((body, sure))
            self._made = ordinal = self._made + 1
            asleep, self._woken = not self._woken, True
        if asleep:
            self._thread.loop.call_soon_threadsafe(self._wake)
        return SyncReceipt(self, ordinal)

    def publish_many(
        self, events: Iterable[Publishable], *, best_effort: bool | None = None
    ) -> SyncReceipt | None:
        last = None
        for event in events:
            last = self.publish(event, best_effort=best_effort)
        return last

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the fate of everything published so far is known; raise the first refusal."""
        self._in_order(self._client.flush(timeout))

    def _settled(self, ordinal: int, timeout: float | None) -> None:
        async def reach() -> None:
            async with asyncio.timeout(timeout):
                if self._pumping is not None:
                    await asyncio.wait({self._pumping})
                self._check_open_or_made(ordinal)
                await self._client._ledger.reach(ordinal)
            self._client._ledger.check(ordinal)

        self._thread.call(reach())

    def _check_open(self) -> None:
        if self._error is None and self._client.closed:
            self._error = self._client._conversation.error
        if self._error is not None:
            raise self._error

    def _check_open_or_made(self, ordinal: int) -> None:
        if ordinal > self._client._conversation.made:
            self._check_open()

    def _wake(self) -> None:
        self._pumping = self._thread.loop.create_task(self._pump())

    async def _pump(self) -> None:
        """On the loop: stage what the threads have queued, as far as the window has room."""
        talk = self._client._conversation
        try:
            while True:
                with self._room:
                    bodies, self._queue = self._queue, []
                    self._woken = bool(bodies)
                    self._room.notify_all()
                if not bodies:
                    return
                for body, sure in bodies:
                    if not talk.has_room:
                        await talk.room()
                    talk.stage(body, sure)
        except MotetError as error:
            with self._room:
                self._error = error
                self._room.notify_all()

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def acknowledge(self) -> None:
        """The application is done with every event that it has taken so far."""

        async def told() -> None:
            self._client.acknowledge()

        self._thread.call(told())

    def close(self, *, forget: bool = False, done: bool = True) -> None:
        """Settle what was published, say goodbye. Twice is harmless. A durable session stays,
        unless the broker is to `forget` it. `done`: see `Client.close`."""
        if not self._thread.running:
            return
        try:
            self._in_order(self._client.close(forget=forget, done=done))
        finally:
            with self._room:
                self._error = self._error or ClosedError(f"client {self.client_id!r} was closed")
                self._room.notify_all()
            if self._owns_thread:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(done=error is None)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._client)[1:]}"


def connect_sync(address: str, *, client_id: str | None = None, **options: Any) -> SyncClient:
    """Open a session and use it without `await`; options as for `connect`."""

    async def opened() -> Client:
        return await connect(address, client_id=client_id, **options)

    thread = LoopThread()
    try:
        return SyncClient(thread.call(opened()), thread)
    except BaseException:
        thread.stop()
        raise
