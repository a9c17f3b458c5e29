"""What exactly once costs beside best effort: CPU of both brokers, and latency (section 4.1).

Two brokers with their journals and logs on disk: publishers at one, subscribers at the other, and
one subscriber beside the publishers for the local latency. Periods of best effort and of exactly
once take turns in the same overlay with the same subscribers; then there are more subscribers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from motet.bench.stand import cpu_s
from motet.broker.topology import BrokerPlace, Topology
from motet.chaos.fleet import free_ports
from motet.errors import UnavailableError
from motet.experiments import paper
from motet.experiments.load import LOCAL_SHARE, PULSE_S
from motet.experiments.overlay import Overlay
from motet.runtime.tcp import address_of

PUBLISHERS, SUBSCRIBERS = "publishers", "subscribers"
"""The two brokers, by who is connected to them."""
HEARTBEAT_S = 30.0
"""Seldom: the beats of thousands of connections would be a load of their own."""
ARRIVAL_BOUND_S = 60.0
"""An exactly-once event that has not come by then counts as lost."""
DROPPED_BOUND_S = 5.0
"""A best-effort one may never come."""
POLL_S = 0.1
MODES = {"best_effort": False, "exactly_once": True}

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    crowds: tuple[int, ...] = (500, 1000, 2000)
    """Numbers of subscribers."""
    rounds: int = 4
    period_s: float = 3.0
    per_s: int = paper.OVERHEAD_PER_S
    rest_s: float = 1.0
    """After everything has come: the acknowledgements belong to their period, too."""

    @property
    def groups(self) -> int:
        """Each subscriber wants one of them, so that it gets as much as the paper's."""
        return self.per_s // paper.SUBSCRIBER_PER_S

    @property
    def expected_s(self) -> float:
        periods = len(self.crowds) * (2 * self.rounds + 1)
        return periods * (self.period_s + self.rest_s) + max(self.crowds) / 300 + 6


@dataclass(frozen=True)
class Period:
    """What was measured in one period."""

    publishers_cpu_s: float
    subscribers_cpu_s: float
    seconds: float
    published: int
    expected: int
    arrived: int
    local_expected: int
    local_arrived: int
    amiss: int
    """Events that came again, or behind later ones."""
    local_ms: float
    remote_ms: float
    remote_p99_ms: float
    idle_points: float
    """How much of the machine nobody used: without it, latencies are those of a queue for it."""


@dataclass(frozen=True)
class Row:
    """One number of subscribers: medians over the rounds, by mode."""

    subscribers: int
    modes: dict[str, dict[str, float]]

    def over_best_effort(self, what: str) -> float:
        return self.modes["exactly_once"][what] - self.modes["best_effort"][what]

    def to_json(self) -> dict[str, Any]:
        difference = {what: self.over_best_effort(what) for what in self.modes["exactly_once"]}
        return {"subscribers": self.subscribers, **self.modes, "difference": difference}


@dataclass(frozen=True)
class BareSync:
    """What the machine asks for making as much durable as often, with nothing around it."""

    cpu_points: float
    median_ms: float


@dataclass(frozen=True)
class Overhead:
    effort: Effort
    sync: BareSync
    rows: tuple[Row, ...]
    lost: int
    """Exactly-once events that did not arrive."""
    amiss: int
    """Exactly-once events that came again, or behind later ones."""
    dropped: int
    """Best-effort events that did not arrive."""

    def worst(self, what: str) -> float:
        return max(row.over_best_effort(what) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "events_per_s": self.effort.per_s,
            "event_bytes": paper.OVERHEAD_BYTES,
            "subscriber_events_per_s": paper.SUBSCRIBER_PER_S,
            "rounds": self.effort.rounds,
            "period_s": self.effort.period_s,
            "bare_sync_cpu_points": round(self.sync.cpu_points, 4),
            "bare_sync_ms": round(self.sync.median_ms, 4),
            "rows": [row.to_json() for row in self.rows],
            "lost": self.lost,
            "amiss": self.amiss,
            "best_effort_dropped": self.dropped,
        }


