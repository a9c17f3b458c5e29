"""Spark beside brokers: how fast it reads a sealed backlog, what a filter at the broker saves, and
how fast it writes into a sink.

Floors are a source and a sink of our own that do nothing (`spark_sides`), in the same session.
Each side runs in turn, round by round; a first round, which does not count, sees to it that Spark
has compiled what it needs, and that all rows come. Whatever is timed is timed whole, from `load` or
`save` to the end of the job.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from motet.bench import stand
from motet.bench.figures import Figure, Progress
from motet.bench.pubend import SHARE, sample_runs
from motet.bench.reading import fill
from motet.runtime.loop import run as run_loop

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
RARE: Final = "rare = 0"
"""As brokers say it, and Spark too."""
DISTINCT_RUNS: Final = 1600
"""Of the backlog; then they come again. Making them takes longer than logging them."""
BATCH_ROWS: Final = 100
EVERY: Final = "500 milliseconds"
"""A micro-batch comes so often: queries are stopped while nothing runs."""
LONGEST_S: Final = 120.0

# What we promise.
LEAST_READ_PER_S: Final = 300_000
LEAST_SPEEDUP: Final = 3.0
LEAST_WRITTEN_PER_S: Final = 100_000
MOST_OVERHEAD_MS: Final = 100.0


@dataclass(frozen=True)
class Effort:
    rounds: int
    events: int
    """Of the backlog, and rows that are written."""
    batches: int
    """Micro-batches of a query; there are two queries in every round."""
    warm_rounds: int = 1
    warm_batches: int = 3
    """They do not count, because Spark compiles during them."""


SHORT = Effort(rounds=2, events=200_000, batches=8)
LONG = Effort(rounds=3, events=1_000_000, batches=20)

Samples = dict[str, list[float]]


def run(short: bool, progress: Progress, events: int | None = None) -> list[Figure]:
    """All figures of Spark's source and sink; `progress` is told what is measured now."""
    effort = SHORT if short else LONG
    if events is not None:
        effort = replace(effort, events=events)
    from motet.spark import session

    progress(f"starting Spark on {MASTER}")
    spark = session("motet bench", master=MASTER, **CONF)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        with stand.folder() as folder:
            return measure(spark, folder, effort, progress)
    finally:
        spark.stop()


def measure(
    spark: SparkSession, folder: Path, effort: Effort, progress: Progress = lambda _: None
) -> list[Figure]:
    progress(f"making a sealed backlog of {effort.events:,} events")
    runs = cycle(islice(sample_runs(), DISTINCT_RUNS))
    run_loop(fill(folder / "B1", effort.events, runs))
    with stand.broker("B1", data=folder / "B1") as broker:
        reading = Reads(spark, broker.address, effort.events)
        read = _rounds(reading.sides(), effort, progress)
        are_read = reading.all_come()
        writing = Writes(spark, broker.address, effort.events)
        written = _rounds(writing.sides(), effort, progress)
        streaming = Streams(spark, broker.address, effort)
        batches = _rounds(streaming.sides(), replace(effort, warm_rounds=0), progress)
        found = _published(spark, broker.address)
    return [
        *_read_figures(effort.events, read, are_read),
        *_write_figures(effort.events, written, writing.all_came(found)),
        *_batch_figures(batches, streaming.all_came(found)),
    ]


def _rounds(
    sides: dict[str, Callable[[], float]], effort: Effort, progress: Progress
) -> dict[str, float]:
    """The median of each side, which are timed in turn."""
    took: Samples = defaultdict(list)
    for number in range(1 - effort.warm_rounds, effort.rounds + 1):
        for at, (name, side) in enumerate(sides.items(), 1):
            where = f"round {number} of {effort.rounds}" if number > 0 else "warming up"
            progress(f"{where}, {at} of {len(sides)}: {name}")
            value = side()
            if number > 0:
                took[name].append(value)
    return {name: median(values) for name, values in took.items()}


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


# ── reading ──────────────────────────────────────────────────────────────────────────────

ALL, MADE = "reading all", "reading rows made on the spot"
AT_BROKER, IN_SPARK = (
    f"one in {SHARE}, filtered at the broker",
    f"one in {SHARE}, filtered in Spark",
)
AS_MAPS = "reading all, attributes as maps"


class Reads:
    """Ways to read a backlog, and what they take."""

    def __init__(self, spark: SparkSession, url: str, events: int) -> None:
        from motet.bench.spark_sides import GeneratingSource

        spark.dataSource.register(GeneratingSource)
        self._spark = spark
        self._url = url
        self._events = events
        self._parts = self._backlog().rdd.getNumPartitions()

    def _backlog(self, **options: str) -> DataFrame:
        said = {"brokers": self._url, "columns": COLUMNS, **options}
        return self._spark.read.format("motet").options(**said).load()

    def _made(self) -> DataFrame:
        from motet.bench.spark_sides import GeneratingSource

        said = {"rows": str(self._events), "parts": str(self._parts)}
        return self._spark.read.format(GeneratingSource.name()).options(**said).load()

    def _maps(self) -> DataFrame:
        return self._spark.read.format("motet").option("brokers", self._url).load()

    def sides(self) -> dict[str, Callable[[], float]]:
        frames: dict[str, Callable[[], DataFrame]] = {
            ALL: self._backlog,
            MADE: self._made,
            AT_BROKER: lambda: self._backlog(filter=RARE),
            IN_SPARK: lambda: self._backlog().where(RARE),
            AS_MAPS: self._maps,
        }

        def side(frame: Callable[[], DataFrame]) -> Callable[[], float]:
            return lambda: _seconds(lambda: frame().write.format("noop").mode("overwrite").save())

        return {name: side(frame) for name, frame in frames.items()}

    def all_come(self) -> bool:
        """Every event of the backlog once, and the filter keeps the same at both places."""
        counted = ("count(*)", "count(distinct tick)", f"count_if({RARE})")
        found = self._backlog().selectExpr(*counted).first()
        kept = self._backlog(filter=RARE).count()
        return found is not None and tuple(found) == (self._events, self._events, kept)


