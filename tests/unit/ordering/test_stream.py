"""Streams with frames made by hand: each rule of delivery, asking and changing."""

from __future__ import annotations

import pytest

from motet.errors import ClosedError, NotOffered, SitesAway, TopicRefused, UnavailableError
from motet.ordering.contract import (
    Notified,
    ServiceDone,
    ServiceInterrupted,
    SiteClosed,
    Tick,
    WantAdd,
    WantClose,
    WantDrop,
    WantStream,
)
from motet.ordering.events import Gap, Joined, LostEvents
from motet.ordering.stream import StreamLimits
from motet.protocol.sequencing.messages import (
    FORGOTTEN,
    OPEN,
    PUBLISHED,
    VOID,
    AskNumbers,
    Changed,
    ChangeRequest,
    Far,
    HowFar,
    Keep,
    StreamsKept,
    Told,
    TopicQuery,
)
from tests.unit.ordering.hand import KEEP_S, Hand

PATIENCE_S = 0.25
LIMIT_S = 5.0


@pytest.fixture
def hand() -> Hand:
    return Hand().connect()


# ── delivery ─────────────────────────────────────────────────────────────────────────────


def test_events_of_a_topic_come_by_number_and_once(hand: Hand) -> None:
    hand.stream("a.x")
    for number in (2, 1, 1, 3, 2):
        hand.arrive("a.x", number)
    assert hand.given() == ["a.x#1", "a.x#2", "a.x#3"]


def test_an_event_waits_for_what_its_timestamp_names(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("b.y", 1, a_x=2)
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1"]
    hand.arrive("a.x", 2)
    assert hand.given() == ["a.x#1", "a.x#2", "b.y#1"]


def test_entries_of_topics_that_the_stream_lacks_count_for_nothing(hand: Hand) -> None:
    hand.stream("b.y")
    hand.arrive("b.y", 1, a_x=7)
    assert hand.given() == ["b.y#1"]


def test_a_chain_of_waiting_events_comes_in_order(hand: Hand) -> None:
    hand.stream("a.x", "a.z", "b.y")
    hand.arrive("b.y", 1, a_z=1)
    hand.arrive("a.z", 1, a_x=1)
    assert hand.given() == []
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "a.z#1", "b.y#1"]


def test_two_streams_of_a_client_get_the_same_event_each(hand: Hand) -> None:
    hand.stream("a.x", key=1)
    hand.do(WantStream(2, ("a.x",), 5))
    hand.answer_queries()
    assert not hand.out.calls, "the service is subscribed to already"
    hand.answer_change(a_x=1)
    hand.arrive("a.x", 1)
    hand.arrive("a.x", 2)
    assert hand.given(1) == ["a.x#1", "a.x#2"]
    assert hand.given(2) == ["a.x#2"]


def test_events_of_others_are_tagged_or_counted() -> None:
    hand = Hand().connect()
    hand.stream("a.x")
    hand.do(Notified("a.x", b"plain"))
    assert hand.given() == ["a.x#-"]
    counted = Hand(foreign="counted").connect()
    counted.stream("a.x")
    counted.do(Notified("a.x", b"plain"))
    assert counted.given() == []
    assert counted.machine.foreign_events == 1


# ── asking ───────────────────────────────────────────────────────────────────────────────


def test_a_stream_asks_for_what_is_missing_and_less_often_later(hand: Hand) -> None:
    hand.stream("a.x")
    hand.arrive("a.x", 3)
    hand.after(PATIENCE_S / 2)
    assert not hand.said(AskNumbers)
    hand.after(PATIENCE_S)
    assert hand.said(AskNumbers) == [AskNumbers(hand.id_of("a.x"), (1, 2))]
    hand.after(10.0)
    assert 9 <= len(hand.said(AskNumbers)) <= 13


