"""A history as frames of Spark, table by table; what nobody has written is empty."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from motet.audit.excuses import severed
from motet.audit.schema import TABLES, spark_schema
from motet.errors import MisuseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEVERED = "run string, one string, other string, ends_until double, path_until double"


class History:
    """A folder of histories. Every frame is read anew when it is used."""

    def __init__(self, spark: SparkSession, folder: str | Path) -> None:
        self.spark = spark
        self.folder = str(folder)
        self._kept: list[DataFrame] = []
        self._tables = {name: self._read(name) for name in TABLES}

    def _read(self, name: str) -> DataFrame:
        path = Path(self.folder, name)
        is_remote = "://" in self.folder
        if not is_remote and not any(path.glob("*.parquet")):
            return self.spark.createDataFrame([], spark_schema(name))
        return self.spark.read.schema(spark_schema(name)).parquet(f"{self.folder}/{name}")

    def __getitem__(self, name: str) -> DataFrame:
        return self._tables[name]

    def keep(self, frame: DataFrame) -> DataFrame:
        """A frame that is used more than once."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept

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
        return self.spark.createDataFrame(rows, "filter string, f int")

    @cached_property
    def severed(self) -> DataFrame:
        """By pair of brokers: until when something on the way has forgotten what it knew."""
        names = ("brokers", "links", "amnesia")
        rows = severed(*([row.asDict() for row in self[name].collect()] for name in names))
        return self.spark.createDataFrame(rows, SEVERED)

    @cached_property
    def subscriptions(self) -> DataFrame:
        """Every subscription with its session, and the number of its filter."""
        sessions = self["sessions"].selectExpr(
            "run", "client", "epoch", "broker", "total_order", "own_cursors",
            "opened_at session_opened_at", "ended_at session_ended_at",
            "lasting session_lasting",
        )  # fmt: skip
        wanted = self["operations"].where("kind = 'subscribe' and filter <> '' and not is_forgotten")
        found = wanted.join(sessions, ["run", "client", "epoch"], "left").join(
            self.numbered, "filter"
        )
        return self.keep(found)


def check_folder(folder: str | Path) -> None:
    """Is there a history at all?"""
    if "://" in str(folder):
        return
    path = Path(folder)
    if not path.is_dir():
        raise MisuseError(f"there is no folder {path}")
    if not any(any(path.glob(f"{name}/*.parquet")) for name in TABLES):
        raise MisuseError(
            f"{path} has no history; brokers and clients write one with `history = DIR`, "
            "the simulator with `motet sim --history DIR`"
        )
