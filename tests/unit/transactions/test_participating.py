"""Clients of one broker in transactions: who may do what, who is waited for, how it ends."""

from __future__ import annotations

from motet.model import Filter, OpId
from motet.protocol.routing.messages import Unsubscribe
from motet.protocol.session.messages import (
    Decided,
    Done,
    Invited,
    InviteRequest,
    Over,
    StageRequest,
    SubscribeRequest,
    Tag,
    UnsubscribeRequest,
)
from motet.protocol.transactions.messages import (
    Contribution,
    Decide,
    Echoed,
    Invite,
    Reply,
    Withdraw,
)
from motet.protocol.transactions.participating import (
    GRACE_S,
    MOST_BYTES,
    MOST_OPERATIONS,
    too_large,
)
from tests.unit.transactions.office import SPACE, Office, body, op, part

ALICE, BOB = op("alice", 1), op("bob", 1)
TX = str(ALICE)


def office_of(*clients: str, root: str = "B") -> Office:
    office = Office(root)
    for client in clients:
        office.arrives(client)
    return office


# ── who may do what ──────────────────────────────────────────────────────────────────────


def test_only_who_takes_part_may_act() -> None:
    office = office_of("alice", "carl")
    office.advertises(op("carl", 1))
    office.begins(ALICE)
    office.stages(op("carl", 2), TX, body(x=1))
    assert office.error(op("carl", 2)) == (
        "NotInvited",
        f"carl has no part in transaction {TX}: it must be invited first",
    )
    office.stages(op("carl", 3), "zoe/Z-1.1/9", body(x=1))
    assert office.error(op("carl", 3))[0] == "TransactionOver"


def test_an_event_lies_inside_what_its_client_has_advertised() -> None:
    office = office_of("alice")
    office.begins(ALICE)
    office.stages(op("alice", 2), TX, body(x=1))
    assert office.error(op("alice", 2))[0] == "NotAdvertised"
    office.advertises(op("alice", 3), SPACE, TX)  # in the same transaction
    office.stages(op("alice", 4), TX, body(x=1))
    assert office.answer(op("alice", 4)) == Done(4)
    office.advertises(op("alice", 5), Filter.parse("y > 0"), "alice/A-1.1/77")
    office.stages(op("alice", 6), TX, body(y=1))
    assert office.error(op("alice", 6))[0] == "NotAdvertised"


def test_what_is_part_of_an_open_transaction_belongs_to_it() -> None:
    office = office_of("alice")
    wish = op("alice", 1)
    office.subscribes(wish)
    first, second = office.begins(op("alice", 2)), office.begins(op("alice", 3))
    mark = UnsubscribeRequest(4, 1, tag=Tag(first, "1"))
    assert office.machine.objection(op("alice", 4), mark) is None
    assert not office.machine.note(op("alice", 4), mark, Tag(first, "1"))
    for again in (UnsubscribeRequest(5, 1), UnsubscribeRequest(5, 1, tag=Tag(second, "1"))):
        found = office.machine.objection(op("alice", 5), again)
        assert found is not None
        assert found[0] == "InTransaction"
    found = office.machine.objection(op("alice", 6), UnsubscribeRequest(6, 1, tag=Tag(first, "2")))
    assert found is not None
    assert found[0] == "NoSuchOperation"


def test_a_client_in_total_order_subscribes_in_no_transaction() -> None:
    office = office_of("alice")
    office.state.merging["alice"] = None
    office.begins(ALICE)
    found = office.machine.objection(op("alice", 2), SubscribeRequest(2, SPACE, tag=Tag(TX, "1")))
    assert found is not None
    assert found[0] == "NotOffered"


def test_a_client_does_not_do_too_much() -> None:
    office = office_of("alice")
    office.advertises(op("alice", 1))
    tx = office.begins(op("alice", 2))
    for number in range(3, 3 + MOST_OPERATIONS):
        office.machine.request(op("alice", number), StageRequest(number, Tag(tx, "1"), body(x=1)))
    office.carry()
    last = op("alice", 3 + MOST_OPERATIONS)
    office.stages(last, tx, body(x=1))
    assert office.error(last) == (
        "MisuseError",
        "a client has at most 1,000 operations in one transaction: do the rest in another one",
    )


