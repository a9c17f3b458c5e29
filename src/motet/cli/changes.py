"""What has to happen so that a running overlay becomes another one.

Brokers are added and removed at the leaves. Links between brokers that stay cannot change: while
one of the two knew of it and the other not yet, the overlay would be two trees, or none.
"""

from __future__ import annotations

from typing import NamedTuple

from motet.broker.config import SETTLED
from motet.broker.topology import Topology
from motet.errors import TopologyError


class Change(NamedTuple):
    """Each in the order in which it is to be done."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    moved: tuple[str, ...]
    """They stay, but listen elsewhere, so they are restarted."""
    informed: tuple[str, ...]
    """They stay as they are, with other neighbours, or other addresses to call them at."""


def change_between(old: Topology, new: Topology) -> Change:
    """Raises `TopologyError` if a running overlay cannot make this change."""
    for setting in SETTLED:
        before, after = getattr(old, setting), getattr(new, setting)
        if before != after:
            raise TopologyError(
                f"{new.source}: overlay.{setting}: is {before!r} in the running overlay and cannot "
                f"become {after!r}; stop the overlay and start it again"
            )
    if _mates(old) != _mates(new):
        raise TopologyError(
            f"{new.source}: mates cannot change while the overlay runs; stop it and start it again"
        )
    staying = [name for name in old.names if name in new.names]
    if not staying:
        raise TopologyError(f"{new.source}: brokers: none of them is running; start it by itself")
    removed = _outermost_first(old, set(old.names) - set(staying), new.source, "removed")
    added = _outermost_first(new, set(new.names) - set(staying), new.source, "added")
    _check_links(old, new, staying)
    moved = tuple(name for name in staying if old.place(name).listen != new.place(name).listen)
    informed = tuple(
        name for name in staying if name not in moved and _place(old, name) != _place(new, name)
    )
    return Change(removed, added[::-1], moved, informed)


def _mates(topology: Topology) -> dict[str, tuple[tuple[str, str], ...]]:
    return {place.name: place.mates for place in topology.brokers if place.mates}


def _place(topology: Topology, name: str) -> tuple[frozenset[str], dict[str, str]]:
    """How one broker is connected."""
    return frozenset(topology.neighbours(name)), dict(topology.wiring(name).dial)


def _outermost_first(
    topology: Topology, going: set[str], source: str, verb: str
) -> tuple[str, ...]:
    """Take brokers off a tree, each a leaf when its turn comes."""
    near = {name: set(topology.neighbours(name)) for name in topology.names}
    order: list[str] = []
    while leaves := [name for name in topology.names if name in going and len(near[name]) <= 1]:
        for leaf in leaves:
            going.discard(leaf)
            order.append(leaf)
            for other in near.pop(leaf):
                near[other].discard(leaf)
    if going:
        name = next(name for name in topology.names if name in going)
        others = " and ".join(other for other in topology.names if other in near[name])
        raise TopologyError(
            f"{source}: brokers.{name}: cannot be {verb} while the overlay runs: it is not a "
            f"leaf, {others} are linked through it"
        )
    return tuple(order)


def _check_links(old: Topology, new: Topology, staying: list[str]) -> None:
    before, after = (
        {frozenset(edge) for edge in topology.edges if set(edge) <= set(staying)}
        for topology in (old, new)
    )
    for edge in [*old.edges, *new.edges]:
        if frozenset(edge) in before ^ after:
            what = "gone" if frozenset(edge) in before else "new"
            raise TopologyError(
                f"{new.source}: the link {edge[0]}–{edge[1]} is {what}, but both brokers stay; "
                "only links of brokers that are added or removed can change while the overlay runs"
            )
