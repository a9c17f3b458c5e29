"""Claims of forgers: each is held until the site of the topic has refuted it, and then dropped."""

from __future__ import annotations

import pytest

from motet.ordering.contract import Notified, WantStream
from motet.ordering.delivery import MOST_RIVALS
from motet.ordering.envelope import MARK, seal
from motet.ordering.events import Gap, LostEvents
from motet.ordering.stream import CHECK_S, StreamLimits
from motet.protocol.sequencing.messages import (
    FORGOTTEN,
    OPEN,
    PUBLISHED,
    UNGIVEN,
    VOID,
    AskNumbers,
    Far,
    HowFar,
    Timestamp,
    Told,
)
from tests.unit.ordering.hand import Hand

LIMIT_S = 5.0


@pytest.fixture
def hand() -> Hand:
    return Hand(lossless=True).connect()


def answer(hand: Hand, last: dict[str, int], *, void: tuple[int, ...] = ()) -> None:
    """Answer all questions as sites do that have given these numbers, without entries."""
    sends, hand.out.sends = hand.out.sends, []
    for site, frame in sends:
        if isinstance(frame, AskNumbers):
            name = next(each for each, topic in hand.ids.items() if topic == frame.topic)
            told = []
            for number in frame.numbers:
                if number > last.get(name, 0):
                    told.append((number, UNGIVEN, None))
                else:
                    state = VOID if number in void else PUBLISHED
                    told.append((number, state, Timestamp(frame.topic, number)))
            hand.frame(site, Told(frame.topic, tuple(told)))
        elif isinstance(frame, HowFar):
            names = {topic: name for name, topic in hand.ids.items()}
            hand.frame(site, Far({each: last.get(names[each], 0) for each in frame.topics}))
        else:
            hand.out.sends.append((site, frame))


def forged(hand: Hand, key: int = 1) -> int:
    return hand.machine.forged(key)


def pass_time(hand: Hand, seconds: float, last: dict[str, int]) -> None:
    """With sites that answer."""
    until = hand.now + seconds
    while hand.now < until:
        hand.after(0.1)
        answer(hand, last)


@pytest.mark.parametrize("number", [2, 7, 1000, 2**61])
def test_a_number_that_was_never_given_is_refuted(hand: Hand, number: int) -> None:
    hand.stream("a.x")
    hand.arrive("a.x", number)
    hand.after(1.0)
    asked = hand.last(AskNumbers, "a")
    assert asked.numbers[0] == 1
    answer(hand, {"a.x": 0})
    assert forged(hand) == 1
    assert hand.machine.waiting(1) == []
    for each in range(1, 4):
        hand.arrive("a.x", each)
    assert hand.given() == ["a.x#1", "a.x#2", "a.x#3"]
    assert not hand.out.told


def test_an_event_that_came_after_the_question_is_not_refuted_by_its_answer(hand: Hand) -> None:
    """The site may have given the number meanwhile."""
    hand.stream("a.x")
    hand.arrive("a.x", 5)
    hand.after(0.4)
    assert hand.said(AskNumbers, "a")
    hand.arrive("a.x", 2)
    answer(hand, {"a.x": 0})
    assert forged(hand) == 1, "5 was there when the site was asked, and 2 was not"
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "a.x#2"]


def test_an_answer_that_nobody_asked_for_refutes_nothing(hand: Hand) -> None:
    hand.stream("a.x")
    hand.arrive("a.x", 2)
    hand.frame("a", Told(hand.id_of("a.x"), ((2, UNGIVEN, None), (1, FORGOTTEN, None))))
    hand.frame("a", Far({hand.id_of("a.x"): 0}))
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "a.x#2"]
    assert forged(hand) == 0


def test_an_entry_far_ahead_does_not_hold_its_topic_back(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1, b_y=10**9)
    hand.after(1.0)
    answer(hand, {"b.y": 0})
    assert forged(hand) == 1
    hand.arrive("a.x", 1)
    hand.arrive("b.y", 1, a_x=1)
    assert hand.given() == ["a.x#1", "b.y#1"]


def test_a_true_event_beside_a_forged_one_of_its_number_is_kept(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1, b_y=10**9)
    hand.arrive("a.x", 1)
    assert hand.given() == [], "the site says which of them is true"
    pass_time(hand, 1.0, {"a.x": 1, "b.y": 0})
    assert hand.given() == ["a.x#1"]
    assert forged(hand) == 1


