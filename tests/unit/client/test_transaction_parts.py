"""A client's part in transactions, against hand-made frames."""

from __future__ import annotations

from typing import Any

import pytest

from motet.client.session.machine import ClientMachine
from motet.client.session.state import (
    Concluded,
    Failure,
    Finished,
    Lapsed,
    ReceivedInvitation,
    Resolved,
)
from motet.errors import NoSuchOperation
from motet.model import OpId
from motet.protocol.session.messages import (
    BeginRequest,
    Decided,
    Done,
    EndRequest,
    ExecuteRequest,
    Failed,
    Invited,
    OutcomeRequest,
    Over,
    SubscribeRequest,
    Tag,
    UnsubscribeRequest,
    Welcome,
)
from tests.unit.client.test_machine import F, G, happened, opened, reopen, sent, welcome

TX = "alice/B1-1/1"
TAG = Tag(TX, "00000001")


def begun() -> ClientMachine:
    """alice has begun a transaction, and a subscription of hers is in force."""
    machine = opened()
    machine.request("subscribe", F)
    machine.received(Done(1))
    machine.take()
    return machine


def standing(machine: ClientMachine) -> list[int]:
    return [each.handle for each in machine.requests.in_force()]


def test_a_request_about_a_transaction_is_numbered_like_any_other_and_has_a_value() -> None:
    machine = opened()
    machine.request("advertise", F)
    handle = machine.parts.ask(BeginRequest(0, isolated=False, timeout_s=3.0))
    assert sent(machine)[-1] == BeginRequest(2, isolated=False, timeout_s=3.0)
    machine.received(Done(2, TX))
    assert happened(machine) == [Resolved(handle, None, TX)]


def test_a_refusal_is_an_answer() -> None:
    machine = opened()
    handle = machine.parts.ask(EndRequest(0, TX))
    machine.received(Failed(1, "TransactionOver", "it is over"))
    assert happened(machine) == [Resolved(handle, Failure("TransactionOver", "it is over"))]
    assert standing(machine) == []


def test_an_addition_stays_if_its_transaction_commits() -> None:
    machine = opened()
    handle = machine.parts.request(TAG, "subscribe", F, name="x")
    assert sent(machine) == [SubscribeRequest(1, F, True, 10.0, "x", {}, TAG)]
    machine.received(Done(1))
    machine.received(Decided(TX, 7, True))
    assert happened(machine) == [Resolved(handle, None), Concluded(TX, 7, True, "")]
    assert standing(machine) == [handle]


def test_an_addition_is_removed_if_its_transaction_aborts() -> None:
    machine = opened()
    handle = machine.parts.request(TAG, "subscribe", F)
    machine.received(Done(1))
    machine.take()
    machine.received(Decided(TX, 7, False, "no"))
    machine.received(Over(1))  # for those who do not know
    assert happened(machine) == [
        Concluded(TX, 7, False, "no"),
        Lapsed(handle, Failure("Aborted", "no")),
    ]
    assert standing(machine) == []


def test_a_subscription_ended_in_a_transaction_finishes_when_the_broker_says_so() -> None:
    machine = begun()
    (handle,) = standing(machine)
    machine.parts.request(TAG, "unsubscribe", target=handle)
    assert sent(machine) == [UnsubscribeRequest(2, 1, True, 10.0, TAG)]
    machine.received(Done(2))
    assert standing(machine) == [handle]  # it may still abort
    machine.received(Decided(TX, 7, True))
    assert standing(machine) == []
    machine.take()
    machine.received(Over(1))
    assert happened(machine) == [Finished(handle)]
    machine.received(Over(1))
    assert happened(machine) == []


def test_an_answer_after_the_decision_activates_nothing() -> None:
    machine = opened()
    ended = machine.request("subscribe", F)
    machine.parts.request(TAG, "unsubscribe", target=ended)
    machine.received(Decided(TX, 7, True))  # the connection had broken: this comes first
    machine.received(Done(1))
    machine.received(Done(2))
    assert standing(machine) == []
    with pytest.raises(NoSuchOperation):
        machine.request("unsubscribe", target=ended)
    machine.take()
    machine.received(Over(1))
    assert happened(machine) == [Finished(ended)]


def test_a_subscription_ended_by_a_decision_is_not_renewed() -> None:
    machine = opened()
    ended = machine.request("subscribe", F)
    machine.parts.request(TAG, "unsubscribe", target=ended)
    machine.received(Decided(TX, 7, True))
    machine.take()
    again, _ = reopen(machine, welcome("B1-2"))
    assert again == []


def test_a_subscription_stays_if_the_transaction_that_ends_it_aborts() -> None:
    machine = begun()
    (handle,) = standing(machine)
    machine.parts.request(TAG, "unsubscribe", target=handle)
    machine.received(Done(2))
    machine.received(Decided(TX, 7, False, "no"))
    assert standing(machine) == [handle]


def test_an_operation_cannot_be_removed_twice() -> None:
    machine = begun()
    (handle,) = standing(machine)
    machine.parts.request(TAG, "unsubscribe", target=handle)
    for tag in (TAG, Tag("alice/B1-1/9", "1")):
        with pytest.raises(NoSuchOperation):
            machine.parts.request(tag, "unsubscribe", target=handle)
    with pytest.raises(NoSuchOperation):
        machine.parts.request(TAG, "unsubscribe", target=99)
    own = machine.parts.request(TAG, "subscribe", G)
    machine.parts.request(TAG, "unsubscribe", target=own)  # added and ended in the same one
    with pytest.raises(NoSuchOperation):
        machine.parts.request(TAG, "unsubscribe", target=own)


