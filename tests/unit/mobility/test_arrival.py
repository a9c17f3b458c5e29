"""The target: what a session brings along, who may come before it, and when it may publish."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from motet.model import Filter, Hop, OpId
from motet.model.ids import LAST_TICK
from motet.protocol.contract import LogPredecessors, LogRun
from motet.protocol.delivery.messages import Delivered, Knowledge
from motet.protocol.delivery.spans import PredecessorRecord
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.hosted.state import HostedClient, MovingHosted
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.mobility.messages import (
    ArrivalHello,
    MoveCommit,
    Moved,
    MoveDone,
    MoveOffer,
    MoveOrder,
    MoveOrdered,
    MoveRefusal,
    MoveRequest,
    MovingPart,
)
from motet.protocol.mobility.soft import ACCEPTED_S, EARLY_S
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    ClientHere,
    Complete,
    Echo,
    Join,
    MovingRow,
    MovingStarts,
    Started,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.routing.starts import FARTHEST
from motet.protocol.session.durable import NOWHERE
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Done,
    Failed,
    Over,
    Processed,
    Published,
    Ready,
    Refusal,
    UnadvertiseRequest,
    UnsubscribeRequest,
    Welcome,
)
from motet.protocol.session.state import MovingSession, Session
from motet.protocol.transactions.messages import Decide, Engage, Engaged, Letter, Step
from tests.unit.mobility.place import WIDE, Place, body, departed

ALICE = "alice"
EPOCH = "A-1.1"
ELSEWHERE = Filter.parse("x < 0")
WISH = OpId(ALICE, EPOCH, 1)
BOB = OpId("bob", "B-1.1", 1)


def target(commit: MoveCommit | None = None, **changed: Any) -> Place:
    """C, where alice has arrived from A."""
    here = Place("C")
    arrive(here, commit or departed(), **changed)
    return here


def arrive(here: Place, commit: MoveCommit, **changed: Any) -> None:
    if (commit.client, commit.epoch) not in here.core.durable.routing.state.clients:
        here.control("B", ClientHere(commit.client, commit.epoch, commit.durable))
    for row in commit.advertisements:
        here.control("B", Advertise(row.id, row.filter))
    here.control("B", replace(commit, **changed))


def hello(epoch: str | None = EPOCH, **more: Any) -> ArrivalHello:
    return ArrivalHello(PROTOCOL_VERSION, ClientHello(PROTOCOL_VERSION, ALICE, epoch, **more))


def greet(here: Place, epoch: str | None = EPOCH, **more: Any) -> list[Frame]:
    here.ends.pop(ALICE, None)
    return here.hear(ALICE, hello(epoch, **more))


# ── the session ──────────────────────────────────────────────────────────────────────────


def test_a_client_may_come_before_any_news_of_its_session() -> None:
    """We have accepted the offer: then the control behind it is only late."""
    here = Place("C")
    commit = departed()
    here.hear("B", MoveOffer(ALICE, EPOCH, 1, ("A", "B", "C")))
    assert greet(here) == []
    arrive(here, commit)
    here.wait(EARLY_S)
    (welcome,) = here.sent(ALICE, Welcome)
    assert welcome.epoch == EPOCH


def test_a_client_whose_session_never_comes_gets_a_new_one() -> None:
    here = Place("C")
    here.hear("B", MoveOffer(ALICE, EPOCH, 1, ("A", "B", "C")))
    assert greet(here) == []
    here.wait(ACCEPTED_S + EARLY_S)
    (welcome,) = here.sent(ALICE, Welcome)
    assert welcome.epoch != EPOCH


def test_a_client_that_was_sent_here_is_believed_although_we_have_forgotten_its_offer() -> None:
    here = Place("C")
    here.hear("B", MoveOffer(ALICE, EPOCH, 1, ("A", "B", "C")))
    here.restart()
    sent_on = replace(hello(), number=1)
    assert here.hear(ALICE, sent_on) == []
    arrive(here, departed())
    here.wait(EARLY_S)
    (welcome,) = here.sent(ALICE, Welcome)
    assert welcome.epoch == EPOCH


def test_a_client_that_was_sent_here_is_not_believed_for_ever() -> None:
    here = Place("C")
    sent_on = replace(hello(), number=1)
    assert here.hear(ALICE, sent_on) == []
    here.wait(ACCEPTED_S / 2)
    here.lose(ALICE)
    assert here.hear(ALICE, sent_on) == []
    here.wait(ACCEPTED_S / 2 + EARLY_S)
    (welcome,) = here.sent(ALICE, Welcome)
    assert welcome.epoch != EPOCH


def test_an_earlier_session_that_ended_while_connected_does_not_count() -> None:
    here = Place("C")
    here.connect(ALICE)
    here.subscribe(ALICE)
    newer = "A-1.9"
    here.control("B", ClientHere(ALICE, newer))
    here.control("B", Advertise(BOB, WIDE))
    op = OpId(ALICE, newer, 1)
    starts = MovingStarts(known=((op, (("B.1", 3),)),))
    session = MovingSession(Session(ALICE, newer, requests=1))
    row = MovingRow(op, WIDE)
    commit = replace(departed(), epoch=newer, session=session, subscriptions=(row,), starts=starts)
    here.control("B", replace(commit, levels={"B.1": 5}))
    reader = here.core.streams.machine.clients._readers[ALICE]
    assert not reader.present
    assert not reader.positions["B.1"].present
    assert reader.positions["B.1"].given == 5


def test_a_session_may_arrive_and_be_fenced_in_one_frame() -> None:
    here = Place("C")
    commit = departed()
    here.control("B", ClientHere(ALICE, EPOCH), commit, ClientHere(ALICE, "B-1.9"))
    assert here.core.durable.sessions.get(ALICE) is None
    assert ALICE not in here.core.shared.clients
    assert here.sent("B", ClientGone) == [ClientGone(ALICE, EPOCH)]


def test_a_session_arrives_in_one_fact_and_is_reported() -> None:
    here = target()
    session = here.core.durable.sessions.current(ALICE, EPOCH)
    assert session is not None
    assert session.requests == 1
    assert here.core.durable.routing.state.clients[ALICE, EPOCH] == Hop.client(ALICE)
    (done,) = here.sent("B", MoveDone)
    assert done == MoveDone(ALICE, EPOCH, 1)
    assert here.durable.leftovers() == []


def test_its_client_is_welcomed_in_the_same_epoch() -> None:
    here = target()
    (welcome,) = (each for each in greet(here) if isinstance(each, Welcome))
    assert welcome.epoch == EPOCH


def test_what_a_session_has_is_at_its_new_broker() -> None:
    commit = departed()
    session = replace(
        commit.session.session,
        cursors={"B.1": 7},
        done={1: {"B.1": 9}},
        willing=True,
        news=[Over(3)],
    )
    here = target(commit, session=MovingSession(session))
    found = here.core.durable.sessions.current(ALICE, EPOCH)
    assert found is not None
    assert replace(found, left_at=None) == replace(session, left_at=None)


def test_requests_go_on_behind_those_that_moved() -> None:
    here = target()
    greet(here)
    assert here.subscribe(sequence=2) in {
        each.id for each in here.core.durable.routing.state.subscriptions
    }


def test_a_request_that_was_answered_before_is_answered_again() -> None:
    here = target()
    greet(here)
    here.subscribe(sequence=1)
    assert [each.sequence for each in here.sent(ALICE, Done)] == [1]


def test_a_lease_begins_anew() -> None:
    here = target()
    here.wait(here.config.lease_s + 1.0)
    assert here.core.durable.sessions.get(ALICE) is None
    assert here.sent("B", ClientGone)[-1] == ClientGone(ALICE, EPOCH)


def test_a_crash_does_not_undo_the_arrival() -> None:
    here = target(departed(publishes=2))
    before = here.core.durable.digest()
    here.restart()
    assert here.core.durable.digest() == before
    assert any(isinstance(each, Welcome) for each in greet(here))


def test_starts_are_known_where_a_session_arrives() -> None:
    here = Place("C")
    here.control("B", Advertise(BOB, WIDE))
    arrive(here, departed(), starts=MovingStarts(known=((WISH, (("B.1", 7),)),)))
    assert here.core.durable.routing.starts.known[WISH] == {"B.1": 7}


def test_starts_lapse_where_nobody_advertises_any_more() -> None:
    """The removal of the advertisement has come to the target before the session."""
    here = Place("C")
    here.control("B", Advertise(BOB, WIDE))
    here.control("B", Unadvertise(BOB, upto=9))
    ticks = ((WISH, (("B.1", 7),)),)
    arrive(here, departed(), starts=MovingStarts(known=ticks, awaited=ticks))
    routing = here.core.durable.routing
    assert not routing.starts.known[WISH]
    assert routing.starts.lapsed[WISH] == {"B.1": 7}
    assert not routing.joins.awaited[WISH]


def test_starts_that_are_void_stay_so() -> None:
    here = Place("C")
    here.control("B", Advertise(BOB, WIDE))
    arrive(here, departed(), starts=MovingStarts(lapsed=((WISH, (("B.1", 9),)),)))
    here.control("B", Started(WISH, "B.1", 7))
    assert not here.core.durable.routing.starts.known.get(WISH)
    here.control("B", Started(WISH, "B.1", 10))
    assert here.core.durable.routing.starts.known[WISH] == {"B.1": 10}


def test_a_client_in_total_order_asks_for_starts_that_it_lacks() -> None:
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH, plain=False), Advertise(BOB, WIDE))
    session = MovingSession(Session(ALICE, EPOCH, requests=1, total_order=True))
    arrive(here, departed(), session=session)
    assert [(each.op, each.pubend) for each in here.sent("B", Join)] == [(WISH, "B.1")]
    assert list(here.core.durable.routing.joins.awaited[WISH]) == ["B.1"]


def test_starts_stand_while_an_advertisement_may_only_be_lost() -> None:
    here = Place("C")
    here.control("B", Complete(False))
    arrive(here, departed(), starts=MovingStarts(known=((WISH, (("B.1", 7),)),)))
    assert here.core.durable.routing.starts.known[WISH] == {"B.1": 7}


# ── publications ─────────────────────────────────────────────────────────────────────────


def test_starts_of_the_log_at_the_target_need_no_news() -> None:
    """Its news of them is on the way to the former broker, and comes back late."""
    here = Place("C")
    here.connect("zoe")
    here.advertise("zoe")
    here.control("B", Advertise(BOB, WIDE))
    here.control("B", ClientHere(ALICE, EPOCH), Subscribe(WISH, WIDE))
    (started,) = here.sent("B", Started)
    awaited = MovingStarts(awaited=((WISH, (("C.1", started.tick - 1), ("B.1", 7))),))
    here.control("B", replace(departed(), starts=awaited))
    routing = here.core.durable.routing
    assert routing.starts.known[WISH] == {"C.1": started.tick}
    assert routing.joins.awaited[WISH] == {"B.1": 7}
    here.control("B", started)
    assert routing.starts.known[WISH] == {"C.1": started.tick}


def test_publications_that_are_in_other_logs_are_not_taken_again() -> None:
    here = target(departed(publishes=2))
    greet(here)
    assert here.publish(1, 5, 6) == [Published(2)]
    here.publish(3, 7)
    assert here.sent(ALICE, Published)[-1].upto == 3
    assert [each.first_sequence for each in here.logged if isinstance(each, LogRun)] == [3]


def test_publications_are_not_taken_again_after_a_crash_either() -> None:
    here = target(departed(publishes=2))
    here.restart()
    greet(here)
    here.publish(1, 5, 6, 7)
    published = here.core.streams.pubend
    assert here.sent(ALICE, Published)[-1].upto == 3
    assert here.core.streams.retirement.last_of(ALICE, EPOCH) > 0
    assert published == "C.1"


def test_refusals_are_told_by_the_new_broker() -> None:
    refused = Refusal(2, "NotAdvertised", "no")
    here = target(departed(publishes=2), refused=(refused,))
    (welcome,) = (each for each in greet(here, published=1) if isinstance(each, Welcome))
    assert refused in (*welcome.refused, *here.core.shared.clients[ALICE].refused)


@pytest.mark.parametrize("forgot", [True, False])
def test_what_the_former_broker_has_forgotten_is_told_by_the_new_one(forgot: bool) -> None:
    here = target(departed(publishes=2), forgot=forgot)
    (welcome,) = (each for each in greet(here, published=1) if isinstance(each, Welcome))
    assert welcome.forgot == forgot


def test_ticks_go_on_above_those_of_the_source() -> None:
    here = target(departed(publishes=2), tick=5_000_000)
    greet(here)
    here.publish(3, 7)
    assert here.core.streams.last_tick > 5_000_000


def test_a_tick_that_no_clock_can_reach_is_not_believed() -> None:
    here = target(departed(publishes=2), tick=LAST_TICK)
    assert here.core.durable.routing.starts.next_tick < FARTHEST


def test_the_first_record_names_predecessors() -> None:
    here = target(departed(publishes=2))
    named = here.core.streams.unlogged
    assert named.is_idle
    assert here.durable.predecessors(ALICE, EPOCH)
    assert here.core.streams.last_tick > max(here.durable.predecessors(ALICE, EPOCH).values())


def test_predecessors_are_named_as_long_as_their_residue_stays() -> None:
    commit = departed(publishes=2)
    here = target(commit)
    residue = commit.advertisements[0].residue
    assert residue is not None
    assert list(here.durable.predecessors(ALICE, EPOCH)) == ["A.1"]

    here.control("B", Unadvertise(residue))
    assert here.durable.predecessors(ALICE, EPOCH) == {}


def test_predecessors_are_named_again_after_a_restart() -> None:
    here = target(departed(publishes=2))
    last = here.core.streams.last_tick
    here.restart()
    assert here.durable.predecessors(ALICE, EPOCH)
    first, again = named(here)
    assert last <= first < again


def test_predecessors_go_along_with_the_next_move() -> None:
    commit = departed(publishes=2)
    here = target(commit)
    greet(here)
    here.publish(3, 7)
    here.strays("B", last=True)
    here.ask("A")
    here.accept()
    (onward,) = here.sent("B", MoveCommit)
    assert onward.predecessors["A.1"] == commit.predecessors["A.1"]


def test_a_later_start_finds_the_predecessors_named_above_it() -> None:
    here = target(departed(publishes=2))
    named = here.core.streams.last_tick
    here.control("B", Subscribe(OpId("bob", "B-1.1", 1), WIDE))
    (started,) = here.sent("B", Started)
    assert named < started.tick < here.core.streams.last_tick
    last = records(here)[-1]
    assert last.tick == here.core.streams.last_tick
    assert dict(last.predecessors) == here.durable.predecessors(ALICE, EPOCH)


def test_a_later_advertisement_finds_the_predecessors_named_above_earlier_starts() -> None:
    """Another client's advertisement has started the subscription before alice advertises that."""
    here = target(departed(publishes=2))
    greet(here)
    here.strays("B", last=True)
    here.connect("carol")
    here.hear("carol", AdvertiseRequest(1, ELSEWHERE, wait=False))
    here.control("B", Subscribe(OpId("bob", "B-1.1", 1), ELSEWHERE))
    (started,) = here.sent("B", Started)
    assert named(here)[-1] < started.tick
    here.hear(ALICE, AdvertiseRequest(3, ELSEWHERE, wait=False))
    assert [each.tick for each in here.sent("B", Started)] == [started.tick]
    assert started.tick < named(here)[-1] == here.core.streams.last_tick


