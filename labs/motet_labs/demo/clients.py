"""The clients: handlers among whom lots of cases move, one of which itself moves to another broker;
watchers that see everything in one order, listeners to the events of transactions, and the
dispatcher.

Lots change hands by transactions while their events keep coming. Dispatching is a dynamic
transaction: the current handler of a lot is invited to release it, another handler to take it. The
dispatcher need not know the current handler: that one subscribes to the lot's badge. Consolidating
is a plan: the desk takes all lots back at once, and each handler publishes that in the same
transaction. Aborted transactions, for example because a broker is down, are retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from motet.client import (
    Client,
    Invitation,
    Outcome,
    Plan,
    Subscription,
    Transaction,
    connect,
)
from motet.errors import Aborted, MisuseError, MotetError, UnavailableError
from motet.model import Event, Value
from motet_labs.demo.overlay import Overlay
from motet_labs.demo.script import WORKFLOW, Attributes, Key, Lot

DESK: Final = "desk"
"""Has all lots in the beginning, and takes them back."""
AGENTS: Final = {"anna": "B4", "ben": "B5", "carla": "B1"}
HANDLERS: Final = {DESK: "B2", **AGENTS}
FOLLOWER, FOLLOWED = "anna", "B2"
"""The agent that follows its work, and the broker that it moves to."""
DISPATCHER: Final = "dispatcher"
WATCHERS: Final = {"watcher-1": "B4", "watcher-2": "B2"}
"""In total order."""
OBSERVER, LISTENER = "observer", "listener"
HOMES: Final = {**HANDLERS, DISPATCHER: "B2", **WATCHERS, OBSERVER: "B1", LISTENER: "B4"}
MOVED: Final = "moved is not null"
INSIGHT: Final = "insight is not null"


class EventSeen(NamedTuple):
    """A received event."""

    key: Key
    attributes: Attributes
    at: float = 0.0
    tick: int = 0
    transaction: str = ""


@dataclass
class Stretch:
    """The deliveries of one subscription: of a lot, as long as its handler had it."""

    lot: str
    arrivals: list[EventSeen] = field(default_factory=list)
    handler: str = ""


@dataclass
class Heard:
    """Everything that the clients received."""

    stretches: list[Stretch] = field(default_factory=list)
    watched: dict[str, list[EventSeen]] = field(
        default_factory=lambda: {name: [] for name in WATCHERS}
    )
    moved: list[EventSeen] = field(default_factory=list)
    insight: list[EventSeen] = field(default_factory=list)
    lost_sessions: int = 0

    @property
    def handled(self) -> int:
        return sum(len(stretch.arrivals) for stretch in self.stretches)

    def handled_by(self, handler: str) -> int:
        return sum(len(each.arrivals) for each in self.stretches if each.handler == handler)

    @property
    def watched_least(self) -> int:
        return min(map(len, self.watched.values()))


@dataclass
class CaseHandler:
    client: Client
    lots: dict[str, Lot]
    stretches: list[Stretch]
    """Those of all handlers: this one appends its own."""
    reading: list[asyncio.Task[None]] = field(default_factory=list)

    def read(self, subscription: Subscription) -> None:
        if subscription.name in self.lots:  # a badge attracts only invitations
            handler = self.client.client_id
            self.stretches.append(Stretch(subscription.name, handler=handler))
            work = self._read(subscription, self.stretches[-1].arrivals)
            self.reading.append(asyncio.ensure_future(work))

    async def _read(self, subscription: Subscription, arrivals: list[EventSeen]) -> None:
        with contextlib.suppress(MotetError):  # its transaction was aborted: it never began
            async for event in subscription:
                arrivals.append(seen(event))

    async def take_part(self, invitation: Invitation, tx: Transaction) -> None:
        """Take the assigned lot, or release the lot it holds."""
        if "assign" in invitation.event:
            lot = self.lots[str(invitation.event["lot"])]
            self.read(await tx.subscribe(lot.filter, name=lot.name))
            await tx.subscribe(lot.worn, name=lot.badge)
        else:
            lot = self.lots[str(invitation.event["holds"])]
            await tx.unsubscribe(lot.name)
            await tx.unsubscribe(lot.badge)


def seen(event: Event) -> EventSeen:
    key = (event.publisher, event.sequence)
    return EventSeen(key, event.attributes, time.time(), event.tick or 0, event.transaction or "")


class DemoClients:
    """All clients of the story except the publishers of the log, and Spark's."""

    def __init__(self, overlay: Overlay, lots: Sequence[Lot], history: Path) -> None:
        self.overlay = overlay
        self.lots = {lot.name: lot for lot in lots}
        self.handlers: dict[str, CaseHandler] = {}
        self.heard = Heard()
        self.clients: dict[str, Client] = {}
        self._history = history
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> DemoClients:
        async with self._stack:
            await self._enter()
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.heard.lost_sessions = sum(each.session.lost_sessions for each in self.clients.values())
        await self._stack.aclose()
        readers = [task for each in self.handlers.values() for task in each.reading]
        await asyncio.gather(*readers, return_exceptions=True)

    async def _enter(self) -> None:
        for name, home in HOMES.items():
            opening = connect(
                self.overlay.addresses[home],
                client_id=name,
                order="total" if name in WATCHERS else "publisher",
                history=self._history,
            )
            self.clients[name] = await self._stack.enter_async_context(opening)
        for name in HANDLERS:
            handler = CaseHandler(self.clients[name], self.lots, self.heard.stretches)
            self.handlers[name] = handler
            await handler.client.participate(handler.take_part, on_started=handler.read)
            await handler.client.advertise(f"{MOVED} and by = '{name}'")
            await handler.client.subscribe(f"assign = '{name}'")
        await self.clients[DISPATCHER].advertise("assign is not null or holds is not null")
        desk = self.handlers[DESK]
        for lot in self.lots.values():
            desk.read(await desk.client.subscribe(lot.filter, name=lot.name))
            await desk.client.subscribe(lot.worn, name=lot.badge)
        for name in WATCHERS:
            await self._hear(name, WORKFLOW, self.heard.watched[name])
        await self._hear(OBSERVER, MOVED, self.heard.moved)
        await self._hear(LISTENER, INSIGHT, self.heard.insight)

    async def _hear(self, name: str, wanted: str, into: list[EventSeen]) -> None:
        def take(event: Event) -> None:
            into.append(seen(event))

        await self.clients[name].subscribe(wanted, callback=take)


