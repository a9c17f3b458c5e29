"""A process of a durable client may be outdated although its session survived."""

from __future__ import annotations

from motet.model import Filter
from tests.sim.durable_pair import assert_clean, durable_pair, play

WANTED = Filter.parse("level >= 0")


class Partition:
    """Two brokers that cannot hear each other open a session each for two processes of one client;
    the newer process dies, and the session of the older one survives."""

    def __init__(self) -> None:
        self.cluster = durable_pair()

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


def test_an_outdated_process_is_replaced_before_the_probes() -> None:
    partition = Partition()
    cluster = partition.cluster
    play(cluster, partition.chaos, own_cursors=True)
    assert partition.older.session is not None
    assert partition.older.over, "its application has begun a newer process"
    last = cluster.clients[-1]
    assert last.session is not None
    assert last.open
    assert last.session.epoch == partition.older.session.epoch, "the session goes on"
    assert [each for each in cluster.history.effects if each.instance == last.instance]
    assert_clean(cluster.history)
