"""Which task reads what: ranges of pubends, of about the same number of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Final

from pyspark.sql.datasource import InputPartition

from motet.client.log_outline import LogOutline, LogStep
from motet.errors import EventsLost
from motet.spark.brokers import Brokers
from motet.spark.offsets import Vector
from motet.spark.options import ADVICE, Options

SLICE_EVENTS: Final = 500_000
"""One task reads at most about so many, if nothing else is said."""
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


def slices_between(
    brokers: Brokers,
    start: Vector,
    end: Vector,
    options: Options,
    known: Mapping[str, LogOutline] | None = None,
) -> list[Slice]:
    """What a filter keeps of it is not known here: slices are equal before it. Logs of which an
    outline of just this range is `known` are not asked again."""
    ranges = {name: (start[name], end[name] - 1) for name in sorted(start)}
    ranges = {name: (since, upto) for name, (since, upto) in ranges.items() if since <= upto}
    told = (known or {}).items()
    same = {name: each for name, each in told if ranges.get(name) == (each.since, each.upto)}
    asked = {name: range_ for name, range_ in ranges.items() if name not in same}
    outlines = same | _outlines(brokers, asked, options, STEP_EVENTS)
    total = sum(each.events for each in outlines.values())
    tasks = max(options.min_partitions, _tasks(total))
    size = total // tasks
    if total and size < PIECES * STEP_EVENTS and options.min_partitions > 1:
        outlines = _outlines(brokers, ranges, options, max(size // PIECES, 1))
    return [
        Slice(brokers.home(name), name, since, upto, events)
        for name, outline in outlines.items()
        for since, upto, events in divided(
            outline.since, outline.steps, _share(outline.events, tasks, total)
        )
    ]


def _share(events: int, tasks: int, total: int) -> int:
    """How many of the tasks are for these of all events, rounded up."""
    return max(-(-events * tasks // max(total, 1)), 1)


def _tasks(events: int) -> int:
    """1, 2, 4, 8, …: so are cores, mostly, and then none has nothing to do at the end."""
    return 1 << (ceil(events / SLICE_EVENTS) - 1).bit_length() if events else 1


def _outlines(
    brokers: Brokers, ranges: dict[str, tuple[int, int]], options: Options, step_events: int
) -> dict[str, LogOutline]:
    found: dict[str, LogOutline] = {}
    for name, (since, upto) in ranges.items():
        outline = brokers.outline(name, since=since, upto=upto, step_events=step_events)
        if outline.lost and options.fail_on_data_loss:
            raise EventsLost(name, *outline.lost[0], advice=ADVICE)
        if outline.upto < upto and options.fail_on_data_loss:
            raise EventsLost(name, outline.upto + 1, upto, advice=ADVICE)
        found[name] = outline
    return found


def divided(since: int, steps: Sequence[LogStep], slices: int) -> Iterator[tuple[int, int, int]]:
    """First tick, last tick and number of events of each slice. There are so many, and they are
    about equal, as far as steps are small."""
    left = sum(each.events for each in steps)
    events, upto = 0, since - 1
    for step in steps:
        share = (left + events) / slices
        if events and events + step.events / 2 > share:  # it comes nearer without this step
            yield since, upto, events
            since, events, slices = upto + 1, 0, max(slices - 1, 1)
        upto = step.upto
        events += step.events
        left -= step.events
    if events:
        yield since, upto, events
