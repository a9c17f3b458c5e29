"""Two sinks that write at once, somebody who publishes, and a broker that dies now and then."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.sinks.rig import NEVER, PUBLISHER, QUERY, Dead, Rig

SINKS = ("a", "b")


class Job:
    """A driver: it commits batch by batch, and begins one anew after whatever has happened."""

    def __init__(self, rig: Rig, sink: str, chance: random.Random) -> None:
        self.rig, self.sink, self.chance = rig, sink, chance
        self.written: dict[str, list[int]] = {}

    def epoch(self) -> int:
        """The next one, as its checkpoint has it; or the last one again."""
        known = self.rig.core.durable.sinks.state.sinks.get(self.sink)
        last = known.epoch if known is not None else -1
        return max(last + self.chance.choice((0, 1, 1)), 0)

    def write(self) -> None:
        epoch, rig = self.epoch(), self.rig
        tx = f"{self.sink}/{QUERY}/{epoch}"
        whole = self.written.get(tx)
        if whole is None:  # a batch that runs again has the same rows
            whole = self.written[tx] = list(range(epoch * 100, epoch * 100 + self.some()))
        middle = self.chance.randrange(len(whole) + 1)
        first, last = epoch * 100, epoch * 100 + len(whole)
        size = self.chance.randint(1, 4)
        parts = [
            rig.stage(epoch, at, ns, size, self.sink)
            for at, ns in enumerate((range(first, first + middle), range(first + middle, last)))
        ]
        connection = rig.connect(self.sink)
        rig.is_slow = True
        rig.commit(connection, epoch, parts)
        rig.is_slow = False

    def some(self) -> int:
        return self.chance.choice((0, 1, 5, 20))


@pytest.mark.parametrize("seed", range(25))
def test_sinks_commit_exactly_once_in_any_schedule(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig(tmp_path / "staging")
    jobs = [Job(rig, sink, chance) for sink in SINKS]
    deaths = 0
    for _ in range(12):
        rig.writes_left = chance.choice((NEVER, NEVER, chance.randrange(60)))
        try:
            rig.publisher = rig.connect(PUBLISHER)
            for job in chance.sample(jobs, 2):
                job.write()
                rig.settle(chance.randrange(12))
            if chance.random() < 0.3:
                raise Dead
            rig.settle()
        except Dead:
            deaths += 1
            rig.publisher, rig.writes_left = 0, NEVER
            rig.rise()
        check(rig, jobs)
    assert deaths, "this schedule tries nothing"


def check(rig: Rig, jobs: list[Job]) -> None:
    found = rig.blocks()
    written = {tx: ns for job in jobs for tx, ns in job.written.items()}
    assert all(written[tx] == ns for tx, ns in found.items()), "whole, and in order"
    for job in jobs:
        known = rig.core.durable.sinks.state.sinks.get(job.sink)
        last = known.epoch if known is not None else -1
        committed = [f"{job.sink}/{QUERY}/{epoch}" for epoch in range(last + 1)]
        assert [tx for tx in committed if written[tx]] == [
            tx for tx in found if tx.startswith(f"{job.sink}/")
        ], "all epochs, once, in their order"
    assert not rig.core.durable.sinks.state.blocks
    published = [e.sequence for e in rig.stream().batch if e.publisher == PUBLISHER]
    assert len(published) == len(set(published)), "what others publish is there once"
