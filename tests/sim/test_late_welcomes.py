"""A process of a durable client may read its welcome after its broker has lost the session."""

from __future__ import annotations

import pytest

from motet.model import Filter
from tests.sim.durable_pair import (
    assert_clean,
    durable_pair,
    play,
    started_with_an_advertiser,
)

SPACE = Filter.parse("level >= 0")


class LateWelcome:
    """A second process adopts the session and does not read its welcome. Its broker loses its
    state, or keeps it; then the process reads on, loses its connection, and asks for the session
    again."""

    def __init__(self, lost: bool, claimed: bool = False) -> None:
        self.cluster = durable_pair()
        self._lost = lost
        self._claimed = claimed

    def chaos(self) -> None:
        cluster, agenda = self.cluster, self.cluster.agenda
        broker, older = started_with_an_advertiser(cluster, SPACE)
        newer = cluster.arrive(older.name, broker.name)
        newer.stop_reading(entirely=False)
        agenda.run(1.5)
        first = older.opened
        broker.kill()
        agenda.run(2.0)
        if self._lost:
            cluster.history.amnesia[broker.name].touch(agenda.now, agenda.now)
            if not self._claimed:
                cluster.lasting.forgotten(broker.name)
        broker.start(remember=not self._lost)
        agenda.run(3.0)
        newer.read_again(entirely=False)
        agenda.run(12.0)
        assert newer.open
        self.kept = newer.opened == first
        cluster.acting = False


@pytest.mark.parametrize("lost", [False, True])
def test_a_welcome_does_not_revive_a_session_that_its_broker_has_lost(lost: bool) -> None:
    late = LateWelcome(lost)
    play(late.cluster, late.chaos)
    assert late.kept is not lost
    assert_clean(late.cluster.history)


def test_a_broker_that_keeps_its_state_must_return_the_session() -> None:
    late = LateWelcome(lost=True, claimed=True)
    play(late.cluster, late.chaos)
    assert [each[0] for each in late.cluster.history.oddities] == ["sessions"]
