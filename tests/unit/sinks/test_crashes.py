"""A broker that dies between any two writes: each batch is there whole, once, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.protocol.session.messages import Done
from tests.unit.sinks.rig import NEVER, PUBLISHER, QUERY, SINK, Dead, Rig

NS = {0: (range(5), range(5, 6)), 1: (range(10, 10), range(10, 13))}
"""By epoch, what its tasks have."""
WHOLE = {
    f"{SINK}/{QUERY}/{epoch}": [n for part in parts for n in part] for epoch, parts in NS.items()
}


def write_all(rig: Rig) -> None:
    """What the driver of a job does: it begins every batch anew that it knows no end of."""
    sink = rig.connect()
    rig.publisher = rig.connect(PUBLISHER)
    for epoch, tasks in NS.items():
        parts = [rig.stage(epoch, at, ns) for at, ns in enumerate(tasks)]
        assert isinstance(rig.commit(sink, epoch, parts), Done)


def survived(rig: Rig, left: int) -> None:
    """Another process of the broker, with so many writes to live; nobody speaks to it."""
    rig.publisher, rig.writes_left = 0, left
    rig.rise()


def test_all_batches_are_written_without_a_crash(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "staging")
    write_all(rig)
    assert rig.blocks() == WHOLE
    assert rig.core.durable.sinks.state.blocks == {}
    assert list((tmp_path / "staging").rglob("*.rows")) == [], "nothing is left over"


def how_many_writes(folder: Path) -> int:
    rig = Rig(folder)
    write_all(rig)
    return rig.writes


@pytest.mark.parametrize("again", [NEVER, 0, 1, 2, 4])
def test_death_between_any_two_writes(tmp_path: Path, again: int) -> None:
    """And, if it has come to that, once more after so many writes of its next life."""
    writes = how_many_writes(tmp_path / "counted")
    assert writes > 30
    for at in range(1, writes):
        rig = Rig(tmp_path / f"{at}", writes_left=at)
        with pytest.raises(Dead):
            write_all(rig)
        try:
            survived(rig, again)
        except Dead:
            survived(rig, NEVER)
        seen = rig.blocks()
        assert all(seen[tx] == WHOLE[tx] for tx in seen), "whole, or not at all"
        sink = rig.core.durable.sinks.state.sinks.get(SINK)
        committed = sink.epoch if sink is not None else -1
        assert len(seen) == committed + 1, "all that is committed is there"
        rig.writes_left = NEVER
        write_all(rig)
        assert rig.blocks() == WHOLE, f"died after {at} writes"
