"""Names, values and their order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.errors import EventError
from motet.model.ids import is_name
from motet.model.limits import INT_MAX, INT_MIN
from motet.model.values import (
    next_number,
    parse_timestamp,
    plain_value,
    prefix_end,
    previous_number,
    show_timestamp,
)

numbers = st.one_of(st.integers(INT_MIN, INT_MAX), st.floats(allow_nan=False))


@pytest.mark.parametrize(
    ("number", "following"),
    [
        (1, nextafter(1.0, 2.0)),
        (0, 5e-324),
        (-5e-324, 0),
        (2**53 - 1, 2**53),
        (2**53, 2**53 + 1),
        (2.0**53, 2**53 + 1),
        (2**53 + 1, 2**53 + 2),
        (INT_MAX, 2.0**63),
        (2.0**63, nextafter(2.0**63, inf)),
        (nextafter(-(2.0**63), -inf), INT_MIN),
        (INT_MIN, INT_MIN + 1),
        (1.7976931348623157e308, inf),
        (-inf, -1.7976931348623157e308),
    ],
)
def test_neighbours_among_all_numbers(number: int | float, following: int | float) -> None:
    assert next_number(number) == following
    assert previous_number(following) == number


@pytest.mark.parametrize("number", [inf, nan])
def test_the_last_number_has_no_successor(number: float) -> None:
    with pytest.raises(ValueError, match="neighbour"):
        next_number(number)
    with pytest.raises(ValueError, match="neighbour"):
        previous_number(-number)


@given(numbers, numbers)
def test_no_number_lies_between_neighbouring_numbers(one: int | float, two: int | float) -> None:
    if one < inf:
        following = next_number(one)
        assert following > one
        assert previous_number(following) == one
        assert not one < two < following


@given(st.text(max_size=4), st.text(max_size=4))
def test_a_prefix_is_an_interval(prefix: str, text: str) -> None:
    end = prefix_end(prefix)
    inside = prefix <= text and (end is None or text < end)
    assert inside == text.startswith(prefix)
    if end is not None:
        assert not end.startswith(prefix)
        end.encode()


def test_the_end_of_a_prefix_skips_what_is_no_character() -> None:
    assert prefix_end("a\ud7ff") == "a\ue000"
    assert prefix_end("a\U0010ffff") == "b"
    assert prefix_end("\U0010ffff") is None
    assert prefix_end("") is None


@pytest.mark.parametrize("name", ["a", "_", "A.b_9", "x" * 128, "a..b", "a."])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name", ["", "9a", ".a", "a-b", "a b", "é", "a\n", "x" * 129, 5, None, b"a"]
)
def test_invalid_names(name: object) -> None:
    assert not is_name(name)


def test_timestamps_are_normalised_to_utc() -> None:
    there = datetime(2026, 1, 2, 14, tzinfo=timezone(timedelta(hours=2)))
    assert plain_value(there) == datetime(2026, 1, 2, 12, tzinfo=UTC)
    assert plain_value(there).tzinfo is UTC  # type: ignore[union-attr]
    early = datetime.min.replace(tzinfo=timezone(timedelta(hours=2)))
    with pytest.raises(EventError, match="years"):
        plain_value(early)


@given(st.datetimes(timezones=st.just(UTC)))
def test_timestamps_as_text(moment: datetime) -> None:
    assert parse_timestamp(show_timestamp(moment), exact=True) == moment
