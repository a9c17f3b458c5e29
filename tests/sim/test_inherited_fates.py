"""Two processes of a durable client may learn the fate of one event, each in its own way."""

from __future__ import annotations

import pytest

from motet.audit.records import EventRecord
from motet.client.session.state import Settled
from motet.model import Filter
from motet.testing.recorder import SimulatedRecorder
from tests.sim.durable_pair import (
    assert_clean,
    durable_pair,
    play,
    started_with_an_advertiser,
)

SPACE = Filter.parse("level >= 0")


class LateReader:
    """A process publishes a best-effort event after its broker was restarted, and does not read the
    answer. A second process adopts the session; its broker does not say which best-effort events it
    had. Then the first process reads on."""

    def __init__(self, claimed: str = "") -> None:
        self.cluster = durable_pair()
        self._claimed = claimed

    @property
    def event(self) -> EventRecord:
        return self.cluster.history.events[0]

    def chaos(self) -> None:
        cluster, agenda = self.cluster, self.cluster.agenda
        broker, older = started_with_an_advertiser(cluster, SPACE)
        broker.kill()
        broker.start(remember=True)
        agenda.run(4.0)
        assert older.open
        older.stop_reading(entirely=False)
        older.publish({"level": 1}, sure=False)
        agenda.run(4.5)
        cluster.arrive(older.name, broker.name)
        agenda.run(5.0)
        self.inherited = self.event.fate
        self.event.fate = self._claimed or self.inherited
        older.read_again(entirely=False)
        agenda.run(6.0)
        cluster.acting = False


def test_a_publisher_may_know_more_of_its_event_than_the_process_that_took_over() -> None:
    late = LateReader()
    play(late.cluster, late.chaos)
    assert late.inherited == "unknown"
    assert late.event.fate == "accepted"
    assert_clean(late.cluster.history)


class ReaderOfRefusals:
    """A process publishes what it has not advertised, and does not read the refusal, which its
    broker forgets when it dies. A second process adopts the session. Then the first one reads
    on."""

    def __init__(self) -> None:
        self.cluster = durable_pair()
        self.inherited = ""

    def chaos(self) -> None:
        cluster, agenda = self.cluster, self.cluster.agenda
        broker, older = started_with_an_advertiser(cluster, SPACE)
        older.stop_reading(entirely=False)
        older.publish({"level": -1}, sure=True)
        agenda.run(2.0)
        broker.kill()
        broker.start(remember=True)
        agenda.run(3.0)
        cluster.arrive(older.name, broker.name)
        agenda.run(5.0)
        self.inherited = cluster.history.events[0].fate
        older.read_again(entirely=False)
        agenda.run(6.0)
        cluster.acting = False


def test_a_publisher_may_know_that_an_event_was_refused_which_its_broker_has_forgotten() -> None:
    late = ReaderOfRefusals()
    told: list[frozenset[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        settle = SimulatedRecorder._settle

        def noted(self: SimulatedRecorder, settled: Settled) -> None:
            told.append(frozenset(each.sequence for each in settled.refused))
            settle(self, settled)

        patch.setattr(SimulatedRecorder, "_settle", noted)
        play(late.cluster, late.chaos)
    assert late.inherited == "void"
    assert frozenset({1}) in told
    assert_clean(late.cluster.history)


@pytest.mark.parametrize("claimed", ["refused", "void"])
def test_two_processes_that_learn_different_fates_are_found(claimed: str) -> None:
    late = LateReader(claimed)
    play(late.cluster, late.chaos)
    found = (f"{late.event} was settled twice: {claimed}, then accepted",)
    assert [each[1:] for each in late.cluster.history.oddities] == [found]
