"""Bugs of cells: stale mates, missing waits, frames on the wrong way."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from motet.broker.core.cell.bundle import Bundle
from motet.broker.core.cell.mate import MateInterests
from motet.broker.core.cell.membership import Membership, Mirror
from motet.protocol.cell import belief
from motet.protocol.cell.messages import SidewaysFrame
from motet.protocol.delivery.interest import Interests
from motet.protocol.delivery.neighbours import Acknowledgements
from motet.testing import cluster
from motet.testing.bugs.catalogue import Patch, around, mutation, nothing, replaces

SPARSE: dict[str, Any] = {
    "narrow": True,
    "clients": 6,
    "local": 0.0,
    "timeouts_s": (10.0,),
    "rewiring": False,
    "kept_events": None,
}
"""Few subscriptions match the same events, and no client gives up: an omitted event is noticed."""
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
"""Mates learn late of subscriptions whose events have already arrived."""
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
"""Members know little of each other, and choose different routes."""
VISITED: dict[str, Any] = SPARSE | {
    "narrow": False,
    "clients": 8,
    "durable": 0.0,
    "since": 0.0,
    "total_order": 0.0,
    "chaos_s": 9.0,
    "action_s": 0.012,
    "weights": (60.0, 20.0, 8.0, 40.0, 0.0, 3.0, 3.0),
    "menu": {
        **dict.fromkeys(("amnesia", "kill", "kill_mate", "pause_mate", "orphan"), 0.0),
        **dict.fromkeys(("cut_side", "stall"), 0.0),
        "cut": 6.0,
        "pace_s": 0.15,
    },
}
"""Heads often lose their links, so that streams pass through mates; subscriptions are short."""


@mutation("orphans", "exactly-once", **SPARSE)
def the_silence_of_a_stale_mate_is_believed() -> list[Patch]:
    """The silence of a mate that lost its head counts for subscriptions unknown to the mate."""
    return [Patch(belief, "counts", lambda *_: True)]


@mutation("orphans", "exactly-once", **SPARSE)
@replaces(Acknowledgements, "settled")
def a_cell_acknowledges_for_a_neighbour_that_has_not(self: Any, stream: Any) -> int:
    """A member that has not heard from a neighbour acknowledges in its name."""
    least: int = stream.frontier if stream.hosted else stream.cleared
    own = stream.subend.settled()
    if own is not None:
        least = min(least, own, stream.floor)
    for neighbour in self.wanting(stream):
        told = stream.outs.get(neighbour)
        if told is not None and told.acked is not None:
            least = min(least, told.acked)
    return least


@mutation("orphans", "exactly-once", **LAGGING)
def the_head_of_a_cell_answers_without_waiting_for_its_mates() -> list[Patch]:
    """A subscription leaves the head before its mates know of it: they report its events as
    silence, which counts once they have caught up."""
    return [Patch(Mirror, "withheld", lambda _: 0)]


@mutation("cells", "settles", **LOSSY)
def a_head_keeps_acknowledgements_to_itself() -> list[Patch]:
    """A mate is not told of acknowledgements that its head receives for the mate's events."""
    return [Patch(Membership, "acknowledged", nothing)]


@mutation("cells", "invariants")
@around(Bundle, "_carry")
def what_was_carried_sideways_is_carried_again(
    original: Any, self: Any, frame: Any, out: Any
) -> None:
    """A member that is handed a frame for a neighbour sends it, and hands it on once more."""
    original(self, frame, out)
    mate = next((each for each in self.mates if each.live), None)
    if mate is not None and not frame.said.to:
        again = SidewaysFrame(frame.neighbour, replace(frame.said, to=mate.name))
        out.send.append((mate.connection, again))


@mutation("cells", "settles", **VISITED)
def a_mate_waits_for_clients_of_its_head() -> list[Patch]:
    """A mate waits for acknowledgements of its head's clients even after they have left."""
    return [
        Patch(MateInterests, "is_ours", Interests.is_ours),
        Patch(cluster, "CLIENTS_IN_CELLS", 0.2),
    ]
