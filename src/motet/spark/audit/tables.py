"""A history as frames of Spark, table by table; what nobody has written is empty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.audit.excuses import severed
from motet.audit.schema import NAMED, TABLES, spark_schema
from motet.audit.writing import read_table
from motet.errors import MisuseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_BYTES = 4 << 20
"""A history that is not larger is judged in one partition."""
UNSEEN = {"spark.sql.ui.explainMode": "simple", "spark.sql.maxPlanStringLength": "1000"}
"""Spark writes its plans down, and again whenever they change: ours are long, and nobody reads
them."""
FOR_SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SEVERED = "run string, one string, other string, ends_until double, path_until double"


class Facts(NamedTuple):
    ordered: int
    """Subscriptions in total order."""
    reaches: bool
    """Some reach into the past."""
    own_cursors: bool
    """Some are of applications that write their own cursors down."""


class History:
    """A folder of histories. Every frame is read anew when it is used."""

    def __init__(
        self,
        spark: SparkSession,
        folder: str | Path,
        small_bytes: int = SMALL_BYTES,
        slack_s: float = 0.0,
    ) -> None:
        self.spark = spark
        self.folder = str(folder)
        sizes = {name: _bytes_of(self.folder, name) for name in TABLES}
        self.is_small = sum(sizes.values()) <= small_bytes
        self._short = {name for name, size in sizes.items() if size <= small_bytes}
        """Tables that are small, even if the history is not."""
        self._kept: list[DataFrame] = []
        self.slack_s = slack_s
        """How far clocks may differ."""
        self._tables = {name: self._read(name) for name in TABLES}
        for name in ("brokers", "links"):  # written again by each life of a broker
            self._tables[name] = self._tables[name].distinct()
        for name, key in NAMED.items():
            found = self._latest(self._tables[name], "run", *key)
            self._tables[name] = self.keep(found, name)

    def _read(self, name: str) -> DataFrame:
        if not _is_remote(self.folder) and not any(Path(self.folder, name).glob("*.parquet")):
            return self.rows([], spark_schema(name))
        if name in self._short:  # many small files take Spark long
            return self.spark.createDataFrame(read_table(self.folder, name)).coalesce(1)
        return self.spark.read.schema(spark_schema(name)).parquet(f"{self.folder}/{name}")

    def _latest(self, frame: DataFrame, *key: str) -> DataFrame:
        """Of rows that were written again, the last one."""
        order = Window.partitionBy(*key).orderBy(F.desc("version"))
        ranked = frame.withColumn("rank", F.row_number().over(order))
        return ranked.where("rank = 1").drop("rank")

    def rows(self, rows: list[Any], schema: str) -> DataFrame:
        """A frame of few."""
        return self.spark.createDataFrame(rows, schema).coalesce(1)

    def aside(self, frame: DataFrame) -> DataFrame:
        """One that is small enough to be sent to every task, where there are several."""
        return frame if self.is_small else F.broadcast(frame)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """While it is judged. A small history is one partition: nothing is sent around, and there
        are few tasks."""
        conf = self.spark.conf
        wanted = {**UNSEEN, **(FOR_SMALL if self.is_small else {})}
        before = {name: conf.get(name, None) for name in wanted}
        try:
            for name, value in wanted.items():
                conf.set(name, value)
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    conf.unset(name)
                else:
                    conf.set(name, value)

    def __getitem__(self, name: str) -> DataFrame:
        return self._tables[name]

    def keep(self, frame: DataFrame, *tables: str) -> DataFrame:
        """A frame that is used more than once. If it is small, or made of these tables, which are,
        it forgets how it was made: plans that are made of many others take longer to make than to
        carry out."""
        if self.is_small or (tables and self._short >= set(tables)):
            return frame.localCheckpoint()
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def brief(self, frame: DataFrame) -> DataFrame:
        """One that is used more than once, and is better made again than kept, unless all is
        small."""
        return self.keep(frame) if self.is_small else frame

    def gathered(self) -> History:
        """The same for what is small though the history is not: in one partition."""
        if self.is_small:
            return self
        found = copy(self)
        found.is_small = True
        found._tables = {name: each.coalesce(1) for name, each in self._tables.items()}
        for name in ("homes", "starts", "subscriptions", "severed", "numbered"):
            found.__dict__[name] = getattr(self, name).coalesce(1)
        return found

    def settle(self, frame: DataFrame) -> DataFrame:
        """A frame that is used more than once, in SQL: there, Spark does not know again what it
        has kept."""
        return frame.localCheckpoint()

    def gather(self, frame: DataFrame) -> DataFrame:
        """A frame with few rows, found by many tasks."""
        return (frame if self.is_small else frame.repartition(1)).localCheckpoint()

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    @cached_property
    def filters(self) -> dict[str, int]:
        """All filters, as text, each with a number."""
        asked = self["operations"].where("filter <> ''").select("filter").distinct()
        return {text: at for at, text in enumerate(sorted(row[0] for row in asked.collect()))}

    @cached_property
    def numbered(self) -> DataFrame:
        rows = [(text, at) for text, at in self.filters.items()]
        return self.rows(rows, "filter string, f int")

    @cached_property
    def severed(self) -> DataFrame:
        """By pair of brokers: until when something on the way has forgotten what it knew."""
        names = ("brokers", "links", "amnesia")
        rows = severed(*([row.asDict() for row in self[name].collect()] for name in names))
        return self.rows(rows, SEVERED)

    @cached_property
    def facts(self) -> Facts:
        """Of subscriptions, all that decides what has to be looked at."""
        found = self.subscriptions.agg(
            F.count_if("total_order"), F.bool_or(F.col("since").isNotNull()),
            F.bool_or("own_cursors"),
        ).first()  # fmt: skip
        assert found is not None
        return Facts(int(found[0]), bool(found[1]), bool(found[2]))

    @cached_property
    def homes(self) -> DataFrame:
        """The broker of every session, which several processes may have had."""
        found = self["sessions"].groupBy("run", "client", "epoch")
        return self.keep(found.agg(F.min("broker").alias("broker")), "sessions")

    @cached_property
    def starts(self) -> DataFrame:
        """By subscription and pubend: where it has started, first and last."""
        found = self["starts"].groupBy("run", "op", "pubend")
        found = found.agg(F.min("first").alias("first"), F.max("tick").alias("tick"))
        return self.keep(found, "starts")

    @cached_property
    def subscriptions(self) -> DataFrame:
        """Every subscription with its session, and the number of its filter."""
        sessions = self["sessions"].selectExpr(
            "run", "client", "epoch", "process", "broker", "total_order", "own_cursors",
            "opened_at session_opened_at", "ended_at session_ended_at",
            "lasting session_lasting",
        )  # fmt: skip
        wanted = self["operations"].where(
            "kind = 'subscribe' and filter <> '' and not is_forgotten"
        )
        found = wanted.join(sessions, ["run", "client", "epoch", "process"], "left").join(
            self.numbered, "filter"
        )
        return self.keep(found, "operations", "sessions")


def _is_remote(folder: str) -> bool:
    return "://" in folder


def _bytes_of(folder: str, table: str) -> float:
    if _is_remote(folder):
        return float("inf")
    return sum(path.stat().st_size for path in Path(folder, table).glob("*.parquet"))


def check_folder(folder: str | Path) -> None:
    """Is there a history at all?"""
    if _is_remote(str(folder)):
        return
    path = Path(folder)
    if not path.is_dir():
        raise MisuseError(f"there is no folder {path}")
    if not any(any(path.glob(f"{name}/*.parquet")) for name in TABLES):
        raise MisuseError(
            f"{path} has no history; brokers and clients write one with `history = DIR`, "
            "the simulator with `motet sim --history DIR`"
        )
