"""Making a plan with Spark: who publishes what, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark import archive
from motet.spark.replay.logs import ORDER, load
from motet.spark.replay.rows import PACKED, PAYLOAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY: Final = "_key"
"""What must stay in order: the events of a case, or of a publisher."""
TIME: Final = "_time_us"
PUBLISHER: Final = "_publisher"
ROW: Final = "_row"


def of_archive(spark: SparkSession, folder: Path) -> DataFrame:
    frame = archive.read(spark, folder)
    return frame.select(
        F.col("packed").alias(PACKED),
        F.col("payload").alias(PAYLOAD),
        F.col("publisher").alias(KEY),
        F.unix_micros("time").alias(TIME),
        F.col("pubend").alias("_file"),
        F.col("tick").alias("_place"),
        F.lit(0).alias("_within"),
    )


def of_log(spark: SparkSession, path: Path, names: Mapping[str, str]) -> DataFrame:
    frame = load(spark, path, names)
    if "time" not in frame.columns:
        known = ", ".join(name for name in frame.columns if not name.startswith("_"))
        raise MisuseError(
            f"which column of {path} has the times? There are {known}: --column time=NAME"
        )
    if dict(frame.dtypes)["time"] != "timestamp":
        frame = frame.withColumn("time", F.col("time").try_cast("timestamp"))
    if "process" not in frame.columns:
        frame = frame.withColumn("process", F.lit(path.name.split(".")[0]))
    key = F.col("case") if "case" in frame.columns else F.lit("")
    timed = frame.withColumn(KEY, key.cast("string")).withColumn(TIME, F.unix_micros("time"))
    untimed = timed.where(F.col(TIME).isNull()).limit(1).count()
    if untimed:
        raise MisuseError(f"{path} has rows without a time that Spark can read")
    return timed


def write(frame: DataFrame, folder: Path, publishers: int) -> None:
    """In order of time; what happened at the same time, as the files have it."""
    ordered = frame.withColumn(
        PUBLISHER, F.pmod(F.xxhash64(F.coalesce(KEY, F.lit(""))), F.lit(publishers))
    ).orderBy(TIME, *ORDER)
    ordered.withColumnRenamed("_place", ROW).drop("_within", KEY).write.parquet(str(folder))
