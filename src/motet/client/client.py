"""The client as applications see it.

async with motet.connect("motet://127.0.0.1:7701", client_id="alice") as client:
    await client.advertise("process = 'p1'")
    async with client.subscribe("step > 1") as subscription:
        await client.publish({"process": "p1", "step": 2}, payload=b"...")
        async for event in subscription:
            print(event["step"], event.payload)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Self, TypedDict, TypeVar

from motet.audit.recorder import Recording, folder_of
from motet.client.channel import ask as ask_status
from motet.client.checks import (
    Since,
    check_callable,
    check_iterable,
    checked,
    checked_cursors,
    checked_flag,
    checked_keep,
    checked_target,
    checked_time,
    checked_tx,
    checked_wait,
    is_time,
    reach_of,
    shown,
)
from motet.client.driver import CHECK_BROKER, SessionDriver
from motet.client.explanation import Explanation, Sketch
from motet.client.history import HistoryRecorder
from motet.client.plan import Plan
from motet.client.publications import EventEncoder, Publishable, Receipt, not_accepted, not_settled
from motet.client.session.machine import DEFAULT_WINDOW, ClientMachine
from motet.client.session.state import Failure, error_of
from motet.client.subscription import (
    DEFAULT_BUFFER,
    Advertisement,
    Callback,
    OnLoss,
    Registration,
    Subscription,
    finish,
)
from motet.client.transaction import (
    Handler,
    InvitationRole,
    Isolation,
    OnStarted,
    Outcome,
    Role,
    Transaction,
    check_plan,
    checked_isolation,
    checked_key,
)
from motet.errors import (
    ClientElsewhere,
    Disconnected,
    MisuseError,
    MotetError,
    NoAnswer,
    NoSuchOperation,
    UnavailableError,
)
from motet.model import Filter
from motet.model.limits import MAX_CLIENT_ID_CHARS, MAX_CREDENTIALS_BYTES
from motet.protocol.session.messages import (
    BeginRequest,
    ConsentRequest,
    ExecuteRequest,
    OutcomeRequest,
)
from motet.runtime.addresses import check_address

log = logging.getLogger("motet.client")


P = ParamSpec("P")
T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


class AwaitableContext(Generic[T]):
    """`thing = await opening`, or `async with opening as thing`."""

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening = opening
        self._opened: T

    def __await__(self) -> Generator[Any, None, T]:
        return self._opening.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(self, *raised: Any) -> None:
        await self._opened.__aexit__(*raised)


def opens(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, AwaitableContext[T]]:
    """Make the result of the function awaitable, or enterable with `async with`."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> AwaitableContext[T]:
        return AwaitableContext(method(*args, **kwargs))

    return call


Wait = Literal["overlay", "local"]

LEAVE_S = 2.0


