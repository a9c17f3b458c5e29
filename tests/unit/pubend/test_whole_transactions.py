"""Late readers see transactions when all of their events are durable, and not before."""

from __future__ import annotations

from pathlib import Path

from motet.runtime.pubend import StoredCut
from motet.runtime.pubend.state import DurableTicks
from tests.unit.pubend.ground import PUBEND, bodies, opened, settle, shut


def test_a_block_counts_when_its_last_event_does(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    pubend.append_run(1, "alice", "e1", 1, bodies(3))
    pubend.append_cut(StoredCut(10, "sink/q/0", 0, (), (PUBEND,), 40))
    for tick in (11, 21):
        pubend.append_run(tick, "sink", "", tick - 10, bodies(10))
        settle(pubend)
        assert (pubend.durable_tick, pubend.whole_tick) == (tick + 9, 9)

    shut(pubend)
    pubend = opened(tmp_path)  # whose segments are small: the cut is in an earlier one
    assert (pubend.last_tick, pubend.whole_tick) == (30, 9)
    pubend.append_run(31, "sink", "", 21, bodies(10))
    pubend.append_run(41, "alice", "e1", 4, bodies(1))
    settle(pubend)
    assert pubend.whole_tick == pubend.durable_tick == 41
    shut(pubend)


def test_blocks_are_whole_when_their_last_record_is_durable() -> None:
    ticks = DurableTicks(0, (0, 0))
    ticks.begins(1, 3)
    ticks.appended(1, 1, 0)
    ticks.appended(2, 3, 0)
    ticks.begins(4, 4)  # without events
    ticks.appended(3, 4, 0)
    ticks.begins(5, 7)
    ticks.appended(4, 5, 0)
    ticks.appended(5, 7, 0)
    found = [(ticks.last(durable), ticks.whole(durable)) for durable in range(6)]
    assert found == [(0, 0), (1, 0), (3, 3), (4, 4), (5, 4), (7, 7)]