def test_more_rivals_than_are_kept_cost_the_true_event_and_the_stream_is_told() -> None:
    """Also over a service that loses nothing: it will not bring the event again."""
    hand = Hand(lossless=True, limits=StreamLimits(limit_s=LIMIT_S)).connect()
    hand.stream("a.x", "b.y")
    for claim in range(MOST_RIVALS + 3):
        hand.arrive("a.x", 1, b_y=10**9 + claim)
    hand.arrive("a.x", 1)
    hand.arrive("a.x", 2)
    pass_time(hand, LIMIT_S + 2.0, {"a.x": 2, "b.y": 0})
    assert hand.given() == ["a.x#2"]
    assert [each.numbers for each in hand.out.told if isinstance(each, LostEvents)] == [(1,)]


def test_forged_events_that_wait_for_each_other_are_found(hand: Hand) -> None:
    """Nothing is missing: each waits for the other one, and both numbers were given."""
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1, b_y=1)
    hand.arrive("b.y", 1, a_x=1)
    hand.arrive("a.x", 2)
    pass_time(hand, 3.0, {"a.x": 2, "b.y": 1})
    assert forged(hand) == 2
    hand.arrive("a.x", 1)
    hand.arrive("b.y", 1)
    assert hand.given() == ["a.x#1", "a.x#2", "b.y#1"]


def test_a_true_event_that_waits_is_confirmed_once(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1, b_y=1)
    topic = hand.id_of("a.x")
    stamp = hand.stamp("a.x", 1, b_y=1)
    hand.after(1.2)
    hand.frame("a", Told(topic, ((1, OPEN, stamp),)))
    before = hand.said(AskNumbers, "a")
    hand.after(5.0)
    assert hand.said(AskNumbers, "a") == before
    hand.arrive("b.y", 1)
    assert hand.given() == ["b.y#1", "a.x#1"]
    assert forged(hand) == 0


def test_a_forged_event_of_a_void_number_does_not_hold_it_back(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1, b_y=10**9)
    hand.arrive("a.x", 2)
    hand.after(1.2)
    sends = hand.said(AskNumbers, "a")
    assert sends
    answer(hand, {"a.x": 2, "b.y": 0}, void=(1,))
    pass_time(hand, 1.0, {"a.x": 2})
    hand.after(0.5)
    answer(hand, {"a.x": 2}, void=(1,))
    assert forged(hand) == 1
    assert hand.given() == ["a.x#2"]


def test_what_a_site_has_said_of_a_number_outlives_forgers(hand: Hand) -> None:
    hand.stream("a.x")
    hand.arrive("a.x", 3)
    hand.after(0.4)
    hand.frame("a", Told(hand.id_of("a.x"), ((2, VOID, hand.stamp("a.x", 2)),)))
    hand.arrive("a.x", 2, a_x=10**9)
    assert forged(hand) == 1
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "a.x#3"]


@pytest.mark.parametrize("is_true", [True, False])
def test_whether_a_stream_has_expired_is_for_the_site_to_say(hand: Hand, is_true: bool) -> None:
    stream = hand.stream("a.x", "b.y")
    topic = hand.id_of("a.x")
    hand.arrive("a.x", 1, gone=(stream,))
    hand.arrive("b.y", 1)
    assert hand.given() == ["b.y#1"], "others go on meanwhile"
    assert hand.said(AskNumbers, "a") == [AskNumbers(topic, (1,))]
    gone = (stream,) if is_true else ()
    hand.frame("a", Told(topic, ((1, PUBLISHED, hand.stamp("a.x", 1, gone=gone)),)))
    if is_true:
        assert [type(each) for each in hand.out.told] == [Gap]
        return
    assert forged(hand) == 1
    assert not hand.out.told
    hand.arrive("a.x", 1)
    assert hand.given() == ["b.y#1", "a.x#1"]


def test_a_forged_expiry_of_a_number_that_was_not_given(hand: Hand) -> None:
    stream = hand.stream("a.x")
    for found in range(1, 4):
        hand.arrive("a.x", 1, gone=(stream,))
        pass_time(hand, 1.2, {"a.x": 0})
        assert forged(hand) == found
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1"]


def test_forged_events_in_order_bring_a_stream_beyond_its_site_for_seconds_only(
    hand: Hand,
) -> None:
    """Nobody can tell them from true ones, but the site knows how far the topic is."""
    hand.stream("a.x")
    for number in range(1, 6):
        hand.arrive("a.x", number)
    last = {"a.x": 2}
    pass_time(hand, 2 * CHECK_S + 1.0, last)
    (gap,) = hand.out.told
    assert isinstance(gap, Gap)
    assert "forged" in gap.reason
    hand.answer_change(a_x=2)
    assert hand.machine.clocks(1) == {"a.x": 2}
    hand.take()
    for number in (3, 4, 5, 6):
        hand.arrive("a.x", number)
    assert hand.given() == [f"a.x#{number}" for number in (3, 4, 5, 6)]
    assert forged(hand) == 3


