"""Frames between a client and its broker.

Requests count from 1 within a session and are answered once each, in any order, by `Done` or
`Failed`. Publications count from 1 in a counter of their own and are acknowledged in ranges.
A client that resumes its session sends its unanswered requests again; the broker knows them.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from motet.model import Filter
from motet.protocol.publication import Publication

# ── from the client ──────────────────────────────────────────────────────────────────────


class ClientHello(Struct, tag="client", array_like=True, frozen=True):
    """`resume` is the epoch of the session to go on with; None opens a new one. `instance` tells
    two clients with one id apart, so that one whose welcome was lost is known again. `answered`
    is the last request of that session that the client has an answer to: a broker that has not
    even received it runs on an older copy of its state."""

    version: int
    client: str
    resume: str | None = None
    credentials: bytes = b""
    instance: str = ""
    answered: int = 0


class AdvertiseRequest(Struct, tag="+adv", array_like=True, frozen=True):
    """`wait`: answer when effective across the overlay; else as soon as it holds here."""

    sequence: int
    filter: Filter
    wait: bool = True
    timeout_s: float = 10.0


class UnadvertiseRequest(Struct, tag="-adv", array_like=True, frozen=True):
    """`target` is the sequence of the advertisement to take away."""

    sequence: int
    target: int
    wait: bool = True
    timeout_s: float = 10.0


class SubscribeRequest(Struct, tag="+sub", array_like=True, frozen=True):
    sequence: int
    filter: Filter
    wait: bool = True
    timeout_s: float = 10.0


class UnsubscribeRequest(Struct, tag="-sub", array_like=True, frozen=True):
    sequence: int
    target: int
    wait: bool = True
    timeout_s: float = 10.0


Request = AdvertiseRequest | UnadvertiseRequest | SubscribeRequest | UnsubscribeRequest


class Publish(Struct, tag="pub", array_like=True, frozen=True):
    """Encoded events numbered `first`, `first + 1`, …"""

    first: int
    bodies: list[Raw]


class Goodbye(Struct, tag="bye", array_like=True, frozen=True):
    """End the session now; everything it has in force goes."""


class StatusRequest(Struct, tag="status?", array_like=True, frozen=True):
    """Asks for the broker's state; allowed before any hello."""


# ── from the broker ──────────────────────────────────────────────────────────────────────


class Welcome(Struct, tag="welcome", array_like=True, frozen=True):
    """`published` is the last publication handled in this session, -1 if not known any more:
    then the client must not send unacknowledged publications again. `refused` are those up to
    it that went nowhere; all of them, but for any up to `forgotten`. Both sides beat at least
    every `heartbeat_s`, and take three of them without a sign for the end of the connection."""

    broker: str
    epoch: str
    resumed: bool
    published: int
    lease_s: float
    refused: tuple[Refusal, ...] = ()
    forgotten: int = 0
    heartbeat_s: float = 2.0


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
    | Goodbye
    | StatusRequest
    | Welcome
    | Done
    | Failed
    | Published
    | Deliver
    | Goodnight
    | Status
)