class Worker:
    """A process of `motet.experiments.load`: one question, one answer."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise UnavailableError("a load generator of the experiment ended; see above why")
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def worker(kind: str, url: str) -> AsyncIterator[Worker]:
    command = (sys.executable, "-m", "motet.experiments.load", kind, url)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        yield Worker(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Measuring:
    def __init__(self, effort: Effort, directory: Path, tell: Tell) -> None:
        self._effort = effort
        self._directory = directory
        self._tell = tell
        self._period = 0

    async def run(self) -> Overhead:
        ports = free_ports(2)
        places = (
            BrokerPlace(PUBLISHERS, address_of(paper.HOST, ports[0]), (SUBSCRIBERS,)),
            BrokerPlace(SUBSCRIBERS, address_of(paper.HOST, ports[1])),
        )
        topology = Topology("overhead", places, heartbeat_s=HEARTBEAT_S, liveness=paper.LIVENESS)
        self._tell("overhead: the bare disk")
        sync = await asyncio.to_thread(bare_sync, self._directory, self._effort)
        rows: list[Row] = []
        lost = amiss = dropped = 0
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self._overlay = await enter(Overlay(topology, self._directory))
            self._crowd = await enter(worker("subscribers", self._overlay.address(SUBSCRIBERS)))
            self._source = await enter(worker("publisher", self._overlay.address(PUBLISHERS)))
            for count in self._effort.crowds:
                self._tell(f"overhead: {count:,} subscribers connect")
                await self._crowd.ask(subscribers=count, groups=self._effort.groups)
                periods = await self._measure(count)
                rows.append(Row(count, {mode: _medians(periods[mode]) for mode in MODES}))
                lost += sum(map(_missing, periods["exactly_once"]))
                amiss += sum(period.amiss for period in periods["exactly_once"])
                dropped += sum(map(_missing, periods["best_effort"]))
        return Overhead(self._effort, sync, tuple(rows), lost, amiss, dropped)

    async def _measure(self, crowd: int) -> dict[str, list[Period]]:
        """Both modes in turn; the first period warms up and does not count."""
        effort = self._effort
        found: dict[str, list[Period]] = {mode: [] for mode in MODES}
        await self._one(crowd, True, effort.period_s / 2)
        for number in range(1, effort.rounds + 1):
            for mode, sure in MODES.items():
                name = mode.replace("_", " ")
                self._tell(
                    f"overhead: {crowd:,} subscribers, round {number} of {effort.rounds}: {name}"
                )
                found[mode].append(await self._one(crowd, sure, effort.period_s))
        return found

    async def _one(self, crowd: int, sure: bool, seconds: float) -> Period:
        effort = self._effort
        self._period += 1
        pids = [self._overlay.brokers[name].pid for name in (PUBLISHERS, SUBSCRIBERS)]
        before = [cpu_s(pid) for pid in pids]
        machine = machine_s()
        told = await self._source.ask(
            period=self._period,
            per_s=effort.per_s,
            seconds=seconds,
            sure=sure,
            groups=effort.groups,
            size_bytes=paper.OVERHEAD_BYTES,
        )
        idle_points = idle_between(machine, machine_s())
        sizes = group_sizes(told["published"], effort.groups)
        expected = sum(sizes[number % effort.groups] for number in range(crowd))
        local_expected = sum(sizes[::LOCAL_SHARE])
        bound_s = ARRIVAL_BOUND_S if sure else DROPPED_BOUND_S
        local = await self._arrived(self._source, local_expected, bound_s)
        remote = await self._arrived(self._crowd, expected, bound_s)
        await asyncio.sleep(effort.rest_s)
        spent = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
        return Period(
            publishers_cpu_s=spent[0],
            subscribers_cpu_s=spent[1],
            seconds=told["seconds"],
            published=told["published"],
            expected=expected,
            arrived=remote["arrived"],
            local_expected=local_expected,
            local_arrived=local["arrived"],
            amiss=local["amiss"] + remote["amiss"],
            local_ms=local["p50_ms"] or 0.0,
            remote_ms=remote["p50_ms"] or 0.0,
            remote_p99_ms=remote["p99_ms"] or 0.0,
            idle_points=idle_points,
        )

    async def _arrived(self, where: Worker, expected: int, bound_s: float) -> dict[str, Any]:
        """What came of this period, when all of it has, or nobody waits any longer."""
        deadline = time.monotonic() + bound_s
        while True:
            found = await where.ask(account=self._period)
            if found["arrived"] >= expected or time.monotonic() > deadline:
                return found
            await asyncio.sleep(POLL_S)


def bare_sync(directory: Path, effort: Effort) -> BareSync:
    """Write and sync a file at the pace at which the publisher gives its broker events."""
    record = bytes(max(1, round(effort.per_s * PULSE_S)) * paper.OVERHEAD_BYTES)
    times: list[float] = []
    file = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT)
    try:
        began, cpu = time.monotonic(), time.thread_time()
        while (now := time.monotonic()) - began < effort.period_s:
            os.write(file, record)
            os.fsync(file)
            times.append(time.monotonic() - now)
            time.sleep(max(0.0, PULSE_S - times[-1]))
        spent_s, took_s = time.thread_time() - cpu, time.monotonic() - began
    finally:
        os.close(file)
    return BareSync(spent_s / took_s * 100, median(times) * 1e3)


def machine_s() -> tuple[float, float]:
    """Of all cores, since the machine was started: seconds idle, and seconds."""
    try:
        line = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:  # not on this platform
        return 0.0, 0.0
    ticks = [int(word) for word in line.split()[1:9]]
    return float(ticks[3] + ticks[4]), float(sum(ticks))


def idle_between(before: tuple[float, float], after: tuple[float, float]) -> float:
    """In per cent; 0 if it cannot be known."""
    passed = after[1] - before[1]
    return (after[0] - before[0]) / passed * 100 if passed else 0.0


def group_sizes(events: int, groups: int) -> list[int]:
    """How many of so many events each group gets."""
    return [events // groups + (number < events % groups) for number in range(groups)]


def _missing(period: Period) -> int:
    return (period.expected - period.arrived) + (period.local_expected - period.local_arrived)


def _medians(periods: list[Period]) -> dict[str, float]:
    def middle(of: Callable[[Period], float]) -> float:
        return round(median(map(of, periods)), 4)

    return {
        "publishers_cpu_points": middle(lambda p: p.publishers_cpu_s / p.seconds * 100),
        "subscribers_cpu_points": middle(lambda p: p.subscribers_cpu_s / p.seconds * 100),
        "publishers_cpu_us": middle(lambda p: p.publishers_cpu_s / p.published * 1e6),
        "subscribers_cpu_us": middle(lambda p: p.subscribers_cpu_s / p.published * 1e6),
        "local_ms": middle(lambda p: p.local_ms),
        "remote_ms": middle(lambda p: p.remote_ms),
        "remote_p99_ms": middle(lambda p: p.remote_p99_ms),
        "events_per_s": middle(lambda p: p.published / p.seconds),
        "machine_idle_points": middle(lambda p: p.idle_points),
    }
