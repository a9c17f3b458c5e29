"""Clients of one broker in transactions: who may do what, who is waited for, how it ends."""

from __future__ import annotations

from motet.broker.core.records import encode
from motet.model import Filter, OpId
from motet.protocol.changes import SubscriptionEnding
from motet.protocol.room import Objection
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
    MOST_OPERATIONS,
    Contribution,
    Decide,
    Echoed,
    Ended,
    Invite,
    Reply,
    Withdraw,
)
from motet.protocol.transactions.participant import GRACE_S, MOST_BYTES, too_large
from tests.unit.transactions.broker_a import SPACE, BrokerA, body, op, part

ALICE, BOB = op("alice", 1), op("bob", 1)
TX = str(ALICE)


def broker_of_clients(*clients: str, root: str = "B") -> BrokerA:
    broker_a = BrokerA(root)
    for client in clients:
        broker_a.arrives(client)
    return broker_a


# ── who may do what ──────────────────────────────────────────────────────────────────────


def test_only_participants_may_act() -> None:
    broker_a = broker_of_clients("alice", "carl")
    broker_a.advertises(op("carl", 1))
    broker_a.begins(ALICE)
    broker_a.stages(op("carl", 2), TX, body(x=1))
    assert broker_a.error(op("carl", 2)) == (
        "NotInvited",
        f"carl has no part in transaction {TX}: it must be invited first",
    )
    broker_a.stages(op("carl", 3), "zoe/Z-1.1/9", body(x=1))
    assert broker_a.error(op("carl", 3))[0] == "TransactionOver"


def test_an_event_lies_inside_what_its_client_has_advertised() -> None:
    broker_a = broker_of_clients("alice")
    broker_a.begins(ALICE)
    broker_a.stages(op("alice", 2), TX, body(x=1))
    assert broker_a.error(op("alice", 2))[0] == "NotAdvertised"
    broker_a.advertises(op("alice", 3), SPACE, TX)  # in the same transaction
    broker_a.stages(op("alice", 4), TX, body(x=1))
    assert broker_a.answer_to(op("alice", 4)) == Done(4)
    broker_a.advertises(op("alice", 5), Filter.parse("y > 0"), "alice/A-1.1/77")
    broker_a.stages(op("alice", 6), TX, body(y=1))
    assert broker_a.error(op("alice", 6))[0] == "NotAdvertised"


def test_an_operation_in_an_open_transaction_cannot_be_changed_outside_it() -> None:
    broker_a = broker_of_clients("alice")
    wish = op("alice", 1)
    broker_a.subscribes(wish)
    first, second = broker_a.begins(op("alice", 2)), broker_a.begins(op("alice", 3))
    mark = UnsubscribeRequest(4, 1, tag=Tag(first, "1"))
    assert broker_a.admits(op("alice", 4), mark) is True
    assert not broker_a.machine.note(op("alice", 4), mark, Tag(first, "1"))
    for again in (UnsubscribeRequest(5, 1), UnsubscribeRequest(5, 1, tag=Tag(second, "1"))):
        found = broker_a.admits(op("alice", 5), again)
        assert isinstance(found, Objection)
        assert found[0] == "InTransaction"
    found = broker_a.admits(op("alice", 6), UnsubscribeRequest(6, 1, tag=Tag(first, "2")))
    assert isinstance(found, Objection)
    assert found[0] == "NoSuchOperation"


def test_a_subscription_ended_by_one_transaction_cannot_be_ended_by_another() -> None:
    broker_a = broker_of_clients("alice")
    broker_a.subscribes(op("alice", 1))
    tx = broker_a.begins(op("alice", 2))
    ended = (Ended(op("alice", 1), SPACE, "1"),)
    broker_a.hears(Decide("dora/D-1.1/1", 1, True, "", ended=ended))
    found = broker_a.admits(op("alice", 3), UnsubscribeRequest(3, 1, tag=Tag(tx, "1")))
    assert isinstance(found, Objection)
    assert found == (
        "NoSuchOperation",
        "operation 1 of alice is not in force: another transaction has ended it",
    )
    assert broker_a.admits(op("alice", 4), UnsubscribeRequest(4, 1)) is True  # it wants no more


