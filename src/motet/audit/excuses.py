"""Which brokers were cut off from each other, because a broker or a link had lost its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import inf
from typing import Any

Row = Mapping[str, Any]
Severed = tuple[str, str, str, float, float]
"""A run, two brokers, the time until which either of them or a link between them had lost its
state, and the same including all brokers on the path."""


def severed(brokers: Iterable[Row], links: Iterable[Row], amnesia: Iterable[Row]) -> list[Severed]:
    """Only pairs of brokers with a loss of state between them."""
    forgot: dict[str, dict[frozenset[str], float]] = {}
    for row in amnesia:
        places = forgot.setdefault(row["run"], {})
        place = frozenset(filter(None, (row["one"], row["other"])))
        places[place] = max(row["until"], places.get(place, -inf))
    if not forgot:
        return []
    trees: dict[str, dict[str, list[str]]] = {}
    for row in brokers:
        trees.setdefault(row["run"], {})[row["broker"]] = []
    for row in links:
        trees[row["run"]][row["one"]].append(row["other"])
        trees[row["run"]][row["other"]].append(row["one"])
    found: list[Severed] = []
    for run, places in forgot.items():
        for path in _paths(trees.get(run, {})):
            links_until = max(
                (places.get(frozenset(e), -inf) for e in pairwise(path)), default=-inf
            )
            members = [places.get(frozenset({name}), -inf) for name in path]
            ends = max(links_until, members[0], members[-1])
            if (all_until := max(links_until, *members)) > -inf:
                found.append((run, path[0], path[-1], ends, all_until))
    return found


def _paths(tree: Mapping[str, list[str]]) -> Iterable[tuple[str, ...]]:
    for name in tree:
        waiting: list[tuple[str, ...]] = [(name,)]
        while waiting:
            path = waiting.pop()
            yield path
            waiting += [(*path, near) for near in tree[path[-1]] if near not in path]