def named(here: Place) -> list[int]:
    return [each.tick for each in here.logged if isinstance(each, LogPredecessors)]


def records(here: Place) -> list[PredecessorRecord]:
    sent = [frame.span.records for _, frame in here.told if isinstance(frame, Knowledge)]
    return [each for some in sent for each in some if isinstance(each, PredecessorRecord)]


# ── a past that is gone ──────────────────────────────────────────────────────────────────


def reaching(**more: Any) -> MoveCommit:
    """Alice wants everything that B's log has, and has got nothing of it."""
    commit = departed()
    session = replace(commit.session.session, since={1: {"": 0}})
    starts = MovingStarts(known=((WISH, (("B.1", 7),)),))
    handed = replace(commit.session, session=session)
    return replace(commit, session=handed, starts=starts, levels={"B.1": 0}, **more)


def losses(here: Place) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    return [(each.pubend, each.lost) for each in here.sent(ALICE, Delivered)]


def test_a_loss_is_told_until_it_is_acknowledged() -> None:
    here = target(departed(), gone={"B.1": (1, 7)})
    for _ in range(2):
        greet(here)
        assert losses(here) == [("B.1", ((1, 7),))]
    here.restart()
    greet(here)
    assert losses(here) == [("B.1", ((1, 7),))]
    here.hear(ALICE, Processed("B.1", 7))
    greet(here)
    assert losses(here) == []


