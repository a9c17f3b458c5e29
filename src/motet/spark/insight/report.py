"""A report: how long steps wait and take, hand-overs between agents, open cases, outliers. It is
published in one transaction: a subscriber gets all of it or nothing."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy
import pyarrow.parquet
from msgspec import Struct
from pandas.util import hash_array
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TIMES: Final = ("waiting_s", "handling_s", "sojourn_s")
SHARES: Final = (0.5, 0.95)
ACCURACY: Final = 10_000
LEAST_BEFORE: Final = 30
"""A visit is compared with earlier ones if there are at least this many."""
UNUSUAL: Final = 3.0
"""An outlier is this many standard deviations of the logarithm above the mean."""
SELDOM_LAST: Final = 0.2
"""A step that is the last one in less than this share of its visits does not end a case."""
MOST_ROWS: Final = 1000
"""Limit of open cases, hand-overs and outliers in a report."""


class InsightReport(Struct, frozen=True):
    events: int
    cases: int
    steps: list[dict[str, Any]]
    handovers: list[dict[str, Any]]
    open_cases: list[dict[str, Any]]
    outliers: list[dict[str, Any]]
    open_count: int
    outlier_count: int
    pair_count: int
    """Number of pairs of agents of which one handed over to the other."""


def report(
    events: int, visits: DataFrame, pending: DataFrame, *, most: int = MOST_ROWS
) -> InsightReport:
    """`visits` and `pending` are of the same events, `events` in number."""
    visits = visits.cache()
    pending = pending.cache()
    unusual, still = outliers(visits).cache(), open_cases(visits, pending).cache()
    pairs = handovers(visits).cache()
    try:
        return InsightReport(
            events=events,
            cases=pending.count(),
            steps=_rows(steps(visits)),
            handovers=_rows(pairs.limit(most)),
            open_cases=_rows(still.orderBy("latest", "case").limit(most)),
            outliers=_rows(unusual.orderBy(F.desc("times"), "case").limit(most)),
            open_count=still.count(),
            outlier_count=unusual.count(),
            pair_count=pairs.count(),
        )
    finally:
        for frame in (unusual, still, pairs, visits, pending):
            frame.unpersist()


def steps(visits: DataFrame) -> DataFrame:
    """By process and step: number of visits, and the median and 95th percentile of all times."""
    shares = F.array(*map(F.lit, SHARES))
    found = visits.groupBy("process", "step").agg(
        F.count("*").alias("visits"),
        F.countDistinct("case").alias("cases"),
        F.countDistinct("agent").alias("agents"),
        *(F.percentile_approx(name, shares, ACCURACY).alias(name) for name in TIMES),
    )
    columns = [
        F.col(name)[at].alias(f"{name.removesuffix('_s')}_p{round(share * 100)}_s")
        for name in TIMES
        for at, share in enumerate(SHARES)
    ]
    kept = ("process", "step", "visits", "cases", "agents")
    return found.select(*kept, *columns).orderBy("process", F.desc("visits"), "step")


def handovers(visits: DataFrame) -> DataFrame:
    """From agent to agent: number of hand-overs, and median time until the taker was done."""
    moved = visits.where(F.col("handed_by") != F.col("agent"))
    return (
        moved.groupBy(F.col("handed_by").alias("giver"), F.col("agent").alias("taker"))
        .agg(
            F.count("*").alias("count"),
            F.percentile_approx("sojourn_s", 0.5, ACCURACY).alias("sojourn_p50_s"),
        )
        .orderBy(F.desc("count"), "giver", "taker")
    )


def open_cases(visits: DataFrame, pending: DataFrame) -> DataFrame:
    """Cases with a step under way, and cases whose last step is seldom the last of a case. The
    latter is a guess, because logs do not say when cases end."""
    ends = (
        pending.where("transition = 'complete'")
        .groupBy("process", "step")
        .agg(F.count("*").alias("ends"))
    )
    often = visits.groupBy("process", "step").agg(F.count("*").alias("often"))
    seldom = (
        often.join(ends, ["process", "step"], "left")
        .where(F.coalesce("ends", F.lit(0)) < F.col("often") * SELDOM_LAST)
        .select("process", "step", F.lit(True).alias("is_seldom"))
    )
    why = F.when(F.col("transition") == "start", "under way").when(
        F.col("is_seldom"), "seldom ends here"
    )
    return (
        pending.join(F.broadcast(seldom), ["process", "step"], "left")
        .withColumn("why", why)
        .where("why is not null")
        .select("process", "case", "step", "agent", "begun", "latest", "why")
    )


def outliers(visits: DataFrame) -> DataFrame:
    """Visits that took much longer than earlier ones of the same step, by a running profile."""
    long = F.log1p(F.greatest("sojourn_s", F.lit(0.0)))
    before = (
        Window.partitionBy("process", "step")
        .orderBy("end", "case")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    profiled = (
        visits.where("sojourn_s is not null")
        .withColumn("usual", F.avg(long).over(before))
        .withColumn("spread", F.stddev_samp(long).over(before))
        .withColumn("known", F.count("*").over(before))
    )
    unusual = long > F.col("usual") + F.col("spread") * UNUSUAL
    return profiled.where((F.col("known") >= LEAST_BEFORE) & unusual).select(
        *("process", "case", "step", "agent", "end", "sojourn_s"),
        F.expm1("usual").alias("usual_s"),
        (F.col("sojourn_s") / F.greatest(F.expm1("usual"), F.lit(1e-6))).alias("times"),
    )


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


# ── the table of steps, batch by batch ───────────────────────────────────────────────────

COLUMNS: Final = ("process", "step", "case", "agent", *TIMES)


class StepTally:
    """The table of steps, updated visit by visit: its result is that of `steps` over all visits. It
    works without Spark and reads only the files of each batch. Per visit it keeps the times,
    sorted, and a hash of the case: 32 bytes."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], _Step] = {}

    def add(self, visits: pyarrow.Table) -> None:
        frame = visits.select(COLUMNS).to_pandas()
        for key, rows in frame.groupby(["process", "step"], sort=False):
            self._steps.setdefault(key, _Step()).add(rows)

    def rows(self) -> list[dict[str, Any]]:
        """As `report.steps` has them, in its order."""
        found = [
            {"process": process, "step": step, **each.told()}
            for (process, step), each in self._steps.items()
        ]
        return sorted(found, key=lambda row: (row["process"], -row["visits"], row["step"]))


