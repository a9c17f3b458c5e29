"""Where facts become durable.

A journal takes facts at once and makes them durable later, many at a time. Whoever appends gets
a position and holds back what must not leave before `durable` has reached it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from motet.protocol.contract import Fact
from motet.runtime.log import Durability, Log

VOLATILE = "volatile"
DURABILITIES = (*(mode.value for mode in Durability), VOLATILE)
"""The ways to keep a journal; the names of the weaker ones say what they give up."""


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

    def describe(self) -> dict[str, Any]:
        """For an operator."""

    async def close(self) -> None:
        """Make durable what was appended, and let go."""


class LoggedJournal:
    """Facts in a log: what is durable outlives the process, and the power."""

    def __init__(self, log: Log, encode: Callable[[Fact], bytes], mode: str) -> None:
        self.log = log
        self.bytes = 0
        """Of the facts appended so far, and of those that were read at the start."""
        self._encode = encode
        self._mode = mode

    @property
    def appended(self) -> int:
        return self.log.appended

    @property
    def durable(self) -> int:
        return self.log.durable

    def append(self, facts: Sequence[Fact]) -> int:
        encode = self._encode
        payloads = [encode(fact) for fact in facts]
        self.bytes += sum(map(len, payloads))
        return self.log.append(payloads)

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self.log.watch(durable, failed)

    def describe(self) -> dict[str, Any]:
        return {
            "durability": self._mode,
            "first": self.log.first,
            "appended": self.appended,
            "durable": self.durable,
            "bytes": self.bytes,
        }

    async def close(self) -> None:
        await self.log.close()


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

    def describe(self) -> dict[str, Any]:
        return {"durability": VOLATILE, "appended": self._appended, "durable": self._appended}

    async def close(self) -> None:
        """There is nothing to keep."""
