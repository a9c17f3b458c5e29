"""When a coordinator is answered: when a decision is in effect wherever it concerns anybody."""

from __future__ import annotations

from msgspec.structs import replace

from motet.model import Filter
from motet.protocol.session.messages import Done, Tag, UnsubscribeRequest
from motet.protocol.transactions.messages import (
    Begun,
    Decide,
    Echoed,
    Effective,
    Ended,
    Engage,
    Engaged,
    Letter,
    Query,
    Settle,
    Step,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.state import Held
from tests.unit.transactions.broker_a import SPACE, BrokerA, body, op, part

TX = "dora/D-1.1/1"
ELSEWHERE = Filter.parse("x < 0")
WISH = op("dora", 5, "D")
TX_OF_ALICE = "alice/A-1.1/1"


def effective(broker_a: BrokerA) -> bool:
    return ("D", Effective(TX)) in broker_a.letters()


def test_the_root_waits_for_brokers_of_participants() -> None:
    broker_a = BrokerA()
    broker_a.submits(TX, replace(part("dora"), broker="D"))
    broker_a.hears(Echoed(TX, "effective"), "C")
    assert not effective(broker_a)
    broker_a.hears(Echoed(TX, "effective"), "B")  # D lies behind it
    assert effective(broker_a)
    assert TX in broker_a.machine.decisions.state.active
    broker_a.hears(Echoed(TX, "decide"), "B")
    assert not effective(broker_a)  # once is enough
    broker_a.hears(Echoed(TX, "decide"), "C")
    assert broker_a.to("C")[-1] == Settle(TX)


def test_the_root_waits_for_advertisers_of_what_begins_or_ends() -> None:
    for changes in ({"begun": [Begun(WISH, SPACE, "1")]}, {"ended": [Ended(WISH, SPACE, "1")]}):
        broker_a = BrokerA()
        broker_a.advertises(op("erik", 1, "E"))
        broker_a.submits(TX, part("dora", **changes))  # type: ignore[arg-type]
        assert not effective(broker_a)
        broker_a.hears(Echoed(TX, "effective"), "B")
        assert effective(broker_a)


def test_an_advertisement_that_does_not_overlap_is_not_waited_for() -> None:
    broker_a = BrokerA()
    broker_a.advertises(op("erik", 1, "E"), ELSEWHERE)
    broker_a.submits(TX, part("dora", begun=[Begun(WISH, SPACE, "1")]))
    assert effective(broker_a)


def test_an_echo_of_all_says_more() -> None:
    broker_a = BrokerA()
    broker_a.submits(TX, replace(part("dora"), broker="D"))
    broker_a.hears(Echoed(TX, "decide"), "B")
    assert effective(broker_a)


def test_a_client_that_cannot_be_found_may_concern_all_brokers() -> None:
    broker_a = BrokerA()
    broker_a.submits(TX, replace(part("dora"), broker="Z"))
    broker_a.hears(Echoed(TX, "effective"), "B")
    assert not effective(broker_a)
    broker_a.hears(Echoed(TX, "effective"), "C")
    assert effective(broker_a)


def test_a_broker_does_not_wait_for_echoes_of_unconcerned_brokers() -> None:
    broker_a = BrokerA(root="C")
    broker_a.hears(Decide(TX, 1, True, brokers=("A",)), "C")
    assert broker_a.to("C") == [Echoed(TX, "effective")]
    broker_a.hears(Echoed(TX, "decide"), "B")
    assert broker_a.to("C") == [Echoed(TX, "decide")]


def test_a_broker_waits_for_concerned_brokers_behind_it() -> None:
    broker_a = BrokerA(root="C")
    broker_a.hears(Decide(TX, 1, True, brokers=("E",)), "C")
    assert broker_a.to("C") == []
    broker_a.hears(Echoed(TX, "effective"), "B")
    assert broker_a.to("C") == [Echoed(TX, "effective")]


def test_an_unconcerned_broker_only_echoes() -> None:
    broker_a = BrokerA(root="C")
    broker_a.hears(Decide(TX, 1, True, brokers=("C",)), "C")
    assert broker_a.to("C") == []
    broker_a.hears(Echoed(TX, "decide"), "B")
    assert broker_a.to("C") == [Echoed(TX, "decide")]


def test_a_repeated_decision_is_echoed_as_effective_again() -> None:
    broker_a = BrokerA(root="C")
    decide = Decide(TX, 1, True, brokers=("A",))
    broker_a.hears(decide, "C")
    broker_a.to("C")
    broker_a.hears(decide, "C")
    assert broker_a.to("C") == [Echoed(TX, "effective")]


def test_a_neighbour_whose_link_restarts_is_waited_for_again() -> None:
    broker_a = BrokerA()
    broker_a.submits(TX, replace(part("dora"), broker="D"))
    broker_a.machine.join("C")
    broker_a.hears(Echoed(TX, "effective"), "B")
    assert not effective(broker_a)
    broker_a.hears(Echoed(TX, "decide"), "C")
    assert effective(broker_a)


def test_a_removed_neighbour_is_not_waited_for() -> None:
    broker_a = BrokerA()
    broker_a.submits(TX, replace(part("dora"), broker="D"))
    broker_a.machine.dismiss("B")
    broker_a.carry_out()
    assert effective(broker_a)


def test_an_abort_is_not_reported_twice() -> None:
    broker_a = BrokerA()
    broker_a.submits(TX, key="once")
    broker_a.letters()
    broker_a.submits("dora/D-1.1/2", key="once")
    assert broker_a.letters() == []


def test_the_coordinator_is_answered_and_the_decision_stays_active() -> None:
    broker_a = BrokerA(root="B")
    broker_a.arrives("alice")
    tx = broker_a.begins(op("alice", 1))
    broker_a.ends(op("alice", 2), tx)
    broker_a.hears(Decide(tx, 1, True, brokers=("A",)), "B")
    assert broker_a.answer_to(op("alice", 2)) is None
    broker_a.gets(Effective(tx))
    assert broker_a.answer_to(op("alice", 2)) == Done(2, tx)
    assert tx in broker_a.machine.decisions.state.active
    broker_a.gets(Effective(tx))  # late
    broker_a.hears(Settle(tx))
    assert [who for who, _ in broker_a.answers].count(op("alice", 2)) == 1


def test_a_letter_that_comes_before_the_decision_answers_nothing() -> None:
    broker_a = BrokerA(root="B")
    broker_a.arrives("alice")
    tx = broker_a.begins(op("alice", 1))
    broker_a.ends(op("alice", 2), tx)
    broker_a.hears(Letter("A", Effective(tx)))
    assert broker_a.answer_to(op("alice", 2)) is None


def test_a_coordinator_is_told_nothing_of_a_decision_that_its_broker_has_missed() -> None:
    """It was settled without us: how it was decided, the root says when it is asked."""
    broker_a = BrokerA(root="B")
    broker_a.arrives("alice")
    tx = broker_a.begins(op("alice", 1))
    broker_a.ends(op("alice", 2), tx)
    broker_a.letters()
    broker_a.hears(Settle(tx), "C")
    assert broker_a.answer_to(op("alice", 2)) is None
    assert broker_a.letters() == [("B", Query(tx, "A"))]
    broker_a.gets(Verdict(tx, 7, True))
    assert broker_a.answer_to(op("alice", 2)) == Done(2, tx)


# ── what must wait until it is settled ───────────────────────────────────────────────────


def beginning() -> tuple[BrokerA, str]:
    """A transaction has begun a subscription of alice, and is not settled."""
    broker_a = BrokerA(root="B")
    broker_a.arrives("alice")
    tx = broker_a.begins(op("alice", 1))
    broker_a.adds(op("alice", 2), tx)
    begun = (Begun(op("alice", 2), SPACE, "1"),)
    broker_a.hears(Decide(tx, 1, True, "", begun, brokers=("A",)), "B")
    return broker_a, tx


def test_a_subscription_begun_by_a_transaction_is_removed_only_after_it_is_settled() -> None:
    broker_a, tx = beginning()
    request = UnsubscribeRequest(3, 2)
    assert broker_a.admits(op("alice", 3), request) is False
    broker_a.hears(Settle(tx))
    assert broker_a.released == [request]
    assert not broker_a.machine.decisions.state.held
    assert broker_a.admits(op("alice", 3), request) is True


def test_a_transaction_is_not_complete_while_part_of_it_waits() -> None:
    broker_a, _ = beginning()
    second = broker_a.begins(op("alice", 3))
    assert broker_a.admits(op("alice", 4), UnsubscribeRequest(4, 2, tag=Tag(second, "1"))) is False
    assert broker_a.machine.participant.state.locals[second].parts["alice"].pending == {4: None}
    broker_a.ends(op("alice", 5), second)
    assert any("before all its operations" in str(body) for _, body in broker_a.letters())


def waiting() -> tuple[BrokerA, Engage]:
    """A plan of carl ends what begins with a transaction of alice that is not settled."""
    broker_a, _ = beginning()
    broker_a.names(op("alice", 2), "wish")
    broker_a.session("alice").willing = True
    steps = (Step("unsubscribe", "1", "wish"),)
    plan = Engage("carl/B-1.1/1", "alice", steps, 10.0, ("alice",))
    broker_a.letters()
    broker_a.gets(plan)
    return broker_a, plan


def test_a_plan_waits_for_what_it_ends() -> None:
    broker_a, plan = waiting()
    assert broker_a.letters() == []
    assert broker_a.machine.decisions.state.held == [Held(TX_OF_ALICE, op("alice", 0), plan)]
    broker_a.hears(Settle(TX_OF_ALICE))
    ((broker, told),) = broker_a.letters()
    assert broker == "B"
    assert isinstance(told, Engaged)
    assert [each.op for each in told.contribution.ended] == [op("alice", 2)]


def test_a_plan_that_waits_is_refused_when_its_client_goes() -> None:
    broker_a, plan = waiting()
    broker_a.machine.left("alice", "A-1.1")
    broker_a.carry_out()
    assert ("B", Withdraw(plan.tx, "A", "the session of alice has ended")) in broker_a.letters()
    broker_a.hears(Settle(TX_OF_ALICE))
    assert not broker_a.released


def test_a_plan_that_was_aborted_waits_for_nothing() -> None:
    broker_a, plan = waiting()
    broker_a.hears(Decide(plan.tx, 2, False, "too late"))
    assert not broker_a.machine.decisions.state.held
    broker_a.hears(Settle(TX_OF_ALICE))
    assert not broker_a.released
    assert plan.tx not in broker_a.machine.participant.state.locals


def test_a_coordinator_that_waits_too_long_hears_that_it_is_committed_and_no_more() -> None:
    broker_a = BrokerA(root="B")
    broker_a.arrives("alice")
    tx = broker_a.begins(op("alice", 1), timeout_s=2.0)
    broker_a.ends(op("alice", 2), tx)
    broker_a.hears(Decide(tx, 1, True))
    assert broker_a.answer_to(op("alice", 2)) is None
    broker_a.machine.overdue(tx)
    broker_a.carry_out()
    assert broker_a.error(op("alice", 2))[0] == "StillSpreading"
    answers = len(broker_a.answers)
    broker_a.gets(Effective(tx))
    assert len(broker_a.answers) == answers  # one answer is enough


def test_a_transaction_is_not_effective_before_our_pubend_has_cut() -> None:
    broker_a = BrokerA(root="B")
    broker_a.arrives("alice")
    broker_a.advertises(op("alice", 1))
    tx = broker_a.begins(op("alice", 2))
    broker_a.stages(op("alice", 3), tx, body(x=1))
    broker_a.ends(op("alice", 4), tx)
    broker_a.hears(Decide(tx, 1, True, pubends=("A.1",)))
    broker_a.hears(Settle(tx))  # nobody has waited for us
    assert broker_a.answer_to(op("alice", 4)) is None
    broker_a.machine.cutter.cut(tx, 7)
    broker_a.carry_out()
    broker_a.machine.decisions.cut_told(tx)
    broker_a.carry_out()
    assert broker_a.answer_to(op("alice", 4)) == Done(4, tx)


def test_a_held_removal_is_done_even_if_its_process_has_left() -> None:
    """It has got nothing of it since, and the next one knows nothing of it."""
    broker_a, tx = beginning()
    request = UnsubscribeRequest(3, 2)
    assert broker_a.admits(op("alice", 3), request) is False
    assert broker_a.machine.decisions.state.held[0].forsaken == op("alice", 2)
    broker_a.machine.left("alice", "A-1.1")
    broker_a.hears(Settle(tx))
    assert broker_a.released == [request]


def test_removing_a_subscription_outside_the_transaction_does_not_wait() -> None:
    broker_a, _ = beginning()
    assert broker_a.admits(op("alice", 3), UnsubscribeRequest(3, 77)) is True
