"""Logs beside bare files that are written and synced the same way; sealing; and late readers.

Appending takes rounds of groups, each written at once and synced. A log is driven as in a broker:
by an event loop that prepares one group while the previous one is being synced. Rounds of both
sides alternate, and their median is reported.

Catching up reads a sealed backlog as a broker does for a late reader: batch by batch, without
decoding events; each batch is encoded and sent to another process. Over TCP, one reader reads from
a broker, as Arrow; that backlog is sealed before the broker starts, so that only reading is
measured. Readings of each kind alternate, and the fastest of each kind counts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from motet.broker.driver.service import PUBEND
from motet.broker.folder.recovery import open_folder
from motet.client.logs.reader import open_log
from motet.fleet.process import BrokerProcess, cpu_s
from motet.model import Filter
from motet.protocol.config import BrokerConfig
from motet.runtime.log import FileLog
from motet.runtime.loop import run as run_loop
from motet.runtime.pubend import EventBatch, PubendLog
from motet_labs import processes
from motet_labs.bench import workload
from motet_labs.bench.workload import EVENT_BYTES, PUBLISHERS, RARE, RUN_EVENTS, SHARE
from motet_labs.figures import Figure, Progress, Size

RECORD_BYTES = 300
GROUP = 500
RUNS_PER_GROUP = 8
GROUPS_PER_ROUND = 20

LEAST_RATIO = 0.6
LEAST_READ = 400_000
LEAST_SPEEDUP = 3
MOST_PAUSE_MS = 20
TICK_S = 0.001
QUIET_S = 2.0


class LogEffort(NamedTuple):
    rounds: int
    reads: int
    pubend_rounds: int
    backlog: int
    """Number of events."""
    readings: int
    tcp_readings: int


EFFORTS = {
    Size.LEAST: LogEffort(1, 1, 1, backlog=5_000, readings=1, tcp_readings=1),
    Size.SHORT: LogEffort(10, 3, 8, backlog=400_000, readings=10, tcp_readings=5),
    Size.LONG: LogEffort(40, 9, 40, backlog=2_000_000, readings=15, tcp_readings=5),
}


def run(size: Size, progress: Progress) -> list[Figure]:
    """All figures of a pubend's log."""
    effort = EFFORTS[size]
    with processes.folder() as folder:
        return run_loop(_measure(folder, effort, progress))


async def _measure(folder: Path, effort: LogEffort, progress: Progress) -> list[Figure]:
    rounds, backlog = effort.pubend_rounds, effort.backlog
    progress(f"the log of a pubend: {rounds} rounds of {GROUPS_PER_ROUND} fsynced groups")
    figures = await _appending(folder / "append", rounds)
    progress(f"sealing a backlog of {backlog} events")
    pubend = PubendLog.open(folder / "backlog", "bench/0")
    await append_runs(pubend, backlog, workload.runs())
    figures += await _sealing(pubend)
    progress("catching up with it, all of it and one in a hundred")
    figures += _catching_up(pubend, effort.readings)
    await pubend.close()
    return figures


# ── appending ────────────────────────────────────────────────────────────────────────────


