"""When a coordinator is answered: when a decision is in effect wherever it concerns anybody."""

from __future__ import annotations

from msgspec.structs import replace

from motet.model import Filter
from motet.protocol.session.messages import Done, OutcomeRequest, Tag, UnsubscribeRequest
from motet.protocol.transactions.messages import (
    Begun,
    Decide,
    Echoed,
    Effective,
    Ended,
    Engage,
    Engaged,
    Letter,
    Settle,
    Step,
    Withdraw,
)
from motet.protocol.transactions.state import Held
from tests.unit.transactions.office import SPACE, Office, body, op, part

TX = "dora/D-1.1/1"
ELSEWHERE = Filter.parse("x < 0")
WISH = op("dora", 5, "D")
TX_OF_ALICE = "alice/A-1.1/1"


def effective(office: Office) -> bool:
    return ("D", Effective(TX)) in office.letters()


def test_the_root_waits_for_those_who_have_part_in_it() -> None:
    office = Office()
    office.submits(TX, replace(part("dora"), broker="D"))
    office.hears(Echoed(TX, "effective"), "C")
    assert not effective(office)
    office.hears(Echoed(TX, "effective"), "B")  # D lies behind it
    assert effective(office)
    assert TX in office.machine.state.active
    office.hears(Echoed(TX, "decide"), "B")
    assert not effective(office)  # once is enough
    office.hears(Echoed(TX, "decide"), "C")
    assert office.to("C")[-1] == Settle(TX)


def test_the_root_waits_for_those_who_advertise_what_begins_or_ends() -> None:
    for changes in ({"begun": [Begun(WISH, SPACE, "1")]}, {"ended": [Ended(WISH, SPACE, "1")]}):
        office = Office()
        office.advertises(op("erik", 1, "E"))
        office.submits(TX, part("dora", **changes))  # type: ignore[arg-type]
        assert not effective(office)
        office.hears(Echoed(TX, "effective"), "B")
        assert effective(office)


def test_nobody_waits_for_an_advertisement_that_does_not_overlap() -> None:
    office = Office()
    office.advertises(op("erik", 1, "E"), ELSEWHERE)
    office.submits(TX, part("dora", begun=[Begun(WISH, SPACE, "1")]))
    assert effective(office)


def test_an_echo_of_all_says_more() -> None:
    office = Office()
    office.submits(TX, replace(part("dora"), broker="D"))
    office.hears(Echoed(TX, "decide"), "B")
    assert effective(office)


def test_everybody_may_be_concerned_by_who_cannot_be_found() -> None:
    office = Office()
    office.submits(TX, replace(part("dora"), broker="Z"))
    office.hears(Echoed(TX, "effective"), "B")
    assert not effective(office)
    office.hears(Echoed(TX, "effective"), "C")
    assert effective(office)


def test_a_broker_says_it_before_those_have_echoed_whom_it_does_not_concern() -> None:
    office = Office(root="C")
    office.hears(Decide(TX, 1, True, brokers=("A",)), "C")
    assert office.to("C") == [Echoed(TX, "effective")]
    office.hears(Echoed(TX, "decide"), "B")
    assert office.to("C") == [Echoed(TX, "decide")]


def test_a_broker_waits_for_those_behind_it_whom_it_concerns() -> None:
    office = Office(root="C")
    office.hears(Decide(TX, 1, True, brokers=("E",)), "C")
    assert office.to("C") == []
    office.hears(Echoed(TX, "effective"), "B")
    assert office.to("C") == [Echoed(TX, "effective")]


def test_who_is_not_concerned_only_echoes() -> None:
    office = Office(root="C")
    office.hears(Decide(TX, 1, True, brokers=("C",)), "C")
    assert office.to("C") == []
    office.hears(Echoed(TX, "decide"), "B")
    assert office.to("C") == [Echoed(TX, "decide")]


def test_it_is_said_again_when_the_decision_is_told_again() -> None:
    office = Office(root="C")
    decide = Decide(TX, 1, True, brokers=("A",))
    office.hears(decide, "C")
    office.to("C")
    office.hears(decide, "C")
    assert office.to("C") == [Echoed(TX, "effective")]


def test_a_neighbour_whose_link_begins_anew_is_waited_for_again() -> None:
    office = Office()
    office.submits(TX, replace(part("dora"), broker="D"))
    office.machine.join("C")
    office.hears(Echoed(TX, "effective"), "B")
    assert not effective(office)
    office.hears(Echoed(TX, "decide"), "C")
    assert effective(office)


def test_nobody_waits_for_who_is_no_neighbour_any_more() -> None:
    office = Office()
    office.submits(TX, replace(part("dora"), broker="D"))
    office.machine.dismiss("B")
    office.carry()
    assert effective(office)


def test_an_abort_is_not_reported_twice() -> None:
    office = Office()
    office.submits(TX, key="once")
    office.letters()
    office.submits("dora/D-1.1/2", key="once")
    assert office.letters() == []


def test_the_coordinator_is_answered_and_the_decision_stays_active() -> None:
    office = Office(root="B")
    office.arrives("alice")
    tx = office.begins(op("alice", 1))
    office.ends(op("alice", 2), tx)
    office.hears(Decide(tx, 1, True, brokers=("A",)), "B")
    assert office.answer(op("alice", 2)) is None
    office.gets(Effective(tx))
    assert office.answer(op("alice", 2)) == Done(2, tx)
    assert tx in office.machine.state.active
    office.gets(Effective(tx))  # late
    office.hears(Settle(tx))
    assert [who for who, _ in office.answers].count(op("alice", 2)) == 1


