"""Bugs in the order that all clients in total order share."""

from __future__ import annotations

from collections import deque
from typing import Any

from motet.broker.total_order import Reserve
from motet.protocol.delivery.merge import Merge
from motet.protocol.routing.joins import Joins
from motet.protocol.routing.starts import Starts
from motet.testing.bugs.catalogue import mutation, nothing
from motet.testing.patches import Patch

MANY: dict[str, Any] = {"total_order": 1.0, "sync": 1.0, "skew_s": 3.0}
EAGER: dict[str, Any] = {
    "timeouts_s": (10.0,),
    "local": 0.0,
    "action_s": 0.02,
    "lease_s": 15.0,
    "weights": (80.0, 5.0, 10.0, 0.5, 3.0, 0.2, 0.5),
}
"""Many advertise, and those who subscribe stay."""
FEW: dict[str, Any] = EAGER | {"clients": 10, "weights": (80.0, 8.0, 2.0, 0.5, 1.0, 0.2, 0.5)}
"""A broker whose clients advertise late has not been merged by anybody before."""


QUIET: dict[str, Any] = {
    "total_order": 1.0,
    "skew_s": 20.0,
    "timeouts_s": (10.0,),
    "local": 0.0,
    "durable": 0.0,
    "since": 0.0,
    "rewiring": False,
    "kept_events": None,
    "lease_s": 15.0,
    "hop_s": (0.001, 0.01),
    "clients": 8,
    "chaos_s": 10.0,
    "action_s": 0.03,
    "weights": (90.0, 5.0, 3.0, 0.0, 0.0, 0.0, 0.0),
    "menu": {"sure": True, "kill": 1.0, "pace_s": 0.7},
}
"""Clocks are far apart, and so little is asked for that nothing else makes ticks durable."""


@mutation("delivery", "total-order", **MANY)
def nobody_waits_for_a_quiet_pubend() -> list[Patch]:
    """A merge releases what it has, as if pubends of which nothing came had nothing."""

    def hasty(self: Any) -> int:
        return max(self._horizons.values(), default=0)

    return [Patch(Merge, "_bound", hasty)]


@mutation("delivery", "exactly-once", **MANY, **EAGER)
def merges_go_on_while_a_pubend_begins() -> list[Patch]:
    """Between an advertisement and the start there, a merge overtakes what will be published."""
    return [Patch(Merge, "expect_only", nothing)]


@mutation("delivery", "exactly-once", **MANY, **FEW)
def nobody_is_asked_to_start_above_a_merge() -> list[Patch]:
    """A pubend starts those who merge at its own next tick, though they have been given what lies
    above it, and what it has written once is not written again."""

    def at_once(self: Any, message: Any, source: Any) -> None:
        self.state.joins.get(message.op, {}).pop(message.pubend, None)
        self._effects.awaiting[message.op.client] = None
        Starts._started(self, message, source)

    def at_its_own_tick(self: Any, entry: Any, above: int) -> None:
        del above
        self._start(entry)

    return [
        Patch(Joins, "_started", at_once),
        Patch(Joins, "_start_above", at_its_own_tick),
        Patch(Joins, "_join", nothing),
    ]


@mutation("delivery", "total-order", **MANY, **FEW)
def pubends_join_below_what_was_released() -> list[Patch]:
    """Merges go on while a pubend begins, and then give what lies below what they gave."""

    def early(self: Any, pubend: str, given: int) -> None:
        self._expected.pop(pubend, None)
        self._finished.pop(pubend, None)
        self._horizons[pubend] = self._floors[pubend] = given
        self._queues.setdefault(pubend, deque())

    return [Patch(Merge, "expect_only", nothing), Patch(Merge, "join", early)]


@mutation("calm", "exactly-once", **QUIET)
def silence_is_forgotten_in_a_crash() -> list[Patch]:
    """A pubend says that it passed a tick, and after a crash gives that tick to an event."""
    return [Patch(Reserve, "need", lambda *_: 0)]
