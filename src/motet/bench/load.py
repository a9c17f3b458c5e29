"""Publishers and subscribers as an application writes them, in processes of their own.

    python -m motet.bench.load publish URL EVENTS [PER_S]
    python -m motet.bench.load log URL EVENTS [PER_S]
    python -m motet.bench.load subscribe URL EVENTS
    python -m motet.bench.load ping FROM_URL TO_URL EVENTS PER_S [sure]
    python -m motet.bench.load echo EVENTS PER_S

Each prints JSON lines. `publish` is best effort, `log` exactly once; with PER_S they keep to that
rate. Best effort means that nobody slows a publisher down who is faster than a subscriber, so the
two agree on a window, by events like any other: whatever is lost or doubled all the same is
counted, and a throughput with losses does not count. Exactly once they need not agree on anything.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from motet.bench import sample
from motet.client.connecting import connect
from motet.model import Event
from motet.runtime.addresses import transport_for
from motet.runtime.loop import run, settle_memory

WINDOW = 16_384
SURE_WINDOW = 1000
"""Exactly-once publications whose fate may be open."""
CREDIT_EVERY = 2_048
PATIENCE_S = 10.0
CREDIT = "credit > 0"
BYSTANDER_DESKS = ("bonds", "commodities", "currencies", "futures", "options", "rates")
"""Desks of a few subscriptions that never match."""
WARM_UP = 10
"""The first of so many parts of a run does not count."""


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def publish(url: str, events: int, per_s: float = 0) -> None:
    """Publish as fast as the subscriber takes it."""
    credited = asyncio.Event()
    taken = 0

    def credit(event: Event) -> None:
        nonlocal taken
        count = event["credit"]
        assert isinstance(count, int)
        taken = count
        credited.set()

    async with connect(url, client_id="bench-publisher", best_effort=True) as client:
        await client.advertise(sample.SPACE)
        await client.subscribe(CREDIT, callback=credit)
        orders = sample.orders(1024)
        settle_memory()
        cpu, pace = time.process_time(), Pace(per_s)
        for number in range(events):
            if number - taken >= WINDOW:
                credited.clear()
                async with asyncio.timeout(PATIENCE_S):
                    await credited.wait()
            if per_s:
                await pace.keep(number)
            await client.publish(orders[number & 1023], sample.PAYLOAD)
        await client.flush()
        tell(cpu_us_per_event=(time.process_time() - cpu) / events * 1e6)


async def log(url: str, events: int, per_s: float = 0) -> None:
    """Publish exactly once, as fast as the broker makes it durable."""
    async with connect(url, client_id="bench-publisher", window=SURE_WINDOW) as client:
        await client.advertise(sample.SPACE)
        orders = sample.orders(1024)
        settle_memory()
        cpu, pace = time.process_time(), Pace(per_s)
        for number in range(events):
            if per_s:
                await pace.keep(number)
            await client.publish(orders[number & 1023], sample.PAYLOAD)
        await client.flush()
        tell(cpu_us_per_event=(time.process_time() - cpu) / events * 1e6)


class Pace:
    """So many events per second, spread as evenly as the timers of the loop allow."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._began = time.perf_counter()

    async def keep(self, number: int) -> None:
        """Wait until it is time for the event with this number."""
        ahead_s = number / self._per_s - (time.perf_counter() - self._began)
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)


async def subscribe(url: str, events: int) -> None:
    """Take so many events, check them, and say how long it took."""
    async with (
        connect(url, client_id="bench-subscriber") as client,
        connect(url, client_id="bench-bystander") as bystander,
    ):
        for desk in BYSTANDER_DESKS:
            await bystander.subscribe(f"desk = '{desk}' and price > 10")
        await client.advertise(CREDIT)
        subscription = await client.subscribe(sample.SPACE)
        settle_memory()
        tell(ready=True)
        taken = last = disordered = 0
        began = ended = cpu = 0.0
        warm = events // WARM_UP
        try:
            async with asyncio.timeout(PATIENCE_S) as patience:
                async for event in subscription:
                    taken += 1
                    if event.sequence <= last:
                        disordered += 1
                    last = event.sequence
                    if taken % CREDIT_EVERY == 0:
                        await client.publish({"credit": taken}, best_effort=True)
                        patience.reschedule(asyncio.get_running_loop().time() + PATIENCE_S)
                    if taken == warm:
                        began, cpu = time.perf_counter(), time.process_time()
                    if taken == events:
                        break
        except TimeoutError:
            pass
        ended, cpu = time.perf_counter(), time.process_time() - cpu
        tell(
            events_per_s=(taken - warm) / (ended - began),
            lost=events - taken,
            disordered=disordered,
            dropped=subscription.dropped + client.dropped_by_broker,
            cpu_us_per_event=cpu / max(1, taken - warm) * 1e6,
        )


async def ping(from_url: str, to_url: str, events: int, per_s: float, sure: bool = False) -> None:
    """One event at a time: from `publish` to the hands of the subscriber. At a low rate, or, if
    that is 0, each as soon as the one before has arrived."""
    times: list[float] = []
    async with (
        connect(from_url, client_id="bench-ping", best_effort=not sure) as publisher,
        connect(to_url, client_id="bench-pong") as subscriber,
    ):
        await publisher.advertise(sample.SPACE)
        subscription = await subscriber.subscribe(sample.SPACE)
        settle_memory()
        for event in sample.orders(events):
            await asyncio.sleep(1 / per_s if per_s else 0)
            began = time.perf_counter()
            await publisher.publish(event, sample.PAYLOAD)
            async with asyncio.timeout(PATIENCE_S):
                await anext(subscription)
            times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    tell(p50_us=times[len(times) // 2], p99_us=times[len(times) * 99 // 100])


class _Ear:
    """Hears the echo."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def frames(self, bodies: Sequence[bytes]) -> None:
        del bodies
        self.heard.set()

    def closed(self, reason: str) -> None:
        del reason
        self.heard.set()

    def writable(self) -> None:
        pass


async def echo(events: int, per_s: float) -> None:
    """The floor of `ping`: a bare echo at the same rate. A process that has just slept is slower
    than one that is kept busy, so an echo without pauses would be no floor at all."""
    command = (sys.executable, "-m", "motet.bench.floor", "echo", "-")
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    ear, times, body = _Ear(), [], bytes(sample.EVENT_BYTES)
    try:
        address = (await server.stdout.readline()).decode().strip()
        connection = await transport_for(address).connect(address, lambda _: ear)
        settle_memory()
        for _ in range(events):
            await asyncio.sleep(1 / per_s if per_s else 0)
            ear.heard.clear()
            began = time.perf_counter()
            connection.send([body])
            await ear.heard.wait()
            times.append((time.perf_counter() - began) * 1e6)
        connection.abort()
    finally:
        server.kill()
        await server.wait()
    times.sort()
    tell(p50_us=times[len(times) // 2], p99_us=times[len(times) * 99 // 100])


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["publish", url, events, *per_s]:
            run(publish(url, int(events), *map(float, per_s)))
        case ["log", url, events, *per_s]:
            run(log(url, int(events), *map(float, per_s)))
        case ["subscribe", url, events]:
            run(subscribe(url, int(events)))
        case ["ping", from_url, to_url, events, per_s, *sure]:
            run(ping(from_url, to_url, int(events), float(per_s), sure == ["sure"]))
        case ["echo", events, per_s]:
            run(echo(int(events), float(per_s)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