def test_a_letter_that_comes_before_the_decision_answers_nothing() -> None:
    office = Office(root="B")
    office.arrives("alice")
    tx = office.begins(op("alice", 1))
    office.ends(op("alice", 2), tx)
    office.hears(Letter("A", Effective(tx)))
    assert office.answer(op("alice", 2)) is None


# ── what must wait until it is settled ───────────────────────────────────────────────────


def beginning() -> tuple[Office, str]:
    """A transaction has begun a subscription of alice, and is not settled."""
    office = Office(root="B")
    office.arrives("alice")
    tx = office.begins(op("alice", 1))
    office.adds(op("alice", 2), tx)
    begun = (Begun(op("alice", 2), SPACE, "1"),)
    office.hears(Decide(tx, 1, True, "", begun, brokers=("A",)), "B")
    return office, tx


def test_what_a_transaction_begins_is_taken_back_when_it_is_settled() -> None:
    office, tx = beginning()
    request = UnsubscribeRequest(3, 2)
    assert office.machine.hold(op("alice", 3), request)
    office.hears(Settle(tx))
    assert [each.request for each in office.last.released] == [request]
    assert not office.machine.state.held
    assert not office.machine.hold(op("alice", 3), request)


def test_a_transaction_is_not_complete_while_part_of_it_waits() -> None:
    office, _ = beginning()
    second = office.begins(op("alice", 3))
    assert office.machine.hold(op("alice", 4), UnsubscribeRequest(4, 2, tag=Tag(second, "1")))
    assert office.machine.state.locals[second].parts["alice"].pending == {4: None}
    office.ends(op("alice", 5), second)
    assert any("before all of its operations" in str(body) for _, body in office.letters())


def waiting() -> tuple[Office, Engage]:
    """A plan of carl ends what begins with a transaction of alice that is not settled."""
    office, _ = beginning()
    office.names(op("alice", 2), "wish")
    office.session("alice").willing = True
    steps = (Step("unsubscribe", "1", "wish"),)
    plan = Engage("carl/B-1.1/1", "alice", steps, 10.0, ("alice",))
    office.letters()
    office.gets(plan)
    return office, plan


def test_a_plan_waits_for_what_it_ends() -> None:
    office, plan = waiting()
    assert office.letters() == []
    assert office.machine.state.held == [Held(TX_OF_ALICE, op("alice", 0), plan)]
    office.hears(Settle(TX_OF_ALICE))
    assert [each.request for each in office.last.released] == [plan]
    office.machine.engage(plan)
    office.carry()
    ((broker, told),) = office.letters()
    assert broker == "B"
    assert isinstance(told, Engaged)
    assert [each.op for each in told.contribution.ended] == [op("alice", 2)]


def test_a_plan_that_waits_is_refused_when_its_client_goes() -> None:
    office, plan = waiting()
    office.machine.left("alice", "A-1.1")
    office.carry()
    assert ("B", Withdraw(plan.tx, "A", "alice has gone")) in office.letters()
    office.hears(Settle(TX_OF_ALICE))
    assert not office.last.released


def test_a_plan_that_was_aborted_waits_for_nothing() -> None:
    office, plan = waiting()
    office.hears(Decide(plan.tx, 2, False, "too late"))
    assert not office.machine.state.held
    office.hears(Settle(TX_OF_ALICE))
    assert not office.last.released
    assert plan.tx not in office.machine.state.locals


def test_a_coordinator_that_waits_too_long_hears_that_it_is_committed_and_no_more() -> None:
    office = Office(root="B")
    office.arrives("alice")
    tx = office.begins(op("alice", 1), timeout_s=2.0)
    office.ends(op("alice", 2), tx)
    office.hears(Decide(tx, 1, True))
    assert office.answer(op("alice", 2)) is None
    office.machine.overdue(tx)
    office.carry()
    assert office.error(op("alice", 2))[0] == "StillSpreading"
    answers = len(office.answers)
    office.gets(Effective(tx))
    assert len(office.answers) == answers  # one answer is enough


def test_it_is_not_effective_while_our_own_pubend_has_to_cut() -> None:
    office = Office(root="B")
    office.arrives("alice")
    office.advertises(op("alice", 1))
    tx = office.begins(op("alice", 2))
    office.stages(op("alice", 3), tx, body(x=1))
    office.ends(op("alice", 4), tx)
    office.hears(Decide(tx, 1, True, pubends=("A.1",)))
    office.hears(Settle(tx))  # nobody has waited for us
    assert office.answer(op("alice", 4)) is None
    office.machine.cut(tx, 7)
    office.carry()
    office.machine.cut_told(tx)
    office.carry()
    assert office.answer(op("alice", 4)) == Done(4, tx)


def test_what_a_client_has_taken_back_goes_even_if_its_process_has_gone() -> None:
    """It has got nothing of it since, and the next one knows nothing of it."""
    office, tx = beginning()
    request = UnsubscribeRequest(3, 2)
    assert office.machine.hold(op("alice", 3), request)
    assert office.machine.state.held[0].forsaken == op("alice", 2)
    office.machine.left("alice", "A-1.1")
    office.hears(Settle(tx))
    assert [each.request for each in office.last.released] == [request]


def test_what_stood_before_waits_for_nothing() -> None:
    office, _ = beginning()
    assert not office.machine.hold(op("alice", 3), UnsubscribeRequest(3, 77))
    assert not office.machine.hold(op("alice", 3), OutcomeRequest(3, TX))
