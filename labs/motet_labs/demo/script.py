"""The events to be published, known beforehand: every event of a log, by publisher and sequence
number; and the lots, ranges of cases that change hands. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from motet.errors import MisuseError
from motet.model import Filter, Value, attr
from motet.model.values import FAMILY_OF

if TYPE_CHECKING:
    from motet.spark.replay import ReplayPlan

CASE: Final = "case"
STEP: Final = "step"
TRANSITION: Final = "transition"
WORKFLOW: Final = "case is not null"
"""Matches exactly the events published from the log."""

Key = tuple[str, int]
"""The publisher of an event, and its sequence number there, from 1."""
Attributes = Mapping[str, Value]


@dataclass(frozen=True)
class Lot:
    """Cases that one handler has at a time."""

    name: str
    filter: Filter

    @property
    def badge(self) -> str:
        """The name of the subscription by which the current handler of the lot is invited."""
        return f"{self.name}-badge"

    @property
    def worn(self) -> str:
        return f"holds = '{self.name}'"


class Script:
    def __init__(
        self, events: Mapping[Key, Attributes], lots: int, due: Mapping[Key, float] | None = None
    ) -> None:
        self.events = events
        self.due = due or {}
        """When each is to be published, as a fraction of the whole duration."""
        cases = [event[CASE] for event in events.values() if CASE in event]
        self.cases = len(set(cases))
        self.lots = divided(cases, lots)
        self.lot_of: dict[Key, str] = {}
        """Of every event that belongs to a case."""
        known: dict[Value, str] = {}
        for key, event in events.items():
            if CASE not in event:
                continue
            if event[CASE] not in known:
                found = (lot.name for lot in self.lots if lot.filter.matches(dict(event)))
                known[event[CASE]] = next(found)
            self.lot_of[key] = known[event[CASE]]
        self.steps = frozenset(key for key in self.lot_of if STEP in events[key])
        """Events that tell of a step of a case, which Spark reads."""
        self.counted = frozenset(key for key in self.steps if _is_known(events[key]))
        """Events that insight counts."""
        if not self.steps:
            raise MisuseError("the log has no column of steps; name it with --column step=NAME")

    def __len__(self) -> int:
        return len(self.events)


def _is_known(event: Attributes) -> bool:
    """Logs may have other transitions, too."""
    return str(event.get(TRANSITION, "complete")).lower() in ("start", "complete")


def script_of(plan: ReplayPlan, lots: int) -> Script:
    """The k-th row of a publisher is the k-th event of its session."""
    from motet.spark.replay.publishers import event_of

    numbers: Counter[int] = Counter()
    events: dict[Key, Attributes] = {}
    due: dict[Key, float] = {}
    span_us = max(plan.last_us - plan.first_us, 1)
    for rows in plan.batches():
        for row in rows:
            publisher = row["_publisher"]
            numbers[publisher] += 1
            key = (plan.client_id(publisher), numbers[publisher])
            events[key] = event_of(row)[0]
            due[key] = (row["_time_us"] - plan.first_us) / span_us
    return Script(events, lots, due)


def divided(cases: Sequence[Value], most: int) -> list[Lot]:
    """Lots of about equally many cases: ranges of the log's names of cases."""
    if not cases:
        raise MisuseError("the log has no column of cases; name it with --column case=NAME")
    families = {FAMILY_OF[type(case)] for case in cases}
    if len(families) > 1:
        raise MisuseError("the cases of the log have several types; write all of them as text")
    names: list[Any] = sorted(set(cases))
    count = min(most, len(names))
    starts = [names[at * len(names) // count] for at in range(count)]
    case = attr(CASE)
    if count == 1:
        return [Lot("lot-01", Filter.parse(WORKFLOW))]
    found = [case < starts[1]]
    found += [(case >= low) & (case < high) for low, high in pairwise(starts[1:])]
    found.append(case >= starts[-1])
    return [Lot(f"lot-{at:02}", wanted) for at, wanted in enumerate(found, 1)]
