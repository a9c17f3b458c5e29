"""`motet experiment exactly-once`, in miniature: real processes, everything accounted for."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from motet.cli import experiment_run, main
from motet.cli.console import FINE, MISUSE
from motet_labs.experiments import paper1, paper3
from motet_labs.experiments.exactly_once import SHORT
from motet_labs.experiments.mobility_plan import QUICK, WHOLE
from motet_labs.experiments.ordering_plan import PARTS, PLACEMENT
from motet_labs.experiments.ordering_plan import QUICK as QUICK_ORDERING
from motet_labs.experiments.ordering_report import BY_NUMBER, PLANNED
from motet_labs.experiments.overhead import OverheadEffort
from motet_labs.experiments.paper5 import Schedule
from motet_labs.experiments.stamp_sizes import SizeEffort
from motet_labs.experiments.transactions import DELAYED, TransactionsPlan

TINY = replace(
    SHORT,
    effort=OverheadEffort(crowds=(4,), rounds=1, period_s=0.3, rest_s=0.3, per_s=400),
    schedules=dict.fromkeys(
        ("link", "broker", "publisher"),
        Schedule(before_s=0.4, stall_s=0.6, gone_s=0.5, after_s=0.5),
    ),
    subscribers=("s1", "s2", "s3"),
)


def test_the_experiment_loses_no_event_and_reports_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_run, "SHORT", TINY)
    words = ["experiment", "exactly-once", "--short", "--json", "--out", str(tmp_path)]
    assert main.run(words) == FINE
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] is True
    assert {"results", "machine", "overhead", "link", "file"} <= set(told)
    for row in told["overhead"]["rows"]:
        for mode in ("best_effort", "exactly_once"):
            assert row[mode]["publishers_cpu_us"] > 0
            assert row[mode]["remote_ms"] > 0
    assert (told["overhead"]["lost"], told["overhead"]["amiss"]) == (0, 0)
    assert told["overhead"]["best_effort_dropped"] == 0
    for part in ("broker", "publisher"):
        found = told[part]
        assert (found["lost"], found["doubled"], found["disordered"]) == (0, 0, 0), part
        assert found["delivered"] == len(TINY.subscribers) * found["published"] > 0, part
    check_results(told)
    link = told["link"]
    assert (link["lost"], link["doubled"], link["disordered"]) == (0, 0, 0)
    assert link["delivered"] == len(TINY.subscribers) * link["published"] > 0
    # What the stalled link swallowed was asked for by s1 alone.
    assert link["nacks"]["s1"]["sent"] >= 1
    assert link["latency"]["s1"]["peak_ms"] > 600
    assert "s2" not in link["nacks"]
    whole = json.loads(Path(told["file"]).read_text())
    assert len(whole["link"]["series"]["latency"]["s1"]) == link["published"]


def check_results(told: dict[str, Any]) -> None:
    """Figures are numbers, and what is written is there."""
    assert told["results"]
    for figure in told["results"]:
        assert math.isfinite(figure["value"]), figure
    for path in (told["file"], told["page"], *told["plots"]):
        assert Path(path).stat().st_size > 0
    assert told["plots"]


def test_every_part_of_the_experiment_with_transactions_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    least = TransactionsPlan(
        settings=(DELAYED,),
        beside=(),
        transactions=4,
        wait_runs=1,
        rounds=1,
        quick=True,
        burst_events=500,
    )
    monkeypatch.setattr(experiment_run, "QUICK", least)
    few = {"BASE_BROKERS": 1, "BROKERS": (1, 3), "THREADS": (1, 2), "CASTS": (1, 2)}
    for name, value in few.items():
        monkeypatch.setattr(paper1, name, value)
    words = ["experiment", "transactions", "--short", "--json", "--out", str(tmp_path)]
    assert main.run(words) == FINE
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] is True
    check_results(told)


def test_every_part_of_the_experiment_with_clients_that_move_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a line of three brokers."""
    few: dict[str, Any] = {"SOURCES": ("B1", "B3"), "TARGETS": ("B3", "B1"), "HOPS": 2}
    few |= {"PUBLISHERS": ("B2",), "PARENTS": {1: 2, 3: 2}, "BROKERS": 3}
    for name, value in few.items():
        monkeypatch.setattr(paper3, name, value)
    least = replace(
        QUICK,
        workloads=("tree", WHOLE),
        clients=40,
        counts=(12,),
        sizes=(3,),
        crowds=(12,),
        trips=1,
        step=1,
        far_clients=6,
        pause_s=0.2,
        brisk_pause_s=0.2,
        long_pause_s=0.2,
        slice_s=0.4,
        long_slice_s=0.4,
        per_s=40.0,
    )
    monkeypatch.setattr(experiment_run, "QUICK_MOBILITY", least)
    words = ["experiment", "mobility", "--short", "--json", "--out", str(tmp_path)]
    assert main.run(words) == FINE
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] is True
    check_results(told)
    assert {row["part"] for row in told["rows"]} == set(least.parts)
    for row in told["rows"]:
        assert row["latency"]["moves"] > 0, row
        assert row["failed"] == 0, row
    moved = [row for row in told["rows"] if row["line"].startswith("reconfiguration")]
    assert all(row["traffic"]["moves"] == 2 * paper3.HOPS for row in moved), moved
    assert all(row["traffic"]["control"] <= 3 * paper3.HOPS for row in moved), moved
    assert sum(row["events"]["expected"] for row in moved) > 0


def test_every_part_of_the_experiment_with_one_order_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    least = replace(
        QUICK_ORDERING,
        sizes=SizeEffort(clients=60, topics=50, each=(1, 10), warm_up=128, events=256),
        runs=5,
        seeds=1,
        shapes=("geographic",),
        topics=50,
        clients=40,
        each=5,
        rates=(200,),
        beyond=(),
        fixed_rate=200,
        more=(5,),
        draws=2,
        warm_s=0.2,
        seconds=0.6,
    )
    monkeypatch.setattr(experiment_run, "QUICK_ORDERING", least)
    words = ["experiment", "ordering", "--short", "--json", "--out", str(tmp_path)]
    assert main.run(words) == FINE
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] is True
    check_results(told)
    assert list(told["part_seconds"]) == list(PARTS)
    assert told["skipped"] == []
    alone, shared = (
        [row for row in told["sizes"] if row["each"] == each] for each in least.sizes.each
    )
    assert all(row["topics"] == row["sent"] == 1 for row in alone)
    assert all(1 < row["sent"] < row["events"] for row in shared)
    for row in told["rows"]:
        assert row["events"] == 120, row
        assert row["missing"] == 0, row
        assert row["mean_ms"] > 15, row
        assert row["virtual_ms"] == pytest.approx(row["floor_ms"], rel=0.5), row
        assert 0 <= max(row["outgoing"].values()) < 1, row
    placed = {row["placed"]: row for row in told["rows"] if row["part"] == PLACEMENT}
    assert placed[PLANNED]["floor_ms"] < placed[BY_NUMBER]["floor_ms"]
    assert placed[PLANNED]["virtual_ms"] < placed[BY_NUMBER]["virtual_ms"]


def test_an_unknown_part_of_the_experiment_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["experiment", "exactly-once", "--part", "links"]) == MISUSE
    assert "'links'" in capsys.readouterr().err
