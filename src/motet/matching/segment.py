"""A bounded group of clauses that shares columns.

A segment only grows: a removed clause leaves a dead slot, and the index dissolves segments that
are mostly dead. Each segment learns its cells from its own clauses, again whenever it has grown
by a factor; so a shift in what subscribers ask for shows in the cells of the next segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from motet.matching.column import ABSENT, Column, Placed, admits
from motet.model.filters import Clause, Constraint

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
        """Take a clause in; returns its slot."""
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
            return self.alive  # few clauses are verified sooner than looked up
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
