"""The cost of exactly once over best effort: CPU of both brokers, and latency (section 4.1).

Two brokers with their journals and logs on disk: publishers at one, subscribers at the other, and
one subscriber beside the publishers for the local latency. Periods of best effort and of exactly
once alternate in the same overlay with the same subscribers; then subscribers are added.

Publishers and subscribers are two processes. Events carry the number of their period, so that late
arrivals are not counted in the next one; and the time they were sent, on the monotonic clock, which
all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.client.client import Client, connect
from motet.fleet.fleet import Fleet
from motet.fleet.process import cpu_s, free_addresses
from motet.model import Event
from motet.runtime.loop import settle_memory, take_all_descriptors
from motet_labs.bench import floor
from motet_labs.experiments import paper5
from motet_labs.experiments.faults import padding
from motet_labs.figures import Progress, Samples
from motet_labs.processes import Worker, serve, worker

PUBLISHERS, SUBSCRIBERS = "publishers", "subscribers"
"""The two brokers, by the clients connected to them."""
HEARTBEAT_S = 30.0
"""Long, because heartbeats of thousands of connections would be a load of their own."""
ARRIVAL_BOUND_S = 60.0
"""An exactly-once event that has not arrived by then counts as lost."""
DROPPED_BOUND_S = 5.0
"""A best-effort event may never arrive."""
POLL_S = 0.1
MODES = ("best_effort", "exactly_once")


class OverheadEffort(NamedTuple):
    crowds: tuple[int, ...] = (500, 1000, 2000)
    """Numbers of subscribers."""
    rounds: int = 3
    period_s: float = 3.0
    per_s: int = paper5.OVERHEAD_PER_S
    rest_s: float = 1.0
    """After all arrivals: the acknowledgements belong to their period, too."""

    @property
    def groups(self) -> int:
        """Each subscriber wants one group, and so gets the same rate as in the paper."""
        return self.per_s // paper5.SUBSCRIBER_PER_S

    @property
    def expected_s(self) -> float:
        periods = len(self.crowds) * (2 * self.rounds + 1)
        return periods * (self.period_s + self.rest_s) + max(self.crowds) / 300 + 6


class OverheadRow(NamedTuple):
    """One number of subscribers: medians over the rounds, by mode."""

    subscribers: int
    modes: dict[str, dict[str, float]]

    def over_best_effort(self, what: str) -> float:
        return self.modes["exactly_once"][what] - self.modes["best_effort"][what]

    def to_json(self) -> dict[str, Any]:
        difference = {what: self.over_best_effort(what) for what in self.modes["exactly_once"]}
        return {"subscribers": self.subscribers, **self.modes, "difference": difference}


class BareSync(NamedTuple):
    """The cost of making the same amount durable at the same pace, with nothing around it."""

    cpu_points: float
    median_ms: float


class Overhead(NamedTuple):
    effort: OverheadEffort
    sync: BareSync
    rows: tuple[OverheadRow, ...]
    lost: int
    """Exactly-once events that did not arrive."""
    amiss: int
    """Exactly-once events that were duplicates or out of order."""
    dropped: int
    """Best-effort events that did not arrive."""

    def worst(self, what: str) -> float:
        return max(row.over_best_effort(what) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "events_per_s": self.effort.per_s,
            "event_bytes": paper5.OVERHEAD_BYTES,
            "subscriber_events_per_s": paper5.SUBSCRIBER_PER_S,
            "rounds": self.effort.rounds,
            "period_s": self.effort.period_s,
            "bare_sync_cpu_points": round(self.sync.cpu_points, 4),
            "bare_sync_ms": round(self.sync.median_ms, 4),
            "rows": [row.to_json() for row in self.rows],
            "lost": self.lost,
            "amiss": self.amiss,
            "best_effort_dropped": self.dropped,
        }


class OverheadRun:
    """The measurement, in a directory for the brokers' folders."""

    def __init__(self, effort: OverheadEffort, directory: Path, tell: Progress) -> None:
        self._effort = effort
        self._directory = directory
        self._tell = tell
        self._period = 0
        self._missing: Counter[str] = Counter()
        """By mode: events that did not arrive."""
        self._amiss: Counter[str] = Counter()

    async def run(self) -> Overhead:
        at, effort = free_addresses(2), self._effort
        places = (BrokerPlace(PUBLISHERS, at[0], (SUBSCRIBERS,)), BrokerPlace(SUBSCRIBERS, at[1]))
        topology = Topology("overhead", places, heartbeat_s=HEARTBEAT_S, liveness=paper5.LIVENESS)
        self._tell("overhead: the bare disk")
        sync = await asyncio.to_thread(bare_sync, self._directory, effort)
        rows: list[OverheadRow] = []
        async with AsyncExitStack() as stack:
            self._fleet = await stack.enter_async_context(Fleet(topology, self._directory))
            self._crowd = stack.enter_context(worker(subscribers, at[1]))
            self._source = stack.enter_context(worker(publisher, at[0]))
            for count in effort.crowds:
                self._tell(f"overhead: {count:,} subscribers connect")
                await _ask(self._crowd, "join", subscribers=count, groups=effort.groups)
                rows.append(OverheadRow(count, await self._modes(count)))
        lost, amiss = self._missing["exactly_once"], self._amiss["exactly_once"]
        return Overhead(effort, sync, tuple(rows), lost, amiss, self._missing["best_effort"])

    async def _modes(self, crowd: int) -> dict[str, dict[str, float]]:
        """Both modes in turn; the first period warms up and does not count."""
        rounds, period_s = self._effort.rounds, self._effort.period_s
        found = {mode: Samples() for mode in MODES}
        await self._one(crowd, "warm_up", period_s / 2)
        for number in range(1, rounds + 1):
            for mode in MODES:
                name = f"round {number} of {rounds}: {mode.replace('_', ' ')}"
                self._tell(f"overhead: {crowd:,} subscribers, {name}")
                found[mode].add(await self._one(crowd, mode, period_s))
        return {
            mode: {what: round(value, 4) for what, value in samples.medians().items()}
            for mode, samples in found.items()
        }

    async def _one(self, crowd: int, mode: str, seconds: float) -> dict[str, float]:
        """One period."""
        effort, sure = self._effort, mode != "best_effort"
        self._period += 1
        pids = [self._fleet.processes[name].pid for name in (PUBLISHERS, SUBSCRIBERS)]
        before = [cpu_s(pid) for pid in pids]
        machine = machine_s()
        how = {"period": self._period, "per_s": effort.per_s, "seconds": seconds, "sure": sure}
        told = await _ask(self._source, "publish", **how, groups=effort.groups)
        idle_points = idle_between(machine, machine_s())
        published, took_s = told["published"], told["seconds"]
        sizes = group_sizes(published, effort.groups)
        expected = sum(sizes[number % effort.groups] for number in range(crowd))
        local = await self._arrived(self._source, mode, sum(sizes[::LOCAL_SHARE]))
        remote = await self._arrived(self._crowd, mode, expected)
        await asyncio.sleep(effort.rest_s)
        at_publishers, at_subscribers = (
            cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)
        )
        return {
            "publishers_cpu_points": at_publishers / took_s * 100,
            "subscribers_cpu_points": at_subscribers / took_s * 100,
            "publishers_cpu_us": at_publishers / published * 1e6,
            "subscribers_cpu_us": at_subscribers / published * 1e6,
            "local_ms": local["p50_ms"] or 0.0,
            "remote_ms": remote["p50_ms"] or 0.0,
            "remote_p99_ms": remote["p99_ms"] or 0.0,
            "events_per_s": published / took_s,
            "machine_idle_points": idle_points,
        }

    async def _arrived(self, where: Worker, mode: str, expected: int) -> dict[str, Any]:
        """The arrivals of this period, once complete or after a time limit."""
        bound_s = DROPPED_BOUND_S if mode == "best_effort" else ARRIVAL_BOUND_S
        deadline = time.monotonic() + bound_s
        while True:
            found = await _ask(where, "account", period=self._period)
            if found["arrived"] >= expected or time.monotonic() > deadline:
                self._missing[mode] += expected - found["arrived"]
                self._amiss[mode] += found["amiss"]
                return found
            await asyncio.sleep(POLL_S)