def test_it_asks_for_what_an_entry_names(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("b.y", 1, a_x=2)
    hand.after(2 * PATIENCE_S)
    assert hand.last(AskNumbers, "a") == AskNumbers(hand.id_of("a.x"), (1, 2))
    waiting = hand.machine.waiting(1)
    assert [(each.topic, each.numbers) for each in waiting] == [("a.x", (1, 2))]


def test_a_void_number_is_passed_when_its_entries_are_reached(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("b.y", 2)
    hand.after(2 * PATIENCE_S)
    answer = (1, VOID, hand.stamp("b.y", 1, a_x=1))
    hand.frame("b", Told(hand.id_of("b.y"), (answer,)))
    assert hand.given() == [], "what comes before the void number is not here"
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "b.y#2"]
    assert hand.machine.clocks(1) == {"a.x": 1, "b.y": 2}


def test_an_event_whose_number_was_passed_comes_tagged_and_once(hand: Hand) -> None:
    hand.stream("a.x")
    hand.arrive("a.x", 2)
    hand.frame("a", Told(hand.id_of("a.x"), ((1, VOID, hand.stamp("a.x", 1)),)))
    hand.arrive("a.x", 1)
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#2", "a.x#1 late"]


def test_an_event_that_comes_before_its_void_number_is_passed_comes_in_order(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 3)
    hand.frame("a", Told(hand.id_of("a.x"), ((2, VOID, hand.stamp("a.x", 2)),)))
    hand.arrive("a.x", 2)
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "a.x#2", "a.x#3"]


def test_an_open_number_is_waited_for(hand: Hand) -> None:
    hand.stream("a.x")
    hand.arrive("a.x", 2)
    hand.frame("a", Told(hand.id_of("a.x"), ((1, OPEN, None),)))
    hand.after(3 * LIMIT_S)
    assert hand.given() == []
    assert not hand.out.told


def test_a_published_number_that_does_not_come_is_lost_after_the_limit(hand: Hand) -> None:
    hand.stream("a.x")
    hand.arrive("a.x", 3)
    answers = tuple((number, PUBLISHED, hand.stamp("a.x", number)) for number in (1, 2))
    hand.frame("a", Told(hand.id_of("a.x"), answers))
    hand.after(LIMIT_S - 0.5)
    assert hand.given() == []
    hand.after(1.0)
    assert hand.given() == ["a.x#3"]
    assert hand.out.told == [LostEvents(1, "a.x", (1, 2))]
    hand.arrive("a.x", 2)
    assert hand.given()[-1] == "a.x#2 late"


def test_a_lossless_service_is_waited_for() -> None:
    hand = Hand(lossless=True).connect()
    hand.stream("a.x")
    hand.arrive("a.x", 2)
    hand.frame("a", Told(hand.id_of("a.x"), ((1, PUBLISHED, hand.stamp("a.x", 1)),)))
    hand.after(10 * LIMIT_S)
    assert hand.given() == []
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1", "a.x#2"]


def test_an_idle_stream_notices_a_lost_tail(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1)
    hand.after(1.6)
    assert hand.said(HowFar, "a") == [HowFar((hand.id_of("a.x"),))]
    hand.frame("a", Far({hand.id_of("a.x"): 2}))
    hand.after(1.0)
    assert hand.last(AskNumbers) == AskNumbers(hand.id_of("a.x"), (2,))


def test_a_lossless_stream_asks_how_far_only_after_an_interruption() -> None:
    hand = Hand(lossless=True).connect()
    hand.stream("a.x")
    hand.after(20.0)
    assert not hand.said(HowFar)
    hand.do(ServiceInterrupted())
    assert hand.said(HowFar) == [HowFar((hand.id_of("a.x"),))]
    hand.frame("a", Far({hand.id_of("a.x"): 0}))
    hand.after(20.0)
    assert len(hand.said(HowFar)) == 1


# ── changes ──────────────────────────────────────────────────────────────────────────────


def test_events_up_to_the_cut_are_not_for_the_stream(hand: Hand) -> None:
    hand.do(WantStream(1, ("a.x", "b.y"), 7))
    hand.answer_queries()
    hand.answer_calls()
    for number in (4, 5, 6):
        hand.arrive("a.x", number)
    assert hand.given() == []
    hand.answer_change(a_x=5, b_y=2)
    assert hand.given() == ["a.x#6"]
    assert hand.out.receipts == [(7, {"a.x": 5, "b.y": 2})]
    assert isinstance(hand.out.told[0], Joined)


def test_a_stream_subscribes_before_it_sends_the_change(hand: Hand) -> None:
    hand.do(WantStream(1, ("a.x", "b.y"), 7))
    hand.answer_queries()
    first, second = hand.out.calls
    hand.do(ServiceDone(first.ticket))
    assert not hand.said(ChangeRequest)
    hand.do(ServiceDone(second.ticket))
    change = hand.last(ChangeRequest, "a")
    assert (change.number, change.topics) == (1, (hand.id_of("a.x"), hand.id_of("b.y")))


