"""Bugs in exactly-once delivery and in total order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from motet.client.session.machine import ClientMachine
from motet.model import Hop
from motet.protocol.contract import Logged, Remembered
from motet.protocol.delivery.clients import Clients
from motet.protocol.delivery.interest import Interests
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import Knowledge
from motet.protocol.delivery.neighbours import Acknowledgements, Relay
from motet.protocol.delivery.soft import Streams
from motet.protocol.delivery.spans import Span
from motet.protocol.delivery.stream import AskedRanges, Curiosity, Patience
from motet.protocol.delivery.subend import Position, Subend
from motet.protocol.delivery.total_order import Merge, Reserve
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import Unadvertise
from motet.protocol.routing.obligations import Obligations
from motet.protocol.routing.starts import Joins, Starts
from motet.protocol.session.soft import SoftSessions
from motet.testing.bugs.catalogue import Maker, Patch, around, mutation, nothing, replaces
from motet.testing.workload import KEPT_BY_MOST, TIGHT

SHORT = {"clients": 5, "chaos_s": 5.0, "action_s": 0.03}
"""Most bugs show in a few seconds of a few clients."""

UPHEAVAL = {"kill": 6.0, "log_failure": 3.0, "pace_s": 0.25}
PLAIN: dict[str, Any] = {
    "local": 0.0,
    "timeouts_s": (10.0,),
    "lease_s": 15.0,
    "durable": 0.0,
    "since": 0.0,
    "total_order": 0.0,
    "kept_events": None,
    "rewiring": False,
}
"""Long timeouts, no special clients, and no losses that a checker would excuse."""
DEATHS: dict[str, Any] = PLAIN | {
    "menu": {"sure": True, "kill": 1.0, "pace_s": 0.7},
    "limits": TIGHT,
    "clients": 7,
    "chaos_s": 6.0,
    "action_s": 0.015,
    "weights": (80.0, 8.0, 6.0, 1.0, 1.0, 0.0, 1.0),
}
"""Many events, few arrivals and departures, and brokers that die and restart."""
STEADY: dict[str, Any] = PLAIN | {
    "narrow": True,
    "limits": TIGHT,
    "outbox_bound": KEPT_BY_MOST,
    "process_s": 0.05,
    "hop_s": (0.001, 0.01),
    "sync": 0.0,
}
"""All clients stay and are quick, so that withdrawn advertisements are really removed."""
FICKLE: dict[str, Any] = PLAIN | {
    "menu": {"sure": True, "rough_links": 1.0, "loss": 0.4, "control_loss": 0.01},
    "limits": TIGHT,
    "control_chunk": 512,
    "clients": 6,
    "chaos_s": 5.0,
    "weights": (60.0, 8.0, 10.0, 0.0, 10.0, 0.0, 0.0),
}
"""Advertisements come and go while links lose many stream frames and hardly any control."""
STRANGE: dict[str, Any] = PLAIN | {
    "menu": {"sure": True, "amnesia": 1.0, "kill": 0.3, "pace_s": 0.7},
    "limits": TIGHT,
    "control_chunk": 1,
    "clients": 8,
    "chaos_s": 6.0,
    "action_s": 0.015,
    "weights": (80.0, 8.0, 6.0, 1.0, 1.0, 0.0, 1.0),
}
"""Brokers lose all their state; there are few other faults."""
OVERTAKING: dict[str, Any] = PLAIN | {
    "menu": {"sure": True, "rough_links": 1.0, "loss": 0.4, "control_loss": 0.2},
    "clients": 12,
    "chaos_s": 5.0,
    "action_s": 0.007,
    "burst": 0.0,
    "hop_s": (0.001, 0.01),
    "sync": 0.0,
    "weights": (80.0, 20.0, 4.0, 6.0, 0.0, 4.0, 8.0),
}
"""Streams report some of the starts, before control does."""


def bug(*breaks: str, **needs: Any) -> Callable[[Maker], Maker]:
    return mutation("delivery", *breaks, **{**SHORT, **needs})


def _forgotten(**known: Any) -> list[Patch]:
    """A restarting broker does not get what the pubend's log knows of its sessions."""
    recall, begin = SoftSessions.recall, Streams.begin

    def forgetful(self: Any, remembered: Remembered) -> None:
        recall(self, remembered._replace(**known))

    def blank(self: Any, remembered: Remembered, out: Any, now: float) -> None:
        begin(self, remembered._replace(**known), out, now)

    return [Patch(SoftSessions, "recall", forgetful), Patch(Streams, "begin", blank)]