class Client:
    """One session with one broker at a time. Made by `connect`, on a running event loop.

    It belongs to that loop: call it from there only (`connect_sync` is for threads). Calls on
    another loop, or in a forked child, raise `MisuseError`. If the
    connection breaks, it reconnects and resumes its session; if the broker no longer knows the
    session, it opens a new one and renews everything that was in force.
    """

    def __init__(self, driver: SessionDriver, *, best_effort: bool = False) -> None:
        self.client_id = driver.machine.client
        self.session = driver.session
        """Its epoch, address, progress, and losses."""
        self._driver = driver
        self._sure = not best_effort
        self._body = EventEncoder().body
        self._ledger = driver.ledger

    # ── state ────────────────────────────────────────────────────────────────────────────

    @property
    def broker(self) -> str:
        """The name of the broker that serves this client."""
        return self._driver.machine.broker or ""

    @property
    def connected(self) -> bool:
        return self._driver.machine.state == "open"

    @property
    def closed(self) -> bool:
        return self._driver.error is not None

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """All advertisements and subscriptions that are active."""
        return tuple(e for e in self._driver.registrations.entries.values() if e.active)

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The active subscriptions. One that is not `claimed` was left by an earlier process of
        this durable client: it buffers its events until this process subscribes to it again, by
        its name, or unsubscribes it. Unclaimed subscriptions eventually stop the stream to this
        client, because their events are never acknowledged."""
        return tuple(e for e in self.registrations if isinstance(e, Subscription))

    async def status(self, *, timeout: float = 10.0) -> dict[str, Any]:
        """The broker's status: links, tables, queues, rates."""
        self._driver.check_open()
        return await ask_status(self.session.address, checked_time(timeout))

    # ── advertisements and subscriptions ─────────────────────────────────────────────────

    @opens
    async def advertise(
        self,
        filter: str | Filter,
        *,
        name: str | None = None,
        wait: Wait = "overlay",
        timeout: float = 10.0,
    ) -> Advertisement:
        """Announce the events that will be published; events outside the filter are refused.

        Await it, or use it with `async with`. It returns once every broker knows the advertisement
        and every matching subscription has been routed to our broker; with `wait="local"`, as soon
        as our broker has it. `NotEffective` names the brokers that were not reached in time; the
        advertisement is then removed.

        If a durable session already has an advertisement of this `name` (by default the text of
        the filter), that one is returned.
        """
        everywhere, timeout_s = checked(wait, timeout)
        advertise = self._driver.registrations.advertise
        return await advertise(filter, name, timeout_s, wait=everywhere)

    @opens
    async def subscribe(
        self,
        filter: str | Filter,
        *,
        name: str | None = None,
        since: Since | None = None,
        cursors: Mapping[str, int] | None = None,
        callback: Callback | None = None,
        wait: Wait = "overlay",
        timeout: float = 10.0,
        buffer: int = DEFAULT_BUFFER,
        on_loss: OnLoss = "count",
    ) -> Subscription:
        """Receive matching events, by iterating or through `callback` (a plain or async function).

        Await it, or use it with `async with`. It returns once every broker on the way to every
        matching advertiser has the subscription: events published from then on arrive.
        `buffer` limits the best-effort events that wait here for the application. Exactly-once
        events are never dropped; the broker holds them back while too many are unacknowledged, in
        all subscriptions of this client together.

        If exactly-once events are permanently lost, `subscription.lost` counts it and the log
        says so; with `on_loss="raise"` the iterator raises `EventsLost` in their place, and
        continues after them on the next call. A loss that was raised is settled: it need not be
        acknowledged.

        If a durable session already has a subscription of this `name` (by default the text of the
        filter), that one is returned, with all events that have arrived for it meanwhile.

        `since` asks for earlier events: "beginning", a datetime with a time zone, or cursors.
        Events that the logs of publishers' brokers no longer have are reported as lost.
        With `cursors`, no event at or below them reaches this subscription, and a new subscription
        starts there, unless `since` says otherwise.
        """
        if since not in (None, "now") and self._driver.machine.total_order:
            raise MisuseError(
                "a client in total order cannot ask for earlier events with `since`, because other "
                "clients have passed them; use a client with `order='publisher'`"
            )
        known = checked_cursors(cursors)
        everywhere, timeout_s = checked(wait, timeout)
        return await self._driver.registrations.subscribe(
            filter,
            name,
            timeout_s,
            wait=everywhere,
            since=reach_of(since, known),
            callback=callback,
            buffer=buffer,
            on_loss=on_loss,
            cursors=known,
        )

    async def unadvertise(
        self, advertisement: Advertisement | str, *, wait: Wait = "overlay", timeout: float = 10.0
    ) -> None:
        """Remove an advertisement, given itself or its name."""
        entry = self._ours("advertise", advertisement)
        if not isinstance(entry, Advertisement):
            raise MisuseError(f"unadvertise takes an Advertisement, not {advertisement!r}")
        await entry.unadvertise(wait=wait, timeout=timeout)

    async def unsubscribe(
        self, subscription: Subscription | str, *, wait: Wait = "overlay", timeout: float = 10.0
    ) -> None:
        """Remove a subscription, given itself or its name."""
        entry = self._ours("subscribe", subscription)
        if not isinstance(entry, Subscription):
            raise MisuseError(f"unsubscribe takes a Subscription, not {subscription!r}")
        await entry.unsubscribe(wait=wait, timeout=timeout)

    def _ours(self, kind: str, what: Registration | str) -> Registration | None:
        driver = self._driver
        if isinstance(what, str):
            driver.check_open()
            found = driver.registrations.find(kind, what)
            if found is None:
                names = ", ".join(repr(e.name) for e in self.registrations if e.kind == kind)
                text = f"{what!r} is not in force; those in force are: {names or 'none'}"
                raise NoSuchOperation(f"un{kind}: {text}")
            return found
        if not isinstance(what, Registration):
            return None
        driver.check_open()
        if what.kind == kind and driver.registrations.entries.get(what.handle) is not what:
            raise NoSuchOperation(f"{what!r} is not in force at this client")
        return what

    # ── transactions ─────────────────────────────────────────────────────────────────────

    @opens
    async def transaction(
        self, *, isolation: Isolation = "serializable", timeout: float = 10.0, key: str = ""
    ) -> Transaction:
        """Operations of this client and of the clients that it invites, as one transaction.

        Await it, or use it with `async with`: then it commits at the end of the block, or aborts
        if the block raises. With `isolation="none"`, other clients may change which subscribers its
        invitations reach while it runs. It is aborted if it takes longer than `timeout` seconds.
        `key` makes it idempotent: at most one transaction per client and key commits.
        """
        isolated, timeout_s = checked_isolation(isolation), checked_time(timeout)
        driver = self._driver
        name = await driver.answers.ask(BeginRequest(0, isolated, timeout_s, checked_key(key)))
        tx = Transaction(driver, name, timeout_s)
        tx.isolated = isolated
        driver.participation.opened(tx)
        return tx

    async def execute(self, plan: Plan, *, timeout: float = 10.0, key: str = "") -> str:
        """Execute a plan as one transaction; returns its id when it is effective at every broker
        that it affects. `Aborted` means that nothing of it has happened. `StillSpreading` means
        that it is committed, but an affected broker was unreachable for longer than `timeout`."""
        if not isinstance(plan, Plan):
            raise MisuseError(f"execute takes a Plan, not {plan!r}")
        request = ExecuteRequest(0, plan.parts(), checked_time(timeout), checked_key(key))
        check_plan(len(plan.steps), request)
        return await self._driver.answers.ask(request)

    async def explain(self, what: Plan | Transaction, *, timeout: float = 10.0) -> Explanation:
        """The cost of a plan or a transaction on this overlay: phases, messages, hops, time."""
        if not isinstance(what, Plan | Transaction):
            raise MisuseError(f"explain takes a Plan or a Transaction, not {what!r}")
        self._driver.check_open()
        clients = tuple(what.clients) if isinstance(what, Plan) else ()
        status = await ask_status(self.session.address, checked_time(timeout), clients)
        return what.explain(Sketch.of(status))

    async def participate(
        self,
        handler: Handler | Role | None = None,
        *,
        on_started: OnStarted | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Take part in other clients' transactions from now on; returns when the broker knows it.

        `handler(invitation, tx)` is awaited for every invitation, and does this client's part
        with `tx`; it refuses by raising. A later call without a handler keeps the earlier one. A
        `Role` in its place is added to the others: each is asked whether an invitation is for it.

        The broker does this client's part of plans without asking, even while the client is not
        connected. Each subscription that a plan starts is passed to `on_started`, or, without
        one, to the iterator `started()`.
        """
        check_callable("on_started", on_started)
        timeout_s = checked_time(timeout)
        participation = self._driver.participation
        if isinstance(handler, Role):
            participation.register(handler)
        elif handler is not None:
            check_callable("a handler", handler)
            participation.register(InvitationRole(handler))
        if on_started is not None:
            participation.plans.on_started = on_started
        await self._driver.answers.ask(ConsentRequest(0, timeout_s))

    def started(self) -> AsyncIterator[Subscription]:
        """The subscriptions that other clients' transactions start for this client, each once,
        until the client is closed. They need `participate()`."""
        self._driver.guard.check()
        return self._driver.participation.plans

    async def outcome(self, tx_id: str | Transaction, *, timeout: float = 10.0) -> Outcome:
        """The outcome of a transaction, begun by this process or another."""
        name = checked_tx(tx_id.id if isinstance(tx_id, Transaction) else tx_id)
        return Outcome(
            await self._driver.answers.ask(OutcomeRequest(0, name, checked_time(timeout)))
        )

    # ── acknowledging events ─────────────────────────────────────────────────────────────

    def acknowledge(self) -> None:
        """Acknowledge every event that the application has taken so far, in all subscriptions,
        and tell the broker now. Needed with `acknowledge="manual"`."""
        driver = self._driver
        driver.check_open()
        for entry in driver.registrations.entries.values():
            if isinstance(entry, Subscription) and entry.claimed:
                entry._acknowledge()
        driver.progress.tell()

    # ── moving ───────────────────────────────────────────────────────────────────────────

    async def move(self, to: str, *, timeout: float = 10.0, patience: float | None = None) -> None:
        """Move to another broker, with the session and everything in it; returns when the client is
        welcome there, as `client.broker` then tells.

        Nothing is lost or doubled by it: publications and requests made meanwhile wait, and all
        events arrive as without the move. If it is not decided within `timeout` seconds, or
        refused, the client stays where it is: `MoveRefused` has the target's reason, `NotEffective`
        names brokers on the way that are not connected, and `InTransaction` means that a
        transaction of this client is open. `NoAnswer`: the own broker did not say how it was
        decided.

        Once it is decided, the client waits until its session has arrived, or for `patience`
        seconds: then it opens a new session at the target, as after the loss of a session
        (`on_session_lost` is called). Moves of one client follow each other.
        """
        name, timeout_s = checked_target(to), checked_time(timeout)
        patience_s = checked_wait(patience, "patience")
        self._driver.guard.check()
        await self._driver.relocation.move(name, timeout_s, patience_s)

    # ── publications ─────────────────────────────────────────────────────────────────────

    async def publish(
        self,
        event: Publishable,
        payload: bytes = b"",
        *,
        best_effort: bool | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish an event (an `Event`, or a dict of attributes), and wait until it is durable.

        When it returns, the broker has the event in its log, and every subscriber gets it exactly
        once. It raises `NotAdvertised`, or another refusal, if the event was not accepted. With
        `best_effort` no broker logs it, and it returns when the broker has accepted the event:
        this costs less, but a crash or a slow subscriber may lose the event.

        It raises `NoAnswer`, a `TimeoutError`, if that takes longer than `timeout` seconds; the
        text says whether the event may still become durable. To publish many events, do not wait
        for each: use `send` or `publish_many`.
        """
        if timeout is None:
            await (await self.send(event, payload, best_effort=best_effort))
            return
        receipt: Receipt | None = None
        try:
            async with asyncio.timeout(checked_time(timeout)):
                receipt = await self.send(event, payload, best_effort=best_effort)
                await receipt
        except TimeoutError as problem:
            if isinstance(problem, MotetError):
                raise
            raise not_accepted(timeout, sent=receipt is not None) from None

    async def publish_many(
        self, events: Iterable[Publishable], *, best_effort: bool | None = None
    ) -> None:
        """Publish all, in order, and wait until all are durable; raises the first refusal."""
        check_iterable("publish_many", events)
        receipts = [await self.send(event, best_effort=best_effort) for event in events]
        for receipt in receipts:
            await receipt

    async def send(
        self, event: Publishable, payload: bytes = b"", *, best_effort: bool | None = None
    ) -> Receipt:
        """Publish an event without waiting until it is durable; `await receipt` does that.

        It waits only while the window is full. Awaiting the receipt, or `flush()`, gives the same
        guarantee as `publish`.
        """
        sure = self._sure if best_effort is None else not checked_flag("best_effort", best_effort)
        body = self._body(event, payload)
        driver = self._driver
        if not driver.has_room:
            await driver.room()
        return Receipt(self._ledger, driver.stage(body, sure))

    def send_nowait(
        self, event: Publishable, payload: bytes = b"", *, best_effort: bool | None = None
    ) -> Receipt | None:
        """Like `send`, but returns None instead of waiting when the window is full."""
        sure = self._sure if best_effort is None else not checked_flag("best_effort", best_effort)
        body = self._body(event, payload)
        driver = self._driver
        if driver.error is not None:
            raise driver.error
        return Receipt(self._ledger, driver.stage(body, sure)) if driver.has_room else None

    async def send_many(
        self, events: Iterable[Publishable], *, best_effort: bool | None = None
    ) -> Receipt | None:
        """Send all, in order; the returned receipt, of the last one, settles after all others."""
        check_iterable("send_many", events)
        last = None
        for event in events:
            last = await self.send(event, best_effort=best_effort)
        return last

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything published so far is settled.

        Raises the first refusal since the last flush, if any, and says how many there were.
        """
        limit_s = checked_wait(timeout)
        driver = self._driver
        driver.guard.check()
        made = driver.made
        if made > self._ledger.settled:
            driver.check_open()
            try:
                async with asyncio.timeout(limit_s):
                    await self._ledger.reach(made)
            except TimeoutError:
                raise not_settled(made - self._ledger.settled, limit_s or 0.0) from None
        count, failed, first = self._ledger.take_failures(made)
        if first is not None:
            text = f"{failed} of {count} publications failed; the first one: {first.text}"
            raise error_of(Failure(first.error, text))

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def close(
        self,
        *,
        timeout: float = LEAVE_S,
        discard_session: bool = False,
        acknowledge: bool = True,
    ) -> None:
        """Settle all publications, say goodbye, end every subscription. Idempotent.

        A durable session stays for the next process, unless `discard_session` ends it.
        `acknowledge` acknowledges the events that the application took last; events that have
        arrived but were not taken are kept for the next process.

        `timeout` bounds, in seconds, how long it waits for the broker. In a forked child it does
        nothing: the session is the parent's.
        """
        driver, limit_s = self._driver, checked_time(timeout)
        checked_flag("discard_session", discard_session)
        checked_flag("acknowledge", acknowledge)
        if driver.guard.foreign is not None:
            return
        driver.guard.check()
        if acknowledge and driver.error is None and not driver.progress.manual:
            self.acknowledge()
        if driver.error is None and self.connected and self.session.unsettled:
            try:
                async with asyncio.timeout(limit_s):
                    await self._ledger.reach(driver.made)
            except TimeoutError:
                log.warning("%d publications are not settled at the end", self.session.unsettled)
        entries = list(driver.registrations.entries.values())
        await driver.leave(limit_s, forget=discard_session)
        await finish(entries)
        _, failed, first = self._ledger.take_failures(driver.made)
        if first is not None:
            log.info("%d publications failed since the last flush: %s", failed, first.text)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        timeout = LEAVE_S if error is None else LEAVE_S / 4
        await self.close(timeout=timeout, acknowledge=error is None)

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._driver.machine.state
        return f"<Client {self.client_id} at {self.broker or self.session.address}, {state}>"


Order = Literal["publisher", "total"]
Acknowledge = Literal["auto", "manual"]
ORDERS: dict[str, Order] = {"publisher": "publisher", "total": "total"}

OnSession = Callable[[Client], object]
"""A plain or async function that is called with the client."""


class SessionOptions(TypedDict, total=False):
    """Keywords of `connect`, for functions that pass them on."""

    connect_timeout: float
    window: int
    credentials: bytes
    best_effort: bool
    order: Order
    durable: bool
    keep: float | None
    cursors: Mapping[str, int] | None
    acknowledge: Acknowledge
    history: str | Path | None


class ConnectOptions(SessionOptions, total=False):
    """All keywords of `connect` except the client's id."""

    on_session_lost: OnSession | None
    on_resumed: OnSession | None


@opens
async def connect(
    *addresses: str,
    client_id: str | None = None,
    connect_timeout: float = 5.0,
    window: int = DEFAULT_WINDOW,
    credentials: bytes = b"",
    best_effort: bool = False,
    order: Order = "publisher",
    durable: bool = False,
    keep: float | None = None,
    cursors: Mapping[str, int] | None = None,
    acknowledge: Acknowledge = "auto",
    on_session_lost: OnSession | None = None,
    on_resumed: OnSession | None = None,
    history: str | Path | None = None,
) -> Client:
    """Open a session with a broker: await it, or use it with `async with`. All times are seconds.

    `addresses` are tried in order, each for `connect_timeout`. If the connection breaks, the client
    reconnects and resumes its session (`on_resumed` is called). If that broker does not come back
    soon, the client tries the other addresses. There, or if the broker has lost the session, it
    opens a new session with the same advertisements and subscriptions; events may have been missed
    (`on_session_lost` is called). A durable client stays with the broker that has its session.

    `client_id` names one client in the whole overlay: a second one with the same id, at any broker,
    takes over, and the first gets `Fenced`. By default it is random. `window` is the maximum number
    of unacknowledged publications. With `best_effort`, the client publishes best effort, unless
    `publish` says otherwise.

    `order` is the order of exactly-once events. "publisher": those of one publisher arrive in its
    order. "total": in addition, all clients in total order receive any two events in the same
    order. That takes a round trip longer, and stops while a broker with events for the client is
    down.

    With `durable`, the session outlives this process: for `keep` seconds after its end (by default
    a week) the broker keeps its subscriptions and their events for the next process that connects
    as a durable client with the same id. `cursors` are the positions, by pubend, that the
    application has stored itself: no event at or below them is delivered again. An event counts as
    processed when the application asks for the next one; with `acknowledge="manual"`, when it calls
    `event.ack()`, or `client.acknowledge()` for all that it has taken.

    `credentials` are passed to the rule of the brokers' operator, which decides which clients may
    connect or move to a broker; `NotAuthorised` has its reason. Brokers without such a rule refuse
    them. They are sent without encryption.

    `history` is a folder in which the client records what it does and receives, for
    `motet pipeline audit`; the default is the environment variable MOTET_HISTORY, if set.
    """
    check_callable("on_session_lost", on_session_lost)
    check_callable("on_resumed", on_resumed)
    _check_credentials(credentials)
    checked_flag("best_effort", best_effort)
    if history is not None and not isinstance(history, str | Path):
        raise MisuseError(f"`history` is the path of a folder, not {shown(history)}; give text")
    if not is_time(connect_timeout) or not connect_timeout > 0:
        raise MisuseError(
            f"connect_timeout is a number of seconds above 0, not {connect_timeout!r}"
        )
    machine = partial(
        ClientMachine,
        _checked_id(client_id),
        credentials=credentials,
        window=_checked_window(window),
        keep_s=checked_keep(durable, keep, client_id),
        cursors=checked_cursors(cursors),
        total_order=as_order(order) == "total",
    )
    manual = _is_manual(acknowledge)
    folder = folder_of(history)
    problems: list[MotetError] = []
    for at, address in enumerate(_checked_addresses(addresses)):
        instance = secrets.token_hex(8)
        session = machine(instance=instance)
        recorder = None
        if folder is not None:
            recorder = HistoryRecorder(session, instance, Recording(folder, f"client-{instance}"))
        rotated = (*addresses[at:], *addresses[:at])
        driver = SessionDriver(rotated, session, manual=manual, recorder=recorder)
        try:
            await driver.begin(connect_timeout)
        except (UnavailableError, ClientElsewhere) as problem:
            log.info("%s: %s", address, problem)
            problems.append(problem)
            continue
        client = Client(driver, best_effort=best_effort)
        if on_session_lost is not None:
            driver.on_session_lost = partial(on_session_lost, client)
        if on_resumed is not None:
            driver.on_resumed = partial(on_resumed, client)
        return client
    raise problems[0] if len(problems) == 1 else _none_reached(problems)


def _none_reached(problems: list[MotetError]) -> Disconnected:
    """One error for all addresses; a `TimeoutError` if no broker answered in time."""
    texts = [str(problem).removesuffix(f"; {CHECK_BROKER}") for problem in problems]
    kind = NoAnswer if all(isinstance(p, TimeoutError) for p in problems) else Disconnected
    return kind(f"{'; '.join(texts)}; {CHECK_BROKER}")


# ── checks of arguments ──────────────────────────────────────────────────────────────────


def _checked_addresses(addresses: tuple[str, ...]) -> tuple[str, ...]:
    if not addresses:
        raise MisuseError("connect needs the address of a broker, like motet://host:port")
    for address in addresses:
        if not isinstance(address, str):
            raise MisuseError(f"an address is text like motet://host:port, not {address!r}")
        check_address(address)  # now: the client may need it long after
    return addresses


def _checked_id(client_id: str | None) -> str:
    if client_id is None:
        return f"client-{secrets.token_hex(6)}"
    if not isinstance(client_id, str):
        raise MisuseError(f"a client id is text, not {type(client_id).__name__}")
    if not 0 < len(client_id) <= MAX_CLIENT_ID_CHARS or not client_id.isprintable():
        raise MisuseError(f"a client id has 1 to {MAX_CLIENT_ID_CHARS} printable characters")
    return client_id


def _checked_window(window: int) -> int:
    if type(window) is not int or window < 1:
        raise MisuseError(f"a window holds at least one publication, not {window!r}")
    return window


def _check_credentials(credentials: bytes) -> None:
    if not isinstance(credentials, bytes):
        raise MisuseError(f"credentials are bytes, not {type(credentials).__name__}")
    if len(credentials) > MAX_CREDENTIALS_BYTES:
        limit = f"credentials have at most {MAX_CREDENTIALS_BYTES} bytes"
        raise MisuseError(f"{limit}, not {len(credentials)}")


def _is_manual(acknowledge: Acknowledge) -> bool:
    if acknowledge not in ("auto", "manual"):
        raise MisuseError(f"`acknowledge` is 'auto' or 'manual', not {acknowledge!r}")
    return acknowledge == "manual"


def as_order(text: str) -> Order:
    """Check an order that an application passed."""
    found = ORDERS.get(text) if isinstance(text, str) else None
    if found is None:
        raise MisuseError(f"`order` is 'publisher' or 'total', not {text!r}")
    return found
