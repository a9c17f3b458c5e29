"""Frames between a client and its broker.

Requests count from 1 within a session and are answered once each, in any order, by `Done` or
`Failed`. Publications count from 1 in a counter of their own and are acknowledged in ranges.
A client that resumes its session sends its unanswered requests again; the broker knows them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Raw, Struct

from motet.model import Filter
from motet.protocol.delivery.messages import Delivered
from motet.protocol.publication import Publication

# ── from the client ──────────────────────────────────────────────────────────────────────


class ClientHello(Struct, tag="client", array_like=True, frozen=True):
    """`resume` is the epoch of the session to go on with; None opens a new one. `instance` tells
    two clients with one id apart, so that one whose welcome was lost is known again. `answered`
    is the last request of that session that the client has an answer to: a broker that has not
    even received it runs on an older copy of its state. `cursors` are the ticks up to which it
    has received each pubend. `keep_s` above 0 asks for a durable session, which is kept for so long
    while nobody is connected; without `resume` it is gone on with, if there is one. With `hold`
    nothing of the pubends it has not begun to read is sent before `Ready`. In `total_order` it
    wants the events of all pubends in one order. `published` is the last publication that it has
    sent in that session: a broker whose log was destroyed has nobody else to ask."""

    version: int
    client: str
    resume: str | None = None
    credentials: bytes = b""
    instance: str = ""
    answered: int = 0
    cursors: dict[str, int] = {}
    keep_s: float = 0.0
    hold: bool = False
    total_order: bool = False
    published: int = 0


class AdvertiseRequest(Struct, tag="+adv", array_like=True, frozen=True):
    """`wait`: answer when effective across the overlay; else as soon as it holds here. `name` is
    what the client calls it, for a later process that goes on with the session."""

    sequence: int
    filter: Filter
    wait: bool = True
    timeout_s: float = 10.0
    name: str = ""


class UnadvertiseRequest(Struct, tag="-adv", array_like=True, frozen=True):
    """`target` is the sequence of the advertisement to take away."""

    sequence: int
    target: int
    wait: bool = True
    timeout_s: float = 10.0


class SubscribeRequest(Struct, tag="+sub", array_like=True, frozen=True):
    """`since`: by pubend, the tick above which events are wanted that are older than the
    subscription; under the empty name, for all other pubends."""

    sequence: int
    filter: Filter
    wait: bool = True
    timeout_s: float = 10.0
    name: str = ""
    since: dict[str, int] = {}


class UnsubscribeRequest(Struct, tag="-sub", array_like=True, frozen=True):
    sequence: int
    target: int
    wait: bool = True
    timeout_s: float = 10.0


Request = AdvertiseRequest | UnadvertiseRequest | SubscribeRequest | UnsubscribeRequest


class Publish(Struct, tag="pub", array_like=True, frozen=True):
    """Encoded events numbered `first`, `first + 1`, …; `sure` ones are logged before they are
    acknowledged and arrive exactly once, the others are best effort. Numbers grow, and may skip
    what the client gave up."""

    first: int
    bodies: list[Raw]
    sure: bool = True


class Processed(Struct, tag="processed", array_like=True, frozen=True):
    """The application is done with everything of a pubend up to this tick."""

    pubend: str
    upto: int


class Ready(Struct, tag="ready", array_like=True, frozen=True):
    """The application has made its subscriptions and begins to read: see `ClientHello.hold`."""


class Goodbye(Struct, tag="bye", array_like=True, frozen=True):
    """End the session now; everything it has in force goes. With `stay` only this process goes,
    and the durable session is kept for the next one. `done` has subscriptions that are further than
    the client is as a whole, by sequence and pubend."""

    stay: bool = False
    done: dict[int, dict[str, int]] = {}


class StatusRequest(Struct, tag="status?", array_like=True, frozen=True):
    """Asks for the broker's state; allowed before any hello."""


# ── from the broker ──────────────────────────────────────────────────────────────────────


class Stands(Struct, array_like=True, frozen=True):
    """An advertisement or subscription that is in force in a session. Not `answered`: whoever
    asks again is told when it is effective."""

    sequence: int
    kind: Literal["advertise", "subscribe"]
    name: str
    filter: Filter
    answered: bool = True


class Welcome(Struct, tag="welcome", array_like=True, frozen=True):
    """`published` is the last publication handled in this session, as far as the broker knows:
    with `forgot` it has lost count of best-effort ones, so the client must not send those again
    (sure ones it must; the broker's log knows them). `refused` are those up to
    it that went nowhere; all of them, but for any up to `forgotten`. Both sides beat at least
    every `heartbeat_s`, and take three of them without a sign for the end of the connection.

    For a process that goes on with a durable session: `requests` is the last request received,
    `taken` the last publication, on its way into the log or there; and what is `standing`.

    Publications up to `destroyed` were in a log that does not exist any more: what was not answered
    of them has perhaps arrived, perhaps not."""

    broker: str
    epoch: str
    resumed: bool
    published: int
    lease_s: float
    refused: tuple[Refusal, ...] = ()
    forgotten: int = 0
    heartbeat_s: float = 2.0
    forgot: bool = False
    requests: int = 0
    taken: int = 0
    standing: tuple[Stands, ...] = ()
    destroyed: int = 0


class Done(Struct, tag="done", array_like=True, frozen=True):
    sequence: int


class Failed(Struct, tag="failed", array_like=True, frozen=True):
    """`error` is the name of a class in `motet.errors`."""

    sequence: int
    error: str
    text: str
    missing: tuple[str, ...] = ()


class Refusal(Struct, array_like=True, frozen=True):
    """One publication that was not accepted."""

    sequence: int
    error: str
    text: str


class Published(Struct, tag="published", array_like=True, frozen=True):
    """All publications up to `upto` are handled; those in `refused` went nowhere."""

    upto: int
    refused: tuple[Refusal, ...] = ()


class Delivery(Struct, array_like=True, frozen=True, gc=False):
    """One event and the sequences of the subscriptions that it matches."""

    subscriptions: tuple[int, ...]
    publication: Publication


class Deliver(Struct, tag="events", array_like=True, frozen=True):
    """`dropped` counts the events this client lost because it did not read, in all so far."""

    batch: list[Delivery]
    dropped: int = 0


class HowFar(Struct, tag="how far", array_like=True, frozen=True):
    """Somebody waits to hear what the application is done with: see `Processed`."""


class Goodnight(Struct, tag="closed", array_like=True, frozen=True):
    """The broker's last word on a connection. `error` names a class in `motet.errors`."""

    error: str
    text: str


class Status(Struct, tag="status", array_like=True, frozen=True):
    state: dict[str, Any]


SessionFrame = (
    ClientHello
    | AdvertiseRequest
    | UnadvertiseRequest
    | SubscribeRequest
    | UnsubscribeRequest
    | Publish
    | Processed
    | Ready
    | Goodbye
    | StatusRequest
    | Welcome
    | Done
    | Failed
    | Published
    | Deliver
    | Delivered
    | HowFar
    | Goodnight
    | Status
)
