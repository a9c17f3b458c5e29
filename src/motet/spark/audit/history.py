"""A history as Spark frames, one per table; tables that were not written are empty. Also the
catalogue of its events, and violations as rows of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property, lru_cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F

from motet.audit.excuses import severed
from motet.audit.files import read_table
from motet.audit.schema import NAMED, TABLES, spark_schema
from motet.audit.verdicts import EXAMPLES, Finding
from motet.errors import MisuseError
from motet.matching import FilterIndex, create_index
from motet.model import as_filter, decode_attributes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# ── tables ───────────────────────────────────────────────────────────────────────────────

SMALL_BYTES = 4 << 20
"""Histories up to this size are judged in one partition."""
ROW_BYTES = 30
FOOTER_BYTES = 1 << 15
UNSEEN = {"spark.sql.ui.explainMode": "simple", "spark.sql.maxPlanStringLength": "1000"}
"""Spark records its plans whenever they change; these are long and never read, so shorten them."""
FOR_SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SEVERED = "run string, one string, other string, ends_until double, path_until double"


class HistoryFacts(NamedTuple):
    ordered: int
    """Number of subscriptions in total order."""
    reaches: bool
    """Whether some subscriptions begin in the past (`since`)."""
    own_cursors: bool
    """Whether some applications store their own cursors."""


class RecordedHistory:
    """A folder of histories. Frames are read again each time they are used."""

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
        """Tables that are small even if the history is not."""
        self._kept: list[DataFrame] = []
        self.slack_s = slack_s
        """How far clocks may differ."""
        self._tables = {name: self._read(name) for name in TABLES}
        for name in ("brokers", "links"):  # written again in each life of a broker
            self._tables[name] = self._tables[name].distinct()
        for name, key in NAMED.items():
            found = self._latest(self._tables[name], "run", *key)
            self._tables[name] = self.keep(found, name)

    def has(self, *tables: str) -> bool:
        """Whether one of these tables was written."""
        return any(map(self._is_written, tables))

    def _is_written(self, name: str) -> bool:
        return _is_remote(self.folder) or any(Path(self.folder, name).glob("*.parquet"))

    def _read(self, name: str) -> DataFrame:
        if not self._is_written(name):
            return self.rows([], spark_schema(name))
        if name in self._short:  # Spark is slow with many small files
            return self.spark.createDataFrame(read_table(self.folder, name)).coalesce(1)
        return self.spark.read.schema(spark_schema(name)).parquet(f"{self.folder}/{name}")

    def _latest(self, frame: DataFrame, *key: str) -> DataFrame:
        """The last version of rows that were written several times."""
        order = Window.partitionBy(*key).orderBy(F.desc("version"))
        ranked = frame.withColumn("rank", F.row_number().over(order))
        return ranked.where("rank = 1").drop("rank")

    def rows(self, rows: list[Any], schema: str) -> DataFrame:
        """A frame of a few rows."""
        return self.spark.createDataFrame(rows, schema).coalesce(1)

    def aside(self, frame: DataFrame) -> DataFrame:
        """Marks a small frame to be broadcast to all tasks, unless there is only one."""
        return frame if self.is_small else F.broadcast(frame)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Spark's settings during the audit. A small history is one partition: no shuffles, few
        tasks."""
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
        """Keep a frame that is used more than once. If the history or the given source tables are
        small, its lineage is cut: plans built from many others take longer to plan than to execute.
        """
        if self.is_small or (tables and self._short >= set(tables)):
            return frame.localCheckpoint()
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def brief(self, frame: DataFrame) -> DataFrame:
        """Keep a frame only if the history is small; otherwise recomputing it is cheaper."""
        return self.keep(frame) if self.is_small else frame

    def gathered(self) -> RecordedHistory:
        """The same history in one partition, for parts that are small though the history is not."""
        if self.is_small:
            return self
        found = copy(self)
        found.is_small = True
        found._tables = {name: each.coalesce(1) for name, each in self._tables.items()}
        for name in ("homes", "starts", "subscriptions", "severed", "numbered"):
            found.__dict__[name] = getattr(self, name).coalesce(1)
        return found

    def settle(self, frame: DataFrame) -> DataFrame:
        """Keep a frame that is used more than once in SQL, where Spark does not recognise cached
        frames."""
        return frame.localCheckpoint()

    def gather(self, frame: DataFrame) -> DataFrame:
        """Keep a frame with few rows that many tasks produced, in one partition."""
        return (frame if self.is_small else frame.repartition(1)).localCheckpoint()

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    @cached_property
    def filters(self) -> dict[str, int]:
        """All filters as text, each with a number."""
        asked = self["operations"].where("filter <> ''").select("filter").distinct()
        return {text: at for at, text in enumerate(sorted(row[0] for row in asked.collect()))}

    @cached_property
    def numbered(self) -> DataFrame:
        rows = [(text, at) for text, at in self.filters.items()]
        return self.rows(rows, "filter string, f int")

    @cached_property
    def severed(self) -> DataFrame:
        """By pair of brokers: until when a broker on the path had lost its state."""
        names = ("brokers", "links", "amnesia")
        rows = severed(*([row.asDict() for row in self[name].collect()] for name in names))
        return self.rows(rows, SEVERED)

    @cached_property
    def facts(self) -> HistoryFacts:
        """Properties of the subscriptions that decide what has to be checked."""
        found = self.subscriptions.agg(
            F.count_if("total_order"), F.bool_or(F.col("since").isNotNull()),
            F.bool_or("own_cursors"),
        ).first()  # fmt: skip
        assert found is not None
        return HistoryFacts(int(found[0]), bool(found[1]), bool(found[2]))

    @cached_property
    def homes(self) -> DataFrame:
        """The broker of every session; several processes may have used the session."""
        found = self["sessions"].groupBy("run", "client", "epoch")
        return self.keep(found.agg(F.min("broker").alias("broker")), "sessions")

    @cached_property
    def starts(self) -> DataFrame:
        """By subscription and pubend: its first and last start."""
        found = self["starts"].groupBy("run", "op", "pubend")
        found = found.agg(F.min("first").alias("first"), F.max("tick").alias("tick"))
        return self.keep(found, "starts")

    @cached_property
    def ends(self) -> DataFrame:
        """By subscription and pubend: the last tick owed to a subscription that a transaction has
        ended."""
        found = self["ends"].groupBy("run", "op", "pubend").agg(F.max("tick").alias("end"))
        return self.keep(found, "ends")

    @cached_property
    def subscriptions(self) -> DataFrame:
        """Every subscription with its session and the number of its filter."""
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
    """The size of its files, but `ROW_BYTES` for each row at the least: some rows compress well."""
    if _is_remote(folder):
        return float("inf")
    return sum(map(_bytes_in, Path(folder, table).glob("*.parquet")))


