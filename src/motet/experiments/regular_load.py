"""The publisher and the subscriber of regular events, each in a process of its own.

    python -m motet.experiments.regular_load publisher URL
    python -m motet.experiments.regular_load subscriber URL

Each reads one JSON object per line and answers each with one. Events are numbered, exactly once,
and come as fast as they go or at a rate. The two agree on a window, by events like any other: the
publisher is never farther ahead, so what arrives in a while is what the overlay carries in that
while, and not what had piled up before.

    {"do": "go", "per_s": …}          publish from now on; 0: as fast as it goes
    {"do": "stop"}                    and say how many there were
    {"do": "mark"}                    what has arrived by now
    {"do": "account", "published": …} wait for all, and say what went wrong
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

from motet.bench import sample
from motet.client.client import Client
from motet.client.connecting import connect
from motet.client.subscription import Subscription
from motet.experiments.load import serve
from motet.model import Event
from motet.runtime.loop import run, settle_memory

AHEAD = 4096
"""Events that the publisher may be ahead of the subscriber: as many as a broker gives a client
without hearing from it. Farther behind, a subscriber is served from the log, which is another
matter, measured elsewhere."""
CREDIT_EVERY = 512
CREDIT = "credit > 0"
UNSETTLED = 1000
"""Publications whose fate may be open."""
PULSE_S = 0.002
"""At a rate, a publisher sleeps so long, then publishes what is due."""
NOTE_S = 0.05
"""The subscriber notes so often what has arrived."""
PATIENCE_S = 20.0


class Publishing:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._orders = sample.orders(1024)
        self._made = self._taken = 0
        self._credited = asyncio.Event()
        self._going = False
        self._task: asyncio.Task[None] | None = None

    def credit(self, event: Event) -> None:
        taken = event["credit"]
        assert isinstance(taken, int)
        self._taken = taken
        self._credited.set()

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "go":
            self._going = True
            self._task = asyncio.get_running_loop().create_task(self._publish(asked["per_s"]))
            return {}
        self._going = False
        assert self._task is not None
        await self._task
        await self._client.flush()
        return {"published": self._made}

    async def _publish(self, per_s: float) -> None:
        first, began = self._made, time.perf_counter()
        while self._going:
            if self._made - self._taken >= AHEAD:
                self._credited.clear()
                async with asyncio.timeout(PATIENCE_S):
                    await self._credited.wait()
            if per_s and self._made - first >= (time.perf_counter() - began) * per_s:
                await asyncio.sleep(PULSE_S)
                continue
            event = self._orders[self._made & 1023]
            event["number"] = self._made
            await self._client.publish(event, sample.PAYLOAD)
            self._made += 1


class Subscribing:
    """Counts what arrives, in order, once."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self._taken = self._missed = self._again = 0
        self._notes: list[tuple[float, int]] = []
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._take()), loop.create_task(self._note())]

    async def _take(self) -> None:
        expected = 0
        async for event in self._subscription:
            self._taken += 1
            number = event["number"]
            assert isinstance(number, int)
            if number == expected:
                expected += 1
            elif number > expected:
                self._missed += number - expected
                expected = number + 1
            else:
                self._again += 1
            if self._taken % CREDIT_EVERY == 0:
                await self._client.publish({"credit": self._taken}, best_effort=True)

    async def _note(self) -> None:
        while True:
            self._notes.append((time.perf_counter(), self._taken))
            await asyncio.sleep(NOTE_S)

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        for task in self._tasks:
            if task.done():
                task.result()
        if asked["do"] == "account":
            return await self._account(asked["published"])
        notes, self._notes = self._notes, []
        return {"at_s": time.perf_counter(), "taken": self._taken, "notes": notes}

    async def _account(self, published: int) -> dict[str, Any]:
        deadline = time.perf_counter() + PATIENCE_S
        while self._taken < published and time.perf_counter() < deadline:
            await asyncio.sleep(NOTE_S)
        return {
            "lost": max(0, published - self._taken),
            "disordered": self._missed,
            "doubled": max(self._again, self._taken - published),
        }


async def publisher(url: str) -> None:
    async with connect(url, client_id="regular-publisher", window=UNSETTLED) as client:
        publishing = Publishing(client)
        await client.advertise(sample.SPACE)
        await client.subscribe(CREDIT, callback=publishing.credit)
        settle_memory()
        await serve(publishing.answer)


async def subscriber(url: str) -> None:
    async with connect(url, client_id="regular-subscriber") as client:
        await client.advertise(CREDIT)
        subscribing = Subscribing(client, await client.subscribe(sample.SPACE))
        settle_memory()
        await serve(subscribing.answer)


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["publisher", url]:
            run(publisher(url))
        case ["subscriber", url]:
            run(subscriber(url))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
