"""Clauses and their algebra: conjunctions are boxes, a filter is a union of boxes.

`and` distributes over `or` at once, so what leaves here is always a short list of boxes, each of
them satisfiable, in one order. The limits on their number and size hold here for every way in:
text, Python expressions and the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final, NamedTuple

from motet.errors import FilterTooComplex
from motet.model.limits import MAX_CLAUSES, MAX_FILTER_CHARS, MAX_INTERVALS, MAX_PREDICATES
from motet.model.sets import Constraint, intersect, written_predicates
from motet.model.values import Attributes, Family


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
    """All of these. Plain conjunctions are joined first and once: distribution repeats the rest."""
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
    """The conjunction of conjunctions; None when nothing satisfies it."""
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
    """Any of these."""
    return normal([clause for operand in operands for clause in operand])


def normal(clauses: Sequence[Clause]) -> Clauses:
    """Each clause that some event can match, once, in one order, within the limits."""
    clauses = [
        clause
        for clause in clauses
        if all(c.intervals or c.nan or c.absent for _, c in clause.constraints)
    ]
    if len(clauses) > 1:
        if any(not clause.constraints for clause in clauses):
            return EVERYTHING
        # Equal clauses have equal text, and text has an order, which mixed values have not.
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
    if chars > 2 * MAX_FILTER_CHARS:  # both ends of what was written once
        raise FilterTooComplex(
            f"a filter has at most {MAX_FILTER_CHARS} characters of text, this one {chars}"
        )
    if predicates > MAX_PREDICATES or intervals > MAX_INTERVALS:
        raise FilterTooComplex(
            f"a filter has at most {MAX_PREDICATES} predicates and {MAX_INTERVALS} values, "
            f"this one {predicates} and {intervals}"
        )
