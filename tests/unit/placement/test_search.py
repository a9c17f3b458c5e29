"""The search finds the best placement of small graphs, and a good one of the paper's workload."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest

from motet.errors import MisuseError
from motet.placement.graph import LinkDelays, TopicGraph, TopicPlacement
from motet.placement.prediction import predict
from motet.placement.search import _Search, _State, best_placement
from tests.unit.placement import worlds


def mean_ms(graph: TopicGraph, placed: TopicPlacement, mode: str) -> float:
    return predict(graph, placed, worlds.delays(graph), mode).mean_ms


@pytest.mark.parametrize("mode", ["causal", "pairs"])
@pytest.mark.parametrize("seed", range(6))
def test_no_placement_of_a_small_graph_is_better(seed: int, mode: str) -> None:
    graph = worlds.small(seed, topics=5)
    found = best_placement(graph, worlds.delays(graph), mode)
    least = min(
        mean_ms(graph, TopicPlacement(line, dict(zip(graph.topics, homes, strict=True))), mode)
        for line in permutations(graph.sites)
        for homes in product(graph.sites, repeat=len(graph.topics))
    )
    assert mean_ms(graph, found, mode) == pytest.approx(least)


@pytest.mark.parametrize("mode", ["causal", "pairs"])
@pytest.mark.parametrize("seed", range(20))
def test_the_cost_that_the_search_keeps_is_the_predicted_one(seed: int, mode: str) -> None:
    dice = random.Random(seed)
    graph = worlds.small(seed, topics=12, sites=4)
    delays = LinkDelays.uniform(graph.sites, 5, 80, {("S1", "S3"): 20, ("S2", "S4"): 150})
    search = _Search(graph, delays, mode)
    state = _State(search, graph.sites, [dice.choice(graph.sites) for _ in search.topics])
    for _ in range(100):
        topic = dice.randrange(len(search.topics))
        there = dice.choice([at for at in range(4) if at != state.home[topic]])
        state.move(topic, there, state.gain(topic, there))
        placed = TopicPlacement(state.line, dict(zip(search.topics, state.homes, strict=True)))
        assert state.cost / search.total == pytest.approx(
            predict(graph, placed, delays, mode).mean_ms
        )


@pytest.mark.parametrize(
    ("mode", "least_local", "most_ms"), [("pairs", 0.9, 71), ("causal", 0.89, 166)]
)
def test_the_papers_geographic_workload(mode: str, least_local: float, most_ms: float) -> None:
    graph = worlds.geographic(clients=1000, publications=50_000)
    before = worlds.by_name(graph)
    planned = best_placement(graph, worlds.delays(graph), mode, current=before, rounds=0)
    found = predict(graph, planned, worlds.delays(graph), mode)
    assert found.local >= least_local
    assert found.mean_ms <= most_ms
    assert found.mean_ms < 0.6 * mean_ms(graph, before, mode)
    assert set(planned.homes) == set(graph.topics)


def test_the_same_seed_gives_the_same_plan_whatever_the_order_of_the_graph() -> None:
    graph = worlds.small(3, topics=40, sites=4)
    again = TopicGraph(
        graph.sites,
        dict(reversed(graph.counts.items())),
        dict(reversed(graph.shared.items())),
    )
    plans = [best_placement(each, worlds.delays(each), "causal", seed=7) for each in (graph, again)]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_is_never_worse_than_the_current_placement(seed: int) -> None:
    graph = worlds.small(seed, topics=15, sites=6)
    dice = random.Random(seed)
    line = tuple(dice.sample(graph.sites, 6))
    current = TopicPlacement(line, {topic: dice.choice(line) for topic in graph.topics})
    found = best_placement(graph, worlds.delays(graph), "causal", current=current, rounds=1)
    assert mean_ms(graph, found, "causal") <= mean_ms(graph, current, "causal") + 1e-6


def test_progress_tells_each_round_and_a_mean_that_never_grows() -> None:
    graph = worlds.small(1, topics=20)
    told: list[tuple[int, int, float]] = []
    found = best_placement(
        graph, worlds.delays(graph), "causal", rounds=4, progress=lambda *each: told.append(each)
    )
    assert [(done, rounds) for done, rounds, _ in told] == [(done, 4) for done in range(5)]
    means = [ms for _, _, ms in told]
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx(mean_ms(graph, found, "causal"))


def test_one_site_and_no_topics_are_plans_too() -> None:
    one = worlds.small(1, sites=1)
    assert set(best_placement(one, worlds.delays(one), "causal").homes.values()) == {"S1"}
    empty = TopicGraph(("S1", "S2"))
    assert best_placement(empty, worlds.delays(empty), "pairs").homes == {}


def test_misuse_is_named() -> None:
    graph = worlds.small(1)
    other = TopicPlacement(("S1", "S2"), {})
    with pytest.raises(MisuseError, match="the current line has the sites S1, S2, and the graph"):
        best_placement(graph, worlds.delays(graph), "causal", current=other)
    with pytest.raises(MisuseError, match="needs a site"):
        best_placement(TopicGraph(()), LinkDelays.uniform((), 1, 1), "causal")
