"""Filters on the wire: nested lists that msgpack carries, checked strictly on the way in.

    filter     [clause, ...]
    clause     [constraint, ...]
    constraint [name, 0]                                          absent
               [name, 1]                                          present
               [name, 2, value, ...]                              one of these values
               [name, 3, family, low, high, openness, hole, ...]  between, without the holes

`low` and `high` may be nil; openness has bit 1 for an open low end and bit 2 for the high one.
A broker reads thousands of these per second, which is why the common shapes are built in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern
from typing import Final

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

_FAMILIES: Final = tuple(Family)
_make: Final = tuple.__new__


# ── out ──────────────────────────────────────────────────────────────────────────────────


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


def clauses_from_wire(form: object) -> Clauses:
    clauses = _sequence(form, "a filter")
    if len(clauses) > MAX_CLAUSES:
        raise FilterTooComplex(f"a filter has at most {MAX_CLAUSES} alternatives")
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
    for entry in constraints:
        if (type(entry) is not list and type(entry) is not tuple) or len(entry) < 2:
            raise FilterError("a constraint on the wire is not a list of a name and a kind")
        name, kind = entry[0], entry[1]
        if type(name) is not str or not (name.isidentifier() and len(name) < 64 and name.isascii()):
            _check_name(name)
        read = _READERS.get(kind) if type(kind) is int else None
        if read is None:
            raise FilterError("a constraint on the wire has an unknown kind")
        constraint = read(entry)
        if not (constraint.intervals or constraint.absent):
            satisfiable = False
        if name <= last and pairs:
            raise FilterError("the attributes of a clause on the wire are not in order")
        pairs.append((intern(name), constraint))
        size += len(entry)
        last = name
    if not satisfiable:
        return ()
    clause: Clauses = (_make(Clause, (tuple(pairs),)),)
    # Small clauses, nearly all of them, are within the limits without counting.
    return clause if size <= MAX_IN_LIST else normal(clause)


def _check_name(name: object) -> None:
    if not is_name(name):
        raise FilterError("a constraint on the wire has no valid attribute name")


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
        if type(value) is not str or not value.isascii():
            value = _value(value)
        piece = _make(Interval, (FAMILY_OF[type(value)], value, value, False, False))
        return _make(Constraint, ((piece,), False, False))
    if len(entry) < 3:
        raise FilterError("a list on the wire has no values")
    if len(entry) > MAX_IN_LIST + 2:
        raise FilterTooComplex(f"a list has at most {MAX_IN_LIST} values")
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
    family = _FAMILIES[number]
    if low is not None:
        low = _value(low, family)
    if high is not None:
        high = _value(high, family)
    piece = interval(family, low, high, openness & 1 == 1, openness & 2 == 2)
    if len(entry) == 6 and piece is not None:
        return _make(Constraint, ((piece,), False, False))
    return ranged(piece, [_value(hole, family) for hole in entry[6:]])


def _value(value: object, family: Family | None = None) -> Value:
    """The value as a filter keeps it, after checks as strict as those on events."""
    kind = type(value)
    if kind is float:
        value = _float(value)  # type: ignore[arg-type]
    elif kind is int:
        if not INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
            raise FilterError("an integer of the filter is beyond 64 bits")
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


_READERS: Final = {_ABSENT: _absent, _PRESENT: _present, _POINTS: _points, _RANGE: _range}


def _sequence(form: object, what: str) -> Sequence[object]:
    if type(form) is list or type(form) is tuple:
        return form
    raise FilterError(f"{what} on the wire is not a list")
