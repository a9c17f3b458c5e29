"""Late readers: a sealed backlog, read from a broker over TCP, all of it and a part of it.

The backlog is written and sealed before the broker starts, so that nothing but reading is measured.
One reader takes batch by batch, as Arrow. Readings of each kind alternate, and of each the one
counts that was disturbed least. The floor is the same bytes, sent without looking at them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Raw

from motet.bench import stand
from motet.bench.figures import Figure, Progress
from motet.bench.pubend import (
    EVENT_BYTES,
    LEAST_READ,
    LEAST_SPEEDUP,
    PUBLISHERS,
    SHARE,
    sample_runs,
)
from motet.broker.config import BrokerConfig
from motet.broker.recovery import open_folder
from motet.broker.service import PUBEND
from motet.client.reading import open_log
from motet.runtime.loop import run as run_loop
from motet.runtime.pubend import PubendLog

SHORT_EVENTS, LONG_EVENTS = 400_000, 2_000_000
READINGS = 5
KINDS: dict[str, dict[str, Any]] = {
    "all": {},
    "one in a hundred": {"filter": "rare = 0"},
    "two columns of all": {"columns": ["tick", "sensor:text", "level:float"]},
    "two columns of one in a hundred": {
        "filter": "rare = 0",
        "columns": ["tick", "sensor:text", "level:float"],
    },
}


class Reading(NamedTuple):
    """The best of several."""

    scanned_per_s: float
    rows: int
    broker_cpu_us: float
    """Per event that was scanned."""


def measure(events: int = SHORT_EVENTS, readings: int = READINGS) -> dict[str, Reading]:
    """By what was read, how fast."""
    with tempfile.TemporaryDirectory(prefix="motet-bench-") as name:
        folder = Path(name) / "B1"
        run_loop(fill(folder, events, sample_runs()))
        with stand.broker("B1", data=folder) as broker:
            return run_loop(_measure(broker, events, readings))


def run(short: bool = True, progress: Progress = lambda _: None) -> list[Figure]:
    events = SHORT_EVENTS if short else LONG_EVENTS
    progress(f"reading a sealed backlog of {events} events over TCP")
    found = measure(events)
    whole = found["all"].scanned_per_s
    figures = [
        Figure(
            f"reading over TCP: {EVENT_BYTES}-byte events, sealed, one reader, all",
            whole,
            "events/s",
            goal=LEAST_READ,
            sense="at least",
        ),
        Figure(
            f"reading over TCP: one event in {SHARE} (floor: all)",
            found["one in a hundred"].scanned_per_s,
            "events/s",
            whole,
            LEAST_SPEEDUP * whole,
            "at least",
        ),
    ]
    for kind in list(KINDS)[2:]:
        figures.append(
            Figure(
                f"reading over TCP: {kind} (floor: all)",
                found[kind].scanned_per_s,
                "events/s",
                whole,
            )
        )
    cpu_us = found["all"].broker_cpu_us
    figures.append(Figure("reading over TCP: CPU of the broker per event, all", cpu_us, "µs"))
    return figures


async def fill(folder: Path, events: int, runs: Iterable[list[Raw]]) -> None:
    """The folder of a broker whose pubend has so many events of these runs, all of them sealed."""
    core, journal, _ = open_folder(BrokerConfig("B1", root="B1"), folder)
    name = f"B1.{core.config.incarnation}"
    await journal.close()
    log = PubendLog.open(folder / PUBEND, name)
    left = events
    for bodies, publisher in zip(runs, cycle(PUBLISHERS), strict=False):
        bodies = bodies[:left]
        first = log.published(publisher, "e1") + 1
        log.append_run(log.last_tick + 1, publisher, "e1", first, bodies)
        left -= len(bodies)
        if left <= 0:
            break
    log.roll()
    position = log.appended
    while log.durable < position:
        await asyncio.sleep(0.001)
    await log.seal()
    await log.close()


async def _measure(broker: stand.Stand, events: int, readings: int) -> dict[str, Reading]:
    best: dict[str, Reading] = {}
    async for kind, options in _in_turn(readings):
        async with open_log(broker.address) as log:
            cpu_s, began = broker.cpu_s(), time.perf_counter()
            scanned = rows = 0
            async for batch in log.read(**options):
                rows += batch.records.num_rows
                scanned += batch.scanned
            elapsed_s = time.perf_counter() - began
            cpu_us = (broker.cpu_s() - cpu_s) / events * 1e6
        assert scanned == events, f"{scanned} of {events} were read"
        found = Reading(events / elapsed_s, rows, cpu_us)
        if kind not in best or best[kind].scanned_per_s < found.scanned_per_s:
            best[kind] = found
    assert best["all"].rows == events
    assert 0 < best["one in a hundred"].rows < events // 10
    return best


async def _in_turn(readings: int) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    for _ in range(readings):
        for kind, options in KINDS.items():
            yield kind, options
