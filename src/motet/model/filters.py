"""Filters as values: a union of clauses, each a conjunction of constraints on attributes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NoReturn

from motet.errors import FilterError, MisuseError
from motet.model import parser, printer, wire
from motet.model.clauses import Clause, conjoin, disjoin, normal
from motet.model.sets import Constraint, Interval
from motet.model.values import Attributes, Family, Value

__all__ = [
    "EVERYTHING",
    "NOTHING",
    "Clause",
    "Constraint",
    "Family",
    "Filter",
    "Interval",
    "Value",
    "as_filter",
]


SHORT_BYTES: Final = 256
"""Filters up to this size, as they travel, are remembered when they have been read."""


class Filter:
    """A union of clauses. No clause at all matches nothing. Frozen, hashable, cheap to share.

    Filters come from text (`Filter.parse`), from expressions (`attr("step") > 1`), from the wire
    (`Filter.from_wire`), and from each other with `&` and `|`. Two filters are equal when their
    canonical texts are; filters that merely match the same events need not be.
    """

    __slots__ = ("_bytes", "_hash", "clauses")

    clauses: Final[tuple[Clause, ...]]  # type: ignore[misc]
    _hash: int
    _bytes: bytes

    def __init__(self, clauses: Iterable[Clause] = ()) -> None:
        _set(self, "clauses", normal(tuple(clauses)))

    @staticmethod
    def parse(text: str) -> Filter:
        """Read the filter language; FilterError says what is wrong and where."""
        return _trusted(parser.parse(text))

    @staticmethod
    def from_wire(form: object) -> Filter:
        """The inverse of `to_wire`, for forms of any origin: FilterError if it is not one."""
        return _trusted(wire.clauses_from_wire(form))

    def to_wire(self) -> list[list[list[object]]]:
        """Nested plain lists and values, ready for msgpack."""
        return wire.clauses_to_wire(self.clauses)

    @staticmethod
    def from_bytes(data: object) -> Filter:
        """The inverse of `to_bytes`, for bytes of any origin: FilterError if they are none."""
        if type(data) is bytes and len(data) <= SHORT_BYTES:
            return _known(data)
        made = _trusted(wire.clauses_from_bytes(data))
        _set(made, "_bytes", data)
        return made

    @staticmethod
    def from_own_bytes(data: bytes) -> Filter:
        """From bytes that `from_bytes` has accepted before; they are read when somebody wants to
        know what they say."""
        made: Filter = _new(Filter)
        _set(made, "_bytes", data)
        return made

    def __getattr__(self, name: str) -> tuple[Clause, ...]:
        # Called for what was never set.
        if name != "clauses":
            raise AttributeError(name)
        _set(self, "clauses", wire.clauses_from_bytes(self._bytes))
        return self.clauses

    def to_bytes(self) -> bytes:
        """As it travels: made once, and never if the filter came that way."""
        try:
            return self._bytes
        except AttributeError:
            _set(self, "_bytes", wire.clauses_to_bytes(self.clauses))
            return self._bytes

    def matches(self, attributes: Attributes) -> bool:
        """Whether an event with these attributes satisfies the filter: the naive oracle."""
        return any(clause.matches(attributes) for clause in self.clauses)

    @property
    def is_empty(self) -> bool:
        """Whether no event at all can match. Exact: unsatisfiable clauses are never kept."""
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
        return printer.show(self.clauses)

    def __repr__(self) -> str:
        return f"Filter.parse({str(self)!r})"


_set: Final = object.__setattr__
_new: Final = object.__new__


def _trusted(clauses: tuple[Clause, ...]) -> Filter:
    """A filter of clauses that are normal already."""
    made: Filter = _new(Filter)
    _set(made, "clauses", clauses)
    return made


@lru_cache(maxsize=4096)
def _known(data: bytes) -> Filter:
    """Whoever hands a stream over names the same filter twice, and brokers tell it on."""
    made = _trusted(wire.clauses_from_bytes(data))
    _set(made, "_bytes", data)
    return made


EVERYTHING: Final = _trusted((Clause(),))
NOTHING: Final = _trusted(())


def as_filter(given: str | Filter) -> Filter:
    """What an API takes as a filter: a `Filter`, or text in the filter language."""
    if isinstance(given, Filter):
        return given
    if isinstance(given, str):
        return Filter.parse(given)
    raise FilterError(
        f'a {type(given).__name__} is not a filter: give text like "step > 1" or '
        "an expression like attr('step') > 1"
    )
