"""Batch reads whose conditions travel to the brokers, and nowhere else.

Spark keeps conditions that were pushed down with the loaded source, not with the read: a frame that
is loaded once and used with two conditions gives wrong rows. So this loads anew for every read, and
lets no other condition through to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from motet.errors import MisuseError
from motet.spark.session import register, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ENABLED: Final = "spark.sql.python.filterPushdown.enabled"


def scan(spark: SparkSession, condition: Column | str, **options: Any) -> DataFrame:
    """The events that a condition of Spark's keeps; as much of it as brokers understand is applied
    there. Options are those of `format("motet")`. It switches the session's pushdown to Python
    sources on.

        levels = motet.spark.scan(spark, "level > 7", brokers=url, columns="tick, level:int")
    """
    require_pyspark()
    from pyspark.sql.functions import count, lit

    if "pushdown" in options:
        raise MisuseError("leave pushdown out: that is what scan is for")
    register(spark)
    spark.conf.set(ENABLED, "true")
    said = {name: str(value) for name, value in options.items()}
    loaded = spark.read.format("motet").options(**said, pushdown="true").load()
    # Spark moves no condition through what it observes: those of later steps stay above.
    return loaded.where(condition).observe(f"motet-{uuid4().hex}", count(lit(1)).alias("rows"))
