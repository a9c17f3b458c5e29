"""One client of the run: a real client, on a connection that we can break under its feet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from math import inf
from typing import Any, TypeVar

from motet.chaos.chronicle import Chronicle
from motet.chaos.witness import WitnessedMachine
from motet.client.client import Client, Wait
from motet.client.conversation import Conversation
from motet.client.ledger import Receipt
from motet.client.pulse import Line
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import Subscription
from motet.errors import ClosedError, MotetError, UnavailableError
from motet.model import Event as Delivered
from motet.model import Filter, Value
from motet.testing.history import Call, Event

T = TypeVar("T")

CONNECT_S = 3.0
RETRY_S = 0.1
MOST_UNDER_WAY = 16
"""Requests of one client at a time: nobody piles up work at a broker that is away."""


class FrailConversation(Conversation):
    """Its connection breaks, or its process dies, when we say so."""

    _alive: Line | None = None

    def connected(self, line: Line) -> None:
        self._alive = line
        super().connected(line)

    def drop(self) -> None:
        if self._alive is not None:
            self._alive.connection.abort("dropped, as a bad network would")

    def die(self) -> None:
        """As SIGKILL would: no goodbye, no answer, nobody who connects again."""
        self.error = ClosedError("this client was killed")
        if self._keeper is not None:
            self._keeper.cancel()
        for entry in self.entries.values():
            entry.end(None)
        self.drop()


class Application:
    """A process of a client, as far as anybody else can tell."""

    def __init__(
        self, chronicle: Chronicle, instance: int, name: str, home: str, address: str
    ) -> None:
        self.instance = instance
        self.name = name
        self.home = home
        self.over = False
        self.standing: list[Standing] = []
        """What has been answered with success and is not taken back."""
        self._address = address
        self._chronicle = chronicle
        self._machine = WitnessedMachine(chronicle, instance, name)
        self._talk: FrailConversation | None = None
        self._client: Client | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._receipts: list[tuple[Event, Receipt]] = []

    # ── life ─────────────────────────────────────────────────────────────────────────────

    @property
    def machine(self) -> WitnessedMachine:
        return self._machine

    @property
    def able(self) -> bool:
        """It has had a session, and goes on."""
        return not self.over and self._client is not None and not self._client.closed

    @property
    def at_rest(self) -> bool:
        return self.able and not self._tasks and self._machine.at_rest

    async def begin(self) -> None:
        """Connect, however long it takes."""
        while not self.over:
            talk = FrailConversation(self._address, self._machine)
            try:
                await talk.begin(CONNECT_S)
            except UnavailableError:
                await asyncio.sleep(RETRY_S)
                self._machine = WitnessedMachine(self._chronicle, self.instance, self.name)
            else:
                self._talk, self._client = talk, Client(talk)
                return

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """In the background; the run waits for it before it judges."""
        if len(self._tasks) >= MOST_UNDER_WAY:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            detail = f"{self.name}: {type(problem).__name__}: {problem}"
            self._chronicle.history.odd("answers", detail)

    async def goodbye(self) -> None:
        """Leave as one should. What it waits for is answered with the end."""
        self.over = True
        self._machine.troubled()
        if self._client is not None:
            await self._client.close()

    def drop(self) -> bool:
        if self._talk is None or self._machine.state != "open":
            return False
        self._machine.troubled()
        self._talk.drop()
        return True

    def die(self) -> None:
        self.over = True
        self._machine.die()
        if self._talk is not None:
            self._talk.die()
        for task in list(self._tasks):
            task.cancel()

    async def pack_up(self) -> None:
        """After the run: the brokers are gone, nobody is to be told."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.able:
            assert self._client is not None
            self.over = True
            await self._client.close(patience=0.1)

    # ── requests ─────────────────────────────────────────────────────────────────────────

    async def advertise(self, filter: Filter, *, wait: bool, timeout_s: float) -> None:
        assert self._client is not None
        opening = self._client.advertise(filter, wait=_wait(wait), timeout=timeout_s)
        await self._add("advertise", opening)

    async def subscribe(self, filter: Filter, *, wait: bool, timeout_s: float) -> None:
        assert self._client is not None
        opening = self._client.subscribe(
            filter, callback=_read, wait=_wait(wait), timeout=timeout_s
        )
        await self._add("subscribe", opening)

    async def _add(self, kind: str, opening: Awaitable[Standing]) -> None:
        entry = await self._answer(kind, opening)
        if entry is not None:
            self.standing.append(entry)

    async def take_back(self, entry: Standing, *, wait: bool, timeout_s: float) -> None:
        self.standing.remove(entry)
        if not entry.in_force:  # it went with its session
            return
        if isinstance(entry, Subscription):
            await self._answer(
                "unsubscribe", entry.unsubscribe(wait=_wait(wait), timeout=timeout_s)
            )
        elif isinstance(entry, Advertisement):
            await self._answer(
                "unadvertise", entry.unadvertise(wait=_wait(wait), timeout=timeout_s)
            )

    async def _answer(self, kind: str, request: Awaitable[T]) -> T | None:
        """One call of the application, with the answer it got."""
        history, now = self._chronicle.history, self._chronicle.now
        call = Call(self.name, self.instance, len(history.calls), kind, now())
        history.calls.append(call)
        try:
            result = await request
        except MotetError as problem:
            call.answers.append((now(), type(problem).__name__))
            return None
        call.answers.append((now(), "Done"))
        return result

    def advertised(self) -> list[Filter]:
        return [entry.filter for entry in self.standing if isinstance(entry, Advertisement)]

    # ── events ───────────────────────────────────────────────────────────────────────────

    async def publish(self, attributes: dict[str, Value], *, sure: bool = False) -> None:
        """The payload is the number of the event, by which it is known when it arrives."""
        assert self._client is not None
        history = self._chronicle.history
        number = len(history.events)
        event = Event(number, self.name, self.instance, attributes, sure=sure)
        history.events.append(event)
        try:
            body = str(number).encode()
            receipt = await self._client.publish(attributes, body, best_effort=not sure)
        except MotetError:
            event.fate = "unknown"
            return
        if not event.fate:
            self._receipts.append((event, receipt))

    def read_receipts(self) -> None:
        """Events that never left, because the client was closed before, have their fate there."""
        for event, receipt in self._receipts:
            if not event.fate and event.sent_at == inf and receipt.settled:
                event.fate = "unknown"
        self._receipts = [(event, receipt) for event, receipt in self._receipts if not event.fate]


def _wait(everywhere: bool) -> Wait:
    return "overlay" if everywhere else "local"


def _read(event: Delivered) -> None:
    """The application has no use for it: what came is in the chronicle already."""
