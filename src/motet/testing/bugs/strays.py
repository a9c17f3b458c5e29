"""Bugs with best-effort events that follow a client."""

from __future__ import annotations

from typing import Any

from motet.protocol.mobility.strays import SoftStrays
from motet.testing.bugs.catalogue import around, mutation, replaces

OFTEN: dict[str, Any] = {"sure_share": 0.1, "move_s": 0.04}


@mutation("moves", "completeness", **OFTEN)
@replaces(SoftStrays, "_turned")
def events_that_come_back_are_dropped(self: Any, batch: Any, neighbour: str, out: Any) -> None:
    """Events that a broker gets from where a client has gone do not follow the client."""


@mutation("moves", "duplicates", **OFTEN)
@replaces(SoftStrays, "_is_known")
def events_follow_where_they_come_from(self: Any, passing: Any) -> bool:
    """Events follow a client even if the next broker knows that it has come."""
    if passing.connection:
        return False
    return bool(self._shared.links[passing.suc].ledger.confirmed >= passing.upto)


@mutation("moves", "completeness", **OFTEN)
@replaces(SoftStrays, "_arrived")
def nothing_is_kept_for_an_arriving_client(self: Any, arrived: Any, out: Any, now: float) -> None:
    """The target of a move delivers at once, even if the client is not connected."""


@mutation("moves", "order", **OFTEN)
@around(SoftStrays, "_all_came")
def newer_events_come_first(original: Any, self: Any, arriving: Any, out: Any, now: float) -> None:
    """A client gets what came over its new rows before what follows it."""
    arriving.kept, arriving.newer = arriving.newer, arriving.kept
    original(self, arriving, out, now)


@mutation("moves", "order", **OFTEN)
@around(SoftStrays, "_turned")
def a_broker_sends_its_strays_first(
    original: Any, self: Any, batch: Any, neighbour: str, out: Any
) -> None:
    """A broker on the path does not wait for the events that follow from the one before it."""
    original(self, batch, neighbour, out)
    for passing in self._passing.values():
        kept, passing.kept = passing.kept, []
        self._kept_bytes -= passing.kept_bytes
        passing.kept_bytes = 0
        self._send(passing, kept, out)
