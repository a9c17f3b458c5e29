"""All clients of the dispatching scenario, in a process of their own.

    python -m motet.experiments.dispatch_load URL …

Reads one JSON object per line and answers each with one. Clients are spread over the brokers at
these URLs in turn.

    {"do": "dispatch", "approach": …, "casts": …, "threads": …, "each": …, "wait_s": …}
    {"do": "prepare", "each": …}           for `pace`, of the first cast
    {"do": "pace", "approach": …, "bursts": …, "each": …, "every_s": …, "wait_s": …}
    {"do": "settle"}                       after it
    {"do": "begin", "times": …}            how long it takes to begin a D-TX
    {"do": "crowd", "subscriptions": …}    so many that no event of ours meets
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from motet.client.client import Client
from motet.client.connecting import connect
from motet.experiments.dispatching import TOGETHER, Cast, Run
from motet.runtime.loop import run, settle_memory, take_all_descriptors


class Stage:
    def __init__(self, stack: AsyncExitStack, urls: Sequence[str]) -> None:
        self._stack = stack
        self._urls = urls
        self._casts: list[Cast] = []
        self._crowd: Client | None = None
        self._crowded = 0

    async def do(self, asked: dict[str, Any]) -> dict[str, Any]:
        doings: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "dispatch": self._dispatch,
            "prepare": self._prepare,
            "pace": self._pace,
            "settle": self._settle,
            "begin": self._begin,
            "crowd": self._gather_crowd,
        }
        return await doings[asked.pop("do")](**asked)

    async def _cast(self, count: int) -> list[Cast]:
        while len(self._casts) < count:
            cast = Cast(f"p{len(self._casts)}")
            at = len(self._casts)
            urls = [*self._urls[at % len(self._urls) :], *self._urls[: at % len(self._urls)]]
            await cast.enter(self._stack, urls)
            self._casts.append(cast)
        return self._casts[:count]

    async def _dispatch(
        self,
        approach: str,
        casts: int,
        each: int,
        threads: int = 1,
        wait_s: float = 0.0,
        until_wrong: bool = False,
    ) -> dict[str, Any]:
        """Every cast dispatches so many instances, so many at a time; `until_wrong` ends it with
        the first one that goes wrong."""
        chosen = await self._cast(casts)
        for cast in chosen:
            await cast.prepare(each)
            cast.aborted = 0
        settle_memory()

        async def thread(cast: Cast, left: list[int]) -> list[Run]:
            runs = []
            while left:
                left.pop()
                runs.append(await cast.dispatch(approach, wait_s))
                if until_wrong and not runs[-1].right:
                    break
            return runs

        lefts = [(cast, list(range(each))) for cast in chosen]
        began, cpu = time.perf_counter(), time.process_time()
        work = [thread(cast, left) for cast, left in lefts for _ in range(threads)]
        runs = [one for some in await asyncio.gather(*work) for one in some]
        took_s, cpu = time.perf_counter() - began, time.process_time() - cpu
        for cast in chosen:
            await cast.settle()
        return {
            "per_s": len(runs) / took_s,
            "latency_ms": [round(one.latency_s * 1e3, 3) for one in runs],
            "wrong": sum(not one.right for one in runs),
            "aborted": sum(cast.aborted for cast in chosen),
            "cpu_us": cpu / len(runs) * 1e6,
        }

    async def _prepare(self, each: int) -> dict[str, Any]:
        cast = (await self._cast(1))[0]
        await cast.prepare(each)
        settle_memory()
        return {}

    async def _pace(
        self, approach: str, bursts: int, each: int, every_s: float, wait_s: float = 0.0
    ) -> dict[str, Any]:
        """So many instances at once, so many times, at a pace that does not wait for them; until
        all are over, and their time."""
        cast = (await self._cast(1))[0]
        cast.aborted = 0
        began = time.perf_counter()
        runs: list[asyncio.Task[Run]] = []
        for burst in range(bursts):
            due = began + (burst + 0.5) * every_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            runs += [asyncio.create_task(cast.dispatch(approach, wait_s)) for _ in range(each)]
        await asyncio.sleep(max(0.0, began + bursts * every_s - time.perf_counter()))
        done = await asyncio.gather(*runs)
        return {
            "latency_ms": [round(one.latency_s * 1e3, 3) for one in done],
            "at_s": [one.at_s - one.latency_s for one in done],
            "wrong": sum(not one.right for one in done),
            "aborted": cast.aborted,
        }

    async def _settle(self) -> dict[str, Any]:
        for cast in self._casts:
            await cast.settle()
        return {}

    async def _begin(self, times: int) -> dict[str, Any]:
        cast = (await self._cast(1))[0]
        took: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            tx = await cast.environment.transaction()
            took.append((time.perf_counter() - began) * 1e6)
            await tx.abort()
        took.sort()
        return {"p50_us": took[len(took) // 2]}

    async def _gather_crowd(self, subscriptions: int) -> dict[str, Any]:
        """Make, or take back, until there are so many."""
        if self._crowd is None:
            opening = connect(self._urls[-1], client_id="crowd")
            self._crowd = await self._stack.enter_async_context(opening)
        while self._crowded < subscriptions:
            some = range(self._crowded, min(subscriptions, self._crowded + TOGETHER))
            wanted = (f"desk = {n % 100} and price > {n}" for n in some)
            await asyncio.gather(*(self._crowd.subscribe(each) for each in wanted))
            self._crowded = some.stop
        settle_memory()
        return {"subscriptions": self._crowded}


async def serve(urls: Sequence[str]) -> None:
    take_all_descriptors()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        stage = Stage(stack, urls)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await stage.do(json.loads(line))), flush=True)


if __name__ == "__main__":
    run(serve(sys.argv[1:]))
