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
from tests.spark.ground import Lent

SMALLEST = bench.EFFORTS[Size.LEAST]


def test_every_figure_is_measured_and_no_row_is_lost(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("motet.spark.session", lambda *_, **__: Lent(spark))
    assert run(["bench", "spark", "--least", "--json"]) == FINE
    figures = json.loads(capsys.readouterr().out)["results"]
    assert all(math.isfinite(figure["value"]) for figure in figures)
    assert all(figure["value"] > 0 for figure in figures[:-1])
    goals = [figure["goal"] for figure in figures if figure["goal"] is not None]
    speedup = pytest.approx(bench.LEAST_SPEEDUP * figures[2]["floor"], rel=1e-4)
    assert goals == [bench.LEAST_READ_PER_S, speedup, bench.LEAST_WRITTEN_PER_S, 100]


def test_a_history_is_made_and_judged(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the session of all tests instead of three processes. What an audit finds is tested
    elsewhere, and takes long."""

    def work(what: str, folder: str, master: str, deliveries: int = 0) -> dict[str, Any]:
        assert master in (audit.ONE_CORE, audit.TWO_CORES)
        assert what == "generate" or any(Path(folder).iterdir())
        return audit.work(spark, what, folder, deliveries)

    deliveries = audit.DELIVERIES[Size.LEAST]
    found = SimpleNamespace(checked={"exactly-once": deliveries}, seconds=2.0, is_clean=True)
    monkeypatch.setattr("motet.spark.audit.audit", lambda *_: found)
    monkeypatch.setattr(audit, "_in_process", work)
    assert run(["bench", "audit", "--least", "--json"]) == FINE
    figures = json.loads(capsys.readouterr().out)["results"]
    assert [figure["value"] for figure in figures] == [2.0, 1.0]


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
