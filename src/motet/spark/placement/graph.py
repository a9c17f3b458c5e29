"""From a history to the graph of its topics: publications by place, and pairs that streams have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from motet.audit.schema import spark_schema
from motet.errors import MisuseError
from motet.placement.graph import TopicGraph

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RENEWED: Final = r"\.[0-9]+$"
"""The end of a stream's name. It counts how often the stream has joined."""


class RecordedGraph(NamedTuple):
    graph: TopicGraph
    strays: int
    """Publications of clients that were near none of the sites: as if near the lowest one."""


def topic_graph(spark: SparkSession, folder: str | Path, sites: Sequence[str]) -> RecordedGraph:
    """`sites`: where topics may live, lowest first. A client is near the site that it connected to
    first. A stream has all topics that it ever had."""
    published = _read(spark, folder, "order_published")
    if published is None:
        raise MisuseError(
            f"{folder} has no publications on ordered topics; clients of motet.ordering record "
            "them with `history = DIR`, or if MOTET_HISTORY names the folder"
        )
    graph, strays = TopicGraph(tuple(sites)), 0
    counted = published.groupBy("topic", "place").count().orderBy("topic", "place")
    for topic, place, count in counted.collect():
        strays += 0 if place in graph.sites else count
        graph.published(topic, place if place in graph.sites else sites[0], count)
    cuts = _read(spark, folder, "order_cuts")
    if cuts is not None:
        for topic in _topics(cuts):
            graph.published(topic, sites[0], 0)
        for one, other, streams in _pairs(cuts).collect():
            graph.combined((one, other), streams)
    return RecordedGraph(graph, strays)


def _topics(cuts: DataFrame) -> list[str]:
    return [row[0] for row in cuts.select("topic").distinct().orderBy("topic").collect()]


def _pairs(cuts: DataFrame) -> DataFrame:
    """Two topics in alphabetical order, and the number of streams that have had both."""
    stream = F.xxhash64("run", F.regexp_replace("stream", RENEWED, ""))
    had = cuts.where("what = 'cut'").select(stream.alias("stream"), "topic").distinct()
    one, other = had.withColumnRenamed("topic", "one"), had.withColumnRenamed("topic", "other")
    both = one.join(other, "stream").where("one < other")
    return both.groupBy("one", "other").count().orderBy("one", "other")


def _read(spark: SparkSession, folder: str | Path, table: str) -> DataFrame | None:
    if "://" not in str(folder):
        if not Path(folder).is_dir():
            raise MisuseError(f"the folder {folder} does not exist")
        if not any(Path(folder, table).glob("*.parquet")):
            return None
    return spark.read.schema(spark_schema(table)).parquet(f"{folder}/{table}")
