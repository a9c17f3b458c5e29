"""The log of a pubend: appending beside a bare file, sealing, and catching up.

Events have 142 bytes, as in the experiments of paper 5, and come in runs of 64 from several
publishers in turn. Catching up reads a sealed backlog as a broker does for a late reader: batch
by batch, without looking at any event, each batch encoded and sent to another process. Readings
with and without a filter alternate, and of each the one counts that was disturbed least.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

import msgspec
from msgspec import Raw

from motet.bench.figures import Figure, Progress
from motet.model import Event, Filter, Value
from motet.runtime.loop import run
from motet.runtime.pubend import Batch, PubendLog

EVENT_BYTES = 142
RUN_EVENTS = 64
RUNS_PER_GROUP = 8
PUBLISHERS = tuple(f"publisher-{number}" for number in range(16))
GROUPS_PER_ROUND = 20
SHARE = 100
"""The filter keeps one event in so many."""

LEAST_RATIO = 0.6
LEAST_READ = 400_000
LEAST_SPEEDUP = 3
MOST_PAUSE_MS = 20
TICK_S = 0.001
QUIET_S = 2.0

READER = """
import socket
stream, room = socket.socket(fileno=0), bytearray(1 << 20)
while stream.recv_into(room):
    pass
"""
"""Takes everything in, in a process of its own."""


@dataclass(frozen=True)
class Effort:
    rounds: int
    backlog_events: int
    readings: int


SHORT = Effort(rounds=8, backlog_events=400_000, readings=10)
LONG = Effort(rounds=40, backlog_events=2_000_000, readings=15)


def measure(short: bool = True, progress: Progress = lambda _: None) -> list[Figure]:
    effort = SHORT if short else LONG
    with tempfile.TemporaryDirectory(prefix="motet-bench-") as name:
        return run(_measure(Path(name), effort, progress))


async def _measure(folder: Path, effort: Effort, progress: Progress) -> list[Figure]:
    progress(f"the log of a pubend: {effort.rounds} rounds of {GROUPS_PER_ROUND} fsynced groups")
    figures = await measure_appending(folder / "append", effort)
    progress(f"sealing a backlog of {effort.backlog_events} events")
    pubend, sealing = await measure_sealing(folder / "backlog", effort)
    progress("catching up with it, all of it and one in a hundred")
    catching_up = measure_catching_up(pubend, effort)
    await pubend.close()
    return [*figures, *sealing, *catching_up]


# ── appending ────────────────────────────────────────────────────────────────────────────


async def measure_appending(folder: Path, effort: Effort) -> list[Figure]:
    pubend = PubendLog.open(folder, "bench/0")
    bare = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    runs = list(islice(sample_runs(), RUNS_PER_GROUP))
    logged_s, bare_s, cpu_s = [], [], []
    try:
        for _ in range(effort.rounds):
            cpu = time.thread_time()
            logged_s.append(await _time_log(pubend, runs))
            cpu_s.append((time.thread_time() - cpu) / GROUPS_PER_ROUND)
            bare_s.append(_time_bare(bare, runs))
    finally:
        os.close(bare)
        await pubend.close()
    group = RUN_EVENTS * RUNS_PER_GROUP
    floor = group / median(bare_s)
    return [
        Figure(
            f"pubend: {EVENT_BYTES}-byte events, runs of {RUN_EVENTS}, fsynced groups of {group}",
            group / median(logged_s),
            "events/s",
            floor,
            LEAST_RATIO * floor,
            "at least",
        ),
        Figure("pubend: CPU of the event loop per event", median(cpu_s) / group * 1e6, "µs"),
    ]


async def _time_log(pubend: PubendLog, runs: list[list[Raw]]) -> float:
    """Seconds per group: one is being synced, and at most one waits behind it."""
    grown = asyncio.Event()
    pubend.watch(grown.set, _fail)
    waiting: list[int] = []
    began = time.perf_counter()
    for _ in range(GROUPS_PER_ROUND):
        for bodies, publisher in zip(runs, PUBLISHERS, strict=False):
            sequence = pubend.published(publisher, "e1") + 1
            position = pubend.append_run(pubend.last_tick + 1, publisher, "e1", sequence, bodies)
        waiting.append(position)
        while len(waiting) > 1 and pubend.durable < waiting[-2]:
            grown.clear()
            await grown.wait()
    while pubend.durable < waiting[-1]:
        grown.clear()
        await grown.wait()
    return (time.perf_counter() - began) / GROUPS_PER_ROUND


def _fail(error: Exception) -> None:
    raise error


def _time_bare(file: int, runs: list[list[Raw]]) -> float:
    """Seconds per group."""
    began = time.perf_counter()
    for _ in range(GROUPS_PER_ROUND):
        os.write(file, b"".join([each for bodies in runs for each in bodies]))
        os.fdatasync(file)
    return (time.perf_counter() - began) / GROUPS_PER_ROUND


def sample_runs() -> Iterator[list[Raw]]:
    """Runs of events without end; one event in `SHARE` has `rare` at zero."""
    random = Random(7)
    words = [f"sensor-{number:03d}" for number in range(200)]
    step = 0
    while True:
        bodies = []
        for _ in range(RUN_EVENTS):
            step += 1
            attributes: dict[str, Value] = {
                "sensor": random.choice(words),
                "step": step,
                "level": random.random(),
                "rare": random.randrange(SHARE),
            }
            bare = len(Event(attributes, b"").encode())
            payload = random.randbytes(max(EVENT_BYTES - bare, 0))
            bodies.append(Raw(Event(attributes, payload).encode()))
        yield bodies


# ── sealing ──────────────────────────────────────────────────────────────────────────────


async def measure_sealing(folder: Path, effort: Effort) -> tuple[PubendLog, list[Figure]]:
    """The backlog, sealed, and how fast that was, and how long it kept the event loop waiting."""
    pubend = PubendLog.open(folder, "bench/0")
    left = effort.backlog_events
    for bodies, publisher in zip(sample_runs(), cycle(PUBLISHERS), strict=False):
        first = pubend.published(publisher, "e1") + 1
        pubend.append_run(pubend.last_tick + 1, publisher, "e1", first, bodies)
        left -= len(bodies)
        if left <= 0:
            break
    pubend.roll()
    position = pubend.appended
    while pubend.durable < position:
        await asyncio.sleep(TICK_S)
    quiet = await _longest_pause(asyncio.create_task(asyncio.sleep(QUIET_S)))
    began = time.perf_counter()
    pause = await _longest_pause(asyncio.create_task(pubend.seal()))
    elapsed_s = time.perf_counter() - began
    return pubend, [
        Figure("pubend: sealing, in the background", pubend.last_tick / elapsed_s, "events/s"),
        Figure(
            "pubend: longest time the event loop spends on sealing at once",
            pause.busy_s * 1e3,
            "ms",
            goal=MOST_PAUSE_MS,
        ),
        Figure(
            "pubend: longest pause of the event loop meanwhile (floor: without)",
            pause.late_s * 1e3,
            "ms",
            quiet.late_s * 1e3,
        ),
    ]


class Pause(NamedTuple):
    late_s: float
    """How late a timer was at worst, which on a busy machine may be the fault of others."""
    busy_s: float
    """How much the event loop did at most between two of its turns."""


async def _longest_pause(task: asyncio.Task[object]) -> Pause:
    """While something goes on, how long does the event loop hear of nothing else?"""
    late_s = busy_s = 0.0
    while not task.done():
        before, worked = time.perf_counter(), time.thread_time()
        await asyncio.sleep(TICK_S)
        late_s = max(late_s, time.perf_counter() - before - TICK_S)
        busy_s = max(busy_s, time.thread_time() - worked)
    await task
    return Pause(late_s, busy_s)


# ── catching up ──────────────────────────────────────────────────────────────────────────


def measure_catching_up(pubend: PubendLog, effort: Effort) -> list[Figure]:
    filter = Filter.parse("rare = 0")
    ours, theirs = socket.socketpair()
    reader = subprocess.Popen([sys.executable, "-c", READER], stdin=theirs.fileno())
    theirs.close()
    try:
        _time_reading(pubend, filter, ours)  # imports what it needs
        alone_s, whole_s, filtered_s = [], [], []
        for _ in range(effort.readings):
            alone_s.append(_time_reading(pubend, None, None))
            whole_s.append(_time_reading(pubend, None, ours))
            filtered_s.append(_time_reading(pubend, filter, ours))
    finally:
        ours.close()
        reader.wait()
    events = pubend.last_tick
    unfiltered = events / min(whole_s)
    return [
        Figure(
            "pubend: reading a sealed backlog, sent to nobody", events / min(alone_s), "events/s"
        ),
        Figure(
            "pubend: catching up with a sealed backlog, unfiltered",
            unfiltered,
            "events/s",
            goal=LEAST_READ,
            sense="at least",
        ),
        Figure(
            f"pubend: catching up with one event in {SHARE} of it (floor: unfiltered)",
            events / min(filtered_s),
            "events/s",
            unfiltered,
            LEAST_SPEEDUP * unfiltered,
            "at least",
        ),
    ]


def _time_reading(pubend: PubendLog, filter: Filter | None, reader: socket.socket | None) -> float:
    encode = msgspec.msgpack.Encoder().encode
    began = time.perf_counter()
    scanned = events = 0
    for batch in pubend.read(1, filter=filter):
        assert isinstance(batch, Batch)
        scanned += batch.scanned
        events += batch.events
        if reader is not None:
            reader.sendall(encode(batch.records))
    elapsed_s = time.perf_counter() - began
    assert scanned == pubend.last_tick
    assert filter is not None or events == scanned
    assert events > 0
    return elapsed_s
