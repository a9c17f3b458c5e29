"""Makes facts durable.

A journal takes facts at once and makes them durable later, many at a time. The caller of `append`
gets a position and holds back dependent frames until `durable` has reached it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from motet.protocol.contract import Fact
from motet.runtime.log import Durability, Log

VOLATILE = "volatile"
DURABILITIES = (*(mode.value for mode in Durability), VOLATILE)
"""The modes of a journal; the names of the weaker ones say what may be lost."""


class Journal(Protocol):
    @property
    def appended(self) -> int:
        """How many facts were appended so far."""

    @property
    def durable(self) -> int:
        """How many of them survive a crash; never more than `appended`."""

    def append(self, facts: Sequence[Fact]) -> int:
        """Append facts in order; returns the position at which all of them are durable."""

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Call `durable` on the event loop whenever `durable` grows outside of `append`. Call
        `failed` once if it can never grow again: a failed sync is not retried."""

    def describe(self) -> dict[str, Any]:
        """The journal's state for an operator."""

    async def close(self) -> None:
        """Make all appended facts durable, and release the journal."""

    async def abandon(self) -> None:
        """Release it without an orderly end: facts that are not durable yet may be lost."""


class LoggedJournal:
    """Facts in a log: durable facts survive the process, and in mode `fsync` a power failure.

    With `gathers`, and once `watch` was called, the log gets the facts of one turn of the event
    loop all at once: a batch costs it little more than a single record.
    """

    def __init__(
        self, log: Log, encode: Callable[[Fact], bytes], mode: str, *, gathers: bool = False
    ) -> None:
        self.log = log
        self.bytes = 0
        """The size of the facts appended so far, and of those that were read at the start."""
        self._encode = encode
        self._mode = mode
        self._gathers = gathers
        self._gathered: list[bytes] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed: Callable[[Exception], None]
        self.appended, self.durable = log.appended, log.durable

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
        self.appended += len(facts)
        return self.appended

    def hand_over(self) -> None:
        """Append the gathered facts now, not at the end of this turn."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            self.log.append(gathered)
            self.durable = self.log.durable

    def _hand_over_later(self) -> None:
        try:
            self.hand_over()
        except Exception as failure:  # there is no caller who could handle it
            self._failed(failure)

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        def grown() -> None:
            self.durable = self.log.durable
            durable()

        self._failed = failed
        self.log.watch(grown, failed)
        self.appended, self.durable = self.log.appended, self.log.durable
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
