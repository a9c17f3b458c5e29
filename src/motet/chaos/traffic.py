"""What the clients of the run do: they come, ask, publish, leave, and come back, all by chance."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from motet.chaos.application import Application
from motet.chaos.chronicle import Chronicle
from motet.chaos.plan import Plan
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import Subscription
from motet.testing.workload import Workload

MOST_STANDING = 6
"""Advertisements, and subscriptions, of one client: beyond, one goes before the next comes."""
FIRST_SUBSCRIPTIONS = 2
PROBES = 3
SURE = 0.95
"""The share of events that are to arrive exactly once, where that is watched."""
POLL_S = 0.05


class Traffic:
    def __init__(self, plan: Plan, chronicle: Chronicle, addresses: Mapping[str, str]) -> None:
        self.applications: list[Application] = []
        """Every process of every client that there ever was."""
        self._plan = plan
        self._chronicle = chronicle
        self._addresses = addresses
        self._random = plan.random("traffic")
        self._workload = Workload(self._random, plan.traffic)
        self._comings: set[asyncio.Task[None]] = set()
        self._open = True

    @property
    def living(self) -> list[Application]:
        return [application for application in self.applications if application.able]

    @property
    def at_rest(self) -> bool:
        """Nobody is on the way in or out, nobody waits for anything."""
        return not self._comings and all(
            application.at_rest or not application.able for application in self.applications
        )

    def living_at(self, broker: str) -> int:
        return sum(application.home == broker for application in self.living)

    # ── coming and going ─────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        """Everybody connects and asks for something; all of it is answered."""
        homes = self._plan.inhabited
        for number in range(self._plan.traffic.clients):
            self.arrive(f"c{number}", homes[number % len(homes)])
        await self._until_at_rest()

    def arrive(self, name: str, home: str, after_s: float = 0.0) -> None:
        instance = len(self.applications)
        address = self._addresses[home]
        application = Application(self._chronicle, instance, name, home, address)
        self.applications.append(application)
        self._in_background(self._settle_in(application, after_s))

    async def _settle_in(self, application: Application, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await application.begin()
        if application.able:
            if self._publishes(application):
                application.do(self._advertise(application))
            if self._subscribes(application):
                for _ in range(FIRST_SUBSCRIPTIONS):
                    application.do(self._subscribe(application))

    def _publishes(self, application: Application) -> bool:
        return application.home in self._plan.homes("publisher")

    def _subscribes(self, application: Application) -> bool:
        return application.home in self._plan.homes("subscriber")

    def restart(self, application: Application, home: str, after_s: float) -> None:
        """Its process is killed, and started again after a while: a new epoch, which ends the
        old one wherever it was."""
        application.die()
        self.arrive(application.name, home, after_s)

    def _leave(self, application: Application) -> None:
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

    # ── the bustle ───────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._workload.next_action_s())
            living = self.living
            if living:
                self._act(self._random.choice(living))

    def _act(self, application: Application) -> None:
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

    def _add_or_replace(self, application: Application, kind: type[Standing]) -> None:
        able = self._subscribes if kind is Subscription else self._publishes
        if not able(application):
            return
        if sum(isinstance(entry, kind) for entry in application.standing) >= MOST_STANDING:
            self._take_back(application, kind)
        elif kind is Subscription:
            application.do(self._subscribe(application))
        else:
            application.do(self._advertise(application))

    def _take_back(self, application: Application, kind: type[Standing]) -> None:
        candidates = [entry for entry in application.standing if isinstance(entry, kind)]
        if len(candidates) > 1:  # the last one stays, so that there is always something to see
            entry = self._random.choice(candidates)
            wait, timeout_s = self._workload.draw_wait(), self._workload.draw_timeout_s()
            application.do(application.take_back(entry, wait=wait, timeout_s=timeout_s))

    async def _subscribe(self, application: Application) -> None:
        workload = self._workload
        wait, timeout_s = workload.draw_wait(), workload.draw_timeout_s()
        await application.subscribe(workload.draw_filter(), wait=wait, timeout_s=timeout_s)

    async def _advertise(self, application: Application) -> None:
        workload = self._workload
        wait, timeout_s = workload.draw_wait(), workload.draw_timeout_s()
        await application.advertise(workload.draw_filter(), wait=wait, timeout_s=timeout_s)

    async def _publish(self, application: Application) -> None:
        sure = self._plan.sure and self._random.random() < SURE
        await application.publish(self._workload.draw_event(application.advertised()), sure=sure)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def probe(self) -> None:
        """Everything is at rest: what is published now must arrive everywhere it should."""
        for _ in range(PROBES):
            for application in self.living:
                if application.advertised():
                    await self._publish(application)
        await self._until_at_rest()

    async def _until_at_rest(self) -> None:
        while not self.at_rest:
            await asyncio.sleep(POLL_S)

    async def pack_up(self) -> None:
        for task in self._comings:
            task.cancel()
        await asyncio.gather(*self._comings, return_exceptions=True)
        await asyncio.gather(*(application.pack_up() for application in self.applications))