async def _times(
    log: FileLog | PubendLog, append: Callable[[], object], bare: Path, group: bytes, rounds: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds per group, of the log and of a bare file, by round; and the CPU time of this thread
    for the log."""
    file = os.open(bare, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    logged_s, bare_s, thread_s = [], [], []
    try:
        for _ in range(rounds):
            cpu = time.thread_time()
            logged_s.append(await _time_log(log, append))
            thread_s.append((time.thread_time() - cpu) / GROUPS_PER_ROUND)
            bare_s.append(_time_bare(file, group))
    finally:
        os.close(file)
    return logged_s, bare_s, thread_s


async def _time_log(log: FileLog | PubendLog, append: Callable[[], object]) -> float:
    """Seconds per group: one is being synced, and at most one waits behind it."""
    grown = asyncio.Event()
    log.watch(grown.set, _fail)

    async def until_durable(position: int) -> None:
        while log.durable < position:
            grown.clear()
            await grown.wait()

    began, before = time.perf_counter(), 0
    for _ in range(GROUPS_PER_ROUND):
        append()
        await until_durable(before)
        before = log.appended
    await until_durable(before)
    return (time.perf_counter() - began) / GROUPS_PER_ROUND


def _fail(error: Exception) -> None:
    raise error


def _time_bare(file: int, group: bytes) -> float:
    """Seconds per group."""
    began = time.perf_counter()
    for _ in range(GROUPS_PER_ROUND):
        os.write(file, group)
        os.fdatasync(file)
    return (time.perf_counter() - began) / GROUPS_PER_ROUND


def measure_log(size: Size, progress: Progress) -> list[Figure]:
    """The log that journals are written with."""
    effort = EFFORTS[size]
    progress(f"the log: {effort.rounds} rounds of {GROUPS_PER_ROUND} fsynced groups")
    with processes.folder() as folder:
        return run_loop(_measure_log(folder, effort))


async def _measure_log(folder: Path, effort: LogEffort) -> list[Figure]:
    payloads = [os.urandom(RECORD_BYTES) for _ in range(GROUP)]
    log = FileLog.open(folder / "log", purpose="bench", version=1)
    group, bare = b"".join(payloads), folder / "bare"
    logged_s, bare_s, _ = await _times(
        log, lambda: log.append(payloads), bare, group, effort.rounds
    )
    file = os.open(bare, os.O_WRONLY | os.O_APPEND)
    single_s = [_time_bare(file, payloads[0]) for _ in range(effort.rounds)]
    os.close(file)
    reading_s = min(_time_verified(log) for _ in range(effort.reads))
    await log.close()
    floor = GROUP / median(bare_s)
    return [
        Figure(f"log: {RECORD_BYTES}-byte records in fsynced groups of {GROUP}",
               GROUP / median(logged_s), "records/s", floor, LEAST_RATIO * floor, "at least"),
        Figure(f"fsyncs of this run, {GROUP} records each", 1 / median(bare_s), "fsyncs/s"),
        Figure("fsyncs of this run, one record each", 1 / median(single_s), "fsyncs/s"),
        Figure("log: reading back, verified", log.appended / reading_s, "records/s"),
    ]  # fmt: skip


def _time_verified(log: FileLog) -> float:
    began = time.perf_counter()
    count = sum(1 for _ in log.read(1))
    assert count == log.appended
    return time.perf_counter() - began


async def _appending(folder: Path, rounds: int) -> list[Figure]:
    pubend = PubendLog.open(folder, "bench/0")
    runs = list(islice(workload.runs(), RUNS_PER_GROUP))

    def append() -> None:
        for bodies, publisher in zip(runs, PUBLISHERS, strict=False):
            _append(pubend, publisher, bodies)

    joined = b"".join([each for bodies in runs for each in bodies])
    logged_s, bare_s, thread_s = await _times(pubend, append, folder / "bare", joined, rounds)
    await pubend.close()
    group = RUN_EVENTS * RUNS_PER_GROUP
    floor = group / median(bare_s)
    return [
        Figure(
            f"pubend: {EVENT_BYTES}-byte events, runs of {RUN_EVENTS}, fsynced groups of {group}",
            group / median(logged_s), "events/s", floor, LEAST_RATIO * floor, "at least",
        ),
        Figure("pubend: CPU of the event loop per event", median(thread_s) / group * 1e6, "µs"),
    ]  # fmt: skip


def _append(pubend: PubendLog, publisher: str, bodies: list[Raw]) -> None:
    first = pubend.state.last_published(publisher, "e1") + 1
    pubend.append_run(pubend.last_tick + 1, publisher, "e1", first, bodies)


# ── sealing ──────────────────────────────────────────────────────────────────────────────


async def append_runs(pubend: PubendLog, events: int, runs: Iterable[list[Raw]]) -> None:
    """Append this many events durably, in files that can be sealed."""
    left = events
    for bodies, publisher in zip(runs, cycle(PUBLISHERS), strict=False):
        _append(pubend, publisher, bodies[:left])
        left -= len(bodies)
        if left <= 0:
            break
    pubend.roll()
    position = pubend.appended
    while pubend.durable < position:
        await asyncio.sleep(TICK_S)


async def fill(folder: Path, events: int, runs: Iterable[list[Raw]]) -> None:
    """Create the folder of a broker whose pubend has this many events of these runs, all sealed."""
    core, journal, _ = open_folder(BrokerConfig("B1", root="B1"), folder)
    name = f"B1.{core.config.incarnation}"
    await journal.close()
    log = PubendLog.open(folder / PUBEND, name)
    await append_runs(log, events, runs)
    await log.seal()
    await log.close()


async def _sealing(pubend: PubendLog) -> list[Figure]:
    """The rate of sealing, and how long it blocks the event loop."""
    quiet = await longest_pause(asyncio.create_task(asyncio.sleep(QUIET_S)))
    began = time.perf_counter()
    pause = await longest_pause(asyncio.create_task(pubend.seal()))
    rate = pubend.last_tick / (time.perf_counter() - began)
    return [
        Figure("pubend: sealing, in the background", rate, "events/s"),
        Figure("pubend: longest time the event loop spends on sealing at once",
               pause.busy_s * 1e3, "ms", goal=MOST_PAUSE_MS),
        Figure("pubend: longest pause of the event loop meanwhile (floor: without)",
               pause.late_s * 1e3, "ms", quiet.late_s * 1e3),
    ]  # fmt: skip


class Pause(NamedTuple):
    late_s: float
    """Maximum delay of a timer; on a busy machine, other processes may be the cause."""
    busy_s: float
    """Maximum CPU time of the loop's thread between two of its turns."""


async def longest_pause(task: asyncio.Task[Any]) -> Pause:
    """The longest time that the event loop is blocked while a task runs."""
    late_s = busy_s = 0.0
    while not task.done():
        before, worked = time.perf_counter(), time.thread_time()
        await asyncio.sleep(TICK_S)
        late_s = max(late_s, time.perf_counter() - before - TICK_S)
        busy_s = max(busy_s, time.thread_time() - worked)
    await task
    return Pause(late_s, busy_s)


# ── catching up ──────────────────────────────────────────────────────────────────────────

READER = """
import socket
stream, room = socket.socket(fileno=0), bytearray(1 << 20)
while stream.recv_into(room):
    pass
"""
"""Reads and discards everything, in a process of its own."""


def _catching_up(pubend: PubendLog, readings: int) -> list[Figure]:
    rare = Filter.parse(RARE)
    ours, theirs = socket.socketpair()
    reader = subprocess.Popen([sys.executable, "-c", READER], stdin=theirs.fileno())
    theirs.close()
    try:
        _time_reading(pubend, rare, ours)  # warm-up: imports modules
        alone_s, whole_s, filtered_s = [], [], []
        for _ in range(readings):
            alone_s.append(_time_reading(pubend, None, None))
            whole_s.append(_time_reading(pubend, None, ours))
            filtered_s.append(_time_reading(pubend, rare, ours))
    finally:
        ours.close()
        reader.wait()
    alone, whole, filtered = (pubend.last_tick / min(s) for s in (alone_s, whole_s, filtered_s))
    return [
        Figure("pubend: reading a sealed backlog, without sending it", alone, "events/s"),
        Figure("pubend: catching up with a sealed backlog, unfiltered",
               whole, "events/s", goal=LEAST_READ, sense="at least"),
        Figure(f"pubend: catching up with one event in {SHARE} of it (floor: unfiltered)",
               filtered, "events/s", whole, LEAST_SPEEDUP * whole, "at least"),
    ]  # fmt: skip


def _time_reading(pubend: PubendLog, filter: Filter | None, reader: socket.socket | None) -> float:
    encode = msgspec.msgpack.Encoder().encode
    began = time.perf_counter()
    scanned = events = 0
    for batch in pubend.read(1, filter=filter):
        assert isinstance(batch, EventBatch)
        scanned += batch.scanned
        events += batch.events
        if reader is not None:
            reader.sendall(encode(batch.records))
    elapsed_s = time.perf_counter() - began
    assert scanned == pubend.last_tick
    assert filter is not None or events == scanned
    assert events > 0
    return elapsed_s


# ── reading over TCP ─────────────────────────────────────────────────────────────────────

TWO_COLUMNS = ["tick", "sensor:text", "level:float"]
KINDS: dict[str, dict[str, Any]] = {
    "all": {},
    "one in a hundred": {"filter": RARE},
    "two columns of all": {"columns": TWO_COLUMNS},
    "two columns of one in a hundred": {"filter": RARE, "columns": TWO_COLUMNS},
}


def measure_readers(size: Size, progress: Progress) -> list[Figure]:
    effort = EFFORTS[size]
    progress(f"reading a sealed backlog of {effort.backlog} events over TCP")
    with processes.folder() as folder:
        run_loop(fill(folder / "B1", effort.backlog, workload.runs()))
        with processes.broker("B1", data=folder / "B1") as broker:
            found, cpu_us = run_loop(_read_all(broker, effort.backlog, effort.tcp_readings))
    whole, rare = found["all"], found["one in a hundred"]
    return [
        Figure(f"reading over TCP: {EVENT_BYTES}-byte events, sealed, one reader, all",
               whole, "events/s", goal=LEAST_READ, sense="at least"),
        Figure(f"reading over TCP: one event in {SHARE} (floor: all)",
               rare, "events/s", whole, LEAST_SPEEDUP * whole, "at least"),
        *(
            Figure(f"reading over TCP: {kind} (floor: all)", found[kind], "events/s", whole)
            for kind in list(KINDS)[2:]
        ),
        Figure("reading over TCP: CPU of the broker per event, all", cpu_us, "µs"),
    ]  # fmt: skip


async def _read_all(
    broker: BrokerProcess, events: int, readings: int
) -> tuple[dict[str, float], float]:
    """By kind, the number of events scanned per second; and the broker's CPU time per event when
    all are read."""
    rates: defaultdict[str, float] = defaultdict(float)
    cpu_us = 0.0
    for kind, options in [*KINDS.items()] * readings:
        async with open_log(broker.address) as log:
            before_s, began = cpu_s(broker.pid), time.perf_counter()
            scanned = rows = 0
            async for batch in log.read(**options):
                rows += batch.records.num_rows
                scanned += batch.scanned
            rate = events / (time.perf_counter() - began)
            spent_s = cpu_s(broker.pid) - before_s
        assert scanned == events, f"{scanned} of {events} were read"
        assert rows == events if "filter" not in options else 0 < rows < events // 10, kind
        if kind == "all" and rate > rates[kind]:
            cpu_us = spent_s / events * 1e6
        rates[kind] = max(rates[kind], rate)
    return rates, cpu_us
