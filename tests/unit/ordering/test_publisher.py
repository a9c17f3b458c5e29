"""The publisher with frames made by hand: sequence, leases, confirmation, repeating."""

from __future__ import annotations

import pytest

from motet.errors import NotPublished, TopicRefused, Voided, WindowFull
from motet.ordering.contract import ServiceDone, SiteClosed, SiteFrame, WantPublish
from motet.ordering.events import OrderReceipt
from motet.protocol.sequencing.messages import (
    OPEN,
    PUBLISHED,
    VOID,
    AskNumbers,
    Confirm,
    GiveBack,
    NumberRequest,
    Numbers,
    RequestsSettled,
    Timestamp,
    Told,
)
from tests.unit.ordering.hand import LEASE_S, Hand


@pytest.fixture
def hand() -> Hand:
    return Hand().connect()


def test_an_event_is_numbered_published_and_confirmed(hand: Hand) -> None:
    hand.publish("a.x", 7)
    assert hand.said(NumberRequest) == [NumberRequest(1, (hand.id_of("a.x"),))]
    assert not hand.out.calls
    hand.number("a", at=5)
    assert hand.published() == [("a.x", [(5, b"p7")])]
    assert not hand.said(Confirm), "the service does not have it"
    hand.answer_calls()
    assert hand.said(Confirm) == [Confirm(1)]
    assert not hand.out.receipts, "its number may have become void"
    hand.frame("a", RequestsSettled(1))
    assert hand.out.receipts == [(7, OrderReceipt("a.x", 5))]


def test_a_number_that_became_void_is_told(hand: Hand) -> None:
    hand.publish("a.x", 7, 8)
    hand.number("a")
    hand.answer_calls()
    hand.frame("a", RequestsSettled(2, (1,)))
    (_, first), (_, second) = hand.out.receipts
    assert isinstance(first, Voided)
    assert second == OrderReceipt("a.x", 2)


def test_events_of_one_turn_travel_as_one_request_and_one_message(hand: Hand) -> None:
    hand.publish("a.x", 1, 2, 3)
    topic = hand.id_of("a.x")
    assert hand.said(NumberRequest) == [NumberRequest(1, (topic, topic, topic))]
    hand.number("a")
    assert hand.published() == [("a.x", [(1, b"p1"), (2, b"p2"), (3, b"p3")])]


def test_messages_stay_below_what_the_service_takes() -> None:
    hand = Hand(most_bytes=1000).connect()
    hand.do(*(WantPublish(ticket, "a.x", bytes(400)) for ticket in range(1, 6)))
    hand.answer_queries()
    hand.number("a")
    assert [len(events) for _, events in hand.published()] == [2, 2, 1]
    hand.do(WantPublish(9, "a.x", bytes(1001)))
    assert isinstance(dict(hand.out.receipts)[9], NotPublished)


def test_what_waits_for_a_slow_service_travels_together(hand: Hand) -> None:
    for ticket in range(1, 8):
        hand.publish("a.x", ticket)
        hand.number("a", at=ticket)
    assert [len(events) for _, events in hand.published()] == [1, 1, 1, 1]
    hand.answer_calls()
    assert [len(events) for _, events in hand.published()] == [3]


def test_one_confirmation_is_under_way_at_a_time(hand: Hand) -> None:
    hand.publish("a.x", 1, 2)
    hand.number("a")
    hand.answer_calls()
    hand.publish("a.x", 3)
    assert hand.last(NumberRequest) == NumberRequest(3, (hand.id_of("a.x"),), 2)
    hand.number("a", at=3)
    hand.answer_calls()
    assert hand.said(Confirm) == [Confirm(2)]
    hand.frame("a", RequestsSettled(2))
    assert hand.said(Confirm) == [Confirm(2), Confirm(3)]


def test_another_site_is_asked_when_all_timestamps_are_answered(hand: Hand) -> None:
    hand.publish("a.x", 1)
    hand.publish("b.y", 2)
    hand.publish("a.x", 3)
    assert not hand.said(NumberRequest, "b")
    hand.number("a")
    assert hand.said(NumberRequest, "b")
    assert len(hand.said(NumberRequest, "a")) == 1, "its own order holds: 3 comes behind 2"
    hand.number("b")
    assert len(hand.said(NumberRequest, "a")) == 2


