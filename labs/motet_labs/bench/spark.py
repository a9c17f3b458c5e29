"""Spark with brokers: how fast it reads a sealed backlog, what a filter at the broker saves, and
how fast it writes into a sink.

Floors are a generating source and a no-op sink (`spark_sides`), in the same session. Sides run in
turn, round by round. A first round does not count: Spark compiles during it. Times are of whole
jobs, from `load` or `save` to the end.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from motet.runtime.loop import run as run_loop
from motet_labs import processes
from motet_labs.bench import workload
from motet_labs.bench.logs import fill
from motet_labs.bench.workload import RARE, SHARE
from motet_labs.figures import Figure, Progress, Samples, Size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "local[2]"
CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
}
COLUMNS: Final = (
    "tick, time, publisher, sequence, sensor:text, step:int, level:float, rare:int, payload"
)
DISTINCT_RUNS: Final = 1600
"""Of the backlog, then repeated. Making them takes longer than logging them."""
BATCH_ROWS: Final = 100
EVERY: Final = "500 milliseconds"
"""The interval of micro-batches: queries are stopped while none is running."""
LONGEST_S: Final = 120.0

# Goals.
LEAST_READ_PER_S: Final = 300_000
LEAST_SPEEDUP: Final = 3.0
LEAST_WRITTEN_PER_S: Final = 100_000
MOST_OVERHEAD_MS: Final = 100.0


class SparkEffort(NamedTuple):
    rounds: int
    events: int
    """Events of the backlog, and rows that are written."""
    batches: int
    """Micro-batches per query; there are two queries in every round."""
    warm_rounds: int = 1
    warm_batches: int = 3
    """They do not count, because Spark compiles during them."""


EFFORTS = {
    Size.LEAST: SparkEffort(rounds=1, events=2000, batches=1, warm_rounds=0, warm_batches=0),
    Size.SHORT: SparkEffort(rounds=2, events=200_000, batches=8),
    Size.LONG: SparkEffort(rounds=3, events=1_000_000, batches=20),
}

Side = Callable[[], float]
"""Does some work and returns its duration."""
NOOP: Final = "motet-noop"


def run(size: Size, progress: Progress, events: int | None = None) -> list[Figure]:
    effort = EFFORTS[size]
    if events is not None:
        effort = effort._replace(events=events)
    from motet.spark.quiet import quiet_session

    progress(f"starting Spark on {MASTER}")
    with processes.folder() as folder:
        spark = quiet_session("motet bench", folder / "spark.log", master=MASTER, **CONF)
        try:
            return measure(spark, folder, effort, progress)
        finally:
            spark.stop()


def measure(
    spark: SparkSession, folder: Path, effort: SparkEffort, progress: Progress
) -> list[Figure]:
    from motet_labs.bench.spark_sides import GeneratingSource, NoopSink

    for source in (GeneratingSource, NoopSink):
        spark.dataSource.register(source)
    rows = effort.events
    progress(f"making a sealed backlog of {rows:,} events")
    runs = cycle(islice(workload.runs(), DISTINCT_RUNS))
    run_loop(fill(folder / "B1", rows, runs))
    with processes.broker("B1", data=folder / "B1") as broker:
        url = broker.address
        read = _rounds(_reads(spark, url, rows), effort, progress)
        are_read = _all_come(spark, url, rows)
        written = _rounds(_writes(spark, url, rows), effort, progress)
        streaming = MicroBatches(spark, url, effort)
        batches = _rounds(streaming.sides(), effort._replace(warm_rounds=0), progress)
        found = _published(spark, url)
    are_written = found.get("bench") == rows * (effort.rounds + effort.warm_rounds)
    return [
        *_read_figures(rows, read, are_read),
        *_write_figures(rows, written, are_written),
        *_batch_figures(batches, streaming.all_came(found)),
    ]


def _rounds(sides: dict[str, Side], effort: SparkEffort, progress: Progress) -> dict[str, float]:
    """The median of each side; sides are timed in turn."""
    took = Samples()
    for number in range(1 - effort.warm_rounds, effort.rounds + 1):
        for at, (name, side) in enumerate(sides.items(), 1):
            where = f"round {number} of {effort.rounds}" if number > 0 else "warming up"
            progress(f"{where}, {at} of {len(sides)}: {name}")
            value = side()
            if number > 0:
                took[name].append(value)
    return took.medians()


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


# ── reading ──────────────────────────────────────────────────────────────────────────────

ALL, MADE = "reading all", "reading rows made on the spot"
AT_BROKER = f"one in {SHARE}, filtered at the broker"
IN_SPARK = f"one in {SHARE}, filtered in Spark"
AS_MAPS = "reading all, attributes as maps"


def _backlog(spark: SparkSession, url: str, **options: str) -> DataFrame:
    said = {"brokers": url, "columns": COLUMNS, **options}
    return spark.read.format("motet").options(**said).load()


def _reads(spark: SparkSession, url: str, events: int) -> dict[str, Side]:
    """Ways to read a backlog."""
    parts = _backlog(spark, url).rdd.getNumPartitions()
    made = {"rows": str(events), "parts": str(parts)}
    frames: dict[str, Callable[[], DataFrame]] = {
        ALL: lambda: _backlog(spark, url),
        MADE: lambda: spark.read.format("motet-generating").options(**made).load(),
        AT_BROKER: lambda: _backlog(spark, url, filter=RARE),
        IN_SPARK: lambda: _backlog(spark, url).where(RARE),
        AS_MAPS: lambda: spark.read.format("motet").option("brokers", url).load(),
    }

    def read(frame: Callable[[], DataFrame]) -> float:
        return _seconds(lambda: frame().write.format("noop").mode("overwrite").save())

    return {name: partial(read, frame) for name, frame in frames.items()}


def _all_come(spark: SparkSession, url: str, events: int) -> bool:
    """Whether every event is read once, and the filter selects the same in both places."""
    counted = ("count(*)", "count(distinct tick)", f"count_if({RARE})")
    found = _backlog(spark, url).selectExpr(*counted).first()
    kept = _backlog(spark, url, filter=RARE).count()
    return found is not None and tuple(found) == (events, events, kept)


def _read_figures(events: int, took_s: dict[str, float], counts: bool) -> list[Figure]:
    what = f"Spark: reading a sealed backlog of {events:,} events, {MASTER}"
    per_s = {name: events / each_s for name, each_s in took_s.items()}
    return [
        Figure(f"{what} (floor: as many rows, made on the spot)",
               per_s[ALL], "rows/s", per_s[MADE], LEAST_READ_PER_S, "at least", counts),
        Figure("… with attributes as maps of texts, and transactions (floor: all, as columns)",
               per_s[AS_MAPS], "rows/s", per_s[ALL], sense="at least", counts=counts),
        Figure(f"… only one in {SHARE}, filtered at the broker (floor: filtered in Spark)",
               per_s[AT_BROKER], "events/s", per_s[IN_SPARK], LEAST_SPEEDUP * per_s[IN_SPARK],
               "at least", counts),
    ]  # fmt: skip


# ── writing ──────────────────────────────────────────────────────────────────────────────

WRITTEN, DROPPED = "writing into a sink", "writing nowhere"


def _writes(spark: SparkSession, url: str, rows: int) -> dict[str, Side]:
    """A large batch, into a sink and into a no-op one."""
    parts = spark.sparkContext.defaultParallelism

    def write(format: str, **options: str) -> float:
        writing = events_of(spark.range(0, rows, 1, parts)).write.format(format).mode("append")
        return _seconds(writing.options(**options).save)

    into = partial(write, "motet", brokers=url, sink="bench")
    return {WRITTEN: into, DROPPED: partial(write, NOOP)}


def events_of(numbers: DataFrame) -> DataFrame:
    """Four attributes, about 50 bytes."""
    room = "concat('room ', id % 100) as room"
    return numbers.selectExpr("id as n", room, "id * 0.5d as level", "id % 2 = 0 as even")


def _published(spark: SparkSession, url: str) -> dict[str, int]:
    """By sink, the number of events that can be read."""
    said = {"brokers": url, "columns": "publisher", "filter": "n is not null"}
    events = spark.read.format("motet").options(**said).load()
    return dict(events.groupBy("publisher").count().collect())


def _write_figures(rows: int, took_s: dict[str, float], counts: bool) -> list[Figure]:
    return [
        Figure(f"Spark: writing {rows:,} rows into a sink (floor: a sink that does nothing)",
               rows / took_s[WRITTEN], "rows/s", rows / took_s[DROPPED], LEAST_WRITTEN_PER_S,
               "at least", counts)
    ]  # fmt: skip


# ── micro-batches ────────────────────────────────────────────────────────────────────────

BATCHES, DROPPED_BATCHES = "micro-batches into a sink", "micro-batches nowhere"


class MicroBatches:
    """Small micro-batches; each query is new and has a sink of its own."""

    def __init__(self, spark: SparkSession, url: str, effort: SparkEffort) -> None:
        self._spark = spark
        self._url = url
        self._effort = effort
        self._sinks: dict[str, int] = {}
        """By sink, the number of batches its query has completed."""

    def sides(self) -> dict[str, Side]:
        return {BATCHES: self._stream, DROPPED_BATCHES: lambda: self._query(NOOP)[0]}

    def _stream(self) -> float:
        sink = f"bench-stream-{len(self._sinks)}"
        took_s, self._sinks[sink] = self._query("motet", brokers=self._url, sink=sink)
        return took_s

    def _query(self, format: str, **options: str) -> tuple[float, int]:
        """The median time of a micro-batch, from trigger to end, and their number."""
        numbers = (
            self._spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=BATCH_ROWS, numPartitions=2)
            .load()
            .selectExpr("value as id")
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            writing = events_of(numbers).writeStream.format(format).options(**options)
            writing = writing.option("checkpointLocation", checkpoint)
            query = writing.trigger(processingTime=EVERY).start()
            try:
                self._wait(query)
            finally:
                query.stop()
            done = [each for each in query.recentProgress if each.numInputRows]
        warm = [each for each in done if each.batchId >= self._effort.warm_batches]
        return median(each.durationMs["triggerExecution"] / 1000 for each in warm), len(done)

    def _wait(self, query: Any) -> None:
        until_s = time.monotonic() + LONGEST_S
        wanted = self._effort.batches + self._effort.warm_batches
        while query.lastProgress is None or query.lastProgress.batchId + 1 < wanted:
            if query.exception() is not None:
                raise query.exception()
            if time.monotonic() > until_s:
                raise TimeoutError(f"a query has come no further: {query.status}")
            time.sleep(0.05)

    def all_came(self, published: dict[str, int]) -> bool:
        """Whether all reported batches arrived, and at most one more, which was under way."""
        return all(
            published.get(sink, 0) in (batches * BATCH_ROWS, (batches + 1) * BATCH_ROWS)
            for sink, batches in self._sinks.items()
        )


def _batch_figures(took_s: dict[str, float], counts: bool) -> list[Figure]:
    ours_ms, floor_ms = took_s[BATCHES] * 1e3, took_s[DROPPED_BATCHES] * 1e3
    what = f"Spark: a micro-batch of {BATCH_ROWS} rows into a sink"
    return [
        Figure(f"{what} (floor: a sink that does nothing)", ours_ms, "ms", floor_ms, counts=counts),
        Figure("… overhead over one that does nothing",
               ours_ms - floor_ms, "ms", goal=MOST_OVERHEAD_MS, counts=counts),
    ]  # fmt: skip
