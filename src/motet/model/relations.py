"""How two filters relate: `overlap` and `covers`, both exact for the language.

A clause is a box: one set per attribute, and everything where it names none. Boxes are never
empty, so two of them overlap when they do on every attribute both name, and one lies in another
when it does on every attribute the other names. A box can also lie in a union of boxes without
lying in any of them; then it is cut along their sides until nothing, or a witness, is left.
"""

from __future__ import annotations

from motet.errors import FilterTooComplex
from motet.model.clauses import Clause
from motet.model.filters import Filter
from motet.model.limits import MAX_COVER_STEPS
from motet.model.sets import ANYTHING, Constraint, intersect, intersects, is_subset, subtract

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

    Raises FilterTooComplex when two unions are so entangled that the answer costs too much.
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
    """Take the clauses from the box one after the other; True when nothing of it remains."""
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
                # The clause does not touch this piece at all: leave it whole.
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
