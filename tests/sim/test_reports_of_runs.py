"""Reports of a simulated run: JSON for programs, a story for people, the replay command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

import motet.testing
from motet.errors import MisuseError
from motet.testing.simulation import Result, Violation, simulate, tell_story


def test_the_json_has_exactly_the_agreed_shape() -> None:
    told = json.loads(json.dumps(simulate(0, "lossy").to_json((3, 2))))
    assert list(told) == [
        "seeds",
        "steps",
        "faults",
        "checked",
        "violations",
        "mutations",
        "trace_hash",
    ]
    assert told["seeds"] == 1
    assert told["steps"] > 100
    assert told["mutations"] == {"planted": 3, "caught": 2}
    assert all(isinstance(count, int) for count in (*told["faults"].values(), told["steps"]))


def test_violations_carry_seed_guarantee_and_detail() -> None:
    told = simulate(0, "calm", "attract-nothing").to_json()
    assert told["violations"]
    for violation in told["violations"]:
        assert list(violation) == ["seed", "guarantee", "detail"]


def test_a_complaint_says_how_to_replay() -> None:
    found = simulate(0, "calm", "attract-nothing")
    assert "motet sim --replay 0 --profile calm" in found.complaints()[0]


def test_a_complaint_about_a_single_fault_says_how_to_replay_it() -> None:
    violation = Violation(7, "moves", "wrong", crash_at=12, fault="cut")
    (told,) = Result(1, 1, {}, {}, (violation,), "", "moves").complaints()
    assert "motet sim --replay 7 --profile moves --crash-at 12 --fault cut" in told


def test_the_story_of_a_run_shows_every_step() -> None:
    lines = list(tell_story(4, "crash"))
    text = "\n".join(lines)
    assert lines[0].startswith("seed 4, profile crash")
    assert "hello, I am c0" in text
    assert "** B1 starts, incarnation 1, with 0 facts" in text
    assert "writes down RequestReceived" in text
    assert "faults stop, links heal" in text
    assert text.endswith("no violations")
    assert max(map(len, lines)) < 4000


def test_an_unknown_profile_is_named() -> None:
    with pytest.raises(MisuseError, match="there are calm, lossy, crash, clients, mixed"):
        simulate(0, "rainy")


def test_an_unknown_mutation_is_named() -> None:
    with pytest.raises(MisuseError, match="no mutation is called 'typo'"):
        simulate(0, "calm", "typo")


# ── for users ────────────────────────────────────────────────────────────────────────────


def test_the_fixture_runs_seeds(motet_simulation: Callable[..., Result]) -> None:
    assert motet_simulation(seeds=range(2), profile="calm").seeds == 2


def test_the_fixture_fails_with_the_replay_command(
    motet_simulation: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Result(1, 1, {}, {}, (Violation(7, "order", "wrong"),), "", "calm")
    monkeypatch.setattr("motet.testing.simulation.merge", lambda *_: broken)
    with pytest.raises(pytest.fail.Exception, match="--replay 7 --profile calm"):
        motet_simulation(seeds=range(1), profile="calm")


async def test_the_overlay_fixture(motet_overlay: Callable[..., object]) -> None:
    overlay = motet_overlay(brokers=2)
    assert hasattr(overlay, "__aenter__")


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    program = (
        "import sys, motet.testing.fixture\n"
        "print([name for name in sys.modules if name.startswith('motet.testing.')])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "['motet.testing.fixture']"


def test_the_package_offers_what_it_says() -> None:
    for name in motet.testing.__all__:
        assert getattr(motet.testing, name) is not None
    with pytest.raises(AttributeError):
        _ = motet.testing.nothing_of_the_kind  # type: ignore[attr-defined]
