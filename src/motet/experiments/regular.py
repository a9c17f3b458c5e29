"""What becomes of the rate of regular events while instances are dispatched: paper 1's figure 9.

One publisher and one subscriber, processes of their own, keep a stream of exactly-once events going
all the time. Slices of time with and without dispatching take turns, and each slice with it is
compared with the two beside it, so that whatever else the machine does meanwhile, and however it
drifts, meets both alike. The rate of a slice is what the subscriber was given between
two readings of its own clock. Instances are prepared before a slice and cleared away after it.

As in the paper, 4 instances are dispatched at once, after every 20,000 regular events: at the rate
without them. All processes share the cores of one machine: what the clients that dispatch spend
themselves counts as a drop too, though elsewhere they would be on other machines. What is left of
the drop when the same clients do the same operations without a transaction (APART) is therefore
the floor, not zero.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import mean, median, quantiles
from typing import Any

from motet.bench import stand
from motet.experiments.dispatch_stand import Child, Scene, child
from motet.experiments.regular_load import NOTE_S
from motet.experiments.tx_paper import EVENTS_PER_BURST, INSTANCES_PER_BURST

ALONE = ""
WARM_UP_S = 1.0
PAUSE_S = 0.1
"""Before a slice: what was prepared or cleared away has died down."""
BURSTS = 2
"""In every slice. Short slices are more like their neighbours than long ones."""


@dataclass(frozen=True)
class Slice:
    """`approach` is what ran beside the stream; nothing if ALONE."""

    approach: str
    seconds: float
    events: int
    dispatched: int = 0
    wrong: int = 0
    cpu_s: float = 0.0
    """Of all processes: brokers, publisher, subscriber, and the clients that dispatch."""
    clients_cpu_s: float = 0.0
    """Of the clients that dispatch."""
    course: tuple[tuple[float, float], ...] = ()
    """Seconds from the beginning, and events per second since the reading before."""

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
    """The middle of many, and the quartiles beside it."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median(values), low, high)


@dataclass(frozen=True)
class Impact:
    """Slices in the order of time: every other one, and the first and the last, are ALONE."""

    slices: tuple[Slice, ...] = ()
    lost: int = 0
    disordered: int = 0
    doubled: int = 0

    @property
    def kept(self) -> bool:
        return not (self.lost or self.disordered or self.doubled)

    @property
    def approaches(self) -> list[str]:
        return list(dict.fromkeys(each.approach for each in self.slices if each.approach != ALONE))

    def rate(self, approach: str = ALONE) -> Spread:
        return Spread.of([each.per_s for each in self.slices if each.approach == approach])

    def dip(self, approach: str) -> Spread:
        """Of the rate, in percent of that just before and just after."""
        return self._dip(approach, lambda each: each.per_s)

    def dip_by_cpu(self, approach: str) -> Spread:
        """The same of events per second of CPU, of all processes together: what others on this
        machine take away does not count."""
        return self._dip(approach, lambda each: each.events / each.cpu_s)

    def _dip(self, approach: str, rate: Callable[[Slice], float]) -> Spread:
        found = []
        for at, each in enumerate(self.slices):
            if each.approach == approach:
                around = mean((rate(self.slices[at - 1]), rate(self.slices[at + 1])))
                found.append(100 * (1 - rate(each) / around))
        return Spread.of(found)

    def course(self, approach: str = ALONE) -> list[tuple[float, float]]:
        """The slices laid over each other: seconds from the beginning, and the middle of the rates
        then, as long as half of the slices last."""
        some = [each for each in self.slices if each.approach == approach]
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
        every_s = median(each.seconds for each in self.slices if each.approach == ALONE) / BURSTS
        return [(burst + 0.5) * every_s for burst in range(BURSTS)]

    def clients_share(self, approach: str) -> float:
        """How much of all CPU the clients that dispatch used themselves, in percent."""
        some = [each for each in self.slices if each.approach == approach]
        return 100 * sum(each.clients_cpu_s for each in some) / sum(each.cpu_s for each in some)

    def dispatched(self, approach: str) -> int:
        return sum(each.dispatched for each in self.slices if each.approach == approach)

    def wrong(self, approach: str) -> int:
        return sum(each.wrong for each in self.slices if each.approach == approach)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"slices": [each.to_json() for each in self.slices]}


