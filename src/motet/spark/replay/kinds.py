"""What kinds of values the texts of a column are: a kind is chosen only if every value keeps its
meaning in it. `007` is a text, and so is every value of a column that has one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from motet.model.limits import INT_MAX, INT_MIN
from motet.spark.replay.times import REMEMBERED, time_of

TEXT, BOOL, INT, FLOAT, TIME = "text", "bool", "int", "float", "time"
"""Kinds of columns."""
LONG, LOCAL, ZONED = "long", "local time", "zoned time"
"""Kinds of single values, besides: integers that no float has exactly; times without and with a
zone."""
_BOOLS: Final = {"true": True, "false": False}
_INT: Final = re.compile(r"-?[1-9]\d*|0", re.ASCII)
_FLOAT: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]\d+)", re.ASCII)
"""`1E5` is more often the name of something than a number."""
_EXACT: Final = 2**53
_TOGETHER: Final = (
    (BOOL, {BOOL}),
    (INT, {INT, LONG}),
    (FLOAT, {INT, FLOAT}),
    (TIME, {LOCAL}),
    (TIME, {ZONED}),
)


@lru_cache(REMEMBERED)
def kind_of(text: str) -> str:
    """Of one value."""
    first = text[:1]
    if first.isdigit() or first == "-":
        if _INT.fullmatch(text):
            if len(text) > 20 or not INT_MIN <= int(text) <= INT_MAX:
                return TEXT
            return INT if abs(int(text)) <= _EXACT else LONG
        if _FLOAT.fullmatch(text):
            return FLOAT if is_exact(text) else TEXT
        time = time_of(text)
        if time is not None:
            return ZONED if time.is_zoned else LOCAL
    return BOOL if text.lower() in _BOOLS else TEXT


def is_exact(number: str | Decimal) -> bool:
    """Whether a float says the same as these digits."""
    made = float(number)
    return math.isfinite(made) and Decimal(repr(made)) == Decimal(number)


def kind_together(kinds: Iterable[str]) -> str:
    """Of a column with values of these kinds."""
    found = set(kinds)
    if not found:
        return TEXT
    return next((kind for kind, those in _TOGETHER if found <= those), TEXT)


def value_in(kind: str, text: str) -> Any:
    """A text as a value of the kind of its column; times in microseconds."""
    if kind == TEXT:
        return text
    if kind == INT:
        return int(text)
    if kind == FLOAT:
        return float(text)
    if kind == BOOL:
        return _BOOLS[text.lower()]
    time = time_of(text)
    assert time is not None, text
    return time.us
