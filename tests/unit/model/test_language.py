"""The filter language: what it means, how it prints, and how it complains."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf, nan
from time import process_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from motet.errors import FilterError, FilterTooComplex
from motet.model import EVERYTHING, NOTHING, Filter, Value, as_filter, attr
from motet.model.sets import PRESENT, Constraint, Interval
from motet.model.values import Family
from tests.unit.model.strategies import any_names, any_values, filters

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("process = 'p1' AND step BETWEEN 1 AND 9", "process = 'p1' and step between 1 and 9"),
        ("name like 'abc%'", "name like 'abc%'"),
        ("name like 'abc'", "name = 'abc'"),
        ("name like '%'", "name like '%'"),
        (r"name like '50\% \_\\%'", r"name like '50\% \_\\%'"),
        ("name >= 'ab' and name < 'ac'", "name like 'ab%'"),
        ("x == 1.0", "x = 1"),
        ("x = -0.0", "x = 0"),
        ("x != 1", "x <> 1"),
        ("5 < x", "x > 5"),
        ("5 >= x", "x <= 5"),
        ("'a' = x", "x = 'a'"),
        ("true = x", "x = true"),
        ("x > 1", "x > 1"),
        ("x > .5 and x<=1E3", "x > 0.5 and x <= 1000"),
        ("x in (3, 1, 2, 1.0)", "x in (1, 2, 3)"),
        ("x in (true, 'a', 1)", "x in (true, 1, 'a')"),
        ("x in (true, false)", "x in (false, true)"),
        ("x <> true", "x = false"),
        ("x <> 2 and x between 1 and 3 and x <> 1", "x > 1 and x <= 3 and x <> 2"),
        ("x is null", "x is null"),
        ("x IS NOT NULL", "x is not null"),
        ("x is not null and x > 1", "x > 1"),
        ("x <= infinity", "x <= infinity"),
        ("x > -Infinity", "x > -infinity"),
        ("x = 'it''s'", "x = 'it''s'"),
        ('"order" = 1', "order = 1"),
        ("`Like` = 1", '"Like" = 1'),
        ("timestamp > 5", '"timestamp" > 5'),
        ("t < timestamp '2026-01-02T14:00:00+02:00'", "t < timestamp '2026-01-02T12:00:00Z'"),
        ("a.b = 1 or a.b = 1", "a.b = 1"),
        ("y = 2 or x = 1", "x = 1 or y = 2"),
        ("(x = 1 or y = 2) and z = 3", "x = 1 and z = 3 or y = 2 and z = 3"),
        ("x = 1 or true", "true"),
        ("x = 1 and false", "false"),
        ("x = 1 and true", "x = 1"),
        ("((true))", "true"),
        ("x\n=\t1", "x = 1"),
        ("x = 9223372036854775807", "x = 9223372036854775807"),
        ("x = 0000000000000000000000001", "x = 1"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    parsed = Filter.parse(text)
    assert str(parsed) == canonical
    assert Filter.parse(canonical) == parsed
    assert hash(Filter.parse(canonical)) == hash(parsed)


def test_the_data_of_a_filter() -> None:
    [clause] = Filter.parse("x > 1 and y is not null").clauses
    assert clause.constraints == (
        ("x", Constraint((Interval(Family.NUMBER, 1, None, True, False),))),
        ("y", PRESENT),
    )


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "true to match every event"),
        ("x", 2, "an attribute alone is no predicate"),
        ("x and y = 1", 3, "an attribute alone"),
        ("x =", 4, "expected a value, found the end"),
        ("x = y", 5, "not with another attribute"),
        ("1 = 1", 1, "must be an attribute name"),
        ("1", 2, "expected a comparison"),
        ("not x = 1", 1, "opposite comparison"),
        ("x not in (1)", 3, "opposite comparison"),
        ("x = null", 5, "is null"),
        ("x = NaN", 5, "NaN equals nothing"),
        ("x like 'a%b'", 8, "only a prefix"),
        ("x like '_a'", 8, "only a prefix"),
        ("x like 'a\\'", 8, "backslash"),
        ("x like 5", 8, "pattern"),
        ("x between 1 or 2", 13, "expected 'and'"),
        ("x between 1 and 'a'", 11, "one kind"),
        ("x in ()", 7, "expected a value"),
        ("x in 1", 6, "expected '('"),
        ("x in (1", 8, "expected ',' or ')'"),
        ("x is 5", 6, "expected 'null'"),
        ("(x = 1", 7, "expected ')' for the '(' at column 1"),
        ("x = 1)", 6, "expected 'and', 'or' or the end"),
        ("x = 1 y = 2", 7, "expected 'and', 'or' or the end"),
        ("x = 'abc", 5, "no closing '"),
        ('"x = 1', 1, 'no closing "'),
        ('"x y" = 1', 1, "attribute names"),
        ("x = 9223372036854775808", 5, "64 bits"),
        ("x = " + "9" * 5000, 5, "64 bits"),
        ("x = 1e999", 5, "infinity"),
        ("x = 1e", 6, "exponent"),
        ("x = 5y", 6, "run into"),
        ("x & y", 3, "write 'and'"),
        ("x = timestamp '2026-01-02T12:00:00'", 15, "zone"),
        ("x = timestamp '2026-01-02T12:00:00.1234567Z'", 15, "microsecond"),
        ("x = timestamp 'noon'", 15, "not a timestamp"),
        ("between = 1", 1, "quote it"),
        ("x" * 129 + " = 1", 1, "at most 128"),
    ],
)
def test_errors_point_at_their_cause(text: str, column: int, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        Filter.parse(text)
    assert says in caught.value.problem
    assert (caught.value.text, caught.value.column) == (text, column)


def test_the_caret_is_below_the_cause() -> None:
    with pytest.raises(FilterError) as caught:
        Filter.parse("x = 1\n\tand y ~ 2")
    assert str(caught.value).splitlines()[1:] == ["   and y ~ 2", "         ^"]
    with pytest.raises(FilterError) as caught:
        Filter.parse(f"x in ({'1,' * 500} ~{', 2' * 500})")
    _, shown, caret = str(caught.value).splitlines()
    assert shown[caret.index("^")] == "~"
    assert len(shown) < 110


@pytest.mark.parametrize(
    "text",
    [
        "x = 1" + " " * 65536,
        "(" * 65 + "x = 1" + ")" * 65,
        "(" * 60_000,
        " and ".join(f"(a{i} = 1 or b{i} = 1)" for i in range(7)),
        " and ".join(f"x{i} = 1" for i in range(1025)),
        " or ".join(f"x = {i}" for i in range(65)),
        f"x in ({', '.join(map(str, range(1025)))})",
    ],
)
def test_limits(text: str) -> None:
    with pytest.raises(FilterTooComplex):
        Filter.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        " and ".join(f"x <> {i}" for i in range(1000)),
        " and ".join(f"x{i} > 1" for i in range(500)),
        f"x in ({', '.join(map(str, range(1024)))})",
        " or ".join(f"x = {i}" for i in range(64)),
        "(" * 64 + "x = 1" + ")" * 64,
        "x = '" + "'" * 65_000 + "'",
    ],
)
def test_large_filters_are_read_quickly(text: str) -> None:
    start = process_time()
    parsed = Filter.parse(text)
    assert process_time() - start < 2
    assert Filter.parse(str(parsed)) == parsed


def test_filters_are_shown_as_they_are_parsed() -> None:
    assert repr(attr("x") == "a") == "Filter.parse(\"x = 'a'\")"
    assert as_filter("x = 1") == as_filter(attr("x") == 1)
    with pytest.raises(FilterError, match="cannot have the type int"):
        as_filter(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("x = 1", True, False),
        ("x = true", 1, False),
        ("x = 1", 1.0, True),
        ("x = 0", -0.0, True),
        ("x >= -infinity", nan, False),
        ("x <> 1", nan, False),
        ("x is not null", nan, True),
        ("x <> 1", "1", False),
        ("x <> 1", None, False),
        ("x is null", None, True),
        ("x is null", 0, False),
        ("x = 9007199254740993", 2.0**53, False),
        ("x > 9007199254740992.0", 2**53 + 1, True),
        ("x <= infinity", inf, True),
        ("x like 'ab%'", "ab", True),
        ("x like 'ab%'", "ac", False),
        ("x > 'z'", "😀", True),
        ("x > '\ue000'", "😀", True),
        ("x = timestamp '2026-01-02T12:00:00Z'", NOON, True),
        ("x = '2026-01-02T12:00:00Z'", NOON, False),
        ("true", None, True),
        ("false", None, False),
    ],
)
def test_matching(text: str, value: Value | None, expected: bool) -> None:
    attributes = {} if value is None else {"x": value}
    assert Filter.parse(text).matches(attributes) is expected


@settings(max_examples=200, deadline=None)
@given(filters())
def test_text_returns_the_same_filter(given_filter: Filter) -> None:
    text = str(given_filter)
    assert Filter.parse(text) == given_filter
    assert str(Filter.parse(text)) == text


@settings(max_examples=200, deadline=None)
@given(any_names(), any_values().filter(lambda value: value == value))
@example("NULL", -5e-324)
@example("infinity", -inf)
def test_every_value_can_be_written_in_a_filter(name: str, value: Value) -> None:
    for made in (attr(name) == value, attr(name) >= value, attr(name) != value):
        assert Filter.parse(str(made)) == made
    assert (attr(name) == value).matches({name: value})


WORDS = [
    *("and", "or", "not", "in", "is", "null", "like", "between", "true", "false", "timestamp"),
    *("nan", "infinity", "(", ")", ",", "=", "<>", "<", ">=", "'a%'", "'", '"', "`", "\\", "%"),
    *("x", "y.z", "1", "-5", "1e5", "1e999", ".", "-", "+", "é", "\0", "\ud800", "9" * 30),
    *("timestamp '2026-01-02T12:00:00Z'", "x = 1", "'it''s'", "-infinity"),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=30))
def test_any_text_parses_or_raises_a_filter_error(text: str) -> None:
    try:
        parsed = Filter.parse(text)
    except FilterError as error:
        str(error)
    else:
        assert Filter.parse(str(parsed)) == parsed


@settings(max_examples=200, deadline=None)
@given(filters(), st.data())
def test_mutated_text_parses_or_raises_a_filter_error(start: Filter, data: st.DataObject) -> None:
    text = str(start)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 5))
    mutated = text[:at] + data.draw(st.sampled_from(WORDS)) + text[at + cut :]
    try:
        Filter.parse(mutated)
    except FilterError as error:
        str(error)


def test_constants() -> None:
    assert (str(EVERYTHING), str(NOTHING)) == ("true", "false")
    assert (Filter.parse("true"), Filter.parse("false")) == (EVERYTHING, NOTHING)
