"""`motet experiment exactly-once`, in miniature: real processes, everything accounted for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from motet.cli import main, trial_runs
from motet.cli.ending import FINE, MISUSE
from motet.experiments.exactly_once import SHORT
from motet.experiments.overhead import Effort
from motet.experiments.paper import Schedule

TINY = replace(
    SHORT,
    effort=Effort(crowds=(4,), rounds=1, period_s=0.3, rest_s=0.3, per_s=400),
    schedules={"link": Schedule(before_s=0.4, stall_s=0.6, gone_s=0.5, after_s=0.5)},
    subscribers=("s1", "s2"),
)


def test_nothing_is_lost_and_the_figures_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_runs, "SHORT", TINY)
    words = ["experiment", "exactly-once", "--short", "--no-plots", "--json"]
    words += ["--part", "overhead", "--part", "link", "--out", str(tmp_path)]
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
    link = told["link"]
    assert (link["lost"], link["doubled"], link["disordered"]) == (0, 0, 0)
    assert link["delivered"] == len(TINY.subscribers) * link["published"] > 0
    # What the stalled link swallowed was asked for by s1 alone.
    assert link["nacks"]["s1"]["sent"] >= 1
    assert link["latency"]["s1"]["peak_ms"] > 600
    assert "s2" not in link["nacks"]
    whole = json.loads(Path(told["file"]).read_text())
    assert len(whole["link"]["series"]["latency"]["s1"]) == link["published"]


def test_a_part_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["experiment", "exactly-once", "--part", "links"]) == MISUSE
    assert "'links'" in capsys.readouterr().err
