"""What brokers have recorded of sessions, as the checker of copies sees it."""

from __future__ import annotations

from motet.chaos.stays import Row, check, longest_transit_s, stays_of


def row(broker: str, what: str, at: float, number: int = 0) -> Row:
    who = {"client": "ann", "epoch": "B1-1.1", "number": number}
    return {**who, "broker": broker, "what": what, "at": at}


def violations(rows: list[Row], starts: dict[str, list[float]] | None = None) -> list[str]:
    lives = [{"broker": b, "at": at} for b, times in (starts or {}).items() for at in times]
    return check(stays_of(rows, lives)).violations


MOVED = [
    row("B1", "opened", 1.0),
    row("B1", "left", 5.0),
    row("B2", "came", 5.5, 1),
    row("B2", "left", 7.0, 1),
    row("B1", "came", 7.2, 2),
    row("B1", "kept", 9.0, 2),
]


def test_a_session_that_moves_is_at_one_broker_at_a_time() -> None:
    assert violations(MOVED, {"B1": [0.0], "B2": [0.0]}) == []
    assert longest_transit_s(MOVED) == 0.5


def test_a_session_at_two_brokers_is_found() -> None:
    rows = [each for each in MOVED if (each["broker"], each["what"]) != ("B1", "left")]
    (found,) = violations(rows)
    assert found == "B1-1.1 of ann is at B1 and, at 5.5000 s, at B2, too"


def test_a_broker_that_was_killed_may_have_let_it_go_unrecorded() -> None:
    rows = [each for each in MOVED if (each["broker"], each["what"]) != ("B1", "left")]
    assert violations(rows, {"B1": [0.0, 6.0]}) == []


def test_a_broker_that_was_killed_may_find_that_it_has_left_and_come_back() -> None:
    gone = [row("B1", "opened", 1.0), *MOVED[2:4]]
    back = row("B1", "found", 8.0, 2)
    assert violations([*gone, back], {"B1": [0.0, 8.1]}) == []
    back = row("B1", "found", 8.0)  # it had never left
    assert violations([*gone, back], {"B1": [0.0, 8.1]}) != []


def test_a_broker_that_finds_it_again_still_has_it() -> None:
    rows = [each for each in MOVED if (each["broker"], each["what"]) != ("B1", "left")]
    assert len(violations([*rows, row("B1", "found", 5.9)], {"B1": [0.0, 6.0]})) == 1
