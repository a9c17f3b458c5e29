"""Changes that meet the end of their stream, or are tried again: each wait has an answer."""

from __future__ import annotations

import pytest

from motet.errors import ClosedError, SitesAway
from motet.ordering.contract import (
    ServiceInterrupted,
    SiteClosed,
    WantAdd,
    WantClose,
    WantDrop,
    WantStream,
)
from motet.protocol.sequencing.messages import ChangeRequest, StreamsKept, TopicQuery
from tests.unit.ordering.hand import Hand


@pytest.fixture
def hand() -> Hand:
    return Hand().connect()


def test_what_is_wanted_of_a_stream_that_cannot_be_opened_is_refused(hand: Hand) -> None:
    hand.do(SiteClosed("b"))
    hand.do(WantStream(1, ("b.y",), 1), WantAdd(1, 2, "a.x"), WantClose(1, 3))
    hand.after(6.0)
    results = dict(hand.out.receipts)
    assert isinstance(results[1], SitesAway)
    assert isinstance(results[2], ClosedError)
    assert results[3] == {}
    assert not hand.machine.streams


def test_a_stream_that_expires_before_it_is_closed_ends_at_once(hand: Hand) -> None:
    stream = hand.stream("a.x", "b.y")
    hand.do(WantDrop(1, 2, "b.y"), WantClose(1, 3))
    hand.answer_queries()
    hand.frame("a", StreamsKept((stream,)))
    results = dict(hand.out.receipts)
    assert isinstance(results[2], ClosedError)
    assert results[3] == {}
    assert not hand.machine.streams
    assert {call.kind for call in hand.out.calls} == {"unsubscribe"}


def test_a_stream_may_end_while_others_hear_of_an_interruption(hand: Hand) -> None:
    hand.stream("a.x", key=2)
    hand.do(SiteClosed("b"))
    hand.do(WantStream(1, ("b.y",), 1))
    hand.now += 6.0
    hand.do(ServiceInterrupted())
    assert list(hand.machine.streams) == [2]


def test_a_change_tried_again_does_not_wait_for_its_first_subscription(hand: Hand) -> None:
    """The topic becomes effective at the service while the stream joins anew."""
    stream = hand.stream("a.x")
    hand.do(WantAdd(1, 2, "b.y"))
    hand.answer_queries()
    hand.frame("a", StreamsKept((stream,)))
    hand.answer_calls()
    hand.answer_change(a_x=4)
    hand.answer_queries()
    assert hand.last(ChangeRequest).topics == (hand.id_of("a.x"), hand.id_of("b.y"))
    hand.answer_change(a_x=4)
    assert dict(hand.out.receipts)[2] == {"a.x": 4, "b.y": 0}


def test_a_drop_under_way_is_sent_again_after_joining_anew(hand: Hand) -> None:
    stream = hand.stream("a.x", "b.y")
    hand.do(WantDrop(1, 2, "b.y"))
    hand.answer_queries()
    hand.out.sends.clear()
    hand.frame("a", StreamsKept((stream,)))
    assert hand.last(ChangeRequest).topics == (hand.id_of("a.x"),)
    hand.answer_change()
    hand.answer_queries()
    hand.answer_change()
    assert dict(hand.out.receipts)[2] == {"a.x": 0}


def test_a_topic_is_asked_for_once_while_its_site_has_not_said_welcome(hand: Hand) -> None:
    hand.do(SiteClosed("b"))
    hand.publish("b.y", 7)
    hand.after(3.0)
    hand.welcome("b")
    assert hand.said(TopicQuery, "b") == [TopicQuery(("b.y",))]
