"""The workload of paper 4: in each region, subscriptions and publications over all topics, by the
same power law; the favourites of a region begin with its own part of the topics.

A rank is a place in the list of favourites, 0 is the first. Topics and regions are numbers from 0
on; sites are named as in the paper, from 1 on, each in the middle of its region.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from heapq import nsmallest
from random import Random
from typing import NamedTuple

from motet.placement.graph import LinkDelays, TopicGraph, TopicPlacement
from motet_labs.experiments import paper4


@cache
def exponent(shape: str, topics: int) -> float:
    from motet.spark.workload.randomness import model  # it loads Spark

    return model(shape, topics).exponent


def weights(power: float, topics: int) -> list[float]:
    """The probability of each rank."""
    rise = 1.0 - power
    ends = [((rank + 1) ** rise - 1.0) / rise for rank in range(topics + 1)]
    return [(one - other) / ends[-1] for one, other in zip(ends[1:], ends[:-1], strict=True)]


class RegionPublication(NamedTuple):
    at_s: float
    region: int
    topic: int


class Regions:
    """As many as sites. Topics belong to the regions in equal parts."""

    def __init__(self, power: float, topics: int, sites: int = paper4.SITES) -> None:
        self.power = power
        self.topics = topics
        self.sites = sites
        self._weights = weights(power, topics)
        self._ends: list[float] = []
        total = 0.0
        for weight in self._weights:
            total += weight
            self._ends.append(total)

    def topic(self, rank: int, region: int) -> int:
        return (rank + region * (self.topics // self.sites)) % self.topics

    def subscriptions(self, clients: int, each: int, seed: int = 1) -> list[tuple[int, ...]]:
        """Different topics of each client; clients belong to the regions in turn. As if drawn one
        by one until there are enough: the ranks whose exponential clocks ring first."""
        dice = Random(f"subscriptions {seed}")
        chosen = []
        for client in range(clients):
            rings = [dice.expovariate(weight) for weight in self._weights]
            ranks = nsmallest(each, range(self.topics), key=rings.__getitem__)
            chosen.append(tuple(self.topic(rank, client % self.sites) for rank in ranks))
        return chosen

    def publications(
        self, per_s: float, seconds: float, pulse_s: float, seed: int = 1
    ) -> Iterator[RegionPublication]:
        """At a fixed rate, in pulses; regions take turns."""
        dice = Random(f"publications {seed}")
        ends, last = self._ends, self._ends[-1]
        made = 0
        for pulse in range(round(seconds / pulse_s)):
            at_s = pulse * pulse_s
            due = round((pulse + 1) * pulse_s * per_s)
            for number in range(made, due):
                region = number % self.sites
                rank = bisect.bisect_left(ends, dice.random() * last)
                yield RegionPublication(at_s, region, self.topic(rank, region))
            made = due

    def graph(self, subscriptions: Iterable[Sequence[int]]) -> TopicGraph:
        """What a planner sees of it: the shares of publications are exact."""
        graph = TopicGraph(tuple(paper4.site(number + 1) for number in range(self.sites)))
        for region, site in enumerate(graph.sites):
            for rank, weight in enumerate(self._weights):
                graph.published(name_of(self.topic(rank, region)), site, weight / self.sites)
        for topics in subscriptions:
            graph.combined(map(name_of, topics))
        return graph


def name_of(topic: int) -> str:
    """Names in alphabetical order are in order of their numbers."""
    return f"t{topic + 1:04d}"


def by_number(topics: int, sites: int = paper4.SITES) -> TopicPlacement:
    """As in the paper: equal parts of the topics, and site 1 is the highest."""
    names = [paper4.site(number + 1) for number in range(sites)]
    homes = TopicPlacement.by_name(names, [name_of(topic) for topic in range(topics)]).homes
    return TopicPlacement(tuple(reversed(names)), homes)


def mean_delays(sites: Sequence[str]) -> LinkDelays:
    near, far = (link.mean_s * 1e3 for link in (paper4.NEAR, paper4.FAR))
    return LinkDelays.uniform(sites, near, far)
