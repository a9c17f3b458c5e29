"""`overlap`, `covers` and emptiness, by example and against an exhaustive search."""

from __future__ import annotations

from functools import reduce
from math import nextafter
from operator import or_

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.errors import FilterTooComplex
from motet.model import EVERYTHING, NOTHING, Filter, Value, attr, covers, overlap
from tests.unit.model.oracle import covers_by_search, overlap_by_search
from tests.unit.model.strategies import attributes, conjunctions, crowded, filters

NEXT = repr(nextafter(1.0, 2.0))


@pytest.mark.parametrize(
    "text",
    [
        "x > 1 and x < 1",
        f"x > 1 and x < {NEXT}",
        "x = 1 and x = '1'",
        "x = true and x = 1",
        "x is null and x = 1",
        "x < ''",
        "x > 'a' and x < 'a\0'",
        "x <> true and x <> false",
        "x > infinity",
        "x in (1, 2) and x > 2",
        "x between 9 and 1",
        "x > timestamp '2026-01-01T00:00:00Z' and x < timestamp '2026-01-01T00:00:00.000001Z'",
        "x > 9007199254740992 and x < 9007199254740993",
        "x > timestamp '9999-12-31T23:59:59.999999Z'",
        f"x >= 1 and x <= {NEXT} and x <> 1 and x <> {NEXT}",
    ],
)
def test_an_unsatisfiable_filter_is_the_empty_filter(text: str) -> None:
    assert Filter.parse(text) == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "x > 1 and x < 1.0000000000000004",
        "x > 'a' and x < 'a\0\0'",
        "x > 9007199254740992 and x < 9007199254740994",
        "x >= infinity",
        "x <= ''",
        "x > 9223372036854775806",
        "x = 1 and y = '1'",
    ],
)
def test_a_satisfiable_filter_is_not_empty(text: str) -> None:
    assert not Filter.parse(text).is_empty


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("true", "x = 1", True),
        ("x = 1", "true", False),
        ("x = 1", "false", True),
        ("false", "x = 1", False),
        ("x > 1", "x > 1 and y = 2", True),
        ("x > 1 and y = 2", "x > 1", False),
        ("x is not null", "x > 1", True),
        ("x is not null", "x is null", False),
        ("x is null or x is not null", "true", True),
        ("x > 1 or x <= 1", "x between 0 and 5", True),
        ("x > 1 or x < 1", "x between 0 and 5", False),
        ("x > 1 or x <= 1", "x is not null", False),
        ("x = true or x = false", "x in (true, false)", True),
        (f"x >= {NEXT}", "x > 1", True),
        (f"x in (1, {NEXT})", f"x between 1 and {NEXT}", True),
        ("x like 'a%'", "x like 'ab%'", True),
        ("x like 'ab%'", "x like 'a%'", False),
        ("x like 'a%'", "x >= 'a' and x < 'b'", True),
        ("x <> 3", "x in (1, 2, 4)", True),
        ("x <> 3", "x = 'three'", False),
        ("x < 5 and y < 5 or x >= 5 or y >= 5", "x > 0 and y > 0", True),
        ("x < 5 and y < 5 or x > 5 or y >= 5", "x > 0 and y > 0", False),
        ("x <= 9007199254740992", "x <= 9007199254740993", False),
    ],
)
def test_covers(wide: str, narrow: str, expected: bool) -> None:
    assert covers(Filter.parse(wide), Filter.parse(narrow)) is expected


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("x = 1", "y = 2", True),
        ("x = 1", "x = 1.0", True),
        ("x = 1", "x = true", False),
        ("x = 1 and y = 1", "x = 1 and y = 2", False),
        ("x > 1", "x < 1", False),
        ("x >= 1", "x <= 1", True),
        ("x is null", "y = 1", True),
        ("x is null", "x is not null", False),
        ("x like 'ab%'", "x like 'a%'", True),
        ("x like 'ab%'", "x like 'ac%'", False),
        ("x = 1 or x = 5", "x between 4 and 6", True),
        ("false", "true", False),
    ],
)
def test_overlap(one: str, two: str, expected: bool) -> None:
    assert overlap(Filter.parse(one), Filter.parse(two)) is expected
    assert overlap(Filter.parse(two), Filter.parse(one)) is expected


def test_an_entangled_union_is_decided_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five pigeons in four holes: some two share one, but to see it takes many cuts."""
    pigeons, holes = range(5), range(4)
    everywhere = EVERYTHING
    for pigeon in pigeons:
        for hole in holes:
            everywhere = everywhere & attr(f"p{pigeon}h{hole}").isin(True, False)
    wide = NOTHING
    for pigeon in pigeons:
        nowhere = EVERYTHING
        for hole in holes:
            nowhere = nowhere & (attr(f"p{pigeon}h{hole}") == False)  # noqa: E712
        wide = wide | nowhere
        for other in range(pigeon):
            for hole in holes:
                wide = wide | (
                    (attr(f"p{pigeon}h{hole}") == True)  # noqa: E712
                    & (attr(f"p{other}h{hole}") == True)  # noqa: E712
                )
    assert covers(wide, everywhere)
    monkeypatch.setattr("motet.model.filters.MAX_COVER_STEPS", 1_000)
    with pytest.raises(FilterTooComplex):
        covers(wide, everywhere)


@settings(max_examples=150, deadline=None)
@given(conjunctions(3), conjunctions(3))
def test_boxes_agree_with_the_search(one: Filter, two: Filter) -> None:
    assert overlap(one, two) == overlap_by_search(one, two)
    assert covers(one, two) == covers_by_search(one, two)


@settings(max_examples=150, deadline=None)
@given(filters(3), filters(2))
def test_unions_agree_with_the_search(one: Filter, two: Filter) -> None:
    assert overlap(one, two) == overlap_by_search(one, two)
    assert covers(one, two) == covers_by_search(one, two)


@settings(max_examples=300, deadline=None)
@given(st.lists(crowded(), min_size=2, max_size=3), st.lists(crowded(), min_size=1, max_size=2))
def test_neighbouring_values_agree_with_the_search(some: list[Filter], more: list[Filter]) -> None:
    one, two = reduce(or_, some), reduce(or_, more)
    assert one.is_empty == (not overlap_by_search(one, one))
    assert overlap(one, two) == overlap_by_search(one, two)
    assert covers(one, two) == covers_by_search(one, two)
    assert Filter.parse(str(one)) == one


@settings(max_examples=200, deadline=None)
@given(filters(), filters(), attributes())
def test_events_confirm_relations_between_filters(
    one: Filter, two: Filter, event: dict[str, Value]
) -> None:
    in_one, in_two = one.matches(event), two.matches(event)
    assert (one & two).matches(event) == (in_one and in_two)
    assert (one | two).matches(event) == (in_one or in_two)
    if in_one and in_two:
        assert overlap(one, two)
    if in_two and not in_one:
        assert not covers(one, two)
    assert covers(one | two, one)
    assert covers(one, one & two)
    assert overlap(one, one) == (not one.is_empty)