def test_unanswered_requests_are_repeated_under_their_numbers(hand: Hand) -> None:
    hand.publish("a.x", 1, 2, 3)
    hand.frame("a", Numbers(1, (Timestamp(hand.id_of("a.x"), 1),)))
    hand.reconnect("a", answered=3)
    topic = hand.id_of("a.x")
    assert hand.said(NumberRequest) == [NumberRequest(2, (topic, topic))]


def test_the_last_timestamp_may_come_first_but_publishing_keeps_the_sequence(hand: Hand) -> None:
    hand.publish("a.x", 1, 2)
    topic = hand.id_of("a.x")
    hand.frame("a", Numbers(2, (Timestamp(topic, 2),)))
    assert not hand.published()
    hand.frame("a", Numbers(1, (Timestamp(topic, 1),)))
    assert hand.published() == [("a.x", [(1, b"p1"), (2, b"p2")])]


def test_after_half_the_lease_numbers_are_given_back_and_asked_for_anew(hand: Hand) -> None:
    hand.publish("a.x", 1, 2)
    hand.now += LEASE_S / 2 + 0.1
    hand.number("a", at=1)
    assert not hand.published()
    assert hand.said(GiveBack) == [GiveBack((1, 2))]
    topic = hand.id_of("a.x")
    assert hand.last(NumberRequest) == NumberRequest(3, (topic, topic), 2)
    hand.number("a", at=3)
    assert hand.published() == [("a.x", [(3, b"p1"), (4, b"p2")])]


def test_what_is_behind_a_late_one_is_asked_for_anew_too(hand: Hand) -> None:
    hand.publish("a.x", 1)
    hand.now += LEASE_S / 2 - 0.1
    hand.publish("a.x", 2)
    hand.now += 0.2
    topic = hand.id_of("a.x")
    hand.frame("a", Numbers(1, (Timestamp(topic, 1), Timestamp(topic, 2))))
    assert hand.said(GiveBack) == [GiveBack((1, 2))]
    hand.number("a", at=3)
    assert hand.published() == [("a.x", [(3, b"p1"), (4, b"p2")])]


def test_a_number_that_is_void_when_it_is_answered_is_asked_for_anew(hand: Hand) -> None:
    hand.publish("a.x", 1, 2)
    hand.frame("a", Numbers(1, (None, Timestamp(hand.id_of("a.x"), 2))))
    assert hand.said(GiveBack) == [GiveBack((2,))]
    assert hand.last(NumberRequest).first == 3


def test_the_lease_of_a_request_that_never_arrived_begins_at_the_reconnection(hand: Hand) -> None:
    hand.publish("a.x", 1)
    hand.now += LEASE_S
    hand.reconnect("a", answered=0)
    hand.number("a")
    assert hand.published() == [("a.x", [(1, b"p1")])]


def test_the_lease_of_a_request_that_was_taken_goes_on(hand: Hand) -> None:
    hand.publish("a.x", 1)
    hand.now += LEASE_S / 2 + 0.1
    hand.reconnect("a", answered=1)
    hand.number("a")
    assert hand.said(GiveBack) == [GiveBack((1,))]


def test_numbers_are_given_back_again_after_a_reconnection_and_before_they_are_confirmed(
    hand: Hand,
) -> None:
    hand.publish("a.x", 1)
    hand.number("a")
    hand.answer_calls("refused")
    assert isinstance(hand.out.receipts[0][1], NotPublished)
    assert hand.said(GiveBack) == [GiveBack((1,))]
    hand.reconnect("a", answered=1)
    kinds = [type(frame) for _, frame in hand.out.sends]
    assert kinds.index(GiveBack) < kinds.index(Confirm)
    hand.frame("a", RequestsSettled(1))
    assert len(hand.out.receipts) == 0


def test_a_request_given_back_unanswered_is_repeated_first(hand: Hand) -> None:
    hand.publish("a.x", 1)
    hand.publish("a.x", 2)
    hand.now += LEASE_S / 2 + 0.1
    hand.frame("a", Numbers(1, (Timestamp(hand.id_of("a.x"), 1),)))
    assert hand.said(GiveBack) == [GiveBack((1, 2))]
    hand.reconnect("a", answered=1)
    sent = [frame for _, frame in hand.out.sends if isinstance(frame, NumberRequest | GiveBack)]
    assert isinstance(sent[0], NumberRequest)
    assert sent[0].first == 2
    assert sent[0].confirmed == 0
    assert sent[1] == GiveBack((1, 2))


