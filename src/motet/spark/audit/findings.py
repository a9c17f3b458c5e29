"""Violations as rows, all of one shape, and what is reported of them."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.audit.verdicts import EXAMPLES, Finding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def violations(frame: DataFrame, guarantee: str, kind: str, text: str, *columns: str) -> DataFrame:
    """Every row of a frame is a violation; `text` tells of it, with these columns (or expressions
    of SQL) in the place of each %s."""
    told = F.format_string(text, *(F.expr(f"cast({each} as string)") for each in columns))
    return frame.select(
        F.col("run"), F.lit(guarantee).alias("guarantee"), F.lit(kind).alias("kind"),
        told.alias("detail"),
    )  # fmt: skip


def collect(frames: list[DataFrame]) -> list[Finding]:
    """Count the violations of each kind, and take some as examples."""
    if not frames:
        return []
    every = reduce(lambda one, other: one.unionByName(other), frames)
    kind = Window.partitionBy("run", "guarantee", "kind")
    ranked = every.withColumn("rank", F.row_number().over(kind.orderBy("detail")))
    counted = ranked.withColumn("count", F.count("*").over(kind))
    rows = counted.where(F.col("rank") <= EXAMPLES).collect()
    found: dict[tuple[str, str, str], Finding] = {}
    for row in sorted(
        rows, key=lambda row: (row["run"], row["guarantee"], row["kind"], row["rank"])
    ):
        key = (row["run"], row["guarantee"], row["kind"])
        finding = found.setdefault(
            key, Finding(row["guarantee"], row["kind"], row["count"], [], row["run"])
        )
        finding.examples.append(row["detail"])
    return list(found.values())
