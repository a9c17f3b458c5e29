"""The behaviour of simulated applications: random trees, random clients, a small space of filters.

The space is small on purpose: overlaps, covering and misses are all frequent, and operations are
close enough in time to cross each other on the way.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from msgspec import Struct

from motet.model import Filter, Value
from motet.model.coverage import RETRACT, Covering
from motet.protocol.delivery.stream import Limits
from motet.testing.topology import Tree, random_tree

KEPT_BY_MOST = 100_000
KEPT_BY_SOME = (3, 20)
KEPT_IN_LOGS = (3, 40)
TOPICS = ("a", "ab", "b", "c")
LEVELS = range(8)

FILTERS = (
    "topic = 'a'",
    "topic = 'ab'",
    "topic = 'b'",
    "topic = 'c'",
    "topic like 'a%'",
    "topic in ('a', 'b')",
    "topic in ('b', 'c')",
    "topic is not null",
    "level < 4",
    "level >= 4",
    "level between 2 and 5",
    "level = 3",
    "level is null",
    "topic = 'a' and level < 4",
    "topic = 'a' and level >= 2",
    "topic = 'b' and level between 3 and 4",
    "topic = 'c' and level = 7",
    "topic like 'a%' and level > 5",
    "topic = 'a' or level = 7",
    "(topic = 'b' and level < 3) or (topic = 'c' and level > 4)",
    "topic = 'a' or topic = 'ab' or topic = 'b'",
    "(topic = 'a' and level < 4) or (topic = 'a' and level >= 4)",
    "urgent = true",
    "urgent = true and topic = 'b'",
)


@cache
def filters() -> tuple[Filter, ...]:
    return tuple(Filter.parse(text) for text in FILTERS)


@cache
def narrow_filters() -> tuple[Filter, ...]:
    """Each matches few events, and none that another one matches: every omission is noticed."""
    return tuple(
        Filter.parse(f"topic = '{topic}' and level between {low} and {low + 1}")
        for topic in TOPICS
        for low in LEVELS[::2]
    )


@cache
def points() -> tuple[tuple[tuple[str, Value], ...], ...]:
    """Every possible event, as attribute pairs."""
    found: list[tuple[tuple[str, Value], ...]] = []
    for topic in TOPICS:
        for level in (*LEVELS, None):
            for urgent in (None, True):
                pairs: list[tuple[str, Value]] = [("topic", topic)]
                if level is not None:
                    pairs.append(("level", level))
                if urgent is not None:
                    pairs.append(("urgent", urgent))
                found.append(tuple(pairs))
    return tuple(found)


@cache
def inside(wanted: Filter) -> tuple[tuple[tuple[str, Value], ...], ...]:
    """The events that match a filter."""
    return tuple(point for point in points() if wanted.matches(dict(point)))


class WorkloadPlan(Struct, frozen=True):
    """How busy one run is. Drawn from the seed before the run starts."""

    covering: Covering
    clients: int
    chaos_s: float
    action_s: float
    """The mean time between two actions of all clients together."""
    burst: float
    """The chance that the next action follows immediately."""
    lease_s: float
    sync: float
    """The share of the menu's longest sync time that journals take here."""
    timeouts_s: tuple[float, ...]
    local: float
    """The chance that an operation waits for its own broker only."""
    hop_s: tuple[float, float]
    """The shortest and the longest duration of an undisturbed hop between brokers."""
    control_chunk: int
    """Messages per control frame: single ones show what batches would hide."""
    weights: tuple[float, ...]
    sure: bool = False
    """Brokers have pubends, and events are exactly-once."""
    sure_share: float = 0.9
    """The share of exactly-once events, if brokers offer them."""
    outbox_bound: int = KEPT_BY_MOST
    """How many messages a broker keeps for an absent neighbour."""
    rewiring: bool = False
    """Whether links are removed from the overlay and added again."""
    mates: dict[str, tuple[str, ...]] = {}
    """Brokers that are cells, and their mates."""
    narrow: bool = False
    """Whether each subscription matches few events."""
    limits: Limits = Limits()
    """How much brokers remember of streams, and how much a client may leave unacknowledged."""
    kept_events: int | None = None
    """How many owed events a pubend's log keeps; None: all of them."""
    process_s: float = 0.05
    """The longest time that an application takes to process what it got."""
    durable: float = 0.0
    """The share of clients whose sessions outlive their processes."""
    keep_s: float = 60.0
    """How long they do."""
    since: float = 0.0
    """The share of subscriptions that reach into the past."""
    total_order: float = 0.0
    """The share of clients in total order."""
    skew_s: float = 0.0
    """The largest difference between the clocks of two brokers with pubends."""
    deal_s: float = 0.0
    """The mean time between two transactions; 0: there are none."""
    fair_s: float = 0.0
    """How long clients continue with them after faults have stopped."""
    root: str = ""
    """The broker that decides them."""
    move_s: float = 0.0
    """The mean time between two clients that move; 0: none does."""
    hosted: int = 0
    """How many clients brokers run in their containers."""
    hosted_s: float = 0.3
    """The mean time between two moves of these."""
    harmed: float = 0.3
    """The share of moves that are disturbed on purpose, if there are faults at all."""


ACTIONS = ("publish", "subscribe", "advertise", "unsubscribe", "unadvertise", "goodbye", "arrive")


def draw_tree(random: Random) -> Tree:
    return random_tree(random)


