"""The engine in Python: rows of reject bits as big ints, in segments.

The reference for the engine in C, and its replacement where no compiler was available.
`NaiveIndex` tries every filter, and is the reference for both.

A column is one attribute within one segment: the rows of filters that reject a value, cell by cell.
Its rows, in order: absent, then the cells of each kind of value: bool, number, text, time, and the
one cell of NaN. The cells of a kind alternate between the gaps around its bounds and the bounds
themselves, so that a value in many filters has a cell of its own:

    below b0 · b0 · between b0 and b1 · b1 · … · above the last
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import index as as_int
from typing import Any, Final, NamedTuple

from motet.errors import FilterTooComplex, MisuseError, PeerError
from motet.model import check_attributes, covers, decode_attributes, decode_body, overlap
from motet.model.filters import Filter
from motet.model.sets import Clause, Constraint, Interval
from motet.model.values import Value

ABSENT: Final = 0
"""The row of events that lack the attribute."""

MAX_BOUNDS: Final = 32
"""Learnt bounds per family: twice as many cells. More reject better, but make adds slower."""

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
    """The value of an event with its kind, validated."""
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
    raise TypeError(
        f"an attribute has the type {type(value).__name__}, which events do not support"
    )


PAIR: Final = 0x92
"""The first byte of a msgpack array of two."""


def placed_body(body: bytes | memoryview) -> dict[str, Placed] | None:
    """The attributes of an encoded event; None if no event can have that body.

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
        """The row of a value: the bits of all clauses that reject it by its cell alone."""
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
        """The clauses that reject every cell that the constraint touches: certainly no overlap."""
        mask = -1
        for low, high in self.touched(constraint):
            for row in self.rows[low : high + 1]:
                mask &= row
        return mask

    def rejecting_any(self, constraint: Constraint) -> int:
        """The clauses that reject some cell that the constraint touches: they do not cover it."""
        mask = 0
        for low, high in self.touched(constraint):
            for row in self.rows[low : high + 1]:
                mask |= row
        return mask

    def rejecting_rest(self, constraint: Constraint) -> int:
        """The clauses that reject every cell that the constraint does not touch: may be covered."""
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


# ── segments ─────────────────────────────────────────────────────────────────────────────

CAPACITY: Final = 4096
_LEAST_TO_LEARN: Final = 16
_LEARN_AT: Final = frozenset({_LEAST_TO_LEARN, 64, 256, 1024, CAPACITY})
_UNCONSTRAINED: Final = Column()


class Segment:
    __slots__ = ("alive", "clauses", "columns", "keys", "live", "of_hop", "unions")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.clauses: list[Clause | None] = []
        self.columns: dict[str, Column] = {}
        self.of_hop: dict[int, int] = {}
        self.alive = 0
        self.unions = 0
        self.live = 0

    @property
    def is_full(self) -> bool:
        return len(self.clauses) >= CAPACITY

    @property
    def is_sparse(self) -> bool:
        return self.is_full and self.live < CAPACITY // 2

    def add(self, key: int, clause: Clause, hop: int, in_union: bool) -> int:
        """Add a clause; returns its slot."""
        slot = len(self.clauses)
        bit = 1 << slot
        self.keys.append(key)
        self.clauses.append(clause)
        self.of_hop[hop] = self.of_hop.get(hop, 0) | bit
        self.alive |= bit
        self.live += 1
        if in_union:
            self.unions |= bit
        if slot + 1 in _LEARN_AT:
            self._learn()
            return slot
        for name, constraint in clause.constraints:
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = Column()
            column.add(slot, constraint)
        return slot

    def remove(self, slot: int, hop: int) -> None:
        bit = 1 << slot
        self.clauses[slot] = None
        self.alive ^= bit
        self.unions &= ~bit
        self.live -= 1
        self.of_hop[hop] ^= bit
        if not self.of_hop[hop]:
            del self.of_hop[hop]

    def _learn(self) -> None:
        members: dict[str, list[tuple[int, Constraint]]] = {}
        for slot, clause in enumerate(self.clauses):
            if clause is not None:
                for name, constraint in clause.constraints:
                    members.setdefault(name, []).append((slot, constraint))
        self.columns = {name: Column(those) for name, those in members.items()}

    # ── events ───────────────────────────────────────────────────────────────────────────

    def survivors(self, event: Mapping[str, Placed]) -> int:
        """The slots that no row of the event rejects."""
        if len(self.clauses) < _LEAST_TO_LEARN:
            return self.alive  # few clauses are verified faster than looked up
        rejected = 0
        for name, column in self.columns.items():
            value = event.get(name)
            rejected |= column.rows[ABSENT] if value is None else column.hit(*value)
        return self.alive & ~rejected

    def verify(self, slot: int, event: Mapping[str, Placed]) -> bool:
        clause = self.clauses[slot]
        if clause is None:
            return False
        for name, constraint in clause.constraints:
            value = event.get(name)
            if not (constraint.absent if value is None else admits(constraint, *value)):
                return False
        return True

    # ── filters ──────────────────────────────────────────────────────────────────────────

    def may_overlap(self, clause: Clause) -> int:
        rejected = 0
        for name, constraint in clause.constraints:
            column = self.columns.get(name)
            if column is not None:
                rejected |= column.rejecting_all(constraint)
        return self.alive & ~rejected

    def may_cover(self, clause: Clause) -> int:
        """Slots whose clause may cover the given one by itself."""
        asked = dict(clause.constraints)
        rejected = 0
        for name, column in self.columns.items():
            constraint = asked.get(name)
            if constraint is None:
                rejected |= column.rows[ABSENT] | column.nan
            else:
                rejected |= column.rejecting_any(constraint)
        return self.alive & ~rejected

    def may_be_covered(self, clause: Clause) -> int:
        possible = self.alive
        for name, constraint in clause.constraints:
            possible &= self.columns.get(name, _UNCONSTRAINED).rejecting_rest(constraint)
        return possible


