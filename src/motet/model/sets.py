"""The set of values that one attribute may have: absent, NaN, and intervals of the four families.

Every predicate of the language is such a set: equality is a point, `in` several points, `like
'ab%'` an interval of text, `is not null` everything but absent. Intersection and difference do not
leave this form, which is why overlap and covering are exact.

Each set has one canonical form, so that equal filters compare equal: an end at the least or
greatest value of its family is None, integral floats are ints, and bool is a point or all of it.

A clause, or conjunction, is a box: such a set for each of some attributes. A filter is a union of
boxes. `and` is distributed over `or` at once, so results are always a short list of satisfiable
boxes, in one order. The limits on their number and size are enforced here for all kinds of input:
text, Python expressions and the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Final, NamedTuple

from motet.errors import FilterError, FilterTooComplex
from motet.model.limits import MAX_CLAUSES, MAX_FILTER_CHARS, MAX_INTERVALS, MAX_PREDICATES
from motet.model.values import (
    FAMILY_OF,
    HIGHEST,
    LOWEST,
    Attributes,
    Family,
    Value,
    canonical_number,
    plain_value,
    prefix_end,
    successor,
)


class Interval(NamedTuple):
    """A non-empty range within one family. `None` means no bound on that side."""

    family: Family
    low: Value | None
    high: Value | None
    low_open: bool = False
    high_open: bool = False

    @property
    def is_point(self) -> bool:
        # Equal ends are both closed, otherwise the interval would be empty.
        return self.low is not None and self.low == self.high


class Constraint(NamedTuple):
    """The set of values that one attribute may have: disjoint intervals, in order of family."""

    intervals: tuple[Interval, ...] = ()
    nan: bool = False
    absent: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.intervals or self.nan or self.absent)

    def admits(self, value: Value | None) -> bool:
        """Whether an attribute with this value (None: without it) satisfies the constraint."""
        if value is None:
            return self.absent
        if value != value:
            return self.nan
        family = FAMILY_OF.get(type(value))
        if family is None:
            value = plain_value(value)
            family = FAMILY_OF[type(value)]
        for of, low, high, low_open, high_open in self.intervals:
            if of is not family:
                continue
            if low is not None and (value < low or (low_open and value == low)):  # type: ignore[operator]
                continue
            if high is None or value < high or (value == high and not high_open):  # type: ignore[operator]
                return True
        return False


# Skips the keyword handling of a NamedTuple's own constructor, at half the cost.
_make: Final = tuple.__new__

# Looking up a member of an enum costs more than the comparisons it is used for.
_BOOL: Final = Family.BOOL
_NUMBER: Final = Family.NUMBER

_FULL: Final = tuple(Interval(family, None, None) for family in Family)

NEVER: Final = Constraint()
ABSENT: Final = Constraint(absent=True)
PRESENT: Final = Constraint(_FULL, nan=True)
ANYTHING: Final = Constraint(_FULL, nan=True, absent=True)
"""The constraint of an attribute that a clause does not name. Clauses never store it."""


# ── making sets ──────────────────────────────────────────────────────────────────────────


def interval(
    family: Family,
    low: Value | None,
    high: Value | None,
    low_open: bool = False,
    high_open: bool = False,
) -> Interval | None:
    """The range in its canonical form, or None if no value of the family lies in it."""
    if (
        low is None or high is None or (low_open and high_open) or not low < high  # type: ignore[operator]
    ) and is_void(family, low, high, low_open, high_open):
        return None
    if family is _BOOL:
        # One of two values, or both: there is no other non-empty set.
        first = low is True or (low is False and low_open)
        last = not (high is False or (high is True and high_open))
        return _FULL[family] if first is not last else Interval(family, first, first)
    if low is None:
        low_open = False
    elif type(low) is float:
        low = canonical_number(low)
    if high is None:
        high_open = False
    elif type(high) is float:
        high = canonical_number(high)
    # A range up to the end of its family has no bound there, unless it is that single value.
    if not low_open and (low is None or low == LOWEST[family]):
        low = None
        if high == LOWEST[family]:
            low = high
    if not high_open and (high is None or high == HIGHEST[family]):
        high = None
        if low is not None and low == HIGHEST[family]:
            high = low
    return _make(Interval, (family, low, high, low_open, high_open))


def points(values: Iterable[Value]) -> Constraint:
    """The set of these values, which must be plain and not NaN."""
    by_family: list[set[Value]] = [set(), set(), set(), set()]
    for value in values:
        by_family[FAMILY_OF[type(value)]].add(value)
    intervals: list[Interval] = []
    for family in Family:
        found = by_family[family]
        if family is _BOOL and len(found) == 2:
            intervals.append(_FULL[_BOOL])
        elif family is _NUMBER:
            for number in sorted(canonical_number(value) for value in found):  # type: ignore[arg-type]
                intervals.append(Interval(family, number, number))
        else:
            for value in sorted(found):
                intervals.append(Interval(family, value, value))
    return Constraint(tuple(intervals))


def ranged(piece: Interval | None, holes: Iterable[Value] = ()) -> Constraint:
    """An interval without some of its points."""
    if piece is None:
        return NEVER
    without = points(holes)
    return subtract(Constraint((piece,)), without) if without.intervals else Constraint((piece,))


# ── how sets relate ──────────────────────────────────────────────────────────────────────


def is_void(
    family: Family, low: Value | None, high: Value | None, low_open: bool, high_open: bool
) -> bool:
    """Whether no value of the family lies between these ends."""
    if low is None:
        low = LOWEST[family]
        low_open = False
    if high is None:
        high = HIGHEST[family]
        high_open = False
        if high is None:
            return False
    if low < high:  # type: ignore[operator]
        return low_open and high_open and successor(low) >= high  # type: ignore[operator]
    return low_open or high_open or low > high  # type: ignore[operator]


def meet(one: Interval, two: Interval) -> Interval | None:
    """The intersection of two intervals of the same family."""
    family, low, high, low_open, high_open = one
    _, other_low, other_high, other_low_open, other_high_open = two
    if low is None:
        low, low_open = other_low, other_low_open
    elif other_low is not None:
        if other_low > low:  # type: ignore[operator]
            low, low_open = other_low, other_low_open
        elif other_low == low:
            low_open = low_open or other_low_open
    if high is None:
        high, high_open = other_high, other_high_open
    elif other_high is not None:
        if other_high < high:  # type: ignore[operator]
            high, high_open = other_high, other_high_open
        elif other_high == high:
            high_open = high_open or other_high_open
    if is_void(family, low, high, low_open, high_open):
        return None
    return _make(Interval, (family, low, high, low_open, high_open))


def within(inner: Interval, outer: Interval) -> bool:
    """Whether all values of `inner` lie in `outer`, an interval of the same family."""
    family, low, high, low_open, high_open = inner
    _, outer_low, outer_high, outer_low_open, outer_high_open = outer
    # The parts outside below and above must have no value: `x > 1` lies in `x >= next_number(1)`.
    if outer_low is not None and (low is None or low <= outer_low):  # type: ignore[operator]
        sticks_out = low != outer_low or (outer_low_open and not low_open)
        if sticks_out and not is_void(family, low, outer_low, low_open, not outer_low_open):
            return False
    if outer_high is not None and (high is None or high >= outer_high):  # type: ignore[operator]
        sticks_out = high != outer_high or (outer_high_open and not high_open)
        return not sticks_out or is_void(family, outer_high, high, not outer_high_open, high_open)
    return True


def intersect(one: Constraint, two: Constraint) -> Constraint:
    if one is two:
        return one
    return Constraint(
        tuple(_meetings(one.intervals, two.intervals)),
        one.nan and two.nan,
        one.absent and two.absent,
    )


def intersects(one: Constraint, two: Constraint) -> bool:
    if (one.nan and two.nan) or (one.absent and two.absent):
        return True
    these, those = one.intervals, two.intervals
    if len(these) == 1 and len(those) == 1:
        return these[0].family is those[0].family and meet(these[0], those[0]) is not None
    return next(_meetings(these, those), None) is not None


def _meetings(one: Sequence[Interval], two: Sequence[Interval]) -> Iterator[Interval]:
    """Walk both lists in parallel; after each comparison, skip the interval that ends first."""
    i = j = 0
    while i < len(one) and j < len(two):
        left, right = one[i], two[j]
        if left.family is not right.family:
            if left.family < right.family:
                i += 1
            else:
                j += 1
            continue
        piece = meet(left, right)
        if piece is not None:
            yield piece
        if _ends_first(left, right):
            i += 1
        else:
            j += 1


def _ends_first(one: Interval, two: Interval) -> bool:
    if one.high is None or two.high is None:
        return one.high is not None
    if one.high == two.high:
        return one.high_open
    return one.high < two.high  # type: ignore[operator]


def subtract(one: Constraint, two: Constraint) -> Constraint:
    return intersect(one, complement(two))


def complement(of: Constraint) -> Constraint:
    gaps: list[Interval] = []
    for family in Family:
        low: Value | None = None
        low_open = closed = False
        for piece in of.intervals:
            if piece.family is not family:
                continue
            if piece.low is not None:
                _add(gaps, interval(family, low, piece.low, low_open, not piece.low_open))
            low, low_open = piece.high, not piece.high_open
            closed = piece.high is None
        if not closed:
            _add(gaps, interval(family, low, None, low_open))
    return Constraint(tuple(gaps), not of.nan, not of.absent)


def _add(gaps: list[Interval], gap: Interval | None) -> None:
    if gap is not None:
        gaps.append(gap)


def is_subset(inner: Constraint, outer: Constraint) -> bool:
    if inner is outer:
        return True
    if (inner.nan and not outer.nan) or (inner.absent and not outer.absent):
        return False
    parts, wholes = inner.intervals, outer.intervals
    if len(parts) == 1 and len(wholes) == 1:
        return parts[0].family is wholes[0].family and within(parts[0], wholes[0])
    return subtract(Constraint(parts), outer).is_empty


# ── how sets are written ─────────────────────────────────────────────────────────────────


class Points(NamedTuple):
    values: tuple[Value, ...]


class Range(NamedTuple):
    """One interval and the excluded values inside it."""

    hull: Interval
    holes: tuple[Value, ...]


def is_prefix(hull: Interval) -> bool:
    """Whether this is the set of texts that start with `hull.low`."""
    _, low, high, low_open, high_open = hull
    if not isinstance(low, str) or low_open or high != prefix_end(low):
        return False
    return high is None or high_open


def written_predicates(of: Constraint) -> int:
    """Number of predicates needed to write this set."""
    intervals = of.intervals
    if of.nan or of.absent or intervals[-1].is_point or intervals[-1].family is _BOOL:
        return 1
    hull = Interval(
        *intervals[0][:2], intervals[-1].high, intervals[0].low_open, intervals[-1].high_open
    )
    bounds = (hull.low is not None) + (hull.high is not None)
    if bounds == 2 and (is_prefix(hull) or not (hull.low_open or hull.high_open)):
        bounds = 1
    return max(1, bounds + len(intervals) - 1)


def shape(of: Constraint) -> Points | Range | None:
    """How the language writes this set; None for presence, absence and sets it cannot express."""
    intervals = of.intervals
    if not intervals or of.nan or of.absent:
        return None
    values: list[Value] = []
    for piece in intervals:
        if piece.family is _BOOL and piece.low is None:
            values += (False, True)
        elif piece.is_point:
            assert piece.low is not None
            values.append(piece.low)
        else:
            break
    else:
        return Points(tuple(values))
    first, last = intervals[0], intervals[-1]
    holes = _holes(intervals) if first.family is last.family else None
    if holes is None:
        return None
    hull = Interval(first.family, first.low, last.high, first.low_open, last.high_open)
    return Range(hull, tuple(holes))


def _holes(intervals: Sequence[Interval]) -> list[Value] | None:
    holes: list[Value] = []
    for before, after in pairwise(intervals):
        value, end = before.high, after.low
        if value is None or end is None or not (before.high_open and after.low_open):
            return None
        # Neighbouring holes leave an empty piece between them, which was dropped: visit them all.
        while value < end:  # type: ignore[operator]
            holes.append(value)
            value = successor(value)
            if len(holes) > MAX_PREDICATES:
                return None
        holes.append(end)
    return holes


# ── predicates ───────────────────────────────────────────────────────────────────────────
# Text and Python expressions share these. A predicate on a value of one family never matches the
# others: `x <> 5` matches numbers other than 5, but not text, NaN, or an event without `x`.

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
    """A prefix and `%`, or a literal text. A backslash escapes `%` and `_`."""
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
                raise FilterError("a backslash in a pattern must be followed by %, _ or \\")
        text.append(char)
        at += 1
    return equal("".join(text))


# ── clauses ──────────────────────────────────────────────────────────────────────────────


class Clause(NamedTuple):
    """A conjunction: attribute names, sorted, each with its constraint. Empty: matches all."""

    constraints: tuple[tuple[str, Constraint], ...] = ()

    def matches(self, attributes: Attributes) -> bool:
        return all(constraint.admits(attributes.get(name)) for name, constraint in self.constraints)


Clauses = tuple[Clause, ...]

EVERYTHING: Final[Clauses] = (Clause(),)
NOTHING: Final[Clauses] = ()


def predicate(name: str, constraint: Constraint) -> Clauses:
    return NOTHING if constraint.is_empty else (Clause(((name, constraint),)),)


def conjoin(operands: Sequence[Clauses]) -> Clauses:
    """The conjunction. Single clauses are joined first, and once: distribution repeats the rest."""
    joined = _join([operand[0] for operand in operands if len(operand) == 1])
    if joined is None:
        return NOTHING
    product: list[Clause] = [joined]
    for operand in operands:
        if len(operand) == 1:
            continue
        if len(product) * len(operand) > MAX_CLAUSES:
            product = list(normal(product))
        if len(product) * len(operand) > MAX_CLAUSES:
            raise FilterTooComplex(
                f"written out as alternatives the filter has more than {MAX_CLAUSES}: "
                "use fewer 'or' inside 'and', or 'in (...)', or several subscriptions"
            )
        product = [
            box
            for left in product
            for right in operand
            if (box := _join((left, right))) is not None
        ]
    return normal(product)


def _join(clauses: Sequence[Clause]) -> Clause | None:
    """The conjunction of clauses; None if it is unsatisfiable."""
    if len(clauses) == 1:
        return clauses[0]
    by_name: dict[str, list[Constraint]] = {}
    for clause in clauses:
        for name, constraint in clause.constraints:
            by_name.setdefault(name, []).append(constraint)
    pairs: list[tuple[str, Constraint]] = []
    for name in sorted(by_name):
        constraint = _intersect_all(by_name[name])
        if constraint.is_empty:
            return None
        pairs.append((name, constraint))
    return Clause(tuple(pairs))


def _intersect_all(constraints: list[Constraint]) -> Constraint:
    """In pairs, then pairs of pairs: a thousand `<>` on one attribute must not cost a million."""
    while len(constraints) > 2:
        halves = zip(constraints[::2], constraints[1::2], strict=False)
        odd = constraints[-1:] if len(constraints) % 2 else []
        constraints = [intersect(one, two) for one, two in halves] + odd
    return reduce(intersect, constraints)


def disjoin(operands: Iterable[Clauses]) -> Clauses:
    """The union."""
    return normal([clause for operand in operands for clause in operand])


def normal(clauses: Sequence[Clause]) -> Clauses:
    """The satisfiable clauses without duplicates, in one order, within the limits."""
    clauses = [
        clause
        for clause in clauses
        if all(c.intervals or c.nan or c.absent for _, c in clause.constraints)
    ]
    if len(clauses) > 1:
        if any(not clause.constraints for clause in clauses):
            return EVERYTHING
        # Equal clauses have equal text, and text is ordered, unlike mixed values.
        clauses = sorted(dict.fromkeys(clauses), key=clause_order)
    _check_size(clauses)
    return tuple(clauses)


def clause_order(clause: Clause) -> str:
    return repr(tuple(clause))


def _check_size(clauses: Sequence[Clause]) -> None:
    if len(clauses) > MAX_CLAUSES:
        raise FilterTooComplex(
            f"a filter has at most {MAX_CLAUSES} alternatives, this one {len(clauses)}: "
            "use 'in (...)' for several values of one attribute, or several subscriptions"
        )
    predicates = intervals = chars = 0
    for clause in clauses:
        for name, constraint in clause.constraints:
            predicates += written_predicates(constraint)
            intervals += len(constraint.intervals)
            chars += len(name)
            for piece in constraint.intervals:
                if piece.family is Family.TEXT:
                    chars += len(str(piece.low or "")) + len(str(piece.high or ""))
    if chars > 2 * MAX_FILTER_CHARS:  # a text is counted at both ends of its interval
        raise FilterTooComplex(
            f"a filter has at most {MAX_FILTER_CHARS} characters of text, this one {chars}"
        )
    if predicates > MAX_PREDICATES or intervals > MAX_INTERVALS:
        raise FilterTooComplex(
            f"a filter has at most {MAX_PREDICATES} predicates and {MAX_INTERVALS} values, "
            f"this one {predicates} and {intervals}"
        )
