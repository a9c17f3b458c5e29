"""Making a plan with Spark: who publishes what, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark import archive
from motet.spark.replay.files import name_within
from motet.spark.replay.logs import ORDER, Log, load
from motet.spark.replay.parquet_files import session_with
from motet.spark.replay.rows import PACKED, PAYLOAD
from motet.spark.replay.times import LIKE, LOCAL, time_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from motet.spark.archive.manifest import Version

KEY: Final = "_key"
"""What must stay in order: the events of a case, or of a publisher."""
TIME: Final = "_time_us"
PUBLISHER: Final = "_publisher"
ROW: Final = "_row"
_TEXT: Final = "_text"
_PARSED: Final = "struct<us: bigint, zoned: boolean, cut: boolean>"


def of_archive(spark: SparkSession, folder: Path, version: Version) -> DataFrame:
    frame = archive.read(spark, folder, version)
    return frame.select(
        F.col("packed").alias(PACKED),
        F.col("payload").alias(PAYLOAD),
        F.col("publisher").alias(KEY),
        F.unix_micros("time").alias(TIME),
        F.col("pubend").alias("_file"),
        F.col("tick").alias("_place"),
    )


def of_log(
    spark: SparkSession, path: Path, names: Mapping[str, str], held: ExitStack | None = None
) -> Log:
    """With times, without which nobody knows an order."""
    frame, rows, remarks = load(spark, path, names, held)
    if "time" not in frame.columns:
        known = ", ".join(name for name in frame.columns if not name.startswith("_"))
        raise MisuseError(
            f"which column of {path} has the times? There are {known}: --column time=NAME"
        )
    type_ = dict(frame.dtypes)["time"]
    if type_ == "string":
        frame, said = _parsed(frame, path)
        remarks += said
    elif type_ == "date":
        with session_with(spark, {"spark.sql.session.timeZone": LOCAL}):
            frame = frame.withColumn("time", F.col("time").cast("timestamp"))
    elif type_ != "timestamp":
        raise MisuseError(
            f"the times of {path} are of type {type_}, which does not say when that is; write them "
            f"like {LIKE}, or --column time=NAME says which column has them"
        )
    if "process" not in frame.columns:
        frame = frame.withColumn("process", F.lit(path.name.split(".")[0]))
    key = F.col("case") if "case" in frame.columns else F.lit("")
    timed = frame.withColumn(KEY, key.cast("string")).withColumn(TIME, F.unix_micros("time"))
    _refuse(timed.where(F.col(TIME).isNull()), path, "has no time; every event needs one")
    return Log(timed, rows, remarks)


def _parsed(frame: DataFrame, path: Path) -> tuple[DataFrame, list[str]]:
    """With times that were texts, and what should be known of them."""
    parsed = frame.withColumn(_TEXT, F.col("time"))
    parsed = parsed.withColumn("time", F.udf(_time, _PARSED, useArrow=False)("time"))
    lost = parsed.where(F.col("time").isNull() & F.col(_TEXT).isNotNull())
    _refuse(lost, path, f"is no time; write times like {LIKE}")
    is_zoned, is_cut = F.col("time.zoned"), F.col("time.cut")
    (told,) = parsed.select(
        F.bool_and(is_zoned).alias("all"), F.bool_or(is_zoned).alias("any"),
        F.bool_or(is_cut).alias("cut"),
    ).collect()  # fmt: skip
    if told["any"] and not told["all"]:
        _refuse(parsed.where(~is_zoned), path, "has no zone, and other times have one; add it")
    said = []
    if told["any"] is False:
        said.append(f"times without a zone are taken for {LOCAL}: time")
    if told["cut"]:
        said.append("times finer than microseconds, which events have, are cut: time")
    return parsed.withColumn("time", F.timestamp_micros("time.us")).drop(_TEXT), said


def _time(text: str | None) -> tuple[int, bool, bool] | None:
    time = time_of(text.strip()) if text is not None else None
    return None if time is None else (time.us, time.is_zoned, time.is_cut)


def _refuse(bad: DataFrame, path: Path, problem: str) -> None:
    """The first of these rows is named, if there is one."""
    shown = [_TEXT] if _TEXT in bad.columns else []
    found: list[Any] = bad.orderBy(*ORDER).select(*ORDER, *shown).limit(1).collect()
    if found:
        file = name_within(found[0]["_file"], str(path))
        where = str(path) if file == path.name else f"{path}, {file}"
        what = f": {found[0][_TEXT]!r}" if shown else ""
        raise MisuseError(f"{where}, row {found[0]['_place']} (from 0){what} {problem}")


def write(frame: DataFrame, folder: Path, publishers: int) -> None:
    """In order of time; what happened at the same time, as the files have it."""
    ordered = frame.withColumn(
        PUBLISHER, F.pmod(F.xxhash64(F.coalesce(KEY, F.lit(""))), F.lit(publishers))
    ).orderBy(TIME, *ORDER)
    ordered.withColumnRenamed("_place", ROW).drop(KEY).write.parquet(str(folder))
