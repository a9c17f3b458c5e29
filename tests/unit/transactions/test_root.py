"""The root decides once and in one order, and reports its decisions."""

from __future__ import annotations

import pytest

from motet.model import Filter, Hop
from motet.protocol.routing.messages import PubendHere
from motet.protocol.session.messages import BeginRequest, Done, ExecuteRequest, OutcomeRequest
from motet.protocol.transactions import root
from motet.protocol.transactions.courier import Abandoned, Unanswered, text_of, timer_key
from motet.protocol.transactions.messages import (
    Ask,
    Begun,
    Decide,
    Echoed,
    Effective,
    Engaged,
    Open,
    Opening,
    Prepare,
    SameKey,
    Settle,
    Submit,
    Tell,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.root import KEPT_S
from tests.unit.transactions.broker_a import SPACE, BrokerA, body, op, part

T1, T2, T3 = (f"dora/D-1.1/{number}" for number in (1, 2, 3))
ELSEWHERE = Filter.parse("y > 0")


def decided(broker_a: BrokerA, neighbour: str = "C") -> list[tuple[str, int, bool]]:
    told = [each for each in broker_a.to(neighbour) if isinstance(each, Decide)]
    return [(each.tx, each.number, each.committed) for each in told]


# ── one order ────────────────────────────────────────────────────────────────────────────


def test_decisions_are_numbered_in_the_order_of_their_arrival() -> None:
    broker_a = BrokerA()
    for tx in (T2, T1, T3):
        broker_a.submits(tx)
    assert decided(broker_a) == [(T2, 1, True), (T1, 2, True), (T3, 3, True)]
    assert decided(broker_a, "B") == [(T2, 1, True), (T1, 2, True), (T3, 3, True)]


def test_a_root_without_state_adopts_decisions_known_to_a_neighbour() -> None:
    """Others have cut for it: it must not be aborted now."""
    broker_a = BrokerA()
    begun = (Begun(op("dora", 1, "D"), SPACE, "1"),)
    broker_a.hears(Decide(T1, 7, True, "", begun), "B")
    broker_a.gets(Withdraw(T1, "D", "not complete within 10 s"))
    broker_a.submits(T2)
    assert decided(broker_a) == [(T1, 7, True), (T2, 8, True)]
    assert broker_a.to("B")[0] == Decide(T1, 7, True, "", begun)  # and it is to echo it
    for neighbour in ("B", "C"):
        broker_a.hears(Echoed(T1, "decide"), neighbour)
    assert Settle(T1) in broker_a.to("C")
    broker_a.said.clear()
    broker_a.hears(Decide(T1, 7, True, "", begun), "B")  # told again by a link that begins anew
    assert not broker_a.said


def test_active_decisions_are_sent_to_a_rejoining_root() -> None:
    broker_a = BrokerA(root="B")
    broker_a.hears(Decide(T1, 7, True, ""), "B")
    broker_a.said.clear()
    broker_a.machine.join("B")
    broker_a.machine.join("C")
    broker_a.carry_out()
    assert broker_a.to("B") == broker_a.to("C") == [Decide(T1, 7, True, "")]
    assert list(broker_a.machine.decisions.state.active[T1].missing) == ["C"]


def test_a_transaction_is_settled_when_all_brokers_have_echoed() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1)
    broker_a.hears(Echoed(T1, "decide"), "B")
    assert T1 in broker_a.machine.decisions.state.active
    assert not [each for each in broker_a.to("C") if isinstance(each, Settle)]
    broker_a.hears(Echoed(T1, "decide"), "C")
    assert broker_a.to("B")[-1] == broker_a.to("C")[-1] == Settle(T1)
    assert not broker_a.machine.decisions.state.active
    broker_a.hears(Echoed(T1, "decide"), "C")  # late
    assert not broker_a.said


def test_a_broker_that_is_not_the_root_passes_it_on_and_echoes_last() -> None:
    broker_a = BrokerA(root="B")
    broker_a.hears(Decide(T1, 7, True), "B")
    assert broker_a.to("C") == [Decide(T1, 7, True)]
    assert broker_a.to("B") == []
    broker_a.hears(Echoed(T1, "decide"), "C")
    assert broker_a.to("B") == [Echoed(T1, "decide")]
    broker_a.hears(Decide(T1, 7, True), "B")  # again, because the link has begun anew
    assert broker_a.to("B") == [Echoed(T1, "decide")]
    assert broker_a.to("C") == []
    broker_a.hears(Settle(T1), "B")
    assert broker_a.to("C") == [Settle(T1)]
    assert not broker_a.machine.decisions.state.active


