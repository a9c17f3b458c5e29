"""The session of a running copy: one connection inside the broker's process, an inbox in the order
of arrival, and progress that is reported with checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from motet.client.driver import SessionDriver
from motet.client.registrations import Arrivals
from motet.client.session.hosted import HostedMachine
from motet.client.session.state import Arrived, Kept, Missed, Notice, Settled, StreamBatch
from motet.client.subscription import Progress, Registration, Subscription
from motet.errors import Disconnected, EventsLost, MotetError
from motet.model import Event, decode_body
from motet.protocol.publication import Publication, TransactionPublication

log = logging.getLogger("motet.hosted")


class InboxItem(NamedTuple):
    """An event, or a loss, and the names of the subscriptions that it is for."""

    what: Event | EventsLost
    names: tuple[str, ...]
    pubend: str = ""
    """Empty: a best-effort event."""


class Inbox(Arrivals):
    """Events of all subscriptions, in the order in which they arrive."""

    def __init__(
        self,
        entries: Mapping[int, Registration],
        progress: Progress,
        machine: HostedMachine,
        ring: Callable[[], None],
        names: Callable[[tuple[int, ...]], tuple[str, ...]] | None = None,
    ) -> None:
        """`names` maps handles to names, if that does not need the entries."""
        super().__init__(entries, progress)
        self._names = names or self._names_of
        self._registrations = entries
        self._received = machine.streams.received
        self._machine = machine
        self._ring = ring
        self._items: deque[InboxItem] = deque()
        self._waiting: dict[str, deque[int]] = {}
        """By pubend, the ticks of exactly-once events that are not handled."""

    def __len__(self) -> int:
        return len(self._items)

    # ── arrivals ─────────────────────────────────────────────────────────────────────────

    def arrived(self, news: Arrived) -> None:
        self.dropped_by_broker += news.dropped
        for handles, publication in news.batch:
            names = self._names(handles)
            if names:
                attributes, payload = decode_body(publication.body)
                event = Event.delivered(
                    attributes, payload, publication.publisher, publication.sequence
                )
                self._items.append(InboxItem(event, names))
        self._ring()

    def brought(self, news: StreamBatch) -> None:
        known = self._machine.known.cursors.get(news.pubend, 0)
        for at, (tick, publication) in enumerate(zip(news.ticks, news.batch, strict=True)):
            names = self._names(news.each[at] if news.each else news.every)
            if names and tick > known:
                event = _event(publication, news.pubend, tick)
                self._items.append(InboxItem(event, names, news.pubend))
                self._waiting.setdefault(news.pubend, deque()).append(tick)
        self._progress.brought(len(news.ticks))
        self._ring()

    def missed(self, news: Missed) -> None:
        self.lost_events += 1
        loss = EventsLost(news.pubend, news.first, news.last)
        self._items.append(InboxItem(loss, (), news.pubend))
        self._waiting.setdefault(news.pubend, deque()).append(news.first)
        self._ring()

    def _names_of(self, handles: tuple[int, ...]) -> tuple[str, ...]:
        found = (self._registrations.get(handle) for handle in handles)
        return tuple(each.name for each in found if isinstance(each, Subscription))

    # ── handling ─────────────────────────────────────────────────────────────────────────

    def first(self) -> InboxItem:
        return self._items[0]

    def handled(self) -> None:
        """The first one was handled."""
        pubend = self._items.popleft().pubend
        if pubend:
            ticks = self._waiting[pubend]
            ticks.popleft()
            if not ticks:
                del self._waiting[pubend]

    def cursors(self) -> dict[str, int]:
        """By pubend, the tick up to which everything was handled."""
        waiting = self._waiting
        return {
            pubend: waiting[pubend][0] - 1 if pubend in waiting else upto
            for pubend, upto in self._received.items()
        }


def _event(publication: Publication, pubend: str, tick: int) -> Event:
    attributes, payload = decode_body(publication.body)
    tx = publication.tx if type(publication) is TransactionPublication else ""
    where = (publication.publisher, publication.sequence, pubend, tick, tx)
    return Event.delivered(attributes, payload, *where)


class HostedProgress(Progress):
    """Without checkpoints it reports only silence: when all that was handled is in a checkpoint."""

    inbox: Inbox
    unkept = False
    """Something was handled that is in no checkpoint."""

    def cursors(self) -> dict[str, int]:
        return {} if self.unkept else self.inbox.cursors()


class HostedDriver(SessionDriver):
    """The session of one copy: it ends with its connection."""

    machine: HostedMachine
    progress: HostedProgress

    def __init__(self, address: str, machine: HostedMachine) -> None:
        super().__init__((address,), machine, manual=True)
        self.bell = asyncio.Event()
        """Rung whenever something has happened."""
        self.kept = 0
        """The number of the last durable checkpoint."""
        self.progress = HostedProgress(machine, self.carry_out, self.guard, manual=True)
        ring = self.bell.set
        self.inbox = Inbox(self.registrations.entries, self.progress, machine, ring)
        self.arrivals = self.progress.inbox = self.inbox

    def disconnected(self, reason: str) -> None:
        super().disconnected(reason)
        if self.error is None and self._first_welcome.done():
            self.end(Disconnected(f"the connection to the broker ended: {reason}"))

    def end(self, error: MotetError) -> None:
        super().end(error)
        self.bell.set()

    def _done(self) -> dict[int, dict[str, int]]:
        return {}  # checkpoints have said everything

    def _tell(self, happening: Notice) -> None:
        if isinstance(happening, Kept):
            self.kept = happening.number
            self.bell.set()
            return
        super()._tell(happening)
        if isinstance(happening, Missed):
            log.warning("events of %s are lost: %s", happening.pubend, happening)
        if isinstance(happening, Settled):
            self.bell.set()
            for refusal in happening.refused:
                log.error("a publication of %s was refused: %s", self.machine.client, refusal.text)

    def drop(self) -> None:
        """The broker stops: leave without a goodbye."""
        self.end(Disconnected("the broker stops"))
        if self._line is not None:
            self._line.connection.abort("the broker stops")
