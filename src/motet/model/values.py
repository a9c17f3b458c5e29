"""Values of attributes, and the order of the values of one family.

Four families never compare with each other: bool, number, text, time. Ints and floats are one
family and compare exactly, also beyond 2**53. The numbers of Motet are the union of int64 and
float64, so no number lies between two neighbours of that set. `next_number` returns the neighbour,
which makes emptiness, and with it overlap and covering, exact.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum
from math import floor, inf, isnan, nextafter
from typing import Final, Protocol

from motet.errors import EventError
from motet.model.ids import is_name
from motet.model.limits import INT_MAX, INT_MIN, MAX_NAME_CHARS

Value = bool | int | float | str | datetime


class Family(IntEnum):
    BOOL = 0
    NUMBER = 1
    TEXT = 2
    TIME = 3

    # Filters are hashed by the million; the hash of an enum is implemented in Python.
    __hash__ = int.__hash__


class Attributes(Protocol):
    """Anything that looks attributes up by name: a dict, a mapping, an `Event`."""

    def get(self, name: str, /) -> Value | None: ...


FAMILY_OF: Final[dict[type, Family]] = {
    bool: Family.BOOL,
    int: Family.NUMBER,
    float: Family.NUMBER,
    str: Family.TEXT,
    datetime: Family.TIME,
}

LOWEST: Final[tuple[Value, Value, Value, Value]] = (
    False,
    -inf,
    "",
    datetime.min.replace(tzinfo=UTC),
)
HIGHEST: Final[tuple[Value, Value, None, Value]] = (
    True,
    inf,
    None,  # there is no last text
    datetime.max.replace(tzinfo=UTC),
)

_MICROSECOND: Final = timedelta(microseconds=1)


def check_name(name: object) -> None:
    if not is_name(name):
        raise EventError(
            f"{_shown(name)} cannot name an attribute: use at most {MAX_NAME_CHARS} ASCII letters, "
            "digits, '_' and '.', and do not start with a digit"
        )


def plain_value(value: object, where: str = "a value") -> Value:
    """The value as Motet stores it: exact builtin type, timestamps in UTC. `where` names it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        plain = str.__str__(value)
        if not plain.isascii():
            _check_encodable(plain, where)
        return plain
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise EventError(
                f"{where} is an integer beyond 64 bits; send it as a string, or as a float "
                "if its last digits do not matter"
            )
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, datetime):
        return _utc(value, where)
    raise EventError(f"{where} is {_shown(value)}: {_advice(value)}")


def check_value(value: object, where: str) -> None:
    """Accept only values that `plain_value` returns unchanged: for values from the wire."""
    if type(value) not in FAMILY_OF or (type(value) is datetime and value.tzinfo is not UTC):
        raise EventError(f"{where} is {_shown(value)}: {_advice(value)}")
    plain_value(value, where)


def _check_encodable(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EventError(
            f"{where} holds a lone surrogate at position {error.start}, which UTF-8 cannot carry"
        ) from None


def _utc(value: datetime, where: str) -> datetime:
    if value.tzinfo is None or value.utcoffset() is None:
        raise EventError(
            f"{where} is a datetime without a time zone; give it one, for example "
            "datetime.now(timezone.utc) or value.replace(tzinfo=timezone.utc)"
        )
    if type(value) is datetime and value.tzinfo is UTC:
        return value
    try:
        there = value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise EventError(f"{where} lies outside the years 1 to 9999 in UTC") from None
    # A subclass (e.g. pandas.Timestamp) becomes a plain datetime of the same microsecond.
    return datetime(*there.timetuple()[:6], there.microsecond, UTC)


def _advice(value: object) -> str:
    if value is None:
        return "omit attributes without a value"
    if isinstance(value, bytes | bytearray | memoryview):
        return "put bytes into the payload"
    return "use bool, int, float, str or a datetime with a time zone"


def _shown(value: object) -> str:
    shown = (
        repr(value)
        if isinstance(value, str | bytes | None)
        else f"an object of type {type(value).__name__}"
    )
    return shown if len(shown) <= 60 else shown[:57] + "..."


# ── order ────────────────────────────────────────────────────────────────────────────────


def canonical_number(number: int | float) -> int | float:
    """One form per number: `1.0` and `-0.0` become ints, so that equal filters print alike."""
    if type(number) is float and number.is_integer() and INT_MIN <= number <= INT_MAX:
        return int(number)
    return number


def next_number(number: int | float) -> int | float:
    """The least number above this one among int64 and float64; infinity has none."""
    return _above(number, INT_MIN, INT_MAX)


def previous_number(number: int | float) -> int | float:
    """The greatest number below this one among int64 and float64; -infinity has none."""
    return -_above(-number, -INT_MAX, -INT_MIN)


def _above(number: int | float, first_int: int, last_int: int) -> int | float:
    if number == inf or isnan(number):
        raise ValueError(f"{number} has no neighbour on that side")
    near = float(number)
    real = near if near > number else nextafter(near, inf)
    if number < last_int:
        whole = first_int if number < first_int else floor(number) + 1
        if whole <= real:
            return whole
    return real


def successor(value: Value) -> Value:
    """The least value above this one. The caller knows that one exists."""
    match value:
        case bool():
            return True
        case int() | float():
            return next_number(value)
        case str():
            return value + "\0"
        case datetime():
            return value + _MICROSECOND
    raise AssertionError(value)


def prefix_end(prefix: str) -> str | None:
    """The least text above all texts that start with `prefix`; None if there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    last = ord(stem[-1])
    # Code points of surrogates are not characters: the one after U+D7FF is U+E000.
    return stem[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)


def parse_timestamp(text: str, *, exact: bool = False) -> datetime:
    """RFC 3339 with a zone; raises a ValueError with the reason.

    Digits below the microsecond are truncated, or refused if the time must be `exact`.
    """
    if len(text) > 64:
        raise ValueError("too long for a timestamp")
    try:
        there = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("not a timestamp like 2026-01-02T03:04:05.678Z") from None
    if there.tzinfo is None:
        raise ValueError("a timestamp needs a zone: end it with Z or an offset like +02:00")
    fraction = text.partition(".")[2]
    if exact and len(fraction) - len(fraction.lstrip("0123456789")) > 6:
        raise ValueError("timestamps are exact to the microsecond: at most 6 digits after the '.'")
    try:
        return _utc(there, "it")
    except EventError as error:
        raise ValueError(str(error)) from None


def show_timestamp(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat() + "Z"
