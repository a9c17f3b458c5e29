"""Bugs in moves of sessions: in what goes along, in what brokers on the path keep, and in the order
of a publisher's events. Decision 39 says which rule each of them breaks."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from motet.protocol.delivery.interest import Interests
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.mobility.durable import DurableMobility
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import MovingStarts
from motet.protocol.routing.relocation import Relocation
from motet.protocol.routing.state import announced_home
from motet.protocol.session.durable import DurableSessions
from motet.protocol.transactions.courier import Courier
from motet.testing.bugs.catalogue import Patch, around, mutation, nothing, patched
from motet.testing.bugs.transactions import CALM, SHORT

OFTEN: dict[str, Any] = {"move_s": 0.04}
TOTAL: dict[str, Any] = {**OFTEN, "total_order": 0.7, "hop_s": (0.001, 0.05)}
"""Most clients are in total order."""
NARROW: dict[str, Any] = {
    **OFTEN,
    "narrow": True,
    "clients": 6,
    "weights": (40.0, 14.0, 3.0, 6.0, 4.0, 1.0, 1.0),
}
"""Few advertisements: many subscriptions are needed at few brokers."""
BROKEN_LINES: dict[str, Any] = {
    **OFTEN,
    "menu": {"drop_client": 1.0, "pace_s": 0.05},
    "harmed": 0.0,
}

# ── rows ─────────────────────────────────────────────────────────────────────────────────


@mutation("moves", "effective", "completeness", "exactly-once", **OFTEN)
@around(Relocation, "_turn_advertisement")
def a_moving_advertisement_attracts_nothing(original: Any, self: Any, *args: Any) -> None:
    """Subscriptions from behind a publisher, or from aside, do not follow it along the path."""
    with patched([Patch(Routing, "attract", nothing)]):
        original(self, *args)


@mutation("moves", "routing", **OFTEN)
@around(Relocation, "_turn_advertisement")
def a_moving_advertisement_leaves_subscriptions(original: Any, self: Any, *args: Any) -> None:
    """Subscriptions stay where a publisher was, although nobody advertises for them there."""
    with patched([Patch(Routing, "withdraw_unsupported", nothing)]):
        original(self, *args)


@mutation("moves", "routing", **NARROW)
def needless_rows_stay() -> list[Patch]:
    """Brokers keep rows on a former path for which nobody advertises."""
    return [Patch(Relocation, "withdraw", lambda self, *_: self._routing.take())]


@mutation("moves", "routing", "effective", **NARROW)
@around(Relocation, "withdraw")
def removals_do_not_wait_for_the_former_path(original: Any, self: Any, *args: Any) -> Any:
    """A subscription that has moved is reported removed while the former path may still have it."""
    waits = self._state.waits
    before = set(waits)
    changes = original(self, *args)
    for op in set(waits) - before:
        del waits[op]
    return changes


# ── positions ────────────────────────────────────────────────────────────────────────────


@mutation("moves", "exactly-once", **OFTEN)
def nothing_is_pinned() -> list[Patch]:
    """Brokers on the path acknowledge what a client on its way has not."""
    return [Patch(Interests, "pinned", lambda *_: 1 << 62)]


@mutation("moves", "exactly-once", first=1, **OFTEN)
def what_a_neighbour_had_acknowledged_stands() -> list[Patch]:
    """When a client has arrived behind a neighbour, what this one had acknowledged before is not
    needed again."""
    return [Patch(DeliveryMachine, "again", nothing)]


@mutation("moves", "exactly-once", **OFTEN)
def nothing_is_doubted() -> list[Patch]:
    """The target believes brokers on the path that call ticks silent, although they did not know
    the rows of the client."""
    return [Patch(SoftMobility, "_doubt", lambda *_: 0)]


@mutation("moves", "exactly-once", **TOTAL)
def only_the_source_doubts() -> list[Patch]:
    """What brokers on the path have heard of is not gathered."""
    return [Patch(SoftMobility, "_heard", lambda *_: {})]


@mutation("moves", "exactly-once", first=1, **OFTEN)
@around(DurableMobility, "_decided")
def the_source_does_not_doubt(original: Any, self: Any, fact: MoveDecided) -> None:
    """What the source has heard of is not gathered."""
    original(self, replace(fact, doubts={}))


@mutation("moves", "exactly-once", **OFTEN)
@around(DurableMobility, "_decided")
def levels_stay_behind(original: Any, self: Any, fact: MoveDecided) -> None:
    """The target does not know what a client has acknowledged."""
    original(self, replace(fact, levels={}))


@mutation("moves", "exactly-once", **OFTEN)
@around(Relocation, "take_starts")
def starts_stay_behind(original: Any, self: Any, subscriptions: Any) -> MovingStarts:
    """The target does not know where subscriptions have started."""
    original(self, subscriptions)
    return MovingStarts()


@mutation("moves", "exactly-once", **OFTEN)
def nothing_starts_behind_a_move() -> list[Patch]:
    """A subscription that meets its publisher during a move does not start in the new log."""
    return [Patch(Relocation, "begin", lambda self, _: self._routing.take())]


# ── publishers ───────────────────────────────────────────────────────────────────────────


@mutation("moves", "duplicates", "answers", first=10, **BROKEN_LINES)
@around(DurableMobility, "_decided")
def publications_are_counted_anew(original: Any, self: Any, fact: MoveDecided) -> None:
    """The target does not know which publications are in other logs."""
    original(self, replace(fact, carried=0))


@mutation("moves", "exactly-once", "order", **OFTEN)
@around(DurableMobility, "_decided")
def no_residue_is_left(original: Any, self: Any, fact: MoveDecided) -> None:
    """Events that are still owed lose their routes when their publisher moves."""
    original(self, replace(fact, last=0, upto=max(fact.tick, 1)))


@mutation("moves", "order", **OFTEN)
def predecessors_are_not_named() -> list[Patch]:
    """The log where a publisher continues has no record of its earlier events."""
    return [Patch(DurableMobility, "predecessors", lambda *_: {})]


@mutation("moves", "exactly-once", "total-order", first=4, **TOTAL)
def clients_in_total_order_are_not_asked() -> list[Patch]:
    """A publisher does not wait until clients in total order have asked for their starts in its
    new log."""
    return [Patch(Relocation, "probe", nothing)]


@mutation("moves", "exactly-once", "total-order", first=3, **OFTEN)
def clients_in_total_order_do_not_ask_on_the_path() -> list[Patch]:
    """Brokers on the path do not ask for starts of their clients in total order."""
    return [Patch(Routing, "ask_to_join", nothing)]


@mutation("moves", "exactly-once", "total-order", **TOTAL)
@around(Routing, "_rehomed")
def clients_in_total_order_do_not_ask_off_the_path(
    original: Any, self: Any, message: Any, source: Any
) -> None:
    """Nor do brokers off the path, who have heard whose log the events are in."""
    with patched([Patch(Routing, "attract", nothing)]):
        original(self, message, source)


@mutation("moves", "exactly-once", "routing", **TOTAL)
def publications_wait_for_nothing() -> list[Patch]:
    """A publisher that has arrived publishes at once."""
    return [Patch(SoftMobility, "_may_publish", lambda *_: True)]


@mutation("moves", "routing", "invariants", **OFTEN)
def nobody_off_the_path_is_told() -> list[Patch]:
    """Brokers off the path do not hear in whose log the events of an advertisement are."""
    return [Patch(Routing, "rehome", nothing)]


@mutation("moves", "routing", "invariants", **OFTEN)
@around(Routing, "_rehomed")
def nobody_off_the_path_is_told_of_residues(
    original: Any, self: Any, message: Any, source: Any
) -> None:
    """Brokers off the path hear of the new home, but not of the copy that stays at the former
    one."""
    original(self, replace(message, residue=None), source)


# ── the session ──────────────────────────────────────────────────────────────────────────


@mutation("moves", "copies", "invariants", "sessions", **OFTEN)
def the_source_keeps_the_session() -> list[Patch]:
    """A session that has left is still there."""
    return [Patch(DurableSessions, "depart", nothing)]


@mutation("moves", "moves", **OFTEN)
def nobody_is_sent_on() -> list[Patch]:
    """A client that comes to the former broker of its session gets a new one."""
    return [Patch(SoftMobility, "_redirect", lambda *_: False)]


@mutation("moves", "moves", **OFTEN)
def early_clients_are_not_awaited() -> list[Patch]:
    """A client that comes before its session gets a new one."""
    return [Patch(SoftMobility, "_is_on_its_way", lambda *_: False)]


@mutation("moves", "routing", "effective", "answers", **OFTEN)
def requests_are_not_waited_for() -> list[Patch]:
    """A session leaves while requests of it are unanswered."""
    return [Patch(SoftMobility, "_busy", lambda *_: "")]


@mutation("moves", "effective", "answers", **OFTEN)
def requests_do_not_wait() -> list[Patch]:
    """What a client asks for while it is about to leave takes effect where it was."""
    return [Patch(SoftMobility, "_hold", lambda *_: False)]


@mutation("moves", "invariants", "answers", "soundness", **OFTEN)
@around(SoftMobility, "_refuse")
def what_was_kept_back_is_lost(original: Any, self: Any, departure: Any, *args: Any) -> None:
    """A client that stays is not answered what it has asked meanwhile."""
    departure.held.clear()
    original(self, departure, *args)


@mutation("mobility", "answers", **{**SHORT, **OFTEN, "menu": CALM, "harmed": 0.0})
def letters_go_to_announced_homes() -> list[Patch]:
    """Brokers send letters for a client to where its session began."""

    def follow(self: Any, body: Any) -> None:
        epoch = self._addressee(body)[1]
        self.post(announced_home(epoch) if epoch else self.name, body)

    def forward(self: Any, letter: Any, source: Any) -> None:
        del source
        self.post(letter.broker, letter.body)

    return [Patch(Courier, "follow", follow), Patch(Courier, "forward", forward)]
