"""What is to be published, known beforehand: every event of a log by who publishes it and as which
of his; and the lots, ranges of cases that go from hand to hand. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from motet.errors import MisuseError
from motet.model import Filter, Value, attr
from motet.model.values import FAMILY_OF

CASE: Final = "case"
STEP: Final = "step"
TRANSITION: Final = "transition"
WORKFLOW: Final = "case is not null"
"""What is published from the log, and nothing else."""

Key = tuple[str, int]
"""Who has published an event, and as which of his events, from 1 on."""
Attributes = Mapping[str, Value]


class Planned(Protocol):
    """A plan of `motet.spark.replay`, as far as it matters here."""

    @property
    def first_us(self) -> int: ...

    @property
    def last_us(self) -> int: ...

    def client_id(self, publisher: int) -> str: ...

    def batches(self) -> Iterable[list[dict[str, Any]]]: ...


@dataclass(frozen=True)
class Lot:
    """Cases that one handler has at a time."""

    name: str
    filter: Filter

    @property
    def badge(self) -> str:
        """Whoever has the lot wears it: the name of a subscription by which he is invited."""
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
        """When each is to be published, as a part of all the time that there is."""
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
                known[event[CASE]] = self._lot(event)
            self.lot_of[key] = known[event[CASE]]

        self.steps = frozenset(key for key in self.lot_of if STEP in events[key])
        """What tells of a step of a case, and Spark asks for."""
        self.counted = frozenset(key for key in self.steps if _is_known(events[key]))
        """What insight counts."""
        if not self.steps:
            raise MisuseError("the log has no steps: --column step=NAME says which column has them")

    def _lot(self, event: Attributes) -> str:
        return next(lot.name for lot in self.lots if lot.filter.matches(dict(event)))

    def __len__(self) -> int:
        return len(self.events)


def _is_known(event: Attributes) -> bool:
    """Logs know other transitions, too."""
    return str(event.get(TRANSITION, "complete")).lower() in ("start", "complete")


def script_of(plan: Planned, lots: int) -> Script:
    """The k-th row of a publisher is the k-th event of its session."""
    from motet.spark.replay.rows import event_of

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
    """Lots of about as many cases each: ranges of what the log calls its cases."""
    if not cases:
        raise MisuseError("the log has no cases: --column case=NAME says which column has them")
    families = {FAMILY_OF[type(case)] for case in cases}
    if len(families) > 1:
        raise MisuseError("the cases of the log are of several kinds, numbers and texts perhaps")
    names: list[Any] = sorted(set(cases))
    count = min(most, len(names))
    starts = [names[at * len(names) // count] for at in range(count)]
    case = attr(CASE)
    if count == 1:
        return [Lot("lot-01", Filter.parse(WORKFLOW))]
    found = []
    for at, low in enumerate(starts):
        if at == 0:
            wanted = case < starts[1]
        elif at == count - 1:
            wanted = case >= low
        else:
            wanted = (case >= low) & (case < starts[at + 1])
        found.append(Lot(f"lot-{at + 1:02}", wanted))
    return found
