"""What Spark calls for each case of a stream, called without Spark."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pandas

from motet.spark.insight.stream import _step

BEGIN = datetime(2026, 3, 1, 9)
KEY = ("p", "c1")


class State:
    """As much of Spark's as is used."""

    def __init__(self) -> None:
        self.value: tuple[str] | None = None
        self.timeout_ms = 0
        self.hasTimedOut = False

    @property
    def exists(self) -> bool:
        return self.value is not None

    @property
    def get(self) -> tuple[str]:
        assert self.value is not None
        return self.value

    def update(self, value: tuple[str]) -> None:
        self.value = value

    def remove(self) -> None:
        self.value = None

    def setTimeoutTimestamp(self, ms: int) -> None:
        self.timeout_ms = ms

    def getCurrentWatermarkMs(self) -> int:
        return 0


def part(*rows: tuple[int, str, str, str]) -> Any:
    """Seconds, step, agent and transition of each event; ticks follow the order given."""
    return pandas.DataFrame(
        [
            (*KEY, step, agent, transition, BEGIN + timedelta(seconds=at), "B1.1", tick)
            for tick, (at, step, agent, transition) in enumerate(rows)
        ],
        columns=["process", "case", "step", "agent", "transition", "time", "pubend", "tick"],
    )


def told(parts: list[Any], state: State) -> list[tuple[Any, ...]]:
    return [
        (row.step, row.agent, row.handed_by, row.ready, row.start, row.end)
        for frame in _step(KEY, iter(parts), state)
        for row in frame.itertuples()
    ]


def test_a_case_goes_on_in_the_next_batch() -> None:
    state = State()
    # Batches come in pieces, in any order: what counts is the time.
    parts = [part((5, "a", "ann", "complete")), part((0, "a", "ann", "start"))]
    ((step, agent, handed_by, ready, start, end),) = told(parts, state)
    assert (step, agent, handed_by, ready) == ("a", "ann", None, None)
    assert (start, end) == (BEGIN, BEGIN + timedelta(seconds=5))
    assert told([part((8, "b", "bob", "start"))], state) == []
    ((step, agent, handed_by, ready, start, end),) = told(
        [part((9, "b", "bob", "complete"))], state
    )
    assert (step, agent, handed_by) == ("b", "bob", "ann")
    assert [(each - BEGIN).total_seconds() for each in (ready, start, end)] == [5, 8, 9]
    epoch_ms = (BEGIN - datetime(1970, 1, 1)).total_seconds() * 1000
    assert state.timeout_ms == epoch_ms + 9001
    told([part((7, "a", "ann", "start"))], state)
    assert state.timeout_ms == epoch_ms + 9001, "an event that is late makes it no older"


def test_a_case_that_is_over_is_forgotten() -> None:
    state = State()
    told([part((0, "a", "ann", "complete"))], state)
    state.hasTimedOut = True
    assert told([], state) == []
    assert not state.exists
