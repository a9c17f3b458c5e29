"""Ranges against sets of ticks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.protocol.delivery.spans import Range, RangeSet

TICKS = st.integers(0, 40)
RANGES = st.tuples(TICKS, TICKS).map(lambda pair: (min(pair), max(pair)))
MOVES = st.lists(st.tuples(st.booleans(), RANGES), max_size=30)


def ticks(ranges: list[Range]) -> set[int]:
    return {tick for low, high in ranges for tick in range(low, high + 1)}


@given(MOVES, RANGES)
def test_ranges_are_sets_of_ticks(moves: list[tuple[bool, Range]], look: Range) -> None:
    found, oracle = RangeSet(), set()
    for adding, (low, high) in moves:
        if adding:
            found.add(low, high)
            oracle |= ticks([(low, high)])
        else:
            found.remove(low, high)
            oracle -= ticks([(low, high)])
        found.validate()
    assert ticks(list(found)) == oracle
    assert found.top == max(oracle, default=0)
    inside = ticks([look])
    assert ticks(found.overlaps(*look)) == oracle & inside
    assert ticks(found.missing(*look)) == inside - oracle
    assert all((tick in found) == (tick in oracle) for tick in range(42))


@given(st.lists(RANGES, max_size=20), st.integers(1, 5))
def test_forgetting_keeps_the_highest_and_bridging_fills_the_lowest(
    ranges: list[Range], count: int
) -> None:
    whole = RangeSet(ranges)
    forgotten, bridged = RangeSet(ranges), RangeSet(ranges)
    forgotten.forget_lowest(count)
    bridged.bridge_lowest(count)
    bridged.validate()
    assert list(forgotten) == list(whole)[-count:]
    assert len(bridged) <= count
    assert ticks(list(whole)) <= ticks(list(bridged))
    assert list(bridged)[1:] == list(whole)[-count:][1:]
