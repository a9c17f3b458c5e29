"""The rule of delivery, against sites that are a list: any arrivals, one order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from motet.ordering.delivery import EVENT, LATE, VOIDED, Clocks
from motet.ordering.spans import MOST_SPANS, NumberSpans
from motet.protocol.sequencing.messages import Timestamp

TOPICS = st.integers(0, 3)


def history(topics: list[int]) -> list[Timestamp]:
    """Timestamps of events in one order, as one site gives them to a group of all topics."""
    numbers: dict[int, int] = {}
    passed: dict[int, dict[int, int]] = {}
    stamps = []
    for topic in topics:
        known = passed.setdefault(topic, {})
        entries = [
            item
            for other, number in numbers.items()
            if other != topic and known.get(other) != number
            for item in (other, number)
        ]
        passed[topic] = dict(numbers)
        numbers[topic] = numbers.get(topic, 0) + 1
        stamps.append(Timestamp(topic, numbers[topic], tuple(entries)))
    return stamps


@settings(max_examples=200, deadline=None)
@given(st.lists(TOPICS, max_size=40), st.sets(TOPICS, min_size=1), st.data())
def test_any_arrivals_are_delivered_in_the_order_of_their_numbers(
    topics: list[int], mine: set[int], data: st.DataObject
) -> None:
    stamps = history(topics)
    order = [stamp for stamp in stamps if stamp.topic in mine]
    arrivals = data.draw(st.permutations([*order, *order[::3]]))
    void = data.draw(st.sets(st.sampled_from(range(len(order))))) if order else set()
    kinds = {(stamp.topic, stamp.number): at in void for at, stamp in enumerate(order)}
    clocks = Clocks()
    clocks.cut(dict.fromkeys(mine, 0), {})
    done = []
    for stamp in arrivals:
        kind = VOIDED if kinds[stamp.topic, stamp.number] else EVENT
        assert clocks.take(stamp, b"", kind) is None
        done += clocks.deliver()
        clocks.validate()
    assert [(each.topic, each.number) for each in done] == [
        (stamp.topic, stamp.number) for stamp in order
    ]
    assert clocks.held == 0
    assert not clocks.stands()


@settings(max_examples=100, deadline=None)
@given(st.lists(TOPICS, min_size=1, max_size=30), st.integers(0, 30), st.data())
def test_a_topic_that_joins_later_fits_in(
    topics: list[int], cut_at: int, data: st.DataObject
) -> None:
    """Timestamps name all topics, as if another stream always had them."""
    stamps = history(topics)
    cut_at = min(cut_at, len(stamps))
    joining = data.draw(TOPICS)
    former = [topic for topic in range(4) if topic != joining]
    numbers = dict.fromkeys(range(4), 0)
    for stamp in stamps[:cut_at]:
        numbers[stamp.topic] = stamp.number
    clocks = Clocks()
    clocks.cut(dict.fromkeys(former, 0), {})
    clocks.expect(joining)
    clocks.stopped = True
    arrivals = data.draw(st.permutations(stamps))
    answered_at = data.draw(st.integers(0, len(arrivals)))
    done = []
    for at, stamp in enumerate(arrivals):
        if at == answered_at:
            clocks.cut({joining: numbers[joining]}, {each: numbers[each] for each in former})
            done += clocks.deliver()
        clocks.take(stamp, b"")
        done += clocks.deliver()
    if answered_at == len(arrivals):
        clocks.cut({joining: numbers[joining]}, {each: numbers[each] for each in former})
        done += clocks.deliver()
    mine = [
        (stamp.topic, stamp.number)
        for at, stamp in enumerate(stamps)
        if at >= cut_at or stamp.topic != joining
    ]
    got = [(each.topic, each.number) for each in done]
    assert sorted(got) == sorted(mine)
    behind = [each for each in mine if each[1] > numbers[each[0]]]
    assert [each for each in got if each in behind] == behind


def test_what_was_passed_comes_late_once() -> None:
    clocks = Clocks()
    clocks.cut({0: 0}, {})
    clocks.take(Timestamp(0, 1), b"", VOIDED)
    assert [each.kind for each in clocks.deliver()] == [VOIDED]
    late = clocks.take(Timestamp(0, 1), b"x")
    assert late is not None
    assert (late.kind, late.payload) == (LATE, b"x")
    assert clocks.take(Timestamp(0, 1), b"x") is None


def test_a_topic_without_clock_is_ignored() -> None:
    clocks = Clocks()
    clocks.cut({0: 0}, {})
    assert clocks.take(Timestamp(1, 1), b"") is None
    assert clocks.deliver() == []


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5))), st.sets(st.integers(0, 60)))
def test_spans_are_a_set(steps: list[tuple[int, int]], removed: set[int]) -> None:
    spans, expected, at = NumberSpans(), set(), 0
    for gap, length in steps:
        first = at + gap
        spans.add(first, first + length)
        expected |= set(range(first, first + length + 1))
        at = first + length
    for number in sorted(removed, reverse=True):
        assert spans.remove(number) == (number in expected)
        expected.discard(number)
    assert {number for number in range(at + 2) if number in spans} == expected
    assert bool(spans) == bool(expected)


def test_spans_are_bounded() -> None:
    spans = NumberSpans()
    for number in range(2 * MOST_SPANS):
        spans.add(2 * number, 2 * number)
    assert 0 not in spans
    assert 4 * MOST_SPANS - 2 in spans
