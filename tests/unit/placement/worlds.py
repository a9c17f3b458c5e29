"""Graphs of topics for tests: small random ones, and the workload of the paper."""

from __future__ import annotations

import random

from motet.placement.graph import LinkDelays, TopicGraph, TopicPlacement
from motet_labs.bench.sequencers import TOPICS_PER_CLIENT, Draw

TOPICS = 1000
SITES = 5
GEOGRAPHIC = 1.8936
"""The exponent by which 0.5 % of 1,000 topics get 80 % of all choices."""


def small(seed: int, topics: int = 7, sites: int = 3) -> TopicGraph:
    dice = random.Random(seed)
    graph = TopicGraph(tuple(f"S{number}" for number in range(1, sites + 1)))
    names = [f"topic-{number}" for number in range(topics)]
    for name in names:
        graph.published(name, dice.choice(graph.sites), dice.randrange(1, 50))
        graph.published(name, dice.choice(graph.sites), dice.randrange(10))
    for _ in range(topics):
        graph.combined(dice.sample(names, dice.randrange(1, 4)), dice.randrange(1, 3))
    return graph


def delays(graph: TopicGraph) -> LinkDelays:
    return LinkDelays.uniform(graph.sites, near_ms=10, far_ms=100)


def geographic(clients: int, publications: int, seed: int = 1) -> TopicGraph:
    """At each site, 0.5 % of the topics get 80 % of the choices; each site has others."""
    graph = TopicGraph(tuple(f"S{number}" for number in range(1, SITES + 1)))
    draw = Draw(GEOGRAPHIC, TOPICS, seed)

    def name(rank: int, site: int) -> str:
        return f"topic-{(rank + site * (TOPICS // SITES)) % TOPICS:03d}"

    for topic in range(TOPICS):
        graph.published(name(topic, 0), graph.sites[0], 0)
    for client in range(clients):
        graph.combined(name(rank, client % SITES) for rank in draw.different(TOPICS_PER_CLIENT))
    for number in range(publications):
        graph.published(name(draw.topic(), number % SITES), graph.sites[number % SITES])
    return graph


def by_name(graph: TopicGraph) -> TopicPlacement:
    return TopicPlacement.by_name(graph.sites, graph.topics)
