"""Where transactions meet tables and streams: versions that are read, cuts that are made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.model import Filter, OpId
from motet.protocol.routing.messages import Started, Subscribe, Switched, Unsubscribe
from motet.protocol.session.messages import Done
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
from tests.unit.transactions.office import SPACE, Office, body, op

ALICE = op("alice", 1)
OFFER = op("alice", 90)
NARROW = Filter.parse("x > 5")


def publisher(root: str = "B") -> Office:
    """A, where alice publishes."""
    office = Office(root)
    office.arrives("alice")
    office.advertises(OFFER)
    return office


def cut(office: Office, tx: str, tick: int) -> Block:
    assert office.machine.due() == tx
    office.machine.cut(tx, tick)
    office.carry()
    (block,) = office.last.blocks
    office.machine.cut_told(tx)
    office.carry()
    return block


# ── blocks ───────────────────────────────────────────────────────────────────────────────


def test_operations_begin_and_end_behind_the_events_before_them() -> None:
    """[subscribe, publish, unsubscribe, publish, subscribe]"""
    office = publisher()
    old, first, last = op("dora", 1, "D"), op("dora", 2, "D"), op("erik", 1, "E")
    tx = office.begins(ALICE)
    for wish in (old, first, last):
        office.subscribes(wish, tx="" if wish == old else tx)
    office.stages(op("alice", 2), tx, body(x=1), "00000002")
    office.stages(op("alice", 3), tx, body(x=2), "00000004")
    begun = (Begun(first, SPACE, "00000001"), Begun(last, SPACE, "00000005"))
    ended = (Ended(old, SPACE, "00000003"),)
    office.hears(Decide(tx, 1, True, "", begun, ended, ("A.1",)), "B")
    block = cut(office, tx, 100)
    assert block.switches == (
        Switch(first, 100, False),
        Switch(last, 102, False),
        Switch(old, 101, True),
    )
    assert (block.tick, block.last_tick) == (100, 102)
    assert [(each.client, each.index) for each in block.events] == [("alice", 0), ("alice", 1)]
    told = [message for message in office.routed if isinstance(message, Switched)]
    assert [(each.op, each.pubend, each.tick, each.ended) for each in told] == [
        (first, "A.1", 100, False),
        (last, "A.1", 102, False),
        (old, "A.1", 101, True),
    ]
    assert office.state.next_tick > 102


@given(st.permutations(range(1, 9)), st.sets(st.integers(1, 8)))
def test_the_order_of_a_plan_is_the_order_of_the_block(
    arrival: list[int], events: set[int]
) -> None:
    """However the steps arrive, each subscription begins behind as many events as stand before it
    in the plan."""
    office = publisher()
    tx = office.begins(ALICE)
    begun = []
    for number in arrival:
        order = f"{number:08d}"
        if number in events:
            office.stages(op("alice", 10 + number), tx, body(x=number), order)
        else:
            wish = op("dora", number, "D")
            office.subscribes(wish, tx=tx)
            begun.append(Begun(wish, SPACE, order))
    office.hears(Decide(tx, 1, True, "", tuple(begun), (), ("A.1",)), "B")
    block = cut(office, tx, 100)
    assert [each.body for each in block.events] == [body(x=number) for number in sorted(events)]
    for switch in block.switches:
        before = sum(1 for number in events if number < switch.op.sequence)
        assert switch.tick == 100 + before


def test_a_block_waits_in_the_state_until_the_log_has_it() -> None:
    office = publisher()
    tx = office.begins(ALICE)
    office.stages(op("alice", 2), tx, body(x=1))
    office.hears(Decide(tx, 1, True, "", (), (), ("A.1",)), "B")
    assert office.machine.staging() == {"alice"}
    cut(office, tx, 100)
    assert office.machine.staging() == {"alice"}
    assert office.machine.state.published == {"alice": 101}
    office.machine.logged(tx)
    assert office.machine.staging() == set()
    assert not office.machine.state.blocks


def test_nothing_of_what_is_aborted_is_published() -> None:
    office = publisher()
    tx = office.begins(ALICE)
    office.stages(op("alice", 2), tx, body(x=1))
    office.hears(Decide(tx, 1, False, "no"), "B")
    assert office.machine.due() == ""
    assert not office.machine.state.staged


# ── when ─────────────────────────────────────────────────────────────────────────────────


def test_cuts_are_made_in_the_order_of_the_decisions() -> None:
    office = publisher()
    office.arrives("dora", "D")
    late, there = op("dora", 1, "D"), op("erik", 1, "E")
    office.subscribes(there, tx="erik/E-1.1/9")
    office.hears(Decide("dora/D-1.1/9", 1, True, "", (Begun(late, SPACE, "1"),)), "B")
    office.hears(Decide("erik/E-1.1/9", 2, True, "", (Begun(there, SPACE, "1"),)), "B")
    assert office.machine.due() == ""  # dora's is on its way, and erik's comes behind it
    office.subscribes(late)
    assert cut(office, "dora/D-1.1/9", 100).switches == (Switch(late, 100, False),)
    assert cut(office, "erik/E-1.1/9", 101).switches == (Switch(there, 101, False),)


def test_who_comes_before_the_cut_starts_tentatively() -> None:
    """Else it would be given what is published before the cut."""
    office = publisher()
    office.arrives("dora", "D")
    one, two = op("dora", 1, "D"), op("dora", 2, "D")
    begun = (Begun(one, SPACE, "1"), Begun(two, SPACE, "2"))
    office.hears(Decide("dora/D-1.1/9", 1, True, "", begun), "B")
    message = office.machine.normalised(Subscribe(one, SPACE, tx="dora/D-1.1/9"))
    assert message == Subscribe(one, SPACE)  # it is decided
    effects = office.routing.apply(message, office.state.pubends["D.1"])
    assert [tentative for _, _, tentative in effects.starts] == [True]
    assert office.machine.due() == ""
    office.routing.apply(Subscribe(two, SPACE), office.state.pubends["D.1"])
    cut(office, "dora/D-1.1/9", 100)
    assert not office.state.uncut


def test_nobody_waits_for_who_has_gone() -> None:
    office = publisher()
    tx = "dora/D-1.1/9"
    office.hears(Decide(tx, 1, True, "", (Begun(op("dora", 1, "D"), SPACE, "1"),)), "B")
    assert not office.machine.state.active[tx].cutting  # her session is not known here


def test_a_pubend_that_is_not_concerned_does_not_cut() -> None:
    office = publisher()
    elsewhere = op("dora", 1, "D")
    office.subscribes(elsewhere, Filter.parse("y > 0"))
    ended = (Ended(elsewhere, Filter.parse("x < 0"), "1"),)
    office.state.subscriptions.get(elsewhere).start = 0  # type: ignore[union-attr]
    office.hears(Decide("dora/D-1.1/9", 1, True, "", (), ended), "B")
    assert office.machine.due() == ""
    office.hears(Echoed("dora/D-1.1/9", "decide"), "C")
    assert office.to("B")[-1] == Echoed("dora/D-1.1/9", "decide")


def test_the_echo_waits_for_the_cut() -> None:
    office = publisher()
    tx = office.begins(ALICE)
    office.stages(op("alice", 2), tx, body(x=1))
    office.hears(Decide(tx, 1, True, "", (), (), ("A.1",)), "B")
    office.hears(Echoed(tx, "decide"), "C")
    assert office.to("B") == []
    cut(office, tx, 100)
    assert office.to("B") == [Echoed(tx, "decide")]


def test_what_is_settled_elsewhere_is_cut_all_the_same() -> None:
    office = publisher()
    tx = office.begins(ALICE)
    office.stages(op("alice", 2), tx, body(x=1))
    office.hears(Decide(tx, 1, True, "", (), (), ("A.1",)), "B")
    office.hears(Settle(tx), "B")  # nobody had waited for us
    assert len(cut(office, tx, 100).events) == 1
    assert not office.machine.state.active


@pytest.mark.parametrize("comes", [True, False])
def test_what_begins_and_has_ended_elsewhere_is_not_waited_for(comes: bool) -> None:
    """It was settled while we were away. Only behind probes it is known whether it still comes."""
    office = publisher()
    office.meets()
    office.arrives("dora", "D")
    wish, tx = op("dora", 1, "D"), "dora/D-1.1/9"
    office.hears(Decide(tx, 1, True, "", (Begun(wish, SPACE, "1"),)), "B")
    assert office.machine.due() == ""
    office.hears(Settle(tx), "B")
    assert office.machine.due() == ""
    if comes:
        office.subscribes(wish)
    office.probes_return()
    expected = (Switch(wish, 100, False),) if comes else ()
    assert cut(office, tx, 100).switches == expected
    assert not office.machine.state.active


def test_an_advertisement_is_effective_when_what_was_committed_meanwhile_has_begun() -> None:
    """Else an event that follows it would miss a subscription that was committed before."""
    office = publisher()
    office.arrives("dora", "D")
    wish, tx = op("dora", 1, "D"), "dora/D-1.1/9"
    office.hears(Decide(tx, 1, True, "", (Begun(wish, SPACE, "1"),)), "B")
    office.advertises(op("alice", 91), NARROW)
    office.advertises(op("alice", 92), Filter.parse("x < 0"))
    assert office.machine.postpone(op("alice", 91))
    assert not office.machine.postpone(op("alice", 92))  # it has nothing to do with it
    office.subscribes(wish)
    cut(office, tx, 100)
    assert office.answer(op("alice", 91)) == Done(91)
    assert not office.machine.state.postponed
    assert not office.machine.postpone(op("alice", 91))


def test_an_ended_subscription_that_comes_late_is_ended() -> None:
    office = publisher()
    old = op("dora", 1, "D")
    office.hears(Decide("dora/D-1.1/9", 1, True, "", (), (Ended(old, SPACE, "1"),)), "B")
    message = office.machine.normalised(Subscribe(old, SPACE))
    assert isinstance(message, Subscribe)
    assert message.ended
    effects = office.routing.apply(message, office.state.pubends["D.1"])
    ((tick, shown, tentative),) = effects.starts  # in the stream, so that it passes the tick
    assert (shown, tentative) == (old, True)
    told = [message for _, message in effects.messages if isinstance(message, Switched)]
    assert told == [Switched(old, office.state.hosted, tick, True)]


def test_an_ended_subscription_that_was_lost_meanwhile_ends_at_the_cut() -> None:
    """It is owed what lies before, and not more: behind the cut somebody else has it."""
    office = publisher()
    old, tx = op("dora", 1, "D"), "dora/D-1.1/9"
    office.arrives("dora", "D")
    office.subscribes(old)
    way = office.state.pubends["D.1"]
    office.routing.apply(Unsubscribe(old, lost=True), way)
    office.hears(Decide(tx, 1, True, "", (), (Ended(old, SPACE, "1"),)), "B")
    assert cut(office, tx, 100).switches == (Switch(old, 100, True),)  # the stream shows it
    effects = office.routing.apply(Subscribe(old, SPACE, ended=True), way)
    assert [told for _, told in effects.messages] == [
        Started(old, "A.1", 1),
        Switched(old, "A.1", 100, True),
    ]
    office.routing.apply(Unsubscribe(old, lost=True), way)  # and again
    effects = office.routing.apply(Subscribe(old, SPACE, ended=True), way)
    assert Switched(old, "A.1", 100, True) in [told for _, told in effects.messages]


def test_an_ended_subscription_that_was_withdrawn_meanwhile_ends_at_the_cut() -> None:
    """Nobody here had advertised what it wants, so it went; a start of before may still count where
    its client is."""
    office = publisher()
    old, tx = op("dora", 1, "D"), "dora/D-1.1/9"
    office.arrives("dora", "D")
    office.hears(Decide(tx, 1, True, "", (), (Ended(old, SPACE, "1"),)), "B")
    assert cut(office, tx, 100).switches == (Switch(old, 100, True),)
    effects = office.routing.apply(Subscribe(old, SPACE, ended=True), office.state.pubends["D.1"])
    told = [message for _, message in effects.messages]
    assert told == [Switched(old, "A.1", 100, True)]
    office.hears(Settle(tx), "B")  # what was under way has come
    assert not office.state.lost_ends


# ── versions ─────────────────────────────────────────────────────────────────────────────


def reached(office: Office, tx: str, number: int, *, isolated: bool = True) -> set[str]:
    """Whom an invitation of a transaction reaches here."""
    office.told.clear()
    invite = Invite(tx, op("erik", number, "E"), "1", body(x=9), 10.0, isolated)
    office.hears(invite, "C")
    there = {client for client, _ in office.told}
    return there | {"dora"} if invite in office.to("B") else there


@pytest.fixture
def office() -> Office:
    office = Office(root="B")
    for client in ("alice", "bob", "carl"):
        office.arrives(client)
    return office


def test_an_isolated_one_reads_what_was_committed_when_it_began(office: Office) -> None:
    bob, carl, dora = op("bob", 1), op("carl", 1), op("dora", 1, "D")
    office.subscribes(bob)
    office.hears(Opening("erik/E-1.1/1"), "B")
    office.subscribes(carl)
    office.subscribes(dora)
    office.routing.apply(Unsubscribe(bob), office.state.subscriptions.get(bob).source)  # type: ignore[union-attr]
    assert reached(office, "erik/E-1.1/1", 2) == {"bob"}
    assert reached(office, "erik/E-1.1/77", 3, isolated=False) == {"carl", "dora"}


def test_an_invitation_that_the_decision_has_overtaken_reaches_nobody(office: Office) -> None:
    """Whatever it was to read is not remembered any more."""
    office.subscribes(op("bob", 1))
    office.hears(Opening("erik/E-1.1/1"), "B")
    office.hears(Decide("erik/E-1.1/1", 1, False, "erik has gone"), "B")
    office.to("C")
    assert reached(office, "erik/E-1.1/1", 2) == set()
    assert office.to("C") == [Reply(op("erik", 2, "E"), (), refusal="the transaction is over")]


def test_it_sees_its_own_and_nothing_of_other_open_ones(office: Office) -> None:
    office.hears(Opening("erik/E-1.1/1"), "B")
    office.subscribes(op("bob", 1), tx="erik/E-1.1/1")
    office.subscribes(op("carl", 1), tx="zoe/Z-1.1/1")
    assert reached(office, "erik/E-1.1/1", 2) == {"bob"}


def test_what_another_one_has_ended_since_is_still_there_for_it(office: Office) -> None:
    bob = op("bob", 1)
    office.subscribes(bob)
    office.hears(Opening("erik/E-1.1/1"), "B")
    office.hears(Decide("zoe/Z-1.1/1", 1, True, "", (), (Ended(bob, SPACE, "1"),)), "B")
    assert reached(office, "erik/E-1.1/1", 2) == {"bob"}
    office.hears(Opening("erik/E-1.1/5"), "B")
    assert reached(office, "erik/E-1.1/5", 6) == set()


def objection(office: Office, tx: str) -> str:
    office.hears(Prepare(tx), "B")
    office.hears(Echoed(tx, "prepare"), "C")
    (told,) = [each for each in office.to("B") if isinstance(each, Echoed)]
    return told.objection


def test_what_has_not_changed_holds(office: Office) -> None:
    office.subscribes(op("bob", 1))
    office.hears(Opening("erik/E-1.1/1"), "B")
    office.hears(Echoed("erik/E-1.1/1", "opening"), "C")
    office.to("B")
    reached(office, "erik/E-1.1/1", 2)
    office.subscribes(op("carl", 1), Filter.parse("y > 0"))  # nothing to do with it
    office.subscribes(op("bob", 2))  # bob was invited anyway
    assert objection(office, "erik/E-1.1/1") == ""


@pytest.mark.parametrize("change", ["added", "removed", "committed", "ended"])
def test_what_has_changed_does_not(office: Office, change: str) -> None:
    bob, carl = op("bob", 1), op("carl", 1)
    office.subscribes(bob)
    if change == "committed":
        office.subscribes(carl, tx="zoe/Z-1.1/1")
    office.hears(Opening("erik/E-1.1/1"), "B")
    office.hears(Echoed("erik/E-1.1/1", "opening"), "C")
    office.to("B")
    reached(office, "erik/E-1.1/1", 2)
    match change:
        case "added":
            office.subscribes(carl)
        case "removed":
            source = office.state.subscriptions.get(bob).source  # type: ignore[union-attr]
            office.routing.apply(Unsubscribe(bob), source)
        case "committed":
            office.hears(Decide("zoe/Z-1.1/1", 1, True, "", (Begun(carl, SPACE, "1"),)), "B")
        case "ended":
            office.hears(Decide("zoe/Z-1.1/1", 1, True, "", (), (Ended(bob, SPACE, "1"),)), "B")
    assert "run it again" in objection(office, "erik/E-1.1/1")


def test_the_past_is_remembered_while_somebody_reads_it(office: Office) -> None:
    bob, carl = op("bob", 1), op("carl", 1)

    def goes(wish: OpId) -> None:
        source = office.state.subscriptions.get(wish).source  # type: ignore[union-attr]
        office.routing.apply(Unsubscribe(wish), source)

    office.subscribes(bob)
    office.subscribes(carl)
    goes(carl)
    assert not office.state.ghosts  # nobody reads
    office.hears(Opening("erik/E-1.1/1"), "B")
    goes(bob)
    assert [entry.id for entry, _ in office.state.ghosts] == [bob]
    office.hears(Opening("erik/E-1.1/5"), "B")
    office.hears(Decide("erik/E-1.1/1", 1, True), "B")
    assert not office.state.ghosts  # the other one began later
    assert office.state.watched
    office.hears(Decide("erik/E-1.1/5", 2, False, "no"), "B")
    assert not office.state.watched