@pytest.mark.parametrize(("state", "is_void"), [(PUBLISHED, False), (OPEN, False), (VOID, True)])
def test_a_lost_answer_to_a_confirmation_is_asked_for(
    hand: Hand, state: int, is_void: bool
) -> None:
    hand.publish("a.x", 7)
    hand.number("a")
    hand.answer_calls()
    hand.reconnect("a", answered=1)
    assert hand.said(Confirm) == [Confirm(1)]
    hand.frame("a", RequestsSettled(1))
    assert not hand.out.receipts, "the lost answer may have said that it was void"
    topic = hand.id_of("a.x")
    assert hand.said(AskNumbers) == [AskNumbers(topic, (1,))]
    hand.frame("a", Told(topic, ((1, state, None),)))
    assert isinstance(hand.out.receipts[0][1], Voided if is_void else OrderReceipt)


def test_an_instance_that_was_forgotten_goes_on_with_its_next_request(hand: Hand) -> None:
    hand.publish("a.x", 1, 2)
    topic = hand.id_of("a.x")
    hand.frame("a", Numbers(1, (Timestamp(topic, 1), Timestamp(topic, 2))))
    (call,) = hand.out.calls
    hand.publish("a.x", 3)
    hand.frame("a", Numbers(3, (Timestamp(topic, 3),)))
    hand.do(SiteClosed("a"), ServiceDone(call.ticket))
    hand.take()
    hand.publish("a.x", 4)
    hand.welcome("a", answered=0)
    assert hand.said(AskNumbers) == [AskNumbers(topic, (1, 2))]
    hand.frame("a", Told(topic, ((1, VOID, None), (2, PUBLISHED, None))))
    (_, first), (_, second) = hand.out.receipts
    assert isinstance(first, Voided)
    assert second == OrderReceipt("a.x", 2)
    assert hand.last(NumberRequest).first == 4


def test_the_window_is_bounded() -> None:
    hand = Hand(window=2).connect()
    hand.publish("a.x", 1, 2, 3)
    ((ticket, problem),) = hand.out.receipts
    assert ticket == 3
    assert isinstance(problem, WindowFull)
    hand.number("a")
    hand.answer_calls()
    hand.frame("a", RequestsSettled(2))
    hand.publish("a.x", 4)
    assert len(hand.out.receipts) == 3


def test_publishing_waits_for_its_site(hand: Hand) -> None:
    hand.publish("a.x", 1)
    hand.number("a")
    hand.do(SiteClosed("a"))
    hand.publish("a.x", 2)
    assert len(hand.said(NumberRequest)) == 1
    hand.welcome("a", answered=1)
    assert hand.last(NumberRequest).first == 2


def test_sites_are_dialled_when_they_are_needed() -> None:
    hand = Hand("a", "b")
    hand.welcome("a", "")
    hand.publish("b.y", 1)
    assert hand.out.dials == ["b"]
    hand.welcome("b")
    hand.answer_queries()
    assert hand.said(NumberRequest, "b")


def test_what_is_wanted_before_the_first_welcome_is_done_after_it() -> None:
    hand = Hand("a")
    hand.do(WantPublish(1, "a.x", b"p1"))
    assert not hand.out.sends
    hand.welcome("a", "")
    hand.answer_queries()
    assert hand.said(NumberRequest, "a")


def test_wildcards_are_refused_with_the_way_out(hand: Hand) -> None:
    hand.publish("a.>", 1)
    ((_, problem),) = hand.out.receipts
    assert isinstance(problem, TopicRefused)
    assert "Topic(name, pattern='a.>')" in str(problem)


def test_a_topic_that_its_site_refuses_does_not_stop_the_others(hand: Hand) -> None:
    hand.do(WantPublish(1, "a.x", b"p1"), WantPublish(2, "b.y", b"p2"))
    hand.do(SiteClosed("a", "too many topics"))
    ((ticket, _),) = hand.out.receipts
    assert ticket == 1
    hand.answer_queries()
    assert hand.said(NumberRequest, "b")


def test_subjects_of_a_topic_travel_apart(hand: Hand) -> None:
    hand.do(
        WantPublish(1, "a.x", b"p1", "a.x.north"),
        WantPublish(2, "a.x", b"p2", "a.x.south"),
    )
    hand.answer_queries()
    hand.number("a")
    assert hand.published() == [("a.x.north", [(1, b"p1")]), ("a.x.south", [(2, b"p2")])]


def test_a_frame_of_a_connection_that_is_gone_is_ignored(hand: Hand) -> None:
    hand.do(SiteClosed("a"), SiteFrame("a", RequestsSettled(1)))
    assert not hand.out.receipts