async def _ask(worker: Worker, do: str, **details: Any) -> dict[str, Any]:
    return await asyncio.to_thread(worker.ask, do, **details)


def bare_sync(directory: Path, effort: OverheadEffort) -> BareSync:
    """Write and sync a file at the pace at which the publisher sends events to its broker."""
    size_bytes = max(1, round(effort.per_s * PULSE_S)) * paper5.OVERHEAD_BYTES
    began, cpu = time.monotonic(), time.thread_time()
    times = floor.fsyncs(directory, round(effort.period_s / PULSE_S), size_bytes, 1 / PULSE_S)
    spent_s, took_s = time.thread_time() - cpu, time.monotonic() - began
    return BareSync(spent_s / took_s * 100, median(times) * 1e3)


def machine_s() -> tuple[float, float]:
    """Over all cores, since the machine was started: seconds idle, and seconds in total."""
    times = psutil.cpu_times()
    return times.idle + getattr(times, "iowait", 0.0), sum(times[:8])


def idle_between(before: tuple[float, float], after: tuple[float, float]) -> float:
    """In per cent; 0 if unknown."""
    passed = after[1] - before[1]
    return (after[0] - before[0]) / passed * 100 if passed else 0.0


def group_sizes(events: int, groups: int) -> list[int]:
    """How many of these events each group gets."""
    return [events // groups + (number < events % groups) for number in range(groups)]


# ── in the processes of the clients ──────────────────────────────────────────────────────

PULSE_S = 0.002
"""How long a publisher sleeps before it publishes what is due."""
LOCAL_SHARE = 50
"""One group in this many is also wanted at the publishers' own broker."""
TOGETHER = 64
"""Clients that connect at the same time."""
PATIENCE_S = 60.0


class Latencies:
    """By period, in milliseconds; an event counts once per subscriber."""

    def __init__(self) -> None:
        self._by_period: defaultdict[int, list[float]] = defaultdict(list)
        self._amiss: Counter[int] = Counter()

    def listener(self) -> Callable[[Event], None]:
        """A callback for one subscriber, which records arrivals and detects duplicates."""
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

    async def account(self, period: int) -> dict[str, Any]:
        times = sorted(self._by_period[period])
        return {
            "arrived": len(times),
            "amiss": self._amiss[period],
            "p50_ms": median(times) if times else None,
            "p99_ms": times[len(times) * 99 // 100] if times else None,
        }


class PulsePublisher:
    """One publisher, and a subscriber beside it at the same broker."""

    def __init__(self, client: Client, latencies: Latencies) -> None:
        self._client = client
        self.account = latencies.account

    async def publish(
        self, period: int, per_s: float, seconds: float, sure: bool, groups: int
    ) -> dict[str, Any]:
        event: dict[str, int | float]
        event = {"group": groups, "period": period, "sent": 0.5, "aside": 0}
        payload = padding(event, paper5.OVERHEAD_BYTES)
        made, began = 0, time.monotonic()
        while (elapsed_s := time.monotonic() - began) < seconds:
            due = int(min(elapsed_s + PULSE_S, seconds) * per_s)
            while made < due:
                group, aside = made % groups, int(made % groups % LOCAL_SHARE == 0)
                sent = time.monotonic()
                event = {"group": group, "period": period, "sent": sent, "aside": aside}
                await self._client.send(event, payload, best_effort=not sure)
                made += 1
            await asyncio.sleep(PULSE_S)
        published_s = time.monotonic() - began
        await self._client.flush()
        return {"published": made, "seconds": published_s}


class Crowd:
    """Subscribers with one connection each; each wants one group."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._latencies = Latencies()
        self._clients: list[Client] = []
        self.account = self._latencies.account

    async def join(self, subscribers: int, groups: int) -> None:
        """Add subscribers until there are this many."""
        for first in range(len(self._clients), subscribers, TOGETHER):
            numbers = range(first, min(first + TOGETHER, subscribers))
            self._clients += await asyncio.gather(*(self._one(each, groups) for each in numbers))
        settle_memory()

    async def _one(self, number: int, groups: int) -> Client:
        client = await connect(self._url, client_id=f"crowd-{number}", connect_timeout=PATIENCE_S)
        listener = self._latencies.listener()
        wanted = f"group = {number % groups}"
        await client.subscribe(wanted, callback=listener, timeout=PATIENCE_S)
        return client


async def publisher(url: str) -> None:
    latencies = Latencies()
    async with (
        connect(url, client_id="overhead-publisher", connect_timeout=PATIENCE_S) as client,
        connect(url, client_id="overhead-aside", connect_timeout=PATIENCE_S) as aside,
    ):
        await client.advertise("group >= 0", timeout=PATIENCE_S)
        await aside.subscribe("aside = 1", callback=latencies.listener(), timeout=PATIENCE_S)
        settle_memory()
        await serve(PulsePublisher(client, latencies))


async def subscribers(url: str) -> None:
    """They do not disconnect properly: their brokers are about to end, and thousands of farewells
    would only take time."""
    take_all_descriptors()
    await serve(Crowd(url))
