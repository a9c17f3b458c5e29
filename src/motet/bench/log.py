"""The log against a bare file that is written and synced the same way.

One round is a number of groups; each group is durable before the next one begins, on both sides.
Rounds alternate, and the ratio is that of the medians of what a group took.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from motet.bench.figures import Figure, Progress
from motet.runtime.log import FileLog

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
    with tempfile.TemporaryDirectory(prefix="motet-bench-", dir=_folder()) as name:
        return _measure(Path(name), effort)


def _folder() -> Path:
    """A disk, if there is one: where temporary files live may be memory."""
    return Path(os.environ.get("MOTET_BENCH_DIR") or tempfile.gettempdir())


def _measure(folder: Path, effort: Effort) -> list[Figure]:
    payloads = [os.urandom(RECORD_BYTES) for _ in range(GROUP)]
    log = FileLog.open(folder / "log", purpose="bench", version=1)
    bare = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def through_the_log() -> None:
        log.append(payloads)
        log.sync()

    def bare_file() -> None:
        os.write(bare, b"".join(payloads))
        os.fdatasync(bare)

    def single() -> None:
        os.write(bare, payloads[0])
        os.fdatasync(bare)

    took_s: dict[Callable[[], None], list[float]] = {
        through_the_log: [],
        bare_file: [],
        single: [],
    }
    try:
        for _ in range(effort.rounds):
            for way, times in took_s.items():
                times.append(_time(way))
        records = log.appended
        reading_s = min(_time_reading(log) for _ in range(effort.reads))
    finally:
        os.close(bare)
        log.shut()
    rate = {way: 1 / median(times) for way, times in took_s.items()}
    floor = GROUP * rate[bare_file]
    about = f"{RECORD_BYTES}-byte records in fsynced groups of {GROUP}"
    return [
        Figure(
            f"log: append of {about}",
            GROUP * rate[through_the_log],
            "records/s",
            floor,
            LEAST_RATIO * floor,
            "at least",
        ),
        Figure("log: fsyncs of this run, groups", rate[bare_file], "fsyncs/s"),
        Figure("log: fsyncs of this run, single records", rate[single], "fsyncs/s"),
        Figure("log: reading back, verified", records / reading_s, "records/s"),
    ]


def _time(way: Callable[[], None]) -> float:
    """Seconds per group."""
    began = time.perf_counter()
    for _ in range(GROUPS_PER_ROUND):
        way()
    return (time.perf_counter() - began) / GROUPS_PER_ROUND


def _time_reading(log: FileLog) -> float:
    began = time.perf_counter()
    count = sum(1 for _ in log.read(1))
    assert count == log.appended
    return time.perf_counter() - began
