"""Accumulating knowledge: a least upper bound, whatever arrives in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.errors import InvariantError
from motet.protocol.delivery.spans import (
    Memory,
    RangeSet,
    Span,
    clip,
    joined,
    shortened,
    size_bytes,
)
from tests.unit.delivery.rig import event, span

DATA = {tick for tick in range(1, 60) if tick % 3 == 0 or tick % 7 == 0}
"""The ticks of a stream that hold something."""


def piece(low: int, high: int) -> Span:
    return span(low, high, *sorted(tick for tick in DATA if low <= tick <= high))


PIECES = st.tuples(st.integers(1, 59), st.integers(1, 59)).map(
    lambda pair: piece(min(pair), max(pair))
)


def picture(memory: Memory, upto: int = 60) -> dict[int, str]:
    """Tick by tick: Q is absent."""
    found: dict[int, str] = {}
    for each in memory.pieces(0, upto):
        for tick in range(each.since, each.upto + 1):
            found[tick] = "D" if tick in each.ticks else "F"
    return found


@given(st.lists(PIECES, max_size=12), st.randoms(use_true_random=False))
def test_knowledge_accumulates_in_any_order_and_with_repetitions(
    pieces: list[Span], dice: object
) -> None:
    one, other = Memory(1000, 1 << 20), Memory(1000, 1 << 20)
    for each in pieces:
        one.accumulate(each)
        one.validate()
    shuffled = pieces * 2
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    for each in shuffled:
        other.accumulate(each)
    assert picture(one) == picture(other)
    expected = {t for each in pieces for t in range(each.since, each.upto + 1)}
    assert picture(one) == {tick: "D" if tick in DATA else "F" for tick in expected}


@given(st.lists(PIECES, max_size=12), PIECES)
def test_known_and_missing_ticks_cover_a_range(pieces: list[Span], look: Span) -> None:
    memory = Memory(1000, 1 << 20)
    for each in pieces:
        memory.accumulate(each)
    whole = RangeSet(memory.missing(look.since, look.upto))
    for each in memory.pieces(look.since, look.upto):
        assert not whole.overlaps(each.since, each.upto)
        whole.add(each.since, each.upto)
    assert list(whole) == [(look.since, look.upto)]


@given(st.lists(PIECES, max_size=20), st.integers(0, 60) | st.none())
def test_forgetting_makes_ticks_unknown_and_never_silent(
    pieces: list[Span], delivered: int | None
) -> None:
    whole, bounded = Memory(1000, 1 << 20), Memory(5, 1 << 20)
    for each in pieces:
        whole.accumulate(each)
        bounded.accumulate(each)
        bounded.bound(delivered)
        bounded.validate()
        assert bounded.events <= 5 or len(bounded) == 1
    assert picture(bounded).items() <= picture(whole).items()


def test_bytes_are_bounded_too() -> None:
    memory = Memory(1000, 2_000)
    for tick in range(1, 50):
        memory.accumulate(span(tick, tick, tick))
        memory.bound(None)
        assert memory.bytes <= 2_000
    assert memory.covering(49) is not None
    assert memory.covering(1) is None


def test_beyond_a_gap_the_newest_goes_first_because_the_oldest_is_needed_next() -> None:
    memory = Memory(2, 1 << 20)
    for tick in (20, 21, 22):
        memory.accumulate(span(tick, tick, tick))
        memory.bound(delivered=10)
    assert [each.since for each in memory.pieces(0, 100)] == [20, 21]


def test_two_publications_on_one_tick_are_a_contradiction() -> None:
    memory = Memory(10, 1 << 20)
    memory.accumulate(Span(1, 5, [3], [event("t", 1)]))
    with pytest.raises(InvariantError, match="tick 3"):
        memory.accumulate(Span(1, 5, [3], [event("t", 2)]))


def test_silence_takes_precedence_over_later_data() -> None:
    # The filter in between may have changed; who is owed the tick has known it as data before.
    memory = Memory(10, 1 << 20)
    memory.accumulate(Span(1, 5))
    memory.accumulate(Span(1, 9, [3, 8], [event("t", 1), event("t", 2)]))
    assert picture(memory) == dict.fromkeys((1, 2, 3, 4, 5, 6, 7, 9), "F") | {8: "D"}


def test_lost_ranges_stay_different_from_silence() -> None:
    memory = Memory(10, 1 << 20)
    memory.accumulate(Span(1, 5, lost=True))
    memory.accumulate(Span(6, 9))
    memory.accumulate(Span(10, 12, lost=True))
    assert [(p.since, p.upto, p.lost) for p in memory.pieces(0, 20)] == [
        (1, 5, True),
        (6, 9, False),
        (10, 12, True),
    ]


def test_spans_are_clipped_joined_and_shortened() -> None:
    whole = span(1, 20, 3, 8, 15)
    assert clip(whole, 0, 99) is whole
    parts = [clip(whole, 1, 7), clip(whole, 8, 8), clip(whole, 9, 20)]
    assert [part.ticks for part in parts] == [[3], [8], [15]]
    assert joined(parts) == whole
    assert shortened(whole, 2) == clip(whole, 1, 8)
    assert shortened(whole, 3) is whole


def test_the_size_of_a_long_batch_is_estimated() -> None:
    few = size_bytes(span(1, 4, 1, 2, 3, 4))
    many = size_bytes(span(1, 4000, *range(1, 4001)))
    assert 0.5 < (many - few) / (4000 * len(memoryview(event("t").body))) < 1.5
