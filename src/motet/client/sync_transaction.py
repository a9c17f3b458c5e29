"""Transactions without `await`.

with client.transaction() as tx:
    tx.invite({"assign": "agent-1", "instance": "x1"})
    tx.unsubscribe(updates)
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from motet.client.client import Client
from motet.client.explaining import Explanation
from motet.client.loop_thread import LoopThread
from motet.client.outgoing import Publishable
from motet.client.plan import Plan
from motet.client.standing import Advertisement
from motet.client.subscription import DEFAULT_BUFFER, OnLoss, Subscription
from motet.client.sync_standing import Call, SyncAdvertisement, SyncSubscription
from motet.client.transaction import Invitation, Isolation, Transaction
from motet.errors import MisuseError
from motet.model import Event, Filter

log = logging.getLogger("motet.client")

SyncHandler = Callable[[Invitation, "SyncTransaction"], object]
SyncBegan = Callable[[SyncSubscription], object]


class SyncTransaction:
    """The verbs of `Transaction`, from any thread."""

    def __init__(self, tx: Transaction, call: Call, thread: LoopThread) -> None:
        self._tx = tx
        self._call = call
        self._thread = thread

    @property
    def id(self) -> str:
        return self._tx.id

    @property
    def committed(self) -> bool | None:
        return self._tx.committed

    def advertise(self, filter: str | Filter, *, name: str | None = None) -> SyncAdvertisement:
        entry: Advertisement = self._call(self._tx.advertise(filter, name=name))
        return SyncAdvertisement(entry, self._call)

    def subscribe(
        self,
        filter: str | Filter,
        *,
        name: str | None = None,
        callback: Callable[[Event], object] | None = None,
        buffer: int = DEFAULT_BUFFER,
        on_loss: OnLoss = "count",
    ) -> SyncSubscription:
        """Iterate over the result, or give a callback, which runs in a thread of its own."""
        if callback is not None and not callable(callback):
            raise MisuseError(f"a callback must be callable, not a {type(callback).__name__}")

        async def opened() -> SyncSubscription:
            entry = await self._tx.subscribe(filter, name=name, buffer=buffer, on_loss=on_loss)
            return SyncSubscription(entry, self._call, self._thread.check_process)

        subscription: SyncSubscription = self._call(opened())
        if callback is not None:
            subscription.call_back(callback)
        return subscription

    def unadvertise(self, advertisement: SyncAdvertisement | str) -> None:
        if not isinstance(advertisement, SyncAdvertisement | str):
            raise MisuseError(f"unadvertise takes a SyncAdvertisement, not {advertisement!r}")
        what = advertisement if isinstance(advertisement, str) else advertisement._entry
        self._call(self._tx.unadvertise(what))

    def unsubscribe(self, subscription: SyncSubscription | str) -> None:
        if not isinstance(subscription, SyncSubscription | str):
            raise MisuseError(f"unsubscribe takes a SyncSubscription, not {subscription!r}")
        what = subscription if isinstance(subscription, str) else subscription._entry
        self._call(self._tx.unsubscribe(what))

    def publish(self, event: Publishable, payload: bytes = b"") -> None:
        self._call(self._tx.publish(event, payload))

    def invite(self, event: Publishable, payload: bytes = b"") -> int:
        reached: int = self._call(self._tx.invite(event, payload))
        return reached

    def commit(self) -> None:
        self._call(self._tx.commit())

    def abort(self, reason: str = "") -> None:
        self._call(self._tx.abort(reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._tx.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return f"<Sync{repr(self._tx)[1:]}"


class SyncTransacting(ABC):
    """The part of `SyncClient` that begins transactions and takes part in them."""

    _client: Client
    _thread: LoopThread

    @abstractmethod
    def _in_order(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a request after everything that this client published before it."""

    def transaction(
        self, *, isolation: Isolation = "serializable", timeout: float = 10.0, key: str = ""
    ) -> SyncTransaction:
        """Begin one: use it with `with`, or `commit` it. As `Client.transaction`."""

        async def begun() -> Transaction:
            return await self._client.transaction(isolation=isolation, timeout=timeout, key=key)

        return SyncTransaction(self._in_order(begun()), self._in_order, self._thread)

    def execute(self, plan: Plan, *, timeout: float = 10.0, key: str = "") -> str:
        tx: str = self._in_order(self._client.execute(plan, timeout=timeout, key=key))
        return tx

    def explain(self, what: Plan | SyncTransaction, *, timeout: float = 10.0) -> Explanation:
        """As `Client.explain`."""
        own = what._tx if isinstance(what, SyncTransaction) else what
        told: Explanation = self._in_order(self._client.explain(own, timeout=timeout))
        return told

    def outcome(self, tx_id: str | SyncTransaction, *, timeout: float = 10.0) -> str:
        name = tx_id.id if isinstance(tx_id, SyncTransaction) else tx_id
        told: str = self._in_order(self._client.outcome(name, timeout=timeout))
        return told

    def participate(
        self,
        handler: SyncHandler | None = None,
        *,
        began: SyncBegan | None = None,
        timeout: float = 10.0,
    ) -> None:
        """As `Client.participate`; both are called in threads of their own, and may block."""

        async def handle(invitation: Invitation, tx: Transaction) -> None:
            assert handler is not None
            own = SyncTransaction(tx, self._in_order, self._thread)
            await asyncio.get_running_loop().run_in_executor(None, handler, invitation, own)

        def begin(entry: Subscription) -> None:
            assert began is not None
            own = SyncSubscription(entry, self._in_order, self._thread.check_process)
            asyncio.get_running_loop().run_in_executor(None, _say, began, own)

        self._in_order(
            self._client.participate(
                None if handler is None else handle,
                began=None if began is None else begin,
                timeout=timeout,
            )
        )


def _say(began: SyncBegan, subscription: SyncSubscription) -> None:
    try:
        began(subscription)
    except Exception:
        log.exception("could not take over %r", subscription)
