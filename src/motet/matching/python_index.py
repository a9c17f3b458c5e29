"""The engine in Python: rows of reject bits as big ints, in segments.

The reference for the engine in C, and what runs where no compiler was at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import index as as_int
from typing import NamedTuple

from motet.matching.column import Placed, placed, placed_body
from motet.matching.naive import surely_covers
from motet.matching.segment import Segment, slots
from motet.model import overlap
from motet.model.filters import Clause, Filter, Value


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
        """Keys of filters that nothing can match; they have no clause in any segment."""

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
        """Give up a segment that is mostly dead slots, and place what lives in it anew."""
        self._segments.remove(segment)
        if not self._segments:
            self._segments.append(Segment())
        for slot in slots(segment.alive):
            key, clause = segment.keys[slot], segment.clauses[slot]
            assert clause is not None
            entry = self._entries[key]
            entry.places.remove((segment, slot))
            self._place(key, entry, clause, bool(segment.unions >> slot & 1))

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def _event(self, attributes: Mapping[str, Value]) -> dict[str, Placed]:
        if type(attributes) is not dict:
            raise TypeError(f"attributes must be a dict, not {type(attributes).__name__}")
        uses = self._uses
        return {name: placed(value) for name, value in attributes.items() if name in uses}

    def _mask(
        self, candidates: Callable[[Segment], int], wanted: Callable[[Segment, int], bool]
    ) -> int:
        """The hops of wanted candidates. Those of hops already found are not looked at."""
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
    """The clauses that something can match."""
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