# ── an agent that moves ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class AgentMove:
    agent: str
    source: str
    target: str
    began_s: float
    ended_s: float
    lots: int
    """How many it had when it moved."""
    tries: int

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


async def follow(
    cast: DemoClients, dispatcher: Dispatcher, now_s: Callable[[], float]
) -> AgentMove:
    """The agent moves while it has lots, and has handled events of some lot. It cannot while it
    takes part in a hand-over, and then tries again."""
    client, tries, patient_until_s = cast.clients[FOLLOWER], 0, now_s() + PATIENCE_S
    while True:
        lots = sum(holder == FOLLOWER for holder in dispatcher.holder.values())
        if lots and (cast.heard.handled_by(FOLLOWER) or now_s() > patient_until_s):
            tries += 1
            source, began_s = client.broker, now_s()
            try:
                await client.move(FOLLOWED, timeout=PATIENCE_S)
                return AgentMove(FOLLOWER, source, FOLLOWED, began_s, now_s(), lots, tries)
            except MotetError:
                if tries == MOST_TRIES:
                    raise
        await asyncio.sleep(RETRY_S / 4)


# ── hand-overs ────────────────────────────────────────────────────────────────────────────

PAUSE_S: Final = 0.35
"""Between two hand-overs."""
PATIENCE_S: Final = 10.0
RETRY_S: Final = 0.2
MOST_TRIES: Final = 100
OUTCOME_BOUND_S: Final = 60.0
ROUNDS: Final = 2
"""How often each lot is dispatched before the desk takes all back."""
DISPATCH, CONSOLIDATE = "dispatch", "consolidate"


@dataclass
class HandOver:
    """A committed hand-over."""

    kind: str
    lots: tuple[str, ...]
    new: str
    """The new handler of the lots."""
    ended_s: float
    tx: str


