"""The client's machine lets its broker do its part of plans, and applies the decisions."""

from __future__ import annotations

from msgspec import Raw

from motet.client.session.machine import ClientMachine
from motet.client.session.state import (
    Concluded,
    Finished,
    Operation,
    ReceivedInvitation,
    Resolved,
    StreamBatch,
)
from motet.protocol.delivery.messages import Delivered
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    ConsentRequest,
    Decided,
    Done,
    ExecuteRequest,
    Failed,
    Over,
    StandingEntry,
    SubscribeRequest,
    UnsubscribeRequest,
    Welcome,
)
from motet.protocol.session.state import GRANTED
from tests.unit.client.test_machine import F, G, happened, opened, reopen, sent, welcome

TX, T2 = "zoe/B1-9/1", "zoe/B1-9/2"
FIRST = GRANTED + 1
BEGUN = StandingEntry(FIRST, "subscribe", "g", G)
OFFER = StandingEntry(GRANTED + 2, "advertise", "offer", F)


def willing() -> ClientMachine:
    """Its broker may do its part; one subscription is in force, as number 2."""
    machine = opened()
    machine.parts.ask(ConsentRequest(0, 5.0))
    machine.request("subscribe", F)
    for number in (1, 2):
        machine.received(Done(number))
    machine.take()
    return machine


def delivered(*ticks: int, number: int = FIRST) -> Delivered:
    batch = [Publication("p", tick, Raw(b"")) for tick in ticks]
    return Delivered("P.1", ticks[-1], list(ticks), batch, (number,))


def brought(machine: ClientMachine) -> list[tuple[int, ...]]:
    """The ticks that have arrived, each with the handles that it is for."""
    told = [each for each in happened(machine) if isinstance(each, StreamBatch)]
    return [(tick, *each.every) for each in told for tick in each.ticks]


def standing(machine: ClientMachine) -> list[tuple[str, int]]:
    return [(each.kind, each.sequence) for each in machine.requests.in_force()]


def begun(machine: ClientMachine) -> list[Operation]:
    told = [each for each in happened(machine) if isinstance(each, Concluded)]
    return [operation for each in told for operation in each.began]


# ── consent ──────────────────────────────────────────────────────────────────────────────


def test_consent_is_numbered_and_answered_as_a_request() -> None:
    machine = opened()
    handle = machine.parts.ask(ConsentRequest(0, 5.0))
    assert sent(machine) == [ConsentRequest(1, 5.0)]
    machine.received(Done(1))
    assert happened(machine) == [Resolved(handle, None)]
    assert machine.requests.in_force() == []


def test_a_new_session_renews_consent_after_its_subscriptions() -> None:
    again, _ = reopen(willing(), welcome("B1-2"))
    assert [type(frame) for frame in again] == [SubscribeRequest, ConsentRequest]
    assert [frame.sequence for frame in again] == [1, 2]


def test_a_renewed_consent_reports_no_answer() -> None:
    machine = willing()
    reopen(machine, welcome("B1-2"))
    machine.received(Done(1))
    machine.take()
    machine.received(Done(2))
    assert happened(machine) == []
    again, _ = reopen(machine, welcome("B1-3"))
    assert [type(frame) for frame in again] == [SubscribeRequest, ConsentRequest]


def test_a_resumed_session_does_not_renew_consent() -> None:
    again, _ = reopen(willing(), welcome(resumed=True))
    assert again == []


def test_a_consent_under_way_is_sent_again_once_and_answered() -> None:
    machine = opened()
    handle = machine.parts.ask(ConsentRequest(0, 5.0))
    machine.take()
    again, told = reopen(machine, welcome("B1-2"))
    assert again == [ConsentRequest(1, 5.0)]
    assert not [each for each in told if isinstance(each, Resolved)]
    machine.received(Done(1))
    assert happened(machine) == [Resolved(handle, None)]


def test_a_client_without_consent_renews_none() -> None:
    machine = opened()
    machine.request("subscribe", F)
    machine.take()
    again, _ = reopen(machine, welcome("B1-2"))
    assert [type(frame) for frame in again] == [SubscribeRequest]


# ── what a plan has put in force ─────────────────────────────────────────────────────────