class _Step:
    def __init__(self) -> None:
        self._visits = 0
        self._cases = numpy.empty(0, numpy.uint64)
        self._agents: set[str] = set()
        self._times = {name: numpy.empty(0) for name in TIMES}

    def add(self, rows: Any) -> None:
        self._visits += len(rows)
        marks = numpy.unique(hash_array(rows["case"].to_numpy(object), categorize=False))
        self._cases = _merged(self._cases, marks[~_among(marks, self._cases)])
        self._agents.update(rows["agent"].dropna())
        for name in TIMES:
            known = rows[name].dropna().to_numpy(float)
            self._times[name] = _merged(self._times[name], numpy.sort(known))

    def told(self) -> dict[str, Any]:
        counts = {"visits": self._visits, "cases": len(self._cases), "agents": len(self._agents)}
        shares = {
            f"{name.removesuffix('_s')}_p{round(share * 100)}_s": _at(times, share)
            for name, times in self._times.items()
            for share in SHARES
        }
        return counts | shares


def _merged(there: Any, new: Any) -> Any:
    """Both are sorted, and so is the result."""
    return numpy.insert(there, numpy.searchsorted(there, new), new) if len(new) else there


def _among(some: Any, there: Any) -> Any:
    at = numpy.searchsorted(there, some)
    found = numpy.zeros(len(some), bool)
    within = at < len(there)
    found[within] = there[at[within]] == some[within]
    return found


def _at(times: Any, share: float) -> float | None:
    """The percentile as Spark defines it: the smallest value at or above this share."""
    return float(times[math.ceil(share * len(times)) - 1]) if len(times) else None


class Batches:
    """A tally of the visits that a stream's batches have written to a folder. Each batch is read
    once, those of earlier runs at the beginning."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tally = StepTally()
        self._last: int | None = None

    def upto(self, batch: int) -> list[dict[str, Any]]:
        """The table including this batch, which has just been written."""
        if self._last is None or batch != self._last + 1:
            self._tally = StepTally()
            self._add(each for each in self._there() if each < batch)
        self._add([batch])
        self._last = batch
        return self._tally.rows()

    def _there(self) -> list[int]:
        names = (each.name.removeprefix("batch=") for each in self._folder.glob("batch=*"))
        return sorted(int(name) for name in names if name.isdigit())

    def _add(self, batches: Iterable[int]) -> None:
        for batch in batches:
            for file in sorted((self._folder / f"batch={batch}").glob("*.parquet")):
                with pyarrow.parquet.ParquetFile(file) as visits:
                    self._tally.add(visits.read(list(COLUMNS)))


# ── a report as events ───────────────────────────────────────────────────────────────────

SINK: Final = "insight"
SPACE: Final = "insight is not null"
KINDS: Final[dict[type, str]] = {
    bool: "boolean", int: "bigint", float: "double", datetime: "timestamp", str: "string",
}  # fmt: skip


def events_of(report: InsightReport) -> list[dict[str, Any]]:
    """One event per row of a report."""
    tables = {
        "step": report.steps,
        "handover": report.handovers,
        "open case": report.open_cases,
        "outlier": report.outliers,
    }
    return [event for what, rows in tables.items() for event in events_in(what, rows)]


def events_in(what: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One event per row of a table."""
    return [
        {"insight": what, **{name: each for name, each in row.items() if each is not None}}
        for row in rows
    ]


def publish(
    spark: SparkSession, events: Sequence[dict[str, Any]], broker: str, *, key: str = ""
) -> str:
    """Publish all events in one transaction, and return its name. `key` makes it idempotent."""
    key = key or secrets.token_hex(8)
    schema = schema_of(events)
    names = [each.partition(" ")[0].strip("`") for each in schema]
    rows = [tuple(event.get(name) for name in names) for event in events]
    frame = spark.createDataFrame(rows, ", ".join(schema)).coalesce(1)
    sink = {"brokers": broker, "sink": SINK, "advertise": SPACE, "key": key}
    frame.write.format("motet").options(**sink).mode("append").save()
    return f"{SINK}/batch/{key}"


def schema_of(events: Iterable[dict[str, Any]]) -> list[str]:
    """All names with their types; a column of ints and floats is float."""
    kinds: dict[str, str] = {}
    for event in events:
        for name, value in event.items():
            kind = KINDS[type(value)]
            if {kind, kinds.get(name, kind)} == {"bigint", "double"}:
                kind = "double"
            kinds[name] = kind
    return [f"`{name}` {kind}" for name, kind in kinds.items()]
