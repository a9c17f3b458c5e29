"""Hypothesis strategies for values, events and filters, for every room that needs them.

Two kinds of worlds. `attributes()` and `filters()` live in a small one: three names and a grid of
values chosen so that predicates meet at their edges (NaN, neighbours of 2**53, bool against int).
`any_attributes()` and `any_values()` range over all that an event may carry.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf, nan, nextafter

from hypothesis import strategies as st

from motet.model import Filter, Value, attr
from motet.model.filters import EVERYTHING, NOTHING
from motet.model.limits import INT_MAX, INT_MIN

NAMES = ("a", "b", "c.d")

_NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)

NUMBERS: tuple[int | float, ...] = (
    -inf,
    INT_MIN,
    -1,
    -0.0,
    5e-324,
    1,
    nextafter(1.0, 2.0),
    nextafter(nextafter(1.0, 2.0), 2.0),
    1.5,
    2,
    2**53,
    2**53 + 1,
    2.0**53 + 2,
    INT_MAX,
    2.0**63,
    1.7976931348623157e308,
    inf,
)
TEXTS = (
    "",
    "\0",
    "a",
    "a\0",
    "ab",
    "ab\U0010ffff",
    "ac",
    "b",
    "é",
    "\ud7ff",
    "\ue000",
    "😀",
    "%_'\\",
)
TIMES = (
    datetime.min.replace(tzinfo=UTC),
    _NOON,
    _NOON + timedelta(microseconds=1),
    _NOON + timedelta(microseconds=2),
    datetime.max.replace(tzinfo=UTC),
)
GRID: tuple[Value, ...] = (False, True, *NUMBERS, *TEXTS, *TIMES)
"""All grid values a filter may name. Events may also have NaN, or no value."""


def names() -> st.SearchStrategy[str]:
    return st.sampled_from(NAMES)


def literals() -> st.SearchStrategy[Value]:
    """Values a filter may name, from the grid."""
    return st.sampled_from(GRID)


def attributes() -> st.SearchStrategy[dict[str, Value]]:
    """Attributes over the grid, some absent, some NaN."""
    return st.dictionaries(names(), st.sampled_from((*GRID, nan)), max_size=len(NAMES))


def ranges() -> st.SearchStrategy[tuple[Value, Value]]:
    return st.one_of(
        *(
            st.tuples(st.sampled_from(family), st.sampled_from(family))
            for family in ((False, True), NUMBERS, TEXTS, TIMES)
        )
    )


@st.composite
def predicates(draw: st.DrawFn) -> Filter:
    """One predicate of the language, made by an expression."""
    subject = attr(draw(names()))
    value = draw(literals())
    match draw(st.integers(0, 10)):
        case 0:
            return subject == value
        case 1:
            return subject != value
        case 2:
            return subject < value
        case 3:
            return subject <= value
        case 4:
            return subject > value
        case 5:
            return subject >= value
        case 6:
            return subject.between(*draw(ranges()))
        case 7:
            return subject.isin(draw(st.lists(literals(), min_size=1, max_size=4)))
        case 8:
            return subject.startswith(draw(st.sampled_from(TEXTS)))
        case 9:
            return subject.is_null()
        case _:
            return subject.is_not_null()


@st.composite
def crowded(draw: st.DrawFn) -> Filter:
    """Two bounds and some holes on one attribute, among literals that are each other's neighbours:
    where an interval is empty, a single value, or covered piece by piece."""
    subject = attr("a")
    near = draw(
        st.sampled_from((NUMBERS[5:8], NUMBERS[10:13], TEXTS[:4], TIMES[1:4], (False, True)))
    )
    value = st.sampled_from(near)
    low, high = draw(value), draw(value)
    made: Filter = (subject > low) if draw(st.booleans()) else (subject >= low)
    made = made & ((subject < high) if draw(st.booleans()) else (subject <= high))
    for hole in draw(st.lists(value, max_size=2)):
        made = made & (subject != hole)
    return made


def conjunctions(max_size: int = 4) -> st.SearchStrategy[Filter]:
    """Filters without `or`; some of them match nothing."""

    def joined(parts: list[Filter]) -> Filter:
        whole = EVERYTHING
        for part in parts:
            whole = whole & part
        return whole

    return st.lists(predicates(), max_size=max_size).map(joined)


def filters(max_clauses: int = 3) -> st.SearchStrategy[Filter]:
    """Unions of conjunctions over the grid."""

    def united(parts: list[Filter]) -> Filter:
        whole = NOTHING
        for part in parts:
            whole = whole | part
        return whole

    return st.lists(conjunctions(), max_size=max_clauses).map(united)


def any_names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,30}", fullmatch=True)


def any_values() -> st.SearchStrategy[Value]:
    return st.one_of(
        st.booleans(),
        st.integers(INT_MIN, INT_MAX),
        st.floats(),
        st.text(max_size=20),
        st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0)),
    )


def any_attributes() -> st.SearchStrategy[dict[str, Value]]:
    return st.dictionaries(any_names(), any_values(), max_size=8)
