"""What a placement is predicted to cost.

A number for topic T goes from the publisher to T's site, up the line through every site to the
highest one of T's group, from there to T's site and back to the publisher. Only links take time:
what queues, disks and processors add comes on top.

A timestamp names a topic of T's group if that was published since T was. With publications that do
not depend on each other, U is in it with the probability u / (u + t), where t and u are their
rates. No placement changes that; it changes how far the timestamp travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from motet.placement.graph import LinkDelays, TopicGraph, TopicPlacement


class PlacementForecast(Struct, frozen=True):
    """Means over all publications."""

    local: float
    """The share of timestamps that one site makes alone."""
    near: float
    """The share of those whose publisher is near to it as well."""
    mean_ms: float
    """From the request for a number to its answer."""
    p95_ms: float
    entries: float
    """In a timestamp."""
    hops: float
    """Messages between sites for a timestamp, with the answer to the first one."""
    busiest: float
    """The share of all timestamps that pass the site which most of them pass."""
    by_site: Mapping[str, float]
    """The share of all timestamps that pass it."""


def predict(
    graph: TopicGraph, placement: TopicPlacement, delays: LinkDelays, mode: str
) -> PlacementForecast:
    line = placement.line
    groups = graph.partners(mode)
    home = {topic: line.index(placement.site_of(topic)) for topic in groups}
    passing = passage_ms(line, delays)
    rates = {topic: sum(places.values()) for topic, places in graph.counts.items()}
    local = near = entries = hops = 0.0
    visits = [0.0] * len(line)
    times: list[tuple[float, float]] = []
    for topic, group in groups.items():
        rate, first = rates[topic], home[topic]
        if not rate:
            continue
        last = max([home[other] for other in group if home[other] > first], default=first)
        for place, count in graph.counts[topic].items():
            times.append((2 * delays.to_site(place, line[first]) + passing[first][last], count))
        if last == first:
            local += rate
            near += graph.counts[topic].get(line[first], 0)
        hops += rate * (last - first + (last > first))
        entries += rate * sum(
            rates[other] / (rates[other] + rate) for other in group if rates[other]
        )
        for position in range(first, last + 1):
            visits[position] += rate
    total = sum(rates.values()) or 1.0
    by_site = {site: visits[position] / total for position, site in enumerate(line)}
    return PlacementForecast(
        local=local / total,
        near=near / total,
        mean_ms=sum(ms * count for ms, count in times) / total,
        p95_ms=_quantile(times, 0.95),
        entries=entries / total,
        hops=hops / total,
        busiest=max(by_site.values()),
        by_site=by_site,
    )


def passage_ms(line: Sequence[str], delays: LinkDelays) -> list[list[float]]:
    """By first and last position: up the line through all between, and back at once."""
    count = len(line)
    found = [[0.0] * count for _ in line]
    for first in range(count):
        way = 0.0
        for last in range(first + 1, count):
            way += delays.between(line[last - 1], line[last])
            found[first][last] = way + delays.between(line[last], line[first])
    return found


def _quantile(weighted: list[tuple[float, float]], share: float) -> float:
    left = share * sum(weight for _, weight in weighted)
    for value, weight in sorted(weighted):
        left -= weight
        if left <= 0:
            return value
    return 0.0
