"""Spark's part of the story: it generates the log, reads the stream exactly once with a filter at
the brokers, archives it, writes running counts back, analyses everything in the end, and audits.
All in one session; all calls block, so the story makes them in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from motet.audit.verdicts import Audit
from motet.pictures import check as check_pictures
from motet.spark.failures import brief
from motet.spark.quiet import quiet_session
from motet.spark.session import (
    ONE_COMPILER,
    prepare_scratch,
    register,
    require_java,
    require_pyspark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from motet.spark.archive.proof import Proof
    from motet.spark.insight import InsightReport
    from motet.spark.replay import ReplayPlan

MOST_BATCHES: Final = "100000"
"""The number of batches that Spark remembers: in the end all of them are needed."""
CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.sql.streaming.numRecentProgressUpdates": MOST_BATCHES,
    "spark.sql.streaming.minBatchesToRetain": MOST_BATCHES,
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"{ONE_COMPILER} -XX:+UseSerialGC",
}
ARCHIVE_EVERY_S: Final = 3.0
INSIGHT_EVERY: Final = "4 seconds"
SINK: Final = "insight"
RUNNING, STEPS = "running", "step"
"""Kinds of results: running counts, and in the end the durations of steps."""
FINAL_KEY: Final = "the-end"
SMALL_BYTES: Final = 64 << 20
"""A history up to this size is judged in one partition, which is faster on two cores."""


class Pipeline:
    """Writes everything into `folder`."""

    def __init__(self, folder: Path, master: str) -> None:
        self.folder = folder.absolute()
        self.archive = self.folder / "archive"
        self.checkpoint = self.folder / "checkpoint"
        self.master = master
        self._queries: dict[str, StreamingQuery] = {}
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None
        register(self._spark)  # in the calling thread
        return self._spark

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        prepare_scratch()
        warehouse = {"spark.sql.warehouse.dir": str(self.folder / "warehouse")}
        log = self.folder / "spark.log"
        self._spark = quiet_session(
            "motet demo", log, master=self.master, level="ERROR", **CONF, **warehouse
        )

    def stop(self) -> None:
        with ExitStack() as stack:  # each, even if another one fails
            if self._spark is not None:
                stack.callback(self._spark.stop)
            for query in self._queries.values():
                stack.callback(query.stop)

    def make_log(self, cases: int, seed: int) -> Path:
        from motet.spark import workload

        made = workload.workflow_log(self.spark, cases, seed=seed)
        workload.store(made, self.folder / "log", {"kind": "workflow", "seed": seed})
        return self.folder / "log"

    def plan(self, log: Path, publishers: int, names: Mapping[str, str]) -> ReplayPlan:
        from motet.spark.replay import prepare

        work = self.folder / "plan"
        return prepare(self.spark, log, work, publishers=publishers, names=names)

    def begin(self, brokers: Sequence[str], home: str) -> None:
        """Start two queries, each with its checkpoint: one archives, one counts."""
        from motet.spark import archive
        from motet.spark.insight.events import FILTER

        urls = ",".join(brokers)
        self._queries["archive"] = archive.keep(
            self.spark, urls, self.archive, filter=FILTER, every_s=ARCHIVE_EVERY_S
        )
        counted = self._counted(urls)
        writer = counted.writeStream.format("motet").outputMode("complete")
        writer = writer.options(brokers=home, sink=SINK, advertise="insight is not null")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(processingTime=INSIGHT_EVERY).queryName(SINK)
        self._queries[SINK] = writer.start()

    def _counted(self, urls: str) -> DataFrame:
        from pyspark.sql import functions as F

        from motet.spark.insight.events import COMPLETE, stream_of_brokers

        is_done = F.col("transition") == COMPLETE
        return (
            stream_of_brokers(self.spark, urls)
            .groupBy("process", "step")
            .agg(F.count("*").alias("events"), F.sum(is_done.cast("long")).alias("done"))
            .withColumn("insight", F.lit(RUNNING))
        )

    @property
    def archived(self) -> int:
        from motet.spark.archive import Manifest

        manifest = Manifest(self.archive)
        return manifest.newest().rows if manifest.exists else 0

    def check(self) -> None:
        """Raise the error that a query has failed with."""
        for query in self._queries.values():
            problem = query.exception()
            if problem is not None:
                raise brief(problem) from problem

    @property
    def is_warm(self) -> bool:
        """Whether each query has completed a batch: the first takes much longer than the others."""
        from motet.spark.archive.manifest import CHECKPOINT

        return all(_commits(each) for each in (self.archive / CHECKPOINT, self.checkpoint))

    def end(self) -> list[int]:
        """Stop the queries; returns the batches that Spark recorded as committed, beginning with
        the first that had input."""
        progress = self._queries[SINK].recentProgress
        read = [each["batchId"] for each in progress if each["numInputRows"] > 0]
        for query in self._queries.values():
            query.stop()
        self.check()
        return [batch for batch in _commits(self.checkpoint) if read and batch >= min(read)]

    def archived_events(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Publisher, number and attributes of all archived events."""
        import msgspec

        from motet.spark import archive

        rows = archive.read(self.spark, self.archive).select("publisher", "sequence", "packed")
        decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
        return [(row[0], row[1], decode(bytes(row[2]))) for row in rows.collect()]

    def insight(self, home: str) -> tuple[InsightReport, int]:
        """A report on the archive. Its table of steps is published at `home` as one transaction;
        returns the number of its events as well."""
        from pyspark.sql import functions as F

        from motet.spark import insight
        from motet.spark.insight.report import steps

        events = insight.of_archive(self.spark, self.archive).cache()
        visits = insight.visits(events).cache()
        found = insight.report(events.count(), visits, insight.pending(events))
        table = steps(visits).withColumn("insight", F.lit(STEPS))
        sink = {"brokers": home, "sink": f"{SINK}-{STEPS}", "advertise": "insight is not null"}
        table.write.format("motet").options(**sink, key=FINAL_KEY).mode("append").save()
        visits.unpersist()
        events.unpersist()
        return found, len(found.steps)

    def written(self, home: str) -> dict[str, list[object]]:
        """The results in the log of `home`: the ticks of each transaction, in order."""
        said = {"brokers": home, "filter": "insight is not null", "columns": "transaction,tick"}
        rows = self.spark.read.format("motet").options(**said).load().collect()
        found: dict[str, list[object]] = {}
        for row in sorted(rows, key=lambda row: row["tick"]):
            found.setdefault(row["transaction"], []).append(row["tick"])
        return found

    def prove(self, brokers: Sequence[str]) -> Proof:
        from motet.spark import archive

        return archive.prove(self.spark, ",".join(brokers), self.archive)

    def audit(self, history: Path, tell: Callable[[str], None]) -> Audit:
        from motet.spark.audit import audit

        return audit(self.spark, history, tell, small_bytes=SMALL_BYTES)


def _commits(checkpoint: Path) -> list[int]:
    folder = checkpoint / "commits"
    if not folder.is_dir():
        return []
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit())


def check_machine() -> None:
    """Raise now what would end the story later, with the command that helps."""
    require_pyspark()
    require_java()
    check_pictures()


def check_log(log: Path) -> None:
    from motet.spark.replay.files import files_in

    files_in(log)
