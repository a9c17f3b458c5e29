"""Seeded worlds of filters and events, each made to reach some part of the engines.

The small grid of `tests.unit.model.strategies` finds edges; these worlds find what needs numbers:
learnt cells, homes of points, of rare attributes and of hops, blocks that grow and shrink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from math import inf, nan
from random import Random

import pytest

from motet.matching import FilterIndex, NaiveIndex, create_index
from motet.model import Filter, Value, attr
from motet.model.filters import EVERYTHING

Event = dict[str, Value]

HAS_NATIVE = find_spec("motet.matching._native") is not None
ENGINES = ("native", "python") if HAS_NATIVE else ("python",)
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="the native matcher is not built")

_NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@dataclass(frozen=True)
class World:
    name: str
    filter: Callable[[Random], Filter]
    event: Callable[[Random], Event]
    hops: tuple[int, ...] = (0, 1, 2)


def some_value(random: Random) -> Value:
    """Values of all types, with those that prototypes got wrong."""
    match random.randrange(8):
        case 0:
            return random.choice((True, False))
        case 1:
            return random.choice((0.0, -0.0, inf, -inf, 2.0**53, 2.0**63, -(2.0**63), 5e-324))
        case 2:
            return random.choice((2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**62 + 1, 0, 1))
        case 3:
            return random.choice(("", "a", "ab", "a\0", "é", "\U0001f600", "\ue000", "\uffff"))
        case 4:
            return f"topic/{random.randrange(50)}"
        case 5:
            return _NOON + timedelta(microseconds=random.randrange(20))
        case 6:
            return random.randrange(100)
        case _:
            return random.random() * 100


def some_predicate(random: Random, name: str) -> Filter:
    subject, value = attr(name), some_value(random)
    match random.randrange(9):
        case 0 | 1:
            return subject == value
        case 2:
            return subject != value
        case 3:
            return subject < value
        case 4:
            return subject >= value
        case 5:
            return subject.isin([some_value(random) for _ in range(random.randrange(1, 6))])
        case 6:
            return subject.startswith(random.choice(("", "a", "topic/1")))
        case 7:
            return subject.is_null()
        case _:
            return subject.is_not_null()


def _mixed_conjunction(random: Random, names: list[str]) -> Filter:
    whole = EVERYTHING
    for name in random.sample(names, random.randrange(4)):
        whole &= some_predicate(random, name)
    return whole


def mixed(attribute_count: int, hops: tuple[int, ...]) -> World:
    """Everything at once: all types, unions, unconstrained filters."""
    names = [f"x{i}" for i in range(attribute_count)]

    def made(random: Random) -> Filter:
        whole = _mixed_conjunction(random, names)
        while random.random() < 0.2:
            whole |= _mixed_conjunction(random, names)
        return whole

    def event(random: Random) -> Event:
        present = random.sample(names, random.randrange(min(20, attribute_count) + 1))
        return {name: nan if random.random() < 0.05 else some_value(random) for name in present}

    return World(f"mixed over {attribute_count} attributes", made, event, hops)


def topics(random: Random) -> Filter:
    whole = attr("topic") == f"sensors/{random.randrange(2000)}"
    if random.random() < 0.7:
        whole &= attr("level") > random.random()
    if random.random() < 0.05:
        whole |= attr("level") > 0.999
    return whole


def topic_event(random: Random) -> Event:
    return {"topic": f"sensors/{random.randrange(2000)}", "level": random.random()}


def tenants(random: Random) -> Filter:
    tenant = random.randrange(60)
    whole = (attr(f"t{tenant}.x") > random.random()) & (attr("kind") == random.randrange(3))
    if random.random() < 0.1:
        whole &= attr(f"rare{random.randrange(300)}").is_null()
    if random.random() < 0.1:
        whole &= attr(f"rare{random.randrange(300)}") == 1
    return whole


def tenant_event(random: Random) -> Event:
    made: Event = {f"t{random.randrange(60)}.x": random.random(), "kind": random.randrange(3)}
    if random.random() < 0.3:
        made[f"rare{random.randrange(300)}"] = random.randrange(2)
    return made


def ranges(shift: float = 0.0) -> World:
    """Ranges on three attributes around `shift`: to move the distribution, move the shift."""

    def made(random: Random) -> Filter:
        whole = EVERYTHING
        for name in random.sample("abc", random.randrange(1, 4)):
            low = shift + random.random()
            whole &= attr(name).between(low, low + random.random() / 4)
        return whole

    def event(random: Random) -> Event:
        return {name: shift + random.random() for name in "abc"}

    return World(f"ranges around {shift}", made, event)


WORLDS = (
    mixed(6, (0, 1, 2)),
    mixed(100, (0, 63, 64, 65, 1000)),
    World("topics", topics, topic_event, (0, 1, 70)),
    World("tenants", tenants, tenant_event, tuple(range(200))),
    ranges(),
)


class Twins:
    """The engines, which live through the same, and the naive index as their measure."""

    def __init__(self) -> None:
        self.engines: list[FilterIndex] = [create_index(engine) for engine in ENGINES]
        self.measure = NaiveIndex()
        self.keys: list[int] = []
        self.filters: dict[int, Filter] = {}

    def add(self, key: int, filter: Filter, hop: int) -> None:
        for index in (self.measure, *self.engines):
            index.add(key, filter, hop)
        self.keys.append(key)
        self.filters[key] = filter

    def remove(self, key: int) -> None:
        for index in (self.measure, *self.engines):
            index.remove(key)
        self.keys.remove(key)
        del self.filters[key]

    def fill(self, world: World, random: Random, count: int) -> None:
        for _ in range(count):
            self.add(random.randrange(2**63), world.filter(random), random.choice(world.hops))

    def thin(self, random: Random, count: int) -> None:
        for key in random.sample(self.keys, count):
            self.remove(key)

    def check_event(self, event: Event) -> None:
        keys, hops = self.measure.match(event), self.measure.hops(event)
        for index in self.engines:
            assert index.match(event) == keys, event
            assert index.hops(event) == hops, event

    def check_filter(self, filter: Filter) -> None:
        for question in ("overlapping", "overlapping_hops", "covering", "covered"):
            expected = getattr(self.measure, question)(filter)
            for index in self.engines:
                assert getattr(index, question)(filter) == expected, (question, filter)
