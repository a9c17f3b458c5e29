"""The predicates of the language as sets, shared by text and Python expressions.

A predicate on a value of one family says nothing of the others: `x <> 5` holds for numbers
other than 5, and neither for text, nor for NaN, nor for an event without `x`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from motet.errors import FilterError
from motet.model.clauses import predicate
from motet.model.sets import (
    ABSENT,
    PRESENT,
    Constraint,
    interval,
    points,
    ranged,
)
from motet.model.values import FAMILY_OF, Family, Value, prefix_end

__all__ = [
    "ABSENT",
    "NO_NAN",
    "NO_NULL",
    "PRESENT",
    "above",
    "at_least",
    "at_most",
    "below",
    "between",
    "equal",
    "like",
    "one_of",
    "predicate",
    "starting_with",
    "unequal",
]

NO_NAN: Final = "NaN equals nothing, so it cannot be compared with; only 'is not null' matches it"
NO_NULL: Final = "nothing equals null; write 'is null' or 'is not null'"


def equal(value: Value) -> Constraint:
    return points((value,))


def unequal(value: Value) -> Constraint:
    return ranged(interval(FAMILY_OF[type(value)], None, None), (value,))


def one_of(values: Iterable[Value]) -> Constraint:
    return points(values)


def below(value: Value) -> Constraint:
    return ranged(interval(FAMILY_OF[type(value)], None, value, high_open=True))


def at_most(value: Value) -> Constraint:
    return ranged(interval(FAMILY_OF[type(value)], None, value))


def above(value: Value) -> Constraint:
    return ranged(interval(FAMILY_OF[type(value)], value, None, low_open=True))


def at_least(value: Value) -> Constraint:
    return ranged(interval(FAMILY_OF[type(value)], value, None))


def between(low: Value, high: Value) -> Constraint:
    family = FAMILY_OF[type(low)]
    if FAMILY_OF[type(high)] is not family:
        raise FilterError("both ends of 'between' must be of one kind: numbers, text, or times")
    return ranged(interval(family, low, high))


def starting_with(prefix: str) -> Constraint:
    return ranged(interval(Family.TEXT, prefix, prefix_end(prefix), high_open=True))


def like(pattern: str) -> Constraint:
    """A prefix and `%`, or a text as it is. A backslash takes the meaning from `%` and `_`."""
    text: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "%" and at == len(pattern) - 1:
            return starting_with("".join(text))
        if char in "%_":
            raise FilterError(
                f"only a prefix is supported, like 'abc%': this {char} is a wildcard elsewhere; "
                f"write \\{char} for the character itself"
            )
        if char == "\\":
            at += 1
            char = pattern[at : at + 1]
            if char not in ("%", "_", "\\"):
                raise FilterError("a backslash in a pattern stands only before %, _ or \\")
        text.append(char)
        at += 1
    return equal("".join(text))
