"""Bugs in what is to arrive exactly once."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from motet.broker.core import BrokerCore
from motet.broker.interests import Interests
from motet.broker.remembered import Remembered
from motet.broker.streams import Streams
from motet.client.machine import ClientMachine
from motet.model import Hop
from motet.protocol.contract import Logged
from motet.protocol.delivery.acknowledging import Acknowledging
from motet.protocol.delivery.curiosity import Asked, Curiosity, Patience
from motet.protocol.delivery.giving import Giving
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import Knowledge
from motet.protocol.delivery.position import Position
from motet.protocol.delivery.relay import Relay
from motet.protocol.delivery.spans import Span
from motet.protocol.delivery.subend import Subend
from motet.protocol.routing.completeness import Completeness
from motet.protocol.routing.messages import Unadvertise
from motet.protocol.routing.starts import Starts
from motet.testing.bugs.catalogue import Maker, mutation, nothing
from motet.testing.patches import Patch
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
"""Nobody gives up, nobody is special, and nothing is excused."""
DEATHS: dict[str, Any] = PLAIN | {
    "menu": {"sure": True, "kill": 1.0, "pace_s": 0.7},
    "limits": TIGHT,
    "clients": 7,
    "chaos_s": 6.0,
    "action_s": 0.015,
    "weights": (80.0, 8.0, 6.0, 1.0, 1.0, 0.0, 1.0),
}
"""Many events, few who come and go, and brokers that die and come back."""
STEADY: dict[str, Any] = PLAIN | {
    "narrow": True,
    "limits": TIGHT,
    "outbox_bound": KEPT_BY_MOST,
    "process_s": 0.05,
    "hop_s": (0.001, 0.01),
    "sync": 0.0,
}
"""Everybody stays, and is quick: advertisements that are taken back do go."""
FICKLE: dict[str, Any] = PLAIN | {
    "menu": {"sure": True, "rough_links": 1.0, "loss": 0.4, "control_loss": 0.01},
    "limits": TIGHT,
    "control_chunk": 512,
    "clients": 6,
    "chaos_s": 5.0,
    "weights": (60.0, 8.0, 10.0, 0.0, 10.0, 0.0, 0.0),
}
"""Advertise, and take it back, while streams lose much and control next to nothing."""
STRANGE: dict[str, Any] = PLAIN | {
    "menu": {"sure": True, "amnesia": 1.0, "kill": 0.3, "pace_s": 0.7},
    "limits": TIGHT,
    "control_chunk": 1,
    "clients": 8,
    "chaos_s": 6.0,
    "action_s": 0.015,
    "weights": (80.0, 8.0, 6.0, 1.0, 1.0, 0.0, 1.0),
}
"""Brokers forget everything, and little else goes wrong."""
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
"""Streams tell of starts before control does, and not of all of them."""


def bug(*breaks: str, **needs: Any) -> Callable[[Maker], Maker]:
    return mutation("delivery", *breaks, **{**SHORT, **needs})


# ── publishing ───────────────────────────────────────────────────────────────────────────


@bug("duplicates", "exactly-once", "order", "invariants", first=7, sync=4.0, menu=UPHEAVAL)
def published_before_durable() -> list[Patch]:
    """An event enters the stream, and its publisher is told, when the log has it but not its
    disk."""
    original = Streams.publish

    def hasty(self: Any, *args: Any) -> None:
        original(self, *args)
        *_, out, now = args
        self.logged(Logged(self.unlogged.appended), out, now)

    return [Patch(Streams, "publish", hasty)]


@bug("exactly-once", "soundness", first=16, sync=4.0)
def receipt_before_durable() -> list[Patch]:
    """A publisher is told that its event is safe before the log has synced."""
    original = Streams.publish

    def generous(self: Any, client: str, epoch: str, first: int, *args: Any) -> None:
        original(self, client, epoch, first, *args)
        bodies, refused, out, _ = args
        upto = first + len(bodies) + len(refused) - 1
        self._core.settled(client, epoch, upto, refused, out)

    return [Patch(Streams, "publish", generous)]


@bug("duplicates", "exactly-once", first=10, sync=4.0, menu=UPHEAVAL)
def sequences_are_forgotten_in_a_restart() -> list[Patch]:
    """What a session has published before a crash is not remembered, and taken a second time when
    its client sends it again."""
    original = BrokerCore.recover

    def forgetful(self: Any, now: float, remembered: Remembered | None = None) -> Any:
        if remembered is not None:
            remembered = remembered._replace(published={})
        return original(self, now, remembered)

    return [Patch(BrokerCore, "recover", forgetful)]


# ── acknowledging ────────────────────────────────────────────────────────────────────────


@bug("exactly-once", first=5, limits=TIGHT, process_s=0.5)
def acknowledged_before_processed() -> list[Patch]:
    """A broker acknowledges what it has given to a client, not what the client is done with."""

    def trusting(self: Any, horizon: int | None) -> int:
        return int(self.standing(horizon))

    return [Patch(Position, "settled", trusting)]


@bug("exactly-once", limits=TIGHT)
def acknowledged_without_the_slowest_hop() -> list[Patch]:
    """A broker acknowledges for its own clients, and does not wait for the brokers below it."""
    return [Patch(Acknowledging, "wanting", lambda *_: [])]


@mutation("calm", "exactly-once", first=8, **DEATHS)
def floors_are_not_durable() -> list[Patch]:
    """How far all clients of a broker are is acknowledged, but not written down."""
    original = Streams.carry

    def careless(self: Any, effects: Any, out: Any, now: float) -> None:
        effects.floors.clear()
        original(self, effects, out, now)

    return [Patch(Streams, "carry", careless)]


@bug("exactly-once", "settles")
def acknowledgements_are_not_expected() -> list[Patch]:
    """Nobody asks those who stay silent: a lost frame at the end of a stream is not missed."""
    return [Patch(Acknowledging, "expect", nothing)]


# ── asking ───────────────────────────────────────────────────────────────────────────────


@bug("exactly-once", "settles", "answers")
def nacks_are_not_repeated() -> list[Patch]:
    """What is missing is asked for once."""
    return [
        Patch(Patience, "wait_s", lambda *_: inf),
        Patch(Curiosity, "hurry", nothing),
        Patch(Curiosity, "heard", nothing),
    ]


@bug("exactly-once", "settles", "answers", first=5)
def what_was_asked_is_never_asked_again() -> list[Patch]:
    """Brokers keep a question back for ever if it has passed them before."""
    original = Asked.fresh

    def once(self: Any, ranges: Any, now: float) -> Any:
        del now
        return original(self, ranges, 0.0)

    return [Patch(Asked, "fresh", once), Patch(Asked, "clear", nothing)]


@bug("exactly-once", limits=TIGHT)
def forgotten_ticks_are_answered_as_silence() -> list[Patch]:
    """A broker that has forgotten a tick says that there was nothing on it."""
    original = Relay.answer

    def sure_of_itself(
        self: Any, stream: Any, neighbour: str, since: int, upto: int, asof: int, send: Any
    ) -> Any:
        missing, cut = original(self, stream, neighbour, since, upto, asof, send)
        for low, high in missing:
            if high <= stream.known.top:
                send.append((neighbour, Knowledge(stream.pubend, Span(low, high), True)))
        return [part for part in missing if part[1] > stream.known.top], cut

    return [Patch(Relay, "answer", sure_of_itself)]


@bug("exactly-once", limits=TIGHT, kept_events=4)
def trimmed_ticks_are_answered_as_silence() -> list[Patch]:
    """What the log has let go looks as if it had never been there."""
    original = DeliveryMachine.read_done

    def soothing(self: Any, want: Any, spans: Any, now: float, out: Any) -> None:
        quiet = [Span(each.since, each.upto) if each.lost else each for each in spans]
        original(self, want, quiet, now, out)

    return [Patch(DeliveryMachine, "read_done", soothing)]


# ── delivering ───────────────────────────────────────────────────────────────────────────


@bug("exactly-once")
def gaps_are_ignored() -> list[Patch]:
    """A broker delivers what comes, whatever is missing before it."""
    original = DeliveryMachine._news

    def impatient(self: Any, stream: Any, span: Span, *args: Any) -> None:
        horizon = stream.subend.horizon
        if horizon is not None and span.since > horizon + 1:
            stream.subend.horizon = span.since - 1
        original(self, stream, span, *args)

    return [Patch(DeliveryMachine, "_news", impatient)]


@bug("duplicates", "order", process_s=0.5)
def cursors_are_lost_with_the_connection() -> list[Patch]:
    """A client that connects again does not remember what it has received."""
    original = ClientMachine.opened

    def forgetful(self: Any) -> None:
        self._streams.begin_again()
        original(self)

    return [Patch(ClientMachine, "opened", forgetful)]


@bug("soundness")
def start_ticks_are_ignored() -> list[Patch]:
    """A subscription gets what was published before it began."""
    original = Position.begin

    def early(self: Any, subscription: int, tick: int, tentative: bool = False) -> None:
        del tick
        original(self, subscription, 0, tentative)

    return [Patch(Position, "begin", early)]


@bug("exactly-once", "settles")
def starts_are_forgotten_in_a_restart() -> list[Patch]:
    """A broker that comes back does not remember what its clients are owed."""
    original = Streams.begin

    def forgetful(self: Any, remembered: Remembered, out: Any, now: float) -> None:
        starts = self._core.durable.routing.state.starts
        kept = dict(starts)
        starts.clear()
        original(self, remembered, out, now)
        starts.update(kept)

    return [Patch(Streams, "begin", forgetful)]


@bug("exactly-once")
def subscriptions_that_were_there_first_do_not_start() -> list[Patch]:
    """Only who comes after an advertisement is owed what is published under it."""
    return [Patch(Starts, "_start_attracted", nothing)]


@bug("exactly-once", limits=TIGHT, process_s=0.5)
def who_is_behind_gets_the_newest() -> list[Patch]:
    """A client that has fallen behind is given what comes now, not what it has missed."""

    def jump(self: Any, position: Any) -> None:
        position.live = True
        self.live += 1
        self.behind.pop(position.client, None)

    return [Patch(Subend, "_catch", jump)]


@bug("exactly-once")
def unread_is_taken_for_read() -> list[Patch]:
    """When a connection breaks, what was on its way to the client counts as delivered."""
    original = Position.withdraw

    def optimistic(self: Any, horizon: int | None) -> None:
        given = self.standing(horizon)
        original(self, horizon)
        self.given = self.acked = given

    return [Patch(Position, "withdraw", optimistic)]


@mutation("calm", "exactly-once", **OVERTAKING)
def nobody_is_held() -> list[Patch]:
    """A client gets events before it is known which of its subscriptions started first."""
    return [Patch(Giving, "_held", lambda *_: False)]


# ── routes ───────────────────────────────────────────────────────────────────────────────


@mutation("calm", "exactly-once", "settles", first=5, **STRANGE)
def silence_is_believed_of_strangers() -> list[Patch]:
    """A neighbour whose interest is not known yet gets only what is known to concern it."""
    return [Patch(Interests, "pass_all", lambda _: 0)]


@mutation("calm", "exactly-once", **FICKLE)
def advertisements_do_not_retire() -> list[Patch]:
    """An advertisement that is taken back takes the routes with it, whatever is still owed."""

    def at_once(self: Any, entry: Any, op: Any) -> None:
        message = Unadvertise(entry.id, op)
        self._spread_unadvertise(entry, message)
        self._await(message, "unadvertise", Hop.client(entry.id.client), entry.sent)

    return [Patch(Starts, "_retire", at_once)]


@mutation("calm", "exactly-once", "settles", first=56, **STRANGE)
def advertisements_are_taken_for_interest() -> list[Patch]:
    """A neighbour that has told what is advertised behind it counts as having told who
    subscribes there."""
    return [Patch(Completeness, "_restore", Completeness._whole)]


@mutation(
    "calm",
    "exactly-once",
    first=17,
    menu={"sure": True, "kill": 1.0, "pace_s": 1.0},
    clients=6,
    chaos_s=10.0,
    action_s=0.02,
    weights=(40.0, 8.0, 8.0, 0.5, 8.0, 0.0, 0.5),
    **STEADY,
)
def starts_stay_when_their_advertisement_goes() -> list[Patch]:
    """Who was away when an advertisement went asks for ticks that its log has forgotten."""
    return [Patch(Starts, "_lift_starts", nothing)]


@bug("soundness", first=67, sync=4.0, menu=UPHEAVAL)
def refusals_are_forgotten_in_a_restart() -> list[Patch]:
    """What was refused before a crash is told to be published after it."""
    original = BrokerCore.recover

    def forgetful(self: Any, now: float, remembered: Remembered | None = None) -> Any:
        if remembered is not None:
            remembered = remembered._replace(skipped={})
        return original(self, now, remembered)

    return [Patch(BrokerCore, "recover", forgetful)]
