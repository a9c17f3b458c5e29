"""How fast Spark writes into a sink, beside writers of the same rows that do nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

ROWS: Final = 1_000_000
BATCHES: Final = 20
BATCH_ROWS: Final = 100
WARM_BATCHES: Final = 3
"""Batches that do not count: Spark compiles during them."""
LONGEST_S: Final = 120.0


class NoopWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing is there to commit."""


class NoopStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is there to commit."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nor to drop."""


class NoopSink(DataSource):
    """Takes everything and does nothing: what Spark itself costs."""

    @classmethod
    def name(cls) -> str:
        return "motet-noop"

    def writer(self, schema: StructType, overwrite: bool) -> NoopWriter:
        del schema, overwrite
        return NoopWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoopStreamWriter:
        del schema, overwrite
        return NoopStreamWriter()


def measure(
    spark: SparkSession, url: str, *, rows: int = ROWS, batches: int = BATCHES
) -> dict[str, float]:
    """Rows per second of one large batch, and seconds of a small micro-batch; both beside what
    writers take that do nothing. `url` is the broker that is the sinks' home."""
    spark.dataSource.register(NoopSink)
    name = f"bench-{time.time_ns()}"
    said = {"brokers": url, "sink": name}
    many = _rows(spark.range(0, rows, 1, spark.sparkContext.defaultParallelism))
    few = _rows(spark.range(0, 1000))
    _save(few, "motet", said)
    _save(few, NoopSink.name(), {})
    write_s = _seconds(lambda: _save(many, "motet", said))
    noop_s = _seconds(lambda: _save(many, NoopSink.name(), {}))
    batch_s = _batch_s(spark, "motet", {**said, "sink": f"{name}-stream"}, batches)
    noop_batch_s = _batch_s(spark, NoopSink.name(), {}, batches)
    return {
        "rows": rows,
        "rows_per_s": rows / write_s,
        "noop_rows_per_s": rows / noop_s,
        "batches": batches,
        "batch_s": batch_s,
        "noop_batch_s": noop_batch_s,
        "overhead_s": batch_s - noop_batch_s,
    }


def _rows(numbers: DataFrame) -> DataFrame:
    """Three attributes, of about 60 bytes."""
    return numbers.selectExpr(
        "id as n", "concat('room ', id % 100) as room", "id * 0.5d as level", "id % 2 = 0 as even"
    )


def _save(frame: DataFrame, format: str, options: dict[str, str]) -> None:
    frame.write.format(format).options(**options).mode("append").save()


def _seconds(work: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def _batch_s(spark: SparkSession, format: str, options: dict[str, str], batches: int) -> float:
    """The median time of a micro-batch, from trigger to end."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS)
    frame = source.option("numPartitions", 2).load().selectExpr("value as id")
    with tempfile.TemporaryDirectory() as checkpoint:
        writing = _rows(frame).writeStream.format(format).options(**options)
        query = writing.option("checkpointLocation", checkpoint).start()
        try:
            until_s = time.monotonic() + LONGEST_S
            while _done(query) < batches + WARM_BATCHES:
                if time.monotonic() > until_s or query.exception() is not None:
                    raise TimeoutError(f"{format}: {query.exception() or query.status}")
                time.sleep(0.1)
            took = [
                each.durationMs["triggerExecution"] / 1000
                for each in query.recentProgress
                if each.batchId >= WARM_BATCHES and each.numInputRows
            ]
        finally:
            query.stop()
    return median(took[:batches])


def _done(query: Any) -> int:
    last = query.lastProgress
    return last.batchId + 1 if last is not None else 0
