"""Trees of brokers, and the only path between any two of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random

Edge = tuple[str, str]


def edge_of(one: str, two: str) -> Edge:
    """The name of an edge, the same for both directions."""
    return (one, two) if one < two else (two, one)


class Tree:
    """Immutable. Everything is listed in a fixed order."""

    def __init__(self, edges: Sequence[Edge], brokers: Sequence[str] = ()) -> None:
        self.edges = tuple(edge_of(*edge) for edge in edges)
        self.brokers = tuple(sorted({*brokers, *(name for edge in edges for name in edge)}))
        self.neighbours: dict[str, tuple[str, ...]] = {
            name: tuple(sorted(a if b == name else b for a, b in self.edges if name in (a, b)))
            for name in self.brokers
        }
        self._paths: dict[tuple[str, str], tuple[str, ...]] = {}
        self._spans: dict[tuple[str, ...], tuple[str, ...]] = {}
        for name in self.brokers:
            self._walk((name,))

    def _walk(self, path: tuple[str, ...]) -> None:
        self._paths[path[0], path[-1]] = path
        for neighbour in self.neighbours[path[-1]]:
            if neighbour not in path:
                self._walk((*path, neighbour))

    def path(self, start: str, end: str) -> tuple[str, ...]:
        """The brokers from one to another, both included."""
        return self._paths[start, end]

    def edges_between(self, start: str, end: str) -> list[Edge]:
        path = self._paths[start, end]
        return [edge_of(a, b) for a, b in pairwise(path)]

    def span(self, names: Iterable[str]) -> tuple[str, ...]:
        """The brokers of the smallest subtree that has these."""
        key = tuple(names)
        found = self._spans.get(key)
        if found is None:
            paths = (self._paths[key[0], name] for name in key)
            found = self._spans[key] = tuple(dict.fromkeys(b for path in paths for b in path))
        return found

    def edges_within(self, names: Iterable[str]) -> list[Edge]:
        """The edges of the smallest subtree that has these."""
        first, *others = names
        return list(dict.fromkeys(e for name in others for e in self.edges_between(first, name)))

    def behind(self, start: str, through: str) -> list[str]:
        """The brokers that `start` reaches only through `through`, itself included."""
        return [name for name in self.brokers if through in self._paths[start, name]]


def random_tree(random: Random, smallest: int = 2, largest: int = 7) -> Tree:
    """Sometimes a chain, sometimes a star, mostly something in between."""
    size = random.randint(smallest, largest)
    names = [f"B{number}" for number in range(1, size + 1)]
    reach = random.choice((1, 2, size))
    edges = [
        (names[random.randrange(max(0, number - reach), number)], names[number])
        for number in range(1, size)
    ]
    return Tree(edges, names)