def test_a_client_that_has_heard_of_a_loss_is_not_told_again() -> None:
    here = target(departed(), gone={"B.1": (1, 7)})
    here.hear(ALICE, replace(hello(), hello=replace(hello().hello, cursors={"B.1": 7})))
    assert losses(here) == []


def test_a_loss_is_told_when_a_client_begins_to_read() -> None:
    here = target(departed(), gone={"B.1": (1, 7)})
    greet(here, hold=True)
    assert losses(here) == []
    here.hear(ALICE, Ready())
    assert losses(here) == [("B.1", ((1, 7),))]


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_loss_goes_along_with_the_next_move(acknowledged: bool) -> None:
    here = target(departed(), gone={"B.1": (1, 7)})
    greet(here)
    if acknowledged:
        here.hear(ALICE, Processed("B.1", 7))
    here.strays("B", last=True)
    here.ask("A")
    here.accept()
    (onward,) = here.sent("B", MoveCommit)
    assert onward.gone == ({} if acknowledged else {"B.1": (1, 7)})
    assert here.core.streams.machine.clients.losses.of(ALICE) == {}


def test_a_loss_is_not_told_to_the_next_session() -> None:
    here = target(departed(), gone={"B.1": (1, 7)})
    here.wait(here.config.lease_s + 1.0)
    here.connect(ALICE)
    assert losses(here) == []


