"""Durable clients that an operator moves while nobody is connected, under faults.

A publisher, which moves as well, publishes numbers. Durable clients read them, leave, are moved by
operators, and come back to a broker where their session has been. Some store their own cursors with
what they have read: they must have read every number once. The others may read some again after a
process was killed. A session must be there whenever its client comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

from motet.audit.records import DONE
from motet.chaos.chronicle import Chronicle
from motet.chaos.plan import ChaosPlan
from motet.chaos.traffic import CONNECT_S, RETRY_S, ChaosTraffic, FrailDriver
from motet.client.client import Client
from motet.client.orders import move_order
from motet.client.session.machine import ClientMachine
from motet.client.subscription import Subscription
from motet.errors import ClientElsewhere, Disconnected, MotetError, NoAnswer, UnavailableError
from motet.testing.checkers.result import CheckResult
from motet.testing.history import OrderRecord

ABSENTEES: Final = 4
PUBLISHER: Final = "clock"
SPACE: Final = "kind = 'tick'"
PAUSE_S: Final = 0.02
"""Between two events."""
KEEP_S: Final = 3600.0
STAY_S: Final = (0.2, 2.0)
AWAY_S: Final = (0.0, 2.0)
MOVE_S: Final = 5.0
KILLED: Final = 0.4
"""The share of processes that are killed."""
LONGEST_S: Final = 45.0
"""A client that comes back has its session this long after all places are well, at the latest."""
POLL_S: Final = 0.05
CLOSE_S: Final = 2.0


@dataclass
class Absentee:
    """A durable client, across all its processes."""

    name: str
    own: bool
    """It stores its own cursors."""
    homes: list[str]
    """The brokers where its session has been, as far as the client and operators know."""
    cursors: dict[str, int] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """How many numbers had been read when each process started."""
    driver: FrailDriver | None = None
    client: Client | None = None
    reader: asyncio.Task[None] | None = None

    @property
    def home(self) -> str:
        return self.homes[-1]

    async def take(self, events: Subscription) -> None:
        async for event in events:
            self.read.append(int(str(event["n"])))  # together with the cursor, as one transaction
            if event.pubend is not None and event.tick is not None:
                self.cursors[event.pubend] = event.tick


class Absentees(ChaosTraffic):
    def __init__(self, plan: ChaosPlan, chronicle: Chronicle, addresses: Mapping[str, str]) -> None:
        super().__init__(plan, chronicle, addresses)
        self._chance = plan.random("absentees")
        brokers = plan.tree.brokers
        self._all = [
            Absentee(f"d{n}", n % 2 == 0, [brokers[n % len(brokers)]]) for n in range(ABSENTEES)
        ]
        self._publisher: Client | None = None
        self._first_home = brokers[-1]
        self.made = 0
        self._running = True
        self._work: set[asyncio.Task[None]] = set()
        self.verdict = CheckResult("moves")

    @property
    def at_rest(self) -> bool:
        return not self._work

    def living_at(self, broker: str) -> int:
        """Durable sessions count, whether their clients are there or not."""
        clients = [self._publisher, *(each.client for each in self._all)]
        return sum(each is not None and each.broker == broker for each in clients)

    # ── beginning ────────────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        for absentee in self._all:
            await self._come(absentee)
        while self._publisher is None:
            machine = ClientMachine(PUBLISHER, instance=token_hex(8))
            recorder = self._chronicle.recorder_of(machine)
            address = self._addresses[self._first_home]
            driver = FrailDriver([address], machine, recorder=recorder)
            try:
                await driver.begin(CONNECT_S)
            except UnavailableError:
                await asyncio.sleep(RETRY_S)
            else:
                self._publisher = Client(driver)
        await self._publisher.advertise(SPACE)

    async def _come(self, absentee: Absentee) -> None:
        """A process starts and connects to a broker where the session has been."""
        now, limit_s = self._chronicle.now, self._chronicle.now() + LONGEST_S
        while True:
            at = self._chance.choice(absentee.homes[-2:])
            cursors = dict(absentee.cursors) if absentee.own else None
            machine = ClientMachine(
                absentee.name, instance=token_hex(8), keep_s=KEEP_S, cursors=cursors
            )
            recorder = self._chronicle.recorder_of(machine)
            driver = FrailDriver([self._addresses[at]], machine, recorder=recorder)
            try:
                await driver.begin(CONNECT_S)
                break
            except (UnavailableError, ClientElsewhere) as problem:  # it may be on its way there
                if any(map(self._chronicle.is_troubled, self._chronicle.places)):
                    limit_s = now() + LONGEST_S
                elif now() > limit_s:
                    text = f"{absentee.name} found no session for {LONGEST_S:g} s: {problem}"
                    self.verdict.expect(False, "{}", text)
                    limit_s += LONGEST_S
                await asyncio.sleep(RETRY_S)
        client = Client(driver)
        absentee.driver, absentee.client = driver, client
        if absentee.starts:
            resumed = client.session.resumed
            self.verdict.expect(resumed, "{} came to {} and found no session", absentee.name, at)
        absentee.starts.append(len(absentee.read))
        self._note_home(absentee, client.broker)
        events = await client.subscribe(SPACE, name="ticks")
        absentee.reader = asyncio.ensure_future(absentee.take(events))

    def _note_home(self, absentee: Absentee, broker: str) -> None:
        if absentee.home != broker:
            absentee.homes.append(broker)

    # ── traffic ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs until it is cancelled; work in progress is then completed."""
        for work in (self._count(), self._wander(), *(self._live(each) for each in self._all)):
            task = asyncio.ensure_future(work)
            self._work.add(task)
            task.add_done_callback(self._done)
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            detail = f"a durable client gave up: {type(problem).__name__}: {problem}"
            self._chronicle.history.odd("invariants", detail)

    async def _count(self) -> None:
        assert self._publisher is not None
        while self._running:
            await self._publisher.send({"kind": "tick", "n": self.made})
            self.made += 1
            await asyncio.sleep(PAUSE_S)

    async def _wander(self) -> None:
        """The publisher moves, too."""
        assert self._publisher is not None
        while self._running:
            await asyncio.sleep(self._chance.uniform(*STAY_S))
            try:
                await self._publisher.move(self._elsewhere(self._publisher.broker), timeout=MOVE_S)
            except MotetError as problem:
                self._chronicle.note(f"{PUBLISHER} does not move: {problem}")

    def _elsewhere(self, home: str) -> str:
        return self._chance.choice([name for name in self._plan.tree.brokers if name != home])

    async def _live(self, absentee: Absentee) -> None:
        """Come and go; in the end it is there."""
        while self._running:
            await asyncio.sleep(self._chance.uniform(*STAY_S))
            await self._go(absentee)
            for _ in range(self._chance.choice((0, 1, 1, 2))):
                await asyncio.sleep(self._chance.uniform(*AWAY_S) / 2)
                await self._order(absentee)
            await self._come(absentee)

    async def _go(self, absentee: Absentee) -> None:
        client, driver, reader = absentee.client, absentee.driver, absentee.reader
        assert client is not None
        assert driver is not None
        assert reader is not None
        self._note_home(absentee, client.broker)
        if self._chance.random() < KILLED:
            self._chronicle.note(f"{absentee.name} is killed")
            driver.die()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await client.close(timeout=CLOSE_S)
        absentee.client = None

    async def _order(self, absentee: Absentee) -> None:
        """An operator moves it. Where it is unknown whether that happens, it may be at both."""
        home, to = absentee.home, self._elsewhere(absentee.home)
        chronicle = self._chronicle
        order = OrderRecord(absentee.name, home, to, chronicle.now(), absent=True)
        chronicle.history.orders.append(order)
        try:
            await move_order(self._addresses[home], absentee.name, to, MOVE_S)
        except (Disconnected, NoAnswer):
            order.lost = True
        except MotetError as problem:
            order.answers.append(type(problem).__name__)
        else:
            order.answers.append("")
            absentee.homes.append(to)
        told = order.answers[0] if order.answers else "lost"
        chronicle.jot(f"{absentee.name} is moved from {home} to {to}: {told or DONE}")

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def probe(self) -> None:
        """Wait until everything that was published is durable and has been read."""
        assert self._publisher is not None
        await self._publisher.flush(timeout=LONGEST_S)
        while not all(self.made - 1 in each.read for each in self._all):
            await asyncio.sleep(POLL_S)

    async def judge(self) -> None:
        for absentee in self._all:
            self._judge(absentee)
        self._chronicle.verdicts.append(self.verdict)

    def _judge(self, absentee: Absentee) -> None:
        """Every number came, in order; a new process may go back if it has no cursors."""
        name, ends = absentee.name, [*absentee.starts[1:], len(absentee.read)]
        last, begun = -1, 0
        for end in ends:
            part = absentee.read[begun:end]
            if part:
                in_order = part == list(range(part[0], part[0] + len(part)))
                self.verdict.expect(in_order, "{} has read {}, with gaps", name, part)
                follows = part[0] == last + 1 or (part[0] <= last and not absentee.own)
                self.verdict.expect(follows, "{} has read {} after {}", name, part[0], last)
                last = max(last, part[-1])
            begun = end
        complete = last == self.made - 1
        self.verdict.expect(complete, "{} has read up to {} of {}", name, last, self.made - 1)

    async def leave(self) -> None:
        for absentee in self._all:
            if absentee.client is not None:
                await absentee.client.close(discard_session=True)
                absentee.client = None
        if self._publisher is not None:
            await self._publisher.close()
            self._publisher = None

    async def pack_up(self) -> None:
        self._running = False
        tasks = [*self._work, *(each.reader for each in self._all if each.reader is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in (self._publisher, *(each.client for each in self._all)):
            if client is not None:
                await client.close(timeout=POLL_S)