# ── publishing ───────────────────────────────────────────────────────────────────────────


@bug("duplicates", "exactly-once", "order", "invariants", first=7, sync=4.0, menu=UPHEAVAL)
@around(Streams, "publish")
def published_before_durable(original: Any, self: Any, *args: Any) -> None:
    """An event enters its stream, and its publisher is told so, once it is in the log but not yet
    on disk."""
    original(self, *args)
    *_, out, now = args
    self._logged(Logged(self.unlogged.appended), out, now)


@bug("exactly-once", "soundness", first=16, sync=4.0)
@around(Streams, "publish")
def receipt_before_durable(
    original: Any, self: Any, client: str, epoch: str, first: int, *args: Any
) -> None:
    """A publisher is told that its event is safe before the log has synced."""
    original(self, client, epoch, first, *args)
    bodies, refused, out, _ = args
    upto = first + len(bodies) + len(refused) - 1
    self.settled(client, epoch, upto, refused, out)


@bug("duplicates", "exactly-once", first=10, sync=4.0, menu=UPHEAVAL)
def sequences_are_forgotten_in_a_restart() -> list[Patch]:
    """A broker forgets in a restart what a session has published, and accepts it twice."""
    return _forgotten(published={})


# ── acknowledging ────────────────────────────────────────────────────────────────────────


@bug("exactly-once", first=5, limits=TIGHT, process_s=0.5)
@replaces(Position, "settled")
def acknowledged_before_processed(self: Any, horizon: int | None) -> int:
    """A broker acknowledges what it has given to a client before the client acknowledges it."""
    return int(self.standing(horizon))


@bug("exactly-once", limits=TIGHT)
def acknowledged_without_the_slowest_hop() -> list[Patch]:
    """A broker acknowledges for its own clients without waiting for the brokers downstream."""
    return [Patch(Acknowledgements, "wanting", lambda *_: [])]


@mutation("calm", "exactly-once", first=8, **DEATHS)
@around(Streams, "_carry")
def floors_are_not_durable(original: Any, self: Any, effects: Any, out: Any, now: float) -> None:
    """A broker acknowledges the floor of its clients without journaling it."""
    effects.floors.clear()
    original(self, effects, out, now)


@bug("exactly-once", "settles")
def acknowledgements_are_not_expected() -> list[Patch]:
    """Missing acknowledgements are not asked for: a frame lost at the end of a stream stays
    lost."""
    return [Patch(Acknowledgements, "expect", nothing)]


# ── asking ───────────────────────────────────────────────────────────────────────────────


@bug("exactly-once", "settles", "answers")
def nacks_are_not_repeated() -> list[Patch]:
    """A nack is sent only once."""
    return [
        Patch(Patience, "wait_s", lambda *_: inf),
        Patch(Curiosity, "hurry", nothing),
        Patch(Curiosity, "heard", nothing),
    ]


@bug("exactly-once", "settles", "answers", first=5)
def what_was_asked_is_never_asked_again() -> list[Patch]:
    """A broker never forwards a nack for ranges that it has forwarded before."""
    original = AskedRanges.fresh

    def once(self: Any, ranges: Any, now: float) -> Any:
        del now
        return original(self, ranges, 0.0)

    return [Patch(AskedRanges, "fresh", once), Patch(AskedRanges, "clear", nothing)]