def test_a_past_that_goes_while_its_reader_is_on_its_way_is_reported() -> None:
    """Its publisher has left, and that was told here before alice came."""
    here = target(reaching())
    greet(here)
    assert losses(here) == [("B.1", ((1, 7),))]
    session = here.core.durable.sessions.current(ALICE, EPOCH)
    assert session is not None
    assert session.since[1]["B.1"] == NOWHERE


def test_a_past_that_was_read_is_not_reported_when_it_goes() -> None:
    here = target(reaching(), levels={"B.1": 7})
    greet(here)
    assert losses(here) == []


def test_a_past_that_can_still_be_read_is_not_reported() -> None:
    here = Place("C")
    here.control("B", Advertise(BOB, WIDE))
    arrive(here, reaching())
    greet(here)
    assert losses(here) == []


# ── the gate of a publisher ──────────────────────────────────────────────────────────────


def test_nobody_publishes_while_a_broker_is_unsure() -> None:
    here = Place("C")
    here.control("B", Complete(False))
    arrive(here, departed(publishes=2))
    greet(here)
    assert here.publish(3, 7) == []
    here.control("B", Complete(True))
    probe = here.sent("B", Advertise)[-1]
    assert probe.probe
    here.control("B", Echo(probe.id))
    assert here.sent(ALICE, Published)[-1].upto == 3


