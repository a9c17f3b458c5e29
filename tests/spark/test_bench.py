"""`motet bench spark`, as small as it can be: every side runs, and all rows come."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from motet.bench import spark as bench

SMALLEST = bench.Effort(rounds=1, events=2000, batches=1, warm_rounds=0, warm_batches=0)


@pytest.mark.soak
def test_every_figure_is_measured_and_no_row_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []
    figures = bench.measure(spark, tmp_path, SMALLEST, told.append)
    assert all(figure.counts for figure in figures)
    assert all(figure.value > 0 for figure in figures[:-1])
    goals = [figure.goal for figure in figures if figure.goal is not None]
    speedup = bench.LEAST_SPEEDUP * (figures[2].floor or 0)
    assert goals == [bench.LEAST_READ_PER_S, speedup, bench.LEAST_WRITTEN_PER_S, 100]
    assert told[-1] == "round 1 of 1, 2 of 2: micro-batches nowhere"


def test_a_figure_does_not_count_if_rows_are_missing() -> None:
    took_s = {bench.WRITTEN: 1.0, bench.DROPPED: 0.5}
    (figure,) = bench._write_figures(1000, took_s, counts=False)
    assert figure.holds is False


def test_a_half_published_batch_is_seen(spark: SparkSession) -> None:
    streams = bench.Streams(spark, "motet://127.0.0.1:1", SMALLEST)
    streams._sinks = {"one": 3}
    assert streams.all_came({"one": 300})
    assert streams.all_came({"one": 400})
    assert not streams.all_came({"one": 350})
    assert not streams.all_came({"one": 200})
    assert not streams.all_came({})
