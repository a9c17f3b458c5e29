"""Each time that a step was done: when its case was ready for it, when it started and ended, who
did it and who had the case before. `cases` says the same of one case, event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.spark.insight.cases import COMPLETE, START

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = (
    "`process` string, `case` string, `step` string, `agent` string, `handed_by` string, "
    "`ready` timestamp, `start` timestamp, `end` timestamp"
)


def visits(events: DataFrame) -> DataFrame:
    """Visits that have ended. Ready: the step before was done; start is null if nobody said so."""
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
    """With seconds: waiting, handling, and both together, which is known when the others are
    not."""
    return ended.select(
        "*",
        _between("ready", "start").alias("waiting_s"),
        _between("start", "end").alias("handling_s"),
        _between("ready", "end").alias("sojourn_s"),
    )


def _between(one: str, other: str) -> Column:
    return (F.unix_micros(other) - F.unix_micros(one)) / 1e6


def pending(events: DataFrame) -> DataFrame:
    """By case: what happened last, and which step is under way, if the log says so."""
    last = F.max_by(F.struct("step", "agent", "transition"), F.struct("time", "place"))
    found = events.groupBy("process", "case").agg(
        last.alias("last"), F.min("time").alias("begun"), F.max("time").alias("latest")
    )
    return found.select(
        *("process", "case", "begun", "latest", "last.step", "last.agent", "last.transition")
    )
