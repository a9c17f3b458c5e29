"""Workflow events from any source, in the same columns; and visits: one per completed step, with
the times when its case was ready, when it started and ended, its agent and the previous agent.
`Case` computes for one case, event by event, what `visits` computes for all at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark import archive
from motet.spark.replay.logs import ORDER
from motet.spark.replay.logs import of_log as log_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# ── one case, event by event ─────────────────────────────────────────────────────────────


COMPLETE, START = "complete", "start"


class Happened(NamedTuple):
    time: datetime
    step: str
    agent: str | None
    transition: str


class Visit(NamedTuple):
    step: str
    agent: str | None
    handed_by: str | None
    ready: datetime | None
    start: datetime | None
    end: datetime


class Case(Struct):
    """Small, because one is kept for every open case."""

    ready: datetime | None = None
    agent: str | None = None
    started: dict[str, datetime] = {}
    """By step under way, its start."""
    latest: datetime | None = None

    def take(self, events: Iterable[Happened]) -> list[Visit]:
        """Process events in order; returns the visits that they end."""
        ended = []
        for each in events:
            self.latest = max(self.latest or each.time, each.time)
            if each.transition == START:
                self.started[each.step] = each.time
                continue
            start = self.started.pop(each.step, None)
            ended.append(Visit(each.step, each.agent, self.agent, self.ready, start, each.time))
            self.ready, self.agent = each.time, each.agent
        return ended


# ── events ───────────────────────────────────────────────────────────────────────────────

NAMES: Final = ("process", "case", "step", "agent", "transition")
"""Attributes of a workflow event. `agent` and `transition` may be missing: then the agent is
unknown, and every event completes a step."""
FILTER: Final = "case is not null and step is not null"


def of_log(
    spark: SparkSession, path: Path, names: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> DataFrame:  # fmt: skip
    """Events of a foreign log: see `motet.spark.replay.logs`. `tell` gets remarks about it."""
    frame, _, remarks = log_frame(spark, path, names or {})
    for each in remarks:
        tell(each)
    missing = [name for name in ("case", "step") if name not in frame.columns]
    if missing:
        known = ", ".join(name for name in frame.columns if not name.startswith("_"))
        raise MisuseError(
            f"{path} has no column {missing[0]}; name it with --column {missing[0]}=NAME; its "
            f"columns are {known}"
        )
    there = [
        (F.col(name) if name in frame.columns else F.lit(None)).cast("string").alias(name)
        for name in NAMES
    ]
    return _tidy(frame.select(*there, "time", F.struct(*ORDER).alias("place")))


def of_archive(spark: SparkSession, folder: Path) -> DataFrame:
    return _of_stream(archive.read(spark, folder))


def of_brokers(
    spark: SparkSession,
    brokers: str,
    filter: str = FILTER,
    *,
    upto: Mapping[str, int] | None = None,
) -> DataFrame:
    """Everything logged now, or everything below these ticks."""
    said = _asked(brokers, filter)
    if upto is not None:
        said["endingPosition"] = json.dumps(dict(upto))
        said["failOnDataLoss"] = "false"  # retention may have removed events meanwhile
    return _of_stream(spark.read.format("motet").options(**said).load())


def stream_of_brokers(
    spark: SparkSession, brokers: str, filter: str = FILTER, **options: str
) -> DataFrame:
    said = {**_asked(brokers, filter), "startingPosition": "earliest", **options}
    return _of_stream(spark.readStream.format("motet").options(**said).load())


def _asked(brokers: str, filter: str) -> dict[str, str]:
    return {"brokers": brokers, "filter": filter, "columns": "pubend,tick,time,attributes"}


def _of_stream(frame: DataFrame) -> DataFrame:
    """The time is the attribute `time` of the event, or else the time of publication."""
    there = [F.col("attributes")[name].alias(name) for name in NAMES]
    time = F.coalesce(F.col("attributes")["time"].try_cast("timestamp"), F.col("time"))
    return _tidy(
        frame.select(*there, time.alias("time"), F.struct("pubend", "tick").alias("place"))
    )


def _tidy(events: DataFrame) -> DataFrame:
    done = F.lower(F.coalesce(F.col("transition"), F.lit(COMPLETE)))
    return (
        events.withColumn("transition", done)
        .withColumn("process", F.coalesce(F.col("process"), F.lit("")))
        .where(F.col("case").isNotNull() & F.col("step").isNotNull())
        .where(F.col("transition").isin(START, COMPLETE))
    )


# ── visits, of all cases at once ─────────────────────────────────────────────────────────

COLUMNS: Final = (
    "`process` string, `case` string, `step` string, `agent` string, `handed_by` string, "
    "`ready` timestamp, `start` timestamp, `end` timestamp"
)


def visits(events: DataFrame) -> DataFrame:
    """Visits that have ended. `ready`: when the previous step was done; `start` may be unknown."""
    whole = ("process", "case")
    case = Window.partitionBy(*whole).orderBy("time", "place")
    before = case.rowsBetween(Window.unboundedPreceding, -1)
    step = Window.partitionBy(*whole, "step").orderBy("time", "place")
    is_done = F.col("transition") == COMPLETE
    last = F.last(F.when(is_done, F.struct("time", "agent")), ignorenulls=True).over(before)
    started = F.when(F.lag("transition").over(step) == START, F.lag("time").over(step))
    placed = events.withColumn("last", last).withColumn("start", started)
    return timed(
        placed.where(is_done).select(
            *("process", "case", "step", "agent"),
            F.col("last.agent").alias("handed_by"),
            F.col("last.time").alias("ready"),
            "start",
            F.col("time").alias("end"),
        )
    )


def timed(ended: DataFrame) -> DataFrame:
    """Adds seconds: waiting, handling, and their sum, which may be known when they are not."""
    return ended.select(
        "*",
        _between("ready", "start").alias("waiting_s"),
        _between("start", "end").alias("handling_s"),
        _between("ready", "end").alias("sojourn_s"),
    )


def _between(one: str, other: str) -> Column:
    return (F.unix_micros(other) - F.unix_micros(one)) / 1e6


def pending(events: DataFrame) -> DataFrame:
    """By case: its last event, with the step under way if the log has starts."""
    last = F.max_by(F.struct("step", "agent", "transition"), F.struct("time", "place"))
    found = events.groupBy("process", "case").agg(
        last.alias("last"), F.min("time").alias("begun"), F.max("time").alias("latest")
    )
    return found.select(
        *("process", "case", "begun", "latest", "last.step", "last.agent", "last.transition")
    )
