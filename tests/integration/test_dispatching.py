"""The dispatching scenario over real processes: nothing goes astray, nor do other events."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.broker.overlay.topology import Topology
from motet_labs.experiments import regular
from motet_labs.experiments.dispatch import scene
from motet_labs.experiments.paper1 import INSTANCES_PER_BURST
from motet_labs.experiments.regular import ALONE, BURSTS

INSTANCES = 6


@pytest.mark.parametrize("durability", ["volatile", "fsync"])
def test_every_approach_hands_instances_over(tmp_path: Path, durability: str) -> None:
    # Given two brokers with slow links, and two casts of four clients
    with scene(Topology.line(2), tmp_path, delay_s=0.001, durability=durability) as on:
        for approach in ("S-TX", "D-TX", "D-TX_NI"):
            # When each dispatches instances, two at a time
            found = on.load.ask("dispatch", approach=approach, casts=2, threads=2, each=INSTANCES)
            # Then every update went to its agent, and to nobody else
            assert len(found["latency_ms"]) == 2 * INSTANCES
            assert found["wrong"] == 0
        # And without transactions that is so if one waits for very long, and not if one does not
        patient = on.load.ask("dispatch", approach="BL-WAIT", casts=1, each=2, wait_s=1.0)
        assert patient["wrong"] == 0
        hasty = on.load.ask("dispatch", approach="BL-WAIT", casts=1, each=2, wait_s=0.0)
        assert hasty["wrong"] == 2


def test_a_stream_of_regular_events_is_whole_while_instances_are_dispatched(tmp_path: Path) -> None:
    # Given two brokers and a stream through both, as fast as it goes
    with scene(Topology.line(2), tmp_path) as on:
        # When instances are dispatched in one slice of three
        found = regular.measure(on, ("S-TX",), 1)
    # Then every event came once and in order, in all slices
    assert found.kept
    assert [each.approach for each in found.slices] == [ALONE, "S-TX", ALONE]
    assert all(each.events > 0 for each in found.slices)
    # And as many were dispatched as is due
    assert found.dispatched("S-TX") == BURSTS * INSTANCES_PER_BURST
    assert found.wrong("S-TX") == 0
