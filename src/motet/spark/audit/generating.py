"""Large clean histories, made by Spark itself: as many deliveries as wanted, the same for a seed.

Publishers at several brokers, subscribers who each want one kind of event, a quarter of them in
total order, and a transaction of two events now and then. Everything comes once, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from motet.audit.schema import FILLED, TABLES, spark_type
from motet.model import encode_event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APART: Final = 10
"""Ticks from one event to the next."""
FIRST_TICK: Final = 1000
PER_DEAL: Final = 1000
"""One of so many events begins a transaction, and the next one is in it as well."""
_FRAME: Final = encode_event({"kind": 0, "n": 1 << 31}, b"").hex()
"""An event as bytes: its kind and its number stand in known places."""


@dataclass(frozen=True)
class Scale:
    """How much is made."""

    deliveries: int
    brokers: int = 4
    publishers: int = 48
    kinds: int = 20
    each: int = 10
    """Subscribers of one kind."""
    seed: int = 1
    parts: int = 16
    """Files of the large tables."""

    @property
    def events(self) -> int:
        return max(PER_DEAL, self.deliveries // self.each)


def generate(spark: SparkSession, folder: str | Path, scale: Scale) -> None:
    """Write one run into a folder that has none."""
    made = {
        "brokers": _brokers(spark, scale),
        "sessions": _sessions(spark, scale),
        "operations": _operations(spark, scale),
        "starts": _starts(spark, scale),
    }
    events = _events(spark, scale)
    made["events"] = events.withColumn("tx", F.expr("coalesce(tx, '')"))
    made["logged"] = made["events"]
    made["deliveries"] = _deliveries(events, scale)
    deals = events.where(f"id % {PER_DEAL} = 0")
    made |= _deals(deals, events)
    for name, frame in made.items():
        complete(frame, name).write.parquet(f"{folder}/{name}")


def complete(frame: DataFrame, table: str, run: str = "generated") -> DataFrame:
    """With every column of a table, filled where nothing is said."""
    columns = [F.lit(run).alias("run")]
    for name, kind in TABLES[table].items():
        if name in frame.columns:
            columns.append(F.col(name).cast(spark_type(kind)).alias(name))
        else:
            columns.append(F.lit(FILLED.get(kind)).cast(spark_type(kind)).alias(name))
    return frame.select(*columns)


def _brokers(spark: SparkSession, scale: Scale) -> DataFrame:
    return spark.range(0, scale.brokers, 1, 1).selectExpr(
        "concat('B', id) broker", "id = 0 is_root"
    )


def _sessions(spark: SparkSession, scale: Scale) -> DataFrame:
    publishers = spark.range(0, scale.publishers, 1, 1).selectExpr(
        "concat('pub', id) client", f"concat('B', id % {scale.brokers}) broker", "false total_order"
    )
    readers = spark.range(0, scale.kinds * scale.each, 1, 1).selectExpr(
        "concat('sub', id) client", f"concat('B', id % {scale.brokers}) broker",
        "id % 4 = 0 total_order",
    )  # fmt: skip
    return publishers.union(readers).selectExpr(
        "*", "'e1' epoch", "client process", "0d opened_at", "true lasting"
    )


def _operations(spark: SparkSession, scale: Scale) -> DataFrame:
    publishers = spark.range(0, scale.publishers, 1, 1).selectExpr(
        "concat('pub', id) client", "'advertise' kind", "'n >= 0' filter"
    )
    readers = spark.range(0, scale.kinds * scale.each, 1, 1).selectExpr(
        "concat('sub', id) client", "'subscribe' kind",
        f"concat('kind = ', id % {scale.kinds}, ' and n >= 0') filter",
    )  # fmt: skip
    return publishers.union(readers).selectExpr(
        "*", "concat(client, '/e1/1') op", "'e1' epoch", "client process", "1 handle", "1 number",
        "-1 position", f"{1 << 60} ended_position", f"{1 << 60} doubted_position",
        "0.1d requested_at", "0.2d answered_at", "'Done' answer", "0.2d effective_at",
        "true lasting",
    )  # fmt: skip


def _starts(spark: SparkSession, scale: Scale) -> DataFrame:
    readers = spark.range(0, scale.kinds * scale.each, 1, 1).selectExpr(
        "concat('sub', id, '/e1/1') op"
    )
    pubends = spark.range(0, scale.brokers, 1, 1).selectExpr("concat('B', id, '.1') pubend")
    return readers.crossJoin(pubends).selectExpr("*", "1 first", "1 tick")


def _events(spark: SparkSession, scale: Scale) -> DataFrame:
    deal = f"id % {PER_DEAL} < 2"
    place = f"case when {deal} then id - id % {PER_DEAL} else id end"
    head, tail = _FRAME.index("00a16ece"), _FRAME.index("c400")
    who = f"({place}) % {scale.publishers}"
    return spark.range(0, scale.events, 1, scale.parts).selectExpr(
        "id", "id number", "id position", "id last_position", "true is_sure",
        "'accepted' fate", "1d + id / 1000 sent_at", "1.01d + id / 1000 settled_at", "'e1' epoch",
        f"concat('pub', {who}) client", f"concat('B', ({who}) % {scale.brokers}, '.1') pubend",
        f"case when id % {PER_DEAL} = 1 then {FIRST_TICK} + {APART} * (id - 1) + 1 "
        f"else {FIRST_TICK} + {APART} * id end tick",
        f"case when {deal} then concat('pub', {who}, '/e1/', id - id % {PER_DEAL} + 2) end tx",
        f"pmod(xxhash64(id, {scale.seed}), {scale.kinds}) kind",
    ).selectExpr(
        "*",
        f"concat(unhex('{_FRAME[:head]}'), unhex(lpad(hex(kind), 2, '0')), unhex('a16ece'), "
        f"unhex(lpad(hex(id + {1 << 31}), 8, '0')), unhex('{_FRAME[tail:]}')) body",
    )  # fmt: skip


def _deliveries(events: DataFrame, scale: Scale) -> DataFrame:
    return events.selectExpr(
        "id nth", "sent_at + 0.02 at", "client publisher", "number", "pubend", "tick",
        "kind", f"explode(sequence(0, {scale.each - 1})) one",
    ).selectExpr("*", f"one * {scale.kinds} + kind reader").selectExpr(
        "*", "concat('sub', reader) process", "1 handle", "concat('sub', reader, '/e1/1') op",
        "true came", "true taken",
    )  # fmt: skip


def _deals(deals: DataFrame, events: DataFrame) -> dict[str, DataFrame]:
    """The second event of each is one millisecond behind the first."""
    return {
        "transactions": deals.selectExpr(
            "tx", "'static' kind", "client", "epoch", "sent_at at", "sent_at commit_at",
            "sent_at + 0.02 answered_at", "'committed' outcome",
        ),
        "words": deals.selectExpr(
            "tx", "client who", "sent_at + 0.02 at", "sent_at asked_at", "'committed' outcome",
            f"cast(id / {PER_DEAL} as bigint) + 1 number",
        ),
        "hearers": deals.select("tx", "client", "epoch"),
        "cuts": deals.selectExpr(
            "pubend", "tick - 1 tick", "tick + 1 last", "tx",
            f"cast(id / {PER_DEAL} as bigint) + 1 number", "sent_at at",
        ),
        "deeds": events.where("tx is not null").selectExpr(
            "tx", f"lpad(cast(id % {PER_DEAL} as string), 4, '0') place", "'publish' kind",
            "client", "epoch",
            f"-1 - id % {PER_DEAL} number", "sent_at at", "'Done' answer", "id event",
            "true is_planned", "true stays",
        ),
    }  # fmt: skip
