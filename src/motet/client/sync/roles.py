"""Taking part in other clients' transactions without `await`.

The client asks its roles on the event loop. A synchronous role is asked in a thread of its own, so
that it may block, and it receives synchronous objects.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from motet.client.checks import check_callable
from motet.client.subscription import Subscription
from motet.client.transaction import Invitation, Role, Transaction
from motet.errors import MisuseError

if TYPE_CHECKING:
    from motet.client.sync.client import SyncSubscription, SyncTransaction

log = logging.getLogger("motet.client")

SyncHandler = Callable[[Invitation, "SyncTransaction"], object]
SyncOnStarted = Callable[["SyncSubscription"], object]


class SyncRole:
    """`Role` without `await`: one way in which a client takes part in other clients' transactions.

    `client.participate(role)` adds it. There is one role of each type; each has its own state. Its
    methods run in threads of their own, and may block.
    """

    def invited(self, invitation: Invitation, tx: SyncTransaction) -> bool:
        """Do this client's part in a transaction; raise to refuse. Returns whether the invitation
        was for this role; if not, the next role is asked."""
        del invitation, tx
        return False

    def started(self, subscription: SyncSubscription) -> None:
        """A transaction has put a subscription in force for this client."""

    def close(self) -> None:
        """The client has ended."""


class RoleOnLoop(Role):
    """The asynchronous role that the client asks in place of a synchronous one."""

    def __init__(
        self,
        role: SyncRole,
        begun: Callable[[Transaction], SyncTransaction],
        subscribed: Callable[[Subscription], SyncSubscription],
    ) -> None:
        self._role = role
        self._begun = begun
        self._subscribed = subscribed

    async def invited(self, invitation: Invitation, tx: Transaction) -> bool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._role.invited, invitation, self._begun(tx))

    def started(self, subscription: Subscription) -> None:
        own = self._subscribed(subscription)
        asyncio.get_running_loop().run_in_executor(None, hand_over, self._role.started, own)

    def close(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._end)

    def _end(self) -> None:
        try:
            self._role.close()
        except Exception:
            log.exception("`close` failed for %r", self._role)


def hand_over(on_started: SyncOnStarted, subscription: SyncSubscription) -> None:
    try:
        on_started(subscription)
    except Exception:
        log.exception("`on_started` failed for %r", subscription)


# ── checks ───────────────────────────────────────────────────────────────────────────────


def check_plain(what: str, value: object) -> None:
    """Reject what cannot be called, and `async def`, whose coroutine no thread would await."""
    check_callable(what, value)
    called = getattr(value, "__call__", None)  # noqa: B004 - of an object, it may be `async def`
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(called):
        raise MisuseError(
            f"{what} of a synchronous client runs in a thread, where nothing awaits it; write it "
            "with `def` instead of `async def`, or use `motet.connect`"
        )


def check_part(handler: object) -> None:
    """Check what an application passes to `participate`."""
    if isinstance(handler, type) and issubclass(handler, Role | SyncRole):
        raise MisuseError(
            f"participate takes an object, not the class {handler.__name__}; write "
            f"participate({handler.__name__}())"
        )
    if isinstance(handler, Role):
        raise MisuseError(
            f"{type(handler).__name__} is an asynchronous Role, and a synchronous client asks its "
            "roles in threads, where nothing awaits their methods; derive it from "
            "motet.client.sync.SyncRole and write its methods with `def`, or use `motet.connect`"
        )
    if isinstance(handler, SyncRole):
        for name in ("invited", "started", "close"):
            check_plain(f"`{name}` of {type(handler).__name__}", getattr(handler, name))
    else:
        check_plain("a handler", handler)