def test_an_operation_begun_by_a_plan_has_the_number_given_by_the_broker() -> None:
    machine = willing()
    machine.received(Decided(TX, 7, True, "", (BEGUN, OFFER)))
    (told,) = happened(machine)
    assert isinstance(told, Concluded)
    assert (told.tx, told.number, told.committed) == (TX, 7, True)
    assert [(each.kind, each.filter, each.name) for each in told.began] == [
        ("subscribe", G, "g"),
        ("advertise", F, "offer"),
    ]
    assert standing(machine) == [("subscribe", 2), ("subscribe", FIRST), ("advertise", FIRST + 1)]
    machine.received(delivered(5))
    assert brought(machine) == [(5, told.began[0].handle)]


def test_an_operation_begun_by_a_plan_is_removed_by_its_number() -> None:
    machine = willing()
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    (operation,) = begun(machine)
    machine.request("unsubscribe", target=operation.handle)
    assert sent(machine) == [UnsubscribeRequest(3, FIRST, True, 10.0)]
    machine.received(Done(3))
    assert standing(machine) == [("subscribe", 2)]


def test_an_operation_begun_by_a_plan_is_requested_again_in_a_new_session() -> None:
    machine = willing()
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    machine.take()
    again, _ = reopen(machine, welcome("B1-2"))
    assert [type(frame) for frame in again] == [SubscribeRequest, SubscribeRequest, ConsentRequest]
    assert (again[1].filter, again[1].name) == (G, "g")


def test_a_decision_repeated_after_a_reconnect_changes_nothing() -> None:
    machine = willing()
    told = Decided(TX, 7, True, "", (BEGUN, OFFER), (2,))
    machine.received(told)
    assert len(begun(machine)) == 2
    before = standing(machine)
    reopen(machine, welcome(resumed=True))
    machine.received(told)
    assert begun(machine) == []
    assert standing(machine) == before == [("subscribe", FIRST), ("advertise", FIRST + 1)]


def test_a_repeated_decision_does_not_begin_operations_that_are_being_removed() -> None:
    machine = willing()
    told = Decided(TX, 7, True, "", (BEGUN, OFFER))
    machine.received(told)
    subscription, offer = begun(machine)
    machine.request("unsubscribe", target=subscription.handle)
    machine.request("unadvertise", target=offer.handle)
    machine.take()
    reopen(machine, welcome(resumed=True))
    machine.received(told)
    assert begun(machine) == []
    assert standing(machine) == [("subscribe", 2)]


def test_a_decision_lost_with_the_connection_is_received_again() -> None:
    machine = willing()
    reopen(machine, welcome(resumed=True))
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    assert [operation.sequence for operation in begun(machine)] == [FIRST]


# ── what a plan has ended ────────────────────────────────────────────────────────────────


def test_a_subscription_ended_by_a_plan_finishes_when_the_broker_says_so() -> None:
    machine = willing()
    (held,) = machine.requests.in_force()
    machine.received(Decided(TX, 7, True, "", (), (2,)))
    (told,) = happened(machine)
    assert isinstance(told, Concluded)
    assert told.ended == (held.handle,)
    assert machine.requests.in_force() == []
    machine.received(delivered(5, number=2))  # it was owed
    assert brought(machine) == [(5, held.handle)]
    machine.received(Over(2))
    assert happened(machine) == [Finished(held.handle)]
    machine.received(Over(2))
    assert happened(machine) == []


def test_a_plan_ends_operations_begun_by_another_plan() -> None:
    machine = willing()
    machine.received(Decided(TX, 7, True, "", (BEGUN, OFFER)))
    subscription, offer = begun(machine)
    machine.received(Decided(T2, 8, True, "", (), (FIRST, FIRST + 1)))
    (told,) = happened(machine)
    assert told.ended == (subscription.handle, offer.handle)
    assert standing(machine) == [("subscribe", 2)]
    machine.received(Over(FIRST))
    assert happened(machine) == [Finished(subscription.handle)]


def test_a_repeated_decision_does_not_end_a_finished_subscription_twice() -> None:
    machine = willing()
    told = Decided(TX, 7, True, "", (), (2,))
    machine.received(told)
    machine.received(Over(2))
    machine.take()
    reopen(machine, welcome(resumed=True))
    machine.received(told)
    machine.received(Over(2))
    assert happened(machine) == [Concluded(TX, 7, True, "")]


def test_a_subscription_ended_before_its_answer_is_not_active() -> None:
    machine = opened()
    machine.parts.ask(ConsentRequest(0))
    machine.request("subscribe", F)
    machine.received(Done(1))
    machine.received(Decided(TX, 7, True, "", (), (2,)))
    machine.received(Done(2))
    assert machine.requests.in_force() == []


