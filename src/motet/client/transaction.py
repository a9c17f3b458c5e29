"""A transaction as applications see it, whether they began it or were invited to it.

async with client.transaction() as tx:
    await tx.invite({"assign": "agent-1", "instance": "x1"})
    await tx.unsubscribe(updates)

Everything in it takes effect when the block ends; if the block raises, the transaction aborts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Self

from msgspec import Raw

from motet.client.checks import checked_reason, is_text, length_sent, reason_of, shown
from motet.client.explanation import (
    REMEMBERED,
    Explanation,
    Made,
    Sketch,
    explain_transaction,
)
from motet.client.publications import EventEncoder, Publishable
from motet.client.session.requests import GONE
from motet.client.session.state import Concluded, aborted
from motet.client.subscription import (
    DEFAULT_BUFFER,
    Advertisement,
    Callback,
    OnLoss,
    Registration,
    Subscription,
)
from motet.errors import (
    Aborted,
    ClosedError,
    Disconnected,
    MisuseError,
    MotetError,
    NoSuchOperation,
    NotInvited,
    PlanError,
    TransactionOver,
)
from motet.model import Event, Filter, as_filter, decode_attributes, decode_body
from motet.protocol.session.messages import (
    AnswerRequest,
    EndRequest,
    ExecuteRequest,
    Invited,
    InviteRequest,
    StageRequest,
    Tag,
)
from motet.protocol.transactions.messages import SameKey, parse_reason

if TYPE_CHECKING:
    from motet.client.driver import SessionDriver

log = logging.getLogger("motet.client")


MAX_KEY_CHARS = 1024
MAX_PLAN_BYTES = 4 << 20
LEAVE_S = 1.0
"""How long a block that has raised waits to hear that its transaction is aborted."""

Isolation = Literal["serializable", "none"]


class Outcome(StrEnum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in progress"
    EXPIRED = "expired"
    """It ended so long ago that no broker remembers its outcome."""


class Invitation:
    """An invitation to a transaction: the event that its coordinator has sent."""

    def __init__(self, event: Event, tx_id: str) -> None:
        self.event = event
        self.tx_id = tx_id

    def __repr__(self) -> str:
        return f"<Invitation to {self.tx_id}: {self.event!r}>"


class Transaction:
    """Operations of this client in one transaction. All operations of all its participants take
    effect together, or none does."""

    def __init__(self, driver: SessionDriver, tx: str, timeout_s: float, order: str = "") -> None:
        self._driver = driver
        self.id = tx
        """The id for `client.outcome`, in this process or another. If an earlier transaction with
        the same key was committed, it becomes the id of that one when this one commits."""
        self._before = False
        """An earlier transaction with the same key was committed."""
        self.timeout = timeout_s
        self._order = order
        self._made = 0
        self._body = EventEncoder().body
        self._coordinates = not order
        self._closed = False
        self._ended_here = False
        """This client has aborted it."""
        self.isolated = False
        self.made: list[Made] = []
        """The operations of this client in it, and how long they took."""
        self.outcome: asyncio.Future[Concluded] = asyncio.get_running_loop().create_future()

    @property
    def committed(self) -> bool | None:
        """None while it is open, or if the outcome is unknown."""
        if self._before:
            return True
        return self.outcome.result().committed if self.outcome.done() else None

    # ── operations ───────────────────────────────────────────────────────────────────────

    async def advertise(self, filter: str | Filter, *, name: str | None = None) -> Advertisement:
        """Announce the events that will be published, in this transaction and after it."""
        wanted = as_filter(filter)
        with self._noted("advertise", str(wanted)):
            advertise = self._driver.registrations.advertise
            return await advertise(wanted, name, self.timeout, tag=self._tag())

    async def subscribe(
        self,
        filter: str | Filter,
        *,
        name: str | None = None,
        callback: Callback | None = None,
        buffer: int = DEFAULT_BUFFER,
        on_loss: OnLoss = "count",
    ) -> Subscription:
        """Receive matching events from the commit on. If the same transaction ends another
        subscription to the stream, every event reaches exactly one of the two."""
        wanted = as_filter(filter)
        with self._noted("subscribe", str(wanted)):
            return await self._driver.registrations.subscribe(
                wanted,
                name,
                self.timeout,
                tag=self._tag(),
                callback=callback,
                buffer=buffer,
                on_loss=on_loss,
            )

    async def unadvertise(self, advertisement: Advertisement | str) -> None:
        await self._end("advertise", advertisement)

    async def unsubscribe(self, subscription: Subscription | str) -> None:
        """End it with the commit; it still receives all events published before."""
        await self._end("subscribe", subscription)

    async def _end(self, kind: str, what: Registration | str) -> None:
        entry = self._driver.registrations.find(kind, what) if isinstance(what, str) else what
        if not isinstance(entry, Registration) or entry.kind != kind:
            raise NoSuchOperation(f"un{kind}: {what!r} is not in force at this client")
        if self._driver.registrations.entries.get(entry.handle) is not entry:
            raise NoSuchOperation(f"{entry!r} is not in force at this client")
        with self._noted(f"un{kind}", entry.name):
            await self._driver.registrations.take_out(self._tag(), entry, self.timeout)

    async def publish(self, event: Publishable, payload: bytes = b"") -> None:
        """Publish with the commit: the event is not visible before, and never if it aborts."""
        body = self._body(event, payload)
        with self._noted("publish"):
            await self._driver.answers.ask(StageRequest(0, self._tag(), body, self.timeout))

    async def invite(self, event: Publishable, payload: bytes = b"") -> int:
        """Invite all subscribers of this event to take part, now. Returns their number when all
        have done their parts; raises `InvitationRefused` if one refuses."""
        body = self._body(event, payload)
        with self._noted("invite", repr(decode_attributes(body))) as made:
            value = await self._driver.answers.ask(
                InviteRequest(0, self._tag(), body, self.timeout)
            )
            made.reached = int(value or 0)
        return made.reached

    @contextmanager
    def _noted(self, kind: str, what: str = "") -> Iterator[Made]:
        """Record an operation for `explain`, unless it fails. If it fails because the transaction
        was aborted meanwhile, raise that."""
        made, began_s = Made(kind, what), time.perf_counter()
        try:
            yield made
        except TransactionOver:
            self._check_lasts()
            raise
        made.seconds = time.perf_counter() - began_s
        self.made.append(made)

    def explain(self, sketch: Sketch | None = None) -> Explanation:
        """Its cost so far, its remaining cost, and whether a plan would have cost less. Messages
        and hops depend on the overlay: `await client.explain(tx)` asks it."""
        return explain_transaction(
            self.made, self.isolated, sketch, self._driver.participation.past
        )

    def _check_lasts(self) -> None:
        """Raise `Aborted`, with the reason, if it was aborted elsewhere or lost its session."""
        if self.outcome.done() and not self.committed and not self._ended_here:
            raise aborted(self.outcome.result().reason or "it was aborted")

    def _tag(self) -> Tag:
        self._check_lasts()
        if self._closed or self.outcome.done():
            raise TransactionOver(
                f"transaction {self.id} is over; begin another one for further operations"
            )
        self._made += 1
        place = f"{self._made:08d}"
        return Tag(self.id, f"{self._order}/{place}" if self._order else place)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def commit(self) -> None:
        """Commit; raises `Aborted` if that is impossible. Returns when it is effective at every
        broker that it affects; `StillSpreading` if one is unreachable for longer than the timeout.
        If a transaction with the same key was committed before, this one gets its id, and none of
        its own operations takes effect."""
        told = self.id
        if not self._closed and self.outcome.done():
            reason = parse_reason(self.outcome.result().reason)
            told = reason.tx if isinstance(reason, SameKey) else told
        if told == self.id:
            told = await self._finish(commit=True)
        if told and told != self.id:
            self._closed = self._before = True
            self.id = told

    async def abort(self, reason: str = "") -> None:
        """Discard all its operations. Idempotent."""
        told = checked_reason(reason)
        if self._closed:
            return
        with suppress(Aborted):
            await self._finish(commit=False, reason=told)

    async def _finish(self, *, commit: bool, reason: str = "") -> str:
        if not self._coordinates:
            raise MisuseError(
                "only the coordinator can end a transaction; an invited client returns from its "
                "handler to accept, or raises to refuse"
            )
        if not self._closed:
            self._closed = self.outcome.done()
            self._check_lasts()
        if self._closed:
            raise TransactionOver(f"transaction {self.id} is over")
        self._closed = True
        self._ended_here = not commit
        self._driver.participation.remember(self.made)
        request = EndRequest(0, self.id, commit, reason, self.timeout)
        with self._noted("commit" if commit else "abort"):
            return await self._driver.answers.ask(request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._closed:
            return
        if error is None:
            await self.commit()
            return
        # The block's error matters more than how the abort goes.
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.abort(reason_of(error))
        except (MotetError, TimeoutError) as problem:
            log.info("transaction %s, aborted by its block: %s", self.id, problem)

    def __repr__(self) -> str:
        state = {True: "committed", False: "aborted", None: "open"}[self.committed]
        return f"<Transaction {self.id}, {state}>"


def checked_isolation(isolation: str) -> bool:
    if isolation not in ("serializable", "none"):
        raise MisuseError(f"isolation is 'serializable' or 'none', not {shown(isolation)}")
    return isolation == "serializable"


def checked_key(key: str) -> str:
    if not is_text(key) or len(key) > MAX_KEY_CHARS:
        raise MisuseError(f"a key is text of at most {MAX_KEY_CHARS} characters, not {shown(key)}")
    return key


def check_plan(steps: int, request: ExecuteRequest) -> None:
    size_bytes = length_sent(request, "this plan cannot be sent", PlanError)
    if size_bytes > MAX_PLAN_BYTES:
        raise PlanError(
            f"a plan of {steps} steps and {size_bytes:,} bytes is above the limit of "
            f"{MAX_PLAN_BYTES:,}; split it into several plans"
        )


Handler = Callable[[Invitation, Transaction], Awaitable[object]]
OnStarted = Callable[[Subscription], object]
MOST_WAITING = 1024
"""Started subscriptions not yet iterated over; above it those that have ended are dropped."""


class Role:
    """One way in which a client takes part in other clients' transactions.

    `client.participate(role)` adds it. There is one role of each type; each has its own state.
    """

    async def invited(self, invitation: Invitation, tx: Transaction) -> bool:
        """Do this client's part in a transaction; raise to refuse. Returns whether the invitation
        was for this role; if not, the next role is asked."""
        del invitation, tx
        return False

    def started(self, subscription: Subscription) -> None:
        """A transaction has put a subscription in force for this client."""

    def close(self) -> None:
        """The client has ended."""


class InvitationRole(Role):
    """Takes part in transactions by invitation: the application's handler does its part."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def invited(self, invitation: Invitation, tx: Transaction) -> bool:
        await self._handler(invitation, tx)
        return True


