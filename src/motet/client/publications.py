"""Event encoding, and receipts of publications.

Brokers check every event that they accept; the checks here raise the error where the mistake was
made. An event is not checked further if its attribute names were seen before and its values are
plain: that is nearly every event, and it saves most of the cost of publishing.

Publications are settled in the order they were made, and nearly all are accepted. So the ledger
keeps one number, up to which all are settled, and the exceptions. A receipt is an ordinal; it
costs a future only if it is awaited before it is settled.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Generator, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple

from msgspec import Raw

from motet.client.loop_guard import LoopGuard
from motet.client.session.state import Failure, Settled, error_of
from motet.errors import MisuseError, NoAnswer, UnavailableError
from motet.model import Event, Value, encode_event

PLAIN: Final = frozenset({bool, float, str})
SHAPES_REMEMBERED: Final = 4096
SURELY_FITS_BYTES: Final = 256 * 1024
INT_BOUND: Final = 2**63

Publishable = Event | Mapping[str, Value]


class EventEncoder:
    def __init__(self) -> None:
        self._shapes: set[tuple[str, ...]] = set()

    def body(self, event: Publishable, payload: bytes = b"") -> Raw:
        """The encoded event; `EventError` or `MisuseError` if it is invalid."""
        if type(event) is dict and type(payload) is bytes and tuple(event) in self._shapes:
            for value in event.values():
                kind = type(value)
                if kind is int:
                    if not -INT_BOUND <= value < INT_BOUND:
                        break
                elif kind not in PLAIN:
                    break
            else:
                try:
                    body = encode_event(event, payload)
                except ValueError:  # a lone surrogate: `_carefully` has the error text for it
                    return self._carefully(event, payload)
                if len(body) <= SURELY_FITS_BYTES:
                    return Raw(body)
        return self._carefully(event, payload)

    def _carefully(self, event: Publishable, payload: bytes) -> Raw:
        if isinstance(event, Event):
            if payload:
                raise MisuseError("an Event has its payload already; do not give another one")
            return Raw(event.encode())
        if not isinstance(event, Mapping):
            raise MisuseError(
                f"cannot publish an object of type {type(event).__name__}: give a motet.Event, or "
                "a dict of attributes and payload=..."
            )
        made = Event(event, payload)
        if len(self._shapes) >= SHAPES_REMEMBERED:
            self._shapes.clear()
        self._shapes.add(tuple(event))
        return Raw(made.encode())


EXCEPTIONS_REMEMBERED = 65_536


class Exceptions(NamedTuple):
    """Consecutive publications that were refused, or whose fate is unknown."""

    last: int
    first: int
    failure: Failure


class ReceiptBook:
    def __init__(self, guard: LoopGuard) -> None:
        self.settled = 0
        self._guard = guard
        self._exceptions: list[Exceptions] = []
        self._forgotten = 0  # exceptions up to here are not remembered one by one
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tie = count()
        self._flushed = 0
        self._failed = 0
        self._first_failure: Failure | None = None
        self.told = 0
        """Failures since the last flush that were raised by awaiting a receipt."""

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
            loop = asyncio.get_running_loop()
            self._guard.check_loop(loop)
            future = loop.create_future()
            heappush(self._waiting, (ordinal, next(self._tie), future))
            await future

    def disown(self, news: Settled) -> None:
        """In a forked child: settle, but wake nobody. Those who wait are on the parent's loop."""
        self._waiting.clear()
        if news.upto > self.settled:
            self.settle(news)

    def check(self, ordinal: int) -> None:
        """Raise unless this settled publication was accepted."""
        at = bisect_left(self._exceptions, ordinal, key=_last)
        if at < len(self._exceptions) and self._exceptions[at].first <= ordinal:
            self.told += ordinal > self._flushed
            raise error_of(self._exceptions[at].failure)
        if ordinal <= self._forgotten:
            raise UnavailableError("the result of this publication is no longer remembered")

    def take_failures(self, upto: int) -> tuple[int, int, Failure | None]:
        """Since the last call: how many were settled, how many of them failed, the first reason."""
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


def not_settled(count: int, timeout_s: float) -> NoAnswer:
    return NoAnswer(f"{count} publications were not settled within {timeout_s:g} s")


def not_accepted(timeout_s: float, *, sent: bool) -> NoAnswer:
    """The error of a publication that was not settled in time."""
    within = f"within {timeout_s:g} s"
    if sent:
        return NoAnswer(
            f"the event was not accepted {within}; it may still become durable, and `flush()` "
            "waits for it"
        )
    return NoAnswer(f"the event was not sent {within}: too many publications are unsettled")


class Receipt:
    """The result of `send`. Awaiting it waits until the broker has accepted the event.

    It raises `NotAdvertised` (or another refusal) if the event was refused, and `Disconnected`
    if its fate cannot be known: the session, the answer or the broker's log was lost.
    """

    __slots__ = ("_ledger", "ordinal")

    def __init__(self, ledger: ReceiptBook, ordinal: int) -> None:
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
