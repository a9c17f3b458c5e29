"""What was measured of clients that move: the slices of a line, as one row of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any, NamedTuple

from motet_labs.experiments.rivals import MoveSlice, Traffic
from motet_labs.experiments.shapes import WantedInterval

STEPS = ("leave", "connect", "subscribe")
"""The parts of a movement without a transaction."""


class Point(NamedTuple):
    """One movement: when it began, in all slices of its line one after the other; how long it took;
    how many subscriptions it covers directly."""

    at_s: float
    ms: float
    direct: int


class Latency(NamedTuple):
    moves: int
    mean_ms: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Latency:
        if not times_ms:
            return cls(0, 0.0, 0.0, 0.0)
        times = sorted(times_ms)
        return cls(len(times), mean(times), median(times), times[len(times) * 99 // 100])


class Rest(NamedTuple):
    """What brokers of a line send in a second in which nobody moves."""

    line: str
    per_s: Traffic

    @classmethod
    def of(cls, one: MoveSlice) -> Rest:
        return cls(one.line.name, Traffic.of(one.sent).times(1 / one.told["took_s"]))

    def beyond(self, row: MoveRow) -> Traffic:
        """What is sent per movement, without what is sent anyway."""
        each_s = row.took_s / max(1, row.latency.moves)
        return row.traffic.without(self.per_s.times(each_s))


class EventAccount(NamedTuple):
    """Of events at all subscribers."""

    expected: int = 0
    missed: int = 0
    doubled: int = 0
    swapped: int = 0

    @property
    def wrong(self) -> int:
        return self.missed + self.doubled + self.swapped


@dataclass(frozen=True)
class MoveRow:
    """One line at one point of a figure; `at` is what the part varies."""

    part: str
    workload: str
    at: int
    line: str
    latency: Latency
    wide: Latency
    """Of the movements of those that cover others."""
    per_s: float
    steps_ms: tuple[float, ...]
    """Medians of the parts of a movement without a transaction."""
    traffic: Traffic
    """Between brokers, per movement."""
    cpu_ms: float
    """Of all brokers, per movement."""
    took_s: float
    events: EventAccount
    failed: int
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        told = asdict(self)
        for name in ("latency", "wide", "traffic", "events"):
            told[name] = {
                key: _short(value) for key, value in getattr(self, name)._asdict().items()
            }
        told["steps_ms"] = dict(zip(STEPS, map(_short, self.steps_ms), strict=False))
        for name in ("per_s", "cpu_ms", "took_s"):
            told[name] = _short(told[name])
        return told

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> MoveRow:
        """The row whose `to_json` this is; its figures are rounded."""
        return cls(
            **told
            | {
                "latency": Latency(**told["latency"]),
                "wide": Latency(**told["wide"]),
                "steps_ms": tuple(told["steps_ms"].values()),
                "traffic": Traffic(**told["traffic"]),
                "events": EventAccount(**told["events"]),
                "problems": tuple(told["problems"]),
            }
        )


def _short(value: float) -> float:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def row_of(
    part: str, workload: str, at: int, slices: Sequence[MoveSlice], wanted: Sequence[WantedInterval]
) -> MoveRow:
    """All slices of one line together."""
    made = [each for one in slices for each in one.told["movements"]]
    times = [sum(parts_s) * 1e3 for _, _, parts_s in made]
    wide = [ms for ms, (mover, _, _) in zip(times, made, strict=True) if wanted[mover].direct]
    count = len(made)
    sent = Counter[str]()
    for one in slices:
        sent.update(one.sent)
    took_s = sum(one.told["took_s"] for one in slices)
    length = max((len(parts_s) for _, _, parts_s in made), default=0)
    steps = tuple(median(each[2][at] * 1e3 for each in made) for at in range(length))
    return MoveRow(
        part,
        workload,
        at,
        slices[0].line.name,
        Latency.of(times),
        Latency.of(wide),
        count / took_s,
        steps if length > 1 else (),
        Traffic.of(sent).per(count),
        sum(one.cpu_s for one in slices) * 1e3 / max(1, count),
        took_s,
        EventAccount(*(sum(one.told[name] for one in slices) for name in EventAccount._fields)),
        sum(one.told["failed"] for one in slices),
        tuple(problem for one in slices for problem in one.told["problems"]),
    )


def points_of(slices: Sequence[MoveSlice], wanted: Sequence[WantedInterval]) -> list[Point]:
    """Every movement of one line."""
    found, since_s = [], 0.0
    for one in slices:
        for mover, at_s, parts_s in one.told["movements"]:
            found.append(Point(since_s + at_s, sum(parts_s) * 1e3, wanted[mover].direct))
        since_s += one.told["took_s"]
    return found
