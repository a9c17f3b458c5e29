"""Plans: the broker of each client does its part, and the root decides when it has all parts."""

from __future__ import annotations

from msgspec.structs import replace

from motet.protocol.session.messages import ExecuteRequest
from motet.protocol.transactions.courier import Abandoned, text_of, timer_key
from motet.protocol.transactions.messages import (
    Decide,
    Echoed,
    Engage,
    Engaged,
    SameKey,
    Step,
    TimeoutReason,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.participant import GRACE_S, MOST_BYTES
from tests.unit.transactions.broker_a import BrokerA, body, op, part
from tests.unit.transactions.test_root import decided

PLAN = "alice/A-1.1/1"
STEPS = (Step("publish", "1", body=bytes(body(x=1))),)


def engaged(client: str, cast: tuple[str, ...] = ("dora", "erik"), key: str = "") -> Engaged:
    home = client[0].upper()
    done = replace(part(client, events=1, pubend=f"{home}.1"), broker=home)
    return Engaged(PLAN, done, 10.0, cast, key)


def test_a_plan_is_sent_to_all_participants_at_once_with_the_whole_cast() -> None:
    broker_a = BrokerA()
    for client, broker in (("alice", "A"), ("dora", "D"), ("erik", "E")):
        broker_a.arrives(client, broker)
    request = ExecuteRequest(1, (("dora", STEPS), ("erik", STEPS)), key="order 17")
    broker_a.asks(op("alice", 1), request)
    cast = ("dora", "erik")
    assert broker_a.letters() == [
        ("D", Engage(PLAN, "dora", STEPS, 10.0, cast, "order 17")),
        ("E", Engage(PLAN, "erik", STEPS, 10.0, cast, "order 17")),
    ]
    assert broker_a.outcome(PLAN) == "expired"  # the root has not heard of it


def test_a_plan_that_a_participant_refuses_is_aborted_with_its_reason() -> None:
    broker_a = BrokerA()
    broker_a.arrives("alice")
    broker_a.arrives("dora", "D")
    steps = (Step("unsubscribe", "1", "never"),)
    broker_a.asks(op("alice", 1), ExecuteRequest(1, (("dora", steps),)))
    broker_a.gets(Withdraw(PLAN, "D", "dora: nothing called 'never'"))
    assert broker_a.error(op("alice", 1)) == ("Aborted", "dora: nothing called 'never'")
    broker_a.gets(engaged("dora", ("dora",)))  # late
    assert broker_a.outcome(PLAN) == "aborted"


def test_the_root_decides_when_the_parts_of_the_whole_cast_are_done() -> None:
    broker_a = BrokerA()
    broker_a.gets(engaged("erik"))
    assert decided(broker_a) == []
    assert broker_a.outcome(PLAN) == "in progress"
    assert broker_a.timers[timer_key(Abandoned(PLAN))] == 10.0 + 2 * GRACE_S
    broker_a.gets(engaged("dora"))
    told = [each for each in broker_a.to("C") if isinstance(each, Decide)]
    assert [(each.committed, each.pubends) for each in told] == [(True, ("E.1", "D.1"))]
    assert not broker_a.machine.decider.state.gatherings
    assert not broker_a.timers


def test_a_repeated_part_does_not_replace_a_missing_one() -> None:
    broker_a = BrokerA()
    broker_a.gets(engaged("erik"))
    broker_a.gets(engaged("erik"))
    assert decided(broker_a) == []
    broker_a.gets(engaged("dora"))
    broker_a.gets(engaged("dora"))
    assert decided(broker_a) == [(PLAN, 1, True)]


def test_a_part_that_comes_behind_the_decision_hears_of_it() -> None:
    broker_a = BrokerA()
    broker_a.gets(Withdraw(PLAN, "D", "dora does not want to"))
    assert decided(broker_a) == [(PLAN, 1, False)]
    broker_a.letters()
    broker_a.gets(engaged("erik"))
    assert broker_a.letters() == []  # the decision is on its way to everybody
    for neighbour in ("B", "C"):
        broker_a.hears(Echoed(PLAN, "decide"), neighbour)
    broker_a.letters()
    broker_a.gets(engaged("erik"))
    assert broker_a.letters() == [("E", Verdict(PLAN, 1, False, "dora does not want to"))]
    assert not broker_a.machine.decider.state.gatherings


def test_a_refusal_ends_the_collecting() -> None:
    broker_a = BrokerA()
    broker_a.gets(engaged("erik"))
    broker_a.gets(Withdraw(PLAN, "D", "dora does not want to"))
    assert decided(broker_a) == [(PLAN, 1, False)]
    assert not broker_a.machine.decider.state.gatherings
    assert not broker_a.timers


def test_a_plan_whose_parts_do_not_come_is_given_up_with_the_names_of_those() -> None:
    broker_a = BrokerA()
    broker_a.gets(engaged("erik", ("dora", "erik", "frank")))
    broker_a.goes_on(10.0 + 2 * GRACE_S)
    broker_a.machine.overdue(text_of(Abandoned(PLAN)))
    broker_a.carry_out()
    (told,) = [each for each in broker_a.to("C") if isinstance(each, Decide)]
    assert told == Decide(PLAN, 1, False, "dora, frank did not answer")
    assert not broker_a.machine.decider.state.gatherings


def test_the_coordinator_gives_up_first_and_the_root_knows_the_missing_clients() -> None:
    broker_a = BrokerA()
    broker_a.gets(engaged("erik"))
    broker_a.gets(Withdraw(PLAN, "A", TimeoutReason.after(10.0).text))
    (told,) = [each for each in broker_a.to("C") if isinstance(each, Decide)]
    assert told.reason == "not complete within 10 s: dora did not answer"


def test_after_a_restart_the_root_waits_again_for_the_parts_that_are_missing() -> None:
    broker_a = BrokerA()
    broker_a.gets(engaged("erik"))
    broker_a.timers.clear()
    broker_a.goes_on(3.0)
    again = {timer.key: timer.at for timer in broker_a.machine.recover(3.0)}
    assert again == {timer_key(Abandoned(PLAN)): 3.0 + 10.0 + 2 * GRACE_S}
    broker_a.gets(engaged("dora"))
    assert decided(broker_a) == [(PLAN, 1, True)]


def test_one_of_several_plans_with_the_same_key_is_committed() -> None:
    broker_a = BrokerA()
    broker_a.gets(engaged("dora", ("dora",), "order 17"))
    second = replace(engaged("dora", ("dora",), "order 17"), tx="alice/A-1.1/2")
    broker_a.gets(second)
    assert decided(broker_a) == [(PLAN, 1, True), (second.tx, 2, False)]
    assert broker_a.machine.decider.state.outcomes[second.tx].reason == SameKey(PLAN).text


def test_parts_that_cannot_travel_together_are_not_decided() -> None:
    broker_a = BrokerA()
    for client in ("dora", "erik"):
        told = engaged(client)
        large = replace(told.contribution, size_bytes=MOST_BYTES // 2 + 1)
        broker_a.gets(replace(told, contribution=large))
    assert decided(broker_a) == [(PLAN, 1, False)]
    assert "use several transactions" in broker_a.machine.decider.state.outcomes[PLAN].reason
