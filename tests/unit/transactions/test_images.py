"""Whatever happens in a transaction, a snapshot at any moment and the journal since give the same
broker: the scenarios are lived through, and every broker is rebuilt along the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.broker.core import records
from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import founding, picture, rebuild
from motet.protocol.machine import FACT, FOUNDED, Snapshot
from motet.protocol.transactions.state import TxState
from motet.testing.scenario import Scenario

FOLDER = Path(__file__).parents[2] / "scenarios"
FILES = sorted(FOLDER.glob("tx-*.txt"))
EVERY = 5
"""Facts between two snapshots."""


def lived(path: Path) -> Scenario:
    scenario, skipping = Scenario(), False
    for line in path.read_text().splitlines():
        if line == "----":
            skipping = True
        elif not line:
            skipping = False
        elif not skipping and not line.startswith("#"):
            scenario.run(line)
    return scenario


def snapshot_of(durable: Durable) -> Snapshot:
    return Snapshot(records.MACHINE_VERSION, [payload for _, payload in picture(durable)])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_snapshot_at_any_moment(path: Path) -> None:
    scenario = lived(path)
    assert len(scenario.brokers) > 1
    for name, core in scenario.brokers.items():
        config = scenario._founded[name]
        facts = [(FACT, records.encode(fact)) for fact in scenario.journals[name]]
        journal = [(FOUNDED, founding(config)), *facts]
        for position in range(1, len(journal), EVERY):
            half_way = rebuild(config, None, journal[:position])
            again = rebuild(config, snapshot_of(half_way), journal[position:])
            assert again.digest() == core.durable.digest(), f"{name} at {position}"
            again.transactions.validate()


def test_the_image_has_everything_that_brokers_know_of_transactions() -> None:
    """Open transactions and what waits have names of their own there, and mobility keeps what
    has been heard."""
    core = lived(FILES[0]).brokers["A"]
    machine = core.durable.transactions
    owners = (machine.participant, machine.coordinator, machine.invitations, machine.versions)
    others = (machine.root_requests, machine.decisions, machine.cutter, machine.decider)
    fields = {name for each in (*owners, *others) for name in each.state.__struct_fields__}
    assert fields - {*TxState.__struct_fields__} == {"waiting", "touched", "heard"}


def test_what_a_broker_has_heard_of_decisions_is_in_a_snapshot() -> None:
    scenario = lived(FOLDER / "tx-together.txt")
    for name, core in scenario.brokers.items():
        heard = core.durable.transactions.decisions.state.heard
        assert heard > 0
        config = scenario._founded[name]
        again = rebuild(config, snapshot_of(core.durable), [])
        assert again.transactions.decisions.state.heard == heard
