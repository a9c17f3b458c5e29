"""Every part of the transaction machine has a table of legal moves, and obeys it."""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args

import pytest

from motet.protocol.transactions import (
    coordinator,
    courier,
    cutter,
    decisions,
    participant,
    root,
)
from motet.protocol.transactions.courier import (
    Abandoned,
    Overdue,
    TxTimer,
    Unanswered,
    parse_timer,
    text_of,
    timer_key,
)
from motet.protocol.transactions.messages import (
    OtherReason,
    Reason,
    SameKey,
    TimeoutReason,
    parse_reason,
)
from motet.protocol.transactions.state import Forbidden, Ignored, IllegalMove, Moves
from tests.unit.transactions.broker_a import BrokerA, op, part

TABLES: dict[str, Moves[Any, Any]] = {
    "coordinator": coordinator.MOVES,
    "courier": courier.MOVES,
    "cutter": cutter.MOVES,
    "decisions": decisions.MOVES,
    "invitations": participant.INVITATION_MOVES,
    "participant": participant.PART_MOVES,
    "root": root.MOVES,
}
TX = "dora/D-1.1/1"


@pytest.mark.parametrize("moves", TABLES.values(), ids=TABLES)
def test_every_state_and_every_event_is_in_its_table(moves: Moves[Any, Any]) -> None:
    states = type(next(iter(moves.rows)))
    events = type(next(iter(next(row for row in moves.rows.values() if row))))
    assert set(moves.rows) == set(states)
    assert {event for row in moves.rows.values() for event in row} == set(events)
    for row in moves.rows.values():
        for after in row.values():
            assert isinstance(after, states | Ignored | Forbidden)


@pytest.mark.parametrize("moves", TABLES.values(), ids=TABLES)
def test_every_state_can_be_reached(moves: Moves[Any, Any]) -> None:
    rows = moves.rows
    known = {next(iter(rows))}
    for _ in rows:
        known |= {after for state in known for after in rows[state].values() if after in rows}
    assert known == set(rows)


def test_an_event_without_a_row_is_a_bug_of_ours() -> None:
    broker_a = BrokerA()
    with pytest.raises(IllegalMove, match="is not touched"):
        broker_a.machine.cutter.cut("zoe/Z-1.1/1", 7)


def test_a_forbidden_move_names_its_error() -> None:
    class Door(Enum):
        OPEN = "open"

    class Knock(Enum):
        ONCE = "a knock"
        TWICE = "two knocks"

    moves = Moves("door", {Door.OPEN: {Knock.ONCE: Forbidden("Busy"), Knock.TWICE: Door.OPEN}})
    assert (moves.refusal(Door.OPEN, Knock.ONCE, 1), moves.next(Door.OPEN, Knock.ONCE, 1)) == (
        "Busy",
        None,
    )
    assert (moves.refusal(Door.OPEN, Knock.TWICE, 1), moves.next(Door.OPEN, Knock.TWICE, 1)) == (
        "",
        Door.OPEN,
    )


def test_a_transaction_goes_through_the_states_of_the_root() -> None:
    broker_a = BrokerA()
    machine = broker_a.machine
    seen = [machine.decider.phase(TX)]
    broker_a.submits(TX, part("dora"))
    seen.append(machine.decider.phase(TX))
    for neighbour in ("B", "C"):
        machine.dismiss(neighbour)
    seen.append(machine.decider.phase(TX))
    assert [each.name for each in seen] == ["UNKNOWN", "DECIDED", "SETTLED"]


def test_a_transaction_goes_through_the_states_of_its_coordinator() -> None:
    broker_a = BrokerA(root="B")
    broker_a.arrives("alice")
    phase = broker_a.machine.coordinator.phase
    tx = broker_a.begins(op("alice", 1))
    seen = [phase(tx)]
    broker_a.ends(op("alice", 2), tx)
    seen.append(phase(tx))
    assert [each.name for each in seen] == ["OPEN", "SUBMITTED"]


# ── typed values and their texts ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("timer", "text"),
    [
        (Overdue(TX), "dora/D-1.1/1"),
        (Unanswered(op("alice", 7)), "? alice/A-1.1/7"),
        (Abandoned(TX), "! dora/D-1.1/1"),
    ],
)
def test_a_timer_is_the_text_that_journals_have(timer: TxTimer, text: str) -> None:
    assert text_of(timer) == text
    assert parse_timer(text) == timer
    assert timer_key(timer) == ("transaction", text)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (SameKey(TX), "committed before as dora/D-1.1/1"),
        (TimeoutReason.after(2.5), "not complete within 2.5 s"),
        (
            TimeoutReason.after(2.0).waiting_for(["bob", "carl"]),
            "not complete within 2 s: bob, carl did not answer",
        ),
        (OtherReason("no"), "no"),
    ],
)
def test_a_reason_is_the_text_that_frames_have(reason: Reason, text: str) -> None:
    assert reason.text == text
    assert parse_reason(text) == reason


def test_all_timers_and_reasons_are_tried() -> None:
    assert len(get_args(TxTimer)) == 3
    assert len(get_args(Reason)) == 3
