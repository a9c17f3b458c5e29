"""Plans: everybody's broker does its part, and the root decides when it has all of them."""

from __future__ import annotations

from msgspec.structs import replace

from motet.protocol.session.messages import ExecuteRequest
from motet.protocol.transactions.collecting import SAME_KEY
from motet.protocol.transactions.messages import (
    Decide,
    Echoed,
    Engage,
    Engaged,
    Step,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.participating import GRACE_S, LATE, MOST_BYTES, WATCH
from tests.unit.transactions.office import Office, body, op, part
from tests.unit.transactions.test_deciding import decided

PLAN = "alice/A-1.1/1"
STEPS = (Step("publish", "1", body=bytes(body(x=1))),)


def engaged(client: str, cast: tuple[str, ...] = ("dora", "erik"), key: str = "") -> Engaged:
    home = client[0].upper()
    done = replace(part(client, events=1, pubend=f"{home}.1"), broker=home)
    return Engaged(PLAN, done, 10.0, cast, key)


def test_a_plan_is_given_to_everybody_at_once_with_the_whole_cast() -> None:
    office = Office()
    for client, broker in (("alice", "A"), ("dora", "D"), ("erik", "E")):
        office.arrives(client, broker)
    request = ExecuteRequest(1, (("dora", STEPS), ("erik", STEPS)), key="order 17")
    office.asks(op("alice", 1), request)
    cast = ("dora", "erik")
    assert office.letters() == [
        ("D", Engage(PLAN, "dora", STEPS, 10.0, cast, "order 17")),
        ("E", Engage(PLAN, "erik", STEPS, 10.0, cast, "order 17")),
    ]
    assert office.outcome(PLAN) == "expired"  # the root has not heard of it


def test_a_plan_that_somebody_refuses_is_aborted_with_its_words() -> None:
    office = Office()
    office.arrives("alice")
    office.arrives("dora", "D")
    steps = (Step("unsubscribe", "1", "never"),)
    office.asks(op("alice", 1), ExecuteRequest(1, (("dora", steps),)))
    office.gets(Withdraw(PLAN, "D", "dora: nothing called 'never'"))
    assert office.error(op("alice", 1)) == ("Aborted", "dora: nothing called 'never'")
    office.gets(engaged("dora", ("dora",)))  # late
    assert office.outcome(PLAN) == "aborted"


def test_the_root_decides_when_the_parts_of_the_whole_cast_are_done() -> None:
    office = Office()
    office.gets(engaged("erik"))
    assert decided(office) == []
    assert office.outcome(PLAN) == "in progress"
    assert office.timers[("transaction", f"{WATCH}{PLAN}")] == 10.0 + 2 * GRACE_S
    office.gets(engaged("dora"))
    told = [each for each in office.to("C") if isinstance(each, Decide)]
    assert [(each.committed, each.pubends) for each in told] == [(True, ("E.1", "D.1"))]
    assert not office.machine.state.gatherings
    assert not office.timers


def test_a_part_that_comes_twice_does_not_stand_for_another() -> None:
    office = Office()
    office.gets(engaged("erik"))
    office.gets(engaged("erik"))
    assert decided(office) == []
    office.gets(engaged("dora"))
    office.gets(engaged("dora"))
    assert decided(office) == [(PLAN, 1, True)]


def test_a_part_that_comes_behind_the_decision_hears_of_it() -> None:
    office = Office()
    office.gets(Withdraw(PLAN, "D", "dora does not want to"))
    assert decided(office) == [(PLAN, 1, False)]
    office.letters()
    office.gets(engaged("erik"))
    assert office.letters() == []  # the decision is on its way to everybody
    for neighbour in ("B", "C"):
        office.hears(Echoed(PLAN, "decide"), neighbour)
    office.letters()
    office.gets(engaged("erik"))
    assert office.letters() == [("E", Verdict(PLAN, 1, False, "dora does not want to"))]
    assert not office.machine.state.gatherings


def test_a_refusal_ends_the_collecting() -> None:
    office = Office()
    office.gets(engaged("erik"))
    office.gets(Withdraw(PLAN, "D", "dora does not want to"))
    assert decided(office) == [(PLAN, 1, False)]
    assert not office.machine.state.gatherings
    assert not office.timers


def test_a_plan_whose_parts_do_not_come_is_given_up_with_the_names_of_those() -> None:
    office = Office()
    office.gets(engaged("erik", ("dora", "erik", "frank")))
    office.goes_on(10.0 + 2 * GRACE_S)
    office.machine.overdue(f"{WATCH}{PLAN}")
    office.carry()
    (told,) = [each for each in office.to("C") if isinstance(each, Decide)]
    assert told == Decide(PLAN, 1, False, "dora, frank did not answer")
    assert not office.machine.state.gatherings


def test_who_executes_it_gives_it_up_first_and_the_root_knows_who_is_missing() -> None:
    office = Office()
    office.gets(engaged("erik"))
    office.gets(Withdraw(PLAN, "A", f"{LATE} 10 s"))
    (told,) = [each for each in office.to("C") if isinstance(each, Decide)]
    assert told.reason == "not complete within 10 s: dora did not answer"


def test_after_a_restart_the_root_waits_again_for_the_parts_that_are_missing() -> None:
    office = Office()
    office.gets(engaged("erik"))
    office.timers.clear()
    office.goes_on(3.0)
    again = {timer.key: timer.at for timer in office.machine.recover(3.0)}
    assert again == {("transaction", f"{WATCH}{PLAN}"): 3.0 + 10.0 + 2 * GRACE_S}
    office.gets(engaged("dora"))
    assert decided(office) == [(PLAN, 1, True)]


def test_of_all_plans_with_the_same_key_one_is_committed() -> None:
    office = Office()
    office.gets(engaged("dora", ("dora",), "order 17"))
    second = replace(engaged("dora", ("dora",), "order 17"), tx="alice/A-1.1/2")
    office.gets(second)
    assert decided(office) == [(PLAN, 1, True), (second.tx, 2, False)]
    assert office.machine.state.outcomes[second.tx].reason == f"{SAME_KEY}{PLAN}"


def test_parts_that_cannot_travel_together_are_not_decided() -> None:
    office = Office()
    for client in ("dora", "erik"):
        told = engaged(client)
        large = replace(told.contribution, size_bytes=MOST_BYTES // 2 + 1)
        office.gets(replace(told, contribution=large))
    assert decided(office) == [(PLAN, 1, False)]
    assert "do it in several transactions" in office.machine.state.outcomes[PLAN].reason
