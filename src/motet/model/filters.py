"""Filters as values: a union of clauses, each a conjunction of constraints on attributes.

On the wire a filter is nested lists in msgpack, checked strictly when read.

    filter     [clause, ...]
    clause     [constraint, ...]
    constraint [name, 0]                                          absent
               [name, 1]                                          present
               [name, 2, value, ...]                              one of these values
               [name, 3, family, low, high, openness, hole, ...]  between, without the holes

`low` and `high` may be nil; openness has bit 1 for an open low end and bit 2 for an open high end.
A broker reads thousands of these per second, which is why the common shapes are built in place.

In a frame or a record a filter is one byte string with this form. So a process that reads a filter
also has its bytes, and can store it and pass it on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import inf
from sys import intern
from typing import Any, Final, NoReturn

import msgspec

from motet.errors import EventError, FilterError, FilterTooComplex, MisuseError
from motet.model import language, sets
from motet.model.ids import is_name
from motet.model.limits import (
    INT_MAX,
    INT_MIN,
    MAX_CLAUSES,
    MAX_COVER_STEPS,
    MAX_FILTER_CHARS,
    MAX_IN_LIST,
    MAX_INTERVALS,
    MAX_NAME_CHARS,
    MAX_PREDICATES,
)
from motet.model.sets import (
    ABSENT,
    ANYTHING,
    PRESENT,
    Clause,
    Clauses,
    Constraint,
    Interval,
    Points,
    Range,
    conjoin,
    disjoin,
    intersect,
    intersects,
    interval,
    is_subset,
    normal,
    points,
    ranged,
    shape,
    subtract,
)
from motet.model.values import FAMILY_OF, Attributes, Family, Value, check_value, plain_value

# ── the form on the wire ─────────────────────────────────────────────────────────────────

_ABSENT: Final = 0
_PRESENT: Final = 1
_POINTS: Final = 2
_RANGE: Final = 3

MAX_WIRE_VALUES: Final = 6 * MAX_PREDICATES + MAX_INTERVALS
"""The most values, kinds and names on the wire that a filter within the limits can have."""

SMALL_BYTES: Final = min(MAX_WIRE_VALUES, 2 * MAX_FILTER_CHARS)
"""An encoding up to this length has neither too many values nor too much text."""

_FAMILIES: Final = tuple(Family)
_NUMBER: Final = Family.NUMBER
_TEXT: Final = Family.TEXT
_make: Final = tuple.__new__

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode

_NAMES: Final[dict[str, str]] = {}
"""Names known to be valid, each as the one string that all filters share."""
MOST_NAMES: Final = 4096
"""Bounds `_NAMES`, because clients may invent names; further ones are checked each time."""


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
    """Refuse a filter that is too large before building it."""
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
    if chars > 2 * MAX_FILTER_CHARS:  # a text is counted at both ends of its interval
        raise FilterTooComplex(
            f"a filter has at most {MAX_FILTER_CHARS} characters of text, this one {chars}"
        )


def _clause(form: object) -> Clauses:
    """The clause; empty if it is unsatisfiable."""
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
    # One end is missing, or at least one end is closed: the range cannot be empty.
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
    """Whether an end of a range of numbers is missing, or a number that needs no conversion."""
    kind = type(end)
    if kind is float:
        return -inf < end < inf and not end.is_integer()  # type: ignore[operator, attr-defined]
    return end is None or (kind is int and INT_MIN <= end <= INT_MAX)  # type: ignore[operator]


def _value(value: object, family: Family | None = None) -> Value:
    """The value as a filter stores it, after checks as strict as those on events."""
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


# ── the filter ───────────────────────────────────────────────────────────────────────────


SHORT_BYTES: Final = 256
"""Filters of at most this many encoded bytes are cached when read."""


class Filter:
    """A union of clauses. Without clauses it matches nothing. Frozen, hashable, cheap to share.

    Filters come from text (`Filter.parse`), from expressions (`attr("step") > 1`), from the wire
    (`Filter.from_wire`), and from other filters with `&` and `|`. Two filters are equal if their
    canonical texts are; filters that merely match the same events need not be equal.
    """

    __slots__ = ("_bytes", "_hash", "clauses")

    clauses: Final[tuple[Clause, ...]]  # type: ignore[misc]
    _hash: int
    _bytes: bytes

    def __init__(self, clauses: Iterable[Clause] = ()) -> None:
        _set(self, "clauses", normal(tuple(clauses)))

    @staticmethod
    def parse(text: str) -> Filter:
        """Parse the filter language; a FilterError says what is wrong and where."""
        return _trusted(language.parse(text))

    @staticmethod
    def from_wire(form: object) -> Filter:
        """The inverse of `to_wire`, for untrusted input: raises FilterError if it is malformed."""
        return _trusted(clauses_from_wire(form))

    def to_wire(self) -> list[list[list[object]]]:
        """Nested plain lists and values, ready for msgpack."""
        return clauses_to_wire(self.clauses)

    @staticmethod
    def from_bytes(data: object) -> Filter:
        """The inverse of `to_bytes`, for untrusted input: raises FilterError if it is malformed."""
        if type(data) is bytes and len(data) <= SHORT_BYTES:
            return _known(data)
        made = _trusted(clauses_from_bytes(data))
        _set(made, "_bytes", data)
        return made

    @staticmethod
    def from_own_bytes(data: bytes) -> Filter:
        """From bytes that `from_bytes` has accepted before; they are decoded on first use."""
        made: Filter = _new(Filter)
        _set(made, "_bytes", data)
        return made

    def __getattr__(self, name: str) -> tuple[Clause, ...]:
        # Called for slots that were never set.
        if name != "clauses":
            raise AttributeError(name)
        _set(self, "clauses", clauses_from_bytes(self._bytes))
        return self.clauses

    def to_bytes(self) -> bytes:
        """The encoded filter: made at most once, and never if the filter was read from bytes."""
        try:
            return self._bytes
        except AttributeError:
            _set(self, "_bytes", clauses_to_bytes(self.clauses))
            return self._bytes

    def matches(self, attributes: Attributes) -> bool:
        """Whether an event with these attributes satisfies the filter: the naive oracle."""
        return any(clause.matches(attributes) for clause in self.clauses)

    @property
    def is_empty(self) -> bool:
        """Whether no event can match. Exact: unsatisfiable clauses are never kept."""
        return not self.clauses

    def __and__(self, other: Filter) -> Filter:
        if not isinstance(other, Filter):
            return NotImplemented
        return _trusted(conjoin((self.clauses, other.clauses)))

    def __or__(self, other: Filter) -> Filter:
        if not isinstance(other, Filter):
            return NotImplemented
        return _trusted(disjoin((self.clauses, other.clauses)))

    def __bool__(self) -> NoReturn:
        raise MisuseError(
            "a filter is neither true nor false before it meets an event: combine filters with & "
            "and | (in parentheses) instead of 'and' and 'or', write a chain like 1 < x < 5 as "
            ".between() or two comparisons, and use .matches(attributes) to try it"
        )

    def __invert__(self) -> NoReturn:
        raise MisuseError("filters have no negation: use the opposite comparison, != or is_null()")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Filter):
            return NotImplemented
        return self is other or self.clauses == other.clauses

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            _set(self, "_hash", hash(self.clauses))
            return self._hash

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Filter is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Filter is frozen: {name} cannot be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        return _trusted, (self.clauses,)

    def __str__(self) -> str:
        """The canonical text, which parses back to an equal filter."""
        return language.show(self.clauses)

    def __repr__(self) -> str:
        return f"Filter.parse({str(self)!r})"


_set: Final = object.__setattr__
_new: Final = object.__new__


def _trusted(clauses: tuple[Clause, ...]) -> Filter:
    """A filter of clauses that are already normal."""
    made: Filter = _new(Filter)
    _set(made, "clauses", clauses)
    return made


@lru_cache(maxsize=4096)
def _known(data: bytes) -> Filter:
    """Cached: a hand-over names the same filter twice, and brokers pass it on."""
    made = _trusted(clauses_from_bytes(data))
    _set(made, "_bytes", data)
    return made


EVERYTHING: Final = _trusted((Clause(),))
NOTHING: Final = _trusted(())


def as_filter(given: str | Filter) -> Filter:
    """A filter argument of the API: a `Filter`, or text in the filter language."""
    if isinstance(given, Filter):
        return given
    if isinstance(given, str):
        return Filter.parse(given)
    raise FilterError(
        f'a filter cannot have the type {type(given).__name__}: give text like "step > 1" or '
        "an expression like attr('step') > 1"
    )


# ── for msgspec ──────────────────────────────────────────────────────────────────────────


def to_wire(value: object) -> Any:
    """For `enc_hook`."""
    if isinstance(value, Filter):
        return value.to_bytes()
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def from_own(kind: type, wire: Any) -> Any:
    """For `dec_hook`, for data that we wrote ourselves, with a checksum."""
    if kind is Filter and type(wire) is bytes:
        return Filter.from_own_bytes(wire)
    return from_wire(kind, wire)


def from_wire(kind: type, wire: Any) -> Any:
    """For `dec_hook`."""
    if kind is Filter:
        return Filter.from_bytes(wire)
    raise NotImplementedError(f"{kind.__name__} does not travel")


# ── relations ────────────────────────────────────────────────────────────────────────────
# A clause is a box: one set per attribute, and everything for attributes it does not name. Boxes
# are never empty, so two of them overlap if they do on every attribute that both name, and one lies
# in another if it does on every attribute that the other names. A box can also lie in a union of
# boxes without lying in any of them; then it is cut along their sides until nothing, or a witness,
# is left.


_Box = dict[str, Constraint]


def overlap(one: Filter, two: Filter) -> bool:
    """Whether some event matches both."""
    for left in one.clauses:
        for right in two.clauses:
            if _overlap(left, right):
                return True
    return False


def covers(wide: Filter, narrow: Filter) -> bool:
    """Whether every event that matches `narrow` matches `wide`.

    Raises FilterTooComplex if two unions are so entangled that the answer costs too much.
    """
    return all(_union_covers(wide.clauses, clause) for clause in narrow.clauses)


def _overlap(one: Clause, two: Clause) -> bool:
    there = dict(two.constraints)
    for name, constraint in one.constraints:
        other = there.get(name)
        if other is not None and not intersects(constraint, other):
            return False
    return True


def _lies_in(box: _Box, clause: Clause) -> bool:
    for name, constraint in clause.constraints:
        inner = box.get(name)
        if inner is None or not is_subset(inner, constraint):
            return False
    return True


def _union_covers(wide: tuple[Clause, ...], narrow: Clause) -> bool:
    box = dict(narrow.constraints)
    for clause in wide:
        if _lies_in(box, clause):
            return True
    if len(wide) < 2:
        return False
    candidates = [clause for clause in wide if _overlap(clause, narrow)]
    return len(candidates) > 1 and _cut(box, candidates)


def _cut(box: _Box, clauses: list[Clause]) -> bool:
    """Subtract the clauses from the box one by one; True if nothing of it remains."""
    steps = 0
    pieces = [(box, 0)]
    while pieces:
        piece, done = pieces.pop()
        if done == len(clauses):
            return False
        clause = clauses[done]
        rest: list[tuple[_Box, int]] = []
        for name, constraint in clause.constraints:
            inner = piece.get(name, ANYTHING)
            steps += 1 + len(inner.intervals) + len(constraint.intervals)
            outside = subtract(inner, constraint)
            inside = intersect(inner, constraint)
            if not outside.is_empty:
                rest.append((piece | {name: outside}, done + 1))
            if inside.is_empty:
                # The clause does not touch this piece: leave it whole.
                rest = [(piece, done + 1)]
                break
            piece = piece | {name: inside}
        pieces += rest
        if steps > MAX_COVER_STEPS:
            raise FilterTooComplex(
                "whether one filter covers the other costs too much to decide: "
                "use fewer alternatives"
            )
    return True


# ── expressions: `(attr("step") > 1) & attr("name").startswith("abc")` ───────────────────


class Attribute:
    """An attribute by name. Comparing it with a value makes a `Filter`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not is_name(name):
            raise FilterError(
                f"{name!r:.60} cannot name an attribute: use at most {MAX_NAME_CHARS} ASCII "
                "letters, digits, '_' and '.', and do not start with a digit"
            )
        self.name = intern(name)

    def __eq__(self, value: object) -> Filter:  # type: ignore[override]
        return self._compared(sets.equal, value)

    def __ne__(self, value: object) -> Filter:  # type: ignore[override]
        return self._compared(sets.unequal, value)

    def __lt__(self, value: Value) -> Filter:
        return self._compared(sets.below, value)

    def __le__(self, value: Value) -> Filter:
        return self._compared(sets.at_most, value)

    def __gt__(self, value: Value) -> Filter:
        return self._compared(sets.above, value)

    def __ge__(self, value: Value) -> Filter:
        return self._compared(sets.at_least, value)

    __hash__ = None  # type: ignore[assignment]

    def between(self, low: Value, high: Value) -> Filter:
        """Both ends included."""
        return self._filter(sets.between(_literal(low), _literal(high)))

    def isin(self, *values: Value | Iterable[Value]) -> Filter:
        """One of these: `isin(1, 2)` or `isin([1, 2])`."""
        listed: list[object] = list(values)
        if len(listed) == 1 and isinstance(listed[0], Iterable) and not isinstance(listed[0], str):
            listed = list(listed[0])
        if not listed:
            raise FilterError("isin() needs at least one value")
        if len(listed) > MAX_IN_LIST:
            raise FilterTooComplex(f"isin() takes at most {MAX_IN_LIST} values")
        return self._filter(sets.one_of([_literal(value) for value in listed]))

    def startswith(self, prefix: str) -> Filter:
        if not isinstance(prefix, str):
            raise FilterError(f"startswith() takes a str, not {type(prefix).__name__}")
        _literal(prefix)
        return self._filter(sets.starting_with(str.__str__(prefix)))

    def is_null(self) -> Filter:
        """The event does not have the attribute."""
        return self._filter(sets.ABSENT)

    def is_not_null(self) -> Filter:
        """The event has the attribute, with any value, even NaN."""
        return self._filter(sets.PRESENT)

    def __bool__(self) -> NoReturn:
        raise MisuseError(
            f"an attribute alone is no predicate: write attr({self.name!r}) == True, "
            "and combine filters with & and |"
        )

    def __repr__(self) -> str:
        return f"attr({self.name!r})"

    def _compared(self, build: Callable[[Value], Constraint], value: object) -> Filter:
        return self._filter(build(_literal(value)))

    def _filter(self, constraint: Constraint) -> Filter:
        return Filter(sets.predicate(self.name, constraint))


def attr(name: str) -> Attribute:
    return Attribute(name)


def _literal(value: object) -> Value:
    if value is None:
        raise FilterError("nothing equals None; use is_null() or is_not_null()")
    if isinstance(value, Attribute):
        raise FilterError("an attribute is compared with values only, not with another attribute")
    if value != value:
        raise FilterError(sets.NO_NAN)
    try:
        return plain_value(value)
    except EventError as error:
        raise FilterError(str(error)) from None