def _bytes_in(path: Path) -> int:
    size = path.stat().st_size
    if size < FOOTER_BYTES:  # most of it is no rows, and there may be thousands of them
        return size
    try:
        rows: int = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError):
        return size  # whoever reads it says what is wrong with it
    return max(size, rows * ROW_BYTES)


def check_folder(folder: str | Path) -> None:
    """Raises `MisuseError` if there is no history."""
    if _is_remote(str(folder)):
        return
    path = Path(folder)
    if not path.is_dir():
        raise MisuseError(f"the folder {path} does not exist")
    if not any(any(path.glob(f"{name}/*.parquet")) for name in TABLES):
        raise MisuseError(
            f"{path} has no history; brokers and clients write one with `history = DIR`, "
            "the simulator with `motet sim --history DIR`"
        )


# ── filters that match ───────────────────────────────────────────────────────────────────

REMEMBERED = 1 << 16
"""Number of bodies whose filters a task caches: many events have the same attributes."""


def with_filters(frame: DataFrame, filters: dict[str, int]) -> DataFrame:
    """Replace `body` by the numbers of all filters that match it. No other column goes to Python:
    lists above all take Spark long to send."""
    from pyspark.sql import functions as F

    match = F.arrow_udf(_matching(tuple(filters)), "array<int>")
    return frame.withColumn("filters", match("body")).drop("body")


