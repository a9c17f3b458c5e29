"""Clients that have moved here and are below the floor: what is acknowledged for them, and when."""

from __future__ import annotations

from typing import Any

from motet.protocol.delivery.facts import FloorRaised
from motet.protocol.delivery.spans import Memory
from motet.protocol.delivery.subend import Position, Subend
from motet.protocol.mobility.state import Travel

FLOOR, LEVEL, DOUBT = 50, 10, 40


def subend(*positions: Position) -> Subend:
    interest: Any = None
    made = Subend("B.1", interest, 100, Memory(10, 10_000))
    made.positions.update({each.client: each for each in positions})
    return made


def moved(given: int, doubt: int = DOUBT) -> Position:
    position = Position("alice", given, level=LEVEL)
    position.starts[1] = 3
    position.doubt(doubt)
    return position


def test_a_doubtful_client_counts_with_where_it_would_begin_again() -> None:
    assert list(subend(moved(FLOOR)).levels({"alice": None})) == [LEVEL]
    assert list(subend(moved(FLOOR)).levels({"bob": None})) == []


def test_a_durable_client_counts_with_its_last_noted_position() -> None:
    position = moved(FLOOR)
    position.noted = 30
    assert list(subend(position).levels({"alice": None})) == [30]


def test_a_client_has_passed_when_it_stands_at_the_floor_and_above_its_doubts() -> None:
    for given, passes in ((DOUBT - 1, False), (DOUBT, False), (FLOOR - 1, False), (FLOOR, True)):
        doubtful: dict[str, None] = {"alice": None}
        found = subend(moved(given)).passed(doubtful, FLOOR)
        assert (found == ("alice",), doubtful == {}) == (passes, passes)
    doubtful = {"alice": None}
    assert subend(moved(FLOOR, doubt=60)).passed(doubtful, FLOOR) == ()
    assert doubtful == {"alice": None}


def test_a_client_that_is_gone_is_doubtful_no_more() -> None:
    doubtful: dict[str, None] = {"alice": None}
    assert subend().passed(doubtful, FLOOR) == ()
    assert doubtful == {}


def test_what_has_been_passed_is_read_no_more_after_a_restart() -> None:
    travel = Travel("A-1.1", levels={"B.1": LEVEL, "C.1": 5}, doubts={"B.1": DOUBT, "C.1": 7})
    travel.passed("B.1")
    assert (travel.levels, travel.doubts) == ({"C.1": 5}, {"C.1": 7})
    assert FloorRaised("B.1", 0).passed == ()
