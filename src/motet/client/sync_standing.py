"""What an application without `await` holds while a filter of its own is in force."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from math import inf
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from motet.client.client import Wait
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import Subscription
from motet.errors import ClosedError, MotetError
from motet.model import Event, Filter

log = logging.getLogger("motet.client")

S = TypeVar("S", bound=Standing)
Call = Callable[[Coroutine[Any, Any, Any]], Any]
"""Run something on the event loop, behind what was published before, and wait for it."""


class SyncStanding(Generic[S]):
    """What `SyncAdvertisement` and `SyncSubscription` share."""

    def __init__(self, entry: S, call: Call):
        self._entry = entry
        self._call = call

    @property
    def filter(self) -> Filter:
        return self._entry.filter

    @property
    def in_force(self) -> bool:
        return self._entry.in_force

    def _take_back(self, wait: Wait, timeout: float) -> None:
        self._call(self._entry._take_back(wait, timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._take_back("overlay" if error is None else "local", 10.0)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._entry)[1:]}"


class SyncAdvertisement(SyncStanding[Advertisement]):
    """The right to publish events within a filter, until `unadvertise`."""

    def unadvertise(self, *, wait: Wait = "overlay", timeout: float = 10.0) -> None:
        """Take it back. Events within it are refused from now on. Twice is harmless."""
        self._take_back(wait, timeout)


class SyncSubscription(SyncStanding[Subscription]):
    """Iterate over it, or `get` one event at a time, from any thread."""

    def __init__(
        self,
        entry: Subscription,
        call: Call,
        check_process: Callable[[], None],
    ):
        super().__init__(entry, call)
        self._check_process = check_process
        self._arrival = threading.Condition()
        self._waiting = 0
        entry.bell = self._ring

    def _ring(self) -> None:
        # Seen without the lock: whoever waits has counted itself before it looked for an event,
        # so either it saw what has just arrived, or we see it here.
        if self._waiting:
            with self._arrival:
                self._arrival.notify_all()

    def unsubscribe(self, *, wait: Wait = "overlay", timeout: float = 10.0) -> None:
        """Take it back. What is buffered can still be read. Twice is harmless."""
        self._take_back(wait, timeout)

    @property
    def dropped(self) -> int:
        return self._entry.dropped

    @property
    def lost(self) -> int:
        """How often the broker has reported that exactly-once events are gone for good."""
        return self._entry.lost

    @property
    def buffered(self) -> int:
        return self._entry.buffered

    @property
    def cursors(self) -> Mapping[str, int]:
        """By pubend, the tick up to which the application is done with this subscription."""
        return self._entry.cursors

    def get(self, timeout: float | None = None) -> Event:
        """The next event; `TimeoutError` if none comes in time, `ClosedError` after the end.

        Asking for it says that all that was taken before, by whatever thread, is done with.
        """
        event = self._entry.get_nowait()
        if event is not None:
            return event
        self._check_process()
        deadline = inf if timeout is None else time.monotonic() + timeout
        with self._arrival:
            self._waiting += 1
            try:
                while True:
                    over = self._entry.over
                    event = self._entry.get_nowait()
                    if event is not None:
                        return event
                    if over:
                        raise self._entry.error or ClosedError("the subscription is over")
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        raise TimeoutError(f"no event within {timeout:g} s")
                    self._arrival.wait(min(left_s, threading.TIMEOUT_MAX))
            finally:
                self._waiting -= 1

    def call_back(self, callback: Callable[[Event], object]) -> None:
        """From now on a thread of its own takes the events, and calls back."""
        threading.Thread(target=_read_for, args=(self, callback), daemon=True).start()

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Iterate until the end, or until no event has come for `timeout` seconds."""
        while True:
            try:
                yield self.get(timeout)
            except (ClosedError, TimeoutError):
                return


def _read_for(subscription: SyncSubscription, callback: Callable[[Event], object]) -> None:
    entry = subscription._entry
    try:
        for event in subscription:
            try:
                callback(event)
            except Exception as error:
                entry.callback_errors += 1
                entry.last_callback_error = error
                log.exception("the callback of %r failed", subscription)
    except MotetError as error:
        log.warning("%r ended: %s", subscription, error)