def test_clocks_that_sites_confirm_cost_one_question_now_and_then(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1)
    pass_time(hand, 3 * CHECK_S, {"a.x": 1})
    hand.take()
    hand.after(10 * CHECK_S)
    assert not hand.said(HowFar), "nothing has come since"
    assert not hand.machine.streams[1].clocks.ahead()


def test_a_flood_of_forged_events_does_not_cost_the_place_in_the_order() -> None:
    hand = Hand(lossless=True, limits=StreamLimits(buffer=10)).connect()
    hand.stream("a.x")
    hand.arrive("a.x", 2)
    stamps = [hand.stamp("a.x", number) for number in range(100, 115)]
    hand.do(Notified("a.x", seal(stamps, [b""] * len(stamps))))
    answer(hand, {"a.x": 2})
    assert forged(hand) == 0, "a site without its standby may not know the last numbers"
    assert hand.said(AskNumbers, "a") == [AskNumbers(hand.id_of("a.x"), (3,))]
    answer(hand, {"a.x": 2})
    assert forged(hand) == 15
    assert not hand.out.told
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "a.x#2"]


def test_a_flood_beyond_all_measure_is_given_up_at_once() -> None:
    hand = Hand(lossless=True, limits=StreamLimits(buffer=10)).connect()
    hand.stream("a.x")
    stamps = [hand.stamp("a.x", number) for number in range(100, 130)]
    hand.do(Notified("a.x", seal(stamps, [b""] * len(stamps))))
    assert hand.machine.streams[1].clocks.held <= 20
    assert [type(each) for each in hand.out.told] == [Gap]


FORGED = {
    "cut off": MARK + b"\x92\x91",
    "of another topic": seal([Timestamp(1000, 1)], [b""]),
    "with number 0": seal([Timestamp(0, 0)], [b""]),
    "with a negative number": seal([Timestamp(0, -4)], [b""]),
    "with a huge number": seal([Timestamp(0, 2**63)], [b""]),
    "empty": seal([], []),
}


@pytest.mark.parametrize("what", FORGED)
def test_messages_that_nobody_can_have_made_are_counted_and_not_given(
    hand: Hand, what: str
) -> None:
    hand.stream("a.x")
    hand.do(Notified("a.x", FORGED[what]))
    assert hand.given() == []
    assert (hand.machine.forged_events, hand.machine.foreign_events) == (1, 0)
    assert forged(hand) == 1
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1"]


def test_entries_of_topics_that_the_stream_does_not_have_count_for_nothing(hand: Hand) -> None:
    hand.stream("a.x")
    hand.do(Notified("a.x", seal([Timestamp(hand.id_of("a.x"), 1, (10**9, 7))], [b"x"])))
    assert hand.given() == ["a.x#1"]


def test_two_events_with_one_timestamp_are_one_and_the_other_is_counted(hand: Hand) -> None:
    """Without a key nobody can know which of them is true."""
    hand.stream("a.x")
    for payload in (b"one", b"other", b"one"):
        hand.do(Notified("a.x", seal([hand.stamp("a.x", 2)], [payload])))
    assert forged(hand) == 1
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "a.x#2"]


def test_with_a_key_nothing_of_a_forger_is_even_held() -> None:
    key = b"0123456789abcdef"
    hand = Hand(key=key).connect()
    hand.stream("a.x")
    hand.arrive("a.x", 1)
    hand.arrive("a.x", 9)
    assert forged(hand) == 2
    hand.do(Notified("a.x", seal([hand.stamp("a.x", 1)], [b"x"], key)))
    assert hand.given() == ["a.x#1"]


def test_forged_events_of_a_topic_that_is_being_added_are_bounded(hand: Hand) -> None:
    hand = Hand(lossless=True, limits=StreamLimits(buffer=10)).connect()
    hand.do(WantStream(1, ("a.x",), 901))
    hand.answer_queries()
    hand.answer_calls()
    stamps = [hand.stamp("a.x", number) for number in range(100, 200)]
    hand.do(Notified("a.x", seal(stamps, [b""] * len(stamps))))
    assert hand.machine.streams[1].clocks.held <= 20
