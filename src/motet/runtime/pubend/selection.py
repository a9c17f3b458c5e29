"""Filters by column: which rows of a block match.

For every row, the result must equal that of `Filter.matches` for its event. The columns of one
attribute hold its values by kind, so that ints stay exact beside floats. A bound is converted to
the kind of the column before it is compared: `x > 2**53` on floats must not be rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import reduce
from math import ceil, floor, inf, nextafter
from typing import Any, Final

from motet.model import Filter
from motet.model.limits import INT_MAX, INT_MIN
from motet.model.sets import Constraint, Interval
from motet.model.values import Family, Value

BOOL, INT, FLOAT, TEXT, TIME = KINDS = ("bool", "int", "float", "text", "time")
"""The kinds of values, each of which has columns of its own."""
KIND_OF: Final[dict[type, str]] = {bool: BOOL, int: INT, float: FLOAT, str: TEXT, datetime: TIME}

Mask = Any
"""A boolean array of Arrow; or True or False for all rows. Null is false."""

Bound = tuple[Any, bool]
"""A value, and whether it is excluded from the range."""

FEW_POINTS: Final = 3
"""Up to this many values, comparing with each is faster than a lookup per row."""

_FAMILY: Final = {
    BOOL: Family.BOOL,
    INT: Family.NUMBER,
    FLOAT: Family.NUMBER,
    TEXT: Family.TEXT,
    TIME: Family.TIME,
}


def prepare() -> None:
    """Import what filtering by columns needs, which takes a moment: the first read with a filter is
    then not delayed."""


class Selector:
    """Works on one block. `columns` returns the columns of an attribute by kind; a text column may
    consist of numbers of `words`."""

    def __init__(
        self, rows: int, columns: Callable[[str], dict[str, Any]], words: dict[str, list[str]]
    ) -> None:
        import pyarrow  # imported only where columns are needed: it is large
        import pyarrow.compute as compute

        self._arrow = pyarrow
        self._compute = compute
        self._rows = rows
        self._columns = columns
        self._words = words

    def rows(self, filter: Filter) -> Sequence[int]:
        """The rows that match, ascending."""
        mask = self.mask(filter)
        if mask is True:
            return range(self._rows)
        if mask is False:
            return ()
        found: list[int] = self._compute.indices_nonzero(mask).to_pylist()
        return found

    def mask(self, filter: Filter) -> Mask:
        clauses = [
            reduce(self._and, [self._constraint(*each) for each in clause.constraints], True)
            for clause in filter.clauses
        ]
        return reduce(self._or, clauses, False)

    def _and(self, one: Mask, two: Mask) -> Mask:
        if one is False or two is False:
            return False
        if one is True or two is True:
            return two if one is True else one
        return self._compute.and_(one, two)

    def _or(self, one: Mask, two: Mask) -> Mask:
        if one is True or two is True:
            return True
        if one is False or two is False:
            return two if one is False else one
        return self._compute.or_(one, two)

    def _constraint(self, name: str, constraint: Constraint) -> Mask:
        columns = self._columns(name)
        mask: Mask = False
        for kind, column in columns.items():
            found = self._of_kind(name, kind, column, constraint)
            if found is True:
                found = self._compute.is_valid(column)
            elif found is not False:
                found = self._compute.fill_null(found, False)
            mask = self._or(mask, found)
        if constraint.absent:
            absent = [self._compute.is_null(column) for column in columns.values()]
            mask = self._or(mask, reduce(self._and, absent, True))
        return mask

    # ── one column ───────────────────────────────────────────────────────────────────────

    def _of_kind(self, name: str, kind: str, column: Any, constraint: Constraint) -> Mask:
        """Which values the constraint admits. The result for nulls does not matter."""
        if kind == BOOL:
            return self._by_value(column, [constraint.admits(each) for each in (False, True)])
        if kind == TEXT and name in self._words:
            admitted = [constraint.admits(word) for word in self._words[name]]
            return self._by_number(column, admitted)
        intervals = [each for each in constraint.intervals if each.family is _FAMILY[kind]]
        points = [each.low for each in intervals if each.is_point]
        ranges = [each for each in intervals if not each.is_point]
        mask = self._points(kind, column, points)
        for each in ranges:
            mask = self._or(mask, self._range(kind, column, each))
        if kind == FLOAT:
            mask = self._with_nan(column, mask, constraint.nan)
        return mask

    def _by_value(self, column: Any, admitted: list[bool]) -> Mask:
        if admitted[0] == admitted[1]:
            return admitted[0]
        return column if admitted[1] else self._compute.invert(column)

    def _by_number(self, column: Any, admitted: list[bool]) -> Mask:
        if all(admitted) or not any(admitted):
            return admitted[0]
        return self._arrow.array(admitted).take(column)

    def _with_nan(self, column: Any, mask: Mask, admits_nan: bool) -> Mask:
        """Comparing with NaN is false already; a range without bounds compares nothing."""
        if mask is True and not admits_nan:
            return self._compute.invert(self._compute.is_nan(column))
        if mask is not True and admits_nan:
            return self._or(mask, self._compute.is_nan(column))
        return mask

    def _points(self, kind: str, column: Any, values: Sequence[Value | None]) -> Mask:
        limits = _limits(kind, column)
        known = [found for each in values if (found := _as_point(kind, each, limits)) is not None]
        if len(known) > FEW_POINTS:
            # The lookup compares bits, in which the two zeros differ.
            zeros = [-0.0] if kind == FLOAT and 0.0 in known else []
            among = self._arrow.array([*known, *zeros], column.type)
            return self._compute.is_in(column, value_set=among)
        masks = [self._compute.equal(column, self._scalar(column, each)) for each in known]
        return reduce(self._or, masks, False)

    def _range(self, kind: str, column: Any, interval: Interval) -> Mask:
        _, low, high, low_open, high_open = interval
        limits = _limits(kind, column)
        mask: Mask = True
        if low is not None:
            bound = _as_low(kind, low, low_open, limits)
            if bound is None:
                return False
            mask = self._and(mask, self._compared(column, bound, "greater"))
        if high is not None:
            bound = _as_high(kind, high, high_open, limits)
            if bound is None:
                return False
            mask = self._and(mask, self._compared(column, bound, "less"))
        return mask

    def _compared(self, column: Any, bound: Bound, side: str) -> Mask:
        value, is_open = bound
        compare = getattr(self._compute, side if is_open else f"{side}_equal")
        return compare(column, self._scalar(column, value))

    def _scalar(self, column: Any, value: Any) -> Any:
        return self._arrow.scalar(value, column.type)


# ── bounds converted to the kind of the column ───────────────────────────────────────────


def _limits(kind: str, column: Any) -> tuple[int, int]:
    """The least and the greatest int that the column could hold."""
    if kind != INT:
        return INT_MIN, INT_MAX
    half = 1 << (column.type.bit_width - 1)
    return -half, half - 1


def _as_point(kind: str, value: Any, limits: tuple[int, int]) -> Any:
    """The value as that kind; None if no value in the column can equal it."""
    if kind == INT:  # integral floats are stored as ints
        return value if type(value) is int and limits[0] <= value <= limits[1] else None
    if kind == FLOAT:
        return float(value) if float(value) == value else None
    return value


def _as_low(kind: str, value: Any, is_open: bool, limits: tuple[int, int]) -> Bound | None:
    """The same lower bound for values of one kind; None if none in the column lies above it."""
    if kind == INT:
        if value > limits[1]:
            return None
        if value < limits[0]:
            return limits[0], False
        return (ceil(value), False) if type(value) is float else (value, is_open)
    return _as_float(value, is_open, inf) if kind == FLOAT else (value, is_open)


def _as_high(kind: str, value: Any, is_open: bool, limits: tuple[int, int]) -> Bound | None:
    """The same upper bound for values of one kind; None if none in the column lies below it."""
    if kind == INT:
        if value < limits[0]:
            return None
        if value > limits[1]:
            return limits[1], False
        return (floor(value), False) if type(value) is float else (value, is_open)
    return _as_float(value, is_open, -inf) if kind == FLOAT else (value, is_open)


def _as_float(value: Any, is_open: bool, inwards: float) -> Bound:
    near = float(value)
    if near == value:
        return near, is_open
    is_inside = near > value if inwards > 0 else near < value
    return near if is_inside else nextafter(near, inwards), False