def test_what_several_clients_contribute_must_travel_together() -> None:
    half = Contribution("bob", 1, size_bytes=MOST_BYTES // 2)
    assert too_large([half, half]) == ""
    assert "do it in several transactions" in too_large([half, half, half])
    office = office_of("alice")
    office.begins(ALICE)
    office.machine.state.locals[TX].gathered = {str(n): half for n in range(3)}
    office.ends(op("alice", 2), TX)
    ((broker, letter),) = office.letters()
    assert broker == "B"
    assert isinstance(letter, Withdraw)
    assert "do it in several transactions" in letter.reason


# ── invitations ──────────────────────────────────────────────────────────────────────────


def test_an_invitation_goes_where_its_event_would_and_replies_nest() -> None:
    office = office_of("alice", "bob", "carl")
    office.subscribes(op("bob", 1))
    office.subscribes(op("dora", 1, "D"))
    office.subscribes(op("carl", 1), Filter.parse("x > 5"))
    invite = Invite("erik/E-1.1/1", op("erik", 2, "E"), "00000002", body(x=3), 10.0)
    office.hears(invite, "C")
    assert office.to("B") == [invite]
    ((client, told),) = office.told
    assert client == "bob"
    assert isinstance(told, Invited)
    assert told.order == "00000002/bob"
    office.replies(op("bob", 2), invite.tx, invite.op)
    assert office.to("C") == []  # dora has not replied
    behind = part("dora", events=1, pubend="D.1")
    office.hears(Reply(invite.op, (behind,), 1), "B")
    ((_, reply),) = [each for each in office.said if isinstance(each[1], Reply)]
    assert isinstance(reply, Reply)
    assert reply.reached == 2
    assert {each.client for each in reply.contributions} == {"bob", "dora"}
    assert not office.machine.state.asked


def test_nobody_invites_itself_and_nobody_may_be_there() -> None:
    office = office_of("alice")
    office.subscribes(op("alice", 9))
    office.begins(ALICE)
    office.invites(op("alice", 2), TX, body(x=1))
    assert office.answer(op("alice", 2)) == Done(2, "0")


def test_an_invitation_lies_inside_what_was_advertised() -> None:
    """Only then the subscriptions to it are known where it begins."""
    office = office_of("alice", "bob")
    office.subscribes(BOB)
    office.begins(ALICE)
    office.asks(op("alice", 2), InviteRequest(2, Tag(TX, "00000001"), body(x=1)))
    assert office.error(op("alice", 2))[0] == "NotAdvertised"
    assert office.told == []


def test_a_refusal_reaches_who_has_invited() -> None:
    office = office_of("alice", "bob")
    office.subscribes(op("bob", 1))
    office.begins(ALICE)
    office.invites(op("alice", 2), TX, body(x=1))
    office.replies(op("bob", 2), TX, op("alice", 2), "bob: not today")
    assert office.error(op("alice", 2)) == ("InvitationRefused", "bob: not today")
    office.replies(op("bob", 3), TX, op("alice", 2))
    assert office.error(op("bob", 3))[0] == "NotInvited"
    office.ends(op("alice", 3), TX)
    text = "one of its invitations was refused: bob: not today"
    assert ("B", Withdraw(TX, "A", text)) in office.letters()


def test_who_comes_back_is_asked_again_until_it_has_answered() -> None:
    office = office_of("alice", "bob")
    office.subscribes(op("bob", 1))
    office.begins(ALICE)
    office.invites(op("alice", 2), TX, body(x=1))
    (again,) = office.machine.open_invitations("bob", "A-1.1")
    assert (again.tx, again.op) == (TX, op("alice", 2))
    assert office.machine.open_invitations("bob", "A-1.2") == []
    office.replies(op("bob", 2), TX, op("alice", 2))
    assert office.machine.open_invitations("bob", "A-1.1") == []


def test_an_answer_waits_for_what_was_asked_before_it() -> None:
    office = office_of("alice", "bob")
    office.subscribes(op("bob", 1))
    office.begins(ALICE)
    office.invites(op("alice", 2), TX, body(x=1))
    request = SubscribeRequest(2, SPACE, tag=Tag(TX, "00000001/bob/00000001"))
    assert request.tag is not None
    assert office.machine.note(op("bob", 2), request, request.tag)
    office.subscribes(op("bob", 2), SPACE, TX)
    office.replies(op("bob", 3), TX, op("alice", 2))
    assert office.answer(op("bob", 3)) is None
    office.machine.effective(op("bob", 2), failed=False)
    office.carry()
    assert office.answer(op("bob", 3)) == Done(3)
    assert office.answer(op("alice", 2)) == Done(2, "1")


# ── ends ─────────────────────────────────────────────────────────────────────────────────


def test_an_abort_withdraws_what_was_added_last_first() -> None:
    office = office_of("alice")
    office.begins(ALICE)
    for number in (2, 3):
        office.adds(op("alice", number), TX)
    office.hears(Decide(TX, 5, False, "no"), "B")
    withdrawn = [m.target for m, _ in office.last.routes if isinstance(m, Unsubscribe)]
    assert withdrawn == [op("alice", 3), op("alice", 2)]
    assert not list(office.state.subscriptions)
    assert office.told == [
        ("alice", Decided(TX, 5, False, "no")),
        ("alice", Over(2)),
        ("alice", Over(3)),
    ]
    assert not office.machine.state.locals


def test_a_commit_leaves_what_was_added_and_ends_what_was_marked() -> None:
    office = office_of("alice")
    old = op("alice", 9)
    office.subscribes(old)
    office.begins(ALICE)
    office.adds(op("alice", 2), TX)
    request = UnsubscribeRequest(3, 9, tag=Tag(TX, "2"))
    assert request.tag is not None
    office.machine.note(op("alice", 3), request, request.tag)
    local = office.machine.state.locals[TX]
    made = office.machine.contribution(local, "alice")
    office.hears(Decide(TX, 5, True, "", made.begun, made.ended), "B")
    assert office.last.ending == [old]
    entry = office.state.subscriptions.get(op("alice", 2))
    assert entry is not None
    assert entry.tx == ""
    assert office.told == [("alice", Decided(TX, 5, True))]


def test_whose_session_ends_takes_its_transactions_with_it() -> None:
    office = office_of("alice", "bob")
    office.subscribes(op("bob", 1))
    office.begins(ALICE)
    office.invites(op("alice", 2), TX, body(x=1))
    office.adds(op("bob", 2), TX, order="00000001/bob/00000001")
    office.machine.left("bob", "A-1.1")
    office.carry()
    assert office.letters() == [("B", Withdraw(TX, "A", "bob has gone"))]
    assert office.error(op("alice", 2)) == ("InvitationRefused", "bob has gone")
    office.machine.left("bob", "A-1.1")
    office.carry()
    assert office.letters() == []  # once


def test_who_did_nothing_in_it_may_go() -> None:
    office = office_of("alice", "bob")
    office.subscribes(op("bob", 1))
    office.begins(ALICE)
    office.invites(op("alice", 2), TX, body(x=1))
    office.replies(op("bob", 2), TX, op("alice", 2))
    office.machine.left("bob", "A-1.1")
    office.carry()
    assert office.letters() == []


def test_time_runs_out_and_says_for_whom() -> None:
    office = office_of("alice", "bob")
    office.subscribes(op("bob", 1))
    office.subscribes(op("dora", 1, "D"))
    tx = office.begins(ALICE, timeout_s=2.0)
    office.invites(op("alice", 2), tx, body(x=1))
    assert office.timers[("transaction", tx)] == office.machine.now + 2.0
    office.to("B")
    office.goes_on(2.0)
    office.machine.overdue(tx)
    office.carry()
    ((_, letter),) = office.letters()
    assert isinstance(letter, Withdraw)
    assert letter.reason == "not complete within 2 s: bob, those behind B did not answer"


def test_a_participants_broker_waits_longer_than_the_coordinators() -> None:
    office = office_of("bob")
    office.subscribes(op("bob", 1))
    office.hears(Invite("dora/D-1.1/1", op("dora", 2, "D"), "1", body(x=1), 2.0), "B")
    assert office.timers[("transaction", "dora/D-1.1/1")] == office.machine.now + 2.0 + GRACE_S


def test_a_neighbour_that_is_gone_is_a_refusal() -> None:
    office = office_of("alice")
    office.subscribes(op("dora", 1, "D"))
    office.begins(ALICE)
    office.invites(op("alice", 2), TX, body(x=1))
    office.machine.forget("B")
    office.carry()
    assert office.error(op("alice", 2)) == ("InvitationRefused", "B is gone")
    office.hears(Reply(op("alice", 2), (), 1), "B")  # late
    assert not office.machine.state.asked


def test_late_words_find_nothing_and_change_nothing() -> None:
    office = office_of("alice")
    before = office.machine.state
    for late in (
        Reply(OpId("zoe", "Z-1.1", 1), ()),
        Echoed("zoe/Z-1.1/1", "prepare"),
        Echoed("zoe/Z-1.1/1", "decide"),
        Echoed("zoe/Z-1.1/1", "opening"),
    ):
        office.hears(late)
    assert not office.said
    assert office.machine.state == before
