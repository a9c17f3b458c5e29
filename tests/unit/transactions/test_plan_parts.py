"""A client's part of a plan, done by its broker: all of it, or nothing and a refusal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from motet.model import Filter, OpId
from motet.protocol.changes import SubscriptionEnding
from motet.protocol.routing.messages import Unadvertise
from motet.protocol.session.messages import Decided, Done, ExecuteRequest, Over, StandingEntry
from motet.protocol.session.state import GRANTED, MOST_NEWS
from motet.protocol.transactions.messages import (
    MOST_OPERATIONS,
    Begun,
    Contribution,
    Decide,
    Engage,
    Engaged,
    Step,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.participant import GRACE_S
from tests.unit.transactions.broker_a import SPACE, BrokerA, body, op

TX = "alice/B-1.1/1"
HELD = op("bob", 1)
OFFER = op("bob", 2)
FIRST = op("bob", GRANTED + 1)
ELSEWHERE = Filter.parse("y > 0")

SUBSCRIBE = Step("subscribe", "1", "s", SPACE)
ADVERTISE = Step("advertise", "1", "a", ELSEWHERE)
PUBLISH = Step("publish", "2", body=bytes(body(x=1)))
END = Step("unsubscribe", "3", "held")


def at_home(*, willing: bool = True) -> BrokerA:
    """bob, at A, has an advertisement and a subscription; B is the root."""
    broker_a = BrokerA(root="B")
    broker_a.arrives("bob")
    broker_a.subscribes(HELD)
    broker_a.names(HELD, "held")
    broker_a.advertises(OFFER)
    if willing:
        broker_a.consents("bob")
    return broker_a


def plan(*steps: Step, tx: str = TX) -> Engage:
    return Engage(tx, "bob", steps, 10.0, ("alice", "bob"), "once")


def engaged(*steps: Step) -> BrokerA:
    """bob is to do these for alice, at B."""
    broker_a = at_home()
    broker_a.gets(plan(*steps))
    return broker_a


def contribution(broker_a: BrokerA) -> Contribution:
    ((broker, letter),) = broker_a.letters()
    assert broker == "B"
    assert isinstance(letter, Engaged)
    assert (letter.timeout_s, letter.cast, letter.key) == (10.0, ("alice", "bob"), "once")
    return letter.contribution


def refusal(broker_a: BrokerA) -> str:
    ((broker, letter),) = broker_a.letters()
    assert broker == "B"
    assert isinstance(letter, Withdraw)
    assert (letter.tx, letter.broker, letter.key) == (TX, "A", "once")
    return letter.reason


# ── consent ──────────────────────────────────────────────────────────────────────────────


def test_a_consent_is_answered_at_once() -> None:
    broker_a = at_home(willing=False)
    broker_a.consents("bob")
    assert broker_a.answer_to(op("bob", 1)) == Done(1)
    assert broker_a.session("bob").willing


def test_a_plan_does_nothing_for_a_client_without_consent() -> None:
    broker_a = at_home(willing=False)
    broker_a.gets(plan(SUBSCRIBE))
    told = "bob does not take part in plans; use client.participate(), or motet sub"
    assert refusal(broker_a) == f"{told} --participate"
    assert [entry.id for entry in broker_a.state.subscriptions] == [HELD]
    assert not broker_a.machine.participant.state.locals


def test_the_coordinator_of_a_plan_has_consented_to_it() -> None:
    broker_a = at_home(willing=False)
    broker_a.asks(op("bob", 3), ExecuteRequest(3, (("bob", (SUBSCRIBE, PUBLISH)),)))
    ((broker, letter),) = broker_a.letters()
    assert broker == "B"
    assert isinstance(letter, Engaged)
    assert (letter.contribution.client, letter.contribution.events) == ("bob", 1)
    assert broker_a.told == []


def test_a_client_of_another_broker_has_no_part() -> None:
    broker_a = BrokerA(root="B")
    broker_a.gets(plan(SUBSCRIBE))
    assert refusal(broker_a) == "bob is not connected to A"


def test_the_part_of_an_absent_client_is_done_and_reported_when_it_reconnects() -> None:
    broker_a = at_home()
    session = broker_a.session("bob")
    session.left_at = 0.0
    broker_a.gets(plan(SUBSCRIBE))
    assert contribution(broker_a).begun == (Begun(FIRST, SPACE, "1"),)
    session.names[FIRST.sequence] = "x"
    stands = StandingEntry(FIRST.sequence, "subscribe", "x", SPACE)
    session.hear(Decided(TX, 1, True, "", (stands,)))
    for number in range(5 * MOST_NEWS):  # it does not come back for long
        session.hear(Over(number))
    assert len(session.news) < 2 * MOST_NEWS
    assert session.retold()[0] == Decided(TX, 1, True, "", (stands,))
    del session.names[FIRST.sequence]  # it is over
    assert session.retold()[0] == Decided(TX, 1, True)
    for number in range(2 * MOST_NEWS):
        session.hear(Over(number))
    assert not any(isinstance(each, Decided) for each in session.news)


# ── all of it ────────────────────────────────────────────────────────────────────────────


def test_a_part_of_a_plan_is_done_at_once_and_reported_to_the_root() -> None:
    broker_a = engaged(SUBSCRIBE, PUBLISH, END)
    told = contribution(broker_a)
    assert told.begun == (Begun(FIRST, SPACE, "1"),)
    assert [each.op for each in told.ended] == [HELD]
    assert (told.events, told.pubend) == (1, "A.1")
    entry = broker_a.state.subscriptions.get(FIRST)
    assert entry is not None
    assert entry.tx == TX
    assert broker_a.told == []  # bob hears of it when it is decided


def test_operations_added_by_a_plan_have_numbers_of_their_own() -> None:
    broker_a = engaged(SUBSCRIBE, replace(SUBSCRIBE, order="2", name="t"))
    numbers = [each.op.sequence for each in contribution(broker_a).begun]
    assert numbers == [GRANTED + 1, GRANTED + 2]
    broker_a.gets(plan(SUBSCRIBE, tx="alice/B-1.1/2"))
    assert [each.op.sequence for each in contribution(broker_a).begun] == [GRANTED + 3]


def test_a_plan_waits_for_attracted_subscriptions_but_not_for_new_ones() -> None:
    broker_a = engaged(ADVERTISE)
    assert broker_a.letters() == []
    broker_a.machine.effective(FIRST, failed=False)
    broker_a.carry_out()
    assert contribution(broker_a).version == 1


def test_an_event_may_be_published_under_an_advertisement_of_the_same_part() -> None:
    broker_a = engaged(ADVERTISE, Step("publish", "2", body=bytes(body(y=1))))
    broker_a.machine.effective(FIRST, failed=False)
    broker_a.carry_out()
    assert contribution(broker_a).events == 1


# ── what it takes back ───────────────────────────────────────────────────────────────────


def ended(broker_a: BrokerA) -> list[OpId]:
    return [each.op for each in contribution(broker_a).ended]


def test_a_plan_refers_to_a_nameless_subscription_by_its_filter() -> None:
    broker_a = at_home()
    nameless = op("bob", 3)
    broker_a.subscribes(nameless, ELSEWHERE)
    broker_a.gets(plan(Step("unsubscribe", "1", str(ELSEWHERE))))
    assert ended(broker_a) == [nameless]


def test_a_plan_cannot_refer_to_a_named_subscription_by_its_filter() -> None:
    assert "NoSuchOperation" in refusal(engaged(Step("unsubscribe", "1", str(SPACE))))


def test_an_advertisement_and_a_subscription_may_have_the_same_name() -> None:
    broker_a = at_home()
    broker_a.names(OFFER, "held")
    broker_a.gets(plan(Step("unadvertise", "1", "held"), replace(END, order="2")))
    assert ended(broker_a) == [HELD]
    assert broker_a.machine.participant.state.locals[TX].parts["bob"].unadvertised == {
        OFFER.sequence: "1"
    }


def test_two_subscriptions_with_one_name_are_removed_in_order() -> None:
    broker_a = at_home()
    twin = op("bob", 3)
    broker_a.subscribes(twin, ELSEWHERE)
    broker_a.names(twin, "held")
    broker_a.gets(plan(END, replace(END, order="4")))
    assert ended(broker_a) == [HELD, twin]


def test_a_plan_removes_the_namesake_that_no_other_transaction_holds() -> None:
    broker_a = at_home()
    twin = op("bob", 3)
    broker_a.subscribes(twin)
    broker_a.names(twin, "held")
    broker_a.gets(plan(END, tx="carl/B-1.1/1"))
    assert ended(broker_a) == [HELD]
    broker_a.gets(plan(END))
    assert ended(broker_a) == [twin]


def test_a_plan_does_not_remove_subscriptions_of_another_client() -> None:
    broker_a = at_home()
    broker_a.arrives("carl")
    other = op("carl", 7)
    broker_a.subscribes(other)
    broker_a.names(other, "his")
    broker_a.gets(plan(Step("unsubscribe", "1", "his")))
    assert refusal(broker_a) == "bob: NoSuchOperation: unsubscribe: 'his' is not in force"


def test_a_plan_does_not_remove_a_subscription_that_another_transaction_holds() -> None:
    broker_a = at_home()
    broker_a.gets(plan(END, tx="carl/B-1.1/1"))
    assert ended(broker_a) == [HELD]
    broker_a.gets(plan(END))
    assert refusal(broker_a).startswith("bob: InTransaction: 'held' of bob is part of transaction")


# ── or none ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ((replace(END, name="never"),), "NoSuchOperation: unsubscribe: 'never' is not in force"),
        ((Step("unadvertise", "3", "held"),), "NoSuchOperation: unadvertise: 'held' is not in"),
        ((END, replace(END, order="4")), "NoSuchOperation: unsubscribe: 'held' is cancelled twice"),
        ((Step("publish", "1", body=bytes(body(z=1))),), "NotAdvertised"),
        ((Step("publish", "1", body=b"\xc1"),), "FrameError"),
        ((Step("dance", "1"),), "MisuseError"),
        ((Step("subscribe", "2", "no filter"),), "MisuseError"),
        ((PUBLISH,) * (MOST_OPERATIONS + 1), "MisuseError"),
    ],
)
def test_an_impossible_part_of_a_plan_is_refused_and_undone(
    steps: tuple[Step, ...], error: str
) -> None:
    broker_a = engaged(SUBSCRIBE, *steps)
    assert refusal(broker_a).startswith(f"bob: {error}")
    assert [entry.id for entry in broker_a.state.subscriptions] == [HELD]
    broker_a.hears(Decide(TX, 1, False, "refused"))
    assert broker_a.told == []  # bob has never heard of it
    assert not broker_a.machine.participant.state.locals


def test_a_client_in_total_order_begins_nothing_in_a_plan() -> None:
    broker_a = at_home()
    broker_a.routing.joins.enter("bob")
    broker_a.gets(plan(SUBSCRIBE))
    why = refusal(broker_a)
    assert why.startswith("bob: NotOffered: ")
    assert "total order" in why


def test_in_a_durable_session_no_name_is_taken_twice() -> None:
    broker_a = at_home()
    broker_a.session("bob").keep_s = 60.0
    again = replace(SUBSCRIBE, name="held")
    broker_a.gets(plan(again))
    assert refusal(broker_a) == "bob: NameTaken: 'held' is already in force; use another name"
    broker_a.hears(Decide(TX, 1, False, "refused"))
    broker_a.gets(plan(END, again, tx="alice/B-1.1/2"))  # unless it goes with the same plan
    assert len(contribution(broker_a).begun) == 1


def test_a_part_is_done_once() -> None:
    broker_a = engaged(SUBSCRIBE)
    contribution(broker_a)
    broker_a.gets(plan(SUBSCRIBE))
    assert refusal(broker_a).startswith("bob: TransactionOver: this client, or an earlier session")
    assert [entry.id for entry in broker_a.state.subscriptions] == [HELD, FIRST]


def test_a_letter_that_the_decision_has_overtaken_does_nothing() -> None:
    broker_a = at_home()
    broker_a.hears(Decide(TX, 1, False, "too late"))
    broker_a.gets(plan(SUBSCRIBE, END))
    assert broker_a.letters() == []
    assert not broker_a.machine.participant.state.locals


def test_a_letter_that_comes_when_all_is_settled_is_undone_by_the_verdict() -> None:
    broker_a = engaged(SUBSCRIBE, END)
    assert broker_a.timers[("transaction", TX)] == 10.0 + GRACE_S
    broker_a.letters()
    broker_a.gets(Verdict(TX, 3, False, "it was aborted long ago"))
    assert [entry.id for entry in broker_a.state.subscriptions] == [HELD]
    assert not broker_a.machine.participant.state.locals
    assert not broker_a.timers


# ── how it ends ──────────────────────────────────────────────────────────────────────────


def test_a_commit_tells_its_client_what_has_begun_and_what_has_ended() -> None:
    broker_a = engaged(SUBSCRIBE, END, Step("unadvertise", "4", str(SPACE)))
    begun = contribution(broker_a).begun
    broker_a.hears(Decide(TX, 3, True, begun=begun, brokers=("A",)))
    added = (StandingEntry(FIRST.sequence, "subscribe", "s", SPACE),)
    assert broker_a.told == [("bob", Decided(TX, 3, True, "", added, (1, 2)))]
    assert SubscriptionEnding(HELD) in broker_a.changes
    assert broker_a.routing.applied[-1] == Unadvertise(OFFER)


def test_an_aborted_plan_is_undone_and_its_client_is_not_told() -> None:
    broker_a = engaged(SUBSCRIBE, END, replace(ADVERTISE, order="4"))
    broker_a.hears(Decide(TX, 3, False, "no"))
    assert broker_a.told == []
    assert [entry.id for entry in broker_a.state.subscriptions] == [HELD]
    assert [*broker_a.state.retired] == [op("bob", GRANTED + 2)]  # until others have let go of it
    assert broker_a.session("bob").names == {HELD.sequence: "held"}
    broker_a.gets(plan(END, tx="alice/B-1.1/2"))
    assert ended(broker_a) == [HELD]


def test_a_plan_removes_by_name_what_an_earlier_plan_added() -> None:
    broker_a = engaged(replace(ADVERTISE, filter=ELSEWHERE))
    broker_a.machine.effective(FIRST, failed=False)
    broker_a.carry_out()
    broker_a.letters()
    broker_a.hears(Decide(TX, 1, True, brokers=("A",)))
    second = "alice/B-1.1/2"
    broker_a.gets(plan(Step("unadvertise", "1", "a"), tx=second))
    assert contribution(broker_a).version == 1
    broker_a.hears(Decide(second, 2, True, brokers=("A",)))
    assert broker_a.told[-1] == ("bob", Decided(second, 2, True, "", (), (FIRST.sequence,)))
    assert FIRST.sequence not in broker_a.session("bob").names