def test_a_given_up_neighbour_is_notified_on_return_and_a_removed_one_is_not_waited_for() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1)
    broker_a.hears(Echoed(T1, "decide"), "C")
    broker_a.machine.forget("B")
    broker_a.carry_out()
    assert T1 in broker_a.machine.decisions.state.active
    broker_a.to("B")
    broker_a.machine.join("B")
    broker_a.carry_out()
    assert broker_a.to("B") == [Decide(T1, 1, True)]
    broker_a.machine.dismiss("B")
    broker_a.carry_out()
    assert not broker_a.machine.decisions.state.active


# ── once ─────────────────────────────────────────────────────────────────────────────────


def test_an_abort_before_the_commit_leaves_a_tombstone() -> None:
    broker_a = BrokerA()
    broker_a.gets(Withdraw(T1, "D", "the session of dora has ended"))
    assert decided(broker_a) == [(T1, 1, False)]
    broker_a.submits(T1)
    assert decided(broker_a) == []
    assert broker_a.outcome(T1) == "aborted"


def test_an_abort_behind_the_decision_changes_nothing() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1)
    broker_a.gets(Withdraw(T1, "D", "too late"))
    assert decided(broker_a) == [(T1, 1, True)]
    assert broker_a.letters() == [("D", Effective(T1))]  # and the decision is on its way
    for neighbour in ("B", "C"):
        broker_a.hears(Echoed(T1, "decide"), neighbour)
    broker_a.gets(Withdraw(T1, "D", "away for a while"))
    assert broker_a.letters() == [("D", Verdict(T1, 1, True, ""))]
    assert broker_a.outcome(T1) == "committed"


def test_a_commit_that_comes_twice_is_answered_again() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1)
    broker_a.submits(T1)
    assert decided(broker_a) == [(T1, 1, True)]
    assert broker_a.letters() == [("D", Effective(T1))]
    for neighbour in ("B", "C"):
        broker_a.hears(Echoed(T1, "decide"), neighbour)
    broker_a.submits(T1)
    assert broker_a.letters() == [("D", Verdict(T1, 1, True, ""))]


def test_one_of_several_transactions_with_the_same_key_is_committed() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1, key="order 17")
    broker_a.submits(T2, key="order 17")
    told = [each for each in broker_a.to("C") if isinstance(each, Decide)]
    assert [(each.tx, each.committed) for each in told] == [(T1, True), (T2, False)]
    assert told[1].reason == SameKey(T1).text
    broker_a.submits("erik/E-1.1/1", key="order 17")  # of another client
    assert decided(broker_a) == [("erik/E-1.1/1", 3, True)]


def test_a_key_of_what_was_aborted_is_free() -> None:
    broker_a = BrokerA()
    broker_a.gets(Submit(T1, (part("dora", invited=[body(x=1)]),), "k", True))
    broker_a.gets(Withdraw(T1, "D", "the session of dora has ended"))
    broker_a.submits(T2, key="k")
    assert (T2, 2, True) in decided(broker_a)


# ── outcomes ─────────────────────────────────────────────────────────────────────────────


def test_outcomes() -> None:
    broker_a = BrokerA()
    assert broker_a.outcome(T1) == "expired"
    broker_a.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    assert broker_a.outcome(T1) == "in progress"
    broker_a.hears(Echoed(T1, "prepare"), "B")
    broker_a.hears(Echoed(T1, "prepare"), "C")
    assert broker_a.outcome(T1) == "committed"
    broker_a.gets(Ask(T1, op("dora", 5, "D"), "D"))
    assert broker_a.letters()[1:] == [("D", Tell(op("dora", 5, "D"), "committed"))]


def test_outcomes_are_forgotten_after_a_while_and_their_keys_with_them() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1, key="k")
    broker_a.goes_on(KEPT_S - 1)
    broker_a.submits(T2)
    assert broker_a.outcome(T1) == "committed"
    broker_a.goes_on(2)
    broker_a.submits(T3)
    assert [broker_a.outcome(tx) for tx in (T1, T2, T3)] == ["expired", "committed", "committed"]
    assert not broker_a.machine.decider.state.keys
    assert broker_a.machine.decisions.state.number == 3  # no number returns


