"""Whole overlays whose clients move: nothing is violated, and clients really move."""

from __future__ import annotations

from functools import cache

import pytest

from motet.errors import MisuseError
from motet.testing.faults import STEP_FAULTS
from motet.testing.simulation import OF_MOVES, Result, crash_everywhere, run_seeds

SEEDS = range(1000, 1008)
OF_FEW_STEPS = 2


@cache
def handful(profile: str) -> Result:
    return run_seeds(SEEDS, profile)


@pytest.mark.parametrize("profile", ["moves", "mobility"])
def test_a_handful_of_seeds(profile: str) -> None:
    result = handful(profile)
    assert not result.violations, "\n".join(result.complaints())
    for guarantee in (*OF_MOVES, "exactly-once", "completeness", "total-order", "routing"):
        assert result.checked[guarantee] >= len(SEEDS), guarantee
    assert result.moves["Done"] > 10 * len(SEEDS), result.moves
    assert result.moves["ordered Done"] > len(SEEDS), result.moves


def test_most_moves_succeed_where_nothing_fails() -> None:
    """One move in five has next to no time. Those to unknown brokers do not count."""
    moves = handful("moves").moves
    others = ("ordered ", "of ", "MisuseError")
    asked = sum(count for answer, count in moves.items() if not answer.startswith(others))
    assert moves["Done"] > 0.7 * asked, moves


def test_a_crash_at_every_step() -> None:
    result = crash_everywhere(3, "moves", stride=47)
    assert not result.violations, "\n".join(result.complaints())
    assert result.faults["kill"] == result.seeds > 30
    assert result.moves["Done"] > result.seeds


@pytest.mark.parametrize(("fault", "stride"), [(each, 5) for each in STEP_FAULTS])
def test_a_fault_at_each_message_of_a_move(fault: str, stride: int) -> None:
    """A broker that gets, decides or sends something of a move is killed, paused, cut off, given up
    or comes back empty; its client goes, is silent, or has a namesake. No other fault happens."""
    result = crash_everywhere(OF_FEW_STEPS, "moves", fault, stride=stride, of_moves=True)
    assert not result.violations, "\n".join(result.complaints())
    assert result.faults[fault] == result.seeds
    assert result.checked["copies"]
    assert result.checked["moves"]


def test_an_unknown_fault_is_named() -> None:
    with pytest.raises(MisuseError, match="there are kill, amnesia, cut"):
        crash_everywhere(3, "moves", "rain")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_a_fault_at_each_message_of_many_moves(fault: str, seed: int) -> None:
    result = crash_everywhere(seed, "moves", fault, of_moves=True)
    assert not result.violations, "\n".join(result.complaints())


@pytest.mark.soak
@pytest.mark.parametrize("profile", ["moves", "mobility"])
def test_many_seeds(profile: str) -> None:
    result = run_seeds(range(2000, 3000), profile, processes=2)
    assert not result.violations, "\n".join(result.complaints())
