"""How the broker learns what the application is done with.

It learns it a little later and for many events at once: a frame per event would cost more than
the event. Nobody waits for it but the broker's window, and that is far wider than what arrives
in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from motet.client.machine import ClientMachine

LAG_S = 0.01


class Reader(Protocol):
    """Hands events to the application, and knows which of them it is done with."""

    def owed(self) -> dict[str, int]:
        """By pubend with events that the application is not done with: the tick before them."""
        ...


class Progress:
    def __init__(
        self, machine: ClientMachine, carry_out: Callable[[], None], *, manual: bool = False
    ) -> None:
        self.armed = False
        """The broker will be told soon: no need to ask for it again."""
        self.begun = False
        """The application has begun to read."""
        self.manual = manual
        """The application says itself what it is done with."""
        self._machine = machine
        self._carry_out = carry_out
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._busy: dict[Reader, None] = {}
        """Those with events that the application is not done with, and perhaps some more."""
        self._cursors: dict[str, int] = {}
        self._closed = False

    def busy(self, reader: Reader) -> None:
        self._busy[reader] = None

    def begin(self) -> None:
        """The application wants to read an event."""
        if not self.begun:
            self.begun = True
            self._machine.ready()
            self._carry_out()

    def begin_from_any_thread(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the client
            self._loop.call_soon_threadsafe(self.begin)

    def arm(self) -> None:
        """The application is done with something."""
        self.armed = True
        self._timer = self._loop.call_later(LAG_S, self.tell)

    def arm_from_any_thread(self) -> None:
        self.armed = True
        with suppress(RuntimeError):  # the loop is closed, and with it the client
            self._loop.call_soon_threadsafe(self._arm_again)

    def _arm_again(self) -> None:
        if self._timer is None and not self._closed:
            self.arm()

    def tell(self) -> None:
        """Tell the broker now."""
        self._disarm()
        for pubend, upto in self.cursors().items():
            self._machine.processed(pubend, upto)
        self._carry_out()

    def close(self) -> None:
        """Nobody is there to be told any more."""
        self._closed = True
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.armed = self._closed

    def cursors_of(self, reader: Reader) -> dict[str, int]:
        """The same, as far as one of the readers is concerned."""
        now = dict(self._machine.horizons)
        for pubend, upto in reader.owed().items():
            now[pubend] = min(now.get(pubend, upto), upto)
        return now

    def cursors(self) -> dict[str, int]:
        """By pubend: the application is done with everything up to this tick."""
        now = dict(self._machine.horizons)
        for reader in list(self._busy):
            owed = reader.owed()
            if not owed:
                del self._busy[reader]
            for pubend, upto in owed.items():
                now[pubend] = min(now.get(pubend, upto), upto)
        self._cursors.update(now)
        return self._cursors
