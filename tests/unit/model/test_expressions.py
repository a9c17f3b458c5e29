"""Filters written in Python."""

# ruff: noqa: SIM300 - the attribute stands on the left, as users write it

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from math import nan

import pytest

from motet.errors import FilterError, FilterTooComplex, MisuseError
from motet.model import EVERYTHING, NOTHING, Filter, attr

X = attr("x")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (X == 1, "x = 1"),
        (X != 1, "x <> 1"),
        (X < 1, "x < 1"),
        (X <= 1, "x <= 1"),
        (X > 1, "x > 1"),
        (X >= 1, "x >= 1"),
        (1 < X, "x > 1"),
        (X.between(1, 2), "x between 1 and 2"),
        (X.isin(1, "a"), "x in (1, 'a')"),
        (X.isin([1, 2]), "x in (1, 2)"),
        (X.isin("ab"), "x = 'ab'"),
        (X.startswith("a%"), "x like 'a\\%%'"),
        (X.startswith(""), "x like '%'"),
        (X.is_null(), "x is null"),
        (X.is_not_null(), "x is not null"),
        ((X > 1) & (attr("y") == True), "x > 1 and y = true"),  # noqa: E712
        ((X > 1) | (attr("y") == "b"), "x > 1 or y = 'b'"),
        (X == datetime(2026, 1, 2, tzinfo=UTC), "x = timestamp '2026-01-02T00:00:00Z'"),
    ],
)
def test_expressions_say_what_text_says(made: Filter, text: str) -> None:
    assert made == Filter.parse(text)
    assert str(made) == text


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: bool(X > 1),
        lambda: (X > 1) and (X < 5),
        lambda: 1 < X < 5,
        lambda: bool(X),
        lambda: ~(X > 1),
        lambda: not X == 1,  # noqa: SIM201
    ],
)
def test_python_logic_on_filters_is_explained(misuse: Callable[[], object]) -> None:
    with pytest.raises(MisuseError, match=r"&|opposite"):
        misuse()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: X == None, "is_null"),  # noqa: E711
        (lambda: X == nan, "NaN"),
        (lambda: X == attr("y"), "another attribute"),
        (lambda: X == b"bytes", "payload"),
        (lambda: X > datetime(2026, 1, 2), "time zone"),
        (lambda: X > 2**63, "64 bits"),
        (lambda: X == "\ud800", "surrogate"),
        (lambda: X.isin(), "at least one"),
        (lambda: X.startswith(5), "takes a str"),  # type: ignore[arg-type]
        (lambda: X.between(1, "a"), "one kind"),
        (lambda: attr("no name"), "cannot name"),
        (lambda: attr(""), "cannot name"),
    ],
)
def test_wrong_values_are_explained(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(FilterError, match=says):
        wrong()


def test_limits_hold_for_expressions() -> None:
    with pytest.raises(FilterTooComplex):
        X.isin(range(1025))
    wide = NOTHING
    for i in range(64):
        wide = wide | (X == i)
    with pytest.raises(FilterTooComplex):
        _ = wide | (X == 64)
    with pytest.raises(FilterTooComplex):
        _ = wide & ((attr("y") == 1) | (attr("z") == 1))


def test_filters_are_frozen_values() -> None:
    made = (X > 1) & (attr("y") == "b")
    with pytest.raises(AttributeError):
        made.clauses = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        made.other = 1
    with pytest.raises(AttributeError):
        del made.clauses
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    assert {made: 1}[Filter.parse("y = 'b' and x > 1")] == 1
    assert made != "x > 1"
    assert (made & EVERYTHING, made | NOTHING, made & made, made | made) == (made,) * 4
    with pytest.raises(TypeError):
        _ = made & "x > 1"  # type: ignore[operator]


def test_filters_are_compact() -> None:
    """A million of these must fit into memory: names are shared, nothing has a dict."""
    one, two = (Filter.from_wire([[["na" + "me", 2, "v"]]]) for _ in range(2))
    assert one.clauses[0].constraints[0][0] is two.clauses[0].constraints[0][0]
    assert not hasattr(one, "__dict__")
