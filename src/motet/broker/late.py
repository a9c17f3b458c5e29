"""A broker's own pubend as late readers see it."""

from __future__ import annotations

import asyncio
from collections import deque

from motet.protocol.reading.messages import CursorAccount, PubendAccount
from motet.runtime.pubend import PubendLog
from motet.runtime.pubend.table_reading import TableReading


class LoggedReadable:
    """See `motet.broker.reading.Readable`."""

    def __init__(self, log: PubendLog) -> None:
        self._log = log
        self.name = log.pubend
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def first_tick(self) -> int:
        return self._log.first_tick

    @property
    def durable_tick(self) -> int:
        return self._log.whole_tick

    @property
    def tables(self) -> TableReading:
        return self._log.tables

    def account(self) -> PubendAccount:
        log = self._log
        cursors = tuple(
            CursorAccount(name, tick, log.expires_s(name)) for name, tick in log.cursors.items()
        )
        return PubendAccount(
            log.pubend,
            log.first_tick,
            log.whole_tick,
            log.everybody_has,
            log.events,
            log.size_bytes,
            log.sealed_bytes,
            log.lost_upto,
            log.lost_events,
            cursors,
            log.destroyed_upto,
            log.tables.outlines.gone_cut,
        )

    async def set_cursor(self, name: str, tick: int | None) -> None:
        log = self._log
        position = log.remove_cursor(name) if tick is None else log.set_cursor(name, tick)
        if log.durable < position:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((position, waiting))
            await waiting

    def grown(self) -> None:
        """More of the log is durable."""
        while self._waiting and self._waiting[0][0] <= self._log.durable:
            waiting = self._waiting.popleft()[1]
            if not waiting.done():
                waiting.set_result(None)
