"""Where clients go, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.fleet.spread import Distances, bounds, emptiest, is_even, plan

LINE = Distances([("B1", "B2"), ("B2", "B3"), ("B3", "B4")])
COUNTS = st.dictionaries(st.sampled_from([f"B{i}" for i in range(1, 9)]), st.integers(0, 300))


def after(counts: Mapping[str, int], flows: Mapping[tuple[str, str], int]) -> dict[str, int]:
    result = dict(counts)
    for (source, target), many in flows.items():
        result[source] -= many
        result[target] += many
    return result


def test_distances_are_links() -> None:
    assert LINE.between("B1", "B1") == 0
    assert LINE.between("B1", "B4") == 3
    assert LINE.between("B3", "B2") == 1
    assert LINE.brokers == ["B1", "B2", "B3", "B4"]


def test_a_broker_that_nobody_knows_is_the_farthest() -> None:
    assert LINE.between("B1", "B9") > LINE.between("B1", "B4")
    assert LINE.between("B9", "B1") > LINE.between("B4", "B1")


def test_the_emptiest_broker_is_chosen_and_of_several_the_nearest() -> None:
    assert emptiest("B1", ["B2", "B3", "B4"], {"B2": 3, "B3": 1, "B4": 2}, LINE) == "B3"
    assert emptiest("B1", ["B4", "B3", "B2"], {}, LINE) == "B2"
    assert emptiest("B3", ["B4", "B2"], {}, LINE) == "B2"


@pytest.mark.parametrize(
    ("counts", "even"),
    [
        ({"B1": 10, "B2": 10}, True),
        ({"B1": 9, "B2": 11}, True),
        ({"B1": 8, "B2": 12}, False),
        ({"B1": 109, "B2": 91}, True),
        ({"B1": 112, "B2": 88}, False),
        ({"B1": 1, "B2": 0, "B3": 0}, True),
        ({"B1": 2, "B2": 0, "B3": 0}, False),
        ({"B1": 0, "B2": 0}, True),
        ({"B1": 7}, True),
    ],
)
def test_even_is_within_a_tenth_of_the_mean(counts: dict[str, int], even: bool) -> None:
    assert is_even(counts) is even
    assert bool(plan(counts, LINE)) is not even


def test_a_full_broker_gives_to_the_nearest() -> None:
    assert plan({"B1": 40, "B2": 0, "B3": 0, "B4": 0}, LINE) == {
        ("B1", "B2"): 10,
        ("B1", "B3"): 10,
        ("B1", "B4"): 9,
    }
    assert plan({"B1": 20, "B2": 0, "B3": 0, "B4": 20}, LINE) == {("B1", "B2"): 9, ("B4", "B3"): 9}


def test_no_more_clients_move_than_needed() -> None:
    assert plan({"B1": 112, "B2": 88}, LINE) == {("B1", "B2"): 2}


def test_without_brokers_there_is_no_plan() -> None:
    assert plan({}, LINE) == {}


@given(COUNTS)
def test_every_plan_ends_even_and_moves_as_few_as_possible(counts: dict[str, int]) -> None:
    flows = plan(counts, LINE)
    ended = after(counts, flows)
    assert sum(ended.values()) == sum(counts.values())
    assert all(many > 0 for many in flows.values())
    assert not {source for source, _ in flows} & {target for _, target in flows}
    if not counts:
        return
    low, high = bounds(counts)
    assert all(low <= count <= high for count in ended.values())
    surplus = sum(max(0, count - high) for count in counts.values())
    deficit = sum(max(0, low - count) for count in counts.values())
    assert sum(flows.values()) == max(surplus, deficit)


@given(COUNTS)
def test_a_plan_that_is_carried_out_needs_no_other(counts: dict[str, int]) -> None:
    ended = after(counts, plan(counts, LINE))
    assert plan(ended, LINE) == {}


def test_bounds_never_exclude_the_mean() -> None:
    for total in range(40):
        low, high = bounds({"B1": total, "B2": 0, "B3": 0})
        assert low <= total / 3 <= high
        assert 3 * high >= total
        assert high - low <= 2 + ceil(total / 3 * 0.2)
