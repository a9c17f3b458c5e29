"""What the experiment with one order across topics does, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from motet.errors import MisuseError
from motet_labs.experiments import paper4
from motet_labs.experiments.stamp_sizes import SizeEffort

SIZES: Final = "sizes"
PUBLISHED: Final = "published"
RATES: Final = "rates"
SUBSCRIPTIONS: Final = "subscriptions"
PLACEMENT: Final = "placement"
BEYOND: Final = "beyond"
"""Loads of the part `rates` above those of the paper."""
PARTS: Final = (SIZES, PUBLISHED, RATES, SUBSCRIPTIONS, PLACEMENT)

SIZE_EFFORT: Final = SizeEffort(
    clients=paper4.SIZE_CLIENTS,
    topics=paper4.TOPICS,
    each=tuple(total // paper4.SIZE_CLIENTS for total in paper4.SIZE_TOTALS),
    warm_up=20_000,
    events=40_000,
)


@dataclass(frozen=True)
class OrderingPlan:
    parts: tuple[str, ...] = PARTS
    sizes: SizeEffort = SIZE_EFFORT
    runs: int = 500
    """Random runs of the algorithm as published, for each reading and kind of trouble."""
    seeds: int = 40
    """Of the simulator, for ours."""
    shapes: tuple[str, ...] = paper4.SHAPES
    topics: int = paper4.TOPICS
    clients: int = paper4.CLIENTS
    each: int = paper4.EACH
    rates: tuple[int, ...] = paper4.RATES
    beyond: tuple[int, ...] = (20_000, 40_000, 60_000)
    """Rates above those of the paper, until the machine does not keep up."""
    fixed_rate: int = paper4.FIXED_RATE
    more: tuple[int, ...] = (10, 20, 50, 100)
    """Topics of each client, as subscriptions grow."""
    cases: tuple[tuple[str, str], ...] = (
        ("geographic", "pairs"),
        ("geographic", "causal"),
        ("spray", "pairs"),
    )
    """Shape and mode, placed in two ways, at the highest rate."""
    draw: int = 5
    """Which subscriptions are drawn. The floor depends on it much: of the first ten draws of the
    geographic shape this one has the highest."""
    draws: int = 10
    """Whose floors are shown."""
    warm_s: float = 1.5
    seconds: float = 8.0
    """Of each load."""
    beyond_s: float = 3.0
    """Of each load above the rates of the paper."""
    attempts: int = 3
    """How often a load is run at most, if other processes disturb it."""
    patient_s: float = 600.0
    """Later, no load is run again."""
    limit_s: float = 1100.0
    """No sites are started later."""
    expected_s: float = 600.0
    quick: bool = False

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise MisuseError(f"unknown part {part!r}; choose from {', '.join(PARTS)}")


FULL: Final = OrderingPlan()
QUICK: Final = OrderingPlan(
    sizes=SizeEffort(
        clients=2000, topics=paper4.TOPICS, each=(1, 10, 50), warm_up=4000, events=4000
    ),
    runs=60,
    seeds=4,
    rates=(1000, 10_000),
    beyond=(20_000,),
    more=(10, 50),
    cases=(("geographic", "pairs"),),
    draws=3,
    warm_s=0.7,
    seconds=2.0,
    attempts=1,
    limit_s=600.0,
    expected_s=110.0,
    quick=True,
)