def draw_plan(random: Random) -> WorkloadPlan:
    churny = random.random() < 0.5
    weights = (
        (50.0, 14.0, 8.0, 9.0, 5.0, 1.5, 2.0) if churny else (80.0, 8.0, 4.0, 4.0, 2.0, 1, 1.5)
    )
    widening = random.random()
    return WorkloadPlan(
        covering=RETRACT if widening < 0.15 else widening < 0.4,
        clients=random.randint(4, 10),
        chaos_s=random.uniform(4.0, 9.0),
        action_s=random.choice((0.012, 0.02, 0.035)),
        burst=random.choice((0.0, 0.3, 0.6)),
        lease_s=random.choice((2.0, 5.0, 15.0)),
        sync=random.choice((0.0, 0.0, 0.5, 1.0)),
        timeouts_s=random.choice(((10.0,), (10.0, 3.0), (5.0, 1.0, 0.2, 0.02))),
        local=random.choice((0.0, 0.1, 0.25)),
        hop_s=random.choice(((0.001, 0.01), (0.001, 0.01), (0.001, 0.05))),
        control_chunk=random.choice((512, 512, 3, 1, 1)),
        weights=weights,
    )


def draw_overlay(seed: int) -> dict[str, Any]:
    """In a quarter of the runs so little is kept for absent neighbours that some are given up; in a
    quarter, links come and go. Uses a random generator of its own, so that a seed's other draws do
    not depend on it."""
    random = Random(f"overlay {seed}")
    bound = random.randint(*KEPT_BY_SOME)
    return {
        "outbox_bound": bound if random.random() < 0.25 else KEPT_BY_MOST,
        "rewiring": random.random() < 0.25,
        "total_order": random.choice((0.0, 0.3, 0.7)),
        "skew_s": random.choice((0.0, 0.05, 3.0)),
    }


def draw_cells(seed: int, tree: Tree, share: float) -> dict[str, Any]:
    """Inner brokers are mostly cells, those at the rim sometimes. In most of these runs
    subscriptions are narrow, so that no wider one hides what a stale mate omits."""
    random = Random(f"cells {seed}")
    if random.random() >= share:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    narrow = random.random() < 0.7
    for name in tree.brokers:
        inner = len(tree.neighbours[name]) > 1
        if random.random() < (0.8 if inner else 0.12):
            count = random.choice((1, 1, 2))
            found[name] = tuple(f"{name}m{number}" for number in range(1, count + 1))
    return {"mates": found, "narrow": narrow}


TIGHT = Limits(
    memory_events=12, memory_bytes=8 << 10, piece_events=3, window_events=6, known_ranges=4
)
"""So little that nearly every run reaches every limit."""


def draw_delivery(seed: int) -> dict[str, Any]:
    """With exactly-once events: in half of the runs brokers have hardly any memory, in some logs
    keep too little, in some applications are slow. Uses a random generator of its own, too."""
    random = Random(f"delivery {seed}")
    kept = random.randint(*KEPT_IN_LOGS)
    return {
        "sure": True,
        "covering": False,
        "limits": TIGHT if random.random() < 0.5 else Limits(),
        "kept_events": kept if random.random() < 0.25 else None,
        "process_s": random.choice((0.05, 0.05, 0.5)),
        "durable": random.choice((0.0, 0.3, 0.6)),
        "keep_s": random.choice((2.0, 10.0, 60.0)),
        "since": random.choice((0.0, 0.2)),
    }


def draw_deals(seed: int, tree: Tree) -> dict[str, Any]:
    """Transactions need a root, which any broker can be; no cells, and little total order."""
    random = Random(f"root {seed}")
    return {
        "root": random.choice(tree.brokers),
        "deal_s": random.choice((0.05, 0.08, 0.15)),
        "fair_s": 2.0,
        "chaos_s": random.uniform(3.0, 6.0),
        "mates": {},
        "total_order": random.choice((0.0, 0.0, 0.2)),
    }


def draw_moves(seed: int, deals: bool) -> dict[str, Any]:
    """Clients move: no cells, no covering. In some runs more events are best-effort. A client in an
    open transaction cannot move, so there are fewer of them. In half of the runs some clients are
    hosted; these draws do not change the others."""
    random = Random(f"moves {seed}")
    found = {
        "move_s": random.choice((0.04, 0.08, 0.15)),
        "sure_share": random.choice((0.9, 0.9, 0.5, 0.1)),
        "covering": False,
        "mates": {},
    }
    hosted = Random(f"hosted {seed}")
    found["hosted"] = hosted.choice((0, 0, 0, 1, 1, 2))
    found["hosted_s"] = hosted.choice((0.15, 0.3, 0.6))
    if deals:
        found |= {
            "deal_s": random.choice((0.1, 0.2, 0.4)),
            "chaos_s": random.uniform(4.0, 7.0),
        }
    return found


class Workload:
    """One random action of one client at a time."""

    def __init__(self, random: Random, plan: WorkloadPlan) -> None:
        self._random = random
        self._plan = plan

    def next_action_s(self) -> float:
        if self._random.random() < self._plan.burst:
            return 0.0
        return self._random.expovariate(1.0 / self._plan.action_s)

    def draw_action(self) -> str:
        return self._random.choices(ACTIONS, self._plan.weights)[0]

    def draw_filter(self, action: str = "") -> Filter:
        random = self._random
        if self._plan.narrow and action == "subscribe":
            return random.choice(narrow_filters())
        known = filters()
        if random.random() < 0.1:
            return random.choice(known) | random.choice(known)
        return random.choice(known)

    def draw_wait(self) -> bool:
        return self._random.random() >= self._plan.local

    def draw_timeout_s(self) -> float:
        return self._random.choice(self._plan.timeouts_s)

    def draw_event(self, advertised: list[Filter]) -> dict[str, Value]:
        """Mostly an event that the client may publish, sometimes one that it may not."""
        random = self._random
        if advertised and random.random() < 0.93:
            return dict(random.choice(inside(random.choice(advertised))))
        return dict(random.choice(points()))
