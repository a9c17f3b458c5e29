"""`motet bench spark`, as small as it can be: every side runs, and all rows come."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from motet.cli.console import FINE
from motet.cli.main import run
from motet_labs.bench import audit
from motet_labs.bench import spark as bench
from motet_labs.figures import Size
from tests.spark.test_quiet import motet

SMALLEST = bench.EFFORTS[Size.LEAST]


def test_every_figure_is_measured_no_row_is_lost_and_spark_prints_nothing() -> None:
    """In a process of its own, because what Spark prints at its start and end counts, too."""
    done = motet("bench", "spark", "--least", "--json")
    assert (done.returncode, done.stderr) == (FINE, "")
    figures = json.loads(done.stdout)["results"]
    assert all(math.isfinite(figure["value"]) for figure in figures)
    assert all(figure["value"] > 0 for figure in figures[:-1])
    goals = [figure["goal"] for figure in figures if figure["goal"] is not None]
    speedup = pytest.approx(bench.LEAST_SPEEDUP * figures[2]["floor"], rel=1e-4)
    assert goals == [bench.LEAST_READ_PER_S, speedup, bench.LEAST_WRITTEN_PER_S, 100]


def test_a_history_is_made_and_judged_and_spark_prints_nothing(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The history is generated in a process of its own. What an audit finds is tested elsewhere,
    and takes long."""
    in_process = audit._in_process

    def work(what: str, folder: str, master: str, deliveries: int = 0) -> dict[str, Any]:
        assert master in (audit.ONE_CORE, audit.TWO_CORES)
        if what == "generate":
            return in_process(what, folder, master, deliveries)
        assert what == "generate order" or any(Path(folder).iterdir())
        return audit.work(spark, what, folder, deliveries)

    deliveries = audit.DELIVERIES[Size.LEAST]
    ordered = audit.ORDERED[Size.LEAST]
    checked = {"exactly-once": deliveries, "notification-order": ordered}
    found = SimpleNamespace(checked=checked, seconds=2.0, is_clean=True)
    monkeypatch.setattr("motet.spark.audit.audit", lambda *_: found)
    monkeypatch.setattr(audit, "_in_process", work)
    assert run(["bench", "audit", "--least", "--json"]) == FINE
    told, noise = capfd.readouterr()
    assert noise == ""
    figures = json.loads(told)["results"]
    assert [figure["value"] for figure in figures] == [2.0, 1.0, 2.0]


def test_a_figure_does_not_count_if_rows_are_missing() -> None:
    took_s = {bench.WRITTEN: 1.0, bench.DROPPED: 0.5}
    (figure,) = bench._write_figures(1000, took_s, counts=False)
    assert figure.holds is False


def test_a_half_published_batch_is_seen(spark: SparkSession) -> None:
    streams = bench.MicroBatches(spark, "motet://127.0.0.1:1", SMALLEST)
    streams._sinks = {"one": 3}
    assert streams.all_came({"one": 300})
    assert streams.all_came({"one": 400})
    assert not streams.all_came({"one": 350})
    assert not streams.all_came({"one": 200})
    assert not streams.all_came({})