def slots(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


# ── the reference ────────────────────────────────────────────────────────────────────────


class NaiveIndex:
    def __init__(self) -> None:
        self._filters: dict[int, tuple[Filter, int]] = {}

    def add(self, key: int, filter: Filter, hop: int) -> None:
        if key in self._filters:
            raise ValueError(f"key {key} is in the index already")
        self._filters[key] = (filter, hop)

    def remove(self, key: int) -> None:
        del self._filters[key]

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: object) -> bool:
        return key in self._filters

    def match(self, attributes: Mapping[str, Value]) -> list[int]:
        return self._keys(lambda known: known.matches(attributes))

    def hops(self, attributes: Mapping[str, Value]) -> int:
        return self._mask(lambda known: known.matches(attributes))

    def hops_encoded(self, body: bytes | memoryview) -> int | None:
        if placed_body(body) is None:
            return None
        return self.hops(decode_attributes(body))

    def overlapping(self, filter: Filter) -> list[int]:
        return self._keys(lambda known: overlap(known, filter))

    def overlapping_hops(self, filter: Filter) -> int:
        return self._mask(lambda known: overlap(known, filter))

    def covering(self, filter: Filter) -> list[int]:
        return self._keys(lambda known: surely_covers(known, filter))

    def covered(self, filter: Filter) -> list[int]:
        return self._keys(lambda known: surely_covers(filter, known))

    def _keys(self, wanted: Callable[[Filter], bool]) -> list[int]:
        return sorted(key for key, (known, _) in self._filters.items() if wanted(known))

    def _mask(self, wanted: Callable[[Filter], bool]) -> int:
        mask = 0
        for known, hop in self._filters.values():
            if wanted(known):
                mask |= 1 << hop
        return mask


def surely_covers(wide: Filter, narrow: Filter) -> bool:
    """Whether `wide` covers `narrow`; False if that is too expensive to determine."""
    try:
        return covers(wide, narrow)
    except FilterTooComplex:
        return False


# ── the index ────────────────────────────────────────────────────────────────────────────


class _Entry(NamedTuple):
    filter: Filter
    hop: int
    places: list[tuple[Segment, int]]