def test_nobody_publishes_before_the_log_has_cut_as_far_as_the_former_one() -> None:
    here = target(departed(publishes=2), cut=5, unsettled=5)
    greet(here)
    assert here.publish(3, 7) == []
    assert here.core.shared.detained
    here.ends.pop(ALICE)
    greet(here)
    assert here.publish(3, 7) == []


def test_a_client_that_comes_again_before_it_may_publish_is_answered_there() -> None:
    here = target(departed(publishes=2), cut=5, unsettled=5)
    greet(here)
    here.hear(ALICE, MoveRequest(1, "A", 3.0))
    here.lose(ALICE)
    greet(here)
    here.hear(ALICE, MoveRequest(1, "A", 3.0))
    here.wait(4.0)
    assert [each.error for each in here.sent(ALICE, MoveRefusal)] == ["MoveRefused"]


def test_a_decision_that_is_settled_is_not_waited_for() -> None:
    here = target(departed(publishes=2), cut=5)
    greet(here)
    assert here.publish(3, 7) == [Published(3)]


def test_nobody_publishes_before_clients_in_total_order_have_joined() -> None:
    commit = departed(publishes=2)
    here = Place("C")
    in_order = ClientHere("bob", "B-1.1", plain=False)
    here.control("B", in_order, Subscribe(OpId("bob", "B-1.1", 1), WIDE))
    arrive(here, commit)
    travel = here.durable.travel(ALICE, EPOCH)
    assert travel is not None
    assert travel.probe is not None
    greet(here)
    assert here.publish(3, 7) == []
    here.control("B", Echo(travel.probe))
    assert here.sent(ALICE, Published)[-1].upto == 3


def test_clients_that_are_not_in_total_order_are_not_waited_for() -> None:
    here = Place("C")
    plain = ClientHere("bob", "B-1.1", plain=True)
    here.control("B", plain, Subscribe(OpId("bob", "B-1.1", 1), WIDE))
    arrive(here, departed(publishes=2))
    greet(here)
    here.publish(3, 7)
    assert here.sent("B", Advertise) == []
    assert here.sent(ALICE, Published)[-1].upto == 3


def test_a_move_waits_until_its_client_has_really_arrived() -> None:
    here = target(departed(publishes=2), cut=5, unsettled=5)
    greet(here)
    here.ask("A", timeout_s=1.0)
    assert here.soft.account()["moves"]["departing"][ALICE]["waits_for"] == "its arrival"
    here.wait(1.1)
    (told,) = (f for _, f in here.told if type(f).__name__ == "MoveRefusal")
    assert "its arrival" in told.text  # type: ignore[attr-defined]


# ── what is left behind ──────────────────────────────────────────────────────────────────


def test_a_client_cannot_remove_what_its_former_broker_retires() -> None:
    here = target(departed())
    left = OpId(ALICE, EPOCH, 2)
    here.control("B", Advertise(left, WIDE))
    greet(here)
    (failed,) = here.hear(ALICE, UnadvertiseRequest(2, 2))
    assert isinstance(failed, Failed)
    assert failed.error == "NoSuchOperation"
    assert left in here.core.durable.routing.state.advertisements


def test_a_removal_follows_the_report_of_the_arrival() -> None:
    """The former path may have a row that no advertisement needs any more until it has echoed."""
    here = target(departed())
    op = OpId(ALICE, EPOCH, 1)
    (withdrawn,) = here.sent("B", Unsubscribe)
    assert withdrawn.target == op
    assert withdrawn.op is not None
    greet(here)
    here.hear(ALICE, UnsubscribeRequest(2, 1))
    assert here.sent(ALICE, Done) == []
    assert here.sent("B", Unsubscribe) == [withdrawn]
    here.control("B", Echo(withdrawn.op))
    assert here.sent(ALICE, Done) == [Done(2)]


def part(epoch: str, **more: Any) -> tuple[MovingPart, ...]:
    return (MovingPart("hosted", msgpack.encode(MovingHosted(HostedClient(epoch, **more)))),)


