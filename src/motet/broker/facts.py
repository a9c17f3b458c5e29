"""Facts: the inputs that change durable state, as the journal keeps them.

Whatever soft code learnt that matters (which brokers did not answer, say) is written into the
fact, so that applying it needs nothing but durable state.
"""

from __future__ import annotations

from msgspec import Struct

from motet.model import OpId
from motet.protocol.link.messages import Control
from motet.protocol.session.messages import Request


class SessionOpened(Struct, tag="open", array_like=True, frozen=True):
    client: str
    resume: str | None
    instance: str = ""


class SessionDropped(Struct, tag="drop", array_like=True, frozen=True):
    """The client's connection is gone; its lease runs."""

    client: str
    epoch: str


class SessionEnded(Struct, tag="end", array_like=True, frozen=True):
    """By goodbye, or because the lease ran out."""

    client: str
    epoch: str


class RequestReceived(Struct, tag="request", array_like=True, frozen=True):
    client: str
    epoch: str
    request: Request


class DeadlinePassed(Struct, tag="deadline", array_like=True, frozen=True):
    op: OpId
    missing: tuple[str, ...]


class ControlReceived(Struct, tag="control", array_like=True, frozen=True):
    neighbour: str
    control: Control


class NeighbourMet(Struct, tag="met", array_like=True, frozen=True):
    """A neighbour came that starts empty, for the first time or after losing its state."""

    neighbour: str
    incarnation: int


class NeighbourLost(Struct, tag="lost", array_like=True, frozen=True):
    """A neighbour stayed away until more was kept for it than we keep; it is given up."""

    neighbour: str


class NeighboursChanged(Struct, tag="neighbours", array_like=True, frozen=True):
    """The operator changed the overlay: these are all neighbours from now on."""

    neighbours: tuple[str, ...]


FactBody = (
    SessionOpened
    | SessionDropped
    | SessionEnded
    | RequestReceived
    | DeadlinePassed
    | ControlReceived
    | NeighbourMet
    | NeighbourLost
    | NeighboursChanged
)
