"""The index that tries every filter: slow, obvious, and the measure of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from motet.errors import FilterTooComplex
from motet.matching.column import placed_body
from motet.model import covers, decode_attributes, overlap
from motet.model.filters import Filter, Value


class NaiveIndex:
    def __init__(self) -> None:
        self._filters: dict[int, tuple[Filter, int]] = {}

    def add(self, key: int, filter: Filter, hop: int) -> None:
        if key in self._filters:
            raise ValueError(f"key {key} is in the index already")
        self._filters[key] = (filter, hop)

    def remove(self, key: int) -> None:
        del self._filters[key]

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: object) -> bool:
        return key in self._filters

    def match(self, attributes: Mapping[str, Value]) -> list[int]:
        return self._keys(lambda known: known.matches(attributes))

    def hops(self, attributes: Mapping[str, Value]) -> int:
        return self._mask(lambda known: known.matches(attributes))

    def hops_encoded(self, body: bytes | memoryview) -> int | None:
        if placed_body(body) is None:
            return None
        return self.hops(decode_attributes(body))

    def overlapping(self, filter: Filter) -> list[int]:
        return self._keys(lambda known: overlap(known, filter))

    def overlapping_hops(self, filter: Filter) -> int:
        return self._mask(lambda known: overlap(known, filter))

    def covering(self, filter: Filter) -> list[int]:
        return self._keys(lambda known: surely_covers(known, filter))

    def covered(self, filter: Filter) -> list[int]:
        return self._keys(lambda known: surely_covers(filter, known))

    def _keys(self, wanted: Callable[[Filter], bool]) -> list[int]:
        return sorted(key for key, (known, _) in self._filters.items() if wanted(known))

    def _mask(self, wanted: Callable[[Filter], bool]) -> int:
        mask = 0
        for known, hop in self._filters.values():
            if wanted(known):
                mask |= 1 << hop
        return mask


def surely_covers(wide: Filter, narrow: Filter) -> bool:
    """Whether `wide` covers `narrow`; when that is too expensive to know, it does not."""
    try:
        return covers(wide, narrow)
    except FilterTooComplex:
        return False
