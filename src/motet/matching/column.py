"""One attribute within one segment: the rows of filters that reject a value, cell by cell.

The rows of a column, in order: absent, then the cells of each kind of value: bool, number, text,
time, and the one cell of NaN. The cells of a kind alternate between the gaps around its bounds
and the bounds themselves, so that a value many filters name has a cell of its own:

    below b0 · b0 · between b0 and b1 · b1 · … · above the last
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from motet.errors import MisuseError, PeerError
from motet.model import check_attributes, decode_body
from motet.model.filters import Constraint, Interval, Value

ABSENT: Final = 0
"""The row of events that lack the attribute."""

MAX_BOUNDS: Final = 32
"""Learnt bounds per family: twice as many cells. More reject better, but make adds dearer."""

_BOOL: Final = 0
_NUMBER: Final = 1
_TEXT: Final = 2
_TIME: Final = 3
_NAN: Final = 4
_KINDS: Final = 5

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**63 - 1

Placed = tuple[int, Any]
"""A value with its kind: the number of its family, or `_NAN`."""


def placed(value: object) -> Placed:
    """The value of an event, checked."""
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # a lone surrogate is no text
        return _TEXT, value
    if isinstance(value, float):
        return (_NUMBER if value == value else _NAN), value
    if isinstance(value, bool):
        return _BOOL, value
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise OverflowError("an attribute holds an int beyond 64 bits")
        return _NUMBER, value
    if isinstance(value, datetime):
        if value.tzinfo is not UTC:
            raise TypeError("an attribute holds a datetime that is not in datetime.UTC")
        return _TIME, value
    raise TypeError(f"an attribute holds a {type(value).__name__}, which is no value of an event")


PAIR: Final = 0x92
"""How a msgpack array of two begins."""


def placed_body(body: bytes | memoryview) -> dict[str, Placed] | None:
    """The attributes of an encoded event; None when no event can have that body.

    As strict as the C engine: a broker accepts what its matcher accepts, and two brokers with
    different matchers must not differ."""
    if not body or memoryview(body)[0] != PAIR:
        return None
    try:
        attributes, _ = decode_body(body)
        check_attributes(attributes)
        return {name: placed(value) for name, value in attributes.items()}
    except (PeerError, MisuseError, TypeError, ValueError, OverflowError):
        return None


def admits(constraint: Constraint, kind: int, content: Any) -> bool:
    """Whether the constraint allows this value of an event."""
    if kind == _NAN:
        return constraint.nan
    for family, low, high, low_open, high_open in constraint.intervals:
        if family != kind:
            continue
        if low is not None and (content <= low if low_open else content < low):
            continue
        if high is None or (content < high if high_open else content <= high):
            return True
    return False


class Column:
    """Rows of reject bits. Bit i belongs to the clause in slot i of the segment."""

    __slots__ = ("_bounds", "_first", "rows")

    def __init__(self, members: Sequence[tuple[int, Constraint]] = ()) -> None:
        """Learn the bounds from the members (slot and constraint) and fill the rows."""
        self._bounds = _learn(constraint for _, constraint in members)
        self._first: list[int] = []
        row = ABSENT + 1
        for bounds in self._bounds:
            self._first.append(row)
            row += 2 * len(bounds) + 1
        self.rows = [0] * row
        self._fill(members)

    def add(self, slot: int, constraint: Constraint) -> None:
        bit = 1 << slot
        rows = self.rows
        start = 0
        for low, high in self.touched(constraint):
            for row in range(start, low):
                rows[row] |= bit
            start = high + 1
        for row in range(start, len(rows)):
            rows[row] |= bit

    def hit(self, kind: int, content: Any) -> int:
        """The row of a value: the bits of all that reject it for its cell alone."""
        bounds = self._bounds[kind]
        row = self._first[kind]
        if bounds:
            i = bisect_left(bounds, content)
            row += 2 * i
            if i < len(bounds) and bounds[i] == content:
                row += 1
        return self.rows[row]

    @property
    def nan(self) -> int:
        return self.rows[-1]

    def touched(self, constraint: Constraint) -> list[tuple[int, int]]:
        """The ranges of rows, inclusive, sorted and disjoint, that the constraint allows."""
        ranges: list[tuple[int, int]] = []
        if constraint.absent:
            ranges.append((ABSENT, ABSENT))
        for interval in constraint.intervals:
            low, high = self._rows_of(interval)
            if ranges and low <= ranges[-1][1] + 1:
                low, high = ranges[-1][0], max(high, ranges.pop()[1])
            ranges.append((low, high))
        if constraint.nan:
            ranges.append((len(self.rows) - 1, len(self.rows) - 1))
        return ranges

    def rejecting_all(self, constraint: Constraint) -> int:
        """Who rejects every cell that the constraint touches: surely no overlap."""
        mask = -1
        for low, high in self.touched(constraint):
            for row in self.rows[low : high + 1]:
                mask &= row
        return mask

    def rejecting_any(self, constraint: Constraint) -> int:
        """Who rejects some cell that the constraint touches: surely does not cover it."""
        mask = 0
        for low, high in self.touched(constraint):
            for row in self.rows[low : high + 1]:
                mask |= row
        return mask

    def rejecting_rest(self, constraint: Constraint) -> int:
        """Who rejects every cell that the constraint does not touch: may be covered by it."""
        mask = -1
        start = 0
        for low, high in self.touched(constraint):
            for row in self.rows[start:low]:
                mask &= row
            start = high + 1
        for row in self.rows[start:]:
            mask &= row
        return mask

    def _rows_of(self, interval: Interval) -> tuple[int, int]:
        family, low, high, low_open, high_open = interval
        bounds = self._bounds[family]
        first, last = 0, 2 * len(bounds)
        if low is not None:
            i = bisect_left(bounds, low)
            first = 2 * i + (1 + low_open if i < len(bounds) and bounds[i] == low else 0)
        if high is not None:
            i = bisect_left(bounds, high)
            last = 2 * i + (1 - high_open if i < len(bounds) and bounds[i] == high else 0)
        return self._first[family] + first, self._first[family] + last

    def _fill(self, members: Iterable[tuple[int, Constraint]]) -> None:
        """Like `add` for each member, but by marking where ranges start and end, then a sweep."""
        starts = [0] * len(self.rows)
        stops = [0] * (len(self.rows) + 1)
        everyone = 0
        for slot, constraint in members:
            bit = 1 << slot
            everyone |= bit
            for low, high in self.touched(constraint):
                starts[low] |= bit
                stops[high + 1] |= bit
        allowing = 0
        for row, start in enumerate(starts):
            allowing = allowing & ~stops[row] | start
            self.rows[row] = everyone & ~allowing


def _learn(constraints: Iterable[Constraint]) -> list[list[Any]]:
    """Bounds per kind: the quantiles of all ends of intervals; of bool, simply both values."""
    ends: list[list[Value]] = [[] for _ in range(_KINDS)]
    for constraint in constraints:
        for interval in constraint.intervals:
            known = ends[interval.family]
            if interval.low is not None:
                known.append(interval.low)
            if interval.high is not None and interval.high is not interval.low:
                known.append(interval.high)
    ends[_BOOL] = [False, True]
    return [_quantiles(known) for known in ends]


def _quantiles(values: list[Any]) -> list[Any]:
    values.sort()
    step = max(1.0, len(values) / MAX_BOUNDS)
    bounds: list[Any] = []
    for i in range(min(MAX_BOUNDS, len(values))):
        value = values[int(i * step + step / 2)]
        if not bounds or bounds[-1] != value:
            bounds.append(value)
    return bounds
