"""Insight from a stream: visits as they end, and rates per time window.

Spark keeps the state of a case until the watermark passes its last event. Each batch writes its
visits into a folder of its own, and overwrites it when the batch runs again, so each visit is there
once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from pyspark.sql import functions as F

from motet.spark.failures import briefly
from motet.spark.insight.events import COLUMNS, Case, Happened, timed
from motet.spark.insight.report import Batches
from motet.spark.options import Vector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


LATE: Final = "7 days"
WINDOW: Final = "1 hour"
STATE: Final = "kept string"
VISITS, RATES, CHECKPOINTS = "visits", "rates", "_checkpoints"


def ending_visits(events: DataFrame, late: str = LATE) -> DataFrame:
    """A stream of visits, from a stream of events."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    names = ("process", "case", "step", "agent", "transition", "time", "place.pubend", "place.tick")
    watched = events.select(*names).withWatermark("time", late)
    ended = watched.groupBy("process", "case").applyInPandasWithState(
        _step, COLUMNS, STATE, "append", GroupStateTimeout.EventTimeTimeout
    )
    return timed(ended)


def _step(key: tuple[str, str], parts: Iterator[Any], state: Any) -> Iterator[Any]:
    """Called by Spark for each case that has events or has timed out."""
    import pandas

    if state.hasTimedOut:
        state.remove()
        return
    case = msgspec.json.decode(state.get[0], type=Case) if state.exists else Case()
    rows = pandas.concat(list(parts))
    rows = rows.sort_values(["time", "pubend", "tick"])
    events = [
        Happened(row.time.to_pydatetime(), row.step, row.agent, row.transition)
        for row in rows.itertuples()
    ]
    ended = case.take(events)
    state.update((msgspec.json.encode(case).decode(),))
    assert case.latest is not None
    last_ms = int(pandas.Timestamp(case.latest).timestamp() * 1000)
    state.setTimeoutTimestamp(max(last_ms, state.getCurrentWatermarkMs()) + 1)
    yield pandas.DataFrame(
        [(*key, *visit) for visit in ended],
        columns=[*("process", "case", "step", "agent", "handed_by"), *("ready", "start", "end")],
    )


def rates(events: DataFrame, window: str = WINDOW, late: str = LATE) -> DataFrame:
    """By window, process and step: events, steps that ended, agents at work (approximately)."""
    return (
        events.withWatermark("time", late)
        .groupBy(F.window("time", window), "process", "step")
        .agg(
            F.count("*").alias("events"),
            F.sum((F.col("transition") == "complete").cast("long")).alias("ended"),
            F.approx_count_distinct("agent").alias("agents"),
        )
        .select("window.start", "window.end", "process", "step", "events", "ended", "agents")
    )


def follow(
    events: DataFrame,
    folder: Path,
    *,
    late: str = LATE,
    window: str = WINDOW,
    available_now: bool = False,
    every_s: float = 10.0,
    news: Callable[[list[dict[str, Any]], str], None] | None = None,
) -> list[StreamingQuery]:
    """Start or resume. After each batch, `news` gets the table of steps over all visits so far, and
    a key, which is the same if the batch runs again."""
    trigger: dict[str, Any] = (
        {"availableNow": True} if available_now else {"processingTime": f"{every_s:g} seconds"}
    )
    home = folder.absolute()
    batches = Batches(home / VISITS)

    def keep(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{home}/{VISITS}/batch={batch}")
        if news is not None:
            query = json.loads((home / CHECKPOINTS / VISITS / "metadata").read_text())["id"]
            news(batches.upto(batch), f"{query}/{batch}")

    writer = ending_visits(events, late).writeStream.foreachBatch(briefly(keep))
    writer = writer.option("checkpointLocation", f"{home}/{CHECKPOINTS}/{VISITS}")
    counting = rates(events, window, late).writeStream.format("parquet").outputMode("append")
    counting = counting.option("path", f"{home}/{RATES}")
    counting = counting.option("checkpointLocation", f"{home}/{CHECKPOINTS}/{RATES}")
    return [writer.trigger(**trigger).start(), counting.trigger(**trigger).start()]


class Moment(NamedTuple):
    """How far a stream was followed: the last complete batch of visits, and where it ends."""

    batch: int
    upto: Vector

    def visits(self, spark: SparkSession, folder: Path) -> DataFrame:
        """All visits up to this batch. They may reach further back than the logs do."""
        found = spark.read.parquet(f"{folder.absolute()}/{VISITS}")
        return found.where(F.col("batch") <= self.batch).drop("batch")


def moment_of(folder: Path) -> Moment | None:
    """Read from Spark's checkpoint; None if no batch was committed."""
    checkpoint = folder.absolute() / CHECKPOINTS / VISITS
    commits = checkpoint / "commits"
    names = [each.name for each in commits.iterdir()] if commits.is_dir() else []
    batch = max((int(name) for name in names if name.isdigit()), default=None)
    if batch is None:
        return None
    written = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    return Moment(batch, dict(json.loads(written[-1])["p"]))
