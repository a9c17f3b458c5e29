"""A report: how long steps wait and take, who hands over to whom, which cases are open, what is
unusual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMES: Final = ("waiting_s", "handling_s", "sojourn_s")
SHARES: Final = (0.5, 0.95)
ACCURACY: Final = 10_000
LEAST_BEFORE: Final = 30
"""A visit is compared with those before it if there are so many."""
UNUSUAL: Final = 3.0
"""So many standard deviations of the logarithm above the mean."""
SELDOM_LAST: Final = 0.2
"""A step that is so seldom a case's last one does not end it."""
MOST_ROWS: Final = 1000
"""Of open cases, hand-overs and outliers, in a report."""


class Report(Struct, frozen=True):
    events: int
    cases: int
    steps: list[dict[str, Any]]
    handovers: list[dict[str, Any]]
    open_cases: list[dict[str, Any]]
    outliers: list[dict[str, Any]]
    open_count: int
    outlier_count: int
    pair_count: int
    """Of agents, of whom one has handed over to the other."""


def report(events: int, visits: DataFrame, pending: DataFrame, *, most: int = MOST_ROWS) -> Report:
    """`visits` and `pending` of the same events, of which there are so many."""
    visits = visits.cache()
    pending = pending.cache()
    unusual, still = outliers(visits).cache(), open_cases(visits, pending).cache()
    pairs = handovers(visits).cache()
    try:
        return Report(
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
    """By process and step: how often, and the median and 95th percentile of all times."""
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
    """From agent to agent: how often, and how long it typically took until the next was done."""
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
    """Cases with a step under way; and cases whose last step is seldom anybody's last, which is a
    guess where logs do not say when cases end."""
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
    """Visits that took much longer than those of the same step before them: the profile runs
    along."""
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