class PlanRole(Role, AsyncIterator[Subscription]):
    """Receives the subscriptions that plans have started: by a callback, or as an iterator."""

    def __init__(self) -> None:
        self.on_started: OnStarted | None = None
        self._waiting: deque[Subscription] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def started(self, subscription: Subscription) -> None:
        if self.on_started is None:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting = deque(each for each in self._waiting if not each.ended)
            self._waiting.append(subscription)
            self._changed.set()
            return
        try:
            self.on_started(subscription)
        except Exception:  # the application's error must not end the session
            log.exception("`on_started` failed for %r", subscription)

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def __anext__(self) -> Subscription:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class Participation:
    """A client's roles in other clients' transactions, and the outcomes of all its transactions."""

    def __init__(self, driver: SessionDriver) -> None:
        self._driver = driver
        self.plans = PlanRole()
        self._roles: dict[type, Role] = {PlanRole: self.plans}
        self._open: dict[str, list[Transaction]] = {}
        """All handles of a transaction: a client that is invited twice has two."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.past: list[list[Made]] = []
        """The operations of this client's last transactions."""

    def register(self, role: Role, kind: type | None = None) -> None:
        """Add a role, replacing one of the same type, or of the same `kind`. The application's
        handler, which takes every invitation, is asked last."""
        handler = self._roles.pop(InvitationRole, None)
        self._roles[kind or type(role)] = role
        if handler is not None:
            self._roles.setdefault(InvitationRole, handler)

    def remember(self, made: list[Made]) -> None:
        self.past = [*self.past, list(made)][-REMEMBERED:]

    def opened(self, tx: Transaction) -> None:
        self._open.setdefault(tx.id, []).append(tx)

    def called(self, invited: Invited) -> None:
        task = asyncio.get_running_loop().create_task(self._take_part(invited))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_part(self, invited: Invited) -> None:
        refusal = ""
        try:
            await self._handle(invited)
        except Exception as problem:
            refusal = f"{self._driver.machine.client}: {reason_of(problem)}"
        answer = AnswerRequest(0, invited.tx, invited.op, refusal, invited.timeout_s)
        # The transaction is decided, or the answer cannot be sent: nothing remains to be done.
        with suppress(TransactionOver, NotInvited, Aborted, Disconnected, ClosedError):
            await self._driver.answers.ask(answer)

    async def _handle(self, invited: Invited) -> None:
        tx = Transaction(self._driver, invited.tx, invited.timeout_s, invited.order)
        self.opened(tx)
        attributes, payload = decode_body(Raw(invited.body))
        event = Event.delivered(attributes, payload, invited.op.client, invited.op.sequence)
        invitation = Invitation(event, invited.tx)
        for role in list(self._roles.values()):
            if await role.invited(invitation, tx):
                return
        raise MisuseError(
            "does not take part in transactions; call client.participate(handler) first"
        )

    def concluded(self, news: Concluded) -> None:
        for tx in self._open.pop(news.tx, []):
            if not tx.outcome.done():
                tx.outcome.set_result(news)
        for entry in self._driver.registrations.concluded(news):
            if isinstance(entry, Subscription):
                for role in self._roles.values():
                    role.started(entry)

    def lose_session(self) -> None:
        """All open transactions of the session are void; their outcomes may remain unknown."""
        for tx in list(self._open):
            self.concluded(Concluded(tx, 0, None, GONE.text))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for role in self._roles.values():
            role.close()
