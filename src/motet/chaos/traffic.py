"""The clients of a run and their random actions: connect, subscribe, publish, leave, come back.

Each is a real client, on a connection that chaos can break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from math import inf
from secrets import token_hex
from typing import Any, TypeVar

from motet.audit.records import DONE, EventRecord, MoveRecord
from motet.chaos.chronicle import Chronicle
from motet.chaos.plan import ChaosPlan
from motet.chaos.witness import Witness
from motet.client.client import Client, Wait
from motet.client.driver import SessionDriver
from motet.client.line.line import Line
from motet.client.publications import Receipt
from motet.client.session.machine import ClientMachine
from motet.client.subscription import Advertisement, Registration, Subscription
from motet.errors import ClosedError, MotetError, UnavailableError
from motet.model import Event as Delivered
from motet.model import Filter, Value
from motet.testing.history import Call
from motet.testing.workload import Workload

T = TypeVar("T")

CONNECT_S = 3.0
RETRY_S = 0.1
MOST_UNDER_WAY = 16
"""Requests of one client at a time: requests do not pile up at a broker that is down."""


class FrailDriver(SessionDriver):
    """Its connection can be broken, or its process killed, on demand."""

    _alive: Line | None = None

    def connected(self, line: Line) -> None:
        self._alive = line
        super().connected(line)

    def disconnected(self, reason: str) -> None:
        super().disconnected(reason)
        if isinstance(self.recorder, Witness):
            self.recorder.closed()

    def lose_patience(self) -> None:
        super().lose_patience()
        if isinstance(self.recorder, Witness) and self.machine.moving.impatient:
            self.recorder.lose_patience()

    def drop(self) -> None:
        if self._alive is not None:
            self._alive.connection.abort("dropped, as a bad network would")

    def die(self) -> None:
        """As SIGKILL would: no goodbye, no answer, no reconnect."""
        self.error = ClosedError("this client was killed")
        self.dialer.stop()
        self.registrations.end_all(None)
        self.drop()


class ChaosClient:
    """A process of a client, as far as brokers can tell."""

    def __init__(
        self,
        chronicle: Chronicle,
        instance: int,
        name: str,
        home: str,
        address: str,
        *,
        total_order: bool = False,
    ) -> None:
        self.instance = instance
        self.name = name
        self.total_order = total_order
        self.moving: MoveRecord | None = None
        """The move that it has asked for, until that is answered."""
        self.over = False
        self.standing: list[Registration] = []
        """Registrations that were confirmed and not removed."""
        self._first_home = home
        self._address = address
        self._chronicle = chronicle
        self.witness = self._new_witness()
        self._driver: FrailDriver | None = None
        self._client: Client | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._receipts: list[tuple[EventRecord, Receipt]] = []

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def _new_witness(self) -> Witness:
        machine = ClientMachine(self.name, instance=token_hex(8), total_order=self.total_order)
        return Witness(self._chronicle, self.instance, machine)

    @property
    def home(self) -> str:
        """The broker where it is, or was last."""
        return self.witness.machine.broker or self._first_home

    @property
    def able(self) -> bool:
        """It has had a session, and has not ended."""
        return not self.over and self._client is not None and not self._client.closed

    @property
    def at_rest(self) -> bool:
        return self.able and not self._tasks and self.witness.machine.at_rest

    async def begin(self) -> None:
        """Connect, however long it takes."""
        while not self.over:
            witness = self.witness
            driver = FrailDriver([self._address], witness.machine, recorder=witness)
            try:
                await driver.begin(CONNECT_S)
            except UnavailableError:
                await asyncio.sleep(RETRY_S)
                self.witness = self._new_witness()
            else:
                self._driver, self._client = driver, Client(driver)
                return

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work in the background; the run waits for it before the judgement."""
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
        """Leave orderly. Open requests are answered by the end."""
        self.over = True
        self.witness.troubled()
        if self._client is not None:
            await self._client.close()

    def drop(self) -> bool:
        if self._driver is None or self.witness.machine.state != "open":
            return False
        self.witness.troubled()
        self._driver.drop()
        return True

    def die(self) -> None:
        self.over = True
        self.witness.die()
        if self._driver is not None:
            self._driver.die()
        for task in list(self._tasks):
            task.cancel()

    async def pack_up(self) -> None:
        """After the run: the brokers are gone, so there is no goodbye."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.able:
            assert self._client is not None
            self.over = True
            await self._client.close(timeout=0.1)

    # ── moves ────────────────────────────────────────────────────────────────────────────

    async def move(self, to: str, timeout_s: float, patience_s: float | None = None) -> None:
        """Ask for a move, unless one is under way; record how it ends."""
        client, history = self._client, self._chronicle.history
        if self.moving is not None or client is None:
            return
        record = MoveRecord(
            *(self.name, self.instance, len(history.moves), to, timeout_s),
            *(self._chronicle.now(), self._where()),
        )
        history.moves.append(record)
        self.moving = record
        try:
            await client.move(to, timeout=timeout_s, patience=patience_s)
        except MotetError as problem:
            record.answer, record.text = type(problem).__name__, str(problem)
            record.missing = getattr(problem, "missing", ())
        else:
            record.answer, record.value = DONE, client.broker or ""
        finally:
            self.moving = None
        record.answered_at, record.after = self._chronicle.now(), self._where()
        record.impatient = self.witness.impatient_at >= record.at
        took_s = record.answered_at - record.at
        told = f"{record.answer} {record.text}".rstrip()
        how = f"{told}, after {took_s:.3f} s, at {client.broker}"
        self._chronicle.jot(f"{self.name} moves from {record.before[0]} to {to}: {how}")

    def _where(self) -> tuple[str | None, str | None]:
        return self.witness.machine.broker, self.witness.machine.epoch

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

    async def _add(self, kind: str, opening: Awaitable[Registration]) -> None:
        entry = await self._answer(kind, opening)
        if entry is not None:
            self.standing.append(entry)

    async def take_back(self, entry: Registration, *, wait: bool, timeout_s: float) -> None:
        self.standing.remove(entry)
        if not entry.active:  # it ended with its session
            return
        self.witness.takes_back(entry.handle)
        if isinstance(entry, Subscription):
            await self._answer(
                "unsubscribe", entry.unsubscribe(wait=_wait(wait), timeout=timeout_s)
            )
        elif isinstance(entry, Advertisement):
            await self._answer(
                "unadvertise", entry.unadvertise(wait=_wait(wait), timeout=timeout_s)
            )

    async def _answer(self, kind: str, request: Awaitable[T]) -> T | None:
        """Record one call of the application, and its answer."""
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
        """Publish an event with its number as payload, which identifies it on arrival."""
        assert self._client is not None
        history = self._chronicle.history
        number = len(history.events)
        event = EventRecord(number, self.name, self.instance, attributes, sure=sure)
        history.events.append(event)
        try:
            body = str(number).encode()
            receipt = await self._client.send(attributes, body, best_effort=not sure)
        except MotetError:
            event.fate = "unknown"
            return
        if not event.fate:
            self._receipts.append((event, receipt))

    def read_receipts(self) -> None:
        """Settle events that were never sent because the client was closed before."""
        for event, receipt in self._receipts:
            if not event.fate and event.sent_at == inf and receipt.settled:
                event.fate = "unknown"
        self._receipts = [(event, receipt) for event, receipt in self._receipts if not event.fate]


def _wait(everywhere: bool) -> Wait:
    return "overlay" if everywhere else "local"


def _read(event: Delivered) -> None:
    """The application ignores events: the chronicle has them already."""


MOST_STANDING = 6
"""Limit of advertisements, and of subscriptions, of one client: then one ends before the next."""
FIRST_SUBSCRIPTIONS = 2
PROBES = 3
POLL_S = 0.05


class ChaosTraffic:
    sure_share = 0.95
    """Of exactly-once events, where delivery is checked."""

    def __init__(self, plan: ChaosPlan, chronicle: Chronicle, addresses: Mapping[str, str]) -> None:
        self.applications: list[ChaosClient] = []
        """All processes of all clients, past and present."""
        self._plan = plan
        self._chronicle = chronicle
        self._addresses = addresses
        self._random = plan.random("traffic")
        self._workload = Workload(self._random, plan.traffic)
        self._comings: set[asyncio.Task[None]] = set()
        self._open = True

    @property
    def living(self) -> list[ChaosClient]:
        return [application for application in self.applications if application.able]

    @property
    def at_rest(self) -> bool:
        """No client is connecting or leaving, and no request is open."""
        return not self._comings and all(
            application.at_rest or not application.able for application in self.applications
        )

    def living_at(self, broker: str) -> int:
        return sum(application.home == broker for application in self.living)

    # ── coming and going ─────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        """Connect all clients and wait until their first requests are answered."""
        homes = self._plan.inhabited
        for number in range(self._plan.traffic.clients):
            self.arrive(f"c{number}", homes[number % len(homes)])
        await self._until_at_rest()

    def arrive(self, name: str, home: str, after_s: float = 0.0) -> None:
        instance = len(self.applications)
        address = self._addresses[home]
        application = ChaosClient(
            self._chronicle, instance, name, home, address, total_order=self._merges(name)
        )
        self.applications.append(application)
        self._in_background(self._settle_in(application, after_s))

    async def _settle_in(self, application: ChaosClient, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await application.begin()
        if application.able:
            if self._publishes(application):
                application.do(self._advertise(application))
            if self._subscribes(application):
                for _ in range(FIRST_SUBSCRIPTIONS):
                    application.do(self._subscribe(application))

    def _publishes(self, application: ChaosClient) -> bool:
        return application.home in self._plan.homes("publisher")

    def _subscribes(self, application: ChaosClient) -> bool:
        return application.home in self._plan.homes("subscriber")

    def _merges(self, name: str) -> bool:
        """Whether a client is in total order."""
        del name
        return False

    def restart(self, application: ChaosClient, home: str, after_s: float) -> None:
        """Kill its process, and start it again after a while: with a new epoch, which ends the old
        one at any broker."""
        application.die()
        self.arrive(application.name, home, after_s)

    def _leave(self, application: ChaosClient) -> None:
        async def go() -> None:
            pause_s = self._random.uniform(0.0, 1.0)
            await application.goodbye()
            self.arrive(application.name, application.home, pause_s)

        self._in_background(go())

    def _in_background(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._comings.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._comings.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            detail = f"a client could not come or go: {type(problem).__name__}: {problem}"
            self._chronicle.history.odd("invariants", detail)

    # ── traffic ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._workload.next_action_s())
            living = self.living
            if living:
                self._act(self._random.choice(living))

    def _act(self, application: ChaosClient) -> None:
        action = self._workload.draw_action()
        if action == "publish":
            if not self._publishes(application):
                application = self._random.choice(
                    [each for each in self.living if self._publishes(each)] or [application]
                )
            application.do(self._publish(application))
        elif action == "subscribe":
            self._add_or_replace(application, Subscription)
        elif action == "advertise":
            self._add_or_replace(application, Advertisement)
        elif action == "unsubscribe":
            self._take_back(application, Subscription)
        elif action == "unadvertise":
            self._take_back(application, Advertisement)
        elif action == "goodbye":
            self._leave(application)

    def _add_or_replace(self, application: ChaosClient, kind: type[Registration]) -> None:
        able = self._subscribes if kind is Subscription else self._publishes
        if not able(application):
            return
        if sum(isinstance(entry, kind) for entry in application.standing) >= MOST_STANDING:
            self._take_back(application, kind)
        elif kind is Subscription:
            application.do(self._subscribe(application))
        else:
            application.do(self._advertise(application))

    def _take_back(self, application: ChaosClient, kind: type[Registration]) -> None:
        candidates = [entry for entry in application.standing if isinstance(entry, kind)]
        if len(candidates) > 1:  # the last one stays, so that there are always events
            entry = self._random.choice(candidates)
            wait, timeout_s = self._workload.draw_wait(), self._workload.draw_timeout_s()
            application.do(application.take_back(entry, wait=wait, timeout_s=timeout_s))

    async def _subscribe(self, application: ChaosClient) -> None:
        workload = self._workload
        wait, timeout_s = workload.draw_wait(), workload.draw_timeout_s()
        await application.subscribe(self._draw_filter(), wait=wait, timeout_s=timeout_s)

    async def _advertise(self, application: ChaosClient) -> None:
        workload = self._workload
        wait, timeout_s = workload.draw_wait(), workload.draw_timeout_s()
        await application.advertise(self._draw_filter(), wait=wait, timeout_s=timeout_s)

    def _draw_filter(self) -> Filter:
        return self._workload.draw_filter()

    async def _publish(self, application: ChaosClient) -> None:
        sure = self._plan.sure and self._random.random() < self.sure_share
        await application.publish(self._workload.draw_event(application.advertised()), sure=sure)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def probe(self) -> None:
        """Everything is at rest: events published now must reach all their subscribers."""
        for _ in range(PROBES):
            for application in self.living:
                if application.advertised():
                    await self._publish(application)
        await self._until_at_rest()

    async def _until_at_rest(self) -> None:
        while not self.at_rest:
            await asyncio.sleep(POLL_S)

    async def judge(self) -> None:
        """Judge what the checkers do not, while the brokers run."""

    async def leave(self) -> None:
        """Close the clients that the checkers do not follow."""

    async def pack_up(self) -> None:
        for task in self._comings:
            task.cancel()
        await asyncio.gather(*self._comings, return_exceptions=True)
        await asyncio.gather(*(application.pack_up() for application in self.applications))
