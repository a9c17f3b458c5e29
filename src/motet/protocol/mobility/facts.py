"""The facts of mobility: the source of a move has decided; an operator drains a broker."""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.delivery.spans import Range
from motet.protocol.session.messages import Refusal


class MoveDecided(Struct, tag="move", array_like=True, frozen=True):
    """The session leaves along `path`, whose first broker is this one. The rest is soft state that
    goes along; see `MoveCommit`."""

    client: str
    epoch: str
    path: tuple[str, ...]
    address: str
    levels: dict[str, int] = {}
    doubts: dict[str, int] = {}
    tick: int = 0
    cut: int = 0
    carried: int = 0
    """The last publication received; all are in our log, or were refused."""
    last: int = 0
    """The tick of the last one in our log, if some subscriber has not acknowledged it; else 0."""
    upto: int = 0
    """The last tick of our log, if all of the client's events there have been acknowledged."""
    refused: tuple[Refusal, ...] = ()
    forgotten: int = 0
    logged: int = 0
    """The tick of the last one in our log, acknowledged or not; 0: there is none."""
    unsettled: int = 0
    """See `MoveCommit`."""
    forgot: bool = False
    gone: dict[str, Range] = {}
    """See `MoveCommit`."""


class DrainingSet(Struct, tag="drain", array_like=True, frozen=True):
    """An operator drains this broker: it takes in no sessions; or the operator does so no more."""

    draining: bool


class PublisherAdmitted(Struct, tag="admit", array_like=True, frozen=True):
    """A client that has arrived publishes here now, and a part of a plan has waited for that."""

    client: str
    epoch: str


MobilityFact = MoveDecided | PublisherAdmitted | DrainingSet