def test_a_stream_that_adds_a_topic_stops_until_the_cut(hand: Hand) -> None:
    hand.stream("a.x")
    hand.do(WantAdd(1, 8, "b.y"))
    hand.answer_queries()
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1"], "it goes on while it subscribes"
    hand.answer_calls()
    hand.arrive("a.x", 2)
    assert hand.given() == ["a.x#1"]
    hand.answer_change(a_x=1, b_y=4)
    assert hand.given() == ["a.x#1", "a.x#2"]
    assert hand.out.receipts == [(8, {"a.x": 1, "b.y": 4})]


def test_events_of_an_added_topic_wait_for_the_cut_of_the_others(hand: Hand) -> None:
    hand.stream("a.x", "a.z")
    hand.do(WantAdd(1, 8, "b.y"))
    hand.answer_queries()
    hand.answer_calls()
    hand.answer_change(a_x=2, a_z=1, b_y=4)
    hand.arrive("b.y", 5)
    hand.arrive("a.x", 1)
    hand.arrive("a.z", 1)
    assert hand.given() == ["a.x#1", "a.z#1"]
    hand.arrive("a.x", 2)
    assert hand.given()[2:] == ["a.x#2", "b.y#5"]


def test_it_asks_for_a_cut_that_it_has_not_reached(hand: Hand) -> None:
    hand.stream("a.x")
    hand.do(WantAdd(1, 8, "b.y"))
    hand.answer_queries()
    hand.answer_calls()
    hand.answer_change(a_x=2, b_y=4)
    hand.after(2 * PATIENCE_S)
    assert hand.last(AskNumbers, "a") == AskNumbers(hand.id_of("a.x"), (1, 2))


def test_entries_of_an_added_topic_count_behind_the_cut(hand: Hand) -> None:
    hand.stream("a.x")
    hand.do(WantAdd(1, 8, "b.y"))
    hand.answer_queries()
    hand.answer_calls()
    hand.arrive("a.x", 1, b_y=5)
    hand.answer_change(b_y=4)
    assert hand.given() == []
    hand.arrive("b.y", 5)
    assert hand.given() == ["b.y#5", "a.x#1"]


def test_dropping_does_not_stop_the_other_topics(hand: Hand) -> None:
    hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1, b_y=1)
    assert hand.given() == []
    hand.do(WantDrop(1, 9, "b.y"))
    hand.answer_queries()
    assert hand.last(ChangeRequest).topics == (hand.id_of("a.x"),)
    assert hand.given() == ["a.x#1"], "what waits for the dropped topic goes on"
    hand.arrive("b.y", 1)
    hand.arrive("a.x", 2, b_y=2)
    assert hand.given() == ["a.x#1", "a.x#2"], "sites may know of it: b.y is not ordered any more"
    assert not hand.out.calls
    hand.answer_change(a_x=2)
    assert [call.kind for call in hand.out.calls] == ["unsubscribe"]


def test_changes_are_made_one_at_a_time(hand: Hand) -> None:
    hand.stream("a.x")
    hand.do(WantAdd(1, 8, "b.y"), WantDrop(1, 9, "a.x"))
    hand.answer_queries()
    hand.answer_calls()
    assert [change.number for change in hand.said(ChangeRequest)] == [2]
    hand.answer_change()
    hand.answer_queries()
    assert hand.last(ChangeRequest).number == 3


def test_a_change_is_repeated_after_a_reconnection_until_it_is_answered(hand: Hand) -> None:
    hand.stream("a.x")
    hand.do(WantAdd(1, 8, "b.y"))
    hand.answer_queries()
    hand.answer_calls()
    change = hand.last(ChangeRequest)
    hand.reconnect("a")
    assert hand.said(ChangeRequest) == [change]
    hand.answer_change()
    hand.reconnect("a")
    assert not hand.said(ChangeRequest)


def test_a_change_fails_before_it_begins_if_a_site_is_away() -> None:
    hand = Hand("a", "b", "c").connect()
    hand.stream("a.x")
    hand.do(SiteClosed("b"), WantAdd(1, 8, "c.y"))
    hand.after(6.0)
    ((ticket, problem),) = hand.out.receipts
    assert ticket == 8
    assert isinstance(problem, SitesAway)
    assert "b" in str(problem), "it stands between the two"
    assert not hand.said(ChangeRequest)
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1"]