@bug("exactly-once", limits=TIGHT)
@around(Relay, "answer")
def forgotten_ticks_are_answered_as_silence(
    original: Any, self: Any, stream: Any, neighbour: str, *args: Any
) -> Any:
    """A broker that no longer remembers a tick reports it as silence."""
    missing, cut = original(self, stream, neighbour, *args)
    *_, send = args
    for low, high in missing:
        if high <= stream.known.top:
            send.append((neighbour, Knowledge(stream.pubend, Span(low, high), True)))
    return [part for part in missing if part[1] > stream.known.top], cut


@bug("exactly-once", limits=TIGHT, kept_events=4)
@around(DeliveryMachine, "read_done")
def trimmed_ticks_are_answered_as_silence(
    original: Any, self: Any, want: Any, spans: Any, out: Any
) -> None:
    """Ticks that were dropped from the log are reported as silence instead of as lost."""
    quiet = [Span(each.since, each.upto) if each.lost else each for each in spans]
    original(self, want, quiet, out)


# ── delivering ───────────────────────────────────────────────────────────────────────────


@bug("exactly-once")
@around(DeliveryMachine, "_news")
def gaps_are_ignored(original: Any, self: Any, stream: Any, span: Span, *args: Any) -> None:
    """A broker delivers events as they arrive, even if earlier ones are missing."""
    horizon = stream.subend.horizon
    if horizon is not None and span.since > horizon + 1:
        stream.subend.horizon = span.since - 1
    original(self, stream, span, *args)


@bug("duplicates", "order", process_s=0.5)
@around(ClientMachine, "opened")
def cursors_are_lost_with_the_connection(original: Any, self: Any) -> None:
    """A client that reconnects forgets what it has received."""
    self.streams.begin_again()
    original(self)


@bug("soundness")
@around(Position, "begin")
def start_ticks_are_ignored(
    original: Any, self: Any, subscription: int, tick: int, tentative: bool = False
) -> None:
    """A subscription gets events that were published before its start."""
    del tick
    original(self, subscription, 0, tentative)


@bug("exactly-once", "settles")
@around(Streams, "begin")
def starts_are_forgotten_in_a_restart(
    original: Any, self: Any, remembered: Remembered, out: Any, now: float
) -> None:
    """A restarted broker does not know what its clients are owed."""
    starts = self._shared.durable.routing.starts.known
    kept = dict(starts)
    starts.clear()
    original(self, remembered, out, now)
    starts.update(kept)


@bug("exactly-once")
def subscriptions_that_were_there_first_do_not_start() -> list[Patch]:
    """Only subscriptions younger than an advertisement are owed what is published under it."""
    return [Patch(Starts, "start_attracted", nothing)]


@bug("exactly-once", limits=TIGHT, process_s=0.5)
@replaces(Subend, "_catch")
def who_is_behind_gets_the_newest(self: Any, position: Any) -> None:
    """A client that has fallen behind is given the newest events, not those that it has missed."""
    position.live = True
    self.live += 1
    self.behind.pop(position.client, None)


@bug("exactly-once")
@around(Position, "withdraw")
def unread_is_taken_for_read(original: Any, self: Any, horizon: int | None) -> None:
    """Events that were on the way to a client when its connection broke count as acknowledged."""
    given = self.standing(horizon)
    original(self, horizon)
    self.given = self.acked = given


@mutation("calm", "exactly-once", **OVERTAKING)
def nobody_is_held() -> list[Patch]:
    """A client is given events before it is known which of its subscriptions started first."""
    return [Patch(Clients, "_held", lambda *_: False)]


# ── routes ───────────────────────────────────────────────────────────────────────────────


@mutation("calm", "exactly-once", "settles", first=5, **STRANGE)
def silence_is_believed_of_strangers() -> list[Patch]:
    """A neighbour whose interest is not known yet gets only events that surely concern it."""
    return [Patch(Interests, "pass_all", lambda _: 0)]


