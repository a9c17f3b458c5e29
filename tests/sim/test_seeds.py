"""Whole overlays under every fault profile: nothing is violated, and plenty was checked."""

from __future__ import annotations

import pytest

from motet.audit.records import ABORTED, COMMITTED
from motet.testing.faults import DRAWN, FRAME_FAULTS, PROFILES
from motet.testing.simulation import (
    GUARANTEES,
    OF_MOVES,
    OF_ORDERING,
    OF_TRANSACTIONS,
    Result,
    crash_everywhere,
    merge,
    run_seeds,
)

SEEDS = range(1000, 1016)
FURTHER_SEEDS = range(1016, 1064)
KINDS = ("static", "open", "isolated")
OF_SURE_EVENTS = ("exactly-once", "total-order")
"""Guarantees that only brokers with pubends give."""
STEADY = [name for name, menu in PROFILES.items() if not menu.moving and not menu.ordering]
"""`test_mobility` and `test_ordering` have the others."""


@pytest.mark.parametrize("profile", STEADY)
def test_a_handful_of_seeds(profile: str) -> None:
    menu = PROFILES[profile]
    result = run_seeds(SEEDS, profile)
    assert not result.violations, "\n".join(result.complaints())
    not_given: tuple[str, ...] = (*OF_MOVES, *OF_ORDERING)
    if not menu.sure:
        not_given += OF_SURE_EVENTS
    if not menu.deals:
        not_given += OF_TRANSACTIONS
    for guarantee in set(GUARANTEES).difference(not_given):
        assert result.checked[guarantee] >= len(SEEDS), guarantee
    # Excuses must not eat up what is owed: per seed, so many events had to arrive.
    owed = 500 if profile == "calm" else 50
    arrived = result.checked["exactly-once" if menu.sure else "completeness"]
    assert arrived > owed * len(SEEDS), result.checked
    possible = {
        kind
        for kind in (*DRAWN, *FRAME_FAULTS)
        if getattr(menu, kind) and (kind in DRAWN or menu.rough_links)
    }
    for seed in FURTHER_SEEDS:  # rare faults are drawn sooner or later
        if possible <= result.faults.keys():
            break
        result = merge([result, run_seeds([seed], profile)])
    assert possible == result.faults.keys() & {*DRAWN, *FRAME_FAULTS}
    ends = [f"{kind} {outcome}" for kind in KINDS for outcome in (COMMITTED, ABORTED)]
    for end in ends if menu.deals else ():
        assert result.transactions[end] >= len(SEEDS), f"{end}: {result.transactions}"


@pytest.mark.parametrize(("seed", "stride"), [(2, 1), (1, 7)])
def test_a_crash_at_every_step(seed: int, stride: int) -> None:
    _survives(crash_everywhere(seed, stride=stride))


def test_a_crash_at_every_step_where_events_arrive_exactly_once() -> None:
    result = crash_everywhere(7, "delivery", stride=5)
    _survives(result)
    assert result.checked["exactly-once"] > 10 * result.seeds


def _survives(result: Result) -> None:
    assert not result.violations, "\n".join(result.complaints())
    assert result.seeds > 40
    assert result.faults["kill"] == result.seeds
    # Each crash was compared: what the journal gives back is what was there.
    assert result.checked["replay"] >= result.seeds


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("profile", ["calm", "delivery"])
def test_a_crash_at_every_step_of_more_runs(profile: str, seed: int) -> None:
    _survives(crash_everywhere(seed, profile))


@pytest.mark.soak
@pytest.mark.parametrize("profile", STEADY)
def test_many_seeds(profile: str) -> None:
    result = run_seeds(range(2000, 3000), profile, processes=2)
    assert not result.violations, "\n".join(result.complaints())