CARL = OpId("carl", "A-1.1", 1)
WRONG: dict[str, dict[str, Any]] = {
    "malformed part": {"parts": (MovingPart("hosted", b"\xff"),)},
    "part of another session": {"parts": part("A-1.2")},
    "part with more outputs than events": {"parts": part(EPOCH, outputs=(b"x",))},
    "session of another client": {"session": MovingSession(Session("carl", EPOCH))},
    "another session": {"session": MovingSession(Session(ALICE, "A-1.2"))},
    "session kept for ever": {"session": MovingSession(Session(ALICE, EPOCH, keep_s=inf))},
    "session kept for nan": {"session": MovingSession(Session(ALICE, EPOCH, keep_s=nan))},
    "numbers that cannot go on": {"session": MovingSession(Session(ALICE, EPOCH, granted=1 << 63))},
    "a number that cannot go on": {"number": 1 << 63},
    "a negative number": {"carried": -1},
    "a tick above all": {"doubts": {"A.1": 1 << 63}},
    "a negative tick": {"levels": {"A.1": -1}},
    "a start of another client": {"starts": MovingStarts(known=((CARL, (("A.1", 1),)),))},
    "a start above all": {"starts": MovingStarts(known=((WISH, (("A.1", 1 << 63),)),))},
    "a row above all": {"subscriptions": (MovingRow(OpId(ALICE, EPOCH, 1 << 63), WIDE),)},
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_a_commit_that_cannot_be_true_is_ignored(wrong: str) -> None:
    here = Place("C")
    here.is_lied_to = True
    arrive(here, departed(publishes=1), **WRONG[wrong])
    assert here.core.durable.routing.ignored == 1
    assert here.core.durable.sessions.get(ALICE) is None
    here.restart()
    assert here.core.durable.routing.ignored == 1


def test_what_a_client_in_total_order_asks_for_goes_ahead_of_its_report() -> None:
    """Echoes that wait for its arrival say that it has asked."""
    here = Place("C")
    here.control("B", Advertise(BOB, WIDE))
    arrive(
        here, replace(departed(), session=MovingSession(Session(ALICE, EPOCH, total_order=True)))
    )
    kinds = [
        type(one) for _, each in here.told if isinstance(each, Control) for one in each.messages
    ]
    assert kinds.index(Join) < kinds.index(MoveDone)


# ── positions ────────────────────────────────────────────────────────────────────────────


def doubtful() -> MoveCommit:
    op = OpId(ALICE, EPOCH, 1)
    return replace(
        departed(),
        starts=MovingStarts(known=((op, (("B.1", 3),)),)),
        levels={"B.1": 5},
        doubts={"B.1": 20},
    )


def test_levels_and_doubts_are_durable_until_all_is_acknowledged() -> None:
    here = target(doubtful())
    here.restart()
    travel = here.durable.travel(ALICE, EPOCH)
    assert travel is not None
    assert (travel.levels, travel.doubts) == ({"B.1": 5}, {"B.1": 20})
    assert here.soft._doubt(ALICE, "B.1") == 20
    assert here.soft._doubt(ALICE, "C.1") == 0
    assert here.soft._doubt("bob", "B.1") == 0
    travel.settle("B.1", 19)
    assert travel.doubts
    travel.settle("B.1", 20)
    assert (travel.levels, travel.doubts) == ({}, {})


def test_a_level_stays_while_there_is_a_doubt() -> None:
    here = target(doubtful())
    travel = here.durable.travel(ALICE, EPOCH)
    assert travel is not None
    travel.settle("B.1", 6)
    assert travel.levels == {"B.1": 5}


def test_a_pubend_with_a_doubt_and_no_level_is_unclear() -> None:
    here = target(replace(doubtful(), levels={}))
    travel = here.durable.travel(ALICE, EPOCH)
    assert travel is not None
    assert travel.unclear == ["B.1"]


def test_doubts_go_along_with_the_next_move() -> None:
    here = target(doubtful())
    greet(here)
    here.strays("B", last=True)
    here.ask("A")
    here.accept()
    (commit,) = here.sent("B", MoveCommit)
    assert commit.number == 2
    assert commit.doubts["B.1"] == 20
    assert here.durable.travel(ALICE, EPOCH) is None


def test_a_broker_doubts_what_its_own_clients_had_before_it_restarted() -> None:
    """It has heard of nothing since, but knows the floor of its clients, to which nobody goes back:
    alice would go on there, and miss what lies between."""
    here = Place("C")
    here.soft._streams.machine.restore("B.1", 30)
    arrive(here, doubtful())
    travel = here.durable.travel(ALICE, EPOCH)
    assert travel is not None
    assert (travel.levels, travel.doubts) == ({"B.1": 5}, {"B.1": 30})


def test_what_a_session_brought_goes_with_it() -> None:
    here = target(doubtful())
    here.wait(here.config.lease_s + 1.0)
    assert here.durable.state.travels == {}


def test_a_session_that_comes_late_ends_nothing_of_the_newer_one() -> None:
    """Both have a subscription with the same number: its client did not wait for its session."""
    commit = departed()
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    here.connect("xavier")
    here.advertise("xavier")
    here.connect()
    here.subscribe()
    here.publish(1, 5, client="xavier")
    here.control("B", commit)
    here.publish(2, 6, client="xavier")
    ticks = [tick for frame in here.sent(ALICE, Delivered) for tick in frame.ticks]
    assert len(ticks) == 2
    assert here.core.durable.sessions.current(ALICE, EPOCH) is None


# ── hellos that are early ────────────────────────────────────────────────────────────────


def test_an_early_hello_is_answered_when_the_session_arrives() -> None:
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    assert greet(here) == []
    assert here.publish(1, 5) == []
    here.control("B", departed())
    here.wait(0.0)
    (welcome,) = here.sent(ALICE, Welcome)
    assert welcome.epoch == EPOCH
    assert here.sent(ALICE, Published) != []


def test_an_early_hello_waits_as_long_as_the_session_is_on_its_way() -> None:
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    greet(here)
    here.wait(20 * EARLY_S)
    assert here.sent(ALICE, Welcome) == []
    here.control("B", ClientGone(ALICE, EPOCH))
    here.wait(2 * EARLY_S)
    (welcome,) = here.sent(ALICE, Welcome)
    assert welcome.epoch != EPOCH


def test_an_early_hello_of_an_unknown_session_opens_a_new_one() -> None:
    here = Place("C")
    told = greet(here, "X-1.1")
    assert [each.epoch for each in told if isinstance(each, Welcome)] == ["C-1.1"]


def test_an_early_process_adopts_a_durable_session_when_it_arrives() -> None:
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH, True))
    assert greet(here, None, keep_s=60.0) == []
    source = Place()
    source.connect(keep_s=60.0)
    here.control("B", source.depart())
    here.wait(0.0)
    (welcome,) = here.sent(ALICE, Welcome)
    assert welcome.epoch == EPOCH