@mutation("calm", "exactly-once", **FICKLE)
@replaces(Routing, "_retire")
def advertisements_do_not_retire(self: Any, entry: Any, op: Any) -> None:
    """Removing an advertisement removes its routes at once, although events are still owed."""
    message = Unadvertise(entry.id, op)
    self._spread_unadvertise(entry, message)
    self.obligations.expect(message, "unadvertise", Hop.client(entry.id.client), entry.sent)


@mutation("calm", "exactly-once", "settles", first=56, **STRANGE)
def advertisements_are_taken_for_interest() -> list[Patch]:
    """A neighbour that has reported the advertisements behind it counts as if it had also reported
    the subscriptions."""
    return [Patch(Obligations, "_restore", Obligations._whole)]


@mutation(
    "calm",
    "exactly-once",
    first=38,
    menu={"sure": True, "kill": 1.0, "pace_s": 1.0},
    clients=6,
    chaos_s=10.0,
    action_s=0.02,
    weights=(40.0, 8.0, 8.0, 0.5, 8.0, 0.0, 0.5),
    **STEADY,
)
def starts_stay_when_their_advertisement_goes() -> list[Patch]:
    """A broker that was away when an advertisement was removed asks for ticks forgotten since."""
    return [Patch(Starts, "lift", nothing)]


@bug("soundness", first=100, sync=4.0, menu=UPHEAVAL)
def refusals_are_forgotten_in_a_restart() -> list[Patch]:
    """An event that was refused before a crash is reported as published after it."""
    return _forgotten(skipped={})


MANY: dict[str, Any] = {"total_order": 1.0, "sync": 1.0, "skew_s": 3.0}
EAGER: dict[str, Any] = {
    "timeouts_s": (10.0,),
    "local": 0.0,
    "action_s": 0.02,
    "lease_s": 15.0,
    "weights": (80.0, 5.0, 10.0, 0.5, 3.0, 0.2, 0.5),
}
"""Many clients advertise, and subscribers stay."""
FEW: dict[str, Any] = EAGER | {"clients": 10, "weights": (80.0, 8.0, 2.0, 0.5, 1.0, 0.2, 0.5)}
"""A broker whose clients advertise late has not been part of any merge before."""


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
"""Clocks differ much, and so few requests are made that nothing else makes ticks durable."""


@mutation("delivery", "total-order", **MANY)
@replaces(Merge, "_bound")
def nobody_waits_for_a_quiet_pubend(self: Any) -> int:
    """A merge releases events without waiting for the pubends that have reported nothing yet."""
    return max(self._horizons.values(), default=0)


@mutation("delivery", "exactly-once", **MANY, **EAGER)
def merges_go_on_while_a_pubend_begins() -> list[Patch]:
    """A merge does not wait for the start at a pubend that has just been advertised at."""
    return [Patch(Merge, "expect_only", nothing)]


@mutation("delivery", "exactly-once", **MANY, **FEW)
@replaces(Joins, "start_above")
def nobody_is_asked_to_start_above_a_merge(self: Any, entry: Any, above: int) -> None:
    """A pubend starts the subscriptions of a merging client at its own next tick, although the
    client has been given events above it, and what it has logged once is not logged again."""
    del above
    self._starts.start(entry)


@mutation("delivery", "total-order", **MANY, **FEW)
def pubends_join_below_what_was_released() -> list[Patch]:
    """A merge continues while a pubend joins, and then releases events below those released."""

    def early(self: Any, pubend: str, given: int) -> None:
        self._expected.pop(pubend, None)
        self._finished.pop(pubend, None)
        self._horizons[pubend] = self._floors[pubend] = given
        self._queues.setdefault(pubend, deque())

    return [Patch(Merge, "expect_only", nothing), Patch(Merge, "join", early)]


@mutation("calm", "exactly-once", **QUIET)
def silence_is_forgotten_in_a_crash() -> list[Patch]:
    """A pubend reports a tick as silent, and after a crash gives that tick to an event."""
    return [Patch(Reserve, "need", lambda *_: 0)]
