"""The engine in C, the engine in Python and the naive index answer alike, whatever happened."""

from __future__ import annotations

from math import nan
from random import Random
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.matching import FilterIndex, NaiveIndex, create_index
from motet.model import EVERYTHING, NOTHING, Filter, attr, encode_event
from tests.unit.matching.worlds import ENGINES, WORLDS, Event, Twins, World, ranges, some_predicate
from tests.unit.model.strategies import (
    any_attributes,
    any_values,
    attributes,
    conjunctions,
    filters,
)


@pytest.fixture(params=[*ENGINES, "naive"])
def index(request: pytest.FixtureRequest) -> FilterIndex:
    return NaiveIndex() if request.param == "naive" else create_index(request.param)


# ── by example ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("x = 1", [{"x": 1}, {"x": 1.0}, {"x": 1, "y": 2}], [{}, {"x": True}, {"x": "1"}]),
        ("x = true", [{"x": True}], [{"x": 1}, {"x": 1.0}, {"x": False}]),
        ("x = 0", [{"x": 0}, {"x": -0.0}], [{"x": False}, {"x": 5e-324}]),
        ("x > 9007199254740992", [{"x": 2**53 + 1}], [{"x": 2**53}, {"x": 2.0**53}]),
        ("x = 9007199254740993", [{"x": 2**53 + 1}], [{"x": 2**53}, {"x": 2.0**53}]),
        ("x < 9223372036854775807", [{"x": 2**63 - 2}], [{"x": 2**63 - 1}, {"x": 2.0**63}]),
        ("x >= -9223372036854775808", [{"x": -(2**63)}, {"x": -(2.0**63)}], [{"x": -1e19}]),
        ("x <> 1", [{"x": 2}, {"x": 0.999}], [{"x": 1}, {"x": nan}, {}, {"x": "a"}]),
        ("x is not null", [{"x": nan}, {"x": ""}, {"x": False}], [{}, {"y": 1}]),
        ("x is null", [{}, {"y": 1}], [{"x": nan}, {"x": 0}]),
        ("x like 'a%'", [{"x": "a"}, {"x": "a\U0010ffff"}], [{"x": "b"}, {"x": ""}, {"x": "A"}]),
        ("x > 'a'", [{"x": "a\0"}, {"x": "é"}], [{"x": "a"}, {"x": ""}, {"x": 5}]),
        ("x <= ''", [{"x": ""}], [{"x": "\0"}, {}]),
        ("x < '\U0001f600'", [{"x": "\uffff"}, {"x": "\ue000"}], [{"x": "\U0001f600"}]),
        ("x = 1 or y = 2", [{"x": 1}, {"y": 2}, {"x": 1, "y": 2}], [{"x": 2, "y": 1}]),
    ],
)
def test_events_match_as_the_examples_say(
    index: FilterIndex, text: str, yes: list[Event], no: list[Event]
) -> None:
    index.add(7, Filter.parse(text), 3)
    for event in yes:
        assert index.match(event) == [7], event
        assert index.hops(event) == 8, event
    for event in no:
        assert index.match(event) == [], event
        assert index.hops(event) == 0, event


def test_an_empty_index_answers_nothing(index: FilterIndex) -> None:
    assert len(index) == 0
    assert 0 not in index
    assert index.match({"x": 1}) == []
    assert index.hops({}) == 0
    assert index.overlapping(EVERYTHING) == []
    assert index.overlapping_hops(EVERYTHING) == 0
    assert index.covering(NOTHING) == []
    assert index.covered(EVERYTHING) == []


def test_the_universal_and_the_empty_filter_are_indexed(index: FilterIndex) -> None:
    index.add(1, EVERYTHING, 0)
    index.add(2, NOTHING, 1)
    index.add(3, attr("x") == 1, 2)
    assert index.match({}) == [1]
    assert index.overlapping(EVERYTHING) == [1, 3]
    assert index.covering(NOTHING) == [1, 2, 3]
    assert index.covering(EVERYTHING) == [1]
    assert index.covered(NOTHING) == [2]
    assert index.covered(EVERYTHING) == [1, 2, 3]


def test_keys_come_and_go(index: FilterIndex) -> None:
    wide = 2**63 - 1
    index.add(wide, attr("x") == 1, 0)
    index.add(0, attr("x") == 1, 5000)
    assert len(index) == 2
    assert wide in index
    assert -1 not in index
    assert index.match({"x": 1}) == [0, wide]
    assert index.hops({"x": 1}) == 1 | 1 << 5000
    index.remove(wide)
    assert wide not in index
    assert index.match({"x": 1}) == [0]
    with pytest.raises(KeyError):
        index.remove(wide)


def test_a_union_covers_what_no_clause_of_it_covers(index: FilterIndex) -> None:
    index.add(1, Filter.parse("x < 5 or x > 3"), 0)
    index.add(2, Filter.parse("x < 5 or x > 6"), 0)
    assert index.covering(Filter.parse("x between 0 and 9")) == [1]
    assert index.covered(Filter.parse("x < 7 or x >= 6")) == [1, 2]
    assert index.overlapping(Filter.parse("x between 5 and 6")) == [1]


def test_a_union_filter_is_returned_once(index: FilterIndex) -> None:
    index.add(1, Filter.parse("x > 1 or y > 1 or z > 1"), 0)
    assert index.match({"x": 2, "y": 2, "z": 2}) == [1]
    assert index.overlapping(Filter.parse("x = 5 or y = 5")) == [1]
    assert index.covered(Filter.parse("x > 0 or y > 0 or z > 0")) == [1]


