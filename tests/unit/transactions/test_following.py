"""A client's part of a plan, in one request: all of it, or a refusal and nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from motet.errors import ProtocolError
from motet.model import Filter, OpId
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    Done,
    ExecuteRequest,
    Failed,
    FollowRequest,
    Invited,
)
from motet.protocol.transactions.messages import (
    Begun,
    Contribution,
    Decide,
    Engage,
    Engaged,
    Step,
    Submit,
    Withdraw,
)
from motet.protocol.transactions.participating import MOST_OPERATIONS
from tests.unit.transactions.office import SPACE, Office, body, op

TX = "alice/B-1.1/1"
HELD = op("bob", 1)
OFFER = op("bob", 2)

SUBSCRIBE = Step("subscribe", "1", "s", SPACE)
PUBLISH = Step("publish", "2", body=bytes(body(x=1)))
END = Step("unsubscribe", "3", "held")


def engaged(*steps: Step, advertises: bool = True) -> Office:
    """bob, at A, is called to do these for alice, at B, who decides; he has subscribed before."""
    office = Office(root="B")
    office.arrives("bob")
    office.subscribes(HELD)
    if advertises:
        office.advertises(OFFER)
    office.gets(Engage(TX, "bob", steps, 10.0))
    assert office.told == [("bob", Invited(TX, 10.0, steps=steps))]
    office.letters()
    return office


def follow(office: Office, additions: int = 0, targets: tuple[int, ...] = ()) -> OpId:
    who = op("bob", 10 + additions)
    office.asks(who, FollowRequest(who.sequence, TX, additions, targets))
    return who


def contribution(office: Office) -> Contribution:
    ((broker, letter),) = office.letters()
    assert broker == "B"
    assert isinstance(letter, Engaged)
    assert letter.refusal == ""
    assert letter.contribution is not None
    return letter.contribution


def refusal(office: Office) -> str:
    ((_, letter),) = office.letters()
    assert isinstance(letter, Engaged)
    return letter.refusal


def test_all_of_it_is_done_at_once_and_told() -> None:
    office = engaged(SUBSCRIBE, PUBLISH, END)
    follow(office, additions=1, targets=(1,))
    told = contribution(office)
    added = op("bob", 10)  # the number before its own
    assert told.begun == (Begun(added, SPACE, "1"),)
    assert [each.op for each in told.ended] == [HELD]
    assert (told.events, told.pubend) == (1, "A.1")
    entry = office.state.subscriptions.get(added)
    assert entry is not None
    assert entry.tx == TX


def test_nobody_waits_for_a_subscription_but_for_what_an_advertisement_attracts() -> None:
    office = engaged(Step("advertise", "1", "a", SPACE), advertises=False)
    office.asks(op("bob", 11), FollowRequest(11, TX, 1))
    assert office.letters() == []
    assert office.answer(op("bob", 11)) is None
    office.machine.effective(op("bob", 10), failed=False)
    office.carry()
    assert contribution(office).version == 1


@pytest.mark.parametrize("committed", [True, False])
def test_it_is_answered_with_the_decision(committed: bool) -> None:
    office = engaged(SUBSCRIBE)
    who = follow(office, additions=1)
    assert office.answer(who) is None
    office.hears(Decide(TX, 1, committed))
    assert office.answer(who) == Done(who.sequence)


def test_what_was_not_effective_when_it_was_decided_is_answered_once() -> None:
    office = engaged(Step("advertise", "1", "a", SPACE), advertises=False)
    office.asks(op("bob", 11), FollowRequest(11, TX, 1))
    office.hears(Decide(TX, 1, False, "too late"))
    assert [reply for who, reply in office.answers if who == op("bob", 11)] == [
        Failed(11, "Aborted", "too late")
    ]


def test_an_event_may_rest_on_an_advertisement_of_the_same_part() -> None:
    advertise = Step("advertise", "1", "a", Filter.parse("y > 0"))
    inside = Step("publish", "2", body=bytes(body(y=1)))
    office = engaged(advertise, inside)
    who = follow(office, additions=1)
    assert office.answer(who) is None  # it is under way


@pytest.mark.parametrize(
    ("steps", "additions", "targets", "error"),
    [
        ((PUBLISH,), 1, (), "MisuseError"),
        ((END,), 0, (), "MisuseError"),
        ((END,), 0, (7,), "NoSuchOperation"),
        ((END, replace(END, order="4")), 0, (1, 1), "NoSuchOperation"),
        ((Step("publish", "1", body=bytes(body(z=1))),), 0, (), "NotAdvertised"),
        ((Step("publish", "1", body=b"\xc1"),), 0, (), "FrameError"),
        ((Step("dance", "1"),), 0, (), "MisuseError"),
        ((PUBLISH,) * (MOST_OPERATIONS + 1), 0, (), "MisuseError"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_left(
    steps: tuple[Step, ...], additions: int, targets: tuple[int, ...], error: str
) -> None:
    office = engaged(SUBSCRIBE, *steps)
    who = follow(office, additions=1 + additions, targets=targets)
    assert office.error(who)[0] == error
    assert refusal(office).startswith(f"bob: {error}: ")
    assert [entry.id for entry in office.state.subscriptions] == [HELD]
    assert office.machine.state.locals[TX].parts["bob"].version == 0


def test_who_reads_in_total_order_begins_nothing_in_a_plan() -> None:
    office = engaged(SUBSCRIBE)
    office.state.merging["bob"] = None
    who = follow(office, additions=1)
    assert office.error(who)[0] == "NotOffered"
    assert "total order" in refusal(office)


def test_what_another_transaction_holds_is_not_taken_back() -> None:
    office = engaged(END)
    follow(office, targets=(1,))
    office.letters()
    other = replace(Engage(TX, "bob", (END,), 10.0), tx="carl/B-1.1/1")
    office.gets(other)
    who = op("bob", 20)
    office.asks(who, FollowRequest(20, other.tx, 0, (1,)))
    assert office.error(who)[0] == "InTransaction"


def test_only_who_was_called_follows_and_once() -> None:
    office = engaged(PUBLISH)
    stranger = op("carl", 3)
    office.asks(stranger, FollowRequest(3, TX))
    assert office.error(stranger)[0] == "NotInvited"
    follow(office)
    again = op("bob", 30)
    office.asks(again, FollowRequest(30, TX))
    assert office.error(again)[0] == "NotInvited"
    late = op("bob", 31)
    office.asks(late, FollowRequest(31, "alice/B-1.1/9"))
    assert office.error(late)[0] == "TransactionOver"


class TestNumbers:
    def test_it_has_the_numbers_of_what_it_adds(self) -> None:
        sessions = Sessions("A", 1)
        session = sessions.open("bob")
        request = FollowRequest(3, TX, 2)
        assert sessions.is_new(session, request)
        sessions.accept(session, request)
        assert session.requests == 3
        assert not sessions.is_new(session, request)

    @pytest.mark.parametrize("request_", [FollowRequest(3, TX, 1), FollowRequest(1, TX, 1)])
    def test_numbers_have_no_gap(self, request_: FollowRequest) -> None:
        sessions = Sessions("A", 1)
        session = sessions.open("bob")
        with pytest.raises(ProtocolError):
            sessions.is_new(session, request_)

    def test_no_number_is_used_again(self) -> None:
        sessions = Sessions("A", 1)
        session = sessions.open("bob")
        sessions.accept(session, FollowRequest(2, TX, 1))
        with pytest.raises(ProtocolError):
            sessions.is_new(session, FollowRequest(3, TX, 2))

    def test_a_negative_count_is_refused(self) -> None:
        sessions = Sessions("A", 1)
        session = sessions.open("bob")
        with pytest.raises(ProtocolError):
            sessions.is_new(session, FollowRequest(1, TX, -1))


def test_who_executes_a_plan_is_not_asked_what_it_publishes() -> None:
    office = Office(root="B")
    office.arrives("alice")
    office.advertises(op("alice", 1))
    office.asks(op("alice", 2), ExecuteRequest(2, (("alice", (PUBLISH,)),)))
    assert office.told == []
    ((broker, letter),) = office.letters()
    assert broker == "B"
    assert isinstance(letter, Submit)
    assert [(each.client, each.events) for each in letter.contributions] == [("alice", 1)]


def test_what_it_may_not_publish_is_not_submitted() -> None:
    office = Office(root="B")
    office.arrives("alice")
    office.asks(op("alice", 2), ExecuteRequest(2, (("alice", (PUBLISH,)),)))
    ((_, letter),) = office.letters()
    assert isinstance(letter, Withdraw)
    assert letter.reason.startswith("alice: NotAdvertised: ")


def test_who_executes_a_plan_and_does_more_is_asked() -> None:
    office = Office(root="B")
    office.arrives("alice")
    office.advertises(op("alice", 1))
    office.asks(op("alice", 2), ExecuteRequest(2, (("alice", (PUBLISH, SUBSCRIBE)),)))
    assert [type(told) for _, told in office.told] == [Invited]
    assert office.letters() == []
