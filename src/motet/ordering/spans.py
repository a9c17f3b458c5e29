"""Sets of numbers that are mostly neighbours."""

from __future__ import annotations

from bisect import bisect_right

MOST_SPANS = 4096


class NumberSpans:
    """A set of numbers as spans. Bounded: beyond `MOST_SPANS` the lowest ones are forgotten."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first: list[int] = []
        self._last: list[int] = []

    def add(self, first: int, last: int) -> None:
        """Add the numbers from first to last; they are above all that were added before."""
        if first > last:
            return
        if self._last and self._last[-1] == first - 1:
            self._last[-1] = last
            return
        self._first.append(first)
        self._last.append(last)
        if len(self._first) > MOST_SPANS:
            del self._first[0], self._last[0]

    def remove(self, number: int) -> bool:
        """Returns whether it was there."""
        at = bisect_right(self._first, number) - 1
        if at < 0 or number > self._last[at]:
            return False
        first, last = self._first[at], self._last[at]
        if first == last:
            del self._first[at], self._last[at]
        elif number == first:
            self._first[at] = number + 1
        elif number == last:
            self._last[at] = number - 1
        else:
            self._first.insert(at + 1, number + 1)
            self._last.insert(at, number - 1)
        return True

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._first, number) - 1
        return at >= 0 and number <= self._last[at]

    def __bool__(self) -> bool:
        return bool(self._first)
