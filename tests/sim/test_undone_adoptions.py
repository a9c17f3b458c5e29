"""A broker may die before the adoption of a durable session is durable: then it never happened."""

from __future__ import annotations

from motet.model import Filter
from tests.sim.durable_pair import assert_clean, durable_pair, play

WANTED, TOO = Filter.parse("level >= 0"), Filter.parse("topic = 'a'")


class Undone:
    """A second process adopts a session, its broker's disk fails, the first process resumes and
    subscribes; then the second one adopts the session again."""

    def __init__(self) -> None:
        self.cluster = durable_pair()

    def chaos(self) -> None:
        cluster, agenda = self.cluster, self.cluster.agenda
        here, there = cluster.tree.brokers
        for each in cluster.brokers.values():
            each.start(remember=False)
        broker = cluster.brokers[here]
        publisher = cluster.arrive("", there)
        self.older = cluster.arrive("", here)
        publisher.ask("advertise", WANTED, wait=True, timeout_s=10.0)
        self.older.ask("subscribe", WANTED, wait=True, timeout_s=10.0)
        agenda.run(1.0)
        written = broker.log.copy()
        broker.fail_disk()
        self.newer = cluster.arrive(self.older.name, here)
        agenda.run(1.4)
        assert broker.core is None
        broker.log.restore(written)  # the disk took nothing of the adoption
        self.newer.stop_reading(entirely=True)  # the older process is the first to come back
        broker.start(remember=True)
        cluster.history.disturbed[here].end(agenda.now)
        agenda.run(2.0)
        self.older.ask("subscribe", TOO, wait=True, timeout_s=10.0)
        agenda.run(2.5)
        self.newer.read_again(entirely=True)
        agenda.run(4.0)
        cluster.acting = False


def test_operations_after_an_undone_adoption_are_recorded() -> None:
    undone = Undone()
    cluster = undone.cluster
    play(cluster, undone.chaos)
    older, newer, history = undone.older, undone.newer, cluster.history
    openings = [each for each in history.openings if each.client == older.name]
    assert [each.instance for each in openings if each.adopted] == [newer.instance] * 2
    assert older.over
    assert newer.session is not None
    assert newer.open
    standing = [each.filter for each in history.in_force() if each.session is newer.session]
    assert standing == [WANTED, TOO]
    assert_clean(history)