def test_the_probe_asks_every_site_that_a_change_passes() -> None:
    hand = Hand("a", "b", "c", "d").connect()
    hand.do(WantStream(1, ("a.x", "c.y"), 7))
    asked = [site for site, frame in hand.out.sends if isinstance(frame, TopicQuery)]
    assert asked == ["a", "b", "c"]


def test_a_change_that_the_service_refuses_is_undone(hand: Hand) -> None:
    hand.stream("a.x")
    hand.do(WantAdd(1, 8, "b.y"))
    hand.answer_queries()
    hand.answer_calls("no such thing")
    ((_, problem),) = hand.out.receipts
    assert isinstance(problem, UnavailableError)
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1"]
    hand.do(WantAdd(1, 9, "b.y"))
    hand.answer_queries()
    assert [call.kind for call in hand.out.calls] == ["subscribe"]


def test_a_change_that_its_home_refuses_is_undone(hand: Hand) -> None:
    stream = hand.stream("a.x")
    hand.do(WantAdd(1, 8, "b.y"))
    hand.answer_queries()
    hand.answer_calls()
    hand.frame("a", Changed(stream, 2, {}, "NotOffered", "too many topics"))
    assert isinstance(hand.out.receipts[0][1], NotOffered)
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1"]
    hand.take()
    hand.do(WantAdd(1, 9, "b.y"))
    hand.answer_queries()
    hand.answer_calls()
    assert hand.last(ChangeRequest).number == 2, "nothing has changed"


@pytest.mark.parametrize(
    ("want", "words"),
    [
        (WantAdd(1, 8, "a.x"), "already"),
        (WantDrop(1, 8, "b.y"), "does not have"),
        (WantDrop(1, 8, "a.x"), "close it"),
        (WantAdd(1, 8, "a.*"), "Topic(name, pattern="),
        (WantAdd(1, 8, ""), "1 to"),
        (WantStream(2, ("a.x", "a.x"), 8), "twice"),
        (WantStream(2, (), 8), "at least one"),
    ],
)
def test_misuse_is_refused(hand: Hand, want: WantAdd, words: str) -> None:
    hand.stream("a.x")
    hand.do(want)
    ((ticket, problem),) = hand.out.receipts
    assert ticket == 8
    assert isinstance(problem, TopicRefused)
    assert words in str(problem)


def test_a_closed_stream_ends_at_its_home_and_at_the_service(hand: Hand) -> None:
    stream = hand.stream("a.x")
    hand.do(WantClose(1, 8), WantAdd(1, 9, "b.y"))
    assert hand.said(ChangeRequest) == [ChangeRequest(stream, 2, ())]
    assert [call.kind for call in hand.out.calls] == ["unsubscribe"]
    hand.arrive("a.x", 1)
    assert hand.given() == []
    hand.frame("a", Changed(stream, 2, {}))
    assert hand.out.receipts[-1] == (8, {})
    assert isinstance(dict(hand.out.receipts)[9], ClosedError)
    assert not hand.machine.streams


# ── expiry ───────────────────────────────────────────────────────────────────────────────


def test_a_stream_says_that_it_lives(hand: Hand) -> None:
    stream = hand.stream("a.x")
    hand.after(KEEP_S)
    assert hand.said(Keep, "a")[:1] == [Keep((stream,))]
    assert len(hand.said(Keep)) >= 3
    hand.reconnect("a")
    assert hand.said(Keep) == [Keep((stream,))]


def test_an_expired_stream_joins_anew_and_gives_what_it_holds_tagged(hand: Hand) -> None:
    old = hand.stream("a.x", "b.y")
    hand.arrive("a.x", 1)
    hand.arrive("a.x", 3)
    hand.frame("a", StreamsKept((old,)))
    (gap,) = hand.out.told
    assert isinstance(gap, Gap)
    assert gap.after == {"a.x": 1, "b.y": 0}
    change = hand.last(ChangeRequest, "a")
    assert (change.number, change.stream != old) == (1, True)
    hand.arrive("a.x", 6)
    hand.answer_change(a_x=5, b_y=1)
    assert hand.given() == ["a.x#1", "a.x#3 late", "a.x#6"]
    hand.arrive("a.x", 2)
    hand.arrive("a.x", 3)
    hand.arrive("b.y", 1)
    assert hand.given()[3:] == ["a.x#2 late", "b.y#1 late"]


