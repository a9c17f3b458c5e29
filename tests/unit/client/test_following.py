"""The client's machine does its part of a plan in one request."""

from __future__ import annotations

from motet.client.happenings import Lapsed, Resolved
from motet.protocol.session.messages import (
    Decided,
    Done,
    Failed,
    FollowRequest,
    SubscribeRequest,
    UnsubscribeRequest,
)
from tests.unit.client.test_machine import F, G, happened, opened, reopen, sent, welcome

TX = "zoe/B1-9/1"


def test_additions_have_the_numbers_before_it() -> None:
    machine = opened()
    held = machine.request("subscribe", F)
    machine.received(Done(1))
    machine.take()
    added, own = machine.follow(TX, [("subscribe", G, "g")], [("unsubscribe", held)], 5.0)
    assert sent(machine) == [FollowRequest(3, TX, 1, (1,), 5.0)]
    # One answer is for all of it
    machine.received(Done(3))
    assert happened(machine) == [Resolved(own, None)]
    assert [each.handle for each in machine.standing()] == [held, added]
    # And the decision ends what was to end
    machine.received(Decided(TX, 1, True))
    assert [each.handle for each in machine.standing()] == [added]
    # What was added is taken back by its own number
    machine.take()
    machine.request("unsubscribe", target=added)
    assert sent(machine) == [UnsubscribeRequest(4, 2, True, 10.0)]


def test_what_is_refused_was_never_added() -> None:
    machine = opened()
    *_, own = machine.follow(TX, [("subscribe", F, "f"), ("advertise", G, "g")], [], 5.0)
    machine.received(Failed(3, "NotOffered", "no"))
    (resolved,) = happened(machine)
    assert resolved.handle == own
    assert resolved.failure.error == "NotOffered"
    assert machine.standing() == []


def test_it_is_sent_again_as_one() -> None:
    machine = opened()
    machine.follow(TX, [("subscribe", F, "f")], [], 5.0)
    machine.request("subscribe", G)
    machine.take()
    again, _ = reopen(machine, welcome(resumed=True))
    assert [type(frame) for frame in again] == [FollowRequest, SubscribeRequest]
    assert [frame.sequence for frame in again] == [2, 3]


def test_with_the_session_it_is_void() -> None:
    machine = opened()
    added, own = machine.follow(TX, [("subscribe", F, "f")], [], 5.0)
    machine.take()
    again, told = reopen(machine, welcome("B1-2"))
    assert again == []
    assert machine.standing() == []
    assert [each.handle for each in told if isinstance(each, Lapsed)] == [added]
    assert [each.handle for each in told if isinstance(each, Resolved)] == [own]


def test_what_has_committed_before_the_answer_is_asked_for_in_the_next_session() -> None:
    machine = opened()
    machine.follow(TX, [("subscribe", F, "f")], [], 5.0)
    machine.received(Decided(TX, 1, True))
    machine.take()
    again, _ = reopen(machine, welcome("B1-2"))
    assert again == [SubscribeRequest(1, F, True, 5.0, "f")]


def test_what_has_aborted_before_the_answer_does_not_stand() -> None:
    machine = opened()
    machine.follow(TX, [("subscribe", F, "f")], [], 5.0)
    machine.received(Decided(TX, 1, False, "no"))
    machine.received(Done(2))
    assert machine.standing() == []