def _read_figures(events: int, took_s: dict[str, float], counts: bool) -> list[Figure]:
    what = f"Spark: reading a sealed backlog of {events:,} events, {MASTER}"
    per_s = {name: events / each_s for name, each_s in took_s.items()}
    return [
        Figure(
            f"{what} (floor: as many rows, made on the spot)",
            per_s[ALL], "rows/s", per_s[MADE], LEAST_READ_PER_S, "at least", counts,
        ),
        Figure(
            "… with attributes as maps of texts, and transactions (floor: all, as columns)",
            per_s[AS_MAPS], "rows/s", per_s[ALL], sense="at least", counts=counts,
        ),
        Figure(
            f"… only one in {SHARE}, filtered at the broker (floor: filtered in Spark)",
            per_s[AT_BROKER], "events/s", per_s[IN_SPARK], LEAST_SPEEDUP * per_s[IN_SPARK],
            "at least", counts,
        ),
    ]  # fmt: skip


# ── writing ──────────────────────────────────────────────────────────────────────────────

WRITTEN, DROPPED = "writing into a sink", "writing nowhere"


class Writes:
    """A large batch, into a sink and into one that does nothing."""

    def __init__(self, spark: SparkSession, url: str, rows: int) -> None:
        from motet.bench.spark_sides import NoopSink

        spark.dataSource.register(NoopSink)
        self._noop = NoopSink.name()
        self._spark = spark
        self._url = url
        self._rows = rows
        self._saved = 0

    def _frame(self) -> DataFrame:
        parts = self._spark.sparkContext.defaultParallelism
        return events_of(self._spark.range(0, self._rows, 1, parts))

    def sides(self) -> dict[str, Callable[[], float]]:
        return {WRITTEN: self._write, DROPPED: self._drop}

    def _write(self) -> float:
        self._saved += 1
        writing = self._frame().write.format("motet").mode("append")
        return _seconds(writing.options(brokers=self._url, sink="bench").save)

    def _drop(self) -> float:
        return _seconds(self._frame().write.format(self._noop).mode("append").save)

    def all_came(self, published: dict[str, int]) -> bool:
        return published.get("bench") == self._rows * self._saved


def events_of(numbers: DataFrame) -> DataFrame:
    """Four attributes, of about 50 bytes."""
    return numbers.selectExpr(
        "id as n", "concat('room ', id % 100) as room", "id * 0.5d as level", "id % 2 = 0 as even"
    )


def _published(spark: SparkSession, url: str) -> dict[str, int]:
    """How many events of each sink can be read."""
    said = {"brokers": url, "columns": "publisher", "filter": "n is not null"}
    events = spark.read.format("motet").options(**said).load()
    return dict(events.groupBy("publisher").count().collect())


def _write_figures(rows: int, took_s: dict[str, float], counts: bool) -> list[Figure]:
    return [
        Figure(
            f"Spark: writing {rows:,} rows into a sink (floor: a sink that does nothing)",
            rows / took_s[WRITTEN], "rows/s", rows / took_s[DROPPED], LEAST_WRITTEN_PER_S,
            "at least", counts,
        )
    ]  # fmt: skip


# ── micro-batches ────────────────────────────────────────────────────────────────────────

BATCHES, DROPPED_BATCHES = "micro-batches into a sink", "micro-batches nowhere"


class Streams:
    """Small micro-batches; each time a query of its own, into a sink of its own."""

    def __init__(self, spark: SparkSession, url: str, effort: Effort) -> None:
        from motet.bench.spark_sides import NoopSink

        spark.dataSource.register(NoopSink)
        self._noop = NoopSink.name()
        self._spark = spark
        self._url = url
        self._effort = effort
        self._sinks: dict[str, int] = {}
        """By sink, how many batches its query has done."""

    def sides(self) -> dict[str, Callable[[], float]]:
        return {BATCHES: self._stream, DROPPED_BATCHES: lambda: self._query(self._noop)[0]}

    def _stream(self) -> float:
        sink = f"bench-stream-{len(self._sinks)}"
        took_s, self._sinks[sink] = self._query("motet", brokers=self._url, sink=sink)
        return took_s

    def _query(self, format: str, **options: str) -> tuple[float, int]:
        """The median time of a micro-batch, from trigger to end; and how many there were."""
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
        took_s = [
            each.durationMs["triggerExecution"] / 1000
            for each in done
            if each.batchId >= self._effort.warm_batches
        ]
        return median(took_s), len(done)

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
        """Of every batch that Spark has reported, and at most of one more, which was under way."""
        for sink, batches in self._sinks.items():
            count, rest = divmod(published.get(sink, 0), BATCH_ROWS)
            if rest or not batches <= count <= batches + 1:
                return False
        return True


def _batch_figures(took_s: dict[str, float], counts: bool) -> list[Figure]:
    ours_ms, floor_ms = took_s[BATCHES] * 1e3, took_s[DROPPED_BATCHES] * 1e3
    what = f"Spark: a micro-batch of {BATCH_ROWS} rows into a sink"
    return [
        Figure(f"{what} (floor: a sink that does nothing)", ours_ms, "ms", floor_ms, counts=counts),
        Figure(
            "… overhead over one that does nothing",
            ours_ms - floor_ms, "ms", goal=MOST_OVERHEAD_MS, counts=counts,
        ),
    ]  # fmt: skip