def test_a_client_that_does_not_wait_leaves_nothing_behind() -> None:
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    greet(here)
    here.lose(ALICE)
    here.control("B", departed())
    here.wait(2 * EARLY_S)
    assert here.core.durable.sessions.get(ALICE) is not None
    assert here.core.shared.clients[ALICE].connection == 0
    assert here.core.shared.detained == {}


def test_the_last_of_several_early_hellos_counts() -> None:
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    greet(here)
    greet(here)
    here.control("B", departed())
    here.wait(0.0)
    assert len(here.sent(ALICE, Welcome)) == 1


@pytest.mark.parametrize(("bound", "most"), [("MOST_HELD", 2), ("MOST_HELD_BYTES", 30)])
def test_an_early_client_that_sends_too_much_is_expelled(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"motet.protocol.mobility.soft.{bound}", most)
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    greet(here)
    for number in range(1, 4):
        here.publish(number, 5)
    assert here.closed[here.ends[ALICE]] == "ProtocolError"


# ── a newer client ───────────────────────────────────────────────────────────────────────


def test_a_session_whose_client_has_a_newer_one_ends_as_it_arrives() -> None:
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    commit = departed()
    new = here.connect()
    assert new != EPOCH
    here.control("B", commit)
    session = here.core.durable.sessions.get(ALICE)
    assert session is not None
    assert session.epoch == new
    assert here.sent("B", MoveDone) == [MoveDone(ALICE, EPOCH, 1)]
    assert [each.target for each in here.sent("B", Unsubscribe)] == [OpId(ALICE, EPOCH, 1)]
    assert here.sent("B", ClientGone)[-1] == ClientGone(ALICE, EPOCH)
    assert here.durable.leftovers() == []
    assert not list(here.core.durable.routing.state.subscriptions)


def test_a_newer_client_elsewhere_ends_it_too() -> None:
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    here.control("B", ClientHere(ALICE, "B-9.1"))
    here.control("B", departed())
    assert here.core.durable.sessions.get(ALICE) is None
    assert here.durable.leftovers() == []


# ── commits that are repeated, or lie ────────────────────────────────────────────────────


def test_a_client_that_comes_back_to_its_first_broker_is_no_longer_sent_on() -> None:
    first = Place()
    first.connect()
    out = first.depart()
    first.control("B", MoveDone(ALICE, EPOCH, 1))
    back = MoveCommit(
        *(ALICE, EPOCH, 2, ("C", "B", "A"), False, MovingSession(Session(ALICE, EPOCH))),
        *((), (), MovingStarts(), {}, {}),
    )
    first.control("B", back)
    assert out.number == 1
    told = greet(first)
    assert not any(isinstance(each, Moved) for each in told)
    assert any(isinstance(each, Welcome) for each in told)


