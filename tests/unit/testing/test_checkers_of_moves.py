"""Moves, copies, and sessions that other checkers follow: each can be content, and can object."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from motet.audit.records import MoveRecord, SessionRecord, Stay
from motet.broker.core.broker import BrokerCore
from motet.protocol.config import BrokerConfig
from motet.testing.checkers import completeness, copies, exactly_once, moves
from motet.testing.checkers.effective import is_on_its_way
from motet.testing.history import OrderRecord
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
