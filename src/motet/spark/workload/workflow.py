"""Workflow logs: cases that go from step to step, wait, are handled, and change hands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark.workload.randomness import START_US, Dice, PowerLaw, time_at_us

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


LEAST_STEPS: Final = 3
WAITING_MS: Final = 4 * 3_600_000
HANDLING_MS: Final = 20 * 60_000
"""Means, before each step scales them."""
REWORK: Final = 0.08
"""The probability that the previous step is repeated."""
OWNER: Final = 0.4
"""The probability that the owner of the case does the step."""
STUCK, STUCK_TIMES = 0.01, 20
"""A visit waits this many times longer with this probability: outliers to be found."""
FAVOUR: Final = 0.7
"""The exponent of the distribution of work among agents."""


def workflow_log(
    spark: SparkSession,
    cases: int,
    *,
    seed: int = 0,
    processes: int = 3,
    steps: int = 8,
    agents: int = 40,
    days: float = 30.0,
    open_share: float = 0.05,
) -> DataFrame:
    """The events of all cases: `start` and `complete` of each step; an open case ends with a start.
    `handed_by` is the agent of the previous step, if it was another one."""
    if cases < 0 or processes < 1 or agents < 1 or steps < LEAST_STEPS:
        raise MisuseError(f"a workflow needs at least 1 process, 1 agent and {LEAST_STEPS} steps")
    visits = _timed(_visits(spark, cases, seed, processes, steps, agents, days, open_share))
    both = F.array(F.lit("start"), F.lit("complete"))
    moments = F.explode(F.when(F.col("is_last_open"), F.slice(both, 1, 1)).otherwise(both))
    at_ms = F.when(F.col("transition") == "start", F.col("start_ms")).otherwise(F.col("end_ms"))
    return visits.withColumn("transition", moments).select(
        F.format_string("case-%08d", "case").alias("case"),
        F.format_string("process-%d", F.col("process") + 1).alias("process"),
        F.format_string("step-%02d", "step").alias("step"),
        F.format_string("agent-%03d", "agent").alias("agent"),
        F.when(F.col("handed_by").isNotNull(), F.format_string("agent-%03d", "handed_by")).alias(
            "handed_by"
        ),
        "transition",
        time_at_us(at_ms * 1000 + START_US).alias("time"),
    )


def _visits(
    spark: SparkSession,
    cases: int,
    seed: int,
    processes: int,
    steps: int,
    agents: int,
    days: float,
    open_share: float,
) -> DataFrame:
    """Each step of each case: its agent, and how long it waits and is handled."""
    case = Dice(seed, F.col("case"))
    visit = Dice(seed, F.col("case"), F.col("position"))
    law = PowerLaw(agents, FAVOUR)
    begun = spark.range(cases).withColumnRenamed("id", "case").select(
        "case",
        case.below(processes, "process").alias("process"),
        (case.below(steps - LEAST_STEPS + 1, "length") + LEAST_STEPS).alias("whole"),
        case.happens(open_share, "open").alias("is_open"),
        F.floor(case.uniform("begin") * days * 86_400_000).alias("begin_ms"),
        law.rank(case.uniform("owner")).alias("owner"),
    )  # fmt: skip
    length = F.when(F.col("is_open"), case.below(F.col("whole"), "stop") + 1)
    begun = begun.withColumn("length", length.otherwise(F.col("whole")))
    each = begun.withColumn("position", F.explode(F.sequence(F.lit(1), F.col("length"))))
    again = (F.col("position") > 1) & visit.happens(REWORK, "rework")
    each = each.withColumn("step", F.col("position") - again.cast("int"))
    own = F.pmod(law.rank(visit.uniform("agent")) + F.col("step") * 7, F.lit(agents)) + 1
    times = F.when(visit.happens(STUCK, "stuck"), STUCK_TIMES).otherwise(1)
    return each.select(
        *("case", "process", "position", "step", "begin_ms"),
        F.when(visit.happens(OWNER, "who"), F.col("owner")).otherwise(own).alias("agent"),
        (visit.exponential_ms(_mean(WAITING_MS, seed, "waiting"), "waiting") * times).alias(
            "wait_ms"
        ),
        visit.exponential_ms(_mean(HANDLING_MS, seed, "handling"), "handling").alias("handle_ms"),
        (F.col("is_open") & (F.col("position") == F.col("length"))).alias("is_last_open"),
    )


def _mean(ms: int, seed: int, purpose: str) -> Column:
    """Each step of each process has its own mean: 0.5 to 1.5 times this one."""
    kind = Dice(seed, F.col("process"), F.col("step"))
    return (kind.uniform(purpose) + 0.5) * ms


def _timed(visits: DataFrame) -> DataFrame:
    """Adds the start and end of each visit, one after the other."""
    case = Window.partitionBy("case").orderBy("position")
    until = case.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    end_ms = F.col("begin_ms") + F.sum(F.col("wait_ms") + F.col("handle_ms")).over(until)
    before = F.lag("agent").over(case)
    return (
        visits.withColumn("end_ms", end_ms)
        .withColumn("start_ms", F.col("end_ms") - F.col("handle_ms"))
        .withColumn("handed_by", F.when(before != F.col("agent"), before))
    )