def test_an_abandoned_addition_is_removed_in_its_transaction() -> None:
    machine = opened()
    handle = machine.parts.request(TAG, "subscribe", F)
    machine.take()
    machine.abandon(handle)
    (undo,) = sent(machine)
    assert isinstance(undo, UnsubscribeRequest)
    assert undo.tag == TAG
    machine.received(Done(1))
    machine.received(Done(2))
    machine.received(Decided(TX, 7, True))
    assert standing(machine) == []


@pytest.mark.parametrize("answered", [False, True])
def test_a_transaction_whose_caller_was_cancelled_is_aborted(answered: bool) -> None:
    machine = opened()
    handle = machine.parts.ask(BeginRequest(0))
    machine.take()
    if not answered:
        machine.abandon(handle)
        assert sent(machine) == []
    machine.received(Done(1, TX))
    if answered:
        assert happened(machine) == [Resolved(handle, None, TX)]
        machine.abandon(handle)  # the caller was cancelled before it read the answer
    (end,) = sent(machine)
    assert isinstance(end, EndRequest)
    assert (end.sequence, end.tx, end.commit) == (2, TX, False)
    machine.abandon(handle)
    machine.received(Done(2))
    assert machine.take() == ([], [])


def test_a_decided_transaction_is_not_aborted_afterwards() -> None:
    machine = opened()
    handle = machine.parts.ask(BeginRequest(0))
    machine.received(Done(1, TX))
    machine.received(Decided(TX, 0, False, "too late"))
    machine.take()
    machine.abandon(handle)
    assert sent(machine) == []


def test_a_repeated_invitation_calls_the_handler_once() -> None:
    machine = opened()
    invited = Invited("bob/B2-1/1", 5.0, "00000001/alice", OpId("bob", "B2-1", 2), b"")
    machine.received(invited)
    machine.received(invited)  # the connection had broken
    assert happened(machine) == [ReceivedInvitation(invited)]
    machine.received(Decided("bob/B2-1/1", 3, False, "no"))
    machine.received(invited)
    assert ReceivedInvitation(invited) in happened(machine)


def test_repeated_answers_change_nothing() -> None:
    machine = begun()
    before = standing(machine)
    machine.received(Decided(TX, 7, True))
    machine.received(Decided(TX, 7, True))
    machine.received(Over(99))
    assert standing(machine) == before
    assert all(isinstance(each, Concluded) for each in happened(machine))


def test_a_subscription_ended_by_an_earlier_process_finishes_for_this_one() -> None:
    machine = begun()
    (handle,) = standing(machine)
    machine.received(Over(1))
    assert happened(machine) == [Finished(handle)]
    assert standing(machine) == []


def test_a_lost_session_takes_open_transactions_with_it() -> None:
    machine = begun()
    (kept,) = standing(machine)
    added = machine.parts.request(TAG, "subscribe", G)
    machine.received(Done(2))
    asked = machine.parts.ask(OutcomeRequest(0, TX))
    machine.take()
    machine.closed()
    machine.opened()
    machine.take()
    machine.received(welcome("B1-2"))
    told: list[Any] = machine.take().happened
    gone = Failure("Aborted", "the session was lost, and the transaction with it")
    assert Concluded(TX, 0, None, gone.text) in told
    assert Lapsed(added, gone) in told
    assert Resolved(asked, gone) in told
    assert set(standing(machine)) == {kept}  # which is renewed


@pytest.mark.parametrize("whole_plan", [False, True])
def test_a_commit_whose_answer_is_lost_is_not_called_aborted(whole_plan: bool) -> None:
    """The outcome is unknown; the error says how to find out."""
    machine = opened("B1-1.1")
    tx = "alice/B1-1.1/1"
    handle = machine.parts.ask(ExecuteRequest(0, ()) if whole_plan else EndRequest(0, tx))
    assert machine.parts.commits(handle) == tx
    late = machine.parts.ask(EndRequest(0, tx, commit=False))
    machine.take()
    machine.closed()
    never_sent = machine.parts.ask(EndRequest(0, "alice/B1-1.1/9"))
    machine.opened()
    machine.received(welcome("B1-1.2"))
    told = {each.handle: each.failure for each in happened(machine) if isinstance(each, Resolved)}
    assert [told[each].error for each in (handle, late, never_sent)] == [
        "OutcomeUnknown",
        "Aborted",
        "Aborted",
    ]
    assert f"client.outcome({tx!r}) returns its outcome" in told[handle].text


def test_a_resumed_session_keeps_its_transactions_and_asks_again() -> None:
    machine = begun()
    asked = machine.parts.ask(EndRequest(0, TX))
    machine.take()
    machine.closed()
    machine.opened()
    machine.take()
    machine.received(Welcome("B1", "B1-1", True, 0, 30.0))
    assert EndRequest(2, TX) in sent(machine)
    machine.received(Decided(TX, 7, True))
    machine.received(Done(2, TX))
    assert Resolved(asked, None, TX) in happened(machine)
