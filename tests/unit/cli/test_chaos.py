"""`motet chaos` before it starts anything: what it refuses, and how it shows its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.chaos.judgement import ChaosReport, ChaosViolation
from motet.chaos.plan import ChaosPlan
from motet.cli import chaos_run, console
from motet.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--brokers", "0"], "--brokers"),
        (["--brokers", "65"], "--brokers"),
        (["--brokers", "many"], "--brokers"),
        (["--seconds", "0"], "--seconds 0"),
        (["--seconds", "-3"], "--seconds -3"),
        (["--seconds", "nan"], "--seconds nan"),
        (["--seconds", "inf"], "--seconds inf"),
        (["--seconds", "601"], "--seconds 601"),
        (["--seed", "-1"], "--seed"),
        (["--shape", "ring"], "ring"),
        (["--durability", "prayer"], "prayer"),
        (["--dir", "/dev/null/chaos"], "/dev/null/chaos"),
    ],
)
def test_misuse_is_one_clear_line_and_status_2(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chaos", *arguments]) == console.MISUSE
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2
    assert problem in lines[0]


def test_a_folder_is_used_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "B1.log").touch()
    assert run(["chaos", "--dir", str(tmp_path)]) == console.MISUSE
    assert "is not empty" in capsys.readouterr().err


def test_a_seed_is_drawn_if_none_is_given() -> None:
    drawn = {
        chaos_run.plan(3, 1.0, None, "line", "control", False, "fsync").seed for _ in range(20)
    }
    assert len(drawn) > 1
    assert chaos_run.plan(3, 1.0, 7, "line", "control", False, "fsync").seed == 7


def report(*violations: ChaosViolation) -> ChaosReport:
    return ChaosReport(
        plan=ChaosPlan(brokers=3, seed=7),
        faults={"kill": 2, "restart_client": 1},
        operations={"acknowledged": 1234, "lost": 0},
        events={"published": 10},
        sessions={"resumed": 4},
        delivery={"owed": 77},
        transactions={"committed": 5},
        longest_silence_s=0.5,
        recoveries=2,
        longest_outage_s=3.25,
        checked={"routing": 99, "order": 5},
        violated={"routing": 12} if violations else {},
        violations=violations,
    )


def test_a_good_report(capsys: pytest.CaptureFixture[str]) -> None:
    chaos_run.show(report())
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("seed 7", "faults: restart client 1", "operations: acknowledged 1,234"):
        assert words in shown
    assert "longest outage 3.2 s" in shown
    assert "routing 99 0" in shown
    assert shown.endswith("no violations")


def test_a_bad_report(capsys: pytest.CaptureFixture[str]) -> None:
    chaos_run.show(report(ChaosViolation("routing", "SRT of B2: [bold] should not be there")))
    shown = " ".join(capsys.readouterr().out.split())
    assert "routing 99 12" in shown
    assert "VIOLATED routing: SRT of B2: [bold] should not be there" in shown
    assert shown.endswith("VIOLATED; --seed 7 repeats the faults")
