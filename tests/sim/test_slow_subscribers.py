"""A subscriber slower than the stream, for an hour: no other client notices, no memory grows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from motet.model import Filter
from motet.protocol.delivery.stream import MOST_ASKED, MOST_CURIOUS, Limits
from motet.testing import brokers
from motet.testing.bugs.catalogue import patched
from motet.testing.checkers import duplicates, exactly_once, order, soundness
from motet.testing.clients import SimulatedClient
from motet.testing.cluster import Cluster
from motet.testing.faults import profile
from motet.testing.simulation import _surroundings

HOUR_S = 3600.0
ROUND_S = 20.0
EVENTS_PER_ROUND = 4
SLOW_S = 8.0
"""What the slow application takes for one event; the stream brings one every five seconds."""
LIMITS = Limits(
    memory_events=60, memory_bytes=64 << 10, piece_events=20, window_events=30, known_ranges=8
)
KEPT_EVENTS = 100
WANTED = Filter.parse("level >= 0")


def overlay(**needs: object) -> Cluster:
    """Some tree of at least three brokers, without faults."""
    menu = replace(profile("calm"), sure=True)
    clusters = (Cluster(seed, menu, needs={"limits": LIMITS, **needs}) for seed in range(100))
    return next(each for each in clusters if len(each.tree.brokers) >= 3)


class Slowly:
    """An application that takes its time for every event, one after the other."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self._free_at = 0.0
        self._begun = 0
        client._process_soon = self.process  # type: ignore[method-assign]

    def process(self, pubend: str, upto: int) -> None:
        agenda = self._client.cluster.agenda
        got = arrived(self._client.cluster, self._client)
        self._free_at = max(agenda.now, self._free_at) + SLOW_S * (got - self._begun)
        self._begun = got
        agenda.at(self._free_at, self._client._process, pubend, upto)


def assert_bounded(cluster: Cluster) -> None:
    for broker in cluster.brokers.values():
        assert broker.core is not None
        for stream in broker.core.streams.machine._streams.values():
            assert stream.memory.events <= LIMITS.memory_events
            assert stream.memory.bytes <= LIMITS.memory_bytes
            assert len(stream.known) <= LIMITS.known_ranges
            assert len(stream.asked) <= MOST_ASKED
            assert all(len(out.curious) <= MOST_CURIOUS for out in stream.outs.values())
            for position in stream.subend.positions.values():
                assert position.unacked <= LIMITS.window_events + LIMITS.piece_events
                assert len(position.outstanding) <= 2 * LIMITS.window_events
        for link in broker.core.links.values():
            assert not link.ledger.outbox
        assert broker.pubend._events <= KEPT_EVENTS + EVENTS_PER_ROUND


def run_for_an_hour(cluster: Cluster) -> tuple[SimulatedClient, SimulatedClient]:
    """Returns the slow subscriber and a fast one at the same broker."""
    ends = [name for name in cluster.tree.brokers if len(cluster.tree.neighbours[name]) == 1]
    for broker in cluster.brokers.values():
        broker.start(remember=False)
    cluster.agenda.run(5.0)
    publisher = cluster.arrive("publisher", ends[0])
    slow, fast = (cluster.arrive(name, ends[-1]) for name in ("slow", "fast"))
    Slowly(slow)
    cluster.agenda.run(6.0)
    publisher.ask("advertise", WANTED, wait=True, timeout_s=10.0)
    for client in (slow, fast):
        client.ask("subscribe", WANTED, wait=True, timeout_s=10.0)
    cluster.agenda.run(10.0)
    while cluster.agenda.now < HOUR_S:
        for level in range(EVENTS_PER_ROUND):
            publisher.publish({"topic": "a", "level": level})
        cluster.agenda.run(cluster.agenda.now + ROUND_S)
        assert_bounded(cluster)
    return slow, fast


def settle(cluster: Cluster) -> None:
    cluster.agenda.run(2 * HOUR_S + HOUR_S)
    cluster._note_what_lives()
    for checker in (exactly_once, duplicates, order, soundness):
        verdict = checker.check(cluster.history)
        assert verdict.checked > 0
        assert not verdict.violations, verdict.violations[:3]


def arrived(cluster: Cluster, client: SimulatedClient) -> int:
    return sum(each.instance == client.instance for each in cluster.history.deliveries)


def test_retention_cuts_what_a_slow_subscriber_needs_and_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brokers, "MOST_STEPS", 1 << 30)
    cluster = overlay(kept_events=KEPT_EVENTS)
    with patched(_surroundings(cluster)):
        slow, fast = run_for_an_hour(cluster)
        sure = [event for event in cluster.history.events if event.sure]
        best_effort = len(cluster.history.events) - len(sure)
        assert arrived(cluster, fast) >= len(sure), "nobody waits for the slow one"
        settle(cluster)
    lost = [loss for loss in cluster.history.losses if loss.instance == slow.instance]
    assert lost
    assert len(lost) == len(cluster.history.losses), "the others lose nothing"
    missed = [
        event for event in sure if any(loss.first <= event.tick <= loss.last for loss in lost)
    ]
    assert missed
    assert len(sure) <= arrived(cluster, slow) + len(missed) <= len(sure) + best_effort