class Stream:
    def __init__(self, scene: Scene, publisher: Child, subscriber: Child) -> None:
        self._load = scene.load
        self._pids = [
            *(broker.pid for broker in scene.brokers),
            *(each.process.pid for each in (publisher, subscriber, scene.load)),
        ]
        self._publisher = publisher
        self._subscriber = subscriber

    def go(self, per_s: float = 0.0) -> float:
        """From now on, at a rate, or as fast as it goes; how fast that is."""
        self._publisher.ask(do="go", per_s=per_s)
        time.sleep(WARM_UP_S)
        return self.alone(WARM_UP_S).per_s

    def stop(self) -> dict[str, int]:
        """What has gone wrong since the beginning."""
        return self._subscriber.ask(do="account", **self._publisher.ask(do="stop"))

    def alone(self, seconds: float) -> Slice:
        def nothing() -> dict[str, Any]:
            time.sleep(seconds)
            return {}

        return self._slice(ALONE, nothing)

    def beside(self, approach: str, bursts: int, every_s: float, wait_s: float) -> Slice:
        """While instances are dispatched, and until all are."""
        each = INSTANCES_PER_BURST
        self._load.ask(do="prepare", each=bursts * each)
        pace = {"bursts": bursts, "each": each, "every_s": every_s, "wait_s": wait_s}
        try:
            return self._slice(
                approach, lambda: self._load.ask(do="pace", approach=approach, **pace)
            )
        finally:
            self._load.ask(do="settle")

    def _slice(self, approach: str, meanwhile: Callable[[], dict[str, Any]]) -> Slice:
        time.sleep(PAUSE_S)
        cpu_s = [stand.cpu_s(pid) for pid in self._pids]
        began = self._subscriber.ask(do="mark")
        done = meanwhile()
        ended = self._subscriber.ask(do="mark")
        spent_s = [stand.cpu_s(pid) - before for pid, before in zip(self._pids, cpu_s, strict=True)]
        readings = [(began["at_s"], began["taken"]), *ended["notes"]]
        course = tuple(
            (at_s - began["at_s"], (taken - before) / (at_s - since))
            for (since, before), (at_s, taken) in pairwise(readings)
            if at_s - since >= NOTE_S / 2
        )
        return Slice(
            approach,
            ended["at_s"] - began["at_s"],
            ended["taken"] - began["taken"],
            dispatched=len(done.get("latency_ms", ())),
            wrong=done.get("wrong", 0),
            cpu_s=sum(spent_s),
            clients_cpu_s=spent_s[-1],
            course=course,
        )


@contextlib.contextmanager
def stream(on: Scene) -> Iterator[Stream]:
    """From the first broker to the last."""
    module = "motet.experiments.regular_load"
    with (
        child(module, "subscriber", on.urls[-1], name="the subscriber") as subscriber,
        child(module, "publisher", on.urls[0], name="the publisher") as publisher,
    ):
        subscriber.ask(do="mark")  # it is there
        yield Stream(on, publisher, subscriber)


def measure(
    on: Scene,
    approaches: Sequence[str],
    rounds: int,
    *,
    per_s: float = 0.0,
    wait_s: float = 0.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Impact:
    """Every approach once a round; in the reverse order every other round."""
    with stream(on) as regular:
        every_s = EVENTS_PER_BURST / regular.go(per_s)
        slices = [regular.alone(BURSTS * every_s)]
        for number in range(1, rounds + 1):
            for approach in approaches if number % 2 else reversed(approaches):
                progress(f"round {number} of {rounds}: regular events beside {approach}")
                slices.append(regular.beside(approach, BURSTS, every_s, wait_s))
                slices.append(regular.alone(BURSTS * every_s))
                rate = median(each.per_s for each in slices if each.approach == ALONE)
                every_s = EVENTS_PER_BURST / rate
        return Impact(tuple(slices), **regular.stop())
