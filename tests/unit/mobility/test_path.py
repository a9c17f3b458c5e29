"""Brokers on the way: what a commit turns, what it gathers, and what is not believed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from motet.model import Filter, Hop, OpId
from motet.protocol.contract import Reconfigured
from motet.protocol.delivery.messages import AckExpected, AckUp
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import Control, Inquire, LinkHello, Waiting
from motet.protocol.mobility.messages import FencedAck, MoveCommit, MoveDone
from motet.protocol.mobility.state import MobilityState, Pins
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    ClientHere,
    Echo,
    MovingRow,
    MovingStarts,
    Rehome,
    Started,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.session.messages import ClientHello, Done, UnsubscribeRequest
from motet.protocol.session.state import MovingSession, Session
from tests.unit.mobility.place import WIDE, Place

ALICE, EPOCH = "alice", "A-1.1"
SUB, ADV, RESIDUE = (OpId(ALICE, EPOCH, number) for number in (1, 2, 99))
BOB = OpId("bob", "C-1.1", 1)
SIDE = Filter.parse("x > 5")


def commit(**more: Any) -> MoveCommit:
    """Alice moves from A to C."""
    session = MovingSession(Session(ALICE, EPOCH))
    known = {
        "number": 1,
        "path": ("A", "B", "C"),
        "durable": False,
        "session": session,
        "subscriptions": (MovingRow(SUB, WIDE),),
        "advertisements": (),
        "levels": {},
        "doubts": {},
    } | more
    starts = known.pop("starts", None)
    return MoveCommit(ALICE, EPOCH, starts=starts or MovingStarts(), **known)


def way(*, has_alice: bool = True) -> Place:
    here = Place("B")
    if has_alice:
        here.control("A", ClientHere(ALICE, EPOCH))
    return here


def sources(here: Place, table: str = "subscriptions") -> dict[OpId, Hop]:
    return {each.id: each.source for each in getattr(here.core.durable.routing.state, table)}


# ── a commit ─────────────────────────────────────────────────────────────────────────────


def test_a_commit_turns_the_rows_and_goes_on() -> None:
    here = way()
    here.control("A", Subscribe(SUB, WIDE))
    here.control("A", commit())
    assert sources(here)[SUB] == Hop.broker("C")
    assert here.sent("C", MoveCommit) == [commit()]
    assert here.core.durable.routing.state.clients[ALICE, EPOCH] == Hop.broker("C")
    assert here.core.durable.routing.state.clients.home(ALICE) == "C"


def test_a_commit_brings_rows_that_were_not_there() -> None:
    here = way(has_alice=False)
    here.control("A", commit())
    assert sources(here) == {SUB: Hop.broker("C")}


def test_frontiers_are_gathered_on_the_way() -> None:
    here = way()
    here.hear("C", AckExpected("C.1", 70, ()))
    here.control("A", commit(levels={"C.1": 5}, doubts={"C.1": 6}))
    (passed,) = here.sent("C", MoveCommit)
    assert passed.doubts == {"C.1": 70}
    assert passed.levels == {"C.1": 5}


def test_only_pubends_that_concern_the_client_are_gathered() -> None:
    here = way()
    here.hear("C", AckExpected("C.1", 70, ()))
    here.control("A", commit())
    assert here.sent("C", MoveCommit)[0].doubts == {}


def test_pubends_whose_start_may_be_under_way_are_gathered() -> None:
    here = way()
    here.control("C", Advertise(BOB, WIDE))
    here.hear("C", AckExpected("C.1", 70, ()))
    here.control("A", commit())
    assert here.sent("C", MoveCommit)[0].doubts == {"C.1": 70}


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("B",),
        ("A", "C"),
        ("C", "B", "A"),
        ("X", "B", "C"),
        ("B", "C"),
        ("A", "X", "B", "C"),
        ("A", "B", "A"),
        ("A", "B", "C", "B"),
    ],
)
def test_a_commit_that_does_not_come_along_its_path_is_ignored(path: tuple[str, ...]) -> None:
    here = way()
    here.control("A", Subscribe(SUB, WIDE))
    here.is_lied_to = True
    here.control("A", replace(commit(), path=path))
    assert here.core.durable.routing.ignored == 1
    assert sources(here)[SUB] == Hop.broker("A")
    assert here.sent("C", MoveCommit) == []
    assert here.durable.leftovers() == []


def test_a_neighbour_that_a_session_came_from_or_goes_to_stays() -> None:
    here = way()
    here.control("A", commit())
    found = here.core.objection_to(("C",))
    assert found is not None
    assert "alice is on its way from or to A; wait until it has arrived" in found.text
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert here.core.objection_to(("C",)) is None


# ── echoes wait for clients in total order ───────────────────────────────────────────────

PROBE = Advertise(OpId("", "X-1", 1), Filter(), echo=True, probe=True)


def merging() -> MoveCommit:
    return commit(session=MovingSession(Session(ALICE, EPOCH, total_order=True)))


def echoed(here: Place, neighbour: str) -> list[OpId]:
    return [each.op for each in here.sent(neighbour, Echo)]


@pytest.mark.parametrize("asker", ["A", "C"])
def test_a_probe_is_echoed_when_clients_in_total_order_have_arrived(asker: str) -> None:
    here, other = way(), {"A": "C", "C": "A"}[asker]
    here.control("A", merging())
    here.control(asker, PROBE)
    here.control(other, Echo(PROBE.id))
    assert echoed(here, asker) == []
    here.restart()
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert echoed(here, asker) == [PROBE.id]
    assert not here.durable.state.echoes


def test_an_advertisement_is_echoed_when_clients_in_total_order_have_arrived() -> None:
    here = way()
    here.control("A", merging())
    here.control("A", Advertise(BOB, WIDE, echo=True))
    here.control("C", Echo(BOB))
    assert echoed(here, "A") == []
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert echoed(here, "A") == [BOB]


def test_no_echo_waits_for_other_clients() -> None:
    here = way()
    here.control("A", commit())
    here.control("A", PROBE)
    here.control("C", Echo(PROBE.id))
    assert echoed(here, "A") == [PROBE.id]


def test_no_echo_waits_for_a_client_that_leaves_later() -> None:
    here = way()
    here.control("A", merging())
    here.control("A", PROBE)
    here.control("C", Echo(PROBE.id))
    carl = Session("carl", "A-1.2", total_order=True)
    here.control("A", ClientHere("carl", "A-1.2"))
    later = replace(merging(), client="carl", epoch="A-1.2", session=MovingSession(carl))
    here.control("A", replace(later, subscriptions=()))
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert echoed(here, "A") == [PROBE.id]


def test_no_echo_waits_for_a_client_behind_an_empty_broker() -> None:
    here = way()
    here.control("A", merging())
    here.control("A", PROBE)
    here.control("C", Echo(PROBE.id))
    here.lose("C")
    here.hear("C", LinkHello(PROTOCOL_VERSION, "C", 2, 0, 0))
    assert echoed(here, "A") == [PROBE.id]


# ── the three cases of the paper ─────────────────────────────────────────────────────────


def publisher(*others: tuple[str, OpId]) -> Place:
    """Alice advertises at A; others have subscribed, and those from elsewhere were sent to A."""
    here = way()
    here.control("A", Advertise(ADV, WIDE))
    for neighbour, op in others:
        here.control(neighbour, Subscribe(op, WIDE))
    return here


def moves_away(**more: Any) -> MoveCommit:
    return commit(subscriptions=(), advertisements=(MovingRow(ADV, WIDE),), upto=9, **more)


def test_case_1_a_subscription_from_the_source_follows_to_the_target() -> None:
    here = publisher(("A", OpId("bob", "A-1.2", 1)))
    here.control("A", moves_away())
    assert [each.id.client for each in here.sent("C", Subscribe)] == ["bob"]
    assert here.sent("A", Unsubscribe) == []


def test_case_2_a_subscription_from_the_target_is_withdrawn_from_the_source() -> None:
    here = publisher(("C", BOB))
    assert [each.id for each in here.sent("A", Subscribe)] == [BOB]
    here.control("A", moves_away())
    assert [each.target for each in here.sent("A", Unsubscribe)] == [BOB]
    assert here.sent("C", Subscribe) == []


def test_case_2_does_not_apply_while_a_residue_stays() -> None:
    here = publisher(("C", BOB))
    row = MovingRow(ADV, WIDE, residue=RESIDUE)
    here.control("A", commit(subscriptions=(), advertisements=(row,)))
    assert here.sent("A", Unsubscribe) == []
    assert sources(here, "advertisements") == {ADV: Hop.broker("C"), RESIDUE: Hop.broker("A")}


def test_case_2_does_not_apply_while_somebody_else_advertises_there() -> None:
    here = publisher(("C", BOB))
    here.control("A", Advertise(OpId("zoe", "A-1.3", 1), SIDE))
    here.control("A", moves_away())
    assert here.sent("A", Unsubscribe) == []


def test_case_3_a_subscription_from_aside_goes_on_and_is_withdrawn() -> None:
    here = publisher()
    here.connect("carl")
    carl = here.subscribe("carl")
    assert [each.id for each in here.sent("A", Subscribe)] == [carl]
    here.control("A", moves_away())
    assert [each.id for each in here.sent("C", Subscribe)] == [carl]
    assert [each.target for each in here.sent("A", Unsubscribe)] == [carl]


def test_what_an_advertisement_attracts_goes_ahead_of_the_commit() -> None:
    here = publisher(("A", OpId("bob", "A-1.2", 1)))
    here.control("A", moves_away())
    kinds = [
        type(each)
        for connection, frame in here.told
        if connection == here.ends["C"] and isinstance(frame, Control)
        for each in frame.messages
    ]
    assert kinds.index(Subscribe) < kinds.index(MoveCommit)


def test_starts_are_told_behind_the_commit() -> None:
    """Then the next broker has the rows that they are for."""
    here = way()
    here.connect("zoe")
    here.advertise("zoe")
    here.control("A", commit())
    told = [
        each
        for connection, frame in here.told
        if connection == here.ends["C"] and isinstance(frame, Control)
        for each in frame.messages
    ]
    kinds = [type(each) for each in told]
    assert Started in kinds
    assert kinds.index(MoveCommit) < kinds.index(Started)


def test_the_client_takes_its_own_subscription_along() -> None:
    here = publisher(("A", SUB))
    here.control("A", commit(advertisements=(MovingRow(ADV, WIDE),), upto=9))
    assert here.sent("A", Unsubscribe) == []
    assert sources(here) == {SUB: Hop.broker("C")}


def test_nobody_off_the_path_hears_of_a_subscriber() -> None:
    here = Place("B")
    epoch = "C-1.1"
    here.control("C", ClientHere(ALICE, epoch))
    before = len(here.sent("A", object))
    to_us = replace(
        commit(),
        epoch=epoch,
        path=("C", "B"),
        session=MovingSession(Session(ALICE, epoch)),
        subscriptions=(MovingRow(SUB._replace(epoch=epoch), WIDE),),
    )
    here.control("C", to_us)
    assert len(here.sent("A", object)) == before


def test_neighbours_off_the_path_are_told_whose_log_it_is() -> None:
    here = Place("B")
    epoch = "C-1.1"
    op = OpId(ALICE, epoch, 2)
    here.control("C", ClientHere(ALICE, epoch), Advertise(op, WIDE))
    row = MovingRow(op, WIDE)
    to_us = MoveCommit(
        *(ALICE, epoch, 1, ("C", "B"), False, MovingSession(Session(ALICE, epoch))),
        *((), (row,), commit().starts, {}, {}),
        upto=9,
    )
    here.control("C", to_us)
    assert here.sent("A", Rehome) == [Rehome(op, "B", "C", None, 9)]
    assert here.sent("C", Rehome) == []


def test_a_new_home_lifts_the_starts_at_the_former_one() -> None:
    """All that was published there has arrived: nobody waits for what others publish there."""
    here = Place("C")
    here.connect("zoe")
    here.control("B", ClientHere(ALICE, EPOCH), Advertise(ADV, WIDE))
    wish = here.subscribe("zoe")
    here.control("B", Started(wish, "A.1", 3))
    starts = here.core.durable.routing.starts
    assert starts.known[wish] == {"A.1": 3}
    here.control("B", Rehome(ADV, "B", "A", None, 9))
    assert not starts.known.get(wish)
    assert starts.lapsed_upto(wish, "A.1") == 9


# ── acknowledgements ─────────────────────────────────────────────────────────────────────


def test_nothing_beyond_a_pin_is_acknowledged_before_done() -> None:
    here = way()
    here.control("A", Subscribe(SUB, WIDE))
    here.control("A", commit(levels={"A.1": 40}))
    assert here.core.streams.interests.pinned("A.1") == 40
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert here.core.streams.interests.pinned("A.1") > 40


def test_the_lowest_of_several_pins_counts() -> None:
    here = way()
    here.control("A", commit(levels={"A.1": 40}))
    other = replace(
        commit(levels={"A.1": 30}),
        client="zoe",
        epoch="A-1.7",
        session=MovingSession(Session("zoe", "A-1.7")),
        subscriptions=(),
    )
    here.control("A", other)
    assert here.durable.pins == {"A.1": 30}
    here.control("C", MoveDone("zoe", "A-1.7", 1))
    assert here.durable.pins == {"A.1": 40}


def test_a_doubt_without_a_level_pins_everything() -> None:
    here = way()
    here.control("A", commit(doubts={"C.1": 12}))
    assert here.durable.pins == {"C.1": 0}


def test_pins_come_back_with_a_snapshot() -> None:
    here = way()
    here.control("A", commit(levels={"A.1": 40}))
    again = type(here.durable).__new__(type(here.durable))
    image = here.durable.image()
    again.__dict__.update(here.durable.__dict__)
    again.pins, again.state = Pins(), MobilityState()
    again.restore(image)
    assert again.pins == {"A.1": 40}
    assert again.state == here.durable.state


def test_an_acknowledgement_from_before_done_is_void() -> None:
    here = way()
    here.control("A", Subscribe(SUB, WIDE))
    here.control("A", commit(levels={"A.1": 40}))
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    swept = here.durable.state.swept["C"]
    assert swept == here.core.durable.ledgers["C"].record.received
    received = here.core.streams.tally.account()
    here.hear("C", FencedAck(swept - 1, AckUp("A.1", 90)))
    assert here.core.streams.tally.account() == received
    here.hear("C", FencedAck(swept, AckUp("A.1", 90)))
    assert here.core.streams.tally.account() != received


def test_an_acknowledgement_without_a_fence_is_older_than_done() -> None:
    here = way()
    here.control("A", Subscribe(SUB, WIDE))
    here.control("A", commit(levels={"A.1": 40}))
    here.hear("C", AckUp("A.1", 80))
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    received = here.core.streams.tally.account()
    here.hear("C", AckUp("A.1", 90))
    assert here.core.streams.tally.account() == received


def test_an_acknowledgement_that_is_ahead_of_control_is_dropped() -> None:
    here = way()
    received = here.core.streams.tally.account()
    here.hear("C", FencedAck(10_000, AckUp("A.1", 90)))
    assert here.core.streams.tally.account() == received


def test_a_neighbour_that_was_told_of_an_arrival_gets_fenced_acknowledgements() -> None:
    here = way()
    here.control("A", commit())
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert here.durable.state.fenced == {"A": None}
    fenced = here.soft._fence("A", AckUp("A.1", 9))
    assert fenced == FencedAck(here.core.durable.ledgers["A"].record.sent, AckUp("A.1", 9))
    assert here.soft._fence("C", AckUp("C.1", 9)) == AckUp("C.1", 9)


def test_a_decision_that_is_settled_here_need_not_be_waited_for() -> None:
    here = way()
    here.core.durable.transactions.decisions.state.heard = 5
    here.control("A", commit(cut=5, unsettled=5))
    assert here.sent("C", MoveCommit)[0].unsettled == 0


def test_a_decision_that_has_not_come_here_may_still_come_to_the_target() -> None:
    here = way()
    here.core.durable.transactions.decisions.state.heard = 4
    here.control("A", commit(cut=5, unsettled=5))
    assert here.sent("C", MoveCommit)[0].unsettled == 5


# ── a neighbour that starts empty ────────────────────────────────────────────────────────


def test_a_session_that_was_on_its_way_to_an_empty_broker_is_not_waited_for() -> None:
    here = way()
    here.control("A", commit(levels={"C.1": 5}, doubts={"C.1": 6}))
    assert here.durable.pins == {"C.1": 5}
    here.lose("C")
    here.hear("C", LinkHello(PROTOCOL_VERSION, "C", 2, 1, 0))
    assert here.durable.leftovers() == []
    assert here.durable.pins == {}
    assert here.sent("A", MoveDone) == [MoveDone(ALICE, EPOCH, 1)]


def test_a_session_on_its_way_does_not_need_the_broker_that_it_came_from() -> None:
    here = way()
    here.control("A", commit())
    here.lose("A")
    here.hear("A", LinkHello(PROTOCOL_VERSION, "A", 2, 1, 0))
    assert here.durable.leftovers() == ["alice is in transit"]
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert here.durable.leftovers() == []


# ── a neighbour that is taken out of the overlay ─────────────────────────────────────────


def test_a_session_ends_where_the_next_broker_is_no_neighbour_any_more() -> None:
    """Nobody could take it any further, and brokers before us would keep its pins for ever."""
    here = way()
    here.control("A", Subscribe(SUB, WIDE), Advertise(ADV, WIDE))
    here.ends.pop("C")
    here.step(Reconfigured(("A",)))
    here.control("A", commit(advertisements=(MovingRow(ADV, WIDE),), upto=9, levels={"A.1": 5}))
    state = here.core.durable.routing.state
    assert not list(state.subscriptions)
    assert ADV not in state.advertisements
    assert (ALICE, EPOCH) not in state.clients
    assert here.sent("A", MoveDone) == [MoveDone(ALICE, EPOCH, 1)]
    assert here.sent("A", ClientGone) == [ClientGone(ALICE, EPOCH)]
    assert here.durable.pins == {}
    assert here.durable.leftovers() == []


def test_nothing_is_kept_of_acknowledgements_of_a_broker_that_was_removed_from_the_overlay() -> (
    None
):
    here = way()
    here.control("A", commit())
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    here.control("C", Unsubscribe(SUB), ClientGone(ALICE, EPOCH))
    assert here.durable.state.fenced == {"A": None}
    assert here.durable.state.swept.keys() == {"C"}
    for neighbours in (("C",), ()):
        here.step(Reconfigured(neighbours))
    assert here.durable.state == MobilityState()


# ── removals behind the report ───────────────────────────────────────────────────────────


def withdrawn() -> tuple[Place, OpId]:
    """B has withdrawn a row from A, which has not echoed; and the name of that removal."""
    here = way()
    here.control("A", commit())
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    (told,) = here.sent("A", Unsubscribe)
    assert told.op is not None
    return here, told.op


def test_a_removal_waits_until_the_source_has_no_row() -> None:
    here, ahead = withdrawn()
    here.control("C", Unsubscribe(SUB, BOB))
    assert sources(here) == {}
    assert here.sent("C", Echo) == []
    here.control("A", Echo(ahead))
    assert here.sent("C", Echo) == [Echo(BOB)]


def test_a_removal_does_not_wait_for_one_in_the_other_direction() -> None:
    """The client comes back, and its row is removed behind it: both would wait for each other."""
    here, ahead = withdrawn()
    here.control("C", Unsubscribe(SUB, BOB))
    here.control("C", commit(path=("C", "B"), number=2))
    (back,) = here.sent("C", Unsubscribe)
    assert back.target == SUB
    here.control("A", Echo(ahead))
    assert here.sent("C", Echo) == [Echo(BOB)]


def test_a_removal_by_a_client_that_came_back_waits_for_what_passed_its_broker() -> None:
    here = way()
    here.control("A", Advertise(OpId("zoe", "A-1.3", 1), SIDE))
    here.control("A", commit())
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert here.sent("A", Unsubscribe) == []
    here.control("C", Unsubscribe(SUB, BOB))
    assert here.sent("A", Unsubscribe) == [Unsubscribe(SUB, BOB)]
    here.control("A", Unadvertise(OpId("zoe", "A-1.3", 1), upto=1))
    session = MovingSession(Session(ALICE, EPOCH, requests=1))
    here.control("C", commit(path=("C", "B"), number=2, session=session))
    here.hear(ALICE, ClientHello(PROTOCOL_VERSION, ALICE, resume=EPOCH))
    here.hear(ALICE, UnsubscribeRequest(2, SUB.sequence))
    (back,) = (each.op for each in here.sent("C", Unsubscribe))
    assert back is not None
    here.control("C", Echo(back))
    assert here.sent(ALICE, Done) == []
    here.control("A", Echo(BOB))
    assert here.sent(ALICE, Done) == [Done(2)]


def test_an_inquiry_about_a_removal_goes_on_where_it_waits() -> None:
    """Its requester waits for us; whoever has the row knows only the removal that goes ahead."""
    here, ahead = withdrawn()
    here.control("C", Unsubscribe(SUB, BOB))
    here.hear("C", Inquire(BOB))
    assert here.sent("A", Inquire) == [Inquire(ahead)]
    assert here.sent("C", Inquire) == []
    assert here.sent("C", Waiting) == [Waiting(BOB, "B", ("A",))]
    here.hear("A", Waiting(ahead, "A", ()))
    assert here.sent("C", Waiting)[1:] == [Waiting(BOB, "A", ())]


# ── done ─────────────────────────────────────────────────────────────────────────────────


def test_rows_that_nobody_needs_at_the_source_are_withdrawn_behind_done() -> None:
    here, _ = withdrawn()
    assert here.sent("A", MoveDone) == [MoveDone(ALICE, EPOCH, 1)]
    assert [each.target for each in here.sent("A", Unsubscribe)] == [SUB]
    assert here.durable.leftovers() == []


def test_rows_stay_for_which_somebody_advertises_at_the_source() -> None:
    here = way()
    here.control("A", Advertise(OpId("zoe", "A-1.3", 1), SIDE))
    here.control("A", commit())
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    assert here.sent("A", MoveDone) == [MoveDone(ALICE, EPOCH, 1)]
    assert here.sent("A", Unsubscribe) == []


def test_done_from_the_wrong_side_counts_for_nothing() -> None:
    here = way()
    here.control("A", commit())
    here.control("A", MoveDone(ALICE, EPOCH, 1))
    assert here.durable.leftovers() == ["alice is in transit"]


def test_done_of_an_unknown_client_counts_for_nothing() -> None:
    here = way()
    numbers = here.core.durable.ledgers["C"].record.received
    here.control("C", MoveDone("nobody", "Z-1", 3))
    assert here.sent("A", MoveDone) == []
    assert here.core.durable.ledgers["C"].record.received == numbers + 1
    assert here.durable.leftovers() == []


def test_a_commit_of_a_session_that_is_elsewhere_is_ignored() -> None:
    """A neighbour cannot take a session away from another one, nor from here."""
    here = Place("B")
    here.control("C", ClientHere(ALICE, EPOCH))
    own = here.connect("carl")
    here.is_lied_to = True
    here.control("A", commit())
    assert here.core.durable.routing.state.clients[ALICE, EPOCH] == Hop.broker("C")
    session = MovingSession(Session("carl", own, requests=77))
    stolen = replace(commit(subscriptions=()), client="carl", epoch=own, session=session)
    here.control("A", replace(stolen, path=("A", "B")))
    assert here.core.durable.sessions.get("carl").requests == 0  # type: ignore[union-attr]
    assert here.core.durable.routing.ignored == 2
    assert here.sent("C", MoveCommit) == []
