"""The types of values in columns of text: a type is chosen only if every value keeps its meaning in
it. `007` is text, and so is every value of a column that contains it.

Times must be unambiguous ISO 8601. Spark's own parser is not used: it reads `10:00` as today and a
number as seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from motet.model.limits import INT_MAX, INT_MIN

# ── times ────────────────────────────────────────────────────────────────────────────────

LIKE: Final = "2026-03-01T09:00:00Z"
"""An example of a time, for error messages."""
LOCAL_ZONE: Final = "UTC"
"""The assumed zone of times without one."""
REMEMBERED: Final = 1 << 14
_FORM: Final = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?"
    r"(?: ?(?P<zone>[Zz]|UTC|GMT|[+-]\d\d(?::?\d\d)?))?)?\Z",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MINUTE_US: Final = 60_000_000
_DIGITS: Final = 6
_FARTHEST_MINUTES: Final = 14 * 60


class Time(NamedTuple):
    us: int
    """Microseconds since 1970, in UTC."""
    is_zoned: bool
    is_cut: bool
    """It was finer than microseconds."""


@lru_cache(REMEMBERED)  # events of a log share many times
def time_of(text: str) -> Time | None:
    found = _FORM.match(text)
    if found is None:
        return None
    fraction = found["fraction"] or ""
    try:
        at = datetime(
            int(found["year"]),
            int(found["month"]),
            int(found["day"]),
            int(found["hour"] or 0),
            int(found["minute"] or 0),
            int(found["second"] or 0),
            int(fraction[:_DIGITS].ljust(_DIGITS, "0")),
            UTC,
        )
    except ValueError:  # for example February 30 or hour 25
        return None
    east = _minutes_east(found["zone"] or "")
    if east is None:
        return None
    us = (at - _EPOCH) // _MICROSECOND - east * _MINUTE_US
    if not _FIRST_US <= us <= _LAST_US:
        return None
    return Time(us, found["zone"] is not None, bool(fraction[_DIGITS:].strip("0")))


def _minutes_east(zone: str) -> int | None:
    if zone[:1] not in ("+", "-"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    if int(digits[2:]) >= 60 or minutes > _FARTHEST_MINUTES:
        return None
    return minutes if zone[0] == "+" else -minutes


# ── kinds ────────────────────────────────────────────────────────────────────────────────


TEXT, BOOL, INT, FLOAT, TIME = "text", "bool", "int", "float", "time"
"""Kinds of columns."""
LONG, LOCAL, ZONED = "long", "local time", "zoned time"
"""Further kinds of single values: integers that no float represents exactly; times without and with
a zone."""
_BOOLS: Final = {"true": True, "false": False}
_INT: Final = re.compile(r"-?[1-9]\d*|0", re.ASCII)
_FLOAT: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]\d+)", re.ASCII)
"""`1E5` is more often a name than a number."""
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
    """The kind of one value."""
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
    """Whether the float has exactly this value."""
    made = float(number)
    return math.isfinite(made) and Decimal(repr(made)) == Decimal(number)


def kind_together(kinds: Iterable[str]) -> str:
    """The kind of a column with values of these kinds."""
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
