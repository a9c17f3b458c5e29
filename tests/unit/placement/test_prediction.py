"""What a placement costs, compared with what is counted by hand."""

from __future__ import annotations

import pytest

from motet.errors import MisuseError
from motet.placement.graph import LinkDelays, TopicGraph, TopicPlacement
from motet.placement.prediction import predict


@pytest.fixture
def graph() -> TopicGraph:
    """`a` and `b` are combined by one session, `b` and `c` by two."""
    graph = TopicGraph(("S1", "S2", "S3"))
    graph.published("a", "S1", 60)
    graph.published("b", "S1", 20)
    graph.published("b", "S2", 10)
    graph.published("c", "S3", 10)
    graph.combined(("a", "b"))
    graph.combined(("c", "b"), sessions=2)
    return graph


@pytest.fixture
def delays(graph: TopicGraph) -> LinkDelays:
    return LinkDelays.uniform(graph.sites, 10, 100, {("S1", "S3"): 30})


PLACED = TopicPlacement(("S1", "S2", "S3"), {"a": "S1", "b": "S2", "c": "S3"})


def test_a_number_passes_all_sites_up_to_the_highest_of_its_group(
    graph: TopicGraph, delays: LinkDelays
) -> None:
    found = predict(graph, PLACED, delays, "causal")
    # a: at home, to S2 and back. b: from S1 and S2, to S3 and back. c: at home.
    ms = [(60, 20 + 200), (20, 200 + 200), (10, 20 + 200), (10, 20)]
    assert found.mean_ms == pytest.approx(sum(count * each for count, each in ms) / 100)
    assert found.p95_ms == 400
    assert found.local == pytest.approx(0.1)
    assert found.near == pytest.approx(0.1)
    assert found.hops == pytest.approx(0.9 * 2)
    assert found.by_site == pytest.approx({"S1": 0.6, "S2": 0.9, "S3": 0.4})
    assert found.busiest == pytest.approx(0.9)


def test_in_mode_pairs_one_session_does_not_order_two_topics(
    graph: TopicGraph, delays: LinkDelays
) -> None:
    found = predict(graph, PLACED, delays, "pairs")
    ms = [(60, 20), (20, 200 + 200), (10, 20 + 200), (10, 20)]
    assert found.mean_ms == pytest.approx(sum(count * each for count, each in ms) / 100)
    assert found.local == pytest.approx(0.7)


def test_a_pair_is_ordered_at_its_higher_site_over_all_sites_between(
    graph: TopicGraph, delays: LinkDelays
) -> None:
    placed = TopicPlacement(("S3", "S2", "S1"), {"a": "S1", "b": "S3", "c": "S3"})
    found = predict(graph, placed, delays, "causal")
    # b: from S1 and S2 to S3, over S2 to S1, which answers S3 over their short link.
    ms = [(60, 20), (20, 60 + 230), (10, 200 + 230), (10, 20)]
    assert found.mean_ms == pytest.approx(sum(count * each for count, each in ms) / 100)
    assert found.hops == pytest.approx(0.3 * 3)


def test_entries_are_partners_that_were_published_since(
    graph: TopicGraph, delays: LinkDelays
) -> None:
    found = predict(graph, PLACED, delays, "causal")
    a, b, c = 30 / 90, 60 / 90 + 10 / 40, 30 / 40
    assert found.entries == pytest.approx(0.6 * a + 0.3 * b + 0.1 * c)


def test_a_topic_without_publications_costs_nothing_and_counts_as_a_partner(
    delays: LinkDelays,
) -> None:
    graph = TopicGraph(("S1", "S2", "S3"))
    graph.published("a", "S1", 5)
    graph.combined(("a", "silent"))
    placed = TopicPlacement(graph.sites, {"a": "S1", "silent": "S2"})
    found = predict(graph, placed, delays, "causal")
    assert (found.mean_ms, found.entries) == (220, 0)


def test_nothing_published_is_predicted_as_nothing(delays: LinkDelays) -> None:
    graph = TopicGraph(("S1", "S2", "S3"))
    found = predict(graph, TopicPlacement(graph.sites, {}), delays, "causal")
    assert (found.mean_ms, found.p95_ms, found.local) == (0, 0, 0)


def test_topics_that_no_placement_names_live_elsewhere() -> None:
    placed = TopicPlacement(("S1", "S2"), {"a": "S1"}, elsewhere="S2")
    assert [placed.site_of(topic) for topic in ("a", "b")] == ["S1", "S2"]
    assert TopicPlacement(("S1", "S2"), {}).site_of("b") == "S1"
    assert TopicPlacement.by_name(("S1", "S2"), ["a", "b", "c"]).homes == {
        "a": "S1",
        "b": "S1",
        "c": "S2",
    }


def test_misuse_is_named(graph: TopicGraph) -> None:
    with pytest.raises(MisuseError, match="S9 is none of the sites S1, S2, S3"):
        graph.published("a", "S9")
    with pytest.raises(MisuseError, match="-1 publications"):
        graph.published("a", "S1", -1)
    with pytest.raises(MisuseError, match="unknown mode 'total'; use one of causal, pairs"):
        graph.partners("total")
    with pytest.raises(MisuseError, match="are S1 and S9"):
        LinkDelays.uniform(graph.sites, 10, 100, {("S1", "S9"): 5})
    with pytest.raises(MisuseError, match="a delay is at least 0 ms, not -1"):
        LinkDelays.uniform(graph.sites, 10, -1)
