"""Circles among relations: what could not have happened one after the other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def circle(edges: Iterable[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    """Some circle, as its edges; empty if there is none. No recursion: circles may be long."""
    after: dict[Node, list[Node]] = {}
    for first, then in edges:
        after.setdefault(first, []).append(then)
    done: set[Node] = set()
    for start in after:
        if start in done:
            continue
        path: dict[Node, None] = {start: None}
        ways = [iter(after[start])]
        while ways:
            then = next(ways[-1], None)
            if then is None:
                ways.pop()
                done.add(path.popitem()[0])
            elif then in path:
                nodes = list(path)
                return list(pairwise([*nodes[nodes.index(then) :], then]))
            elif then not in done and then in after:
                path[then] = None
                ways.append(iter(after[then]))
    return []
