"""`motet sim --seeds random`: what is drawn, what is written down, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from motet.cli import sim_run
from motet.cli.console import FAILED, FINE
from motet.cli.main import run
from motet.testing import PROFILES, Result, Violation, simulate

ROOT = Path(__file__).parents[3]


class Simulator:
    """Takes the place of `simulate`: counts seeds, and every `bad`-th violates a guarantee."""

    def __init__(self, bad: int = 0) -> None:
        self.runs: list[tuple[int, str]] = []
        self._bad = bad

    def __call__(self, seed: int, profile_name: str) -> Result:
        self.runs.append((seed, profile_name))
        wrong = self._bad and len(self.runs) % self._bad == 0
        found = (Violation(seed, "order", "2 before 1"),) if wrong else ()
        return Result(1, 10, {}, {}, found, "abcd", profile_name)


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Simulator:
    made = Simulator()
    monkeypatch.setattr(sim_run, "simulate", made)
    return made


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / sim_run.FINDINGS).read_text().splitlines()]


def test_fresh_seeds_of_all_profiles_in_turn(simulator: Simulator, tmp_path: Path) -> None:
    rounds = 3
    limit = str(rounds * len(PROFILES))
    words = ["sim", "--seeds", "random", "--limit", limit, "--findings", str(tmp_path)]
    assert run(words) == FINE
    assert [name for _, name in simulator.runs] == list(PROFILES) * rounds
    assert len({seed for seed, _ in simulator.runs}) == len(simulator.runs)
    assert lines(tmp_path) == []
    first = list(simulator.runs)
    assert run(words) == FINE
    assert simulator.runs[len(first) :] != first, "the second hunt repeated the first"


def test_a_finding_is_written_down_and_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = Simulator(bad=2)
    monkeypatch.setattr(sim_run, "simulate", simulator)
    words = ["sim", "--seeds", "random", "--profile", "lossy", "--limit", "4", "--json"]
    assert run([*words, "--findings", str(tmp_path)]) == FAILED
    seeds = [seed for seed, _ in simulator.runs]
    *printed, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == lines(tmp_path)
    assert [each["seed"] for each in printed] == [seeds[1], seeds[3]]
    assert printed[0]["profile"] == "lossy"
    assert printed[0]["violations"] == [{"guarantee": "order", "detail": "2 before 1"}]
    assert printed[0]["replay"] == f"motet sim --replay {seeds[1]} --profile lossy"
    assert printed[0]["commit"] == sim_run.commit()
    assert summary["seeds"] == 4
    assert summary["found"] == 2
    assert summary["profiles"] == {"lossy": {"seeds": 4, "found": 2}}
    assert summary["findings"] == str(tmp_path / sim_run.FINDINGS)
    # The next hunt adds to the file.
    run([*words, "--findings", str(tmp_path)])
    assert len(lines(tmp_path)) == 4


def test_a_finding_is_printed_as_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sim_run, "simulate", Simulator(bad=1))
    words = ["sim", "--seeds", "random", "--profile", "calm", "--limit", "1"]
    assert run([*words, "--findings", str(tmp_path)]) == FAILED
    told = capsys.readouterr().out
    assert "profile calm, seed" in told
    assert "motet sim --replay" in told
    assert "1 seeds, 1 with a violation" in told


def test_a_simulation_that_raises_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> Result:
        raise KeyError("no such broker")

    monkeypatch.setattr(sim_run, "simulate", broken)
    words = ["sim", "--seeds", "random", "--limit", "2", "--findings", str(tmp_path)]
    assert run(words) == FAILED
    found = lines(tmp_path)
    assert len(found) == 2
    assert found[0]["violations"][0]["guarantee"] == "raised"
    assert "KeyError: 'no such broker'" in found[0]["violations"][0]["detail"]


@pytest.mark.parametrize("number", sim_run.SIGNALS)
def test_a_signal_ends_it_with_a_summary(
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulator = Simulator(bad=3)

    def stopped(seed: int, profile_name: str) -> Result:
        if len(simulator.runs) == 4:
            os.kill(os.getpid(), number)
        return simulator(seed, profile_name)

    monkeypatch.setattr(sim_run, "simulate", stopped)
    before = signal.getsignal(number)
    words = ["sim", "--seeds", "random", "--json", "--findings", str(tmp_path)]
    assert run(words) == FAILED, "the third seed was a finding"
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["seeds"], summary["found"]) == (4, 1)
    assert signal.getsignal(number) is before


def test_a_hunt_ends_after_its_time_limit(simulator: Simulator, tmp_path: Path) -> None:
    words = ["sim", "--seeds", "random", "--seconds", "0", "--findings", str(tmp_path)]
    assert run(words) == FINE
    assert len(simulator.runs) == 1


def test_real_seeds_in_several_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sim", "--seeds", "random", "--profile", "calm", "--limit", "3", "--jobs", "2"]
    assert run([*words, "--json", "--findings", str(tmp_path)]) == FINE
    summary = json.loads(capsys.readouterr().out)
    assert summary["seeds"] == 3
    assert summary["steps"] > 0


def test_a_replay_is_the_run_that_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real simulator with a planted bug: the seed in the file finds it again."""
    planted = "attract-nothing"
    monkeypatch.setattr(sim_run, "simulate", lambda seed, name: simulate(seed, name, planted))
    words = ["sim", "--seeds", "random", "--profile", "calm", "--limit", "3"]
    assert run([*words, "--findings", str(tmp_path)]) == FAILED
    found = lines(tmp_path)[0]
    again = simulate(found["seed"], found["profile"], planted)
    assert again.trace_hash == found["trace_hash"]
    assert again.violations[0].detail == found["violations"][0]["detail"]


def test_the_commit_is_that_of_the_code() -> None:
    told = subprocess.run(
        ["git", "log", "-1", "--format=%H", "--", "src/motet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sim_run.commit().removesuffix("+changes") == told.stdout.strip()