def test_the_number_of_remembered_outcomes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "MOST_OUTCOMES", 2)
    broker_a = BrokerA()
    for tx in (T1, T2, T3):
        broker_a.submits(tx)
    assert list(broker_a.machine.decider.state.outcomes) == [T2, T3]


def test_a_client_asks_for_an_outcome() -> None:
    broker_a = BrokerA()
    broker_a.arrives("alice")
    broker_a.asks(op("alice", 1), OutcomeRequest(1, "nonsense"))
    assert broker_a.error(op("alice", 1))[0] == "MisuseError"
    broker_a.submits(T1)
    broker_a.asks(op("alice", 2), OutcomeRequest(2, T1))
    question = Ask(T1, op("alice", 2), "A")
    assert broker_a.letters()[1:] == [
        ("D", question)
    ]  # where dora is knows whether it is still open
    broker_a.gets(question)  # it was not, so it is for the root to say
    assert broker_a.answer_to(op("alice", 2)) == Done(2, "committed")


# ── isolation ────────────────────────────────────────────────────────────────────────────


def test_a_transaction_that_has_read_nothing_needs_no_validation() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1, part("dora", events=1, pubend="D.1"), isolated=True)
    assert decided(broker_a) == [(T1, 1, True)]


def test_a_transaction_that_has_read_is_first_validated_by_all_brokers() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    assert broker_a.to("B") == broker_a.to("C") == [Prepare(T1)]
    broker_a.hears(Echoed(T1, "prepare"), "C")
    assert decided(broker_a) == []
    broker_a.hears(Echoed(T1, "prepare", "it has changed"), "B")
    (told,) = broker_a.to("C")
    assert told == Decide(T1, 1, False, "it has changed")


def test_during_validation_no_conflicting_transaction_is_decided() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    begun = Begun(op("erik", 1, "E"), SPACE, "1")
    other = Begun(op("erik", 2, "E"), ELSEWHERE, "1")
    broker_a.submits(T2, part("erik", begun=[begun]))
    broker_a.submits(T3, part("erik", begun=[other]))
    assert decided(broker_a) == [(T3, 1, True)]
    broker_a.hears(Echoed(T1, "prepare"), "B")
    broker_a.hears(Echoed(T1, "prepare"), "C")
    assert decided(broker_a) == [(T1, 2, True), (T2, 3, True)]


def test_a_waiting_transaction_continues_when_the_other_is_withdrawn() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    broker_a.submits(T2, part("erik", begun=[Begun(op("erik", 1, "E"), SPACE, "1")]))
    broker_a.gets(Withdraw(T1, "D", "the session of dora has ended"))
    assert decided(broker_a) == [(T1, 1, False), (T2, 2, True)]
    broker_a.hears(Echoed(T1, "prepare"), "B")  # late
    assert decided(broker_a) == []


def test_a_removed_neighbour_has_validated_nothing() -> None:
    broker_a = BrokerA()
    broker_a.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    begun = part("erik", begun=[Begun(op("erik", 1, "E"), SPACE, "1")], invited=[body(x=1)])
    broker_a.submits(T2, begun, isolated=True)
    broker_a.hears(Echoed(T1, "prepare"), "C")
    broker_a.machine.forget("B")
    broker_a.carry_out()
    assert decided(broker_a) == [(T1, 1, False)]
    broker_a.said.clear()  # the link begins anew, and what was under way on it is lost
    broker_a.machine.join("B")
    broker_a.carry_out()
    assert Prepare(T2) in broker_a.to("B")
    broker_a.hears(Echoed(T2, "prepare"), "B")
    broker_a.hears(Echoed(T2, "prepare"), "C")
    assert decided(broker_a) == [(T2, 2, True)]


def test_a_broker_that_has_forgotten_a_transaction_objects_to_it() -> None:
    broker_a = BrokerA(root="B")
    broker_a.hears(Prepare(T1), "B")
    broker_a.hears(Echoed(T1, "prepare"), "C")
    (told,) = broker_a.to("B")
    assert isinstance(told, Echoed)
    assert "A does not know it" in told.objection


