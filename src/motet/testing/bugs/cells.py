"""Bugs of cells: whose word counts, who waits for whom, who carries what."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from motet.broker.cell.bundle import Bundle
from motet.broker.cell.membership import Membership
from motet.broker.cell.mirror import Mirror
from motet.protocol.cell import belief
from motet.protocol.cell.messages import Sideways
from motet.protocol.delivery.acknowledging import Acknowledging
from motet.testing.bugs.catalogue import mutation, nothing
from motet.testing.patches import Patch

SPARSE: dict[str, Any] = {
    "narrow": True,
    "clients": 6,
    "local": 0.0,
    "timeouts_s": (10.0,),
    "rewiring": False,
    "kept_events": None,
}
"""Few want the same, nobody gives up: what is left out is missed."""
LAGGING: dict[str, Any] = SPARSE | {
    "durable": 0.0,
    "since": 0.0,
    "total_order": 0.0,
    "sync": 0.0,
    "hop_s": (0.001, 0.01),
    "chaos_s": 5.0,
    "action_s": 0.012,
    "weights": (60.0, 20.0, 6.0, 6.0, 1.0, 0.5, 1.0),
    "menu": {"orphan": 0.0, "pause_mate": 0.0, "kill": 0.0, "lag": 1.0, "pace_s": 0.2},
}
"""Mates hear late of subscriptions whose events are there already."""
LOSSY: dict[str, Any] = SPARSE | {
    "durable": 0.0,
    "since": 0.0,
    "total_order": 0.0,
    "narrow": False,
    "clients": 10,
    "chaos_s": 5.0,
    "action_s": 0.01,
    "hop_s": (0.001, 0.01),
    "weights": (80.0, 20.0, 4.0, 1.0, 0.0, 4.0, 6.0),
    "menu": {
        "rough_links": 1.0,
        "rough_sides": 1.0,
        "loss": 0.15,
        "kill": 0.0,
        "amnesia": 0.0,
        "pace_s": 5.0,
    },
}
"""Members know little of each other, and choose different ways."""


@mutation("orphans", "exactly-once", **SPARSE)
def the_silence_of_a_stale_mate_is_believed() -> list[Patch]:
    """A mate that lost its head hides events of subscriptions that it does not know, and nobody
    asks how much it knows."""
    return [Patch(belief, "counts", lambda *_: True)]


@mutation("orphans", "exactly-once", **SPARSE)
def a_cell_acknowledges_for_a_neighbour_that_has_not() -> list[Patch]:
    """A member that has not heard from a neighbour acknowledges in its name."""

    def of_those_who_spoke(self: Any, stream: Any) -> int:
        least: int = stream.frontier if stream.hosted else stream.cleared
        own = stream.subend.settled()
        if own is not None:
            least = min(least, own, stream.floor)
        for neighbour in self.wanting(stream):
            told = stream.outs.get(neighbour)
            if told is not None and told.acked is not None:
                least = min(least, told.acked)
        return least

    return [Patch(Acknowledging, "settled", of_those_who_spoke)]


@mutation("orphans", "exactly-once", **LAGGING)
def the_head_of_a_cell_answers_without_waiting_for_its_mates() -> list[Patch]:
    """A subscription leaves the head before its mates know of it: they take its events for
    silence, and that is believed when they have caught up."""
    return [Patch(Mirror, "withheld", lambda _: 0)]


@mutation("cells", "settles", **LOSSY)
def a_head_keeps_acknowledgements_to_itself() -> list[Patch]:
    """What a neighbour acknowledges to the head never comes to the mate that passed the events."""
    return [Patch(Membership, "acknowledged", nothing)]


@mutation("cells", "invariants")
def what_was_carried_sideways_is_carried_again() -> list[Patch]:
    """Whoever is handed a frame for a neighbour sends it, and hands it on once more, to be sure."""
    original = Bundle.carry

    def twice(self: Any, frame: Any, out: Any) -> None:
        original(self, frame, out)
        mate = next((each for each in self.mates if each.live), None)
        if mate is not None and not frame.said.to:
            again = Sideways(frame.neighbour, replace(frame.said, to=mate.name))
            out.send.append((mate.connection, again))

    return [Patch(Bundle, "carry", twice)]