def test_a_client_in_total_order_subscribes_in_no_transaction() -> None:
    broker_a = broker_of_clients("alice")
    broker_a.routing.joins.enter("alice")
    broker_a.begins(ALICE)
    found = broker_a.admits(op("alice", 2), SubscribeRequest(2, SPACE, tag=Tag(TX, "1")))
    assert isinstance(found, Objection)
    assert found[0] == "NotOffered"


def test_the_operations_of_a_client_in_a_transaction_are_limited() -> None:
    broker_a = broker_of_clients("alice")
    broker_a.advertises(op("alice", 1))
    tx = broker_a.begins(op("alice", 2))
    for number in range(3, 3 + MOST_OPERATIONS):
        broker_a.machine.request(op("alice", number), StageRequest(number, Tag(tx, "1"), body(x=1)))
    broker_a.carry_out()
    last = op("alice", 3 + MOST_OPERATIONS)
    broker_a.stages(last, tx, body(x=1))
    assert broker_a.error(last) == (
        "MisuseError",
        "a client may have at most 1,000 operations in one transaction; use several transactions",
    )


def test_contributions_of_several_clients_must_fit_one_message() -> None:
    half = Contribution("bob", 1, size_bytes=MOST_BYTES // 2)
    assert too_large([half, half]) == ""
    assert "use several transactions" in too_large([half, half, half])
    broker_a = broker_of_clients("alice")
    broker_a.begins(ALICE)
    broker_a.machine.participant.state.locals[TX].gathered = {str(n): half for n in range(3)}
    broker_a.ends(op("alice", 2), TX)
    ((broker, letter),) = broker_a.letters()
    assert broker == "B"
    assert isinstance(letter, Withdraw)
    assert "use several transactions" in letter.reason


# ── invitations ──────────────────────────────────────────────────────────────────────────


def test_an_invitation_goes_where_its_event_would_and_replies_nest() -> None:
    broker_a = broker_of_clients("alice", "bob", "carl")
    broker_a.subscribes(op("bob", 1))
    broker_a.subscribes(op("dora", 1, "D"))
    broker_a.subscribes(op("carl", 1), Filter.parse("x > 5"))
    invite = Invite("erik/E-1.1/1", op("erik", 2, "E"), "00000002", body(x=3), 10.0)
    broker_a.hears(invite, "C")
    assert broker_a.to("B") == [invite]
    ((client, told),) = broker_a.told
    assert client == "bob"
    assert isinstance(told, Invited)
    assert told.order == "00000002/bob"
    broker_a.replies(op("bob", 2), invite.tx, invite.op)
    assert broker_a.to("C") == []  # dora has not replied
    behind = part("dora", events=1, pubend="D.1")
    broker_a.hears(Reply(invite.op, (behind,), 1), "B")
    ((_, reply),) = [each for each in broker_a.said if isinstance(each[1], Reply)]
    assert isinstance(reply, Reply)
    assert reply.reached == 2
    assert {each.client for each in reply.contributions} == {"bob", "dora"}
    assert not broker_a.machine.invitations.state.asked


def test_a_client_does_not_invite_itself_and_an_invitation_may_reach_no_client() -> None:
    broker_a = broker_of_clients("alice")
    broker_a.subscribes(op("alice", 9))
    broker_a.begins(ALICE)
    broker_a.invites(op("alice", 2), TX, body(x=1))
    assert broker_a.answer_to(op("alice", 2)) == Done(2, "0")


def test_an_invitation_lies_inside_what_was_advertised() -> None:
    """Only then the subscriptions to it are known where it begins."""
    broker_a = broker_of_clients("alice", "bob")
    broker_a.subscribes(BOB)
    broker_a.begins(ALICE)
    broker_a.asks(op("alice", 2), InviteRequest(2, Tag(TX, "00000001"), body(x=1)))
    assert broker_a.error(op("alice", 2))[0] == "NotAdvertised"
    assert broker_a.told == []


def test_a_refusal_reaches_the_inviting_client() -> None:
    broker_a = broker_of_clients("alice", "bob")
    broker_a.subscribes(op("bob", 1))
    broker_a.begins(ALICE)
    broker_a.invites(op("alice", 2), TX, body(x=1))
    broker_a.replies(op("bob", 2), TX, op("alice", 2), "bob: not today")
    assert broker_a.error(op("alice", 2)) == ("InvitationRefused", "bob: not today")
    broker_a.replies(op("bob", 3), TX, op("alice", 2))
    assert broker_a.error(op("bob", 3))[0] == "NotInvited"
    broker_a.ends(op("alice", 3), TX)
    text = "one of its invitations was refused: bob: not today"
    assert ("B", Withdraw(TX, "A", text)) in broker_a.letters()


def test_a_client_that_reconnects_is_asked_again_until_it_has_answered() -> None:
    broker_a = broker_of_clients("alice", "bob")
    broker_a.subscribes(op("bob", 1))
    broker_a.begins(ALICE)
    broker_a.invites(op("alice", 2), TX, body(x=1))
    (again,) = broker_a.machine.open_invitations("bob", "A-1.1")
    assert (again.tx, again.op) == (TX, op("alice", 2))
    assert broker_a.machine.open_invitations("bob", "A-1.2") == []
    broker_a.replies(op("bob", 2), TX, op("alice", 2))
    assert broker_a.machine.open_invitations("bob", "A-1.1") == []


def test_an_answer_waits_for_what_was_asked_before_it() -> None:
    broker_a = broker_of_clients("alice", "bob")
    broker_a.subscribes(op("bob", 1))
    broker_a.begins(ALICE)
    broker_a.invites(op("alice", 2), TX, body(x=1))
    request = SubscribeRequest(2, SPACE, tag=Tag(TX, "00000001/bob/00000001"))
    assert request.tag is not None
    assert broker_a.machine.note(op("bob", 2), request, request.tag)
    broker_a.subscribes(op("bob", 2), SPACE, TX)
    broker_a.replies(op("bob", 3), TX, op("alice", 2))
    assert broker_a.answer_to(op("bob", 3)) is None
    broker_a.machine.effective(op("bob", 2), failed=False)
    broker_a.carry_out()
    assert broker_a.answer_to(op("bob", 3)) == Done(3)
    assert broker_a.answer_to(op("alice", 2)) == Done(2, "1")


# ── ends ─────────────────────────────────────────────────────────────────────────────────


def test_an_abort_withdraws_what_was_added_last_first() -> None:
    broker_a = broker_of_clients("alice")
    broker_a.begins(ALICE)
    for number in (2, 3):
        broker_a.adds(op("alice", number), TX)
    broker_a.hears(Decide(TX, 5, False, "no"), "B")
    withdrawn = [m.target for m in broker_a.routing.applied if isinstance(m, Unsubscribe)]
    assert withdrawn == [op("alice", 3), op("alice", 2)]
    assert not list(broker_a.state.subscriptions)
    assert broker_a.told == [
        ("alice", Decided(TX, 5, False, "no")),
        ("alice", Over(2)),
        ("alice", Over(3)),
    ]
    assert not broker_a.machine.participant.state.locals


def test_a_commit_keeps_additions_and_ends_marked_subscriptions() -> None:
    broker_a = broker_of_clients("alice")
    old = op("alice", 9)
    broker_a.subscribes(old)
    broker_a.begins(ALICE)
    broker_a.adds(op("alice", 2), TX)
    request = UnsubscribeRequest(3, 9, tag=Tag(TX, "2"))
    assert request.tag is not None
    broker_a.machine.note(op("alice", 3), request, request.tag)
    local = broker_a.machine.participant.state.locals[TX]
    made = broker_a.machine.participant.contribution(local, "alice")
    broker_a.hears(Decide(TX, 5, True, "", made.begun, made.ended), "B")
    assert SubscriptionEnding(old) in broker_a.changes
    entry = broker_a.state.subscriptions.get(op("alice", 2))
    assert entry is not None
    assert entry.tx == ""
    assert broker_a.told == [("alice", Decided(TX, 5, True))]


def test_the_end_of_a_session_withdraws_its_transactions() -> None:
    broker_a = broker_of_clients("alice", "bob")
    broker_a.subscribes(op("bob", 1))
    broker_a.begins(ALICE)
    broker_a.invites(op("alice", 2), TX, body(x=1))
    broker_a.adds(op("bob", 2), TX, order="00000001/bob/00000001")
    broker_a.machine.left("bob", "A-1.1")
    broker_a.carry_out()
    assert broker_a.letters() == [("B", Withdraw(TX, "A", "the session of bob has ended"))]
    assert broker_a.error(op("alice", 2)) == ("InvitationRefused", "the session of bob has ended")
    broker_a.machine.left("bob", "A-1.1")
    broker_a.carry_out()
    assert broker_a.letters() == []  # once


def test_a_participant_without_operations_may_leave() -> None:
    broker_a = broker_of_clients("alice", "bob")
    broker_a.subscribes(op("bob", 1))
    broker_a.begins(ALICE)
    broker_a.invites(op("alice", 2), TX, body(x=1))
    broker_a.replies(op("bob", 2), TX, op("alice", 2))
    broker_a.machine.left("bob", "A-1.1")
    broker_a.carry_out()
    assert broker_a.letters() == []


def test_a_timeout_names_the_missing_clients() -> None:
    broker_a = broker_of_clients("alice", "bob")
    broker_a.subscribes(op("bob", 1))
    broker_a.subscribes(op("dora", 1, "D"))
    tx = broker_a.begins(ALICE, timeout_s=2.0)
    broker_a.invites(op("alice", 2), tx, body(x=1))
    assert broker_a.timers[("transaction", tx)] == broker_a.now + 2.0
    broker_a.to("B")
    broker_a.goes_on(2.0)
    broker_a.machine.overdue(tx)
    broker_a.carry_out()
    ((_, letter),) = broker_a.letters()
    assert isinstance(letter, Withdraw)
    assert letter.reason == "not complete within 2 s: bob, clients behind B did not answer"


def test_a_participants_broker_waits_longer_than_the_coordinators() -> None:
    broker_a = broker_of_clients("bob")
    broker_a.subscribes(op("bob", 1))
    broker_a.hears(Invite("dora/D-1.1/1", op("dora", 2, "D"), "1", body(x=1), 2.0), "B")
    assert broker_a.timers[("transaction", "dora/D-1.1/1")] == broker_a.now + 2.0 + GRACE_S


def test_a_lost_neighbour_refuses_the_invitation() -> None:
    broker_a = broker_of_clients("alice")
    broker_a.subscribes(op("dora", 1, "D"))
    broker_a.begins(ALICE)
    broker_a.invites(op("alice", 2), TX, body(x=1))
    broker_a.machine.forget("B")
    broker_a.carry_out()
    assert broker_a.error(op("alice", 2)) == ("InvitationRefused", "B was lost")
    broker_a.hears(Reply(op("alice", 2), (), 1), "B")  # late
    assert not broker_a.machine.invitations.state.asked


def test_late_messages_about_unknown_transactions_change_nothing() -> None:
    broker_a = broker_of_clients("alice")
    before = encode(broker_a.machine.image())
    for late in (
        Reply(OpId("zoe", "Z-1.1", 1), ()),
        Echoed("zoe/Z-1.1/1", "prepare"),
        Echoed("zoe/Z-1.1/1", "decide"),
        Echoed("zoe/Z-1.1/1", "opening"),
    ):
        broker_a.hears(late)
    assert not broker_a.said
    assert encode(broker_a.machine.image()) == before
