"""The workloads of paper 3: which subscriptions cover which, and the events for them."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from motet.errors import MisuseError
from motet.model import Filter
from motet.model.filters import covers
from motet_labs.experiments.shapes import (
    RANDOM,
    SHAPES,
    WIDTH,
    WORKLOADS,
    EventSpace,
    covered,
    draw,
)


def test_shapes_cover_as_in_the_paper() -> None:
    counts = {shape: covered(draw(shape, WIDTH)) for shape in SHAPES}
    assert counts["covered"] == [9] + [0] * 9
    assert counts["chained"] == list(range(9, -1, -1))
    assert counts["tree"] == [9, 5, 2, 2, 1, 0, 0, 0, 0, 0]
    assert counts["distinct"] == [0] * 10
    direct = {shape: [each.direct for each in draw(shape, WIDTH)] for shape in SHAPES}
    assert direct["covered"] == [9] + [0] * 9
    assert direct["chained"] == [1] * 9 + [0]
    assert direct["tree"] == [2, 2, 2, 2, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("width", [1, 7, 24])
def test_intervals_cover_as_their_filters_do(workload: str, width: int) -> None:
    wanted = draw(workload, 24, width)
    filters = [Filter.parse(each.filter) for each in wanted]
    for one, other in product(range(len(wanted)), repeat=2):
        if one != other:
            assert wanted[one].covers(wanted[other]) is covers(filters[one], filters[other])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_two_clients_have_the_same_filter(workload: str) -> None:
    filters = [each.filter for each in draw(workload, 403)]
    assert len(set(filters)) == len(filters) == 403


def test_one_group_has_one_that_covers_all_others() -> None:
    assert covered(draw("covered", 400, 400)) == [399] + [0] * 399


def test_random_clients_have_nodes_of_all_shapes_and_the_same_for_the_same_seed() -> None:
    drawn = draw(RANDOM, 400)
    assert {each.shape for each in drawn} == set(SHAPES)
    assert drawn == draw(RANDOM, 400) != draw(RANDOM, 400, seed=2)
    for one, other in combinations(drawn, 2):
        if one.group == other.group:
            assert one.shape == other.shape
            assert one.node != other.node


def test_every_subscriber_is_expected_to_get_the_events_that_match_its_filter() -> None:
    wanted = draw(RANDOM, 60)
    space, numbers = EventSpace.of(wanted), range(17, 3_000)
    got = 0
    for each in wanted:
        matches = Filter.parse(each.filter).matches
        for publisher in range(2):
            expected = list(space.expected(each, publisher, numbers))
            assert expected == [n for n in numbers if matches(space.event(publisher, n))]
            got += len(expected)
    assert got > 0


def test_an_unknown_workload_is_misuse() -> None:
    with pytest.raises(
        MisuseError, match="unknown workload 'nested'; choose from covered, chained"
    ):
        draw("nested", 10)
