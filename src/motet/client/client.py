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
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

from motet.client.about import About
from motet.client.checks import (
    Since,
    checked,
    checked_cursors,
    checked_name,
    checked_time,
    checked_tx,
    reach_of,
)
from motet.client.conversation import Conversation
from motet.client.explaining import Explanation, Sketch
from motet.client.failures import error_of
from motet.client.happenings import Failure
from motet.client.ledger import Receipt
from motet.client.opening import Opening
from motet.client.outgoing import Outgoing, Publishable
from motet.client.plan import Plan
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import DEFAULT_BUFFER, Callback, OnLoss, Subscription, finish
from motet.client.transaction import (
    Began,
    Handler,
    Isolation,
    Transaction,
    check_plan,
    checked_isolation,
    checked_key,
)
from motet.errors import Disconnected, MisuseError, NoSuchOperation
from motet.model import Filter, as_filter
from motet.protocol.session.messages import (
    BeginRequest,
    ConsentRequest,
    ExecuteRequest,
    OutcomeRequest,
)

log = logging.getLogger("motet.client")

Wait = Literal["overlay", "local"]

LEAVE_S = 2.0


class Client(About):
    """One session with one broker. Made by `connect`, on a running event loop.

    It belongs to that loop: call it from there only (`connect_sync` is for threads). If the
    connection breaks it connects again and resumes its session; if the broker does not know the
    session any more it opens a new one and renews everything that was in force.
    """

    def __init__(self, conversation: Conversation, *, best_effort: bool = False) -> None:
        self._conversation = conversation
        self._sure = not best_effort
        self._outgoing = Outgoing()
        self._body = self._outgoing.body
        self._ledger = conversation.ledger

    async def status(self, *, timeout: float = 10.0) -> dict[str, Any]:
        """What the broker says about itself: links, tables, queues, rates."""
        talk = self._conversation
        talk.check_open()
        return await talk.questions.ask(talk.line, checked_time(timeout))

    # ── advertisements and subscriptions ─────────────────────────────────────────────────

    def advertise(
        self,
        filter: str | Filter,
        *,
        name: str | None = None,
        wait: Wait = "overlay",
        timeout: float = 10.0,
    ) -> Opening[Advertisement]:
        """Announce what will be published; events outside of it are refused.

        Await it, or use it with `async with`. It returns once the advertisement is known in the
        whole overlay and every matching subscription has reached our broker; with
        `wait="local"`, as soon as our broker has it. `NotEffective` names the brokers that
        were not reached in time; the advertisement is then taken back.

        In a durable session it may stand already, under its `name` (by default the text of the
        filter): then it is that one.
        """
        return Opening(self._advertise(filter, name, wait, timeout))

    async def _advertise(
        self, filter: str | Filter, name: str | None, wait: Wait, timeout: float
    ) -> Advertisement:
        talk = self._conversation
        entry = Advertisement(as_filter(filter), talk.withdraw, checked_name(name))
        everywhere, timeout_s = checked(wait, timeout)
        await talk.put_in_force(entry, wait=everywhere, timeout_s=timeout_s)
        return entry

    def subscribe(
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
    ) -> Opening[Subscription]:
        """Receive what matches, by iterating or through `callback` (a plain or async function).

        Await it, or use it with `async with`. It returns once every broker on the way to every
        matching advertiser has the subscription: what they publish from then on arrives.
        `buffer` bounds the best-effort events that wait here for the application. Exactly-once
        events are never dropped; the broker holds them back while the application is not done
        with those it has, in all subscriptions of this client together.

        Should exactly-once events be gone for good, `subscription.lost` counts it and the log
        says so; with `on_loss="raise"` the iterator raises `EventsLost` in their place, and goes
        on with what follows when it is asked again.

        In a durable session it may stand already, under its `name` (by default the text of the
        filter): then it is that one, with all that has come for it meanwhile.

        `since` reaches into the past: "beginning", a datetime with a time zone, or cursors, as far
        as the logs of publishers' brokers still have it; what they have not is told as lost.
        With `cursors`, no event at or below them reaches this subscription, and one that does not
        stand yet reaches back to them, unless `since` says otherwise.
        """
        if since not in (None, "now") and self._conversation.machine.total_order:
            raise MisuseError(
                "a client in total order does not reach into the past: it has passed for others; "
                "take a client in publisher order for it"
            )
        return Opening(
            self._subscribe(
                filter,
                checked_name(name),
                reach_of(since, checked_cursors(cursors)),
                checked_cursors(cursors),
                callback,
                wait,
                timeout,
                buffer,
                on_loss,
            )
        )

    async def _subscribe(
        self,
        filter: str | Filter,
        name: str,
        since: Mapping[str, int] | None,
        cursors: Mapping[str, int] | None,
        callback: Callback | None,
        wait: Wait,
        timeout: float,
        buffer: int,
        on_loss: OnLoss,
    ) -> Subscription:
        if callback is not None and not callable(callback):
            raise MisuseError(f"a callback must be callable, not a {type(callback).__name__}")
        if type(buffer) is not int or buffer < 1:
            raise MisuseError(f"a buffer holds at least one event, not {buffer!r}")
        check_on_loss(on_loss, callback)
        talk = self._conversation
        everywhere, timeout_s = checked(wait, timeout)
        entry = Subscription(
            as_filter(filter),
            talk.withdraw,
            name,
            buffer=buffer,
            callback=callback,
            on_loss=on_loss,
            progress=talk.progress,
            cursors=cursors,
        )
        try:
            await talk.put_in_force(entry, wait=everywhere, timeout_s=timeout_s, since=since)
        except BaseException:
            entry.end(None)
            raise
        return entry

    async def unadvertise(
        self, advertisement: Advertisement | str, *, wait: Wait = "overlay", timeout: float = 10.0
    ) -> None:
        """Take an advertisement back, or the one of this name."""
        entry = self._ours("advertise", advertisement)
        if not isinstance(entry, Advertisement):
            raise MisuseError(f"unadvertise takes an Advertisement, not {advertisement!r}")
        await entry.unadvertise(wait=wait, timeout=timeout)

    async def unsubscribe(
        self, subscription: Subscription | str, *, wait: Wait = "overlay", timeout: float = 10.0
    ) -> None:
        """Take a subscription back, or the one of this name."""
        entry = self._ours("subscribe", subscription)
        if not isinstance(entry, Subscription):
            raise MisuseError(f"unsubscribe takes a Subscription, not {subscription!r}")
        await entry.unsubscribe(wait=wait, timeout=timeout)

    def _ours(self, kind: str, what: Standing | str) -> Standing | None:
        talk = self._conversation
        if isinstance(what, str):
            talk.check_open()
            found = talk.find(kind, what)
            if found is None:
                names = ", ".join(repr(e.name) for e in self.standing if e.kind == kind)
                text = f"nothing called {what!r} is in force; these are: {names or 'none'}"
                raise NoSuchOperation(f"un{kind}: {text}")
            return found
        if not isinstance(what, Standing):
            return None
        talk.check_open()
        if what.kind == kind and talk.entries.get(what.handle) is not what:
            raise NoSuchOperation(f"{what!r} is not in force at this client")
        return what

    # ── transactions ─────────────────────────────────────────────────────────────────────

    def transaction(
        self,
        *,
        isolation: Isolation = "serializable",
        timeout: float = 10.0,
        key: str = "",
    ) -> Opening[Transaction]:
        """Several operations, of this client and of those whom it invites, as one.

        Await it, or use it with `async with`: then it commits at the end of the block, or aborts
        if the block raises. With `isolation="none"` others may change, while it runs, whom its
        invitations reach. It is aborted if it takes longer than `timeout` seconds. Of all with the
        same `key` of this client, one is committed.
        """
        return Opening(
            self._begin(checked_isolation(isolation), checked_time(timeout), checked_key(key))
        )

    async def _begin(self, isolated: bool, timeout_s: float, key: str) -> Transaction:
        talk = self._conversation
        name = await talk.ask(BeginRequest(0, isolated, timeout_s, key))
        tx = Transaction(talk, name, timeout_s)
        tx.isolated = isolated
        talk.participation.opened(tx)
        return tx

    async def execute(self, plan: Plan, *, timeout: float = 10.0, key: str = "") -> str:
        """Do all of a plan as one transaction; returns its id when it is effective wherever it
        concerns anybody. `Aborted` if it cannot be: then nothing of it has happened.
        `StillSpreading` if it is committed, and one of them is away for longer than `timeout`."""
        if not isinstance(plan, Plan):
            raise MisuseError(f"execute takes a Plan, not {plan!r}")
        request = ExecuteRequest(0, plan.parts(), checked_time(timeout), checked_key(key))
        check_plan(len(plan.steps), request)
        return await self._conversation.ask(request)

    async def explain(self, what: Plan | Transaction, *, timeout: float = 10.0) -> Explanation:
        """What a plan or a transaction costs on this overlay: phases, messages, hops, time."""
        if not isinstance(what, Plan | Transaction):
            raise MisuseError(f"explain takes a Plan or a Transaction, not {what!r}")
        talk = self._conversation
        talk.check_open()
        clients = tuple(what.clients) if isinstance(what, Plan) else ()
        status = await talk.questions.ask(talk.line, checked_time(timeout), clients)
        return what.explain(Sketch.of(status))

    async def participate(
        self,
        handler: Handler | None = None,
        *,
        began: Began | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Take part in transactions of others from now on; returns when the broker knows it.

        `handler(invitation, tx)` is awaited for every invitation, and does its part with `tx`; it
        refuses by raising. Steps of plans the broker does without asking, even while there is no
        connection; `began` is called with each subscription that has begun by one.
        """
        for what, called in (("handler", handler), ("`began`", began)):
            if called is not None and not callable(called):
                raise MisuseError(f"a {what} must be callable, not a {type(called).__name__}")
        talk = self._conversation
        talk.participation.handler, talk.participation.began = handler, began
        await talk.ask(ConsentRequest(0, checked_time(timeout)))

    async def outcome(self, tx_id: str | Transaction, *, timeout: float = 10.0) -> str:
        """What became of a transaction: committed, aborted, in progress or expired."""
        name = checked_tx(tx_id.id if isinstance(tx_id, Transaction) else tx_id)
        return await self._conversation.ask(OutcomeRequest(0, name, checked_time(timeout)))

    # ── being done with events ───────────────────────────────────────────────────────────

    def acknowledge(self) -> None:
        """The application is done with every event that it has taken so far, in all
        subscriptions; the broker is told now. Needed with `acknowledge="manual"`."""
        talk = self._conversation
        talk.check_open()
        for entry in talk.entries.values():
            if isinstance(entry, Subscription) and entry.taken_up:
                entry.acknowledge()
        talk.progress.tell()

    # ── publications ─────────────────────────────────────────────────────────────────────

    async def publish(
        self, event: Publishable, payload: bytes = b"", *, best_effort: bool | None = None
    ) -> Receipt:
        """Accept an event (an `Event`, or a dict of attributes) into the window.

        It waits only while the window is full. The event is on its way when this returns;
        awaiting the receipt, or `flush()`, means that the broker has it durably: then it reaches
        every subscriber exactly once. With `best_effort` nobody logs it: it costs less, and a
        crash or a slow subscriber may lose it; its receipt means that the broker has taken it.
        """
        sure = self._sure if best_effort is None else not best_effort
        body = self._body(event, payload)
        talk = self._conversation
        if not talk.has_room:
            await talk.room()
        return Receipt(self._ledger, talk.stage(body, sure))

    def publish_nowait(
        self, event: Publishable, payload: bytes = b"", *, best_effort: bool | None = None
    ) -> Receipt | None:
        """Like `publish`, but returns None instead of waiting when the window is full."""
        sure = self._sure if best_effort is None else not best_effort
        body = self._body(event, payload)
        talk = self._conversation
        talk.check_open()
        return Receipt(self._ledger, talk.stage(body, sure)) if talk.has_room else None

    async def publish_many(
        self, events: Iterable[Publishable], *, best_effort: bool | None = None
    ) -> Receipt | None:
        """Publish all, in order; the receipt of the last one settles after all others."""
        last = None
        for event in events:
            last = await self.publish(event, best_effort=best_effort)
        return last

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the fate of everything published so far is known.

        Raises the first refusal since the last flush, if there was one, and says how many.
        """
        talk = self._conversation
        made = talk.made
        if made > self._ledger.settled:
            talk.check_open()
            try:
                async with asyncio.timeout(timeout):
                    await self._ledger.reach(made)
            except TimeoutError:
                raise Disconnected(
                    f"{made - self._ledger.settled} publications were not settled within "
                    f"{timeout:g} s"
                ) from None
        count, failed, first = self._ledger.take_failures(made)
        if first is not None:
            text = f"{failed} of {count} publications failed; the first one: {first.text}"
            raise error_of(Failure(first.error, text))

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def close(
        self, *, patience: float = LEAVE_S, forget: bool = False, done: bool = True
    ) -> None:
        """Settle what was published, say goodbye, end every subscription. Twice is harmless.

        A durable session stays for the next process, unless the broker is to `forget` it. `done`
        says that the application is done with the events that it took last; what else has come
        and was not read is kept for the next process.

        `patience` bounds, in seconds, how long it waits for the broker.
        """
        talk = self._conversation
        if done and talk.error is None and not talk.progress.manual:
            self.acknowledge()
        if talk.error is None and self.connected and self.unsettled:
            try:
                async with asyncio.timeout(patience):
                    await self._ledger.reach(talk.made)
            except TimeoutError:
                log.warning("%d publications are not settled at the end", self.unsettled)
        entries = list(talk.entries.values())
        await talk.leave(patience, forget=forget)
        await finish(entries)
        _, failed, first = self._ledger.take_failures(talk.made)
        if first is not None:
            log.info("%d publications failed since the last flush: %s", failed, first.text)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        patience = LEAVE_S if error is None else LEAVE_S / 4
        await self.close(patience=patience, done=error is None)

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._conversation.machine.state
        return f"<Client {self.client_id} at {self.broker or self.address}, {state}>"


def check_on_loss(on_loss: str, callback: Callback | None) -> None:
    if on_loss not in ("count", "raise"):
        raise MisuseError(f"`on_loss` is 'count' or 'raise', not {on_loss!r}")
    if on_loss == "raise" and callback is not None:
        raise MisuseError(
            "nothing can be raised where a callback takes the events: iterate, or count `lost`"
        )
