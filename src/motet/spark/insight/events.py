"""Workflow events, wherever they come from, in the same columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark import archive
from motet.spark.insight.cases import COMPLETE, START
from motet.spark.replay.logs import ORDER
from motet.spark.replay.planning import of_log as log_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES: Final = ("process", "case", "step", "agent", "transition")
"""Attributes of a workflow event. `agent` and `transition` may be missing: then nobody knows who
did it, and every event says that a step is done."""
FILTER: Final = "case is not null and step is not null"


def of_log(
    spark: SparkSession, path: Path, names: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> DataFrame:  # fmt: skip
    """Of a log of others: see `motet.spark.replay.logs`. `tell` gets what should be known of it."""
    frame, _, remarks = log_frame(spark, path, names or {})
    for each in remarks:
        tell(each)
    missing = [name for name in ("case", "step") if name not in frame.columns]
    if missing:
        known = ", ".join(name for name in frame.columns if not name.startswith("_"))
        raise MisuseError(
            f"which column of {path} is the {missing[0]}? There are {known}: "
            f"--column {missing[0]}=NAME"
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
    """What is there now; or what is below these ticks."""
    said = _asked(brokers, filter)
    if upto is not None:
        said["endingPosition"] = json.dumps(dict(upto))
        said["failOnDataLoss"] = "false"  # retention may have passed it meanwhile
    return _of_stream(spark.read.format("motet").options(**said).load())


def stream_of_brokers(
    spark: SparkSession, brokers: str, filter: str = FILTER, **options: str
) -> DataFrame:
    said = {**_asked(brokers, filter), "startingPosition": "earliest", **options}
    return _of_stream(spark.readStream.format("motet").options(**said).load())


def _asked(brokers: str, filter: str) -> dict[str, str]:
    return {"brokers": brokers, "filter": filter, "columns": "pubend,tick,time,attributes"}


def _of_stream(frame: DataFrame) -> DataFrame:
    """When it happened is what the event says, or else when it was published."""
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
