"""Filters as text: canonical, and read back by the parser to an equal filter."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import Final

from motet.errors import FilterError
from motet.model.clauses import Clause
from motet.model.sets import ABSENT, PRESENT, Constraint, Points, Range, is_prefix, shape
from motet.model.values import Family, Value, show_timestamp

KEYWORDS: Final = frozenset(
    {"and", "between", "false", "in", "infinity", "is", "like", "nan", "not", "null", "or"}
    | {"timestamp", "true"}
)
"""Words an attribute name must not be unless it is quoted."""

_WHOLE_FAMILY: Final = {
    Family.NUMBER: "<= infinity",
    Family.TEXT: "like '%'",
    Family.TIME: ">= timestamp '0001-01-01T00:00:00Z'",
}


def show(clauses: tuple[Clause, ...]) -> str:
    return " or ".join(map(show_clause, clauses)) or "false"


def show_clause(clause: Clause) -> str:
    if not clause.constraints:
        return "true"
    predicates: list[str] = []
    for name, constraint in clause.constraints:
        subject = show_name(name)
        predicates += (f"{subject} {said}" for said in _say(constraint))
    return " and ".join(predicates)


def show_name(name: str) -> str:
    return f'"{name}"' if name.lower() in KEYWORDS else name


def show_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        return f"timestamp '{show_timestamp(value)}'"
    if value in (inf, -inf):
        return "infinity" if value > 0 else "-infinity"
    return repr(value)


def _say(constraint: Constraint) -> list[str]:
    if constraint == ABSENT:
        return ["is null"]
    if constraint == PRESENT:
        return ["is not null"]
    match shape(constraint):
        case Points((value,)):
            return [f"= {show_value(value)}"]
        case Points(values):
            return [f"in ({', '.join(map(show_value, values))})"]
        case Range() as found:
            return _say_range(found)
    raise FilterError(f"the language has no words for {constraint}")


def _say_range(found: Range) -> list[str]:
    family, low, high, low_open, high_open = found.hull
    said = [f"<> {show_value(hole)}" for hole in found.holes]
    if low is None and high is None:
        return said or [_WHOLE_FAMILY[family]]
    if is_prefix(found.hull):
        return [f"like '{_escape(str(low))}%'", *said]
    if low is not None and high is not None and not low_open and not high_open:
        return [f"between {show_value(low)} and {show_value(high)}", *said]
    bounds: list[str] = []
    if low is not None:
        bounds.append(f"{'>' if low_open else '>='} {show_value(low)}")
    if high is not None:
        bounds.append(f"{'<' if high_open else '<='} {show_value(high)}")
    return bounds + said


def _escape(prefix: str) -> str:
    for special in ("\\", "%", "_", "'"):
        prefix = prefix.replace(special, "''" if special == "'" else "\\" + special)
    return prefix
