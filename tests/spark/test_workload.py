"""Workloads: the same seed gives the same rows, and they are what the papers describe."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.model import Filter, covers
from motet.spark.workload import (
    covering_subscriptions,
    publications,
    store,
    subscriptions,
    workflow_log,
)
from motet.spark.workload.randomness import MODELS, fitting
from motet.spark.workload.topics import SHAPES, nodes

SIZE = 400


def marks(spark: SparkSession, seed: int) -> list[str]:
    """Of each workload, what is the same for the same rows in any order."""
    frames = [
        publications(spark, SIZE, seed=seed),
        subscriptions(spark, SIZE // 10, seed=seed),
        covering_subscriptions(spark, SIZE, seed=seed),
        workflow_log(spark, SIZE // 10, seed=seed),
    ]
    sums = [
        each.select(
            F.lit(at).alias("at"), F.sum(F.xxhash64("*").cast("decimal(38,0)")).alias("sum")
        )
        for at, each in enumerate(frames)
    ]
    together = reduce(DataFrame.union, sums)  # one job: jobs are dear
    return [str(row["sum"]) for row in sorted(together.collect())]


def test_the_same_seed_gives_the_same_rows_in_however_many_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_as_many_as_there_are_cores = marks(spark, 7)
    numbers = SparkSession.range
    monkeypatch.setattr(SparkSession, "range", lambda self, end: numbers(self, 0, end, 1, 5))
    assert spark.range(10).rdd.getNumPartitions() == 5
    assert marks(spark, 7) == in_as_many_as_there_are_cores
    others = marks(spark, 8)
    assert all(one != o for one, o in zip(in_as_many_as_there_are_cores, others, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_favourites_get_four_fifths(spark: SparkSession, model: str) -> None:
    """Paper 4, section 5.1: 0.5 % of topics, or 40 %, have a probability of 80 %."""
    law = fitting(1000, MODELS[model])
    first = round(1000 * MODELS[model])
    assert law.mass(first) == pytest.approx(0.8)
    frame = publications(spark, 20_000, seed=1, popularity=model, sites=1)
    found = frame.where(F.col("topic") <= first).count()
    assert found / 20_000 == pytest.approx(0.8, abs=0.02)


def test_subscriptions_have_different_topics_and_say_so(spark: SparkSession) -> None:
    rows = subscriptions(spark, 50, seed=3, sites=5, size=10).collect()
    for row in rows:
        assert len(set(row["topics"])) == 10
        wanted = Filter.parse(row["filter"])
        assert all(wanted.matches({"topic": topic}) for topic in row["topics"])
        assert not wanted.matches({"topic": 0})
    favourites = sum(row["site"] * 200 + 1 in row["topics"] for row in rows)
    assert favourites > 45, "what is first at a site is wanted by nearly all of its clients"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [1, 10, 33])
def test_shapes_cover_as_they_say(shape: str, width: int) -> None:
    """Paper 3, figure 7."""
    made = nodes(shape, width)
    filters = [Filter.parse(each.filter) for each in made]
    found = [sum(covers(one, other) for other in filters) - 1 for one in filters]
    assert found == [each.covered for each in made]
    for each in made:
        if each.parent is not None:
            assert covers(filters[each.parent - 1], filters[each.node - 1])
    if shape == "covered":
        assert found == [width - 1] + [0] * (width - 1)


def test_random_takes_from_all_shapes(spark: SparkSession) -> None:
    rows = covering_subscriptions(spark, 400, seed=2).collect()
    counts = Counter(row["shape"] for row in rows)
    assert set(counts) == set(SHAPES)
    assert min(counts.values()) > 70
    with pytest.raises(MisuseError, match=r"unknown shape .*; choose from covered, chained"):
        covering_subscriptions(spark, 4, shape="round")


def test_a_generated_workflow_log_has_plausible_cases(spark: SparkSession, tmp_path: Path) -> None:
    frame = workflow_log(spark, 200, seed=5, open_share=0.1)
    rows = store(frame, tmp_path / "log", {"seed": 5})
    events = spark.read.parquet(str(tmp_path / "log")).collect()
    assert rows == len(events)
    cases: dict[str, list[tuple[object, str, str, str | None]]] = {}
    for row in sorted(events, key=lambda row: (row["time"], row["transition"] != "complete")):
        story = (row["time"], row["transition"], row["agent"], row["handed_by"])
        cases.setdefault(row["case"], []).append(story)
    assert len(cases) == 200
    open_cases = 0
    for story in cases.values():
        words = [each[1] for each in story]
        assert words == (["start", "complete"] * len(words))[: len(words)]
        open_cases += words[-1] == "start"
        for before, after in zip(story[1::2], story[2::2], strict=False):
            assert after[3] == (before[2] if before[2] != after[2] else None)
    assert 8 <= open_cases <= 35
    with pytest.raises(MisuseError, match="is not empty"):
        store(frame, tmp_path / "log", {})
