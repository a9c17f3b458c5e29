"""Paper 1's scenario: an instance of a process is handed from its dispatcher to an agent.

Four clients, five operations (its figure 1b): the environment E publishes a new instance (1), the
dispatcher D assigns it to one of two agents in turn (2), the agent subscribes to it (3), D
unsubscribes (4), and E publishes an update (5), which only the agent must get.

The same five operations in four ways: as a plan (S-TX), as a dynamic transaction with and without
isolation (D-TX, D-TX_NI), and without any transaction, with a wait between 1 and 5 that was found
by trying (BL-WAIT). And APART: the same operations, each after the previous one, by clients that
know of each other, which no overlay offers; it shows their cost without a transaction.

All clients are in one worker process (`DispatchWorker`). Brokers, and hops that delay links, are
other processes. What a transaction waits for is counted from the protocol (`critical_path`);
BL-WAIT's wait is found by trying (`find_wait`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from motet.broker.folder.journal import VOLATILE
from motet.broker.overlay.topology import Topology
from motet.client.client import Client, connect
from motet.client.plan import Plan
from motet.client.subscription import Subscription
from motet.client.transaction import Invitation, Transaction
from motet.errors import MotetError
from motet.fleet.fleet import Fleet, links
from motet.fleet.process import HOST, BrokerProcess, free_ports
from motet.model import Event, Filter, Value, attr
from motet.runtime.loop import run, settle_memory, take_all_descriptors
from motet.runtime.tcp import address_of
from motet_labs.bench import floor
from motet_labs.experiments.delay_proxy import delay
from motet_labs.processes import Worker, percentiles, serve, worker

APPROACHES = ("BL-WAIT", "S-TX", "D-TX", "D-TX_NI")
APART = "no transaction"
AGENTS = 2
CAST_SIZE = 2 + AGENTS
"""Clients of one instantiation of the scenario."""
TOGETHER = 200
"""Subscriptions that are made at the same time."""
PATIENCE_S = 20.0
LOST_S = 0.5
"""An update of BL-WAIT that takes longer counts as astray."""
POLL_S = 0.002


class Dispatched(NamedTuple):
    """One instance."""

    latency_s: float
    right: bool = True
    """The update went to the agent, once, and to no other client."""


class Cast:
    """The clients of one instantiation. `process` separates it from all others."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.environment: Client
        self.dispatcher: Client
        self.agents: list[Client] = []
        self.held: dict[int, Subscription] = {}
        """By instance: the dispatcher's subscriptions, to be handed over."""
        self.aborted = 0
        self._approach = ""
        self._next = 0
        self._taken_on: list[Subscription] = []
        self._arrived: dict[int, asyncio.Future[None]] = {}
        self._got: dict[int, list[str]] = {}
        """By instance: the clients that got an update, in the order of arrival."""
        self._done_numbers: list[int] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def enter(self, stack: AsyncExitStack, brokers: Sequence[str]) -> None:
        """Connect: E, D and the agents, each to its broker."""

        async def client(name: str, url: str) -> Client:
            opening = connect(url, client_id=f"{name}-{self.process}")
            return await stack.enter_async_context(opening)

        places = [brokers[at % len(brokers)] for at in range(CAST_SIZE)]
        self.environment = await client("E", places[0])
        self.dispatcher = await client("D", places[1])
        for number, place in enumerate(places[2:], 1):
            self.agents.append(await client(f"A{number}", place))
        await self.environment.advertise(f"process = '{self.process}'")
        await self.dispatcher.advertise(f"of = '{self.process}'")
        await self.environment.participate()
        await self.dispatcher.participate(self._dispatch)
        for number, agent in enumerate(self.agents):
            await agent.participate(self._take_on, on_started=partial(self._begun, agent))
            filter = f"of = '{self.process}' and assign = {number}"
            await agent.subscribe(filter, callback=partial(self._assigned, agent))
            await agent.advertise(f"done = '{self.process}'")
        await self.environment.subscribe(f"done = '{self.process}'", callback=self._done)

    async def prepare(self, instances: int) -> None:
        """Subscribe the dispatcher to this many new instances."""
        first = self._next + len(self.held)
        numbers = range(first, first + instances)
        for start in range(0, instances, TOGETHER):
            some = numbers[start : start + TOGETHER]
            made = await asyncio.gather(
                *(
                    self.dispatcher.subscribe(
                        self._filter(number), name=f"i{number}", callback=self._heard
                    )
                    for number in some
                )
            )
            self.held.update(zip(some, made, strict=True))

    def _filter(self, number: int) -> Filter:
        return (attr("process") == self.process) & (attr("instance") == number)

    def _event(self, number: int, update: int) -> dict[str, Any]:
        return {"process": self.process, "instance": number, "update": update}

    def _assign(self, number: int) -> dict[str, Any]:
        return {"of": self.process, "assign": number % AGENTS, "number": number}

    def agent_of(self, number: int) -> Client:
        return self.agents[number % AGENTS]

    async def dispatch(self, approach: str, wait_s: float = 0.0) -> Dispatched:
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
        took_s = time.perf_counter() - began
        self.held.pop(number, None)
        if approach not in ("BL-WAIT", APART):
            self._done_numbers.append(number)
        return Dispatched(took_s, right)

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
                beginning = self.environment.transaction(isolation=isolation, timeout=PATIENCE_S)
                async with beginning as tx:
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
        how: Any = {"callback": partial(self._updated, self.agent_of(number))}
        entry = await tx.subscribe(self._filter(number), name=f"i{number}", **how)
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
            done: dict[str, Value] = {"done": self.process, "number": number}
            self._keep(who.send(done, best_effort=True))

    def _keep(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until every update is where it belongs, once; then remove all subscriptions."""
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
        await self.environment.send(self._event(number, 0))
        await self.dispatcher.send(self._assign(number))
        await self._take_over(self.agent_of(number), number, wait="overlay")
        await self.held[number].unsubscribe()
        await self.environment.send(self._event(number, 1))
        await self.environment.flush()

    async def _without(self, number: int, wait_s: float) -> bool:
        """Whether the update reached the agent, and no other client."""
        arrived = self._arrived[number] = asyncio.get_running_loop().create_future()
        await self.environment.send(self._event(number, 0), best_effort=True)
        await asyncio.sleep(wait_s)
        await self.environment.send(self._event(number, 1), best_effort=True)
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
        await self.dispatcher.send(self._assign(number), best_effort=True)
        await self.held[number].unsubscribe(wait="local")

    def _assigned(self, agent: Client, event: Event) -> None:
        if self._approach == "BL-WAIT":
            self._keep(self._take_over(agent, _number(event, "number")))

    async def _take_over(
        self, agent: Client, number: int, wait: Literal["local", "overlay"] = "local"
    ) -> None:
        how: Any = {"name": f"i{number}", "callback": partial(self._updated, agent), "wait": wait}
        self._taken_on.append(await agent.subscribe(self._filter(number), **how))

    def _done(self, event: Event) -> None:
        arrived = self._arrived.get(_number(event, "number"))
        if arrived is not None and not arrived.done():
            arrived.set_result(None)


def _number(event: Event, name: str) -> int:
    value = event[name]
    assert isinstance(value, int)
    return value


# ── all clients, in one process ───────────────────────────────────────────────────────────


class DispatchWorker:
    """Casts of clients, as many as requested, spread over the brokers at these URLs in turn."""

    def __init__(self, stack: AsyncExitStack, urls: Sequence[str]) -> None:
        self._stack = stack
        self._urls = urls
        self._casts: list[Cast] = []

    async def _cast(self, count: int) -> list[Cast]:
        while (at := len(self._casts)) < count:
            cast, first = Cast(f"p{at}"), at % len(self._urls)
            await cast.enter(self._stack, [*self._urls[first:], *self._urls[:first]])
            self._casts.append(cast)
        return self._casts[:count]

    async def dispatch(
        self,
        approach: str,
        casts: int,
        each: int,
        threads: int = 1,
        wait_s: float = 0.0,
        until_wrong: bool = False,
    ) -> dict[str, Any]:
        """Every cast dispatches `each` instances, `threads` at a time; `until_wrong` stops at the
        first one that goes wrong."""
        chosen = await self._cast(casts)
        for cast in chosen:
            await cast.prepare(each)
            cast.aborted = 0
        settle_memory()

        async def thread(cast: Cast, left: list[int]) -> list[Dispatched]:
            runs = []
            while left:
                left.pop()
                runs.append(await cast.dispatch(approach, wait_s))
                if until_wrong and not runs[-1].right:
                    break
            return runs

        lefts = [(cast, list(range(each))) for cast in chosen]
        began = time.perf_counter()
        work = [thread(cast, left) for cast, left in lefts for _ in range(threads)]
        runs = [one for some in await asyncio.gather(*work) for one in some]
        took_s = time.perf_counter() - began
        for cast in chosen:
            await cast.settle()
        return _told(runs, chosen) | {"per_s": len(runs) / took_s}

    async def prepare(self, each: int) -> None:
        """For `pace`, of the first cast."""
        await (await self._cast(1))[0].prepare(each)
        settle_memory()

    async def pace(
        self, approach: str, bursts: int, each: int, every_s: float, wait_s: float = 0.0
    ) -> dict[str, Any]:
        """Dispatch bursts of `each` instances at a pace that does not wait for them; returns their
        latencies when all are complete."""
        cast = (await self._cast(1))[0]
        cast.aborted = 0
        began = time.perf_counter()
        runs: list[asyncio.Task[Dispatched]] = []
        for burst in range(bursts):
            due = began + (burst + 0.5) * every_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            runs += [asyncio.create_task(cast.dispatch(approach, wait_s)) for _ in range(each)]
        await asyncio.sleep(max(0.0, began + bursts * every_s - time.perf_counter()))
        return _told(await asyncio.gather(*runs), [cast])

    async def settle(self) -> None:
        for cast in self._casts:
            await cast.settle()

    async def begin(self, times: int) -> dict[str, float]:
        """How long it takes to begin a D-TX."""
        cast = (await self._cast(1))[0]
        took: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            tx = await cast.environment.transaction()
            took.append((time.perf_counter() - began) * 1e6)
            await tx.abort()
        return percentiles(took)

    async def crowd(self, subscriptions: int) -> None:
        """Make this many subscriptions that match no event of the scenario."""
        crowd = await self._stack.enter_async_context(connect(self._urls[-1], client_id="crowd"))
        for start in range(0, subscriptions, TOGETHER):
            some = range(start, min(subscriptions, start + TOGETHER))
            wanted = (f"desk = {n % 100} and price > {n}" for n in some)
            await asyncio.gather(*(crowd.subscribe(each) for each in wanted))
        settle_memory()


def _told(runs: Sequence[Dispatched], casts: Sequence[Cast]) -> dict[str, Any]:
    return {
        "latency_ms": [round(one.latency_s * 1e3, 3) for one in runs],
        "wrong": sum(not one.right for one in runs),
        "aborted": sum(cast.aborted for cast in casts),
    }


async def clients(urls: Sequence[str]) -> None:
    take_all_descriptors()
    async with AsyncExitStack() as stack:
        await serve(DispatchWorker(stack, urls))


# ── brokers and clients ───────────────────────────────────────────────────────────────────


class CriticalPath(NamedTuple):
    """What a transaction waits for, sequentially: `hops` over links between brokers and to clients,
    of which `to_clients` lead to clients. A hop to a broker ends in a journaled step, which must be
    durable before anything is sent; one to a client does not. Multiplied by the cost of a hop and
    of an fsync, this is the floor of a latency."""

    hops: int
    to_clients: int

    @property
    def fsyncs(self) -> int:
        return self.hops - self.to_clients


def distances(topology: Topology, start: str) -> dict[str, int]:
    """The distance of every broker, in links."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        for edge in topology.edges:
            other = edge[1 - edge.index(here)] if here in edge else here
            if other not in found:
                found[other] = found[here] + 1
                waiting.append(other)
    return found


def critical_path(
    topology: Topology, places: Sequence[str], approach: str, agent: int
) -> CriticalPath:
    """Of a transaction that hands an instance to this agent, for clients at these brokers: E, D and
    the agents."""
    coordinator, dispatcher, place = places[0], places[1], places[2 + agent]
    root = topology.root or topology.names[0]
    far, from_root = distances(topology, coordinator), distances(topology, root)
    to_root, flood = far[root], 2 * max(from_root.values())
    # The answer waits for the brokers of all participants, which include the advertisers.
    decision = 2 * max(from_root[each] for each in (coordinator, dispatcher, place))
    if approach == "S-TX":
        # The plan goes to our broker, every part to its own and from there to the root; the
        # decision.
        parts = max(far[each] + from_root[each] for each in (coordinator, dispatcher, place))
        return CriticalPath(1 + parts + decision + to_root + 1, 1)
    # Every await of a client is a round trip: E begins, invites, publishes, commits; D invites and
    # unsubscribes, A subscribes, and both answer.
    hops = 2 * to_root + 2 * flood if approach == "D-TX" else 0  # opening, and validation
    hops += 2 + 2 + 2 + 2  # E asks, and is answered
    hops += 2 * far[dispatcher] + 1 + 2 + 2 + 1  # D: called, invites, unsubscribes, answers
    to_agent = distances(topology, dispatcher)[place]
    hops += 2 * to_agent + 1 + 2 + 2 * far[place] + 1  # A: called, subscribes, answers
    return CriticalPath(hops + 2 * to_root + decision, to_clients=4 + 3 + 2)


class Scene(NamedTuple):
    """Brokers and clients, ready. `urls` are where clients connect to, by broker."""

    topology: Topology
    brokers: list[BrokerProcess]
    urls: list[str]
    load: Worker
    echo_port: int
    """The port of an echo, over a link like the others."""

    def paths(self, approach: str) -> list[CriticalPath]:
        """Of the first cast, to each of its agents."""
        names = self.topology.names
        places = tuple(names[at % len(names)] for at in range(CAST_SIZE))
        return [critical_path(self.topology, places, approach, agent) for agent in range(AGENTS)]


@contextmanager
def scene(
    topology: Topology, folder: Path, *, delay_s: float = 0.0, durability: str = VOLATILE
) -> Iterator[Scene]:
    """With `delay_s`, every link has this delay, including those of clients."""
    ports = free_ports(len(topology.brokers))
    with ExitStack() as stack:
        echo_port: int = stack.enter_context(worker(floor.echo)).hear()["port"]
        shown = {port: port for port in (*ports, echo_port)}
        if delay_s:
            hop = stack.enter_context(worker(delay, delay_s, list(shown)))
            shown = {int(port): through for port, through in hop.hear().items()}
        port_of = dict(zip(topology.names, ports, strict=True))
        places = tuple(
            replace(place, listen=address_of(HOST, port_of[place.name]))
            for place in topology.brokers
        )
        detours = {link: address_of(HOST, shown[port_of[link[1]]]) for link in links(topology)}
        placed = replace(topology, brokers=places, durability=durability)
        fleet = Fleet(placed, folder, detours=detours)
        stack.callback(lambda: run(fleet.end()))
        run(fleet.start_all())
        run(fleet.until_links_up())
        urls = [address_of(HOST, shown[port]) for port in ports]
        load = stack.enter_context(worker(clients, urls))
        brokers = list(fleet.processes.values())
        yield Scene(topology, brokers, urls, load, shown[echo_port])


# ── the wait of BL-WAIT ───────────────────────────────────────────────────────────────────

LONGEST_MS = 2000.0
STEP_MS = 50.0
"""The paper's."""


class LeastWait(NamedTuple):
    """`least_ms` was always right, `wrong_ms` was not."""

    least_ms: float
    wrong_ms: float
    runs: int
    """At every step of the search."""

    @property
    def as_in_paper_ms(self) -> float:
        return max(STEP_MS, math.ceil(self.least_ms / STEP_MS) * STEP_MS)


def find_wait(
    scene: Scene, runs: int, casts: int = 1, threads: int = 1, exact_ms: float = 1.0
) -> LeastWait:
    """The wait of BL-WAIT: the shortest with which no update went astray. The paper starts at 2000
    ms and goes in steps of 50 ms until 1000 transactions are right and 50 ms less were not enough.
    We halve the interval instead, with fewer runs per step, down to a millisecond; rounded up to
    the paper's steps, this is a lower bound of what the paper would have found."""

    def is_right(wait_ms: float) -> bool:
        how: dict[str, Any] = {"casts": casts, "threads": threads, "each": max(1, runs // casts)}
        how |= {"approach": "BL-WAIT", "wait_s": wait_ms / 1e3, "until_wrong": True}
        return not scene.load.ask("dispatch", **how)["wrong"]

    wrong_ms, right_ms = 0.0, 8.0
    while not is_right(right_ms):
        wrong_ms, right_ms = right_ms, right_ms * 2
        if right_ms > LONGEST_MS:
            right_ms = LONGEST_MS
            break
    while right_ms - wrong_ms > max(exact_ms, right_ms / 16):
        middle_ms = (right_ms + wrong_ms) / 2
        if is_right(middle_ms):
            right_ms = middle_ms
        else:
            wrong_ms = middle_ms
    return LeastWait(right_ms, wrong_ms, runs)
