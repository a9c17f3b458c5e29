"""What a transaction of the dispatching scenario waits for, one thing after the other.

Counted from the protocol, not measured: messages over links between brokers and to clients (hops),
and steps of brokers that must be durable before anything leaves them (one commit of a journal
each). Times what one hop and one fsync cost here, that is the floor of its latency.

A hop from a client to its broker, or from broker to broker, ends in a journaled step; one from a
broker to its client does not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from motet.broker.topology import Topology


@dataclass(frozen=True)
class Path:
    """`hops` over links, of which so many lead `to_clients`."""

    hops: int
    to_clients: int

    @property
    def fsyncs(self) -> int:
        return self.hops - self.to_clients


class Map:
    """How far it is, for clients at these brokers: E, D and the agents."""

    def __init__(self, topology: Topology, places: tuple[str, ...]) -> None:
        self._links: dict[str, list[str]] = {name: [] for name in topology.names}
        for one, other in topology.edges:
            self._links[one].append(other)
            self._links[other].append(one)
        self._root = topology.root or topology.names[0]
        self._places = places

    def _far(self, start: str) -> dict[str, int]:
        found, waiting = {start: 0}, deque([start])
        while waiting:
            here = waiting.popleft()
            for other in self._links[here]:
                if other not in found:
                    found[other] = found[here] + 1
                    waiting.append(other)
        return found

    def path(self, approach: str, agent: int) -> Path:
        """Of a transaction that hands an instance to this agent."""
        coordinator, dispatcher, place = self._places[0], self._places[1], self._places[2 + agent]
        far = self._far(coordinator)
        to_root = far[self._root]
        from_root = self._far(self._root)
        flood = 2 * max(from_root.values())
        # The answer waits for the brokers of those who take part; who advertises is among them.
        decision = 2 * max(from_root[each] for each in (coordinator, dispatcher, place))
        if approach == "S-TX":
            # The plan to our broker, every part to its own and from there to the root; then the
            # decision.
            parts = max(far[each] + from_root[each] for each in (coordinator, dispatcher, place))
            return Path(1 + parts + decision + to_root + 1, 1)
        # Every await of a client is a round trip: E begins, invites, publishes, commits; D invites
        # and unsubscribes, A subscribes, and both answer.
        hops, to_clients = 0, 0
        if approach == "D-TX":
            hops += 2 * to_root + 2 * flood  # opening, and validation
        hops += 2 + 2 + 2 + 2  # E asks, and is answered
        to_clients += 4
        hops += 2 * far[dispatcher] + 1 + 2 + 2 + 1  # D: called, invites, unsubscribes, answers
        to_clients += 3
        to_agent = self._far(dispatcher)[place]
        to_subscribe = 2 * self._far(place)[coordinator]
        hops += 2 * to_agent + 1 + 2 + to_subscribe + 1  # A: called, subscribes, answers
        to_clients += 2
        return Path(hops + 2 * to_root + decision, to_clients)
