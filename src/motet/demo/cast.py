"""Who plays: handlers among whom lots of cases move, watchers who see all of it in one order, and
those who listen to what transactions tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from motet.client.client import Client
from motet.client.connecting import Order, connect
from motet.client.subscription import Subscription
from motet.client.transaction import Invitation, Transaction
from motet.demo.overlay import Overlay
from motet.demo.script import WORKFLOW, Attributes, Key, Lot
from motet.errors import MotetError
from motet.model import Event

DESK: Final = "desk"
"""Has all lots in the beginning, and takes them back."""
AGENTS: Final = {"anna": "B4", "ben": "B5", "carla": "B1"}
HANDLERS: Final = {DESK: "B2", **AGENTS}
DISPATCHER: Final = "dispatcher"
WATCHERS: Final = {"watcher-1": "B4", "watcher-2": "B2"}
"""In total order."""
OBSERVER, LISTENER = "observer", "listener"
HOMES: Final = {**HANDLERS, DISPATCHER: "B2", **WATCHERS, OBSERVER: "B1", LISTENER: "B4"}
MOVED: Final = "moved is not null"
INSIGHT: Final = "insight is not null"


class Arrival(NamedTuple):
    key: Key
    attributes: Attributes
    at: float
    tick: int
    transaction: str


@dataclass
class Stretch:
    """What one subscription has brought: a lot, as long as its handler had it."""

    handler: str
    lot: str
    began: float
    arrivals: list[Arrival] = field(default_factory=list)
    ended: float | None = None


@dataclass
class Heard:
    """All that came to the cast."""

    stretches: list[Stretch] = field(default_factory=list)
    watched: dict[str, list[Arrival]] = field(
        default_factory=lambda: {name: [] for name in WATCHERS}
    )
    moved: list[Arrival] = field(default_factory=list)
    insight: list[Arrival] = field(default_factory=list)
    lost_sessions: int = 0

    @property
    def handled(self) -> int:
        return sum(len(stretch.arrivals) for stretch in self.stretches)

    @property
    def watched_least(self) -> int:
        return min(map(len, self.watched.values()))

    @property
    def results(self) -> int:
        """How many transactions with results came."""
        return len({each.transaction for each in self.insight})


@dataclass
class Handler:
    name: str
    client: Client
    lots: dict[str, Lot]
    stretches: list[Stretch]
    """Those of everybody: it adds its own."""
    reading: list[asyncio.Task[None]] = field(default_factory=list)

    def read(self, subscription: Subscription) -> None:
        if subscription.name not in self.lots:
            return  # a badge: only invitations come by it
        self.reading.append(asyncio.ensure_future(self._read(subscription)))

    async def _read(self, subscription: Subscription) -> None:
        stretch = Stretch(self.name, subscription.name, time.time())
        self.stretches.append(stretch)
        try:
            async for event in subscription:
                stretch.arrivals.append(arrival(event))
        except MotetError:
            return  # its transaction was aborted: it never began
        finally:
            stretch.ended = time.time()

    async def take_part(self, invitation: Invitation, tx: Transaction) -> None:
        """It is to take a lot, or, if it has that lot, to let it go."""
        if "assign" in invitation.event:
            lot = self.lots[str(invitation.event["lot"])]
            self.read(await tx.subscribe(lot.filter, name=lot.name))
            await tx.subscribe(lot.worn, name=lot.badge)
        else:
            lot = self.lots[str(invitation.event["holds"])]
            await tx.unsubscribe(lot.name)
            await tx.unsubscribe(lot.badge)


def arrival(event: Event) -> Arrival:
    key = (event.publisher, event.sequence)
    return Arrival(key, event.attributes, time.time(), event.tick or 0, event.transaction or "")


class Cast:
    """All clients of the story but those who publish the log, and Spark's."""

    def __init__(self, overlay: Overlay, lots: Sequence[Lot], history: Path) -> None:
        self.overlay = overlay
        self.lots = {lot.name: lot for lot in lots}
        self.handlers: dict[str, Handler] = {}
        self.heard = Heard()
        self.clients: dict[str, Client] = {}
        self._history = history
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Cast:
        await self._stack.__aenter__()
        try:
            await self._enter()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self.heard.lost_sessions = sum(each.lost_sessions for each in self.clients.values())
        await self._stack.aclose()
        readers = [task for each in self.handlers.values() for task in each.reading]
        await asyncio.gather(*readers, return_exceptions=True)

    async def _enter(self) -> None:
        for name in HOMES:
            await self._connect(name)
        for name in HANDLERS:
            handler = Handler(name, self.clients[name], self.lots, self.heard.stretches)
            self.handlers[name] = handler
            await handler.client.participate(handler.take_part, began=handler.read)
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

    async def _connect(self, name: str) -> None:
        order: Order = "total" if name in WATCHERS else "publisher"
        address = self.overlay.addresses[HOMES[name]]
        opening = connect(address, client_id=name, order=order, history=self._history)
        self.clients[name] = await self._stack.enter_async_context(opening)

    async def _hear(self, name: str, wanted: str, into: list[Arrival]) -> None:
        await self.clients[name].subscribe(wanted, callback=_into(into))


def _into(found: list[Arrival]) -> Callable[[Event], None]:
    def take(event: Event) -> None:
        found.append(arrival(event))

    return take