def test_a_validation_is_given_up_if_a_broker_stays_away() -> None:
    broker_a = BrokerA()
    broker_a.gets(Open(T1, 10.0))
    broker_a.goes_on(19.0)
    broker_a.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    broker_a.submits(T2, part("erik", begun=[Begun(op("erik", 1, "E"), SPACE, "1")]))
    assert broker_a.timers[timer_key(Abandoned(T1))] == 39.0  # it has just been asked
    broker_a.hears(Echoed(T1, "prepare"), "C")
    broker_a.goes_on(20.0)
    broker_a.machine.overdue(text_of(Abandoned(T1)))
    broker_a.carry_out()
    assert decided(broker_a) == [(T1, 1, False), (T2, 2, True)]
    assert "B, or a broker behind" in broker_a.machine.decider.state.outcomes[T1].reason


def test_an_isolated_transaction_begins_when_all_brokers_have_its_snapshot() -> None:
    broker_a = BrokerA()
    broker_a.gets(Open(T1, 10.0))
    assert broker_a.to("C") == [Opening(T1)]
    assert T1 in broker_a.machine.versions.state.bases
    broker_a.hears(Echoed(T1, "opening"), "C")
    assert broker_a.letters() == []
    broker_a.hears(Echoed(T1, "opening"), "B")
    assert broker_a.letters() == [("D", Tell(op("dora", 1, "D"), T1))]
    broker_a.gets(Withdraw(T1, "D", "never mind"))
    assert not broker_a.machine.versions.state.bases


# ── coordinators ─────────────────────────────────────────────────────────────────────────


def test_an_overlay_without_a_root_begins_no_transaction() -> None:
    nowhere = BrokerA(root="")
    nowhere.asks(op("alice", 1), BeginRequest(1))
    assert nowhere.error(op("alice", 1)) == (
        "NotOffered",
        "A offers no transactions: its overlay has no root; name one in the topology, unless the "
        "overlay has cells or covering, which exclude transactions",
    )


def far_from_the_root() -> BrokerA:
    """Z is the root; where it lies is not known yet."""
    broker_a = BrokerA(root="Z")
    for client in ("alice", "bob", "carl", "dave"):
        broker_a.arrives(client)
    broker_a.goes_on(5.0)
    broker_a.asks(op("alice", 1), BeginRequest(1, isolated=True, timeout_s=10.0))
    broker_a.consents("dave")
    broker_a.asks(op("bob", 1), ExecuteRequest(1, (("dave", ()),), timeout_s=20.0))
    broker_a.asks(op("carl", 1), OutcomeRequest(1, "erik/Z-1.1/1", timeout_s=30.0))
    return broker_a


def test_requests_wait_for_a_way_to_the_root() -> None:
    broker_a = far_from_the_root()
    assert [who.client for who, _ in broker_a.answers] == ["dave"]  # it has consented
    assert not broker_a.machine.coordinator.state.coordinations
    assert broker_a.timers == {
        timer_key(Unanswered(op("alice", 1))): 15.0,
        timer_key(Unanswered(op("bob", 1))): 25.0,
        timer_key(Unanswered(op("carl", 1))): 35.0,
    }
    broker_a.goes_on(4.0)
    broker_a.machine.root_requests.reroute()  # it lies elsewhere now, but still nobody knows where
    broker_a.carry_out()
    assert not broker_a.said
    broker_a.routing.apply(PubendHere("Z.1"), Hop.broker("C"))
    broker_a.machine.root_requests.reroute()
    broker_a.carry_out()
    assert [(broker, type(letter)) for broker, letter in broker_a.letters()] == [
        ("Z", Open),
        ("Z", Ask),
        ("Z", Engaged),
    ]
    assert not broker_a.machine.root_requests.state.waiting
    # The time that they have waited counts.
    assert broker_a.timers == {
        ("transaction", str(op("alice", 1))): 15.0,
        ("transaction", str(op("bob", 1))): 25.0,
        timer_key(Unanswered(op("carl", 1))): 35.0,
    }


def test_a_request_of_an_older_journal_does_not_wait_for_the_root() -> None:
    broker_a = BrokerA(root="Z")
    broker_a.arrives("alice")
    broker_a.machine.request(op("alice", 1), BeginRequest(1), patient=False)
    broker_a.carry_out()
    assert "no way to the root Z now" in broker_a.error(op("alice", 1))[1]
    assert not broker_a.machine.root_requests.state.waiting


def test_an_invalid_request_does_not_wait_for_the_root() -> None:
    broker_a = BrokerA(root="Z")
    broker_a.arrives("alice")
    broker_a.asks(op("alice", 1), OutcomeRequest(1, "what?"))
    assert broker_a.error(op("alice", 1))[0] == "MisuseError"


