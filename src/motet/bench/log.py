"""The log against a bare file that is written and synced the same way.

One round is a number of groups, each written at once and synced. The log is driven as a broker
drives it: from an event loop, which prepares one group while the one before is being synced.
Rounds alternate, and what is reported is their median.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from motet.bench.figures import Figure, Progress
from motet.runtime.log import FileLog
from motet.runtime.loop import run

RECORD_BYTES = 300
GROUP = 500
GROUPS_PER_ROUND = 20
LEAST_RATIO = 0.6


@dataclass(frozen=True)
class Effort:
    rounds: int
    reads: int


SHORT = Effort(rounds=10, reads=3)
LONG = Effort(rounds=40, reads=9)


def measure(short: bool = True, progress: Progress = lambda _: None) -> list[Figure]:
    effort = SHORT if short else LONG
    progress(f"the log: {effort.rounds} rounds of {GROUPS_PER_ROUND} fsynced groups")
    with tempfile.TemporaryDirectory(prefix="motet-bench-") as name:
        return run(_measure(Path(name), effort))


async def _measure(folder: Path, effort: Effort) -> list[Figure]:
    payloads = [os.urandom(RECORD_BYTES) for _ in range(GROUP)]
    log = FileLog.open(folder / "log", purpose="bench", version=1)
    bare = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    logged_s, bare_s, single_s = [], [], []
    try:
        for _ in range(effort.rounds):
            logged_s.append(await _time_log(log, payloads))
            bare_s.append(_time_bare(bare, payloads))
            single_s.append(_time_bare(bare, payloads[:1]))
        reading_s = min(_time_reading(log) for _ in range(effort.reads))
    finally:
        os.close(bare)
        await log.close()
    floor = GROUP / median(bare_s)
    return [
        Figure(
            f"log: {RECORD_BYTES}-byte records in fsynced groups of {GROUP}",
            GROUP / median(logged_s),
            "records/s",
            floor,
            LEAST_RATIO * floor,
            "at least",
        ),
        Figure(f"fsyncs of this run, {GROUP} records each", 1 / median(bare_s), "fsyncs/s"),
        Figure("fsyncs of this run, one record each", 1 / median(single_s), "fsyncs/s"),
        Figure("log: reading back, verified", log.appended / reading_s, "records/s"),
    ]


async def _time_log(log: FileLog, payloads: list[bytes]) -> float:
    """Seconds per group: one is being synced, and at most one waits behind it."""
    grown = asyncio.Event()
    log.watch(grown.set, _fail)
    began = time.perf_counter()
    end = log.appended + GROUPS_PER_ROUND * GROUP
    while log.durable < end:
        if log.appended < end and log.appended - log.durable <= GROUP:
            log.append(payloads)
        else:
            grown.clear()
            await grown.wait()
    return (time.perf_counter() - began) / GROUPS_PER_ROUND


def _fail(error: Exception) -> None:
    raise error


def _time_bare(file: int, payloads: list[bytes]) -> float:
    """Seconds per group."""
    began = time.perf_counter()
    for _ in range(GROUPS_PER_ROUND):
        os.write(file, b"".join(payloads))
        os.fdatasync(file)
    return (time.perf_counter() - began) / GROUPS_PER_ROUND


def _time_reading(log: FileLog) -> float:
    began = time.perf_counter()
    count = sum(1 for _ in log.read(1))
    assert count == log.appended
    return time.perf_counter() - began
