"""What a client records of its streams, whatever happens in one step."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from motet.errors import Voided
from motet.ordering.contract import ClientEffects
from motet.ordering.events import Gap, Joined, LostEvents, OrderedEvent, OrderReceipt
from motet.ordering.history import OrderingHistory
from motet.ordering.machine import OrderingMachine
from tests.unit.sequencer.test_history import Rows

STREAM, FIRST, SECOND = 1, "c.1.1", "c.1.2"


class Recorder:
    def __init__(self) -> None:
        self.rows = Rows()
        machine = OrderingMachine("c")
        self.history = OrderingHistory(machine, self.rows)  # type: ignore[arg-type]

    def step(self, *, last: int = 0, open: tuple[int, ...] = (), **parts: Any) -> None:
        effects = ClientEffects()
        for name, items in parts.items():
            getattr(effects, name).extend(items)
        self.history.carried(effects, last, open, "S1")

    def steps(self) -> list[tuple[str, str, str, int]]:
        """Stream, what happened, topic and number, in their order."""
        found = []
        for table, row in self.rows.rows:
            if table in ("order_cuts", "order_given", "order_lost"):
                what = row.get("what") or table.removeprefix("order_")
                found.append((row["stream"], what, row["topic"], row["number"]))
        return found


@pytest.fixture
def recorder() -> Recorder:
    made = Recorder()
    made.step(told=[Joined(STREAM, FIRST, 1, {"a": 2, "b": 0})])
    made.rows.rows.clear()
    return made


def event(topic: str, number: int | None, *, late: bool = False) -> tuple[int, OrderedEvent]:
    return STREAM, OrderedEvent(topic, b"x", number, late)


def test_events_of_a_step_are_recorded_on_their_side_of_a_cut(recorder: Recorder) -> None:
    """The machine was given an event, then the answer to a change, then it goes on."""
    joined = Joined(STREAM, SECOND, 1, {"a": 5, "c": 1})
    recorder.step(told=[joined], events=[event("b", 9), event("a", 5), event("a", 6)])
    assert recorder.steps() == [
        (FIRST, "given", "b", 9),
        (FIRST, "given", "a", 5),
        (SECOND, "cut", "a", 5),
        (SECOND, "cut", "c", 1),
        (SECOND, "given", "a", 6),
    ]
    nths = [row["nth"] for table, row in recorder.rows.rows if table == "order_given"]
    assert nths[0] < nths[1]


def test_a_topic_that_is_dropped_is_recorded_behind_its_events(recorder: Recorder) -> None:
    recorder.step(told=[Joined(STREAM, FIRST, 2, {"a": 2})], events=[event("b", 1)])
    assert recorder.steps() == [(FIRST, "given", "b", 1), (FIRST, "dropped", "b", 0)]


def test_a_gap_ends_a_stream_and_the_next_one_names_it(recorder: Recorder) -> None:
    recorder.step(told=[Gap(STREAM, "away", {"a": 2})], events=[event("a", 4, late=True)])
    recorder.step(told=[Joined(STREAM, SECOND, 1, {"a": 7})])
    streams = recorder.rows.of("order_streams")
    assert [(row["stream"], row["former"], row["ended_at"] < inf) for row in streams] == [
        (FIRST, "", True),
        (SECOND, FIRST, False),
    ]
    assert recorder.rows.of("order_given")[0]["is_late"]


def test_what_a_closed_stream_has_passed_is_recorded(recorder: Recorder) -> None:
    recorder.step(told=[LostEvents(STREAM, "a", (3, 4))])
    recorder.history.ended(STREAM, {"a": 4, "b": 0, "never had": 1})
    assert recorder.steps() == [
        (FIRST, "lost", "a", 3),
        (FIRST, "lost", "a", 4),
        (FIRST, "reached", "a", 4),
        (FIRST, "reached", "b", 0),
    ]


def test_a_stream_that_has_lost_its_place_has_reached_nothing(recorder: Recorder) -> None:
    recorder.step(told=[Gap(STREAM, "away", {"a": 2})])
    recorder.history.ended(STREAM, {"a": 4})
    assert recorder.steps() == []


def test_outcomes_are_recorded_for_publications_only(recorder: Recorder) -> None:
    receipts = [(1, OrderReceipt("a", 3)), (2, Voided("late")), (9, {"a": 2})]
    recorder.step(receipts=receipts, open=(1, 2))
    found = recorder.rows.of("order_receipts")
    assert [(row["nth"], row["outcome"], row.get("number")) for row in found] == [
        (1, "published", 3),
        (2, "Voided", None),
    ]


def test_events_of_others_have_no_number_and_are_not_recorded(recorder: Recorder) -> None:
    recorder.step(events=[event("a", None)], last=7)
    recorder.step(events=[event("a", 3)], last=7)
    assert [(row["number"], row["known"]) for row in recorder.rows.of("order_given")] == [(3, 7)]
