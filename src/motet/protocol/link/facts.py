"""Facts of links: received control, and neighbours that join, are given up or change."""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.link.messages import Control


class ControlReceived(Struct, tag="control", array_like=True, frozen=True):
    neighbour: str
    control: Control
    tick: int = 0
    rechecks: bool = False
    """A neighbour that is asked again for an echo is asked under a new name, and earlier echoes do
    not count. Journals of older releases lack this field, and are replayed accordingly."""
    recalls: bool = False
    """For a client in total order, a start that a broker on the way has lost is recalled, and an
    awaited one stays awaited. Journals of older releases lack this field, too."""
    heard: dict[str, int] = {}
    """If a session moves through here or arrives: the highest tick heard of, by pubend that its
    subscriptions may receive from."""


class NeighbourMet(Struct, tag="met", array_like=True, frozen=True):
    """A neighbour that starts empty has connected, for the first time or after losing its state."""

    neighbour: str
    incarnation: int
    recalls: bool = False
    """See `ControlReceived`."""


class NeighbourLost(Struct, tag="lost", array_like=True, frozen=True):
    """A neighbour was away until its outbox exceeded the limit; it is given up."""

    neighbour: str
    recalls: bool = False
    """See `ControlReceived`."""


class NeighboursChanged(Struct, tag="neighbours", array_like=True, frozen=True):
    """The operator changed the overlay: these are all neighbours from now on."""

    neighbours: tuple[str, ...]


LinkFact = ControlReceived | NeighbourMet | NeighbourLost | NeighboursChanged
