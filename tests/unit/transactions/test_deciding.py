"""The root: it decides once, in one order, and says what it has decided."""

from __future__ import annotations

import pytest

from motet.model import Filter
from motet.protocol.session.messages import BeginRequest, Done, ExecuteRequest, OutcomeRequest
from motet.protocol.transactions import deciding
from motet.protocol.transactions.collecting import SAME_KEY
from motet.protocol.transactions.deciding import KEPT_S
from motet.protocol.transactions.messages import (
    Ask,
    Begun,
    Decide,
    Echoed,
    Effective,
    Open,
    Opening,
    Prepare,
    Settle,
    Submit,
    Tell,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.participating import WATCH
from tests.unit.transactions.office import SPACE, Office, body, op, part

T1, T2, T3 = (f"dora/D-1.1/{number}" for number in (1, 2, 3))
ELSEWHERE = Filter.parse("y > 0")


def decided(office: Office, neighbour: str = "C") -> list[tuple[str, int, bool]]:
    told = [each for each in office.to(neighbour) if isinstance(each, Decide)]
    return [(each.tx, each.number, each.committed) for each in told]


# ── one order ────────────────────────────────────────────────────────────────────────────


def test_decisions_are_numbered_in_the_order_of_their_arrival() -> None:
    office = Office()
    for tx in (T2, T1, T3):
        office.submits(tx)
    assert decided(office) == [(T2, 1, True), (T1, 2, True), (T3, 3, True)]
    assert decided(office, "B") == [(T2, 1, True), (T1, 2, True), (T3, 3, True)]


def test_a_root_without_its_state_recalls_what_a_neighbour_knows() -> None:
    """Others have cut for it: it must not be aborted now."""
    office = Office()
    begun = (Begun(op("dora", 1, "D"), SPACE, "1"),)
    office.hears(Decide(T1, 7, True, "", begun), "B")
    office.gets(Withdraw(T1, "D", "not complete within 10 s"))
    office.submits(T2)
    assert decided(office) == [(T1, 7, True), (T2, 8, True)]
    assert office.to("B")[0] == Decide(T1, 7, True, "", begun)  # and it is to echo it
    for neighbour in ("B", "C"):
        office.hears(Echoed(T1, "decide"), neighbour)
    assert Settle(T1) in office.to("C")
    office.said.clear()
    office.hears(Decide(T1, 7, True, "", begun), "B")  # told again by a link that begins anew
    assert not office.said


def test_the_root_hears_again_what_it_has_told() -> None:
    office = Office(root="B")
    office.hears(Decide(T1, 7, True, ""), "B")
    office.said.clear()
    office.machine.join("B")
    office.machine.join("C")
    office.carry()
    assert office.to("B") == office.to("C") == [Decide(T1, 7, True, "")]
    assert list(office.machine.state.active[T1].missing) == ["C"]


def test_it_is_settled_when_everybody_has_echoed() -> None:
    office = Office()
    office.submits(T1)
    office.hears(Echoed(T1, "decide"), "B")
    assert T1 in office.machine.state.active
    assert not [each for each in office.to("C") if isinstance(each, Settle)]
    office.hears(Echoed(T1, "decide"), "C")
    assert office.to("B")[-1] == office.to("C")[-1] == Settle(T1)
    assert not office.machine.state.active
    office.hears(Echoed(T1, "decide"), "C")  # late
    assert not office.said


def test_a_broker_that_is_not_the_root_passes_it_on_and_echoes_last() -> None:
    office = Office(root="B")
    office.hears(Decide(T1, 7, True), "B")
    assert office.to("C") == [Decide(T1, 7, True)]
    assert office.to("B") == []
    office.hears(Echoed(T1, "decide"), "C")
    assert office.to("B") == [Echoed(T1, "decide")]
    office.hears(Decide(T1, 7, True), "B")  # again, because the link has begun anew
    assert office.to("B") == [Echoed(T1, "decide")]
    assert office.to("C") == []
    office.hears(Settle(T1), "B")
    assert office.to("C") == [Settle(T1)]
    assert not office.machine.state.active


def test_who_was_given_up_is_told_when_it_is_back_and_who_left_is_not_waited_for() -> None:
    office = Office()
    office.submits(T1)
    office.hears(Echoed(T1, "decide"), "C")
    office.machine.forget("B")
    office.carry()
    assert T1 in office.machine.state.active
    office.to("B")
    office.machine.join("B")
    office.carry()
    assert office.to("B") == [Decide(T1, 1, True)]
    office.machine.dismiss("B")
    office.carry()
    assert not office.machine.state.active


# ── once ─────────────────────────────────────────────────────────────────────────────────


def test_an_abort_before_the_commit_leaves_a_tombstone() -> None:
    office = Office()
    office.gets(Withdraw(T1, "D", "dora has gone"))
    assert decided(office) == [(T1, 1, False)]
    office.submits(T1)
    assert decided(office) == []
    assert office.outcome(T1) == "aborted"


def test_an_abort_behind_the_decision_changes_nothing() -> None:
    office = Office()
    office.submits(T1)
    office.gets(Withdraw(T1, "D", "too late"))
    assert decided(office) == [(T1, 1, True)]
    assert office.letters() == [("D", Effective(T1))]  # and the decision is on its way
    for neighbour in ("B", "C"):
        office.hears(Echoed(T1, "decide"), neighbour)
    office.gets(Withdraw(T1, "D", "away for a while"))
    assert office.letters() == [("D", Verdict(T1, 1, True, ""))]
    assert office.outcome(T1) == "committed"


def test_a_commit_that_comes_twice_is_answered_again() -> None:
    office = Office()
    office.submits(T1)
    office.submits(T1)
    assert decided(office) == [(T1, 1, True)]
    assert office.letters() == [("D", Effective(T1))]
    for neighbour in ("B", "C"):
        office.hears(Echoed(T1, "decide"), neighbour)
    office.submits(T1)
    assert office.letters() == [("D", Verdict(T1, 1, True, ""))]


def test_of_all_with_the_same_key_one_is_committed() -> None:
    office = Office()
    office.submits(T1, key="order 17")
    office.submits(T2, key="order 17")
    told = [each for each in office.to("C") if isinstance(each, Decide)]
    assert [(each.tx, each.committed) for each in told] == [(T1, True), (T2, False)]
    assert told[1].reason == f"{SAME_KEY}{T1}"
    office.submits("erik/E-1.1/1", key="order 17")  # of another client
    assert decided(office) == [("erik/E-1.1/1", 3, True)]


def test_a_key_of_what_was_aborted_is_free() -> None:
    office = Office()
    office.gets(Submit(T1, (part("dora", invited=[body(x=1)]),), "k", True))
    office.gets(Withdraw(T1, "D", "dora has gone"))
    office.submits(T2, key="k")
    assert (T2, 2, True) in decided(office)


# ── outcomes ─────────────────────────────────────────────────────────────────────────────


def test_outcomes() -> None:
    office = Office()
    assert office.outcome(T1) == "expired"
    office.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    assert office.outcome(T1) == "in progress"
    office.hears(Echoed(T1, "prepare"), "B")
    office.hears(Echoed(T1, "prepare"), "C")
    assert office.outcome(T1) == "committed"
    office.gets(Ask(T1, op("dora", 5, "D"), "D"))
    assert office.letters()[1:] == [("D", Tell(op("dora", 5, "D"), "committed"))]


def test_outcomes_are_forgotten_after_a_while_and_their_keys_with_them() -> None:
    office = Office()
    office.submits(T1, key="k")
    office.goes_on(KEPT_S - 1)
    office.submits(T2)
    assert office.outcome(T1) == "committed"
    office.goes_on(2)
    office.submits(T3)
    assert [office.outcome(tx) for tx in (T1, T2, T3)] == ["expired", "committed", "committed"]
    assert not office.machine.state.keys
    assert office.machine.state.number == 3  # no number returns


def test_there_are_not_too_many_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MOST_OUTCOMES", 2)
    office = Office()
    for tx in (T1, T2, T3):
        office.submits(tx)
    assert list(office.machine.state.outcomes) == [T2, T3]


def test_a_client_asks_for_an_outcome() -> None:
    office = Office()
    office.arrives("alice")
    office.asks(op("alice", 1), OutcomeRequest(1, "nonsense"))
    assert office.error(op("alice", 1))[0] == "MisuseError"
    office.submits(T1)
    office.asks(op("alice", 2), OutcomeRequest(2, T1))
    question = Ask(T1, op("alice", 2), "A")
    assert office.letters()[1:] == [("D", question)]  # where dora is knows whether it is still open
    office.gets(question)  # it was not, so it is for the root to say
    assert office.answer(op("alice", 2)) == Done(2, "committed")


# ── isolation ────────────────────────────────────────────────────────────────────────────


def test_what_has_read_nothing_needs_no_validation() -> None:
    office = Office()
    office.submits(T1, part("dora", events=1, pubend="D.1"), isolated=True)
    assert decided(office) == [(T1, 1, True)]


def test_what_has_read_is_validated_everywhere_first() -> None:
    office = Office()
    office.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    assert office.to("B") == office.to("C") == [Prepare(T1)]
    office.hears(Echoed(T1, "prepare"), "C")
    assert decided(office) == []
    office.hears(Echoed(T1, "prepare", "it has changed"), "B")
    (told,) = office.to("C")
    assert told == Decide(T1, 1, False, "it has changed")


def test_meanwhile_nothing_is_decided_that_could_change_what_was_read() -> None:
    office = Office()
    office.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    begun = Begun(op("erik", 1, "E"), SPACE, "1")
    other = Begun(op("erik", 2, "E"), ELSEWHERE, "1")
    office.submits(T2, part("erik", begun=[begun]))
    office.submits(T3, part("erik", begun=[other]))
    assert decided(office) == [(T3, 1, True)]
    office.hears(Echoed(T1, "prepare"), "B")
    office.hears(Echoed(T1, "prepare"), "C")
    assert decided(office) == [(T1, 2, True), (T2, 3, True)]


def test_who_waits_goes_on_when_the_other_is_withdrawn() -> None:
    office = Office()
    office.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    office.submits(T2, part("erik", begun=[Begun(op("erik", 1, "E"), SPACE, "1")]))
    office.gets(Withdraw(T1, "D", "dora has gone"))
    assert decided(office) == [(T1, 1, False), (T2, 2, True)]
    office.hears(Echoed(T1, "prepare"), "B")  # late
    assert decided(office) == []


def test_who_is_asked_and_goes_has_validated_nothing() -> None:
    office = Office()
    office.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    begun = part("erik", begun=[Begun(op("erik", 1, "E"), SPACE, "1")], invited=[body(x=1)])
    office.submits(T2, begun, isolated=True)
    office.hears(Echoed(T1, "prepare"), "C")
    office.machine.forget("B")
    office.carry()
    assert decided(office) == [(T1, 1, False)]
    office.said.clear()  # the link begins anew, and what was under way on it is lost
    office.machine.join("B")
    office.carry()
    assert Prepare(T2) in office.to("B")
    office.hears(Echoed(T2, "prepare"), "B")
    office.hears(Echoed(T2, "prepare"), "C")
    assert decided(office) == [(T2, 2, True)]


def test_who_does_not_know_a_transaction_any_more_objects_to_it() -> None:
    office = Office(root="B")
    office.hears(Prepare(T1), "B")
    office.hears(Echoed(T1, "prepare"), "C")
    (told,) = office.to("B")
    assert isinstance(told, Echoed)
    assert "A knows nothing of it" in told.objection


def test_a_validation_does_not_wait_for_ever_for_who_is_away() -> None:
    office = Office()
    office.gets(Open(T1, 10.0))
    office.goes_on(19.0)
    office.submits(T1, part("dora", invited=[body(x=1)]), isolated=True)
    office.submits(T2, part("erik", begun=[Begun(op("erik", 1, "E"), SPACE, "1")]))
    assert office.timers[("transaction", f"{WATCH}{T1}")] == 39.0  # it has just been asked
    office.hears(Echoed(T1, "prepare"), "C")
    office.goes_on(20.0)
    office.machine.overdue(f"{WATCH}{T1}")
    office.carry()
    assert decided(office) == [(T1, 1, False), (T2, 2, True)]
    assert "B, or somebody behind" in office.machine.state.outcomes[T1].reason


def test_an_isolated_one_begins_when_everybody_has_its_snapshot() -> None:
    office = Office()
    office.gets(Open(T1, 10.0))
    assert office.to("C") == [Opening(T1)]
    assert T1 in office.machine.state.bases
    office.hears(Echoed(T1, "opening"), "C")
    assert office.letters() == []
    office.hears(Echoed(T1, "opening"), "B")
    assert office.letters() == [("D", Tell(op("dora", 1, "D"), T1))]
    office.gets(Withdraw(T1, "D", "never mind"))
    assert not office.machine.state.bases


# ── coordinators ─────────────────────────────────────────────────────────────────────────


def test_where_there_is_no_root_or_no_way_to_it_nothing_begins() -> None:
    nowhere = Office(root="")
    nowhere.asks(op("alice", 1), BeginRequest(1))
    assert nowhere.error(op("alice", 1)) == (
        "NotOffered",
        "A offers no transactions: its overlay has no root. Those with cells or covering have "
        "none; else name one in the topology",
    )
    far = Office(root="Z")
    far.asks(op("alice", 1), BeginRequest(1))
    assert "no way to the root Z now" in far.error(op("alice", 1))[1]
    assert not far.machine.state.coordinations


def test_a_plan_names_clients_that_are_there() -> None:
    office = Office()
    office.arrives("alice")
    office.asks(op("alice", 1), ExecuteRequest(1, (("zoe", ()),)))
    assert office.error(op("alice", 1))[0] == "UnknownClient"
    assert not office.machine.state.coordinations


def test_a_transaction_is_ended_by_who_began_it_and_once() -> None:
    office = Office(root="B")
    for client in ("alice", "carl"):
        office.arrives(client)
    tx = office.begins(op("alice", 1))
    office.ends(op("carl", 1), tx)
    assert office.error(op("carl", 1))[0] == "TransactionOver"
    office.ends(op("alice", 2), tx)
    assert [type(letter) for _, letter in office.letters()] == [Submit]
    office.ends(op("alice", 3), tx, commit=False)
    assert "being ended already" in office.error(op("alice", 3))[1]
    office.hears(Decide(tx, 4, True), "B")
    office.hears(Echoed(tx, "decide"), "C")
    assert office.answer(op("alice", 2)) is None  # not before it is effective everywhere
    office.hears(Settle(tx), "B")
    assert office.answer(op("alice", 2)) == Done(2, tx)


def test_who_waits_too_long_for_a_decision_asks_again() -> None:
    office = Office(root="B")
    office.arrives("alice")
    tx = office.begins(op("alice", 1))
    office.ends(op("alice", 2), tx)
    office.letters()
    office.goes_on(10.0)
    office.machine.overdue(tx)
    office.carry()
    assert [type(letter) for _, letter in office.letters()] == [Submit]
    assert office.timers[("transaction", tx)] > office.machine.now
