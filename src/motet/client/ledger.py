"""The fate of publications: receipts, and the books behind them.

Publications are settled in the order they were made, nearly all of them well. So the books keep
one number, everything up to which is settled, and the exceptions. A receipt is an ordinal; it
costs a future only if somebody awaits it too early.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Generator
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from motet.client.failures import error_of
from motet.client.happenings import Failure, Settled
from motet.errors import UnavailableError

EXCEPTIONS_REMEMBERED = 65_536


class Exceptions(NamedTuple):
    """Consecutive publications that share a fate other than acceptance."""

    last: int
    first: int
    failure: Failure


class Ledger:
    def __init__(self) -> None:
        self.settled = 0
        self._exceptions: list[Exceptions] = []
        self._forgotten = 0  # exceptions up to here are not remembered one by one
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tie = count()
        self._flushed = 0
        self._failed = 0
        self._first_failure: Failure | None = None
        self.told = 0
        """Failures since the last flush that somebody who awaited a receipt has seen."""

    def settle(self, news: Settled) -> None:
        if news.unknown is not None:
            self._except(self.settled + 1, news.upto, news.unknown)
        for refusal in news.refused:
            failure = Failure(refusal.error, refusal.text)
            self._except(refusal.sequence, refusal.sequence, failure)
        self.settled = news.upto
        waiting = self._waiting
        while waiting and waiting[0][0] <= news.upto:
            future = heappop(waiting)[2]
            if not future.done():
                future.set_result(None)

    async def reach(self, ordinal: int) -> None:
        """Return once everything up to this ordinal is settled."""
        if ordinal > self.settled:
            future = asyncio.get_running_loop().create_future()
            heappush(self._waiting, (ordinal, next(self._tie), future))
            await future

    def check(self, ordinal: int) -> None:
        """Raise unless this settled publication was accepted."""
        at = bisect_left(self._exceptions, ordinal, key=_last)
        if at < len(self._exceptions) and self._exceptions[at].first <= ordinal:
            self.told += ordinal > self._flushed
            raise error_of(self._exceptions[at].failure)
        if ordinal <= self._forgotten:
            raise UnavailableError("the fate of this publication is not remembered any more")

    def take_failures(self, upto: int) -> tuple[int, int, Failure | None]:
        """Since the last call: how many were settled, how many of them badly, the first reason."""
        taken = (upto - self._flushed, self._failed, self._first_failure)
        self._flushed, self._failed, self._first_failure, self.told = upto, 0, None, 0
        return taken

    def _except(self, first: int, last: int, failure: Failure) -> None:
        self._failed += last - first + 1
        if self._first_failure is None:
            self._first_failure = failure
        kept = self._exceptions
        if kept and kept[-1].last == first - 1 and kept[-1].failure == failure:
            first = kept.pop().first
        kept.append(Exceptions(last, first, failure))
        if len(kept) > EXCEPTIONS_REMEMBERED:
            half = len(kept) // 2
            self._forgotten = kept[half - 1].last
            del kept[:half]


def _last(exceptions: Exceptions) -> int:
    return exceptions.last


class Receipt:
    """What `publish` returns. Awaiting it means: the broker has accepted the event.

    It raises `NotAdvertised` (or another refusal) if the event went nowhere, and `Disconnected`
    if the connection broke in a way that leaves nobody to ask.
    """

    __slots__ = ("_ledger", "ordinal")

    def __init__(self, ledger: Ledger, ordinal: int) -> None:
        self._ledger = ledger
        self.ordinal = ordinal
        """Counts this client's publications from 1, across sessions."""

    @property
    def settled(self) -> bool:
        """Whether awaiting it would return, or raise, at once."""
        return self.ordinal <= self._ledger.settled

    def __await__(self) -> Generator[Any, None, None]:
        ledger = self._ledger
        if self.ordinal > ledger.settled:
            yield from ledger.reach(self.ordinal).__await__()
        ledger.check(self.ordinal)

    def __repr__(self) -> str:
        return f"<Receipt {self.ordinal}, {'settled' if self.settled else 'open'}>"