def test_a_timestamp_tells_a_stream_that_it_has_expired(hand: Hand) -> None:
    old = hand.stream("a.x")
    hand.arrive("a.x", 2, gone=("other", old))
    assert not hand.out.told
    hand.arrive("a.x", 1)
    assert hand.given() == ["a.x#1"]
    topic = hand.id_of("a.x")
    assert hand.last(AskNumbers, "a") == AskNumbers(topic, (2,)), "anybody can write a timestamp"
    hand.frame("a", Told(topic, ((2, OPEN, hand.stamp("a.x", 2, gone=("other", old))),)))
    assert isinstance(hand.out.told[0], Gap)
    hand.answer_change(a_x=1)
    assert hand.given() == ["a.x#1", "a.x#2"], "behind the new cut it is in order"


def test_a_forgotten_number_makes_a_stream_join_anew(hand: Hand) -> None:
    hand.stream("a.x")
    hand.arrive("a.x", 9)
    hand.frame("a", Told(hand.id_of("a.x"), ((1, FORGOTTEN, None),)))
    assert isinstance(hand.out.told[0], Gap)
    hand.answer_change(a_x=10)
    assert hand.given() == ["a.x#9 late"]
    hand.arrive("a.x", 11)
    assert hand.given()[1:] == ["a.x#11"]


def test_a_change_under_way_is_made_after_joining_anew(hand: Hand) -> None:
    stream = hand.stream("a.x")
    hand.do(WantAdd(1, 8, "b.y"))
    hand.answer_queries()
    hand.answer_calls()
    hand.frame("a", Changed(stream, 2, {}, "Expired", ""))
    hand.out.sends = hand.out.sends[-1:]
    hand.answer_change(a_x=3)
    hand.answer_queries()
    change = hand.last(ChangeRequest)
    assert (change.number, len(change.topics)) == (2, 2)
    hand.answer_change(a_x=3, b_y=1)
    assert hand.out.receipts == [(8, {"a.x": 3, "b.y": 1})]


def test_events_come_tagged_when_the_site_that_knows_is_away_for_long(hand: Hand) -> None:
    hand.stream("a.x")
    hand.do(SiteClosed("a"))
    hand.arrive("a.x", 2)
    hand.after(LIMIT_S - 0.5)
    assert hand.given() == []
    hand.after(1.5)
    assert hand.given() == ["a.x#2 late"]
    assert isinstance(hand.out.told[0], Gap)
    hand.arrive("a.x", 4)
    assert hand.given() == ["a.x#2 late", "a.x#4 late"]
    hand.welcome("a")
    hand.answer_change(a_x=2)
    hand.arrive("a.x", 4)
    hand.arrive("a.x", 3)
    hand.arrive("a.x", 5)
    assert hand.given()[2:] == ["a.x#3", "a.x#5"], "4 was given, and is passed in its turn"


def test_a_lossless_stream_waits_for_an_absent_site() -> None:
    hand = Hand(lossless=True).connect()
    hand.stream("a.x")
    hand.do(SiteClosed("a"))
    hand.arrive("a.x", 2)
    hand.after(10 * LIMIT_S)
    assert hand.given() == []
    hand.welcome("a")
    hand.after(2.0)
    assert hand.said(AskNumbers)


def test_a_buffer_that_is_full_is_given_tagged() -> None:
    hand = Hand(limits=StreamLimits(buffer=3)).connect()
    hand.stream("a.x")
    for number in (2, 3, 4, 5):
        hand.arrive("a.x", number)
    assert not hand.given(), "some of them may be forged"
    assert hand.said(HowFar, "a") == [HowFar((hand.id_of("a.x"),))]
    hand.frame("a", Far({hand.id_of("a.x"): 5}))
    assert hand.given() == [f"a.x#{number} late" for number in (2, 3, 4, 5)]
    hand.answer_change(a_x=4)
    hand.arrive("a.x", 1)
    hand.arrive("a.x", 6)
    assert hand.given()[4:] == ["a.x#1 late", "a.x#6"]


def test_joining_anew_without_an_answer_gives_events_tagged_after_the_limit(hand: Hand) -> None:
    old = hand.stream("a.x")
    hand.frame("a", StreamsKept((old,)))
    hand.arrive("a.x", 1)
    hand.after(LIMIT_S - 0.5)
    assert hand.given() == []
    hand.after(1.0)
    assert hand.given() == ["a.x#1 late"]


def test_nothing_wakes_a_client_without_streams(hand: Hand) -> None:
    assert hand.do(Tick()).wake_at == float("inf")
