"""A process of a durable client may hear that it has the session only after the next one has it."""

from __future__ import annotations

import pytest

from motet.model import Filter
from motet.testing.simulation import CHECKERS
from tests.sim.durable_pair import durable_pair, play

WANTED, TOO, NEVER = (
    Filter.parse(text) for text in ("level >= 0", "topic = 'a'", "topic = 'never'")
)


class Overtaken:
    """Two more processes adopt the session of the first one. The second one reads its welcome last,
    and its requests have the numbers of those of the third one."""

    def __init__(self) -> None:
        self.cluster = durable_pair()

    def chaos(self) -> None:
        cluster, agenda = self.cluster, self.cluster.agenda
        here, there = cluster.tree.brokers
        for each in cluster.brokers.values():
            each.start(remember=False)
        publisher = cluster.arrive("", there)
        first = cluster.arrive("", here)
        publisher.ask("advertise", WANTED, wait=True, timeout_s=10.0)
        first.ask("subscribe", WANTED, wait=True, timeout_s=10.0)
        agenda.run(1.0)
        self.second = cluster.arrive(first.name, here)
        self.second.ask("subscribe", NEVER, wait=True, timeout_s=10.0)
        self.second.stop_reading(entirely=False)
        agenda.run(1.2)
        self.third = cluster.arrive(first.name, here)
        self.third.ask("subscribe", TOO, wait=True, timeout_s=10.0)
        agenda.run(1.5)
        assert self.third.open
        self.second.read_again(entirely=False)
        agenda.run(2.0)
        publisher.publish({"topic": "a", "level": 1}, sure=True)
        agenda.run(4.0)
        cluster.acting = False


@pytest.fixture
def overtaken() -> Overtaken:
    run = Overtaken()
    play(run.cluster, run.chaos)
    return run


def violations(run: Overtaken) -> list[str]:
    return [each for c in CHECKERS for each in c.check(run.cluster.history).violations]


def test_requests_of_an_overtaken_process_are_not_recorded_for_the_session(
    overtaken: Overtaken,
) -> None:
    second, third, history = overtaken.second, overtaken.third, overtaken.cluster.history
    openings = [each for each in history.openings if each.adopted]
    assert [each.instance for each in openings] == [second.instance, third.instance]
    assert second.over
    assert third.session is not None
    standing = [each.filter for each in history.in_force() if each.session is third.session]
    assert standing == [WANTED, TOO]
    assert not history.oddities
    assert not violations(overtaken)


def test_an_event_that_the_last_process_does_not_get_is_still_missed(overtaken: Overtaken) -> None:
    history = overtaken.cluster.history
    (event,) = (each for each in history.events if each.attributes == {"topic": "a", "level": 1})
    before = len(history.effects)
    history.effects = [each for each in history.effects if each.event is not event]
    assert len(history.effects) == before - 2  # for each of its subscriptions
    found = violations(overtaken)
    assert len(found) == 2
    assert all(f"{event}, sent" in each and "was never delivered" in each for each in found)
