"""The dispatching scenario over real processes: four approaches, and nothing goes astray."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.broker.topology import Topology
from motet.experiments.dispatch_stand import scene

INSTANCES = 6


@pytest.mark.parametrize("durability", ["volatile", "fsync"])
def test_every_approach_hands_instances_over(tmp_path: Path, durability: str) -> None:
    # Given two brokers with slow links, and two casts of four clients
    with scene(Topology.line(2), tmp_path, delay_s=0.001, durability=durability) as on:
        for approach in ("S-TX", "D-TX", "D-TX_NI"):
            # When each dispatches instances, two at a time
            found = on.load.ask(
                do="dispatch", approach=approach, casts=2, threads=2, each=INSTANCES
            )
            # Then every update went to its agent, and to nobody else
            assert len(found["latency_ms"]) == 2 * INSTANCES
            assert found["wrong"] == 0
        # And without transactions that is so if one waits for very long, and not if one does not
        patient = on.load.ask(do="dispatch", approach="BL-WAIT", casts=1, each=2, wait_s=1.0)
        assert patient["wrong"] == 0
        hasty = on.load.ask(do="dispatch", approach="BL-WAIT", casts=1, each=2, wait_s=0.0)
        assert hasty["wrong"] == 2
