"""Subscribers that move, and the events that they get meanwhile: all clients of one overlay, in a
process of their own.

There are two ways to move. `move` is Motet's transaction. `reissue` is the traditional movement of
paper 3: the client unsubscribes and leaves, connects to the other broker, and subscribes again; it
is done when that is effective. Each operation is awaited until it is in force in the overlay.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from motet.client.client import Client, connect
from motet.client.subscription import Subscription
from motet.errors import MotetError
from motet.model import Event
from motet.runtime.loop import settle_memory, take_all_descriptors
from motet_labs.experiments.shapes import EventSpace, WantedInterval
from motet_labs.processes import serve

TOGETHER = 32
"""How many clients connect at a time."""
OPERATION_S = 60.0
"""A crowd of movers may be slow; nothing is to be undone because of that."""
RETRY_S = 0.5
PULSE_S = 0.05
SETTLED_S = 0.3
"""No event arrived for so long: none is on its way."""
ARRIVAL_S = 20.0
EVERYTHING = "group >= 0"
SHOWN = 3


class Movement(NamedTuple):
    """Times in seconds: when it began, in the slice; how long its parts took. A transaction has one
    part."""

    client: int
    at_s: float
    parts_s: tuple[float, ...]


class MovingSubscriber:
    """One subscriber; its client object changes when it moves by `reissue`."""

    def __init__(self, number: int, wanted: WantedInterval, way: Sequence[str]) -> None:
        self.number = number
        self.wanted = wanted
        self.way = way
        """The brokers between which it moves, and at first it is at the first one."""
        self.at = 0
        self.client: Client
        self.subscription: Subscription
        self.heard: defaultdict[int, list[int]] = defaultdict(list)
        """By publisher: the numbers of the events."""

    @property
    def broker(self) -> str:
        return self.way[self.at]

    async def arrive(self, url: str) -> None:
        """As a client that nobody knows yet; as often as a broker that is too busy makes it try."""
        deadline = time.perf_counter() + OPERATION_S
        while True:
            how: dict[str, Any] = {"client_id": f"m{self.number}", "connect_timeout": OPERATION_S}
            try:
                self.client = await connect(url, **how)
            except MotetError:
                if time.perf_counter() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def subscribe(self) -> None:
        self.subscription = await self.client.subscribe(
            self.wanted.filter, callback=self._hear, timeout=OPERATION_S
        )

    def _hear(self, event: Event) -> None:
        by, number = event["by"], event["n"]
        assert isinstance(by, int)
        assert isinstance(number, int)
        self.heard[by].append(number)

    async def move(self, url: str) -> tuple[float, ...]:
        del url
        began = time.perf_counter()
        await self.client.move(self.way[1 - self.at], timeout=OPERATION_S)
        self.at = 1 - self.at
        return (time.perf_counter() - began,)

    async def reissue(self, url: str) -> tuple[float, ...]:
        times = [time.perf_counter()]
        await self.subscription.unsubscribe(timeout=OPERATION_S)
        await self.client.close()
        times.append(time.perf_counter())
        self.at = 1 - self.at
        await self.arrive(url)
        times.append(time.perf_counter())
        await self.subscribe()
        times.append(time.perf_counter())
        return tuple(after - before for before, after in pairwise(times))


class PacedPublisher:
    """Publishes events at a pace while it is asked to."""

    def __init__(self, number: int, client: Client) -> None:
        self.number = number
        self.client = client
        self.made = 0

    async def publish(
        self, space: EventSpace, per_s: float, sure: bool, over: asyncio.Event
    ) -> None:
        began, first = time.perf_counter(), self.made
        while not over.is_set():
            due = first + int((time.perf_counter() - began) * per_s)
            while self.made < due:
                event = space.event(self.number, self.made)
                await self.client.send(event, best_effort=not sure)
                self.made += 1
            await asyncio.sleep(PULSE_S)
        await self.client.flush(OPERATION_S)


class MoverWorker:
    """`urls` by broker; publishers are at `homes`."""

    def __init__(self, stack: AsyncExitStack, urls: dict[str, str], homes: Sequence[str]) -> None:
        self._stack = stack
        self._urls = urls
        self._homes = homes
        self._publishers: list[PacedPublisher] = []
        self._movers: list[MovingSubscriber] = []
        self._space = EventSpace(1, 1)
        self._problems: list[str] = []

    async def populate(self, movers: list[dict[str, Any]]) -> None:
        """Replace all subscribers; each has a filter, and the brokers of its way."""
        await self._each(self._movers, lambda mover: mover.client.close())
        self._movers = [
            MovingSubscriber(number, WantedInterval(**each["wanted"]), each["way"])
            for number, each in enumerate(movers)
        ]
        self._space = EventSpace.of([mover.wanted for mover in self._movers])
        for number, home in enumerate(self._homes[len(self._publishers) :]):
            opening = connect(self._urls[home], client_id=f"p{number}")
            client = await self._stack.enter_async_context(opening)
            await client.advertise(EVERYTHING, timeout=OPERATION_S)
            self._publishers.append(PacedPublisher(number, client))

        async def begin(mover: MovingSubscriber) -> None:
            await mover.arrive(self._urls[mover.broker])
            await mover.subscribe()

        await self._each(self._movers, begin)
        settle_memory()

    @staticmethod
    async def _each(movers: Sequence[MovingSubscriber], work: Any) -> None:
        turns = asyncio.Semaphore(TOGETHER)

        async def one(mover: MovingSubscriber) -> None:
            async with turns:
                await work(mover)

        await asyncio.gather(*map(one, movers))

    # ── a slice of time ──────────────────────────────────────────────────────────────────

    async def roam(
        self,
        how: str,
        seconds: float,
        pause_s: float,
        per_s: float,
        movers: list[int] | None = None,
        sure: bool = False,
        seed: int = 0,
    ) -> dict[str, Any]:
        """For so many seconds, these subscribers move on and on, each after a pause; returns when
        all have arrived. The first of all moves at least once. `per_s` events are published by each
        publisher."""
        chosen = self._movers if movers is None else [self._movers[at] for at in movers]
        made: list[Movement] = []
        self._problems = []
        await self._restore()
        async with self._events(per_s, sure) as found:
            began = time.perf_counter()
            spent = time.process_time()

            async def roam(mover: MovingSubscriber) -> None:
                rest_s = _first(mover.number, pause_s, seconds, seed)
                while time.perf_counter() - began + rest_s < seconds:
                    await asyncio.sleep(rest_s)
                    at_s = time.perf_counter() - began
                    parts = await self._go(mover, how)
                    if parts:
                        made.append(Movement(mover.number, at_s, parts))
                    rest_s = pause_s

            async with asyncio.TaskGroup() as group:
                for mover in chosen:
                    group.create_task(roam(mover))
                await asyncio.sleep(seconds)
            took_s = time.perf_counter() - began
            cpu_s = time.process_time() - spent
        return found | {
            "movements": made,
            "took_s": took_s,
            "cpu_s": cpu_s,
            "failed": len(self._problems),
            "problems": self._problems[:SHOWN],
        }

    async def shuttle(
        self, how: str, mover: int, times: int, per_s: float, sure: bool = False
    ) -> dict[str, Any]:
        """One subscriber moves so many times, each after the last."""
        made, chosen = [], self._movers[mover]
        self._problems = []
        await self._restore()
        async with self._events(per_s, sure) as found:
            began = time.perf_counter()
            for _ in range(times):
                at_s = time.perf_counter() - began
                parts = await self._go(chosen, how)
                if parts:
                    made.append(Movement(mover, at_s, parts))
                await asyncio.sleep(SETTLED_S)
        problems = {"failed": len(self._problems), "problems": self._problems[:SHOWN]}
        took_s = time.perf_counter() - began
        return found | problems | {"movements": made, "took_s": took_s, "cpu_s": 0.0}

    async def _restore(self) -> None:
        """Those whose movement failed halfway begin again where they are."""

        async def begin(mover: MovingSubscriber) -> None:
            if not mover.client.closed:
                await mover.client.close()
            await mover.arrive(self._urls[mover.broker])
            await mover.subscribe()

        broken = [m for m in self._movers if m.client.closed or not m.subscription.active]
        await self._each(broken, begin)

    async def _go(self, mover: MovingSubscriber, how: str) -> tuple[float, ...]:
        way = {"move": mover.move, "reissue": mover.reissue}[how]
        try:
            return await way(self._urls[mover.way[1 - mover.at]])
        except MotetError as problem:
            self._problems.append(f"m{mover.number}: {problem}")
            return ()

    @asynccontextmanager
    async def _events(self, per_s: float, sure: bool) -> AsyncIterator[dict[str, Any]]:
        """Events flow; then it is told what the subscribers got."""
        first = {each.number: each.made for each in self._publishers}
        for mover in self._movers:
            mover.heard.clear()
        over = asyncio.Event()
        found: dict[str, Any] = {}
        async with asyncio.TaskGroup() as group:
            for each in self._publishers if per_s else ():
                group.create_task(each.publish(self._space, per_s, sure, over))
            try:
                yield found
            finally:
                over.set()
        numbers = {each.number: range(first[each.number], each.made) for each in self._publishers}
        found |= await self._account(numbers, sure)

    async def _account(self, numbers: dict[int, range], sure: bool) -> dict[str, int]:
        """Wait for events as long as some arrive, or, if none may be missing, until all have."""
        wanted = {
            (mover.number, by): list(self._space.expected(mover.wanted, by, some))
            for mover in self._movers
            for by, some in numbers.items()
        }
        all_of_them = sum(map(len, wanted.values()))
        deadline = time.perf_counter() + ARRIVAL_S
        before = -1
        while time.perf_counter() < deadline:
            heard = sum(len(some) for mover in self._movers for some in mover.heard.values())
            if heard >= all_of_them or (heard == before and not sure):
                break
            before = heard
            await asyncio.sleep(SETTLED_S)
        told = {"expected": all_of_them, "missed": 0, "doubled": 0, "swapped": 0}
        for (mover, by), numbers_of in wanted.items():
            got = self._movers[mover].heard[by]
            once = set(got)
            told["missed"] += len(set(numbers_of) - once)
            told["doubled"] += len(got) - len(once)
            told["swapped"] += sum(a > b for a, b in pairwise(got))
        return told


def _first(number: int, pause_s: float, seconds: float, seed: int) -> float:
    """When a subscriber moves for the first time: at any time of its pause."""
    at = Random(f"{seed} {number}").uniform(0.0, 1.0)
    return at * (min(pause_s, seconds) if number == 0 else pause_s)


async def movers(urls: dict[str, str], homes: list[str]) -> None:
    take_all_descriptors()
    async with AsyncExitStack() as stack:
        await serve(MoverWorker(stack, urls, homes))
