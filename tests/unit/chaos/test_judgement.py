"""The report: counted right, and kept only if nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from motet.audit.records import (
    DONE,
    DeliveryRecord,
    EventRecord,
    MoveRecord,
    OperationRecord,
    SessionRecord,
    Stay,
)
from motet.broker.folder.journal import VOLATILE
from motet.chaos.chronicle import Chronicle
from motet.chaos.judgement import judge
from motet.chaos.plan import ChaosPlan
from motet.model import Filter
from motet.testing.history import OrderRecord

PLAN = ChaosPlan(brokers=1, durability=VOLATILE)


def a_peaceful_run() -> Chronicle:
    """One client that subscribes to what it publishes."""
    chronicle = Chronicle(PLAN.tree, covering=False, hop_s=1.0, lease_s=10.0)
    chronicle.well("B1")
    history = chronicle.history
    session = SessionRecord("ann", 0, "B1-1.1", "B1", 0.0, sent=3)
    history.sessions.append(session)
    history.living.append(session)
    for number, kind in enumerate(("advertise", "subscribe"), 1):
        session.operations[number] = OperationRecord(
            session, number, number, kind, Filter.parse("x > 0"), None, True, 10.0, number, 1.0
        )
        session.operations[number].answer = "Done"
        session.operations[number].effective_at = 2.0
    event = EventRecord(0, "ann", 0, {"x": 1}, session, 3, 3.0, "accepted")
    history.events.append(event)
    history.deliveries.append(DeliveryRecord(3.5, 0, 2, session.operations[2], event, "ann"))
    history.settled_at = 9.0
    return chronicle


def test_a_peaceful_run_is_kept() -> None:
    report = judge(PLAN, a_peaceful_run(), {})
    assert report.kept
    assert report.violations == ()
    assert report.operations == {
        "asked": 2,
        "acknowledged": 2,
        "refused": 0,
        "unanswered": 0,
        "lost": 0,
    }
    assert report.events == {
        "published": 1,
        "accepted": 1,
        "refused": 0,
        "unknown": 0,
        "delivered": 1,
        "owed": 1,
        "lost": 0,
    }
    told = json.loads(json.dumps(report.to_json()))
    assert told["kept"] is True
    assert told["violations"] == []
    assert told["checked"]["completeness"] == 1


def test_an_event_that_did_not_come_is_lost() -> None:
    chronicle = a_peaceful_run()
    chronicle.history.deliveries.clear()
    report = judge(PLAN, chronicle, {})
    assert not report.kept
    assert report.violated == {"completeness": 1}
    assert report.events["lost"] == 1


def test_sure_events_are_counted_apart() -> None:
    chronicle = a_peaceful_run()
    history = chronicle.history
    event = history.events[0]
    event.sure, event.pubend, event.tick = True, "B1.1", 7
    operation = history.sessions[0].operations[2]
    history.deliveries[:] = [
        DeliveryRecord(at, 0, 2, operation, event, "ann", "B1.1", tick)
        for at, tick in ((3.5, 7), (8, 7))
    ]
    chronicle.nacks = {("B1", 1): 2, ("B1", 2): 3}
    report = judge(replace(PLAN, profile="delivery"), chronicle, {})
    assert report.delivery == {
        "published": 1,
        "durable": 1,
        "owed": 1,
        "delivered": 2,
        "lost": 0,
        "doubled": 1,
        "out_of_order": 1,
        "nacks": 5,
    }
    assert report.longest_silence_s == 4.5
    assert not report.kept
    assert judge(PLAN, chronicle, {}).delivery == {}


def a_move(chronicle: Chronicle, **more: Any) -> MoveRecord:
    """Ann asks for a move from B1 to B2, which is done a second later."""
    history = chronicle.history
    stays = history.stays["ann", "B1-1.1"]
    stays += [Stay("B1", left_at=4.5, until=5.0), Stay("B2", 4.5)]
    history.living[0].stays = stays
    history.places["ann", "B1-1.1"] = "B2"
    move = MoveRecord("ann", 0, 0, "B2", 10.0, 4.0, ("B1", "B1-1.1"), ("B2", "B1-1.1"), 5.0)
    move.answer, move.value = DONE, "B2"
    for name, value in more.items():
        setattr(move, name, value)
    history.moves.append(move)
    return move


MOVING = ChaosPlan(brokers=2, durability=VOLATILE, profile="mobility")


def a_run_with_a_move(**more: Any) -> Chronicle:
    chronicle = a_peaceful_run()
    chronicle.history.tree = MOVING.tree
    a_move(chronicle, **more)
    return chronicle


def test_moves_are_counted_by_their_end() -> None:
    chronicle = a_run_with_a_move()
    refused = {"answer": "MoveRefused", "text": "full", "after": ("B1", "B1-1.1"), "timeout_s": 0.5}
    a_move(chronicle, **refused)
    chronicle.history.orders.append(OrderRecord("ann", "B1", "B2", 3.0, [""], absent=True))
    chronicle.struck["in transit"] = 2
    chronicle.travelled(0.25)
    report = judge(MOVING, chronicle, {})
    assert report.kept, report.violations
    assert report.to_json()["moves"] == {
        "asked": 2,
        "done": 1,
        "refused": 1,
        "given_up": 0,
        "ordered": 1,
        "ordered_done": 1,
        "of_absent": 1,
        "struck_in_transit": 2,
        "in_transit_longest_s": 0.25,
    }
    assert report.checked["moves"] > 0
    assert judge(PLAN, chronicle, {}).to_json()["moves"] == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"answer": ""},
        {"after": ("B1", "B1-1.1")},
        {"after": ("B2", "B2-7.1")},
        {"answer": "MoveRefused", "text": "full"},
        {"answer": "NoAnswer"},
    ],
)
def test_a_move_that_did_not_end_as_it_was_answered_is_a_violation(wrong: dict[str, Any]) -> None:
    report = judge(MOVING, a_run_with_a_move(**wrong), {})
    assert "moves" in report.violated


def test_an_oddity_found_by_the_recorder_is_a_violation() -> None:
    chronicle = a_peaceful_run()
    chronicle.history.odd("settles", "never at rest")
    report = judge(PLAN, chronicle, {})
    assert not report.kept
    assert report.to_json()["violations"] == [{"guarantee": "settles", "detail": "never at rest"}]


def test_a_folder_that_is_not_there_is_a_violation(tmp_path: Path) -> None:
    report = judge(ChaosPlan(brokers=1), a_peaceful_run(), {"B1": tmp_path / "B1"})
    assert report.violated == {"durability": 1}
    assert "B1 cannot be rebuilt" in report.violations[0].detail
