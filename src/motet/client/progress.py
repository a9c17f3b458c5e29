"""How the broker learns what the application is done with.

It learns it a little later and for many events at once: a frame per event would cost more than
the event. Nobody waits for it but the broker's window, and that is far wider than what arrives
in the meantime; who else waits, says so (`hurry`). What a durable client is done with is told
soon, because a later process is given the rest again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from motet.client.machine import ClientMachine

LAG_S = 0.01
PATIENT_S = 1.0
"""How much later, where few events come and nobody waits to hear of them."""
MANY_EVENTS = 256
HASTE_S = 1.0
"""How long, after somebody has asked, what is done with is told soon."""


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
        self._untold = 0
        """Events that have come since the broker was told last."""
        self._hasty_until = 0.0

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

    def brought(self, events: int) -> None:
        """Events have come."""
        self._untold += events
        if not self.armed:
            self.arm()
        elif MANY_EVENTS <= self._untold < MANY_EVENTS + events and self._timer is not None:
            self._timer.cancel()
            self.arm()

    def hurry(self) -> None:
        """Somebody waits to hear what the application is done with."""
        self._hasty_until = self._loop.time() + HASTE_S
        if not self._closed:
            self.tell()

    def arm(self) -> None:
        """The application is done with something."""
        self.armed = True
        self._timer = self._loop.call_later(self._lag_s(), self.tell)

    def _lag_s(self) -> float:
        if self._machine.durable or self._untold >= MANY_EVENTS:
            return LAG_S
        return LAG_S if self._loop.time() < self._hasty_until else PATIENT_S

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
        self._untold = 0
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
