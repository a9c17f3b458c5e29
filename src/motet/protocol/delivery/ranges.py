"""Sets of ticks as sorted, disjoint, closed ranges. Never one tick at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""Lowest and highest tick, both included."""


class RangeSet:
    """Ranges that touch are one range."""

    __slots__ = ("_highs", "_lows")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in ranges:
            self.add(low, high)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._lows, self._highs, strict=True)))

    def __len__(self) -> int:
        return len(self._lows)

    def __contains__(self, tick: int) -> bool:
        at = bisect_right(self._lows, tick) - 1
        return at >= 0 and tick <= self._highs[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    @property
    def top(self) -> int:
        """The highest tick, 0 if there is none."""
        return self._highs[-1] if self._highs else 0

    def add(self, low: int, high: int) -> None:
        lows, highs = self._lows, self._highs
        if highs and lows[-1] <= low <= highs[-1] + 1:  # at the end: the common case
            if high > highs[-1]:
                highs[-1] = high
            return
        first = bisect_left(highs, low - 1)
        last = bisect_right(lows, high + 1)
        if first < last:
            low = min(low, lows[first])
            high = max(high, highs[last - 1])
        lows[first:last] = [low]
        highs[first:last] = [high]

    def remove(self, low: int, high: int) -> None:
        lows, highs = self._lows, self._highs
        first = bisect_left(highs, low)
        last = bisect_right(lows, high)
        if first >= last:
            return
        left = [(lows[first], low - 1)] if lows[first] < low else []
        right = [(high + 1, highs[last - 1])] if highs[last - 1] > high else []
        kept = left + right
        lows[first:last] = [each[0] for each in kept]
        highs[first:last] = [each[1] for each in kept]

    def overlaps(self, low: int, high: int) -> list[Range]:
        """The parts of a range that are in the set."""
        lows, highs = self._lows, self._highs
        found: list[Range] = []
        for at in range(bisect_left(highs, low), bisect_right(lows, high)):
            found.append((max(low, lows[at]), min(high, highs[at])))
        return found

    def missing(self, low: int, high: int) -> list[Range]:
        """The parts of a range that are not in the set."""
        found: list[Range] = []
        for begin, end in self.overlaps(low, high):
            if begin > low:
                found.append((low, begin - 1))
            low = end + 1
        if low <= high:
            found.append((low, high))
        return found

    def clear(self) -> None:
        self._lows.clear()
        self._highs.clear()

    def forget_lowest(self, count: int) -> None:
        """Keep the `count` highest ranges."""
        excess = len(self._lows) - count
        if excess > 0:
            del self._lows[:excess]
            del self._highs[:excess]

    def bridge_lowest(self, count: int) -> None:
        """Fill the lowest gaps until at most `count` ranges remain."""
        excess = len(self._lows) - count
        if excess > 0:
            del self._lows[1 : excess + 1]
            del self._highs[:excess]

    def validate(self) -> None:
        before = None
        for low, high in zip(self._lows, self._highs, strict=True):
            assert low <= high
            assert before is None or before + 1 < low
            before = high
