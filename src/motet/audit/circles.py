"""Cycles in relations: they show operations that cannot have happened one after the other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def circle(edges: Iterable[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    """The edges of some cycle; empty if there is none. Not recursive: cycles may be long."""
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
            new: Node | None = next(ways[-1], None)
            if new is None:
                ways.pop()
                done.add(path.popitem()[0])
            elif new in path:
                nodes = list(path)
                return list(pairwise([*nodes[nodes.index(new) :], new]))
            elif new not in done and new in after:
                path[new] = None
                ways.append(iter(after[new]))
    return []
