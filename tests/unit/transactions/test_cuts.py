"""Transactions in tables and streams: the versions that they read, the cuts that they make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.model import Filter, OpId
from motet.protocol.changes import BlockMade, Sent, StartMade
from motet.protocol.routing.messages import Started, Subscribe, Switched, Unsubscribe
from motet.protocol.session.messages import Done
from motet.protocol.transactions.cutter import MOST_MADE
from motet.protocol.transactions.messages import (
    Begun,
    Decide,
    Echoed,
    Ended,
    Invite,
    Opening,
    Prepare,
    Reply,
    Settle,
)
from motet.protocol.transactions.state import Block, Switch
from tests.unit.transactions.broker_a import SPACE, BrokerA, body, op

ALICE = op("alice", 1)
OFFER = op("alice", 90)
NARROW = Filter.parse("x > 5")


def publisher(root: str = "B") -> BrokerA:
    """A, where alice publishes."""
    broker_a = BrokerA(root)
    broker_a.arrives("alice")
    broker_a.advertises(OFFER)
    return broker_a


def cut(broker_a: BrokerA, tx: str, tick: int) -> Block:
    assert broker_a.machine.cutter.due() == tx
    broker_a.machine.cutter.cut(tx, tick)
    broker_a.carry_out()
    (block,) = (each.block for each in broker_a.changes if isinstance(each, BlockMade))
    broker_a.machine.decisions.cut_told(tx)
    broker_a.carry_out()
    return block


def test_a_pubend_cuts_once_also_if_the_root_has_lost_its_state_and_is_told_again() -> None:
    broker_a = publisher()
    old = op("dora", 1, "D")
    broker_a.subscribes(old)
    decide = Decide("dora/D-1.1/7", 4, True, "", (), (Ended(old, SPACE, "1"),))
    broker_a.hears(decide, "B")
    cut(broker_a, decide.tx, 100)
    broker_a.hears(Settle(decide.tx), "B")
    assert not broker_a.machine.decisions.is_active(decide.tx)
    # The new root decides it again, because a broker that had not heard of the end told it so.
    broker_a.hears(decide, "B")
    assert broker_a.machine.cutter.due() == ""
    assert not broker_a.machine.cutter.must_cut(decide.tx)
    assert broker_a.to("B")[-1] == Echoed(decide.tx, "effective")


def test_a_pubend_remembers_a_bounded_number_of_its_cuts() -> None:
    broker_a = publisher()
    for number in range(MOST_MADE + 2):
        broker_a.machine.cutter._note_made(f"dora/D-1.1/{number}")
    made = broker_a.machine.cutter.state.made
    assert len(made) == MOST_MADE
    assert "dora/D-1.1/1" not in made
    assert f"dora/D-1.1/{MOST_MADE + 1}" in made


# ── blocks ───────────────────────────────────────────────────────────────────────────────


def test_operations_begin_and_end_behind_the_events_before_them() -> None:
    """[subscribe, publish, unsubscribe, publish, subscribe]"""
    broker_a = publisher()
    old, first, last = op("dora", 1, "D"), op("dora", 2, "D"), op("erik", 1, "E")
    tx = broker_a.begins(ALICE)
    for wish in (old, first, last):
        broker_a.subscribes(wish, tx="" if wish == old else tx)
    broker_a.stages(op("alice", 2), tx, body(x=1), "00000002")
    broker_a.stages(op("alice", 3), tx, body(x=2), "00000004")
    begun = (Begun(first, SPACE, "00000001"), Begun(last, SPACE, "00000005"))
    ended = (Ended(old, SPACE, "00000003"),)
    broker_a.hears(Decide(tx, 1, True, "", begun, ended, ("A.1",)), "B")
    block = cut(broker_a, tx, 100)
    assert block.switches == (
        Switch(first, 100, False),
        Switch(last, 102, False),
        Switch(old, 101, True),
    )
    assert (block.tick, block.last_tick) == (100, 102)
    assert [(each.client, each.index) for each in block.events] == [("alice", 0), ("alice", 1)]
    told = [message for message in broker_a.routing.applied if isinstance(message, Switched)]
    assert [(each.op, each.pubend, each.tick, each.ended) for each in told] == [
        (first, "A.1", 100, False),
        (last, "A.1", 102, False),
        (old, "A.1", 101, True),
    ]
    assert broker_a.routing.starts.next_tick > 102


@given(st.permutations(range(1, 9)), st.sets(st.integers(1, 8)))
def test_the_order_of_a_plan_is_the_order_of_the_block(
    arrival: list[int], events: set[int]
) -> None:
    """However the steps arrive, each subscription begins behind as many events as stand before it
    in the plan."""
    broker_a = publisher()
    tx = broker_a.begins(ALICE)
    begun = []
    for number in arrival:
        order = f"{number:08d}"
        if number in events:
            broker_a.stages(op("alice", 10 + number), tx, body(x=number), order)
        else:
            wish = op("dora", number, "D")
            broker_a.subscribes(wish, tx=tx)
            begun.append(Begun(wish, SPACE, order))
    broker_a.hears(Decide(tx, 1, True, "", tuple(begun), (), ("A.1",)), "B")
    block = cut(broker_a, tx, 100)
    assert [each.body for each in block.events] == [body(x=number) for number in sorted(events)]
    for switch in block.switches:
        before = sum(1 for number in events if number < switch.op.sequence)
        assert switch.tick == 100 + before


def test_a_block_waits_in_the_state_until_the_log_has_it() -> None:
    broker_a = publisher()
    tx = broker_a.begins(ALICE)
    broker_a.stages(op("alice", 2), tx, body(x=1))
    broker_a.hears(Decide(tx, 1, True, "", (), (), ("A.1",)), "B")
    assert broker_a.machine.staging() == {"alice"}
    cut(broker_a, tx, 100)
    assert broker_a.machine.staging() == {"alice"}
    assert broker_a.machine.cutter.state.published == {"alice": 101}
    broker_a.machine.cutter.logged(tx)
    assert broker_a.machine.staging() == set()
    assert not broker_a.machine.cutter.state.blocks


def test_events_of_an_aborted_transaction_are_not_published() -> None:
    broker_a = publisher()
    tx = broker_a.begins(ALICE)
    broker_a.stages(op("alice", 2), tx, body(x=1))
    broker_a.hears(Decide(tx, 1, False, "no"), "B")
    assert broker_a.machine.cutter.due() == ""
    assert not broker_a.machine.cutter.state.staged


# ── when ─────────────────────────────────────────────────────────────────────────────────


def test_cuts_are_made_in_the_order_of_the_decisions() -> None:
    broker_a = publisher()
    broker_a.arrives("dora", "D")
    late, there = op("dora", 1, "D"), op("erik", 1, "E")
    broker_a.subscribes(there, tx="erik/E-1.1/9")
    broker_a.hears(Decide("dora/D-1.1/9", 1, True, "", (Begun(late, SPACE, "1"),)), "B")
    broker_a.hears(Decide("erik/E-1.1/9", 2, True, "", (Begun(there, SPACE, "1"),)), "B")
    assert broker_a.machine.cutter.due() == ""  # dora's is on its way, and erik's comes behind it
    broker_a.subscribes(late)
    assert cut(broker_a, "dora/D-1.1/9", 100).switches == (Switch(late, 100, False),)
    assert cut(broker_a, "erik/E-1.1/9", 101).switches == (Switch(there, 101, False),)


def test_a_subscription_that_arrives_before_the_cut_starts_tentatively() -> None:
    """Else it would be given what is published before the cut."""
    broker_a = publisher()
    broker_a.arrives("dora", "D")
    one, two = op("dora", 1, "D"), op("dora", 2, "D")
    begun = (Begun(one, SPACE, "1"), Begun(two, SPACE, "2"))
    broker_a.hears(Decide("dora/D-1.1/9", 1, True, "", begun), "B")
    message = broker_a.machine.decisions.normalised(Subscribe(one, SPACE, tx="dora/D-1.1/9"))
    assert message == Subscribe(one, SPACE)  # it is decided
    effects = broker_a.routing.apply(message, broker_a.state.pubends["D.1"])
    assert [each.tentative for each in effects.of(StartMade)] == [True]
    assert broker_a.machine.cutter.due() == ""
    broker_a.routing.apply(Subscribe(two, SPACE), broker_a.state.pubends["D.1"])
    cut(broker_a, "dora/D-1.1/9", 100)
    assert not broker_a.marks.uncut


def test_a_client_that_has_left_is_not_waited_for() -> None:
    broker_a = publisher()
    tx = "dora/D-1.1/9"
    broker_a.hears(Decide(tx, 1, True, "", (Begun(op("dora", 1, "D"), SPACE, "1"),)), "B")
    assert not broker_a.machine.cutter.must_cut(tx)  # her session is not known here


def test_a_pubend_that_is_not_concerned_does_not_cut() -> None:
    broker_a = publisher()
    elsewhere = op("dora", 1, "D")
    broker_a.subscribes(elsewhere, Filter.parse("y > 0"))
    ended = (Ended(elsewhere, Filter.parse("x < 0"), "1"),)
    broker_a.state.subscriptions.get(elsewhere).start = 0  # type: ignore[union-attr]
    broker_a.hears(Decide("dora/D-1.1/9", 1, True, "", (), ended), "B")
    assert broker_a.machine.cutter.due() == ""
    broker_a.hears(Echoed("dora/D-1.1/9", "decide"), "C")
    assert broker_a.to("B")[-1] == Echoed("dora/D-1.1/9", "decide")


def test_the_echo_of_a_decision_waits_for_the_cut() -> None:
    broker_a = publisher()
    tx = broker_a.begins(ALICE)
    broker_a.stages(op("alice", 2), tx, body(x=1))
    broker_a.hears(Decide(tx, 1, True, "", (), (), ("A.1",)), "B")
    broker_a.hears(Echoed(tx, "decide"), "C")
    assert broker_a.to("B") == []
    cut(broker_a, tx, 100)
    assert broker_a.to("B") == [Echoed(tx, "decide")]


def test_a_transaction_settled_elsewhere_is_still_cut_here() -> None:
    broker_a = publisher()
    tx = broker_a.begins(ALICE)
    broker_a.stages(op("alice", 2), tx, body(x=1))
    broker_a.hears(Decide(tx, 1, True, "", (), (), ("A.1",)), "B")
    broker_a.hears(Settle(tx), "B")  # nobody had waited for us
    assert len(cut(broker_a, tx, 100).events) == 1
    assert not broker_a.machine.decisions.state.active


@pytest.mark.parametrize("comes", [True, False])
def test_a_cut_does_not_wait_for_a_subscription_that_has_ended_elsewhere(comes: bool) -> None:
    """It was settled while we were away. Only behind probes it is known whether it still comes."""
    broker_a = publisher()
    broker_a.meets()
    broker_a.arrives("dora", "D")
    wish, tx = op("dora", 1, "D"), "dora/D-1.1/9"
    broker_a.hears(Decide(tx, 1, True, "", (Begun(wish, SPACE, "1"),)), "B")
    assert broker_a.machine.cutter.due() == ""
    broker_a.hears(Settle(tx), "B")
    assert broker_a.machine.cutter.due() == ""
    if comes:
        broker_a.subscribes(wish)
    broker_a.probes_return()
    expected = (Switch(wish, 100, False),) if comes else ()
    assert cut(broker_a, tx, 100).switches == expected
    assert not broker_a.machine.decisions.state.active


def test_an_advertisement_is_effective_when_what_was_committed_meanwhile_has_begun() -> None:
    """Else an event that follows it would miss a subscription that was committed before."""
    broker_a = publisher()
    broker_a.arrives("dora", "D")
    wish, tx = op("dora", 1, "D"), "dora/D-1.1/9"
    broker_a.hears(Decide(tx, 1, True, "", (Begun(wish, SPACE, "1"),)), "B")
    broker_a.advertises(op("alice", 91), NARROW)
    broker_a.advertises(op("alice", 92), Filter.parse("x < 0"))
    assert broker_a.machine.postpone(op("alice", 91))
    assert not broker_a.machine.postpone(op("alice", 92))  # it has nothing to do with it
    broker_a.subscribes(wish)
    cut(broker_a, tx, 100)
    assert broker_a.answer_to(op("alice", 91)) == Done(91)
    assert not broker_a.machine.cutter.state.postponed
    assert not broker_a.machine.postpone(op("alice", 91))


def test_an_ended_subscription_that_comes_late_is_ended() -> None:
    broker_a = publisher()
    old = op("dora", 1, "D")
    broker_a.hears(Decide("dora/D-1.1/9", 1, True, "", (), (Ended(old, SPACE, "1"),)), "B")
    message = broker_a.machine.decisions.normalised(Subscribe(old, SPACE))
    assert isinstance(message, Subscribe)
    assert message.ended
    effects = broker_a.routing.apply(message, broker_a.state.pubends["D.1"])
    (made,) = effects.of(StartMade)  # in the stream, so that it passes the tick
    assert (made.op, made.tentative) == (old, True)
    told = [each.message for each in effects.of(Sent) if isinstance(each.message, Switched)]
    assert told == [Switched(old, broker_a.state.hosted, made.tick, True)]


def test_an_ended_subscription_that_was_lost_meanwhile_ends_at_the_cut() -> None:
    """It is owed what lies before, and not more: behind the cut somebody else has it."""
    broker_a = publisher()
    old, tx = op("dora", 1, "D"), "dora/D-1.1/9"
    broker_a.arrives("dora", "D")
    broker_a.subscribes(old)
    way = broker_a.state.pubends["D.1"]
    broker_a.routing.apply(Unsubscribe(old, lost=True), way)
    broker_a.hears(Decide(tx, 1, True, "", (), (Ended(old, SPACE, "1"),)), "B")
    assert cut(broker_a, tx, 100).switches == (Switch(old, 100, True),)  # the stream shows it
    effects = broker_a.routing.apply(Subscribe(old, SPACE, ended=True), way)
    assert [each.message for each in effects.of(Sent)] == [
        Started(old, "A.1", 1),
        Switched(old, "A.1", 100, True),
    ]
    broker_a.routing.apply(Unsubscribe(old, lost=True), way)  # and again
    effects = broker_a.routing.apply(Subscribe(old, SPACE, ended=True), way)
    assert Switched(old, "A.1", 100, True) in [each.message for each in effects.of(Sent)]


def test_an_ended_subscription_that_was_withdrawn_meanwhile_ends_at_the_cut() -> None:
    """Nobody here had advertised what it wants, so it went; a start of before may still count where
    its client is."""
    broker_a = publisher()
    old, tx = op("dora", 1, "D"), "dora/D-1.1/9"
    broker_a.arrives("dora", "D")
    broker_a.hears(Decide(tx, 1, True, "", (), (Ended(old, SPACE, "1"),)), "B")
    assert cut(broker_a, tx, 100).switches == (Switch(old, 100, True),)
    effects = broker_a.routing.apply(
        Subscribe(old, SPACE, ended=True), broker_a.state.pubends["D.1"]
    )
    told = [each.message for each in effects.of(Sent)]
    assert told == [Switched(old, "A.1", 100, True)]
    broker_a.hears(Settle(tx), "B")  # what was under way has come
    assert not broker_a.routing.starts.lost_ends


# ── versions ─────────────────────────────────────────────────────────────────────────────


def reached(broker_a: BrokerA, tx: str, number: int, *, isolated: bool = True) -> set[str]:
    """Whom an invitation of a transaction reaches here."""
    broker_a.told.clear()
    invite = Invite(tx, op("erik", number, "E"), "1", body(x=9), 10.0, isolated)
    broker_a.hears(invite, "C")
    there = {client for client, _ in broker_a.told}
    return there | {"dora"} if invite in broker_a.to("B") else there


@pytest.fixture
def broker_a() -> BrokerA:
    broker_a = BrokerA(root="B")
    for client in ("alice", "bob", "carl"):
        broker_a.arrives(client)
    return broker_a


def test_an_isolated_one_reads_what_was_committed_when_it_began(broker_a: BrokerA) -> None:
    bob, carl, dora = op("bob", 1), op("carl", 1), op("dora", 1, "D")
    broker_a.subscribes(bob)
    broker_a.hears(Opening("erik/E-1.1/1"), "B")
    broker_a.subscribes(carl)
    broker_a.subscribes(dora)
    broker_a.routing.apply(Unsubscribe(bob), broker_a.state.subscriptions.get(bob).source)  # type: ignore[union-attr]
    assert reached(broker_a, "erik/E-1.1/1", 2) == {"bob"}
    assert reached(broker_a, "erik/E-1.1/77", 3, isolated=False) == {"carl", "dora"}


def test_an_invitation_that_the_decision_has_overtaken_reaches_no_client(broker_a: BrokerA) -> None:
    """Whatever it was to read is not remembered any more."""
    broker_a.subscribes(op("bob", 1))
    broker_a.hears(Opening("erik/E-1.1/1"), "B")
    broker_a.hears(Decide("erik/E-1.1/1", 1, False, "the session of erik has ended"), "B")
    broker_a.to("C")
    assert reached(broker_a, "erik/E-1.1/1", 2) == set()
    assert broker_a.to("C") == [Reply(op("erik", 2, "E"), (), refusal="the transaction is over")]


def test_a_transaction_sees_its_own_changes_and_none_of_other_open_ones(broker_a: BrokerA) -> None:
    broker_a.hears(Opening("erik/E-1.1/1"), "B")
    broker_a.subscribes(op("bob", 1), tx="erik/E-1.1/1")
    broker_a.subscribes(op("carl", 1), tx="zoe/Z-1.1/1")
    assert reached(broker_a, "erik/E-1.1/1", 2) == {"bob"}


def test_a_transaction_still_sees_subscriptions_ended_after_it_began(broker_a: BrokerA) -> None:
    bob = op("bob", 1)
    broker_a.subscribes(bob)
    broker_a.hears(Opening("erik/E-1.1/1"), "B")
    broker_a.hears(Decide("zoe/Z-1.1/1", 1, True, "", (), (Ended(bob, SPACE, "1"),)), "B")
    assert reached(broker_a, "erik/E-1.1/1", 2) == {"bob"}
    broker_a.hears(Opening("erik/E-1.1/5"), "B")
    assert reached(broker_a, "erik/E-1.1/5", 6) == set()


def objection(broker_a: BrokerA, tx: str) -> str:
    broker_a.hears(Prepare(tx), "B")
    broker_a.hears(Echoed(tx, "prepare"), "C")
    (told,) = [each for each in broker_a.to("B") if isinstance(each, Echoed)]
    return told.objection


def test_validation_succeeds_if_the_invited_clients_are_the_same(broker_a: BrokerA) -> None:
    broker_a.subscribes(op("bob", 1))
    broker_a.hears(Opening("erik/E-1.1/1"), "B")
    broker_a.hears(Echoed("erik/E-1.1/1", "opening"), "C")
    broker_a.to("B")
    reached(broker_a, "erik/E-1.1/1", 2)
    broker_a.subscribes(op("carl", 1), Filter.parse("y > 0"))  # nothing to do with it
    broker_a.subscribes(op("bob", 2))  # bob was invited anyway
    assert objection(broker_a, "erik/E-1.1/1") == ""


@pytest.mark.parametrize("change", ["added", "removed", "committed", "ended"])
def test_validation_fails_if_the_invited_clients_have_changed(
    broker_a: BrokerA, change: str
) -> None:
    bob, carl = op("bob", 1), op("carl", 1)
    broker_a.subscribes(bob)
    if change == "committed":
        broker_a.subscribes(carl, tx="zoe/Z-1.1/1")
    broker_a.hears(Opening("erik/E-1.1/1"), "B")
    broker_a.hears(Echoed("erik/E-1.1/1", "opening"), "C")
    broker_a.to("B")
    reached(broker_a, "erik/E-1.1/1", 2)
    match change:
        case "added":
            broker_a.subscribes(carl)
        case "removed":
            source = broker_a.state.subscriptions.get(bob).source  # type: ignore[union-attr]
            broker_a.routing.apply(Unsubscribe(bob), source)
        case "committed":
            broker_a.hears(Decide("zoe/Z-1.1/1", 1, True, "", (Begun(carl, SPACE, "1"),)), "B")
        case "ended":
            broker_a.hears(Decide("zoe/Z-1.1/1", 1, True, "", (), (Ended(bob, SPACE, "1"),)), "B")
    assert "run it again" in objection(broker_a, "erik/E-1.1/1")


def test_the_past_is_remembered_while_a_transaction_reads_it(broker_a: BrokerA) -> None:
    bob, carl = op("bob", 1), op("carl", 1)

    def goes(wish: OpId) -> None:
        source = broker_a.state.subscriptions.get(wish).source  # type: ignore[union-attr]
        broker_a.routing.apply(Unsubscribe(wish), source)

    broker_a.subscribes(bob)
    broker_a.subscribes(carl)
    goes(carl)
    assert not broker_a.marks.ghosts  # nobody reads
    broker_a.hears(Opening("erik/E-1.1/1"), "B")
    goes(bob)
    assert [entry.id for entry, _ in broker_a.marks.ghosts] == [bob]
    broker_a.hears(Opening("erik/E-1.1/5"), "B")
    broker_a.hears(Decide("erik/E-1.1/1", 1, True), "B")
    assert not broker_a.marks.ghosts  # the other one began later
    assert broker_a.marks.watched
    broker_a.hears(Decide("erik/E-1.1/5", 2, False, "no"), "B")
    assert not broker_a.marks.watched
