"""Where facts become durable.

A journal takes facts at once and makes them durable later, many at a time. Whoever appends gets
a position and holds back what must not leave before `durable` has reached it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from motet.protocol.contract import Fact


class Journal(Protocol):
    @property
    def appended(self) -> int:
        """How many facts were appended so far."""

    @property
    def durable(self) -> int:
        """How many of them will survive a crash; never more than `appended`."""

    def append(self, facts: Sequence[Fact]) -> int:
        """Take facts, in order; the position at which all of them are durable."""

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Call `durable` on the event loop whenever `durable` grows outside of `append`. Call
        `failed` once if it never will again: a failed sync is not retried."""

    async def close(self) -> None:
        """Make durable what was appended, and let go."""


class VolatileJournal:
    """Keeps nothing: a broker that stops has forgotten everything. In exchange nobody waits."""

    def __init__(self) -> None:
        self._appended = 0

    @property
    def appended(self) -> int:
        return self._appended

    @property
    def durable(self) -> int:
        return self._appended

    def append(self, facts: Sequence[Fact]) -> int:
        self._appended += len(facts)
        return self._appended

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Nothing ever becomes durable later here."""

    async def close(self) -> None:
        """There is nothing to keep."""
