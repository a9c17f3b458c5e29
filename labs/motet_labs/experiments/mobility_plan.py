"""What the experiment with clients that move does, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from motet.errors import MisuseError
from motet_labs.experiments import paper3
from motet_labs.experiments.shapes import SHAPES, WIDTH, WORKLOADS, Wanted, draw

PARTS: Final = ("workloads", "clients", "single", "incremental", "topology", "wide-area")
WHOLE: Final = "covered, one group"
"""The covered workload with all clients in one group: the first covers all others."""


@dataclass(frozen=True)
class MobilityPlan:
    parts: tuple[str, ...] = PARTS
    workloads: tuple[str, ...] = (*WORKLOADS, WHOLE)
    clients: int = paper3.CLIENTS
    counts: tuple[int, ...] = (paper3.CLIENTS, 700, paper3.MOST_CLIENTS)
    sizes: tuple[int, ...] = (paper3.BROKERS, 20, paper3.MOST_BROKERS)
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
    pause_s: float = 5.0
    slice_s: float = 6.0
    rounds: int = 2
    per_s: float = 10.0
    """Events of each publisher."""
    quick: bool = False

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise MisuseError(f"unknown part {part!r}; choose from {', '.join(PARTS)}")

    def wanted(self, workload: str, clients: int) -> list[Wanted]:
        """The filters of a workload."""
        if workload == WHOLE:
            return draw(SHAPES[0], clients, clients)
        return draw(workload, clients, WIDTH)


FULL: Final = MobilityPlan()
QUICK: Final = MobilityPlan(
    workloads=("covered", "distinct", WHOLE),
    clients=80,
    counts=(80, 200),
    sizes=(paper3.BROKERS, 18),
    crowds=(80,),
    trips=2,
    step=2,
    far_clients=20,
    far_workloads=("covered",),
    pause_s=1.0,
    slice_s=1.2,
    rounds=1,
    quick=True,
)