class PythonIndex:
    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._segments: list[Segment] = [Segment()]
        self._uses: dict[str, int] = {}
        self._impossible: set[int] = set()
        """Keys of filters that match no event; they have no clause in any segment."""

    def add(self, key: int, filter: Filter, hop: int) -> None:
        key, hop = _natural(key, "a key"), _natural(hop, "a hop")
        if key in self._entries:
            raise ValueError(f"key {key} is in the index already")
        clauses = possible_clauses(filter)
        entry = self._entries[key] = _Entry(filter, hop, [])
        if not clauses:
            self._impossible.add(key)
        for clause in clauses:
            self._place(key, entry, clause, len(clauses) > 1)
            for name, _ in clause.constraints:
                self._uses[name] = self._uses.get(name, 0) + 1

    def remove(self, key: int) -> None:
        entry = self._entries.pop(key)
        self._impossible.discard(key)
        for segment, slot in entry.places:
            clause = segment.clauses[slot]
            assert clause is not None
            for name, _ in clause.constraints:
                self._uses[name] -= 1
                if not self._uses[name]:
                    del self._uses[name]
            segment.remove(slot, entry.hop)
        for segment, _ in entry.places:
            if segment.is_sparse and segment in self._segments:
                self._dissolve(segment)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def match(self, attributes: Mapping[str, Value]) -> list[int]:
        event = self._event(attributes)
        found: set[int] = set()
        for segment in self._segments:
            for slot in slots(segment.survivors(event)):
                key = segment.keys[slot]
                if key not in found and segment.verify(slot, event):
                    found.add(key)
        return sorted(found)

    def hops(self, attributes: Mapping[str, Value]) -> int:
        return self._hops(self._event(attributes))

    def hops_encoded(self, body: bytes | memoryview) -> int | None:
        event = placed_body(body)
        return None if event is None else self._hops(event)

    def _hops(self, event: Mapping[str, Placed]) -> int:
        return self._mask(
            lambda segment: segment.survivors(event),
            lambda segment, slot: segment.verify(slot, event),
        )

    def overlapping(self, filter: Filter) -> list[int]:
        clauses = possible_clauses(filter)
        return self._verified(
            lambda segment: _union(segment.may_overlap(clause) for clause in clauses),
            lambda known: overlap(known, filter),
        )

    def overlapping_hops(self, filter: Filter) -> int:
        clauses = possible_clauses(filter)
        return self._mask(
            lambda segment: _union(segment.may_overlap(clause) for clause in clauses),
            lambda segment, slot: overlap(self._entries[segment.keys[slot]].filter, filter),
        )

    def covering(self, filter: Filter) -> list[int]:
        clauses = possible_clauses(filter)
        if not clauses:
            return sorted(self._entries)
        first = clauses[0]

        def candidates(segment: Segment) -> int:
            alone = segment.may_cover(first) & ~segment.unions
            return alone | (segment.may_overlap(first) & segment.unions)

        return self._verified(candidates, lambda known: surely_covers(known, filter))

    def covered(self, filter: Filter) -> list[int]:
        clauses = possible_clauses(filter)

        def candidates(segment: Segment) -> int:
            if len(clauses) == 1:
                return segment.may_be_covered(clauses[0])
            return _union(segment.may_overlap(clause) for clause in clauses)

        inside = self._verified(candidates, lambda known: surely_covers(filter, known))
        return sorted([*inside, *self._impossible]) if self._impossible else inside

    # ── placing ──────────────────────────────────────────────────────────────────────────

    def _place(self, key: int, entry: _Entry, clause: Clause, in_union: bool) -> None:
        segment = self._segments[-1]
        if segment.is_full:
            segment = Segment()
            self._segments.append(segment)
        entry.places.append((segment, segment.add(key, clause, entry.hop, in_union)))

    def _dissolve(self, segment: Segment) -> None:
        """Remove a segment of mostly dead slots, and place its live clauses elsewhere."""
        self._segments.remove(segment)
        if not self._segments:
            self._segments.append(Segment())
        for slot in slots(segment.alive):
            key, clause = segment.keys[slot], segment.clauses[slot]
            assert clause is not None
            entry = self._entries[key]
            entry.places.remove((segment, slot))
            self._place(key, entry, clause, bool(segment.unions >> slot & 1))

    # ── queries ──────────────────────────────────────────────────────────────────────────

    def _event(self, attributes: Mapping[str, Value]) -> dict[str, Placed]:
        if type(attributes) is not dict:
            raise TypeError(f"attributes must be a dict, not {type(attributes).__name__}")
        uses = self._uses
        return {name: placed(value) for name, value in attributes.items() if name in uses}

    def _mask(
        self, candidates: Callable[[Segment], int], wanted: Callable[[Segment, int], bool]
    ) -> int:
        """The hops of wanted candidates. Candidates of hops already found are skipped."""
        mask = 0
        found: list[int] = []
        for segment in self._segments:
            left = candidates(segment)
            for hop in found:
                left &= ~segment.of_hop.get(hop, 0)
            while left:
                bit = left & -left
                left ^= bit
                slot = bit.bit_length() - 1
                if wanted(segment, slot):
                    hop = self._entries[segment.keys[slot]].hop
                    mask |= 1 << hop
                    found.append(hop)
                    left &= ~segment.of_hop[hop]
        return mask

    def _verified(
        self, candidates: Callable[[Segment], int], wanted: Callable[[Filter], bool]
    ) -> list[int]:
        keys = {
            segment.keys[slot] for segment in self._segments for slot in slots(candidates(segment))
        }
        return [key for key in sorted(keys) if wanted(self._entries[key].filter)]


def possible_clauses(filter: Filter) -> list[Clause]:
    """The clauses that some event can match."""
    return [
        clause
        for clause in filter.clauses
        if all(allowed.intervals or allowed.nan or allowed.absent for _, allowed in clause[0])
    ]


def _natural(number: int, what: str) -> int:
    number = as_int(number)
    if number < 0:
        raise ValueError(f"{what} must not be negative")
    if number >= 2**63:
        raise OverflowError(f"{what} must be below 2**63")
    return number


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