def test_unsubscribing_fails_if_a_plan_ends_the_subscription_first() -> None:
    machine = willing()
    (held,) = machine.requests.in_force()
    machine.request("unsubscribe", target=held.handle)
    machine.received(Decided(TX, 7, True, "", (), (2,)))
    machine.received(Failed(3, "InTransaction", "a transaction ends it"))
    assert machine.requests.in_force() == []


def test_an_unanswered_subscription_that_cannot_be_removed_is_answered_in_a_new_session() -> None:
    """Its removal fails because it is part of a transaction; then the session is lost."""
    machine = opened()
    asked = machine.request("subscribe", F)
    machine.request("unsubscribe", target=asked)
    machine.received(Failed(2, "InTransaction", "a transaction ends it"))
    machine.take()
    (again,), _ = reopen(machine, welcome("B1-10"))
    assert isinstance(again, SubscribeRequest)
    machine.received(Done(again.sequence))
    assert Resolved(asked, None) in happened(machine)


# ── deliveries that overtake the decision ────────────────────────────────────────────────


def test_a_delivery_that_overtakes_the_decision_waits_for_it() -> None:
    machine = willing()
    machine.received(delivered(5))
    machine.received(delivered(6))
    assert brought(machine) == []
    assert machine.streams.received.get("P.1", 0) == 0
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    (_, handle) = (o.handle for o in machine.requests.in_force())
    assert brought(machine) == [(5, handle), (6, handle)]


def test_the_decision_is_heard_before_the_events() -> None:
    machine = willing()
    machine.received(delivered(5))
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    assert [type(each) for each in happened(machine)] == [Concluded, StreamBatch]


def test_deliveries_after_one_that_waits_for_a_decision_wait_too() -> None:
    machine = willing()
    (held,) = machine.requests.in_force()
    machine.received(delivered(5))
    machine.received(delivered(6, number=2))
    assert brought(machine) == []
    machine.received(Decided(T2, 6, True))  # another one
    assert brought(machine) == []
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    assert [tick for tick, _ in brought(machine)] == [5, 6]
    machine.received(delivered(7, number=2))
    assert brought(machine) == [(7, held.handle)]


def test_frames_that_belong_together_wait_together() -> None:
    machine = willing()
    first = delivered(5, number=2)
    machine.received(Delivered("P.1", 5, first.ticks, first.batch, (2,), more=True))
    machine.received(delivered(6))
    assert brought(machine) == []
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    assert [tick for tick, _ in brought(machine)] == [5, 6]


def test_a_waiting_delivery_is_received_again_after_a_reconnect() -> None:
    machine = willing()
    machine.received(delivered(5))
    reopen(machine, welcome(resumed=True))
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    assert brought(machine) == []
    machine.received(delivered(5))
    assert [tick for tick, _ in brought(machine)] == [5]


def test_the_coordinator_of_a_plan_holds_early_deliveries() -> None:
    machine = opened()
    machine.parts.ask(ExecuteRequest(0, (("alice", ()),)))
    machine.received(delivered(5))
    assert brought(machine) == []
    machine.received(Decided("alice/B1-1/1", 7, True, "", (BEGUN,)))
    assert [tick for tick, _ in brought(machine)] == [5]


def test_a_delivery_to_a_subscription_being_removed_does_not_wait() -> None:
    machine = willing()
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    (operation,) = begun(machine)
    machine.request("unsubscribe", target=operation.handle)
    machine.received(delivered(5))
    assert brought(machine) == [(5, operation.handle)]


# ── a later process of a durable client ──────────────────────────────────────────────────


def test_a_later_process_finds_what_a_plan_has_left() -> None:
    machine = ClientMachine("alice", instance="two", keep_s=60.0)
    machine.opened()
    left = Welcome("B1", "B1-1", True, 0, 30.0, requests=4, standing=(BEGUN,))
    machine.received(left)
    machine.take()
    assert standing(machine) == [("subscribe", FIRST)]
    machine.received(Decided(TX, 7, True, "", (BEGUN,)))
    assert begun(machine) == []
    machine.parts.ask(ConsentRequest(0, 5.0))
    assert sent(machine) == [ConsentRequest(5, 5.0)]


def test_a_plan_calls_no_invitation_handler() -> None:
    machine = willing()
    machine.received(Decided(TX, 7, True, "", (BEGUN,), (2,)))
    assert not [each for each in happened(machine) if isinstance(each, ReceivedInvitation)]
