"""Moves, copies, and sessions that other checkers follow: each can be content, and can object."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from motet.audit.records import MoveRecord, SessionRecord, Stay
from motet.broker.core.broker import BrokerCore
from motet.model import Filter, OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Fact, Input, Output, Received, TimerFired
from motet.protocol.delivery.facts import AdvertisementOver
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.facts import NeighbourLost
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.messages import (
    MoveCommit,
    MoveDone,
    MoveOrdered,
    MoveRefusal,
    MoveReply,
    MoveRequest,
)
from motet.protocol.mobility.strays import LAST_S
from motet.protocol.routing.messages import (
    ClientGone,
    MovingRow,
    MovingStarts,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.session.facts import RequestReceived, SessionDropped
from motet.protocol.session.messages import UnsubscribeRequest
from motet.protocol.session.state import MovingSession, Session
from motet.testing.checkers import checkpoints, completeness, copies, exactly_once, moves
from motet.testing.checkers.effective import is_on_its_way
from motet.testing.history import CopyRecord, HandledRecord, HostedRecord, OrderRecord
from tests.unit.testing.past import HOP_S, Past

ALICE = ("alice", "A-1")


def asked(past: Past, **more: Any) -> MoveRecord:
    """Alice asks at A, at 5 s, to be moved to C, which is done a second later."""
    known = {"answered_at": 6.0, "answer": "Done", "value": "C", "after": ("C", "A-1")} | more
    to = str(known.pop("to", "C"))
    move = MoveRecord("alice", 0, 1, to, 10.0, 5.0, ("A", "A-1"))
    for name, value in known.items():
        setattr(move, name, value)
    past.history.moves.append(move)
    return move


def refused(past: Past, **more: Any) -> MoveRecord:
    told = {"answer": "MoveRefused", "value": "", "text": "C is full", "after": ("A", "A-1")}
    return asked(past, **(told | more))


def moved(past: Past, session: SessionRecord, to: str, left_at: float, at: float) -> None:
    stays = past.history.stays[session.client, session.epoch]
    if not stays:
        stays.append(Stay(session.broker))
    stays[-1].left_at, stays[-1].until = left_at, at
    stays.append(Stay(to, left_at))
    session.stays = stays


def alice(past: Past) -> SessionRecord:
    return past.session("alice", "A", epoch="A-1")


def moves_of(past: Past) -> list[str]:
    return moves.check(past.history).violations


# ── moves ────────────────────────────────────────────────────────────────────────────────


def test_a_move_that_is_done_is_no_violation() -> None:
    past = Past()
    moved(past, alice(past), "C", 5.5, 5.8)
    asked(past)
    verdict = moves.check(past.history)
    assert verdict.checked > 0
    assert verdict.violations == []


def test_a_move_without_an_answer_is_a_violation_unless_its_client_died() -> None:
    past = Past()
    asked(past, answer="", answered_at=inf)
    assert "was never answered" in moves_of(past)[0]
    past.history.departed.add(0)
    assert moves_of(past) == []


def test_a_move_that_is_done_elsewhere_is_a_violation() -> None:
    past = Past()
    moved(past, alice(past), "C", 5.5, 5.8)
    asked(past, after=("B", "A-1"))
    assert "but its client is at B" in moves_of(past)[0]


def test_a_move_to_a_broker_that_never_had_the_session_is_a_violation() -> None:
    past = Past()
    moved(past, alice(past), "B", 5.5, 5.8)
    asked(past)
    assert "C never had the session A-1" in moves_of(past)[0]


def test_a_move_to_a_broker_that_does_not_exist_must_not_be_done() -> None:
    past = Past()
    moved(past, alice(past), "X", 5.5, 5.8)
    asked(past, to="X", value="X", after=("X", "A-1"))
    assert "there is no such broker" in moves_of(past)[0]


def test_a_move_that_changes_the_epoch_is_a_violation_unless_something_broke() -> None:
    past = Past()
    past.history.stays["alice", "C-2"].append(Stay("C", 5.5))
    asked(past, after=("C", "C-2"))
    assert "A-1 has become C-2" in moves_of(past)[0]
    past.history.disturbed[0].touch(5.2, 5.3)
    assert moves_of(past) == []


def test_a_session_that_was_lost_on_its_way_may_have_another_epoch() -> None:
    past = Past()
    moved(past, alice(past), "C", 5.5, 5.8)
    asked(past, after=("C", "C-9"))
    assert "has become C-9" in moves_of(past)[0]
    past.history.amnesia["B", "C"].touch(5.6, 5.7)
    assert "has become" not in moves_of(past)[0]


@pytest.mark.parametrize(
    ("broker", "jumped_at", "welcomed_at", "is_excused"),
    [
        ("B", 4.8, 5.9, True),
        ("B", 4.8, 4.9, False),
        ("B", 4.3, 5.9, False),
        ("B", 5.95, 5.9, False),
        ("A", 4.8, 5.9, False),
    ],
    ids=["it waits", "its client was there", "too early", "too late", "elsewhere"],
)
def test_a_session_that_waits_where_the_clock_jumps_may_have_ended(
    broker: str, jumped_at: float, welcomed_at: float, *, is_excused: bool
) -> None:
    # given a client that was sent on from A, and asks for its next move on its way to B
    past = Past()
    moved(past, alice(past), "B", 4.5, 4.7)
    past.history.travels[0].touch(4.6, welcomed_at)
    past.history.stays["alice", "C-2"].append(Stay("C", 5.5))
    asked(past, before=("B", "A-1"), after=("C", "C-2"))
    assert "has become C-2" in moves_of(past)[0]
    past.history.jumps[broker].touch(jumped_at, jumped_at)
    assert (moves_of(past) == []) is is_excused


def test_a_client_that_did_not_wait_may_have_another_epoch() -> None:
    past = Past()
    past.history.stays["alice", "C-2"].append(Stay("C", 5.5))
    asked(past, after=("C", "C-2"), impatient=True)
    assert moves_of(past) == []


@pytest.mark.parametrize("after", [("B", "A-1"), ("A", "A-2")])
def test_a_refused_move_that_has_changed_something_is_a_violation(after: tuple[str, str]) -> None:
    past = Past()
    refused(past, after=after, timeout_s=0.1)
    (complaint,) = moves_of(past)
    assert "was refused (MoveRefused: C is full), but" in complaint


def test_a_refused_move_may_end_elsewhere_if_an_operator_moved_the_client() -> None:
    past = Past()
    refused(past, after=("B", "A-1"))
    past.history.orders.append(OrderRecord("alice", "A", "B", 4.9, [""]))
    assert moves_of(past) == []


def test_a_refused_move_may_end_where_an_earlier_one_went_that_was_given_up() -> None:
    past = Past()
    refused(past, after=("B", "A-1"))
    earlier = asked(past, to="B", answer="NoAnswer", value="", after=("A", "A-1"))
    earlier.at = 4.0
    past.history.disturbed["A"].touch(4.5, 5.5)
    assert moves_of(past) == []


def test_a_move_that_is_given_up_where_nothing_is_broken_is_a_violation() -> None:
    past = Past()
    asked(past, answer="NoAnswer", value="", after=("A", "A-1"))
    assert "was given up, without a reason" in moves_of(past)[0]


def test_a_refusal_has_a_reason_if_the_client_waited_for_any_broker() -> None:
    past = Past()
    session = alice(past)
    moved(past, session, "C", 1.0, 1.5)
    refused(past, before=("C", "A-1"), to="A", after=("C", "A-1"))
    past.history.disturbed["D"].touch(3.0, 4.0)
    assert "without a reason" in moves_of(past)[0], "D is no place of this tree"
    past.history.disturbed["B"].touch(1.2, 1.3)
    assert moves_of(past) == []


def test_a_refusal_where_nothing_is_broken_is_a_violation() -> None:
    past = Past()
    refused(past)
    assert "without a reason" in moves_of(past)[0]


@pytest.mark.parametrize("place", ["A", "B", "C", ("A", "B"), 0])
def test_a_refusal_has_a_reason_if_something_on_the_way_was_broken(place: Any) -> None:
    past = Past()
    refused(past)
    past.history.disturbed[place].touch(5.5, 5.6)
    assert moves_of(past) == []


def test_a_refusal_has_a_reason_while_an_unadvertisement_waits_for_subscribers() -> None:
    past = Past()
    removal = past.ask(alice(past), "unadvertise", "x > 0", 4.0, answered_at=5.5)
    refused(past)
    assert moves_of(past) == []
    removal.answered_at = 3.0
    assert "without a reason" in moves_of(past)[0]


def test_a_refusal_has_a_reason_if_its_target_is_unknown_or_its_time_short() -> None:
    past = Past()
    refused(past, to="X")
    refused(past, timeout_s=0.1)
    assert moves_of(past) == []


def test_a_refusal_without_a_text_is_a_violation() -> None:
    past = Past()
    refused(past, text="", timeout_s=0.1)
    assert "without a text" in moves_of(past)[0]


def test_an_order_is_answered_once_unless_its_connection_broke() -> None:
    past = Past()
    for answers in ([""], [], ["", "MoveRefused"]):
        past.history.orders.append(OrderRecord("alice", "A", "C", 5.0, answers))
    assert len(moves_of(past)) == 2
    past.history.orders[1].lost = True
    assert len(moves_of(past)) == 1


def test_what_is_kept_of_a_move_at_rest_is_a_violation() -> None:
    verdict = moves.check_rest({"A": [], "B": iter(["a pin of alice in A.1", "a doubt"])})
    assert verdict.checked == 2
    assert verdict.violations == ["B still keeps a pin of alice in A.1; a doubt"]


def watched(
    given: Input,
    *facts: object,
    told: tuple[object, ...] = (),
    to: str = "",
    gone: str = "bob",
) -> list[str]:
    """What is said of one step of B, which writes facts, answers a client, and tells a neighbour
    that a client is gone."""
    watch, out = moves.MoveWatch(), Output()
    out.persist += [Fact(1.0, fact) for fact in facts]  # type: ignore[arg-type]
    out.deliver += [(7, frame) for frame in told]  # type: ignore[list-item]
    if to:
        out.send.append((8, Control(1, (ClientGone(gone, "A-1"),))))
    watch.step("B", given, out, lambda _: to, lambda *_: False, 5.0)
    assert watch.verdict.checked > 0 or gone == "alice"
    return watch.verdict.violations


ASKED = Received(7, MoveRequest(1, "C"))
REPLY = ("alice", "A-1", 1, ("A", "B", "C"), "inproc://C")
REQUEST = RequestReceived("alice", "A-1", UnsubscribeRequest(3, 2))


def test_a_broker_writes_nothing_before_a_move_is_decided() -> None:
    assert watched(ASKED) == []
    assert watched(TimerFired(("move", "offer", "alice"))) == []
    (complaint,) = watched(ASKED, REQUEST)
    assert complaint == "B writes RequestReceived for an undecided move at 5.0"


def test_a_refused_client_may_have_asked_for_something_else_meanwhile() -> None:
    refusal = MoveRefusal(1, "MoveRefused", "full")
    assert watched(ASKED, REQUEST, told=(refusal,)) == []
    (complaint,) = watched(ASKED, SessionDropped("alice", "A-1"), told=(refusal,))
    assert "writes SessionDropped" in complaint
    assert watched(ASKED, REQUEST, told=(MoveOrdered("alice"),)), "that is no refusal"


def test_the_requests_of_a_refused_client_may_be_too_many_for_an_absent_neighbour() -> None:
    refusal, lost = MoveRefusal(1, "MoveRefused", "full"), NeighbourLost("D", recalls=True)
    assert watched(ASKED, REQUEST, lost, told=(refusal,)) == []
    (complaint,) = watched(ASKED, lost, REQUEST, told=(refusal,))
    assert complaint == "B writes NeighbourLost for an undecided move at 5.0"
    assert len(watched(ASKED, REQUEST, lost)) == 2, "the move was not refused"


def commit(*advertisements: MovingRow) -> Received:
    session = MovingSession(Session("alice", "A-1"))
    rest = (session, (), advertisements, MovingStarts(), {}, {})
    return Received(8, Control(4, (MoveCommit("alice", "A-1", 1, ("A", "B", "C"), False, *rest),)))


def test_the_move_of_a_subscriber_concerns_its_path_only() -> None:
    assert watched(commit(), to="C") == []
    (complaint,) = watched(commit(), to="D")
    assert complaint == "B tells D, off the path A-B-C, of a move at 5.0: ClientGone"
    assert watched(commit(), to="D", gone="alice") == [], "its session has ended on the way"


def test_an_arrival_takes_nothing_back_aside() -> None:
    watch, row = moves.MoveWatch(), OpId("alice", "A-1", 2)
    watch.step("B", commit(), Output(), lambda _: "C", lambda *_: False, 5.0)
    out = Output()
    out.send.append((8, Control(1, (Unsubscribe(row),))))
    given = Received(9, Control(5, (MoveDone("alice", "A-1", 1),)))
    watch.step("B", given, out, lambda _: "D", lambda *_: False, 6.0)
    assert len(watch.verdict.violations) == 1


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_subscription_goes_aside_only_to_an_advertisement(is_wanted: bool) -> None:
    watch, out = moves.MoveWatch(), Output()
    wanted = Subscribe(OpId("alice", "A-1", 2), Filter.parse("x > 0"))
    out.send.append((8, Control(1, (wanted,))))
    watch.step("B", commit(), out, lambda _: "D", lambda *_: is_wanted, 5.0)
    assert len(watch.verdict.violations) == (0 if is_wanted else 1)


@pytest.mark.parametrize("is_resumed", [True, False])
def test_what_a_neighbour_has_missed_may_be_sent_again_in_the_step_of_a_decision(
    *, is_resumed: bool
) -> None:
    watch, out, row = moves.MoveWatch(), Output(), OpId("bob", "B-1", 1)
    out.persist.append(Fact(1.0, MoveDecided("alice", "A-1", ("A", "B", "C"), "")))
    out.send.append((7, commit().frame))
    out.send.append((8, Control(5, (Unadvertise(row),))))
    came = LinkHello(PROTOCOL_VERSION, "D", 1, 1, 4) if is_resumed else MoveReply(*REPLY)
    names = {7: "B", 8: "D"}
    watch.step("A", Received(8, came), out, names.__getitem__, lambda *_: False, 5.0)
    assert len(watch.verdict.violations) == (0 if is_resumed else 1)


@pytest.mark.parametrize("is_over", [True, False])
def test_an_advertisement_that_is_over_in_the_same_step_goes_aside(*, is_over: bool) -> None:
    watch, out = moves.MoveWatch(), Output()
    over, other = OpId("bob", "B-1", 1), OpId("bob", "B-1", 2)
    out.persist.append(Fact(1.0, AdvertisementOver(over, 9)))
    out.send.append((8, Control(1, (Unadvertise(over if is_over else other),))))
    watch.step("B", commit(), out, lambda _: "D", lambda *_: False, 5.0)
    assert len(watch.verdict.violations) == (0 if is_over else 1)


def test_the_move_of_a_publisher_is_told_to_everybody() -> None:
    watch, out = moves.MoveWatch(), Output()
    out.send.append((8, Control(1, (ClientGone("bob", "B-1"),))))
    row = MovingRow(OpId("alice", "A-1", 1), Filter.parse("x > 0"))
    watch.step("B", commit(row), out, lambda _: "D", lambda *_: False, 5.0)
    assert (watch.verdict.checked, watch.verdict.violations) == (0, [])


# ── copies ───────────────────────────────────────────────────────────────────────────────


def test_a_session_that_goes_from_broker_to_broker_is_no_violation() -> None:
    checker = copies.CopyWatch()
    for broker, sessions in (("A", [ALICE]), ("B", []), ("A", []), ("B", [ALICE])):
        checker.look(broker, sessions, 1.0)
    assert checker.verdict.checked > 0
    assert checker.verdict.violations == []


def test_a_session_at_two_brokers_is_a_violation() -> None:
    checker = copies.CopyWatch()
    checker.look("A", [ALICE], 1.0)
    checker.look("B", [ALICE], 2.0)
    (complaint,) = checker.verdict.violations
    assert complaint == "A-1 of alice is at A and, at 2.0000 s, at B, too"


def test_a_broker_that_comes_back_with_a_session_that_has_left_is_a_violation() -> None:
    checker = copies.CopyWatch()
    checker.look("A", [ALICE], 1.0)
    checker.down("A")
    checker.look("B", [ALICE], 2.0)
    assert checker.verdict.violations == []
    checker.look("A", [ALICE], 3.0)
    assert len(checker.verdict.violations) == 1


def at_rest(past: Past, *homes: str) -> list[str]:
    """Complaints if these brokers have the session of alice."""
    cores = {name: BrokerCore(BrokerConfig(name)) for name in "ABC"}
    epochs = [cores[name].durable.sessions.open("alice").epoch for name in homes]
    (session,) = past.history.living
    for name, epoch in zip(homes, epochs, strict=True):
        held = cores[name].durable.sessions.get("alice")
        assert held is not None
        held.epoch = session.epoch
        assert epoch
    return copies.check(past.history, cores).violations


def test_in_the_end_a_session_is_where_its_client_was_told() -> None:
    past = Past()
    moved(past, alice(past), "C", 5.5, 5.8)
    assert at_rest(past, "C") == []


@pytest.mark.parametrize("homes", ["", "A", "AC"])
def test_in_the_end_a_session_elsewhere_or_nowhere_is_a_violation(homes: str) -> None:
    past = Past()
    moved(past, alice(past), "C", 5.5, 5.8)
    (complaint,) = at_rest(past, *homes)
    assert "but its client is at C" in complaint


# ── hosted clients ───────────────────────────────────────────────────────────────────────


def test_one_copy_after_the_other_is_no_violation() -> None:
    past, watch = Past(), copies.RunWatch()
    for broker in "ABA":
        watch.begins("agent", broker, 1.0, past.history)
        watch.ends("agent", broker)
    assert watch.verdict.checked == 3
    assert watch.verdict.violations == []


def test_two_copies_are_a_violation_unless_something_was_forgotten_between_them() -> None:
    past, watch = Past(), copies.RunWatch()
    watch.begins("agent", "A", 1.0, past.history)
    watch.begins("other", "B", 1.0, past.history)
    watch.begins("agent", "C", 2.0, past.history)
    (complaint,) = watch.verdict.violations
    assert complaint == "a copy of agent runs at A and, at 2.0000 s, another one at C"
    assert watch.places("agent") == ("A", "C")
    past.history.amnesia["B"].touch(1.5, 1.5)
    watch.begins("agent", "C", 2.5, past.history)
    assert len(watch.verdict.violations) == 2, "two copies at one broker"


def hosted(past: Past, *running: str) -> HostedRecord:
    record = past.history.hosted["alice"] = HostedRecord("alice", copies=running)
    return record


@pytest.mark.parametrize("running", ["", "A", "CC", "AC"])
def test_in_the_end_one_copy_runs_where_the_session_is(running: str) -> None:
    past = Past()
    moved(past, alice(past), "C", 5.5, 5.8)
    hosted(past, "C")
    assert at_rest(past, "C") == []
    hosted(past, *running)
    (complaint,) = at_rest(past, "C")
    assert complaint.startswith("the session of alice is at C, and copies run at ")


def started(past: Past, **more: Any) -> list[str]:
    known = {"number": 4, "kept": 4, "is_right": True, "is_anew": False} | more
    hosted(past).starts.append(CopyRecord("alice", "A-1", "B", 5.0, **known))
    verdict = checkpoints.check(past.history)
    assert verdict.checked > 0
    return verdict.violations


def test_a_copy_continues_with_the_last_checkpoint() -> None:
    assert started(Past()) == []
    assert started(Past(), number=5) == [], "durable, but its copy was not told"
    assert "although checkpoint 5 was durable" in started(Past(), kept=5)[0]
    assert "has another state than that checkpoint" in started(Past(), is_right=False)[0]


def test_a_state_is_lost_only_with_that_of_a_broker() -> None:
    past = Past()
    assert "although there was a state" in started(past, number=0, kept=0, is_anew=True)[0]
    past.history.amnesia["B"].touch(4.0, 4.0)
    assert started(past, number=0, kept=0, is_anew=True) == []


def handled(past: Past, number: int) -> HandledRecord:
    """An event, for one subscription of alice."""
    if not past.history.sessions:
        past.ask(alice(past), "subscribe", "x > 0")
        past.session("seller", "B")
    operation = past.history.sessions[0].operations[1]
    event = past.publish(past.history.sessions[1], 5.0 + number, x=number)
    past.deliver(operation, event)
    return HandledRecord(6.0, (past.history.deliveries[-1],))


def complaints(past: Past) -> list[str]:
    return checkpoints.check(past.history).violations


def test_a_state_has_each_event_once_and_in_order() -> None:
    past = Past()
    one, two = handled(past, 1), handled(past, 2)
    record = hosted(past)
    record.handled = [one, two]
    assert complaints(past) == []
    record.handled = [one, two, two]
    assert "is twice in its state" in complaints(past)[0]
    record.handled = [two, one]
    assert "was delivered after event 1" in complaints(past)[0]


def test_what_is_published_upon_an_event_is_out_if_the_event_is_in_the_state() -> None:
    past = Past()
    one, two = handled(past, 1), handled(past, 2)
    session = past.history.sessions[0]
    done = past.publish(session, 7.0, x=1)
    undone = past.publish(session, 7.0, fate="void", x=2)
    one.outputs, two.outputs = [done], [undone]
    record = hosted(past)
    record.handled, record.undone = [one], [two]
    assert complaints(past) == []
    done.fate, undone.tick = "void", 9
    lost, early = complaints(past)
    assert "was never published, but the handling of" in lost
    assert "was published, but the handling of" in early


# ── homes ────────────────────────────────────────────────────────────────────────────────


def test_a_session_has_a_home_at_any_time_and_two_while_it_is_on_its_way() -> None:
    past = Past()
    session = alice(past)
    assert session.homes(0.0, 9.0) == ("A",)
    moved(past, session, "B", 2.0, 3.0)
    moved(past, session, "C", 5.0, 6.0)
    assert session.home == "C"
    assert session.homes(0.0, 1.0) == ("A",)
    assert session.homes(2.5, 2.5) == ("A", "B")
    assert session.homes(3.5, 4.5) == ("B",)
    assert session.homes(4.0) == ("B", "C")
    assert not is_on_its_way(session)
    session.stays[-1].left_at = 9.0
    assert is_on_its_way(session)


def test_a_best_effort_event_is_owed_to_a_client_that_moves() -> None:
    past = Past()
    seller, buyer = past.session("seller", "B"), alice(past)
    past.ask(seller, "advertise", "x > 0")
    wanted = past.ask(buyer, "subscribe", "x > 0")
    moved(past, buyer, "C", 5.0, 5.1)
    past.history.travels[buyer.instance].touch(5.0, 6.0)
    event = past.publish(seller, 5.05, x=1)
    assert "was never delivered" in completeness.check(past.history).violations[0]
    past.deliver(wanted, event, 6.1)
    assert completeness.check(past.history).violations == []


def test_a_client_that_leaves_as_soon_as_it_has_moved_is_owed_no_best_effort_event() -> None:
    past = Past()
    seller, buyer = past.session("seller", "B"), alice(past)
    past.ask(seller, "advertise", "x > 0")
    wanted = past.ask(buyer, "subscribe", "x > 0")
    moved(past, buyer, "C", 5.0, 5.1)
    past.history.travels[buyer.instance].touch(5.0, 6.0)
    past.publish(seller, 5.05, x=1)
    wanted.ended_at = 6.0 + HOP_S
    assert completeness.check(past.history).violations == []


def test_trouble_before_a_moving_client_has_arrived_excuses_a_best_effort_event() -> None:
    past = Past()
    seller, buyer = past.session("seller", "B"), alice(past)
    past.ask(seller, "advertise", "x > 0")
    past.ask(buyer, "subscribe", "x > 0")
    moved(past, buyer, "C", 5.0, 5.1)
    past.history.travels[buyer.instance].touch(5.0, 6.0)
    past.publish(seller, 5.05, x=1)
    past.history.disturbed["C"].touch(5.9, 5.95)
    assert completeness.check(past.history).violations == []


@pytest.mark.parametrize(
    ("broken", "meanwhile", "is_excused"),
    [
        (True, "it ends", True),
        (True, "it moves on", True),
        (True, "its client breaks", True),
        (True, "its broker dies", True),
        (True, "nothing", False),
        (True, "it ends later", False),
        (False, "it ends", False),
    ],
)
def test_an_event_that_waits_for_those_behind_a_client_is_given_in_the_end(
    broken: bool, meanwhile: str, *, is_excused: bool
) -> None:
    # given an event that comes just after a client, on whose path something has broken
    past = Past()
    seller, buyer = past.session("seller", "C"), alice(past)
    past.ask(seller, "advertise", "x > 0")
    wanted = past.ask(buyer, "subscribe", "x > 0")
    moved(past, buyer, "C", 5.0, 5.1)
    past.history.travels[buyer.instance].touch(5.0, 5.2)
    past.publish(seller, 5.5, x=1)
    if broken:
        past.history.disturbed["A", "B"].touch(5.05, 5.1)
    # when its subscription or its client ends while it waits, or nothing happens
    at = 5.5 + LAST_S
    if meanwhile in ("it ends", "it ends later"):
        wanted.ended_at = at if meanwhile == "it ends" else at + 1.0
    elif meanwhile == "it moves on":
        past.history.travels[buyer.instance].touch(at, at)
    elif meanwhile != "nothing":
        place = "C" if meanwhile == "its broker dies" else buyer.instance
        past.history.disturbed[place].touch(at, at)
    assert (completeness.check(past.history).violations == []) is is_excused


def test_a_lost_log_at_a_former_home_excuses_an_event_from_there() -> None:
    past = Past()
    seller, buyer = past.session("seller", "A"), past.session("buyer", "C")
    past.ask(seller, "advertise", "x > 0")
    past.ask(buyer, "subscribe", "x > 0")
    event = past.publish(seller, 5.0, x=1)
    event.sure = True
    moved(past, seller, "B", 6.0, 6.0 + HOP_S)
    assert "was never delivered" in exactly_once.check(past.history).violations[0]
    past.history.amnesia["A"].touch(7.0, 7.0)
    assert exactly_once.check(past.history).violations == []