@dataclass
class HandOvers:
    """All hand-overs, in the order of their ends."""

    done: list[HandOver] = field(default_factory=list)
    aborted: int = 0


class Dispatcher:
    def __init__(self, cast: DemoClients, now_s: Callable[[], float]) -> None:
        self._cast = cast
        self._now_s = now_s
        self._dispatcher = cast.clients[DISPATCHER]
        self._next_agent = cycle(AGENTS)
        self.holder = dict.fromkeys(cast.lots, DESK)
        self.made = HandOvers()

    async def run(self, over: asyncio.Event) -> None:
        """Round after round, until `over` is set; a hand-over in progress is completed."""
        while not over.is_set():
            for lot in [*self.holder] * ROUNDS:
                if over.is_set():
                    return
                new = next(name for name in self._next_agent if name != self.holder[lot])
                await self._dispatch(lot, new)
                await _pause(over)
            if not over.is_set():
                await self._consolidate()
                await _pause(over)

    async def _dispatch(self, lot: str, new: str) -> None:
        while not (tx := await self._invited(lot, new)):
            self.made.aborted += 1
            await asyncio.sleep(RETRY_S)
        self._done(DISPATCH, (lot,), new, tx)

    def _done(self, kind: str, lots: tuple[str, ...], new: str, tx: str) -> None:
        self.holder |= dict.fromkeys(lots, new)
        self.made.done.append(HandOver(kind, lots, new, self._now_s(), tx))

    async def _invited(self, lot: str, new: str) -> str:
        """The id of the transaction if it was committed, else empty."""
        try:
            tx = await self._dispatcher.transaction(timeout=PATIENCE_S)
        except MotetError:
            return ""  # it never began
        try:
            async with tx:
                await tx.invite({"holds": lot})
                await tx.invite({"assign": new, "lot": lot})
        except MotetError:
            return tx.id if await self._outcome(tx.id) == "committed" else ""
        return tx.id

    async def _outcome(self, tx: str) -> str:
        try:
            async with asyncio.timeout(OUTCOME_BOUND_S):
                while True:
                    try:
                        found = await self._dispatcher.outcome(tx, timeout=PATIENCE_S)
                    except MotetError:
                        found = Outcome.IN_PROGRESS
                    if found != Outcome.IN_PROGRESS:
                        return found
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise UnavailableError(
                f"the outcome of transaction {tx} is unknown after {OUTCOME_BOUND_S:g} s"
            ) from None

    async def _consolidate(self) -> None:
        away = tuple(lot for lot, name in self.holder.items() if name != DESK)
        plan = self._plan(away)
        key, doubtful = f"consolidation-{len(self.made.done)}", False
        while True:
            try:
                tx = await self._dispatcher.execute(plan, key=key, timeout=PATIENCE_S)
                break
            except (Aborted, MisuseError):
                # An earlier one with unknown outcome may be the obstacle.
                self.made.aborted += not doubtful
            except UnavailableError:
                doubtful = True
            await asyncio.sleep(RETRY_S)
        self._done(CONSOLIDATE, away, DESK, tx)

    def _plan(self, away: tuple[str, ...]) -> Plan:
        """For each lot: its handler releases it, the desk takes it, the handler publishes that."""
        plan = Plan()
        for place, lot in enumerate(away):
            old, what = self.holder[lot], self._cast.lots[lot]
            ends = plan.unsubscribe(old, lot, after=[])
            begins = plan.subscribe(DESK, what.filter, name=lot, after=[ends])
            off = plan.unsubscribe(old, what.badge, after=[])
            plan.subscribe(DESK, what.worn, name=what.badge, after=[off])
            told: dict[str, Value] = {"moved": lot, "by": old, "place": place, "of": len(away)}
            plan.publish(old, told, after=[begins])
        # All publications are in one order, that of their places.
        says = [step for step in plan.steps if step.kind == "publish"]
        for first, then in pairwise(says):
            plan.order(first, then)
        return plan


async def _pause(over: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PAUSE_S):
            await over.wait()