def test_without_a_way_to_the_root_in_time_a_request_fails() -> None:
    broker_a = far_from_the_root()
    broker_a.goes_on(10.0)
    broker_a.machine.overdue(text_of(Unanswered(op("alice", 1))))
    broker_a.carry_out()
    error, text = broker_a.error(op("alice", 1))
    assert error == "TimedOut"
    assert "no way to the root Z of the overlay within 10 s, so nothing was begun" in text
    assert "motet status" in text
    assert list(broker_a.machine.root_requests.state.waiting) == [op("bob", 1), op("carl", 1)]


def test_a_root_that_does_not_answer_in_time_is_a_timeout() -> None:
    broker_a = far_from_the_root()
    broker_a.routing.apply(PubendHere("Z.1"), Hop.broker("C"))
    broker_a.machine.root_requests.reroute()
    broker_a.carry_out()
    broker_a.machine.overdue(text_of(Unanswered(op("carl", 1))))
    broker_a.carry_out()
    error, text = broker_a.error(op("carl", 1))
    assert error == "TimedOut"
    assert text == "the root Z did not answer within 30 s; ask again"


def test_a_transaction_that_waits_for_the_root_is_in_progress_and_ends_with_its_session() -> None:
    broker_a = far_from_the_root()
    broker_a.asks(op("carl", 2), OutcomeRequest(2, str(op("bob", 1))))
    assert broker_a.answer_to(op("carl", 2)) == Done(2, "in progress")
    broker_a.machine.left("bob", "A-1.1")
    broker_a.carry_out()
    broker_a.routing.apply(PubendHere("Z.1"), Hop.broker("C"))
    broker_a.machine.root_requests.reroute()
    broker_a.carry_out()
    assert list(broker_a.machine.coordinator.state.coordinations) == [str(op("alice", 1))]


def test_a_transaction_that_waits_for_the_root_gets_its_full_timeout_after_a_restart() -> None:
    broker_a = far_from_the_root()
    timers = {timer.key: timer.at for timer in broker_a.machine.recover(100.0)}
    assert timers[timer_key(Unanswered(op("alice", 1)))] == 110.0
    broker_a.goes_on(95.0)
    broker_a.routing.apply(PubendHere("Z.1"), Hop.broker("C"))
    broker_a.machine.root_requests.reroute()
    broker_a.carry_out()
    assert broker_a.timers[("transaction", str(op("alice", 1)))] == 110.0


def test_a_plan_names_clients_that_are_there() -> None:
    broker_a = BrokerA()
    broker_a.arrives("alice")
    broker_a.asks(op("alice", 1), ExecuteRequest(1, (("zoe", ()),)))
    assert broker_a.error(op("alice", 1))[0] == "UnknownClient"
    assert not broker_a.machine.coordinator.state.coordinations


def test_a_transaction_is_ended_once_by_its_coordinator() -> None:
    broker_a = BrokerA(root="B")
    for client in ("alice", "carl"):
        broker_a.arrives(client)
    tx = broker_a.begins(op("alice", 1))
    broker_a.ends(op("carl", 1), tx)
    assert broker_a.error(op("carl", 1))[0] == "TransactionOver"
    broker_a.ends(op("alice", 2), tx)
    assert [type(letter) for _, letter in broker_a.letters()] == [Submit]
    broker_a.ends(op("alice", 3), tx, commit=False)
    assert "already ending" in broker_a.error(op("alice", 3))[1]
    broker_a.hears(Decide(tx, 4, True), "B")
    broker_a.hears(Echoed(tx, "decide"), "C")
    assert broker_a.answer_to(op("alice", 2)) is None  # not before it is effective everywhere
    broker_a.hears(Settle(tx), "B")
    assert broker_a.answer_to(op("alice", 2)) == Done(2, tx)


def test_a_coordinator_submits_again_if_the_decision_is_overdue() -> None:
    broker_a = BrokerA(root="B")
    broker_a.arrives("alice")
    tx = broker_a.begins(op("alice", 1))
    broker_a.ends(op("alice", 2), tx)
    broker_a.letters()
    broker_a.goes_on(10.0)
    broker_a.machine.overdue(tx)
    broker_a.carry_out()
    assert [type(letter) for _, letter in broker_a.letters()] == [Submit]
    assert broker_a.timers[("transaction", tx)] > broker_a.now
