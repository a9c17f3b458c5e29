"""Filters as msgpack: there and back, and what strangers may send."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf, nan

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.errors import FilterError, FilterTooComplex
from motet.model import NOTHING, Filter, attr
from motet.model.filters import _NAMES, MOST_NAMES
from tests.unit.model.strategies import filters


def _through_msgpack(form: object) -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(form))


@settings(max_examples=200, deadline=None)
@given(filters())
def test_the_wire_returns_the_same_filter(given_filter: Filter) -> None:
    there = _through_msgpack(given_filter.to_wire())
    assert Filter.from_wire(there) == given_filter
    assert str(Filter.from_wire(there)) == str(given_filter)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ([[["a", 2, 1], ["b", 2, 1]]], "a = 1 and b = 1"),
        ([[["a", 2, 1.0]]], "a = 1"),
        ([[["a", 2, 2, 1, 2]]], "a in (1, 2)"),
        ([[["a", 3, 0, None, True, 2]]], "a = false"),
        ([[["a", 3, 1, 9, 1, 0]]], "false"),
        ([[["a", 3, 1, 9, 1, 0]], [["b", 2, 1]]], "b = 1"),
        ([[["b", 2, 1]], [["a", 2, 1]], [["b", 2, 1]]], "a = 1 or b = 1"),
        ([[["b", 2, 1]], []], "true"),
        ([[["a", 3, 1, None, None, 3]]], "a <= infinity"),
        ([[("a", 0)]], "a is null"),
    ],
)
def test_a_received_filter_is_made_canonical(form: object, text: str) -> None:
    assert Filter.from_wire(form) == Filter.parse(text)


@pytest.mark.parametrize(
    "form",
    [
        [[["b", 2, 1], ["a", 2, 1]]],
        [[["a", 2, 1], ["a", 2, 2]]],
        [[["a", 3, 1, None, None, 0, *range(1000)] for _ in range(1000)]],
        [[["a", 2, "y" * 200_000]]],
        None,
        5,
        "x = 1",
        {},
        [5],
        [[5]],
        [["a", 0]],
        [[["a"]]],
        [[["a", 9]]],
        [[["a", True]]],
        [[["a", "0"]]],
        [[["a", 0, 1]]],
        [[["a", 2]]],
        [[["a", 2, None]]],
        [[["a", 2, nan]]],
        [[["a", 2, 1, nan]]],
        [[["a", 2, 2**63]]],
        [[["a", 2, [1]]]],
        [[["a", 2, b"x"]]],
        [[["a", 2, "\ud800"]]],
        [[["a", 2, datetime(2026, 1, 2)]]],
        [[["a b", 2, 1]]],
        [[["", 2, 1]]],
        [[[5, 2, 1]]],
        [[[b"a", 2, 1]]],
        [[["x" * 129, 2, 1]]],
        [[["a", 3, 1, 1, 2]]],
        [[["a", 3, 4, 1, 2, 0]]],
        [[["a", 3, -1, 1, 2, 0]]],
        [[["a", 3, True, 1, 2, 0]]],
        [[["a", 3, 1, 1, 2, 4]]],
        [[["a", 3, 1, 1, 2, True]]],
        [[["a", 3, 1, 1, "z", 0]]],
        [[["a", 3, 1, True, 5, 0]]],
        [[["a", 3, 2, 1, 2, 0]]],
        [[["a", 3, 1, 1, 5, 0, "x"]]],
        [[["a", 3, 1, 1, 5, 0, None]]],
    ],
)
def test_an_invalid_filter_is_refused(form: object) -> None:
    with pytest.raises(FilterError):
        Filter.from_wire(form)


@pytest.mark.parametrize(
    "form",
    [
        [[["a", 2, i]] for i in range(65)],
        [[[f"a{i:04}", 2, 1] for i in range(1025)]],
        [[["a", 2, *range(1025)]]],
        [[["a", 3, 1, None, None, 0, *range(2000)]]],
        [[[f"a{i}", 2, *range(1000)] for i in range(5)]],
        [[["a", 3, 1, None, None, 0, *range(900)]], [["b", 3, 1, None, None, 0, *range(900)]]],
    ],
)
def test_limits(form: object) -> None:
    with pytest.raises(FilterTooComplex):
        Filter.from_wire(form)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.sampled_from(["a", "b", "é", "", "x y"]),
    st.binary(max_size=2),
    st.just(datetime(2026, 1, 2, tzinfo=UTC)),
)
ENTRIES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=8),
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), SCALARS, SCALARS, SCALARS, SCALARS),
    st.tuples(st.just("a"), st.just(3), st.integers(0, 3), SCALARS, SCALARS, st.integers(0, 3)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(ENTRIES, max_size=3) | SCALARS, max_size=3) | SCALARS)
def test_any_form_is_a_filter_or_raises_a_filter_error(form: object) -> None:
    try:
        made = Filter.from_wire(_through_msgpack(form))
    except FilterError:
        return
    assert Filter.parse(str(made)) == made
    assert Filter.from_wire(made.to_wire()) == made


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(ENTRIES, max_size=3) | SCALARS, max_size=3) | SCALARS)
def test_bytes_say_the_same_as_their_form(form: object) -> None:
    data = msgspec.msgpack.encode(form)
    try:
        expected = Filter.from_wire(_through_msgpack(form))
    except FilterError as error:
        with pytest.raises(type(error)):
            Filter.from_bytes(data)
    else:
        assert Filter.from_bytes(data) == expected


@settings(max_examples=200, deadline=None)
@given(filters())
def test_bytes_return_the_same_filter_and_are_kept(given_filter: Filter) -> None:
    data = given_filter.to_bytes()
    there = Filter.from_bytes(data)
    assert there == given_filter
    assert hash(there) == hash(given_filter)
    assert there.to_bytes() == data
    assert there.to_bytes() is there.to_bytes()
    assert pickle.loads(pickle.dumps(there)).to_bytes() == data


@settings(max_examples=100, deadline=None)
@given(filters())
def test_own_bytes_are_decoded_on_access(given_filter: Filter) -> None:
    data = given_filter.to_bytes()
    ways: list[Callable[[Filter], object]] = [
        lambda f: f.clauses, str, hash, lambda f: f == given_filter, lambda f: f & given_filter,
        pickle.dumps, lambda f: f.matches({}), lambda f: f.is_empty,
    ]  # fmt: skip
    for ask in ways:
        own = Filter.from_own_bytes(data)
        assert own.to_bytes() is data
        assert ask(own) == ask(Filter.from_bytes(data))
        assert own == given_filter


def test_a_filter_raises_attribute_error_for_unknown_attributes() -> None:
    with pytest.raises(AttributeError, match="colour"):
        Filter.parse("true").colour  # noqa: B018


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91", b"\x90\x90", b"\x05", b"\xd4\x05\x00"])
def test_bytes_that_are_no_filter_are_refused(data: bytes) -> None:
    with pytest.raises(FilterError):
        Filter.from_bytes(data)


def test_a_filter_that_is_not_bytes_is_refused() -> None:
    with pytest.raises(FilterError, match="bytes"):
        Filter.from_bytes([[]])


def test_bytes_beyond_the_limits_are_refused() -> None:
    wide = [[["a", 3, 1, None, None, 0, *range(1000)] for _ in range(1000)]]
    with pytest.raises(FilterTooComplex):
        Filter.from_bytes(msgspec.msgpack.encode(wide))


ENDS = st.none() | st.integers(-4, 4) | st.sampled_from([0.5, 1.5, -0.0, inf, -inf, 1e300, 2.0])


@settings(max_examples=300, deadline=None)
@given(ENDS, ENDS, st.integers(0, 3))
def test_ranges_of_numbers_have_one_spelling(
    low: float | None, high: float | None, openness: int
) -> None:
    """What is built in place equals what the algebra makes of the two halves."""
    made = Filter.from_wire([[["a", 3, 1, low, high, openness]]])
    number = attr("a").between(-inf, inf)
    above = number if low is None else attr("a") > low if openness & 1 else attr("a") >= low
    below = number if high is None else attr("a") < high if openness & 2 else attr("a") <= high
    assert made == above & below
    assert str(made) == str(above & below)


def test_attribute_names_of_received_filters_are_kept_up_to_a_limit() -> None:
    for number in range(2 * MOST_NAMES):
        Filter.from_wire([[[f"invented_{number}", 1]]])
    assert len(_NAMES) <= MOST_NAMES


def test_the_empty_and_the_universal_filter_are_short_on_the_wire() -> None:
    assert NOTHING.to_wire() == []
    assert Filter.parse("true").to_wire() == [[]]


def test_a_text_too_long_is_refused_wherever_it_comes_from() -> None:
    with pytest.raises(FilterTooComplex, match="characters"):
        attr("s") == "y" * 200_000  # noqa: B015
