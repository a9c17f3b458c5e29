"""Which task reads what: ranges of pubends, of about the same number of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final

from pyspark.sql.datasource import InputPartition

from motet.client.log_outline import LogOutline, LogStep
from motet.errors import EventsLost
from motet.spark.brokers import Brokers
from motet.spark.offsets import Vector
from motet.spark.options import Options

SLICE_EVENTS: Final = 200_000
"""One task reads about so many, if nothing else is said."""
STEP_EVENTS: Final = 10_000
PIECES: Final = 4
"""Of so many steps, at least, a slice is made: then all are about equal."""


class Slice(InputPartition):
    """The stream of a pubend from tick `since` to tick `upto`, both included."""

    def __init__(self, url: str, pubend: str, since: int, upto: int, events: int) -> None:
        super().__init__(None)
        self.url = url
        self.pubend = pubend
        self.since = since
        self.upto = upto
        self.events = events

    def __repr__(self) -> str:
        return f"Slice({self.pubend}, {self.since}–{self.upto}, {self.events} events)"


def slices_between(brokers: Brokers, start: Vector, end: Vector, options: Options) -> list[Slice]:
    """What a filter keeps of it is not known here: slices are equal before it."""
    ranges = {name: (start[name], end[name] - 1) for name in sorted(start)}
    ranges = {name: (since, upto) for name, (since, upto) in ranges.items() if since <= upto}
    outlines = _outlines(brokers, ranges, options, STEP_EVENTS)
    total = sum(each.events for each in outlines.values())
    size = ceil(total / max(options.min_partitions, ceil(total / SLICE_EVENTS), 1))
    if total and size < PIECES * STEP_EVENTS and options.min_partitions > 1:
        outlines = _outlines(brokers, ranges, options, max(size // PIECES, 1))
    return [
        Slice(brokers.home(name), name, since, upto, events)
        for name, outline in outlines.items()
        for since, upto, events in _divided(outline.since, outline.steps, size)
    ]


def _outlines(
    brokers: Brokers, ranges: dict[str, tuple[int, int]], options: Options, step_events: int
) -> dict[str, LogOutline]:
    found: dict[str, LogOutline] = {}
    for name, (since, upto) in ranges.items():
        outline = brokers.outline(name, since=since, upto=upto, step_events=step_events)
        if outline.lost and options.fail_on_data_loss:
            raise EventsLost(name, *outline.lost[0])
        if outline.upto < upto and options.fail_on_data_loss:
            raise EventsLost(name, outline.upto + 1, upto)
        found[name] = outline
    return found


def _divided(since: int, steps: Sequence[LogStep], size: int) -> Iterator[tuple[int, int, int]]:
    """First tick, last tick and number of events of each slice."""
    events, upto = 0, since - 1
    for step in steps:
        if events and events + step.events > size:
            yield since, upto, events
            since, events = upto + 1, 0
        upto = step.upto
        events += step.events
    if events:
        yield since, upto, events
