"""The session machine alone."""

from __future__ import annotations

import pytest

from motet.errors import InvariantError, ProtocolError
from motet.model import Filter
from motet.protocol.session.machine import REMEMBERED_FAILURES, Sessions
from motet.protocol.session.messages import Done, Failed, SubscribeRequest


def request(sequence: int) -> SubscribeRequest:
    return SubscribeRequest(sequence, Filter.parse("true"))


def test_epochs_count_up_from_the_incarnation() -> None:
    sessions = Sessions("B1", incarnation=40)
    assert [sessions.open(c).epoch for c in "ab"] == ["B1-41", "B1-42"]


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
