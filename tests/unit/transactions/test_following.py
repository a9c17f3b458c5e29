"""A client's part of a plan, done by its broker: all of it, or a refusal and nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from motet.model import Filter, OpId
from motet.protocol.routing.messages import Unadvertise
from motet.protocol.session.messages import Decided, Done, ExecuteRequest, Over, Stands
from motet.protocol.session.state import GRANTED, MOST_NEWS
from motet.protocol.transactions.messages import (
    Begun,
    Contribution,
    Decide,
    Engage,
    Engaged,
    Step,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.participating import GRACE_S, MOST_OPERATIONS
from tests.unit.transactions.office import SPACE, Office, body, op

TX = "alice/B-1.1/1"
HELD = op("bob", 1)
OFFER = op("bob", 2)
FIRST = op("bob", GRANTED + 1)
ELSEWHERE = Filter.parse("y > 0")

SUBSCRIBE = Step("subscribe", "1", "s", SPACE)
ADVERTISE = Step("advertise", "1", "a", ELSEWHERE)
PUBLISH = Step("publish", "2", body=bytes(body(x=1)))
END = Step("unsubscribe", "3", "held")


def at_home(*, willing: bool = True) -> Office:
    """bob, at A, has an advertisement and a subscription; B is the root."""
    office = Office(root="B")
    office.arrives("bob")
    office.subscribes(HELD)
    office.names(HELD, "held")
    office.advertises(OFFER)
    if willing:
        office.consents("bob")
    return office


def plan(*steps: Step, tx: str = TX) -> Engage:
    return Engage(tx, "bob", steps, 10.0, ("alice", "bob"), "once")


def engaged(*steps: Step) -> Office:
    """bob is to do these for alice, at B."""
    office = at_home()
    office.gets(plan(*steps))
    return office


def contribution(office: Office) -> Contribution:
    ((broker, letter),) = office.letters()
    assert broker == "B"
    assert isinstance(letter, Engaged)
    assert (letter.timeout_s, letter.cast, letter.key) == (10.0, ("alice", "bob"), "once")
    return letter.contribution


def refusal(office: Office) -> str:
    ((broker, letter),) = office.letters()
    assert broker == "B"
    assert isinstance(letter, Withdraw)
    assert (letter.tx, letter.broker, letter.key) == (TX, "A", "once")
    return letter.reason


# ── consent ──────────────────────────────────────────────────────────────────────────────


def test_who_consents_is_answered_at_once() -> None:
    office = at_home(willing=False)
    office.consents("bob")
    assert office.answer(op("bob", 1)) == Done(1)
    assert office.session("bob").willing


def test_nothing_is_done_for_who_has_not_consented() -> None:
    office = at_home(willing=False)
    office.gets(plan(SUBSCRIBE))
    told = "bob takes part in no plans: await client.participate() lets it, or motet sub"
    assert refusal(office) == f"{told} --participate"
    assert [entry.id for entry in office.state.subscriptions] == [HELD]
    assert not office.machine.state.locals


def test_who_executes_a_plan_has_consented_to_it() -> None:
    office = at_home(willing=False)
    office.asks(op("bob", 3), ExecuteRequest(3, (("bob", (SUBSCRIBE, PUBLISH)),)))
    ((broker, letter),) = office.letters()
    assert broker == "B"
    assert isinstance(letter, Engaged)
    assert (letter.contribution.client, letter.contribution.events) == ("bob", 1)
    assert office.told == []


def test_who_is_not_here_has_no_part() -> None:
    office = Office(root="B")
    office.gets(plan(SUBSCRIBE))
    assert refusal(office) == "bob is not connected to A"


def test_a_part_of_who_is_away_is_done_and_is_told_when_it_comes_back() -> None:
    office = at_home()
    session = office.session("bob")
    session.left_at = 0.0
    office.gets(plan(SUBSCRIBE))
    assert contribution(office).begun == (Begun(FIRST, SPACE, "1"),)
    session.names[FIRST.sequence] = "x"
    stands = Stands(FIRST.sequence, "subscribe", "x", SPACE)
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


def test_all_of_it_is_done_at_once_and_the_root_hears_of_it() -> None:
    office = engaged(SUBSCRIBE, PUBLISH, END)
    told = contribution(office)
    assert told.begun == (Begun(FIRST, SPACE, "1"),)
    assert [each.op for each in told.ended] == [HELD]
    assert (told.events, told.pubend) == (1, "A.1")
    entry = office.state.subscriptions.get(FIRST)
    assert entry is not None
    assert entry.tx == TX
    assert office.told == []  # bob hears of it when it is decided


def test_what_is_added_has_numbers_that_no_request_has() -> None:
    office = engaged(SUBSCRIBE, replace(SUBSCRIBE, order="2", name="t"))
    numbers = [each.op.sequence for each in contribution(office).begun]
    assert numbers == [GRANTED + 1, GRANTED + 2]
    office.gets(plan(SUBSCRIBE, tx="alice/B-1.1/2"))
    assert [each.op.sequence for each in contribution(office).begun] == [GRANTED + 3]


def test_nobody_waits_for_a_subscription_but_for_what_an_advertisement_attracts() -> None:
    office = engaged(ADVERTISE)
    assert office.letters() == []
    office.machine.effective(FIRST, failed=False)
    office.carry()
    assert contribution(office).version == 1


def test_an_event_may_rest_on_an_advertisement_of_the_same_part() -> None:
    office = engaged(ADVERTISE, Step("publish", "2", body=bytes(body(y=1))))
    office.machine.effective(FIRST, failed=False)
    office.carry()
    assert contribution(office).events == 1


# ── what it takes back ───────────────────────────────────────────────────────────────────


def ended(office: Office) -> list[OpId]:
    return [each.op for each in contribution(office).ended]


def test_what_has_no_name_is_called_by_its_filter() -> None:
    office = at_home()
    nameless = op("bob", 3)
    office.subscribes(nameless, ELSEWHERE)
    office.gets(plan(Step("unsubscribe", "1", str(ELSEWHERE))))
    assert ended(office) == [nameless]


def test_what_has_a_name_is_not_called_by_its_filter() -> None:
    assert "NoSuchOperation" in refusal(engaged(Step("unsubscribe", "1", str(SPACE))))


def test_an_advertisement_and_a_subscription_may_have_the_same_name() -> None:
    office = at_home()
    office.names(OFFER, "held")
    office.gets(plan(Step("unadvertise", "1", "held"), replace(END, order="2")))
    assert ended(office) == [HELD]
    assert office.machine.state.locals[TX].parts["bob"].unadvertised == {OFFER.sequence: "1"}


def test_two_of_one_name_are_taken_back_one_after_the_other() -> None:
    office = at_home()
    twin = op("bob", 3)
    office.subscribes(twin, ELSEWHERE)
    office.names(twin, "held")
    office.gets(plan(END, replace(END, order="4")))
    assert ended(office) == [HELD, twin]


def test_of_two_of_one_name_the_one_that_no_transaction_holds_is_taken_back() -> None:
    office = at_home()
    twin = op("bob", 3)
    office.subscribes(twin)
    office.names(twin, "held")
    office.gets(plan(END, tx="carl/B-1.1/1"))
    assert ended(office) == [HELD]
    office.gets(plan(END))
    assert ended(office) == [twin]


def test_of_another_client_nothing_is_taken_back() -> None:
    office = at_home()
    office.arrives("carl")
    other = op("carl", 7)
    office.subscribes(other)
    office.names(other, "his")
    office.gets(plan(Step("unsubscribe", "1", "his")))
    assert refusal(office) == "bob: NoSuchOperation: unsubscribe: 'his' is not in force"


def test_what_another_transaction_holds_is_not_taken_back() -> None:
    office = at_home()
    office.gets(plan(END, tx="carl/B-1.1/1"))
    assert ended(office) == [HELD]
    office.gets(plan(END))
    assert refusal(office).startswith("bob: InTransaction: 'held' of bob is part of transaction")


# ── or none ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ((replace(END, name="never"),), "NoSuchOperation: unsubscribe: 'never' is not in force"),
        ((Step("unadvertise", "3", "held"),), "NoSuchOperation: unadvertise: 'held' is not in"),
        ((END, replace(END, order="4")), "NoSuchOperation: unsubscribe: 'held' is taken back"),
        ((Step("publish", "1", body=bytes(body(z=1))),), "NotAdvertised"),
        ((Step("publish", "1", body=b"\xc1"),), "FrameError"),
        ((Step("dance", "1"),), "MisuseError"),
        ((Step("subscribe", "2", "no filter"),), "MisuseError"),
        ((PUBLISH,) * (MOST_OPERATIONS + 1), "MisuseError"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_left(
    steps: tuple[Step, ...], error: str
) -> None:
    office = engaged(SUBSCRIBE, *steps)
    assert refusal(office).startswith(f"bob: {error}")
    assert [entry.id for entry in office.state.subscriptions] == [HELD]
    office.hears(Decide(TX, 1, False, "refused"))
    assert office.told == []  # bob has never heard of it
    assert not office.machine.state.locals


def test_who_reads_in_total_order_begins_nothing_in_a_plan() -> None:
    office = at_home()
    office.state.merging["bob"] = None
    office.gets(plan(SUBSCRIBE))
    why = refusal(office)
    assert why.startswith("bob: NotOffered: ")
    assert "total order" in why


def test_in_a_durable_session_no_name_is_taken_twice() -> None:
    office = at_home()
    office.session("bob").keep_s = 60.0
    again = replace(SUBSCRIBE, name="held")
    office.gets(plan(again))
    assert refusal(office) == "bob: NameTaken: 'held' stands already: choose another name"
    office.hears(Decide(TX, 1, False, "refused"))
    office.gets(plan(END, again, tx="alice/B-1.1/2"))  # unless it goes with the same plan
    assert len(contribution(office).begun) == 1


def test_a_part_is_done_once() -> None:
    office = engaged(SUBSCRIBE)
    contribution(office)
    office.gets(plan(SUBSCRIBE))
    assert refusal(office).startswith("bob: TransactionOver: it has done its part before")
    assert [entry.id for entry in office.state.subscriptions] == [HELD, FIRST]


def test_a_letter_that_the_decision_has_overtaken_does_nothing() -> None:
    office = at_home()
    office.hears(Decide(TX, 1, False, "too late"))
    office.gets(plan(SUBSCRIBE, END))
    assert office.letters() == []
    assert not office.machine.state.locals


def test_a_letter_that_comes_when_all_is_settled_is_undone_by_the_verdict() -> None:
    office = engaged(SUBSCRIBE, END)
    assert office.timers[("transaction", TX)] == 10.0 + GRACE_S
    office.letters()
    office.gets(Verdict(TX, 3, False, "it was aborted long ago"))
    assert [entry.id for entry in office.state.subscriptions] == [HELD]
    assert not office.machine.state.locals
    assert not office.timers


# ── how it ends ──────────────────────────────────────────────────────────────────────────


def test_a_commit_tells_its_client_what_has_begun_and_what_has_ended() -> None:
    office = engaged(SUBSCRIBE, END, Step("unadvertise", "4", str(SPACE)))
    begun = contribution(office).begun
    office.hears(Decide(TX, 3, True, begun=begun, brokers=("A",)))
    added = (Stands(FIRST.sequence, "subscribe", "s", SPACE),)
    assert office.told == [("bob", Decided(TX, 3, True, "", added, (1, 2)))]
    assert office.last.ending == [HELD]
    assert office.routed[-1] == Unadvertise(OFFER)


def test_of_an_abort_its_client_hears_nothing_and_nothing_is_left() -> None:
    office = engaged(SUBSCRIBE, END, replace(ADVERTISE, order="4"))
    office.hears(Decide(TX, 3, False, "no"))
    assert office.told == []
    assert [entry.id for entry in office.state.subscriptions] == [HELD]
    assert [*office.state.retired] == [op("bob", GRANTED + 2)]  # until others have let go of it
    assert office.session("bob").names == {HELD.sequence: "held"}
    office.gets(plan(END, tx="alice/B-1.1/2"))
    assert ended(office) == [HELD]


def test_what_a_plan_has_added_the_next_one_takes_back_by_its_name() -> None:
    office = engaged(replace(ADVERTISE, filter=ELSEWHERE))
    office.machine.effective(FIRST, failed=False)
    office.carry()
    office.letters()
    office.hears(Decide(TX, 1, True, brokers=("A",)))
    second = "alice/B-1.1/2"
    office.gets(plan(Step("unadvertise", "1", "a"), tx=second))
    assert contribution(office).version == 1
    office.hears(Decide(second, 2, True, brokers=("A",)))
    assert office.told[-1] == ("bob", Decided(second, 2, True, "", (), (FIRST.sequence,)))
    assert FIRST.sequence not in office.session("bob").names
