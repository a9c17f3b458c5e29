"""A process of a durable client may be outdated although its session survived."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from motet.model import Filter
from motet.testing import durable_clients
from motet.testing.bugs.catalogue import patched
from motet.testing.cluster import Cluster
from motet.testing.faults import profile
from motet.testing.simulation import CHECKERS, _surroundings

WANTED = Filter.parse("level >= 0")


class Partition:
    """Two brokers that cannot hear each other open a session each for two processes of one client;
    the newer process dies, and the session of the older one survives."""

    def __init__(self) -> None:
        menu = replace(profile("calm"), sure=True)
        needs = {"durable": 1.0, "keep_s": 60.0, "kept_events": None, "total_order": 0.0}
        clusters = (Cluster(seed, menu, needs=needs) for seed in range(100))
        self.cluster = next(each for each in clusters if len(each.tree.brokers) == 2)

    def chaos(self) -> None:
        cluster, agenda = self.cluster, self.cluster.agenda
        here, there = cluster.tree.brokers
        (wire,) = cluster.wires.values()
        wire.cut += 1
        for broker in cluster.brokers.values():
            broker.start(remember=False)
        publisher = cluster.arrive("", here)
        agenda.run(1.0)
        self.older = cluster.arrive("", here)
        agenda.run(2.0)
        self.newer = cluster.arrive(self.older.name, there)
        agenda.run(3.0)
        self.newer.kill()
        wire.cut -= 1
        publisher.ask("advertise", WANTED, wait=True, timeout_s=10.0)
        self.older.ask("subscribe", WANTED, wait=True, timeout_s=10.0)
        cluster.acting = False


def test_an_outdated_process_is_replaced_before_the_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(durable_clients, "OWN", 1.0)
    monkeypatch.setattr(durable_clients, "CARELESS", 0.0)
    partition = Partition()
    cluster = partition.cluster
    cluster.chaos = partition.chaos  # type: ignore[method-assign]
    with patched(_surroundings(cluster)):
        cluster.run()
    assert partition.older.session is not None
    assert partition.older.over, "its application has begun a newer process"
    last = cluster.clients[-1]
    assert last.session is not None
    assert last.open
    assert last.session.epoch == partition.older.session.epoch, "the session goes on"
    assert [each for each in cluster.history.effects if each.instance == last.instance]
    assert not cluster.history.oddities
    for checker in CHECKERS:
        verdict = checker.check(cluster.history)
        assert not verdict.violations, verdict.violations
