"""Plans: what a seed draws, before anything runs."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from motet.chaos.plan import (
    DECK,
    DELIVERY_DECK,
    LASTS_S,
    MOBILITY_DECK,
    ON_LINKS,
    PHASES,
    STATIONS,
    ChaosPlan,
)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_gives_the_same_faults(seed: int) -> None:
    plan = ChaosPlan(seed=seed)
    strikes = plan.strikes()
    assert strikes == ChaosPlan(seed=seed).strikes()
    assert strikes != ChaosPlan(seed=seed + 1).strikes()
    assert strikes[0].kind == "kill"
    assert all(before.at_s <= after.at_s for before, after in pairwise(strikes))
    assert all(0.0 <= strike.at_s < plan.seconds for strike in strikes)


def test_the_number_of_clients_does_not_move_the_faults() -> None:
    assert ChaosPlan(clients_per_broker=1).strikes() == ChaosPlan(clients_per_broker=9).strikes()


def test_every_kind_of_fault_comes_soon() -> None:
    strikes = ChaosPlan(seconds=600.0).strikes()
    for start in range(1, len(strikes) - len(DECK), len(DECK)):
        hand = [strike.kind for strike in strikes[start : start + len(DECK)]]
        assert sorted(hand) == sorted(DECK)


def test_every_role_is_killed_where_streams_are_watched() -> None:
    strikes = ChaosPlan(profile="delivery", seconds=600.0).strikes()
    assert strikes[0].kind == "kill_middle"
    hand = [strike.kind for strike in strikes[1 : len(DELIVERY_DECK) + 1]]
    assert sorted(hand) == sorted(DELIVERY_DECK)


def test_every_station_of_a_move_is_hit_in_every_phase() -> None:
    strikes = ChaosPlan(profile="mobility", seconds=2000.0).strikes()
    assert strikes[0].kind == "kill_source"
    hand = [strike.kind for strike in strikes[1 : len(MOBILITY_DECK) + 1]]
    assert sorted(hand) == sorted(MOBILITY_DECK)
    aimed = {(strike.kind, strike.phase) for strike in strikes if strike.kind in STATIONS}
    assert aimed == set(product(STATIONS, PHASES))


def test_publishers_and_subscribers_live_apart_where_streams_are_watched() -> None:
    plan = ChaosPlan(brokers=5, profile="delivery")
    assert plan.homes("publisher") == ("B3",)
    assert plan.homes("subscriber") == ("B4", "B5")
    assert plan.homes("middle") == ("B1", "B2")
    assert plan.inhabited == ("B3", "B4", "B5")
    everywhere = plan.tree.brokers
    assert ChaosPlan(brokers=5).inhabited == ChaosPlan(brokers=5).homes("publisher") == everywhere
    alone = ChaosPlan(brokers=1, profile="delivery")
    assert alone.homes("publisher") == alone.homes("subscriber") == ("B1",)


def test_no_outage_is_as_long_as_a_lease() -> None:
    plan = ChaosPlan(seconds=600.0)
    for strike in plan.strikes():
        shortest_s, longest_s = LASTS_S[strike.kind]
        assert shortest_s <= strike.lasts_s <= longest_s
        assert strike.lasts_s + (strike.relapse_s or 0.0) < plan.lease_s / 2
        assert strike.relapse_s is None or strike.kind == "kill"


def test_a_single_broker_has_no_links_to_break() -> None:
    plan = ChaosPlan(brokers=1, seconds=120.0)
    assert plan.tree.edges == ()
    kinds = {strike.kind for strike in plan.strikes()}
    assert kinds == set(DECK) - set(ON_LINKS)


def test_even_the_shortest_run_has_a_fault() -> None:
    assert [strike.kind for strike in ChaosPlan(seconds=0.1).strikes()] == ["kill"]


def test_shapes() -> None:
    line = ChaosPlan(brokers=4, shape="line").tree
    star = ChaosPlan(brokers=4, shape="star").tree
    tree = ChaosPlan(brokers=4, shape="tree").tree
    assert line.path("B1", "B4") == ("B1", "B2", "B3", "B4")
    assert star.path("B2", "B4") == ("B2", "B1", "B4")
    assert tree.path("B4", "B3") == ("B4", "B2", "B1", "B3")
