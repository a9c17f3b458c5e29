"""A cell of two real processes, killed and stopped while a thousand events a second pass."""

from __future__ import annotations

from motet_labs.bench.failover import KILLS, measure

NOTICED_S = 30.0
"""Far above what it takes: a busy machine may take longer."""


async def test_streams_survive_any_process_of_a_cell_that_dies_or_hangs() -> None:
    found = await measure((*KILLS, ("stall", "b1")), per_s=1000, stall_s=1.5)
    assert found["events"] > 1000
    assert (found["lost"], found["doubled"], found["disordered"]) == (0, 0, 0)
    assert [each["process"] for each in found["gaps"]] == ["b1", "b2", "b1"]
    for each in found["gaps"]:
        assert each["gap_s"] < NOTICED_S, each