# ── by search ────────────────────────────────────────────────────────────────────────────


@settings(max_examples=150, deadline=None)
@given(
    st.lists(filters(), max_size=30),
    st.lists(attributes(), min_size=1, max_size=6),
    st.lists(filters(), max_size=3),
    st.data(),
)
def test_engines_agree_on_the_grid(
    known: list[Filter],
    events: list[Event],
    questions: list[Filter],
    data: st.DataObject,
) -> None:
    both = Twins()
    for key, each in enumerate(known):
        both.add(key * 1000, each, key % 70)
    if both.keys:
        for key in data.draw(st.lists(st.sampled_from(both.keys), unique=True)):
            both.remove(key)
    for event in events:
        both.check_event(event)
    for question in questions:
        both.check_filter(question)


@settings(max_examples=100, deadline=None)
@given(conjunctions(), conjunctions())
def test_two_clauses_relate_alike(one: Filter, two: Filter) -> None:
    both = Twins()
    both.add(0, one, 0)
    both.check_filter(two)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), any_values()), any_attributes(), st.randoms())
def test_engines_agree_on_any_value(named: Event, other: Event, random: Random) -> None:
    """Filters made of the very values of the event, and of some next to them."""
    both = Twins()
    for key, (name, value) in enumerate(named.items()):
        if value == value:
            both.add(3 * key, attr(name) == value, key)
            both.add(3 * key + 1, attr(name) > value, key)
            both.add(3 * key + 2, attr(name) <= value, key)
    both.check_event({**other, **named})
    for question in list(both.filters.values()):
        both.check_filter(question & some_predicate(random, "b"))


# ── by churn ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_engines_agree_after_churn(world: World) -> None:
    random = Random(world.name)
    both = Twins()
    for count, gone in ((30, 5), (400, 380), (2500, 300), (0, 2000), (300, 20), (0, 500)):
        both.fill(world, random, count)
        both.thin(random, min(gone, len(both.keys)))
        for _ in range(12):
            both.check_event(world.event(random))
        for _ in range(2):
            both.check_filter(world.filter(random))
            both.check_filter(both.filters[random.choice(both.keys)])
    both.thin(random, len(both.keys))
    for index in both.engines:
        assert len(index) == 0
        assert index.overlapping(EVERYTHING) == []


def test_cells_follow_a_shifting_distribution() -> None:
    """Given cells learnt around 0, when all filters move to 1000, then answers stay right."""
    random = Random(5)
    both = Twins()
    for shift in (0, 1000, -1e6, 2**60):
        world = ranges(shift)
        both.fill(world, random, 700)
        both.thin(random, len(both.keys) - 500)
        for _ in range(20):
            both.check_event(world.event(random))
        both.check_filter(world.filter(random))


@pytest.mark.parametrize("engine", ENGINES)
def test_cells_are_learnt_again_when_the_distribution_shifts(engine: str) -> None:
    """The cost of an event tells: with cells learnt once, everything would survive the rows."""

    def cost(index: FilterIndex, events: list[Event]) -> float:
        best = 1e9
        for _ in range(7):
            start = thread_time()
            for event in events:
                index.match(event)
            best = min(best, thread_time() - start)
        return best

    random = Random(6)
    fresh, moved = create_index(engine), create_index(engine)
    there, here = ranges(0), ranges(10_000)
    for key in range(4000):
        moved.add(key, there.filter(random), 0)
    for key in range(4000):
        moved.remove(key)
        each = here.filter(random)
        moved.add(key, each, 0)
        fresh.add(key, each, 0)
    events = [here.event(random) for _ in range(50)]
    assert cost(moved, events) < 5 * cost(fresh, events)


# ── encoded events ───────────────────────────────────────────────────────────────────────


@settings(max_examples=200, deadline=None)
@given(any_attributes(), st.binary(max_size=10), st.randoms())
def test_encoded_events_match_alike(event: Event, payload: bytes, random: Random) -> None:
    both = Twins()
    for key, (name, value) in enumerate(event.items()):
        if value == value:
            both.add(2 * key, attr(name) == value, 2 * key)
            both.add(2 * key + 1, attr(name) < value, 2 * key + 1)
    body = encode_event(event, payload)
    hops = both.measure.hops(event)
    for index in (both.measure, *both.engines):
        assert index.hops_encoded(body) == hops
        assert index.hops_encoded(memoryview(body)) == hops
        assert index.hops_encoded(body[: random.randrange(len(body))]) is None
        assert index.hops_encoded(body + b"\0") is None


@settings(max_examples=300, deadline=None)
@given(any_attributes(), st.data())
def test_engines_agree_on_damaged_bodies(event: Event, data: st.DataObject) -> None:
    """Whatever a changed byte makes of a body, both engines read the same, or refuse it."""
    body = bytearray(encode_event(event, b"payload"))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    both = Twins()
    for key, name in enumerate(event):
        both.add(3 * key, attr(name) > 0, 0)
        both.add(3 * key + 1, attr(name).is_null(), 1)
        both.add(3 * key + 2, attr(name) >= "", 2)
    expected = both.measure.hops_encoded(bytes(body))
    for index in both.engines:
        assert index.hops_encoded(bytes(body)) == expected
