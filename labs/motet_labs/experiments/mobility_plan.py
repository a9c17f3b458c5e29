"""What the experiment with clients that move does, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from motet.errors import MisuseError
from motet_labs.experiments import paper3
from motet_labs.experiments.shapes import SHAPES, WIDTH, WORKLOADS, WantedInterval, draw

PARTS: Final = ("workloads", "clients", "single", "incremental", "topology", "wide-area")
WHOLE: Final = "covered, one group"
"""The covered workload with all clients in one group: the first covers all others."""


@dataclass(frozen=True)
class MobilityPlan:
    parts: tuple[str, ...] = PARTS
    workloads: tuple[str, ...] = (*WORKLOADS, WHOLE)
    clients: int = paper3.CLIENTS
    counts: tuple[int, ...] = (paper3.CLIENTS, 700, paper3.MOST_CLIENTS)
    sizes: tuple[int, ...] = (paper3.BROKERS, paper3.MOST_BROKERS)
    """Of the overlay; the first one is that of all other parts."""
    crowds: tuple[int, ...] = (paper3.CLIENTS, paper3.MOST_CLIENTS)
    """Of which a single client moves."""
    trips: int = 5
    """There and back, of the single client."""
    step: int = paper3.STEP
    """Further movers in each step of the incremental movement."""
    far_clients: int = 100
    far_workloads: tuple[str, ...] = ("covered", "distinct")
    delays_s: tuple[float, ...] = (0.005, 0.010, 0.020)
    """Of the links of the wide area, in turn."""
    pause_s: float = paper3.PAUSE_S
    brisk_pause_s: float = 2.0
    """Of the incremental movement, in which few move."""
    long_pause_s: float = 60.0
    """For all numbers of clients alike: the most of them would otherwise wait for processors, not
    for each other's moves."""
    slice_s: float = 4.0
    long_slice_s: float = 12.0
    """With long pauses."""
    rounds: int = 2
    once: tuple[str, ...] = ("incremental", "wide-area")
    """Parts with one round only."""
    twice: tuple[str, ...] = (WHOLE,)
    """Workloads with twice as many rounds, because the one that covers all others moves seldom."""
    per_s: float = 10.0
    """Events of each publisher."""
    quick: bool = False

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise MisuseError(f"unknown part {part!r}; choose from {', '.join(PARTS)}")

    def rounds_of(self, part: str, workload: str) -> int:
        if part in self.once:
            return 1
        return self.rounds * (2 if part == "workloads" and workload in self.twice else 1)

    def pause_of(self, part: str) -> float:
        paused = {"incremental": self.brisk_pause_s, "clients": self.long_pause_s}
        return paused.get(part, self.pause_s)

    def slice_of(self, part: str) -> float:
        return self.long_slice_s if part == "clients" else self.slice_s

    def wanted(self, workload: str, clients: int) -> list[WantedInterval]:
        """The filters of a workload."""
        if workload == WHOLE:
            return draw(SHAPES[0], clients, clients)
        return draw(workload, clients, WIDTH)


FULL: Final = MobilityPlan()
QUICK: Final = MobilityPlan(
    workloads=("covered", "distinct", WHOLE),
    clients=80,
    counts=(80, 200),
    sizes=(paper3.BROKERS, 16),
    crowds=(80,),
    trips=2,
    step=2,
    far_clients=20,
    far_workloads=("covered",),
    pause_s=1.0,
    brisk_pause_s=0.5,
    long_pause_s=6.0,
    slice_s=1.2,
    long_slice_s=3.0,
    rounds=1,
    twice=(),
    quick=True,
)
