"""Insight: what a log says, by hand and by Spark, at once and as it comes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import motet
from motet.spark.insight import of_brokers, of_log, pending, report, visits
from motet.spark.insight.events import Case, Happened, stream_of_brokers
from motet.spark.insight.pictures import draw
from motet.spark.insight.report import InsightReport, events_of, publish
from motet.spark.insight.stream import follow, moment_of
from motet.spark.replay import Replay, Speed, prepare
from motet.spark.workload import store, workflow_log
from tests.spark.ground import Pair
from tests.waiting import JOB_S, PATIENCE_S

CASES = 150
TOLD = ("process", "case", "step", "agent", "handed_by", "ready", "start", "end")


@pytest.fixture(scope="module")
def log(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "made"
    made = workflow_log(spark, CASES, seed=11, open_share=0.1)
    store(made.withColumn("log", F.lit("insight")), folder, {})
    return folder


@pytest.fixture(scope="module")
def found(spark: SparkSession, log: Path) -> InsightReport:
    events = of_log(spark, log)
    return report(events.count(), visits(events), pending(events))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in TOLD) for row in frame.collect()), key=str)


def by_hand(spark: SparkSession, log: Path) -> list[tuple[Any, ...]]:
    cases: dict[tuple[str, str], list[Happened]] = defaultdict(list)
    for row in of_log(spark, log).orderBy("time", "place").collect():
        event = Happened(row["time"], row["step"], row["agent"], row["transition"])
        cases[row["process"], row["case"]].append(event)
    told = [(*key, *visit) for key, events in cases.items() for visit in Case().take(events)]
    return sorted(told, key=str)


def test_visits_computed_in_bulk_equal_those_computed_case_by_case(
    spark: SparkSession, log: Path
) -> None:
    assert rows(visits(of_log(spark, log))) == by_hand(spark, log)


def test_a_report_adds_up(spark: SparkSession, log: Path, found: InsightReport) -> None:
    events = of_log(spark, log).collect()
    done = sum(row["transition"] == "complete" for row in events)
    assert (found.events, found.cases) == (len(events), CASES)
    assert sum(row["visits"] for row in found.steps) == done
    under_way = sum(row["why"] == "under way" for row in found.open_cases)
    assert under_way == len(events) - 2 * done
    for row in found.steps:
        assert row["handling_p50_s"] <= row["handling_p95_s"]
        assert row["agents"] <= row["visits"]
    direct = spark.read.parquet(str(log)).where("transition = 'complete'")
    handed = direct.where(F.col("handed_by").isNotNull()).select("handed_by", "agent").collect()
    assert sum(row["count"] for row in found.handovers) == len(handed)
    assert found.pair_count == len(set(handed))
    assert found.outlier_count == len(found.outliers)
    assert all(row["times"] > 2 for row in found.outliers)


def test_pictures(found: InsightReport, tmp_path: Path) -> None:
    names = [path.name for path in draw(found, tmp_path)]
    assert names[:2] == ["steps.png", "handovers.png"]
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000


def test_a_stream_is_followed_and_told_in_one_transaction(
    spark: SparkSession, log: Path, busy: Pair, found: InsightReport, tmp_path: Path
) -> None:
    """Given a log that is replayed in two parts of a stream, then what is known by its end is what
    the log says; and who listens to the results has all of them, of one transaction."""
    plan = prepare(spark, log, tmp_path / "work", publishers=2)
    replay = Replay(plan, busy.urls.split(","), Speed.parse("max"))
    assert asyncio.run(replay.run()).published == found.events
    space = "log = 'insight'"
    assert of_brokers(spark, busy.urls, space).count() == found.events
    stream = stream_of_brokers(spark, busy.urls, space, maxEventsPerTrigger=str(found.events // 2))
    told_steps: dict[str, list[dict[str, Any]]] = {}

    def news(steps: list[dict[str, Any]], key: str) -> None:
        told_steps[key] = steps

    queries = follow(stream, tmp_path, late="20 days", available_now=True, news=news)
    for query in queries:
        assert query.awaitTermination(JOB_S)
        assert query.exception() is None
    assert len(told_steps) > 1
    assert [*told_steps.values()][-1] == found.steps
    assert rows(spark.read.parquet(f"{tmp_path}/visits")) == by_hand(spark, log)
    moment = moment_of(tmp_path)
    assert moment is not None
    assert moment.batch == len(told_steps) - 1
    assert rows(moment.visits(spark, tmp_path)) == by_hand(spark, log)
    assert of_brokers(spark, busy.urls, space, upto=moment.upto).count() == found.events
    windows = spark.read.parquet(f"{tmp_path}/rates").collect()
    assert 0 < sum(row["events"] for row in windows) <= found.events

    url = busy.brokers[0].address
    with motet.connect_sync(busy.brokers[1].address, client_id="listener") as listener:
        results = listener.subscribe("insight is not null")
        told = events_of(found)
        name = publish(spark, told, url, key="once")
        assert publish(spark, told, url, key="once") == name
        heard = [results.get(timeout=PATIENCE_S) for _ in told]
    assert {event.transaction for event in heard} == {name}
    assert [event["insight"] for event in heard] == [each["insight"] for each in told]
