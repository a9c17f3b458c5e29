"""A log in memory: what a range holds, and that finding it takes no look at what is before."""

from __future__ import annotations

from typing import Any

import pytest

from motet.broker.driver.pubend import VolatilePubend
from motet.model import OpId
from motet.protocol.contract import LogItem, LogRun, LogStart
from motet.protocol.delivery.spans import Span
from motet.protocol.delivery.stream import ReadWanted

PER_RUN, RUNS = 10, 30


class Bodies(list[Any]):
    """Counts how often one of them is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        Bodies.looks += 1
        return super().__getitem__(at)


def run_at(tick: int) -> LogRun:
    bodies = Bodies(b"%d" % (tick + at) for at in range(PER_RUN))
    return LogRun(tick, "alice", "e", tick, bodies)


@pytest.fixture
def pubend() -> VolatilePubend:
    """Runs at 100, 120, …, and between them, at 110, 130, …, the start of a subscription."""
    found = VolatilePubend(lambda _: None)
    items: list[LogItem] = []
    for number in range(RUNS):
        tick = 100 + 20 * number
        items += [run_at(tick), LogStart(tick + PER_RUN, OpId("bob", "e", number + 1))]
    found.append(items)
    return found


def read(pubend: VolatilePubend, since: int, upto: int, most: int = 1000) -> Span:
    (span,) = pubend.read(ReadWanted("P", since, upto, most, 1 << 20))
    return span


@pytest.mark.parametrize(
    ("since", "upto", "ticks", "starts"),
    [
        (100, 103, [100, 101, 102, 103], []),
        (108, 121, [108, 109, 120, 121], [110]),
        (110, 110, [], [110]),
        (111, 119, [], []),
        (1, 100, [100], []),
        (688, 5000, [688, 689], [690]),
        (700, 5000, [], []),
    ],
)
def test_reading_a_range_returns_its_ticks_and_starts(
    pubend: VolatilePubend, since: int, upto: int, ticks: list[int], starts: list[int]
) -> None:
    span = read(pubend, since, upto)
    assert (span.since, span.upto) == (since, upto)
    assert list(span.ticks) == ticks
    assert [event.sequence for event in span.batch] == ticks
    assert [bytes(event.body) for event in span.batch] == [b"%d" % tick for tick in ticks]
    assert [record.tick for record in span.records] == starts


def test_a_limited_read_ends_at_its_last_event(pubend: VolatilePubend) -> None:
    span = read(pubend, 105, 500, most=7)
    assert list(span.ticks) == [105, 106, 107, 108, 109, 120, 121]
    assert span.upto == 121


def test_the_end_is_read_without_the_beginning(pubend: VolatilePubend) -> None:
    Bodies.looks = 0
    assert len(read(pubend, 685, 5000).ticks) == 5
    assert Bodies.looks == 5


def test_trimmed_ticks_are_read_as_lost(pubend: VolatilePubend) -> None:
    pubend.acknowledged(130)
    lost, rest = pubend.read(ReadWanted("P", 100, 141, 1000, 1 << 20))
    assert (lost.since, lost.upto, lost.lost) == (100, 130, True)
    assert list(rest.ticks) == [140, 141]
