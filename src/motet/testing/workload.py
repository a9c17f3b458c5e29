"""What the simulated applications do: random trees, random clients, a small space of filters.

The space is small on purpose: overlaps, covering and misses are all frequent, and operations
come close enough together in time to cross each other on the way.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from msgspec import Struct

from motet.model import Filter, Value
from motet.testing.topology import Tree, random_tree

KEPT_BY_MOST = 100_000
KEPT_BY_SOME = (3, 20)
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
def points() -> tuple[tuple[tuple[str, Value], ...], ...]:
    """Every event there can be, as attribute pairs."""
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


class Plan(Struct, frozen=True):
    """How busy one run is. Drawn from the seed before anything happens."""

    covering: bool
    clients: int
    chaos_s: float
    action_s: float
    """The mean time between two actions of all clients together."""
    burst: float
    """The chance that the next action follows at once."""
    lease_s: float
    sync: float
    """How much of the menu's longest sync time the journals here take."""
    timeouts_s: tuple[float, ...]
    local: float
    """The chance that an operation is to hold here only."""
    hop_s: tuple[float, float]
    """The shortest and the longest time of one undisturbed hop between brokers."""
    control_chunk: int
    """Messages per control frame: one by one shows what batches would hide."""
    weights: tuple[float, ...]
    outbox_bound: int = KEPT_BY_MOST
    """What a broker keeps for a neighbour that stays away."""
    rewiring: bool = False
    """Whether links are taken out of the overlay, and put back."""


ACTIONS = ("publish", "subscribe", "advertise", "unsubscribe", "unadvertise", "goodbye", "arrive")


def draw_tree(random: Random) -> Tree:
    return random_tree(random)


def draw_plan(random: Random) -> Plan:
    churny = random.random() < 0.5
    weights = (
        (50.0, 14.0, 8.0, 9.0, 5.0, 1.5, 2.0) if churny else (80.0, 8.0, 4.0, 4.0, 2.0, 1, 1.5)
    )
    return Plan(
        covering=random.random() < 0.4,
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
    """In one run of four, so little is kept for the absent that some are given up; in one of
    four, links come and go. From a source of its own: what else a seed draws does not depend on
    it."""
    random = Random(f"overlay {seed}")
    bound = random.randint(*KEPT_BY_SOME)
    return {
        "outbox_bound": bound if random.random() < 0.25 else KEPT_BY_MOST,
        "rewiring": random.random() < 0.25,
    }


class Workload:
    """One action at a time, by one client at a time, all by chance."""

    def __init__(self, random: Random, plan: Plan) -> None:
        self._random = random
        self._plan = plan

    def next_action_s(self) -> float:
        if self._random.random() < self._plan.burst:
            return 0.0
        return self._random.expovariate(1.0 / self._plan.action_s)

    def draw_action(self) -> str:
        return self._random.choices(ACTIONS, self._plan.weights)[0]

    def draw_filter(self) -> Filter:
        random = self._random
        known = filters()
        if random.random() < 0.1:
            return random.choice(known) | random.choice(known)
        return random.choice(known)

    def draw_wait(self) -> bool:
        return self._random.random() >= self._plan.local

    def draw_timeout_s(self) -> float:
        return self._random.choice(self._plan.timeouts_s)

    def draw_event(self, advertised: list[Filter]) -> dict[str, Value]:
        """Mostly something the client may publish; sometimes something it may not."""
        random = self._random
        if advertised and random.random() < 0.93:
            return dict(random.choice(inside(random.choice(advertised))))
        return dict(random.choice(points()))
