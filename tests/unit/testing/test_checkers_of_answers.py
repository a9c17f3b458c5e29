"""Answers and sessions: each can be content, and each can object."""

from __future__ import annotations

import pytest

from motet.audit.records import OperationRecord, Stay
from motet.testing.checkers import answers, sessions
from motet.testing.history import Call
from tests.unit.testing.past import Past


def call(past: Past, *said: str) -> Call:
    made = Call("alice", 0, 1, "subscribe", 1.0, [(2.0, word) for word in said])
    past.history.calls.append(made)
    return made


def test_one_answer_to_a_request_is_no_violation() -> None:
    past = Past()
    call(past, "Done")
    verdict = answers.check(past.history)
    assert (verdict.checked, verdict.violations) == (2, [])


def test_two_answers_to_a_request_are_a_violation() -> None:
    past = Past()
    call(past, "Done", "Done")
    assert "was answered [(2.0, 'Done')" in answers.check(past.history).violations[0]


def test_a_missing_answer_is_a_violation() -> None:
    past = Past()
    call(past)
    assert "was never answered" in answers.check(past.history).violations[0]


def test_a_missing_answer_to_a_killed_client_is_no_violation() -> None:
    past = Past()
    call(past)
    past.history.departed.add(0)
    assert not answers.check(past.history).violations


@pytest.mark.parametrize("fate", ["accepted", "refused", "unknown"])
def test_a_publication_with_a_result_is_no_violation(fate: str) -> None:
    past = Past()
    past.publish(past.session("alice", "A"), 1.0, fate)
    assert not answers.check(past.history).violations


def test_a_publication_without_a_result_is_a_violation() -> None:
    past = Past()
    past.publish(past.session("alice", "A"), 1.0, "")
    assert "the result of event 0" in answers.check(past.history).violations[0]


def late(past: Past, *missing: str, timeout_s: float = 3.0) -> OperationRecord:
    return past.ask(
        past.session("alice", "A"),
        "subscribe",
        "x = 1",
        1.0,
        answer="NotEffective",
        answered_at=1.0 + timeout_s,
        missing=missing,
        timeout_s=timeout_s,
    )


def test_a_timeout_must_name_a_broker() -> None:
    past = Past()
    late(past)
    assert "names no broker" in answers.check(past.history).violations[0]


def test_a_timeout_may_name_the_broker_to_which_its_client_has_moved() -> None:
    past = Past()
    session = late(past, "B").session
    past.history.disturbed["B"].touch(1.0, 4.0)
    session.stays = [Stay("A", until=3.5), Stay("B", 3.4)]
    assert not answers.check(past.history).violations
    session.stays = [Stay("A", until=0.5), Stay("B", 0.4)]
    assert "not all other brokers" in answers.check(past.history).violations[0]


@pytest.mark.parametrize("name", ["A", "Z"])
def test_a_timeout_must_name_other_brokers(name: str) -> None:
    past = Past()
    late(past, name)
    assert "which are not all other brokers" in answers.check(past.history).violations[0]


def test_a_timeout_that_names_a_faultless_broker_is_a_violation() -> None:
    past = Past()
    late(past, "B")
    assert "which had no fault" in answers.check(past.history).violations[0]


@pytest.mark.parametrize("place", ["B", "C", ("A", "B"), ("B", "C")])
def test_trouble_at_or_beyond_the_named_broker_excuses_a_timeout(
    place: str | tuple[str, str],
) -> None:
    past = Past()
    late(past, "B")
    past.history.disturbed[place].touch(2.0, 4.0)
    assert not answers.check(past.history).violations


def test_trouble_that_ended_long_before_excuses_no_timeout() -> None:
    past = Past()
    late(past, "B")
    past.history.disturbed["B"].touch(1.0, 2.0)
    assert answers.check(past.history).violations


def test_a_clock_jump_excuses_a_timeout() -> None:
    past = Past()
    late(past, "B")
    past.history.jumps["A"].touch(2.0, 2.0)
    assert not answers.check(past.history).violations


def test_a_timeout_shorter_than_the_way_is_a_reason() -> None:
    past = Past()
    late(past, "B", timeout_s=0.02)
    assert not answers.check(past.history).violations


@pytest.mark.parametrize(("place", "is_reason"), [("B", True), ("C", False)])
def test_only_an_unsure_broker_before_the_named_one_excuses_a_timeout(
    place: str, is_reason: bool
) -> None:
    """B asks C again when it is sure of what lies behind its other neighbours."""
    past = Past()
    late(past, "C")
    past.history.unsure[place].touch(1.5, 3.9)
    assert bool(answers.check(past.history).violations) is not is_reason


def test_an_unsure_broker_that_was_sure_long_before_excuses_no_timeout() -> None:
    past = Past()
    late(past, "C")
    past.history.unsure["B"].touch(1.0, 2.0)
    assert answers.check(past.history).violations


@pytest.mark.parametrize("answer", ["TimedOut", "Aborted"])
def test_a_transaction_that_cannot_begin_needs_a_reason(answer: str) -> None:
    past = Past()
    past.history.calls.append(Call("alice", 0, 1, "begin", 1.0, [(9.0, answer)]))
    assert "nothing was disturbed" in answers.check(past.history).violations[0]
    past.history.disturbed["B"].touch(2.0, 2.5)
    assert not answers.check(past.history).violations


def test_a_transaction_may_be_given_up_by_a_client_without_patience() -> None:
    past = Past()
    past.history.calls.append(Call("alice", 0, 1, "begin", 1.0, [(1.1, "TimedOut")]))
    assert not answers.check(past.history).violations


def test_every_session_has_its_epoch() -> None:
    past = Past()
    past.session("alice", "A")
    past.session("bob", "A")
    verdict = sessions.check(past.history)
    assert (verdict.checked, verdict.violations) == (4, [])


def test_an_epoch_that_two_clients_have() -> None:
    past = Past()
    past.session("alice", "A", epoch="A-1")
    past.session("bob", "A", epoch="A-1")
    assert "epoch A-1 belongs to" in sessions.check(past.history).violations[0]


def test_two_clients_with_one_name() -> None:
    past = Past()
    past.session("alice", "A")
    past.session("alice", "A")
    assert "alice has two sessions" in sessions.check(past.history).violations[0]
