"""Frames of exactly-once delivery: knowledge flows down a pubend's tree, curiosity flows up."""

from __future__ import annotations

from operator import attrgetter

from msgspec import Struct

from motet.protocol.delivery.spans import Range, Span, StartRecord
from motet.protocol.publication import Publication
from motet.protocol.traits import BROKER, SMALL_BYTES, frame


@frame(senders=BROKER, soft=True, events=attrgetter("span.ticks"))
class Knowledge(Struct, tag="know", array_like=True, frozen=True):
    """Downstream. First-time knowledge goes to every interested neighbour. With `again` it answers
    a nack, and goes only to the neighbour that asked. `cut`: the answer was longer than one piece,
    ask for the rest. `asof` (0: unknown): every subscription started up to that tick was in effect
    when the span was filtered first; only the pubend's own broker can know this."""

    pubend: str
    span: Span
    again: bool = False
    cut: bool = False
    asof: int = 0


@frame(senders=BROKER, soft=True)
class Nack(Struct, tag="nack", array_like=True, frozen=True):
    """Upstream: a request for ticks; without ranges, for the subscriptions that have started.
    With `asof`, only knowledge as of that tick or later is of use, because the subscription is
    younger than the ticks."""

    pubend: str
    ranges: tuple[Range, ...]
    asof: int = 0


@frame(senders=BROKER, most_bytes=SMALL_BYTES)
class AckUp(Struct, tag="ackup", array_like=True, frozen=True):
    """Upstream: the sender and all brokers downstream of it acknowledge everything up to `upto`."""

    pubend: str
    upto: int


@frame(senders=BROKER, soft=True)
class AckExpected(Struct, tag="ackexp", array_like=True, frozen=True):
    """Downstream: the receiver has not acknowledged all ticks up to `upto`. `starts` are all start
    records among them for the receiver's subscriptions, in no order; None if the sender cannot know
    them. Only a broker that knows them may acknowledge ticks that no client there wants."""

    pubend: str
    upto: int
    starts: tuple[StartRecord, ...] | None = None
    cut: tuple[int, int] = (0, 0)
    """Number and tick: of all decisions, exactly those up to the number cut up to the tick."""


DeliveryFrame = Knowledge | Nack | AckUp | AckExpected


@frame(soft=True, events=attrgetter("ticks"))
class Delivered(Struct, tag="sure", array_like=True, frozen=True):
    """Events of one pubend for one client, in tick order. After it, everything up to `upto` that
    concerns the client has been delivered or reported lost: `upto` is its cursor.

    `every`: the subscriptions that the whole batch is for; if they differ, `each` is parallel to
    the batch and `every` is empty. `lost`: ranges that are gone from every log and memory; they lie
    before, between or after the events, in tick order.

    `blocks`: transactions with events in the batch, each with the ticks of its cut and its end.
    With `more`, the next frame belongs to this one: the client takes all of them, or none."""

    pubend: str
    upto: int
    ticks: list[int] = []
    batch: list[Publication] = []
    every: tuple[int, ...] = ()
    each: list[tuple[int, ...]] = []
    lost: tuple[Range, ...] = ()
    blocks: tuple[tuple[str, int, int], ...] = ()
    more: bool = False
