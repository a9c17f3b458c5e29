"""The simulated log keeps the promises of every log."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from motet.errors import DiskFailed
from motet.testing.clock import Agenda
from motet.testing.log import SimulatedLog
from tests.conformance.log_suite import LogSuite, Stand, Watcher, as_records, words


class SimulatedStand(Stand):
    log: SimulatedLog

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.chance = random.Random(7)
        self.log = SimulatedLog(self.agenda, lambda: self.chance.choice((0.0, 0.001, 0.01)))

    async def settle(self) -> None:
        self.agenda.run(self.agenda.now + 1)
        self.log.sync()

    async def reopen(self) -> None:
        await self.log.close()
        self.log.crash(self.log.appended)

    async def crash(self) -> None:
        self.log.crash(self.chance.randint(self.log.durable, self.log.appended))

    def break_disk(self) -> None:
        self.log.fail()

    def roll(self) -> None:
        self.log.roll()

    async def clean(self) -> None:
        self.agenda.run(self.agenda.now + 1)
        with contextlib.suppress(DiskFailed):
            await self.log.close()


class TestSimulatedLog(LogSuite):
    def stand(self, folder: Path) -> Stand:
        del folder
        return SimulatedStand()


def test_a_restored_backup_is_an_older_prefix() -> None:
    agenda = Agenda()
    log = SimulatedLog(agenda, lambda: 0.5)
    log.append(words(1, 5))
    agenda.run(1)
    log.append(words(6, 7))
    backup = log.copy()
    agenda.run(2)
    log.trim(3)
    log.append(words(8, 9))
    log.restore(backup)
    agenda.run(9)
    assert (log.first, log.appended, log.durable) == (1, 5, 5)
    assert list(log.read(1)) == as_records(1, 5)
    assert log.append(words(6, 6)) == 6


def test_timers_of_an_earlier_life_say_nothing() -> None:
    agenda = Agenda()
    log = SimulatedLog(agenda, lambda: 0.5)
    watcher = Watcher(log)
    log.append(words(1, 5))
    log.crash(2)
    log.append(words(3, 9))
    agenda.run(0.4)
    assert (log.durable, log.appended) == (2, 9)
    agenda.run(1)
    assert log.durable == 9
    assert not watcher.positions, "who watched died in the crash"


def test_a_crash_never_takes_what_is_durable() -> None:
    agenda = Agenda()
    log = SimulatedLog(agenda, lambda: 0.0)
    log.append(words(1, 5))
    with pytest.raises(AssertionError):
        log.crash(4)