def _matching(texts: tuple[str, ...]) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    def match(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        index = _index(texts)
        known: dict[bytes | None, list[int]] = {None: []}
        for batch in batches:
            found: list[list[int]] = []
            for body in batch.to_pylist():
                numbers = known.get(body)
                if numbers is None:
                    numbers = index.match(decode_attributes(body))
                    if len(known) < REMEMBERED:
                        known[body] = numbers
                found.append(numbers)
            yield pa.array(found, pa.list_(pa.int32()))

    # Spark inspects the annotations, and does not understand them as text.
    match.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    return match


@lru_cache(maxsize=4)
def _index(texts: tuple[str, ...]) -> FilterIndex:
    """Filters are numbered in the given order."""
    index = create_index()
    for number, text in enumerate(texts):
        index.add(number, as_filter(text), 0)
    return index


# ── catalogue ────────────────────────────────────────────────────────────────────────────

KEY = ["number", "client", "epoch", "run"]
"""In the order of selectivity: rows are sorted by it."""


def catalogue(history: RecordedHistory) -> DataFrame:
    """One row per event, or more if it was logged more than once. Events that the publisher did not
    record are taken from the log; when they were sent is then unknown."""
    logged = history["logged"].withColumnsRenamed({"body": "logged_body", "tx": "logged_tx"})
    events = (
        history["events"]
        .join(logged, KEY, "full")
        .select(
            *KEY,
            F.coalesce("body", "logged_body").alias("body"),
            F.col("position"),
            F.coalesce("last_position", "position").alias("last_position"),
            F.coalesce("sent_at", F.lit(float("-inf"))).alias("sent_at"),
            F.coalesce("settled_at", F.lit(float("inf"))).alias("settled_at"),
            F.coalesce("fate", F.lit("accepted")).alias("fate"),
            F.coalesce("is_sure", F.lit(True)).alias("is_sure"),
            F.coalesce("tx", "logged_tx").alias("tx"),
            F.coalesce("pubend", F.lit("")).alias("pubend"),
            F.coalesce("tick", F.lit(0)).alias("tick"),
            "audience",
        )
    )
    matched = with_filters(events, history.filters)
    spaces = _spaces(history)
    session = ["run", "client", "epoch"]
    found = matched.join(history.aside(history.homes), session, "left")
    found = found.join(history.aside(spaces), session, "left")
    return found.select(
        *(name for name in found.columns if name != "ads"),
        F.expr(f"coalesce(exists(ads, ad -> {IN_SPACE}), position is null)").alias("maybe"),
        F.expr(f"coalesce(exists(ads, ad -> {IN_SPACE} and {SURELY}), false)").alias("surely"),
        F.expr(f"coalesce(exists(ads, ad -> {IN_SPACE} and {CARRIES}), false)").alias("carried"),
    )


IN_SPACE = (
    "ad.position < position and position < ad.ended_position and array_contains(filters, ad.f)"
)
"""The session had advertised the event."""
CARRIES = "ad.effective_at <= sent_at and not ad.is_forgotten"
"""Every broker knew the advertisement when the event was sent."""
SURELY = (
    "ad.answer in ('Done', '') and not ad.is_forgotten and ad.tx = '' "
    "and last_position <= least(ad.ended_position, ad.doubted_position)"
)
"""The advertisement had not ended and could not have ended."""


def _spaces(history: RecordedHistory) -> DataFrame:
    """The advertisements of each session."""
    ads = history["operations"].where("kind = 'advertise' and filter <> ''")
    names = ("f", "position", "ended_position", "doubted_position", "effective_at", "answer")
    return (
        ads.join(history.numbered, "filter")
        .groupBy("run", "client", "epoch")
        .agg(F.collect_list(F.struct(*names, "tx", "is_forgotten")).alias("ads"))
    )


# ── findings ─────────────────────────────────────────────────────────────────────────────


def violations(frame: DataFrame, guarantee: str, kind: str, text: str, *columns: str) -> DataFrame:
    """Every row of a frame is a violation, described by `text`: each %s is replaced by one of the
    columns (or SQL expressions)."""
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
