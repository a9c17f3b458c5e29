"""Whatever happens in a transaction, a snapshot at any moment and the journal since give the same
broker: the scenarios are lived through, and every broker is rebuilt along the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.broker.core import records
from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import Snapshot, founding, picture, rebuild
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
        facts = [(records.FACT, records.encode(fact)) for fact in scenario.journals[name]]
        journal = [(records.FOUNDED, founding(config)), *facts]
        for position in range(1, len(journal), EVERY):
            half_way = rebuild(config, None, journal[:position])
            again = rebuild(config, snapshot_of(half_way), journal[position:])
            assert again.digest() == core.durable.digest(), f"{name} at {position}"
            again.transactions.validate()
