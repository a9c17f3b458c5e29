"""Publishers and many subscribers of the overhead experiment, in processes of their own.

    python -m motet.experiments.load publisher URL
    python -m motet.experiments.load subscribers URL

Each reads one JSON object per line and answers each with one. Events carry the number of their
period, so that what arrives late is not taken for that of the next one; and the time they were
sent, on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from motet.client.client import Client
from motet.client.connecting import connect
from motet.experiments.traffic import padding
from motet.model import Event
from motet.runtime.loop import run, settle_memory, take_all_descriptors

SPACE = "group >= 0"
PULSE_S = 0.002
"""A publisher sleeps so long, then publishes what is due."""
LOCAL_SHARE = 50
"""One group of so many is also wanted at the publishers' own broker."""
TOGETHER = 64
"""Clients that connect at the same time."""
PATIENCE_S = 60.0

Answers = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Latencies:
    """By period, in milliseconds; an event counts once for each subscriber."""

    def __init__(self) -> None:
        self._by_period: defaultdict[int, list[float]] = defaultdict(list)
        self._amiss: Counter[int] = Counter()

    def ear(self) -> Callable[[Event], None]:
        """For one subscriber: notes what comes, and whether it came before."""
        last = 0

        def note(event: Event) -> None:
            nonlocal last
            sent, period = event["sent"], event["period"]
            assert isinstance(sent, float)
            assert isinstance(period, int)
            self._by_period[period].append((time.monotonic() - sent) * 1e3)
            if event.sequence <= last:
                self._amiss[period] += 1
            last = event.sequence

        return note

    def account(self, period: int) -> dict[str, Any]:
        times = sorted(self._by_period[period])
        return {
            "arrived": len(times),
            "amiss": self._amiss[period],
            "p50_ms": median(times) if times else None,
            "p99_ms": times[len(times) * 99 // 100] if times else None,
        }


class Publishing:
    """One publisher, and a subscriber beside it at the same broker."""

    def __init__(self, client: Client, latencies: Latencies) -> None:
        self._client = client
        self._latencies = latencies

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "account" in asked:
            return self._latencies.account(asked["account"])
        return await self._publish(
            asked["period"], asked["per_s"], asked["seconds"], asked["sure"],
            asked["groups"], asked["size_bytes"],
        )  # fmt: skip

    async def _publish(
        self, period: int, per_s: float, seconds: float, sure: bool, groups: int, size_bytes: int
    ) -> dict[str, Any]:
        client = self._client
        form: dict[str, int | float] = {"group": groups, "period": period, "sent": 0.5, "aside": 0}
        payload = padding(form, size_bytes)
        made, began = 0, time.monotonic()
        while (elapsed_s := time.monotonic() - began) < seconds:
            due = int(min(elapsed_s + PULSE_S, seconds) * per_s)
            while made < due:
                group = made % groups
                event = {
                    "group": group,
                    "period": period,
                    "sent": time.monotonic(),
                    "aside": int(group % LOCAL_SHARE == 0),
                }
                await client.publish(event, payload, best_effort=not sure)
                made += 1
            await asyncio.sleep(PULSE_S)
        published_s = time.monotonic() - began
        await client.flush()
        return {"published": made, "seconds": published_s}


class Crowd:
    """Subscribers with one connection each; each wants one group."""

    def __init__(self, url: str, stack: AsyncExitStack, latencies: Latencies) -> None:
        self._url = url
        self._stack = stack
        self._latencies = latencies
        self._count = 0

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "account" in asked:
            return self._latencies.account(asked["account"])
        fresh = range(self._count, asked["subscribers"])
        for first in range(fresh.start, fresh.stop, TOGETHER):
            numbers = fresh[first - fresh.start :][:TOGETHER]
            await asyncio.gather(*(self._join(number, asked["groups"]) for number in numbers))
        self._count = max(self._count, asked["subscribers"])
        settle_memory()
        return {"subscribers": self._count}

    async def _join(self, number: int, groups: int) -> None:
        opening = connect(self._url, client_id=f"crowd-{number}", connect_timeout=PATIENCE_S)
        client = await self._stack.enter_async_context(opening)
        wanted = f"group = {number % groups}"
        await client.subscribe(wanted, callback=self._latencies.ear(), timeout=PATIENCE_S)


async def serve(answer: Answers) -> None:
    """One answer for each line; until there are no more."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await answer(json.loads(line))), flush=True)


async def publisher(url: str) -> None:
    latencies = Latencies()
    async with (
        connect(url, client_id="overhead-publisher", connect_timeout=PATIENCE_S) as client,
        connect(url, client_id="overhead-aside", connect_timeout=PATIENCE_S) as aside,
    ):
        await client.advertise(SPACE, timeout=PATIENCE_S)
        await aside.subscribe("aside = 1", callback=latencies.ear(), timeout=PATIENCE_S)
        settle_memory()
        await serve(Publishing(client, latencies).answer)


async def subscribers(url: str) -> None:
    take_all_descriptors()
    latencies = Latencies()
    stack = AsyncExitStack()
    # The clients are not taken leave of: their brokers are about to end, and thousands of
    # goodbyes would only take time.
    await serve(Crowd(url, stack, latencies).answer)
    stack.pop_all()


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["publisher", url]:
            run(publisher(url))
        case ["subscribers", url]:
            run(subscribers(url))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
