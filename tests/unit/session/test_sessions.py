"""The session machine alone."""

from __future__ import annotations

import pytest

from motet.errors import InvariantError, ProtocolError
from motet.model import Filter
from motet.protocol.session.machine import LAST_RANK, REMEMBERED_FAILURES, Sessions
from motet.protocol.session.messages import Done, Failed, SubscribeRequest
from motet.protocol.session.state import Session


def request(sequence: int) -> SubscribeRequest:
    return SubscribeRequest(sequence, Filter.parse("true"))


def test_epochs_count_up_and_name_the_life_of_their_broker() -> None:
    sessions = Sessions("B1", incarnation=40)
    assert [sessions.open(c).epoch for c in "ab"] == ["B1-40.1", "B1-40.2"]


def test_a_client_that_comes_back_to_a_broker_without_memory_keeps_its_number() -> None:
    sessions = Sessions("B1", incarnation=40)
    assert sessions.open("a", resume="B1-39.7").epoch == "B1-40.7"
    assert sessions.open("b", resume="B1-39.3").epoch == "B1-40.8", "none is issued twice"
    assert sessions.open("c", resume="B1-39.8").epoch == "B1-40.9"
    assert sessions.open("d").epoch == "B1-40.10"


@pytest.mark.parametrize("claim", [f"B1-39.{LAST_RANK + 1}", "B1-39." + "9" * 30, "", "x"])
def test_a_claimed_epoch_cannot_exhaust_the_numbers(claim: str) -> None:
    assert Sessions("B1", 40).open("a", resume=claim).epoch == "B1-40.1"


def test_an_epoch_is_newer_than_all_that_its_broker_has_heard_of() -> None:
    sessions = Sessions("B1", incarnation=40)
    sessions.heard("B2-7.31")
    sessions.heard("B3-900.5")
    sessions.heard("no epoch at all")
    assert sessions.open("a").epoch == "B1-40.32"


def test_a_client_has_one_session() -> None:
    sessions = Sessions("B1", 1)
    sessions.open("a")
    with pytest.raises(InvariantError):
        sessions.open("a")


def test_a_request_is_new_once() -> None:
    sessions = Sessions("B1", 1)
    session = sessions.open("a")
    assert sessions.is_new(session, request(1))
    sessions.accept(session, request(1))
    assert not sessions.is_new(session, request(1))
    with pytest.raises(ProtocolError, match="request 3 of a follows 1"):
        sessions.is_new(session, request(3))


def test_an_answer_is_given_once_and_again_on_request() -> None:
    sessions = Sessions("B1", 1)
    session = sessions.open("a")
    for sequence in (1, 2):
        sessions.accept(session, request(sequence))
    assert sessions.answer_again(session, 1) is None, "there is none yet"
    assert sessions.answer(session, Done(1))
    assert not sessions.answer(session, Failed(1, "X", "too late"))
    assert sessions.answer(session, Failed(2, "X", "no"))
    assert sessions.answer_again(session, 1) == Done(1)
    assert sessions.answer_again(session, 2) == Failed(2, "X", "no")


def test_remembered_failures_are_bounded() -> None:
    sessions = Sessions("B1", 1)
    session = sessions.open("a")
    for sequence in range(1, REMEMBERED_FAILURES + 100):
        sessions.accept(session, request(sequence))
        sessions.answer(session, Failed(sequence, "X", ""))
    assert len(session.failures) == REMEMBERED_FAILURES


def test_a_copied_session_shares_nothing_that_can_change() -> None:
    session = Session("alice", "A-1.1")
    again = session.copied()
    assert again == session
    shared = [
        name
        for name in Session.__struct_fields__
        if isinstance(getattr(session, name), dict | list | set)
        and getattr(again, name) is getattr(session, name)
    ]
    assert shared == []
    session.done[1], session.since[2] = {"A.1": 5}, {"B.1": 6}
    again = session.copied()
    again.done[1]["A.1"] = again.since[2]["B.1"] = 9
    assert (session.done, session.since) == ({1: {"A.1": 5}}, {2: {"B.1": 6}})
