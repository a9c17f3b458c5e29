"""Filters written in Python: `(attr("step") > 1) & attr("name").startswith("abc")`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from sys import intern
from typing import NoReturn

from motet.errors import EventError, FilterError, FilterTooComplex, MisuseError
from motet.model import predicates as made
from motet.model.filters import Filter
from motet.model.limits import MAX_IN_LIST, MAX_NAME_CHARS
from motet.model.sets import Constraint
from motet.model.values import Value, is_name, plain_value


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
        return self._compared(made.equal, value)

    def __ne__(self, value: object) -> Filter:  # type: ignore[override]
        return self._compared(made.unequal, value)

    def __lt__(self, value: Value) -> Filter:
        return self._compared(made.below, value)

    def __le__(self, value: Value) -> Filter:
        return self._compared(made.at_most, value)

    def __gt__(self, value: Value) -> Filter:
        return self._compared(made.above, value)

    def __ge__(self, value: Value) -> Filter:
        return self._compared(made.at_least, value)

    __hash__ = None  # type: ignore[assignment]

    def between(self, low: Value, high: Value) -> Filter:
        """Both ends included."""
        return self._filter(made.between(_literal(low), _literal(high)))

    def isin(self, *values: Value | Iterable[Value]) -> Filter:
        """One of these: `isin(1, 2)` or `isin([1, 2])`."""
        listed: list[object] = list(values)
        if len(listed) == 1 and isinstance(listed[0], Iterable) and not isinstance(listed[0], str):
            listed = list(listed[0])
        if not listed:
            raise FilterError("isin() needs at least one value")
        if len(listed) > MAX_IN_LIST:
            raise FilterTooComplex(f"isin() takes at most {MAX_IN_LIST} values")
        return self._filter(made.one_of([_literal(value) for value in listed]))

    def startswith(self, prefix: str) -> Filter:
        if not isinstance(prefix, str):
            raise FilterError(f"startswith() takes a str, not a {type(prefix).__name__}")
        _literal(prefix)
        return self._filter(made.starting_with(str.__str__(prefix)))

    def is_null(self) -> Filter:
        """The event does not have the attribute."""
        return self._filter(made.ABSENT)

    def is_not_null(self) -> Filter:
        """The event has the attribute, whatever its value, even NaN."""
        return self._filter(made.PRESENT)

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
        return Filter(made.predicate(self.name, constraint))


def attr(name: str) -> Attribute:
    return Attribute(name)


def _literal(value: object) -> Value:
    if value is None:
        raise FilterError("nothing equals None; use is_null() or is_not_null()")
    if isinstance(value, Attribute):
        raise FilterError("an attribute is compared with values only, not with another attribute")
    if value != value:
        raise FilterError(made.NO_NAN)
    try:
        return plain_value(value)
    except EventError as error:
        raise FilterError(str(error)) from None
