"""Compares archive and log, row by row, over the range that both have.

First by counts and sums of hashes per range of ticks, which do not depend on the order of rows.
Where these differ, by rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from motet.errors import UnavailableError
from motet.spark.archive.ingestion import DAY, KEPT, read
from motet.spark.archive.manifest import Manifest, Version
from motet.spark.options import LogPosition, Vector, options_in
from motet.spark.planner import Brokers, Planner

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


RANGES: Final = 64
"""The approximate number per pubend."""
EXAMPLES: Final = 20
MISSING, SURPLUS, DOUBLED, CHANGED = "missing", "surplus", "doubled", "changed"
"""What is wrong with a tick in the archive: missing; not in the log; duplicate; another event."""


class Compared(Struct, frozen=True):
    """A pubend, from tick `since` on and below `upto`."""

    pubend: str
    since: int
    upto: int
    archive_rows: int
    log_rows: int
    ranges: int
    differing: int


class Difference(Struct, frozen=True):
    pubend: str
    tick: int
    what: str


class Proof(Struct, frozen=True):
    version: int
    pubends: tuple[Compared, ...]
    differences: dict[str, int]
    """Number of ticks, by what is wrong with them."""
    examples: tuple[Difference, ...]
    apart: tuple[str, ...] = ()
    """Pubends of which archive and logs no longer have any common range."""

    @property
    def holds(self) -> bool:
        return not self.differences


def prove(spark: SparkSession, brokers: str, folder: Path, *, examples: int = EXAMPLES) -> Proof:
    version = Manifest(folder).newest()
    start, end = _common(brokers, version)
    width = _widths(version, start, end)
    archive = _hashed(read(spark, folder, version), start, end, width)
    log = _hashed(_log(spark, brokers, version, start, end), start, end, width)
    sums = _sums(archive, "archive").join(_sums(log, "log"), ["pubend", "range"], "full").collect()
    differing = [row for row in sums if _differs(row)]
    found: dict[str, int] = {}
    shown: tuple[Difference, ...] = ()
    if differing:
        found, shown = _rows(spark, archive, log, differing, examples)
    pubends = tuple(
        Compared(
            name,
            start[name],
            end[name],
            _count(sums, name, "archive_rows"),
            _count(sums, name, "log_rows"),
            sum(row["pubend"] == name for row in sums),
            sum(row["pubend"] == name for row in differing),
        )
        for name in sorted(start)
    )
    apart = tuple(sorted(set(version.upto) - set(start)))
    return Proof(version.number, pubends, found, shown, apart)


def _widths(version: Version, start: Vector, end: Vector) -> Vector:
    """The number of ticks per range: a log begins with tick 1, long before its first event."""
    known: dict[str, int] = {}
    for each in version.files:
        known[each.pubend] = min(known.get(each.pubend, each.first_tick), each.first_tick)
    return {
        name: max((end[name] - max(tick, known.get(name, 0))) // RANGES, 1)
        for name, tick in start.items()
    }


def _common(brokers: str, version: Version) -> tuple[Vector, Vector]:
    """The range that both have. It splits no transaction, and neither did the archive."""
    said = {"brokers": brokers, **({"filter": version.filter} if version.filter else {})}
    options = options_in(said)
    asked = Brokers(options.brokers, options.timeout_s)
    try:
        planner = Planner(asked, options)
        accounts = asked.describe()
        upto = {
            name: tick
            for name, tick in version.upto.items()
            if name in accounts and tick > accounts[name].first_tick
        }
        if not upto:
            raise UnavailableError(
                "archive and logs have no ticks in common: the logs begin after the end of the "
                "archive, or --broker names other brokers"
            )
        first = {name: max(version.since.get(name, 1), accounts[name].first_tick) for name in upto}
        start = planner.at(LogPosition("ticks", ticks=tuple(first.items())))
        end = planner.at(LogPosition("ticks", ticks=tuple(upto.items())))
    finally:
        asked.close()
    start = {name: max(tick, first[name]) for name, tick in start.items() if name in upto}
    return start, {name: max(end[name], start[name]) for name in start}


def _log(
    spark: SparkSession, brokers: str, version: Version, start: Vector, end: Vector
) -> DataFrame:
    said = {
        "brokers": brokers,
        "columns": ",".join((*KEPT, *version.columns)),
        "misfits": "null",  # misfits at the time of archiving were allowed explicitly
        "startingPosition": json.dumps(start),
        "endingPosition": json.dumps(end),
        **({"filter": version.filter} if version.filter else {}),
    }
    return spark.read.format("motet").options(**said).load()


def _hashed(frame: DataFrame, start: Vector, end: Vector, width: Vector) -> DataFrame:
    """Pubend, tick, range and hash of the rows that both should have."""
    first, last, wide = (_by_pubend(each) for each in (start, end, width))
    kept = frame.where((F.col("tick") >= first) & (F.col("tick") < last))
    return kept.select(
        "pubend",
        "tick",
        F.floor((F.col("tick") - first) / wide).alias("range"),
        F.xxhash64(*(_told(frame, name) for name in frame.columns if name != DAY)).alias("hash"),
    )


def _told(frame: DataFrame, name: str) -> Column:
    """A column that can be hashed: maps cannot."""
    column = F.col(f"`{name}`")
    return F.map_entries(column) if isinstance(frame.schema[name].dataType, MapType) else column


def _by_pubend(values: Vector) -> Column:
    chosen: Any = F.lit(None).cast("long")
    for name, value in values.items():
        chosen = F.when(F.col("pubend") == name, F.lit(value)).otherwise(chosen)
    return chosen


def _sums(hashed: DataFrame, side: str) -> DataFrame:
    return hashed.groupBy("pubend", "range").agg(
        F.count("*").alias(f"{side}_rows"),
        F.sum(F.col("hash").cast("decimal(38,0)")).alias(f"{side}_sum"),
    )


def _differs(row: Any) -> bool:
    return bool(row["archive_rows"] != row["log_rows"] or row["archive_sum"] != row["log_sum"])


def _count(sums: list[Any], pubend: str, column: str) -> int:
    return sum(row[column] or 0 for row in sums if row["pubend"] == pubend)


def _rows(
    spark: SparkSession, archive: DataFrame, log: DataFrame, differing: list[Any], examples: int
) -> tuple[dict[str, int], tuple[Difference, ...]]:
    """Counts and examples of the ticks that differ, within the ranges that do."""
    ranges = [(row["pubend"], row["range"]) for row in differing]
    there = F.broadcast(spark.createDataFrame(ranges, "pubend string, range long"))
    sides = [
        side.join(there, ["pubend", "range"])
        .groupBy("pubend", "tick")
        .agg(F.count("*").alias(f"{name}_rows"), F.sort_array(F.collect_list("hash")).alias(name))
        for name, side in (("archive", archive), ("log", log))
    ]
    both = sides[0].join(sides[1], ["pubend", "tick"], "full")
    what = (
        F.when(F.col("archive").isNull(), MISSING)
        .when(F.col("log").isNull(), SURPLUS)
        .when(F.col("archive_rows") > F.col("log_rows"), DOUBLED)
        .when(F.col("archive") != F.col("log"), CHANGED)
    )
    wrong = both.select("pubend", "tick", what.alias("what")).where("what is not null").cache()
    try:
        counts = {row["what"]: row["count"] for row in wrong.groupBy("what").count().collect()}
        some = wrong.orderBy("pubend", "tick").limit(examples).collect()
    finally:
        wrong.unpersist()
    shown = tuple(Difference(row["pubend"], row["tick"], row["what"]) for row in some)
    return dict(sorted(counts.items())), shown