def test_a_commit_that_comes_again_does_not_replace_the_session() -> None:
    commit = departed()
    here = target(commit)
    greet(here)
    here.subscribe(sequence=2)
    here.is_lied_to = True
    here.control("B", commit)
    session = here.core.durable.sessions.get(ALICE)
    assert session is not None
    assert session.requests == 2


def test_a_row_of_somebody_else_is_not_taken_along() -> None:
    """A commit is of one client; rows of others in it would change hands."""
    here = Place("C")
    here.control("B", ClientHere(ALICE, EPOCH))
    here.connect("carl")
    other = here.subscribe("carl")
    here.is_lied_to = True
    commit = departed(subscribes=False)
    here.control("B", replace(commit, subscriptions=(MovingRow(other, WIDE),)))
    entry = here.core.durable.routing.state.subscriptions.get(other)
    assert entry is not None
    assert entry.source == Hop.client("carl")


def test_an_operator_may_send_an_arrived_client_on() -> None:
    here = target()
    here.strays("B", last=True)
    assert here.hear("operator", MoveOrder(ALICE, "B")) != []
    here.accept()
    assert here.sent("operator", MoveOrdered) == [MoveOrdered(ALICE)]
    (commit,) = here.sent("B", MoveCommit)
    assert (commit.number, commit.path) == (2, ("C", "B"))


# ── plans ────────────────────────────────────────────────────────────────────────────────


def test_a_plan_waits_until_all_subscribers_know_where_a_client_publishes() -> None:
    """Else one of them, who does not know of the new log yet, would not wait for its part."""
    here = Place("C", root="A")
    arrive(here, departed(publishes=1))
    session = here.core.durable.sessions.get(ALICE)
    assert session is not None
    session.willing = True
    here.control("B", Subscribe(OpId("bob", "A-1.2", 1), WIDE))
    step = Step("publish", "0", body=bytes(body(1)))
    plan = Engage("coord/A-1.9/3", ALICE, (step,), 5.0, (ALICE,))
    here.control("B", Letter("C", plan))
    assert here.durable.travel(ALICE, EPOCH) is not None
    probe = here.sent("B", Advertise)[-1]
    assert probe.probe
    assert not any(isinstance(each.body, Engaged) for each in here.sent("B", Letter))
    here.control("B", Echo(probe.id))
    (told,) = (each.body for each in here.sent("B", Letter) if isinstance(each.body, Engaged))
    assert told.tx == plan.tx


def ending_plan(here: Place, *, is_held: bool) -> Engage:
    """A plan ends the advertisement of alice, who has just sent a publication."""
    commit = departed(publishes=1)
    commit.session.session.willing = True
    arrive(here, commit, cut=5, unsettled=5 if is_held else 0)
    greet(here)
    assert here.publish(2, 7) == ([] if is_held else [Published(2)])
    plan = Engage("coord/A-1.9/3", ALICE, (Step("unadvertise", "0", str(WIDE)),), 5.0, (ALICE,))
    here.control("B", Letter("C", plan))
    return plan


def engaged(here: Place) -> list[str]:
    return [each.body.tx for each in here.sent("B", Letter) if isinstance(each.body, Engaged)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_plan_waits_until_what_its_client_has_sent_before_is_taken(restarts: bool) -> None:
    here = Place("C", root="A")
    plan = ending_plan(here, is_held=True)
    assert engaged(here) == []
    if restarts:
        here.restart()
        greet(here)
        here.publish(2, 7)
    here.control("B", Decide("other/A-1.8/1", 5, committed=False))
    assert here.sent(ALICE, Published) == [Published(2)]
    assert engaged(here) == [plan.tx]


def test_a_plan_does_not_wait_for_a_client_that_publishes() -> None:
    here = Place("C", root="A")
    plan = ending_plan(here, is_held=False)
    assert engaged(here) == [plan.tx]


def test_a_plan_does_not_wait_for_ever_where_a_client_may_publish_already() -> None:
    """The broker is unsure again, but the gate of a client is not closed any more."""
    here = Place("C", root="A")
    arrive(here, departed(publishes=1))
    greet(here)
    assert here.publish(2, 7) == [Published(2)]
    session = here.core.durable.sessions.get(ALICE)
    assert session is not None
    session.willing = True
    here.lose("B")
    here.hear("B", LinkHello(PROTOCOL_VERSION, "B", 2, 1, 0, root="A"))
    here._numbers["B"] = 0
    assert here.core.durable.routing.state.unsure
    plan = Engage("coord/A-1.9/3", ALICE, (Step("unadvertise", "0", str(WIDE)),), 5.0, (ALICE,))
    here.control("B", Letter("C", plan))
    local = here.core.durable.transactions.participant.get(plan.tx)
    assert local is not None
    assert not local.parts[ALICE].pending
