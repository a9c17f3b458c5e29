"""The twin of `motet.runtime.journal`: durable after a while, and a crash takes the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from motet.protocol.contract import Fact
from motet.testing.clock import Agenda


class SimulatedJournal:
    """Facts become durable in order, each `sync_s()` after it was appended."""

    def __init__(self, agenda: Agenda, sync_s: Callable[[], float]) -> None:
        self.facts: list[Fact] = []
        self.appended = 0
        self.durable = 0
        self._agenda = agenda
        self._sync_s = sync_s
        self._last_sync = 0.0
        self._life = 0
        self._told: Callable[[], None] = _nobody

    def append(self, facts: Sequence[Fact]) -> int:
        self.facts.extend(facts)
        self.appended += len(facts)
        delay_s = self._sync_s()
        if not delay_s and self.durable == self.appended - len(facts):
            self.durable = self.appended
            return self.appended
        self._last_sync = max(self._last_sync, self._agenda.now + delay_s)
        self._agenda.at(self._last_sync, self._synced, self.appended, self._life)
        return self.appended

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Syncs are late here, but they never fail."""
        del failed
        self._told = durable

    def crash(self, survivors: int) -> list[Fact]:
        """Keep the first `survivors` facts: all durable ones, and what the disk took anyway."""
        assert self.durable <= survivors <= self.appended
        del self.facts[survivors:]
        self.appended = self.durable = survivors
        self._life += 1
        return self.facts

    def _synced(self, position: int, life: int) -> None:
        if life == self._life:
            self.durable = position
            self._told()


def _nobody() -> None:
    """Nobody watches yet."""
