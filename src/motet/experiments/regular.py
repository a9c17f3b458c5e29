"""What becomes of the rate of regular events while instances are dispatched: paper 1's figure 9.

One publisher and one subscriber, processes of their own, keep a stream of exactly-once events going
through the whole measurement. Slices of time with and without dispatching take turns, and each slice
with it is compared with the two beside it, so that whatever else the machine does meanwhile, and
however it drifts, meets both alike. The rate of a slice is what the subscriber was given between
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
from statistics import mean, median, quantiles
from typing import Any

from motet.experiments.dispatch_stand import Child, Scene, child
from motet.experiments.tx_paper import EVENTS_PER_BURST, INSTANCES_PER_BURST

ALONE = ""
WARM_UP_S = 1.0


@dataclass(frozen=True)
class Slice:
    """`approach` is what ran beside the stream; nothing if ALONE."""

    approach: str
    seconds: float
    events: int
    dispatched: int = 0
    wrong: int = 0
    course: tuple[tuple[float, float], ...] = ()
    """Seconds from the beginning, and events per second since the reading before."""

    @property
    def per_s(self) -> float:
        return self.events / self.seconds

    def to_json(self) -> dict[str, Any]:
        told = asdict(self) | {"per_s": round(self.per_s), "seconds": round(self.seconds, 3)}
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
        """In percent of the rate just before and just after."""
        found = []
        for before, beside, after in zip(self.slices, self.slices[1:], self.slices[2:]):
            if beside.approach == approach:
                found.append(100 * (1 - beside.per_s / mean((before.per_s, after.per_s))))
        return Spread.of(found)

    def dispatched(self, approach: str) -> int:
        return sum(each.dispatched for each in self.slices if each.approach == approach)

    def wrong(self, approach: str) -> int:
        return sum(each.wrong for each in self.slices if each.approach == approach)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"slices": [each.to_json() for each in self.slices]}


class Stream:
    def __init__(self, scene: Scene, publisher: Child, subscriber: Child) -> None:
        self._load = scene.load
        self._publisher = publisher
        self._subscriber = subscriber

    def go(self, per_s: float = 0.0) -> None:
        """From now on; at a rate, or as fast as it goes."""
        self._publisher.ask(do="go", per_s=per_s)
        time.sleep(WARM_UP_S)

    def stop(self) -> dict[str, int]:
        """What has gone wrong since the beginning."""
        return self._subscriber.ask(do="account", **self._publisher.ask(do="stop"))

    def alone(self, seconds: float) -> Slice:
        def nothing() -> dict[str, Any]:
            time.sleep(seconds)
            return {}

        return self._slice(ALONE, nothing)

    def beside(self, approach: str, seconds: float, per_s: float, wait_s: float = 0.0) -> Slice:
        """So long, while instances are dispatched, as is due at this rate of regular events."""
        every_s = EVENTS_PER_BURST / per_s
        bursts = max(1, round(seconds / every_s))
        self._load.ask(do="prepare", each=bursts * INSTANCES_PER_BURST)
        pace = {"bursts": bursts, "each": INSTANCES_PER_BURST, "every_s": every_s}
        try:
            return self._slice(
                approach,
                lambda: self._load.ask(do="pace", approach=approach, wait_s=wait_s, **pace),
            )
        finally:
            self._load.ask(do="settle")

    def _slice(self, approach: str, meanwhile: Callable[[], dict[str, Any]]) -> Slice:
        began = self._subscriber.ask(do="mark")
        done = meanwhile()
        ended = self._subscriber.ask(do="mark")
        readings = [(began["at_s"], began["taken"]), *ended["notes"]]
        course = tuple(
            (at_s - began["at_s"], (taken - before) / (at_s - since))
            for (since, before), (at_s, taken) in zip(readings, readings[1:])
        )
        return Slice(
            approach,
            ended["at_s"] - began["at_s"],
            ended["taken"] - began["taken"],
            len(done.get("latency_ms", ())),
            done.get("wrong", 0),
            course,
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
    seconds: float,
    *,
    per_s: float = 0.0,
    wait_s: float = 0.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Impact:
    """Every approach once a round; in the reverse order every other round."""
    with stream(on) as regular:
        regular.go(per_s)
        slices = [regular.alone(seconds)]
        for number in range(1, rounds + 1):
            for approach in approaches if number % 2 else reversed(approaches):
                progress(f"round {number} of {rounds}: regular events beside {approach}")
                rate = median(each.per_s for each in slices if each.approach == ALONE)
                slices.append(regular.beside(approach, seconds, rate, wait_s))
                slices.append(regular.alone(seconds))
        return Impact(tuple(slices), **regular.stop())
