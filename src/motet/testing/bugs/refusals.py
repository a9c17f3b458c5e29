"""Bugs in what moves leave alone: everything until they are decided, and brokers off their path."""

from __future__ import annotations

from typing import Any

from motet.protocol.changes import Changes
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.routing.relocation import Relocated, Relocation
from motet.protocol.session.facts import SessionDropped
from motet.testing.bugs.catalogue import around, mutation

OFTEN: dict[str, Any] = {"move_s": 0.04}


@mutation("moves", "moves", **OFTEN)
@around(SoftMobility, "_refuse")
def a_refused_client_counts_as_away(
    original: Any, self: Any, departure: Any, problem: Any, out: Any, now: float, *rest: Any
) -> None:
    """A broker that refuses a move writes down that its client is gone."""
    if departure.client in self._shared.clients:
        fact = SessionDropped(departure.client, departure.epoch)
        self._shared.journal(fact, out, now)
    original(self, departure, problem, out, now, *rest)


@mutation("moves", "moves", first=3, **OFTEN)
@around(Relocation, "begin")
def a_move_is_told_to_all_neighbours(original: Any, self: Any, moving: Relocated) -> Changes:
    """Brokers on the path tell all neighbours of the subscriptions, wanted there or not."""
    routing, state = self._routing, self._state
    for row in moving.subscriptions:
        entry = state.subscriptions.get(row.id)
        if entry is not None:
            aside = state.bits.all_neighbours & ~entry.sent & ~self._bit(entry.source)
            for neighbour in state.bits.names(aside):
                routing.pass_on(entry, neighbour, echo=False)
    changes: Changes = original(self, moving)
    return changes
