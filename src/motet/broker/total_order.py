"""Clients in total order: which pubends each of them waits for, and how far ticks may go.

A merge is safe by itself: it gives events in one order or not at all. That nothing is left out
rests on two things (decision 21). A pubend that a client will merge stops its merge until the start
is known: `protocol.routing.joins` says which ones these are. And our own ticks lie above all that
clients here have been given, and above all silence that we have announced, whatever happens:
`TicksReserved` says so before it is true, for some seconds at once.
"""

from __future__ import annotations

from motet.model import Hop
from motet.protocol.routing.state import RoutingState

AHEAD = 10_000_000
"""Ticks that are reserved at once: one fact in ten seconds."""


class TotalOrder:
    def __init__(self, state: RoutingState) -> None:
        self._state = state
        self.clients: dict[str, None] = {}
        """Those that are here."""

    def enter(self, client: str) -> list[str]:
        """A client comes; the pubends it must wait for."""
        self.clients[client] = None
        return self.awaited(client)

    def leave(self, client: str) -> None:
        self.clients.pop(client, None)

    def awaited(self, client: str) -> list[str]:
        """The pubends at which subscriptions of a client will start."""
        state = self._state
        own = state.subscriptions.from_source(Hop.client(client))
        found = (pubend for each in own for pubend in state.joins.get(each.id, ()))
        return list(dict.fromkeys(found))


class Reserve:
    """How far our ticks may go at once, and how far they may not go before the journal says so.

    What is above `sure` needs a fact in the same step; until that is known to be durable, so does
    every further step that goes there."""

    def __init__(self, reserved: int) -> None:
        self.sure = self._asked = reserved

    def need(self, tick: int) -> int:
        """What must be reserved before this tick is used; 0 if nothing."""
        if tick <= self.sure:
            return 0
        if tick > self._asked:
            self._asked = tick + AHEAD
        return self._asked

    def durable(self, upto: int) -> None:
        self.sure = max(self.sure, upto)
