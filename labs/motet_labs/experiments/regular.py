"""The rate of regular events while instances are dispatched: paper 1's figure 9.

One publisher and one subscriber, processes of their own, keep a stream of exactly-once events going
all the time. Slices of time with and without dispatching alternate, and each slice with it is
compared with its two neighbours, so that other load on the machine, and drift, affect both alike.
The rate of a slice is what the subscriber received between two readings of its own clock. Instances
are prepared before a slice and removed after it. The publisher is at most one window ahead of the
subscriber: so arrivals during a slice are what the overlay carried during it, not an earlier
backlog.

As in the paper, 4 instances are dispatched at once, after every 20,000 regular events: at the rate
without them. All processes share the cores of one machine: so the CPU time of the dispatching
clients counts as a drop too, though elsewhere they would be on other machines. The floor is
therefore not zero, but the drop when the same clients do the same operations without a transaction
(APART).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from statistics import mean, median, quantiles
from typing import Any

from motet.errors import MotetError
from motet.fleet.process import cpu_s
from motet_labs.bench import load
from motet_labs.bench.load import NOTE_S
from motet_labs.experiments.dispatch import Scene
from motet_labs.experiments.paper1 import EVENTS_PER_BURST, INSTANCES_PER_BURST
from motet_labs.figures import Progress
from motet_labs.processes import Worker, worker

ALONE = ""
AHEAD = 4096
"""Events that the publisher may be ahead of the subscriber: as many as a broker sends to a client
without an acknowledgement. A subscriber that is farther behind is served from the log, which is
measured elsewhere."""
WARM_UP_S = 1.0
PAUSE_S = 0.1
"""Before a slice, until the effects of preparing or removing have died down."""
BURSTS = 2
"""Per slice. Short slices are more like their neighbours than long ones."""
DOUBLINGS = 12
"""How often a slice in which no event arrived is measured again, each time twice as long."""


@dataclass(frozen=True)
class TimeSlice:
    """`approach` is what ran beside the stream; nothing if ALONE."""

    approach: str
    seconds: float
    events: int
    dispatched: int = 0
    wrong: int = 0
    cpu_s: float = 0.0
    """Of all processes: brokers, publisher, subscriber, and the dispatching clients."""
    clients_cpu_s: float = 0.0
    """Of the dispatching clients."""
    course: tuple[tuple[float, float], ...] = ()
    """Seconds since the start, and events per second since the previous reading."""

    @property
    def per_s(self) -> float:
        return self.events / self.seconds

    def to_json(self) -> dict[str, Any]:
        told = asdict(self) | {"per_s": round(self.per_s), "seconds": round(self.seconds, 3)}
        told |= {name: round(told[name], 4) for name in ("cpu_s", "clients_cpu_s")}
        told["course"] = [[round(at_s, 3), round(per_s)] for at_s, per_s in self.course]
        return told


@dataclass(frozen=True)
class Spread:
    """The median of many values, and the quartiles."""

    middle: float
    low: float
    high: float

    @property
    def quartiles(self) -> str:
        return f"quartiles {self.low:.2g} to {self.high:.2g}"

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median(values), low, high)


@dataclass(frozen=True)
class Impact:
    """Slices in the order of time: every other one, and the first and the last, are ALONE."""

    slices: tuple[TimeSlice, ...] = ()
    lost: int = 0
    disordered: int = 0
    doubled: int = 0

    @property
    def kept(self) -> bool:
        return not (self.lost or self.disordered or self.doubled)

    @property
    def approaches(self) -> list[str]:
        return list(dict.fromkeys(each.approach for each in self.slices if each.approach != ALONE))

    def _of(self, approach: str) -> list[TimeSlice]:
        return [each for each in self.slices if each.approach == approach]

    def rate(self, approach: str = ALONE) -> Spread:
        return Spread.of([each.per_s for each in self._of(approach)])

    def dip(self, approach: str) -> Spread:
        """Of the rate, in percent of that just before and just after."""
        return self._dip(approach, lambda each: each.per_s)

    def dip_by_cpu(self, approach: str) -> Spread:
        """The same of events per second of CPU of all processes together: this excludes the effect
        of other load on the machine."""
        return self._dip(approach, lambda each: each.events / each.cpu_s)

    def _dip(self, approach: str, rate: Callable[[TimeSlice], float]) -> Spread:
        found = []
        for at, each in enumerate(self.slices):
            if each.approach == approach:
                around = mean((rate(self.slices[at - 1]), rate(self.slices[at + 1])))
                found.append(100 * (1 - rate(each) / around))
        return Spread.of(found)

    def course(self, approach: str = ALONE) -> list[tuple[float, float]]:
        """The slices superimposed: seconds since the start, and the median rate then, as long as at
        least half of the slices last."""
        some = self._of(approach)
        steps: dict[int, list[float]] = {}
        for each in some:
            for at_s, per_s in each.course:
                steps.setdefault(int(at_s / NOTE_S), []).append(per_s)
        return [
            (step * NOTE_S, median(rates))
            for step, rates in sorted(steps.items())
            if 2 * len(rates) >= len(some)
        ]

    @property
    def bursts_s(self) -> list[float]:
        """When instances are dispatched, from the beginning of a slice."""
        every_s = median(each.seconds for each in self._of(ALONE)) / BURSTS
        return [(burst + 0.5) * every_s for burst in range(BURSTS)]

    def clients_share(self, approach: str) -> float:
        """The share of all CPU time that the dispatching clients used themselves, in percent."""
        some = self._of(approach)
        return 100 * sum(each.clients_cpu_s for each in some) / sum(each.cpu_s for each in some)

    def dispatched(self, approach: str) -> int:
        return sum(each.dispatched for each in self._of(approach))

    def wrong(self, approach: str) -> int:
        return sum(each.wrong for each in self._of(approach))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"slices": [each.to_json() for each in self.slices]}


class RegularStream:
    def __init__(self, scene: Scene, publisher: Worker, subscriber: Worker) -> None:
        self._load = scene.load
        self._pids = [
            *(broker.pid for broker in scene.brokers),
            *(each.pid for each in (publisher, subscriber, scene.load)),
        ]
        self._publisher = publisher
        self._subscriber = subscriber

    def go(self, per_s: float = 0.0) -> float:
        """Publish from now on, at a rate or at full speed; returns the actual rate."""
        self._publisher.ask("go", per_s=per_s)
        time.sleep(WARM_UP_S)
        return self.alone(WARM_UP_S).per_s

    def stop(self) -> dict[str, int]:
        """What has gone wrong since the beginning."""
        return self._subscriber.ask("account", **self._publisher.ask("stop"))

    def alone(self, seconds: float) -> TimeSlice:
        """On a loaded machine no event may arrive in so short a time: then a slice twice as long is
        measured, because a rate of zero is no base for a comparison."""
        for _ in range(DOUBLINGS):
            found = self._slice(ALONE, partial(time.sleep, seconds))
            if found.events:
                return found
            seconds *= 2
        raise MotetError(
            f"No regular event arrived in {found.seconds:.3g} s. The machine is too busy to "
            "measure anything: stop other work, and try again."
        )

    def beside(self, approach: str, every_s: float, wait_s: float) -> TimeSlice:
        """A slice during which instances are dispatched, until all are complete."""
        each, ask = INSTANCES_PER_BURST, self._load.ask
        ask("prepare", each=BURSTS * each)
        pace = {"bursts": BURSTS, "each": each, "every_s": every_s, "wait_s": wait_s}
        try:
            return self._slice(approach, lambda: ask("pace", approach=approach, **pace))
        finally:
            ask("settle")

    def _slice(self, approach: str, meanwhile: Callable[[], dict[str, Any] | None]) -> TimeSlice:
        time.sleep(PAUSE_S)
        before_s = [cpu_s(pid) for pid in self._pids]
        began = self._subscriber.ask("mark")
        done = meanwhile() or {}
        ended = self._subscriber.ask("mark")
        spent_s = [cpu_s(pid) - before for pid, before in zip(self._pids, before_s, strict=True)]
        readings = [(began["at_s"], began["taken"]), *ended["notes"]]
        course = tuple(
            (at_s - began["at_s"], (taken - before) / (at_s - since))
            for (since, before), (at_s, taken) in pairwise(readings)
            if at_s - since >= NOTE_S / 2
        )
        return TimeSlice(
            approach,
            ended["at_s"] - began["at_s"],
            ended["taken"] - began["taken"],
            dispatched=len(done.get("latency_ms", ())),
            wrong=done.get("wrong", 0),
            cpu_s=sum(spent_s),
            clients_cpu_s=spent_s[-1],
            course=course,
        )


def measure(
    on: Scene,
    approaches: Sequence[str],
    rounds: int,
    *,
    per_s: float = 0.0,
    wait_s: float = 0.0,
    burst_events: int = EVENTS_PER_BURST,
    progress: Progress = lambda _: None,
) -> Impact:
    """Every approach once a round; in reverse order every other round. Instances are dispatched
    after every `burst_events` events."""
    with (
        worker(load.subscriber, on.urls[-1], 0, AHEAD) as subscriber,
        worker(load.publisher, on.urls[0], True, AHEAD) as publisher,
    ):
        subscriber.ask("mark")  # wait until it is connected
        regular = RegularStream(on, publisher, subscriber)
        every_s = burst_events / regular.go(per_s)
        slices = [regular.alone(BURSTS * every_s)]
        for number in range(1, rounds + 1):
            for approach in approaches if number % 2 else reversed(approaches):
                progress(f"round {number} of {rounds}: regular events beside {approach}")
                slices.append(regular.beside(approach, every_s, wait_s))
                slices.append(regular.alone(BURSTS * every_s))
                rate = median(each.per_s for each in slices if each.approach == ALONE)
                every_s = burst_events / rate
        return Impact(tuple(slices), **regular.stop())
