"""Links that are taken out of the overlay while it runs, and put back later.

A broker that is told so dismisses a neighbour from which nothing is in force. The neighbour does
not know: it goes on calling, and is turned away. When it is a neighbour again, both begin anew.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING

from motet.protocol.contract import Reconfigured
from motet.testing.topology import edge_of

if TYPE_CHECKING:
    from motet.testing.brokers import SimulatedBroker
    from motet.testing.cluster import Cluster

PACE_S = 0.4
APART_S = (0.1, 3.0)


class Rewiring:
    """From a source of chance of its own: what else a seed draws does not depend on it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(f"rewiring {seed}")
        self._running = False

    def begin(self) -> None:
        menu = self._cluster.menu
        self._running = self._cluster.plan.rewiring and bool(menu.cut or menu.kill)
        self._next()

    def stop(self) -> None:
        """Everybody who is up gets its neighbours back."""
        self._running = False
        for broker in self._cluster.brokers.values():
            self._put_back(broker)

    def _next(self) -> None:
        if self._running:
            delay_s = self._random.expovariate(1.0 / PACE_S)
            self._cluster.agenda.after(delay_s, self._take_out)

    def _take_out(self) -> None:
        if not self._running:
            return
        self._next()
        cluster = self._cluster
        ends = [
            (broker, neighbour)
            for broker in cluster.brokers.values()
            if broker.core is not None
            for neighbour in broker.core.links
            if not broker.core.objection_to(_without(broker, neighbour))
        ]
        if not ends:
            return
        broker, neighbour = self._random.choice(ends)
        now, edge = cluster.agenda.now, edge_of(broker.name, neighbour)
        cluster.faults["rewired"] = cluster.faults.get("rewired", 0) + 1
        cluster.trace.note(now, f"{broker.name} takes {neighbour} out of its topology")
        # Whoever is behind the link does not know that others go on without it, and when they are
        # together again the news takes its time: only what holds in the end counts here.
        cluster.history.amnesia[edge].touch(now, inf)
        cluster.history.disturbed[edge].begin(now)
        broker.step(Reconfigured(_without(broker, neighbour)))
        cluster.agenda.after(self._random.uniform(*APART_S), self._put_back, broker)

    def _put_back(self, broker: SimulatedBroker) -> None:
        neighbours = self._cluster.tree.neighbours[broker.name]
        if broker.core is not None and set(broker.core.links) != set(neighbours):
            now = self._cluster.agenda.now
            self._cluster.trace.note(now, f"{broker.name} has all its neighbours again")
            broker.step(Reconfigured(neighbours))


def _without(broker: SimulatedBroker, neighbour: str) -> tuple[str, ...]:
    assert broker.core is not None
    return tuple(name for name in broker.core.links if name != neighbour)
