"""Paper 1's scenario: an instance of a process is handed from its dispatcher to an agent.

Four clients, five operations (its figure 1b): the environment E publishes a new instance (1), the
dispatcher D assigns it to one of two agents in turn (2), the agent subscribes to it (3), D
unsubscribes (4), and E publishes an update (5), which only the agent must get.

The same five operations in four ways: as a plan (S-TX), as a dynamic transaction with and without
isolation (D-TX, D-TX_NI), and without any transaction, with a wait between 1 and 5 that was found
by trying (BL-WAIT). And APART: the same operations, each when the one before is done, by clients
that know of each other, which no overlay offers; it shows what they cost if nothing binds them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from motet.client.client import Client
from motet.client.connecting import connect
from motet.client.plan import Plan
from motet.client.subscription import Subscription
from motet.client.transaction import Invitation, Transaction
from motet.errors import MotetError
from motet.model import Event, Filter, attr

Wait = Literal["local", "overlay"]
APPROACHES = ("BL-WAIT", "S-TX", "D-TX", "D-TX_NI")
APART = "no transaction"
AGENTS = 2
CAST = 2 + AGENTS
"""Clients of one instantiation of the scenario."""
TOGETHER = 200
"""Subscriptions that are made at the same time."""
PATIENCE_S = 20.0
LOST_S = 0.5
"""An update of BL-WAIT that takes longer has gone astray."""
POLL_S = 0.002


@dataclass(frozen=True)
class Run:
    """One dispatched instance. `at_s` is when it was over."""

    latency_s: float
    at_s: float
    right: bool = True
    """The update went to the agent, once, and to nobody else."""


class Cast:
    """The clients of one instantiation. `process` keeps it apart from all others."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.environment: Client
        self.dispatcher: Client
        self.agents: list[Client] = []
        self.held: dict[int, Subscription] = {}
        """By instance: what the dispatcher has, and is to give away."""
        self.aborted = 0
        self._approach = ""
        self._next = 0
        self._taken_on: list[Subscription] = []
        self._arrived: dict[int, asyncio.Future[None]] = {}
        self._got: dict[int, list[str]] = {}
        """By instance: who got an update, in the order of arrival."""
        self._done_numbers: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # ── setting up ───────────────────────────────────────────────────────────────────────

    async def enter(self, stack: AsyncExitStack, brokers: Sequence[str]) -> None:
        """Connect: E, D and the agents, each to its broker."""

        async def client(name: str, url: str) -> Client:
            opening = connect(url, client_id=f"{name}-{self.process}")
            return await stack.enter_async_context(opening)

        places = [brokers[at % len(brokers)] for at in range(CAST)]
        self.environment = await client("E", places[0])
        self.dispatcher = await client("D", places[1])
        for number, place in enumerate(places[2:], 1):
            self.agents.append(await client(f"A{number}", place))
        await self.environment.advertise(f"process = '{self.process}'")
        await self.dispatcher.advertise(f"of = '{self.process}'")
        await self.environment.participate()
        await self.dispatcher.participate(self._dispatch)
        for number, agent in enumerate(self.agents):
            await agent.participate(self._take_on, began=partial(self._begun, agent))
            filter = f"of = '{self.process}' and assign = {number}"
            await agent.subscribe(filter, callback=partial(self._assigned, agent))
            await agent.advertise(f"done = '{self.process}'")
        await self.environment.subscribe(f"done = '{self.process}'", callback=self._done)

    async def prepare(self, instances: int) -> None:
        """The dispatcher has so many new instances, and hears of each."""
        first = self._next + len(self.held)
        numbers = range(first, first + instances)
        for start in range(0, instances, TOGETHER):
            some = numbers[start : start + TOGETHER]
            made = await asyncio.gather(*map(self._hold, some))
            self.held.update(zip(some, made, strict=True))

    async def _hold(self, number: int) -> Subscription:
        return await self.dispatcher.subscribe(
            self._filter(number), name=f"i{number}", callback=self._heard
        )

    def _filter(self, number: int) -> Filter:
        return (attr("process") == self.process) & (attr("instance") == number)

    def _event(self, number: int, update: int) -> dict[str, Any]:
        return {"process": self.process, "instance": number, "update": update}

    def _assign(self, number: int) -> dict[str, Any]:
        return {"of": self.process, "assign": number % AGENTS, "number": number}

    def agent_of(self, number: int) -> Client:
        return self.agents[number % AGENTS]

    # ── running ──────────────────────────────────────────────────────────────────────────

    async def dispatch(self, approach: str, wait_s: float = 0.0) -> Run:
        """One instance, from the beginning to the end."""
        number = self._next
        self._next += 1
        self._approach = approach
        began = time.perf_counter()
        right = True
        if approach == "S-TX":
            await self.environment.execute(self._plan(number), timeout=PATIENCE_S)
        elif approach == "BL-WAIT":
            right = await self._without(number, wait_s)
        elif approach == APART:
            await self._apart(number)
        else:
            await self._dynamic(number, "serializable" if approach == "D-TX" else "none")
        ended = time.perf_counter()
        self.held.pop(number, None)
        if approach not in ("BL-WAIT", APART):
            self._done_numbers.append(number)
        return Run(ended - began, ended, right)

    def _plan(self, number: int) -> Plan:
        plan = Plan()
        plan.publish(self.environment.client_id, self._event(number, 0))
        plan.publish(self.dispatcher.client_id, self._assign(number))
        agent = self.agent_of(number).client_id
        plan.subscribe(agent, self._filter(number), name=f"i{number}")
        plan.unsubscribe(self.dispatcher.client_id, f"i{number}")
        plan.publish(self.environment.client_id, self._event(number, 1))
        return plan

    async def _dynamic(self, number: int, isolation: Any) -> None:
        while True:
            try:
                async with self.environment.transaction(
                    isolation=isolation, timeout=PATIENCE_S
                ) as tx:
                    await tx.invite(self._event(number, 0))
                    await tx.publish(self._event(number, 1))
            except MotetError:
                self.aborted += 1
                if self.aborted > 1000:
                    raise
            else:
                return

    async def _dispatch(self, invitation: Invitation, tx: Transaction) -> None:
        number = _number(invitation.event, "instance")
        await tx.invite(self._assign(number))
        await tx.unsubscribe(f"i{number}")

    async def _take_on(self, invitation: Invitation, tx: Transaction) -> None:
        number = _number(invitation.event, "number")
        agent = self.agent_of(number)
        callback = partial(self._updated, agent)
        entry = await tx.subscribe(self._filter(number), name=f"i{number}", callback=callback)
        self._taken_on.append(entry)

    def _begun(self, agent: Client, subscription: Subscription) -> None:
        self._taken_on.append(subscription)
        self._keep(self._read(agent, subscription))

    async def _read(self, agent: Client, subscription: Subscription) -> None:
        async for event in subscription:
            self._updated(agent, event)

    def _updated(self, who: Client, event: Event) -> None:
        number = _number(event, "instance")
        self._got.setdefault(number, []).append(f"{who.client_id} {event['update']}")
        if self._approach == "BL-WAIT" and who is not self.dispatcher:
            done = {"done": self.process, "number": number}
            self._keep(self._publish(who, done))

    async def _publish(self, client: Client, event: dict[str, Any]) -> None:
        await client.publish(event, best_effort=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Everything has arrived where it belongs, once; and nothing is left of it."""
        async with asyncio.timeout(PATIENCE_S):
            while any(not self.is_right(number) for number in self._done_numbers):
                await asyncio.sleep(POLL_S)
        entries = self._taken_on + list(self.held.values())
        self._next += len(self.held)
        self._taken_on = []
        self.held.clear()
        for start in range(0, len(entries), TOGETHER):
            some = entries[start : start + TOGETHER]
            await asyncio.gather(*(entry.unsubscribe() for entry in some))
        self._done_numbers.clear()
        self._got.clear()

    def is_right(self, number: int) -> bool:
        """The dispatcher got the instance, the agent its update."""
        dispatcher, agent = self.dispatcher.client_id, self.agent_of(number).client_id
        return sorted(self._got.get(number, [])) in (
            sorted((f"{dispatcher} 0", f"{agent} 1")),
            [f"{agent} 1"],  # the dispatcher was invited instead
        )

    # ── without transactions ─────────────────────────────────────────────────────────────

    async def _apart(self, number: int) -> None:
        await self.environment.publish(self._event(number, 0))
        await self.dispatcher.publish(self._assign(number))
        await self._take_over(self.agent_of(number), number, wait="overlay")
        await self.held[number].unsubscribe()
        await self.environment.publish(self._event(number, 1))
        await self.environment.flush()

    async def _without(self, number: int, wait_s: float) -> bool:
        """Whether the update came to the agent, and to nobody else."""
        arrived = self._arrived[number] = asyncio.get_running_loop().create_future()
        await self._publish(self.environment, self._event(number, 0))
        await asyncio.sleep(wait_s)
        await self._publish(self.environment, self._event(number, 1))
        try:
            async with asyncio.timeout(LOST_S):
                await arrived
        except TimeoutError:
            return False
        finally:
            del self._arrived[number]
        return self.is_right(number)

    def _heard(self, event: Event) -> None:
        self._updated(self.dispatcher, event)
        if self._approach == "BL-WAIT" and event["update"] == 0:
            self._keep(self._give_away(_number(event, "instance")))

    async def _give_away(self, number: int) -> None:
        await self._publish(self.dispatcher, self._assign(number))
        await self.held[number].unsubscribe(wait="local")

    def _assigned(self, agent: Client, event: Event) -> None:
        if self._approach == "BL-WAIT":
            self._keep(self._take_over(agent, _number(event, "number")))

    async def _take_over(self, agent: Client, number: int, wait: Wait = "local") -> None:
        callback = partial(self._updated, agent)
        entry = await agent.subscribe(
            self._filter(number), name=f"i{number}", callback=callback, wait=wait
        )
        self._taken_on.append(entry)

    def _done(self, event: Event) -> None:
        arrived = self._arrived.get(_number(event, "number"))
        if arrived is not None and not arrived.done():
            arrived.set_result(None)


def _number(event: Event, name: str) -> int:
    value = event[name]
    assert isinstance(value, int)
    return value
