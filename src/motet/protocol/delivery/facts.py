"""Facts of exactly-once delivery: this broker's log, and the progress of its clients."""

from __future__ import annotations

from msgspec import Struct

from motet.model import OpId


class PubendFounded(Struct, tag="pubend", array_like=True, frozen=True):
    """This broker has a log for exactly-once events from now on."""

    pubend: str


class LogDestroyed(Struct, tag="log", array_like=True, frozen=True):
    """This broker's log up to this tick is gone, and the operator has accepted that. Only the
    journal and the clients still know the sequence numbers that were in it."""

    upto: int


class FloorRaised(Struct, tag="floor", array_like=True, frozen=True):
    """All clients of this broker have acknowledged a pubend up to this tick. 0: only cursors are
    new."""

    pubend: str
    upto: int
    cursors: dict[str, int] = {}
    """See `Floor.cursors`."""
    passed: tuple[str, ...] = ()
    """See `Floor.passed`."""


class LossLearnt(Struct, tag="destroyed", array_like=True, frozen=True):
    """A durable client has acknowledged that a pubend was destroyed; it is not told again."""

    client: str
    epoch: str
    pubend: str


class StartLearnt(Struct, tag="start", array_like=True, frozen=True):
    """A subscription at this broker is owed a pubend's events above this tick. The stream showed it
    before control did; once later ticks are acknowledged, only control could repeat it."""

    op: OpId
    pubend: str
    tick: int
    tentative: bool = False


class TicksReserved(Struct, tag="ticks", array_like=True, frozen=True):
    """Up to this tick the broker may announce silence, or deliver events of other pubends in total
    order: after a restart its own events get higher ticks in any case."""

    upto: int


class AdvertisementOver(Struct, tag="over", array_like=True, frozen=True):
    """All events published under a retired advertisement have been acknowledged; none of them has
    a tick above `upto`."""

    target: OpId
    upto: int = 0


DeliveryFact = (
    PubendFounded
    | LogDestroyed
    | FloorRaised
    | LossLearnt
    | StartLearnt
    | TicksReserved
    | AdvertisementOver
)
