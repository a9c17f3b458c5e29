"""Brute force for `overlap` and `covers`: try every event whose values could make a difference.

Within one family, whether a value satisfies a predicate changes only at the literals of the two
filters. So the literals, their direct neighbours, the ends of each family, NaN and absence
represent every event there is: the search is exhaustive, not a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from math import inf, nan

from motet.model import Filter, Value
from motet.model.values import next_number, previous_number

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def overlap_by_search(one: Filter, two: Filter) -> bool:
    return any(one.matches(event) and two.matches(event) for event in witnesses(one, two))


def covers_by_search(wide: Filter, narrow: Filter) -> bool:
    return all(wide.matches(event) for event in witnesses(wide, narrow) if narrow.matches(event))


def witnesses(*filters: Filter) -> Iterator[dict[str, Value]]:
    representatives: dict[str, dict[object, Value | None]] = {}
    for filter_ in filters:
        for clause in filter_.clauses:
            for name, constraint in clause.constraints:
                found = representatives.setdefault(name, _everywhere())
                for interval in constraint.intervals:
                    for end in (interval.low, interval.high):
                        if end is not None:
                            found |= {_key(value): value for value in _around(end)}
    names = list(representatives)
    for values in product(*(representatives[name].values() for name in names)):
        pairs = zip(names, values, strict=True)
        yield {name: value for name, value in pairs if value is not None}


def _everywhere() -> dict[object, Value | None]:
    values = (None, nan, False, True, -inf, inf, "", "\U0010ffff" * 4, _FIRST, _LAST)
    return {_key(value): value for value in values}


def _key(value: Value | None) -> object:
    return type(value) is bool, value


def _around(value: Value) -> Iterator[Value]:
    yield value
    if isinstance(value, str):
        yield value + "\0"
        if value.endswith("\0"):
            yield value[:-1]
        # Text just below: above every other literal that is less, if long enough.
        if value and ord(value[-1]) > 0:
            below = ord(value[-1]) - 1
            yield value[:-1] + chr(0xD7FF if below == 0xDFFF else below) + "\U0010ffff" * 4
    elif isinstance(value, datetime):
        if value > _FIRST:
            yield value - _TICK
        if value < _LAST:
            yield value + _TICK
    elif not isinstance(value, bool):
        if value > -inf:
            yield previous_number(value)
        if value < inf:
            yield next_number(value)
