"""Where facts become durable.

A journal takes facts at once and makes them durable later, many at a time. Whoever appends gets
a position and holds back what must not leave before `durable` has reached it.
"""

from __future__ import annotations

import asyncio
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

    async def abandon(self) -> None:
        """Let go, and claim nothing: what was not durable yet may be lost."""


class LoggedJournal:
    """Facts in a log: what is durable outlives the process, and the power.

    With `gathers`, and once somebody watches, the log gets the facts of one turn of the event
    loop all at once: a batch costs it little more than a single record.
    """

    def __init__(
        self, log: Log, encode: Callable[[Fact], bytes], mode: str, *, gathers: bool = False
    ) -> None:
        self.log = log
        self.bytes = 0
        """Of the facts appended so far, and of those that were read at the start."""
        self._encode = encode
        self._mode = mode
        self._gathers = gathers
        self._gathered: list[bytes] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed: Callable[[Exception], None]

    @property
    def appended(self) -> int:
        return self.log.appended + len(self._gathered)

    @property
    def durable(self) -> int:
        return self.log.durable

    def append(self, facts: Sequence[Fact]) -> int:
        gathered = self._gathered
        if not gathered and self._loop is not None:
            self._loop.call_soon(self._hand_over_later)
        for fact in facts:
            payload = self._encode(fact)
            self.bytes += len(payload)
            gathered.append(payload)
        if self._loop is None:
            self.hand_over()
        return self.appended

    def hand_over(self) -> None:
        """Do not wait for the end of this turn."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            self.log.append(gathered)

    def _hand_over_later(self) -> None:
        try:
            self.hand_over()
        except Exception as failure:  # nobody stands above us who could hear of it
            self._failed(failure)

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self.log.watch(durable, failed)
        if self._gathers:
            self._loop = asyncio.get_running_loop()

    def describe(self) -> dict[str, Any]:
        return {
            "durability": self._mode,
            "first": self.log.first,
            "appended": self.appended,
            "durable": self.durable,
            "bytes": self.bytes,
        }

    async def close(self) -> None:
        self.hand_over()
        await self.log.close()

    async def abandon(self) -> None:
        self._gathered.clear()
        await self.log.abandon()


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

    async def abandon(self) -> None:
        """Nor to let go of."""
