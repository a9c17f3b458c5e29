"""Frames of exactly-once delivery: knowledge flows down a pubend's tree, curiosity flows up."""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.delivery.ranges import Range
from motet.protocol.delivery.spans import Span, StartRecord
from motet.protocol.publication import Publication


class Knowledge(Struct, tag="know", array_like=True, frozen=True):
    """Downstream. First-time knowledge goes to whom it concerns; with `again` it answers a nack and
    goes only where it was asked for. `cut`: the answer was longer than one piece, ask for the rest.
    `asof` (0: unknown) says that every subscription started up to that tick of the pubend was
    in force where the span was filtered first: only the pubend's own broker can say so."""

    pubend: str
    span: Span
    again: bool = False
    cut: bool = False
    asof: int = 0


class Nack(Struct, tag="nack", array_like=True, frozen=True):
    """Upstream: these ticks are wanted. Without any it asks which subscriptions have started.
    With `asof`, only knowledge as of that tick or later will do: the asker's subscription is
    younger than the ticks it wants."""

    pubend: str
    ranges: tuple[Range, ...]
    asof: int = 0


class AckUp(Struct, tag="ackup", array_like=True, frozen=True):
    """Upstream: everything up to `upto` is done with below here."""

    pubend: str
    upto: int


class AckExpected(Struct, tag="ackexp", array_like=True, frozen=True):
    """Downstream: there are ticks up to `upto` that you have not acknowledged. `starts` are all
    start records among them for subscriptions from where this goes, in no order; None if the
    sender cannot know. Only who knows them may acknowledge ticks that nobody there wants."""

    pubend: str
    upto: int
    starts: tuple[StartRecord, ...] | None = None
    cut: tuple[int, int] = (0, 0)
    """All cuts of decisions up to this number lie at or below this tick, and no others."""


DeliveryFrame = Knowledge | Nack | AckUp | AckExpected


class Delivered(Struct, tag="sure", array_like=True, frozen=True):
    """What one client gets of one pubend, in tick order. After it, everything up to `upto` that
    concerns the client has been delivered or reported lost: `upto` is its cursor.

    `every` names the subscriptions that all of the batch is for; if they differ, `each` is
    parallel to the batch and `every` is empty. `lost` are ranges that nobody has any more;
    they lie before, between or behind the events, in tick order.

    `blocks` are transactions that events of the batch belong to: those from one tick to another.
    With `more`, the next frame belongs to this one: all of them are taken, or none."""

    pubend: str
    upto: int
    ticks: list[int] = []
    batch: list[Publication] = []
    every: tuple[int, ...] = ()
    each: list[tuple[int, ...]] = []
    lost: tuple[Range, ...] = ()
    blocks: tuple[tuple[str, int, int], ...] = ()
    more: bool = False
