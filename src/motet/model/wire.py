"""Filters on the wire: nested lists in msgpack, checked strictly on the way in.

    filter     [clause, ...]
    clause     [constraint, ...]
    constraint [name, 0]                                          absent
               [name, 1]                                          present
               [name, 2, value, ...]                              one of these values
               [name, 3, family, low, high, openness, hole, ...]  between, without the holes

`low` and `high` may be nil; openness has bit 1 for an open low end and bit 2 for the high one.
A broker reads thousands of these per second, which is why the common shapes are built in place.

In a frame or a record a filter travels as one string of bytes, which holds this form. So whoever
reads a filter has its bytes, too, and can write it down and pass it on as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from sys import intern
from typing import Final

import msgspec

from motet.errors import EventError, FilterError, FilterTooComplex
from motet.model.clauses import Clause, Clauses, normal
from motet.model.limits import (
    INT_MAX,
    INT_MIN,
    MAX_CLAUSES,
    MAX_FILTER_CHARS,
    MAX_IN_LIST,
    MAX_INTERVALS,
    MAX_PREDICATES,
)
from motet.model.sets import (
    ABSENT,
    PRESENT,
    Constraint,
    Interval,
    Points,
    Range,
    interval,
    points,
    ranged,
    shape,
)
from motet.model.values import FAMILY_OF, Family, Value, check_value, is_name

_ABSENT: Final = 0
_PRESENT: Final = 1
_POINTS: Final = 2
_RANGE: Final = 3

MAX_WIRE_VALUES: Final = 6 * MAX_PREDICATES + MAX_INTERVALS
"""No filter within the limits has more values, kinds and names on the wire."""

SMALL_BYTES: Final = min(MAX_WIRE_VALUES, 2 * MAX_FILTER_CHARS)
"""What is no longer than this has neither too many values nor too much text."""

_FAMILIES: Final = tuple(Family)
_NUMBER: Final = Family.NUMBER
_TEXT: Final = Family.TEXT
_make: Final = tuple.__new__

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode

_NAMES: Final[dict[str, str]] = {}
"""Names that were seen and found valid, each as the one string that all filters share."""
MOST_NAMES: Final = 4096
"""Strangers may invent names; beyond so many, new ones are checked again each time."""


# ── out ──────────────────────────────────────────────────────────────────────────────────


def clauses_to_bytes(clauses: Clauses) -> bytes:
    return _encode(clauses_to_wire(clauses))


def clauses_to_wire(clauses: Clauses) -> list[list[list[object]]]:
    return [
        [[name, *_to_wire(constraint)] for name, constraint in clause.constraints]
        for clause in clauses
    ]


def _to_wire(constraint: Constraint) -> list[object]:
    if constraint.absent and constraint == ABSENT:
        return [_ABSENT]
    if constraint.nan and constraint == PRESENT:
        return [_PRESENT]
    match shape(constraint):
        case Points(values):
            return [_POINTS, *values]
        case Range((family, low, high, low_open, high_open), holes):
            return [_RANGE, int(family), low, high, low_open + 2 * high_open, *holes]
    raise FilterError(f"the language has no words for {constraint}")


# ── in ───────────────────────────────────────────────────────────────────────────────────


def clauses_from_bytes(data: object) -> Clauses:
    if type(data) is not bytes:
        raise FilterError("a filter on the wire is not a string of bytes")
    try:
        form = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as problem:
        raise FilterError(f"a filter on the wire is malformed: {problem}") from None
    return clauses_from_wire(form, small=len(data) <= SMALL_BYTES)


def clauses_from_wire(form: object, *, small: bool = False) -> Clauses:
    """`small`: the caller knows that it is within `SMALL_BYTES`."""
    clauses = _sequence(form, "a filter")
    if len(clauses) > MAX_CLAUSES:
        raise FilterTooComplex(f"a filter has at most {MAX_CLAUSES} alternatives")
    if not small:
        _check_extent(clauses)
    if len(clauses) == 1:
        return _clause(clauses[0])
    return normal([clause for each in clauses for clause in _clause(each)])


def _check_extent(clauses: Sequence[object]) -> None:
    """Refuse what is too large before anything is made of it."""
    values = chars = 0
    for clause in clauses:
        for entry in _sequence(clause, "a clause"):
            if type(entry) is list or type(entry) is tuple:
                values += len(entry)
                for part in entry:
                    if type(part) is str:
                        chars += len(part)
    if values > MAX_WIRE_VALUES:
        raise FilterTooComplex(f"a filter has at most {MAX_INTERVALS} values")
    if chars > 2 * MAX_FILTER_CHARS:  # both ends of what was written once
        raise FilterTooComplex(
            f"a filter has at most {MAX_FILTER_CHARS} characters of text, this one {chars}"
        )


def _clause(form: object) -> Clauses:
    """The clause, or none at all when nothing can satisfy it."""
    constraints = _sequence(form, "a clause")
    if len(constraints) > MAX_PREDICATES:
        raise FilterTooComplex(f"a filter has at most {MAX_PREDICATES} predicates")
    pairs: list[tuple[str, Constraint]] = []
    satisfiable = True
    size = 0
    last = ""
    names = _NAMES
    for entry in constraints:
        if (type(entry) is not list and type(entry) is not tuple) or len(entry) < 2:
            raise FilterError("a constraint on the wire is not a list of a name and a kind")
        name, kind = entry[0], entry[1]
        if type(name) is not str or (known := names.get(name)) is None:
            known = _checked_name(name)
        if type(kind) is not int or not 0 <= kind <= _RANGE:
            raise FilterError("a constraint on the wire has an unknown kind")
        constraint = _READERS[kind](entry)
        if not (constraint[0] or constraint[2]):  # neither intervals nor absent
            satisfiable = False
        if known <= last and pairs:
            raise FilterError("the attributes of a clause on the wire are not in order")
        pairs.append((known, constraint))
        size += len(entry)
        last = known
    if not satisfiable:
        return ()
    clause: Clauses = (_make(Clause, (tuple(pairs),)),)
    # Small clauses, nearly all of them, are within the limits without counting.
    return clause if size <= MAX_IN_LIST else normal(clause)


def _checked_name(name: object) -> str:
    if not is_name(name):
        raise FilterError("a constraint on the wire has no valid attribute name")
    name = intern(name)
    if len(_NAMES) < MOST_NAMES:
        _NAMES[name] = name
    return name


def _absent(entry: Sequence[object]) -> Constraint:
    if len(entry) != 2:
        raise FilterError("absence on the wire takes no value")
    return ABSENT


def _present(entry: Sequence[object]) -> Constraint:
    if len(entry) != 2:
        raise FilterError("presence on the wire takes no value")
    return PRESENT


def _points(entry: Sequence[object]) -> Constraint:
    if len(entry) == 3:
        value = entry[2]
        if type(value) is str and value.isascii():
            piece = _make(Interval, (_TEXT, value, value, False, False))
        else:
            value = _value(value)
            piece = _make(Interval, (FAMILY_OF[type(value)], value, value, False, False))
        return _make(Constraint, ((piece,), False, False))
    if len(entry) < 3:
        raise FilterError("a list on the wire has no values")
    if len(entry) > MAX_IN_LIST + 2:
        raise FilterTooComplex(f"a list has at most {MAX_IN_LIST} values")
    if all(type(value) is str and value.isascii() for value in entry[2:]):
        words = sorted(set(entry[2:]))  # type: ignore[type-var]
        pieces = [_make(Interval, (_TEXT, word, word, False, False)) for word in words]
        return _make(Constraint, (tuple(pieces), False, False))
    return points([_value(value) for value in entry[2:]])


def _range(entry: Sequence[object]) -> Constraint:
    if len(entry) < 6:
        raise FilterError("a range on the wire is too short")
    if len(entry) > MAX_PREDICATES + 6:
        raise FilterTooComplex(f"a filter has at most {MAX_PREDICATES} predicates")
    _, _, number, low, high, openness = entry if len(entry) == 6 else entry[:6]
    if type(number) is not int or not 0 <= number <= 3:
        raise FilterError("a range on the wire has an unknown family")
    if type(openness) is not int or not 0 <= openness <= 3:
        raise FilterError("a range on the wire has an unknown openness")
    plain = number == _NUMBER and len(entry) == 6 and _is_plain(low) and _is_plain(high)
    # One end is missing, or a closed one belongs to it: it cannot be empty.
    if plain and (low is None or high is None or (low < high and openness != 3)):  # type: ignore[operator]
        low_open = openness & 1 == 1 and low is not None
        ends = (_NUMBER, low, high, low_open, openness >= 2 and high is not None)
        return _make(Constraint, ((_make(Interval, ends),), False, False))
    family = _FAMILIES[number]
    if low is not None:
        low = _value(low, family)
    if high is not None:
        high = _value(high, family)
    piece = interval(family, low, high, openness & 1 == 1, openness & 2 == 2)
    if len(entry) == 6 and piece is not None:
        return _make(Constraint, ((piece,), False, False))
    return ranged(piece, [_value(hole, family) for hole in entry[6:]])


def _is_plain(end: object) -> bool:
    """Whether an end of a range of numbers is missing, or a number that is kept as it is."""
    kind = type(end)
    if kind is float:
        return -inf < end < inf and not end.is_integer()  # type: ignore[operator, attr-defined]
    return end is None or (kind is int and INT_MIN <= end <= INT_MAX)  # type: ignore[operator]


def _value(value: object, family: Family | None = None) -> Value:
    """The value as a filter keeps it, after checks as strict as those on events."""
    kind = type(value)
    if kind is float:
        value = _float(value)  # type: ignore[arg-type]
    elif kind is int:
        if not INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
            raise FilterError("an integer of the filter is beyond 64 bits")
    elif kind is datetime:
        if value.tzinfo is not UTC:  # type: ignore[attr-defined]
            raise FilterError("a timestamp of the filter is not in UTC")
    elif kind is not str or not value.isascii():  # type: ignore[attr-defined]
        try:
            check_value(value, "a value of the filter")
        except EventError as error:
            raise FilterError(str(error)) from None
    if family is not None and FAMILY_OF[kind] is not family:
        raise FilterError("a range on the wire mixes families")
    return value  # type: ignore[return-value]


def _float(value: float) -> float | int:
    if value != value:
        raise FilterError("NaN equals nothing, so a filter cannot ask for it")
    if value.is_integer() and INT_MIN <= value <= INT_MAX:
        return int(value)
    return value


_READERS: Final = (_absent, _present, _points, _range)
"""By the number of the kind."""


def _sequence(form: object, what: str) -> Sequence[object]:
    if type(form) is list or type(form) is tuple:
        return form
    raise FilterError(f"{what} on the wire is not a list")
