"""State of one link: what is durable, and what a broken connection may take away."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class LinkRecord(Struct):
    """Durable. `sent` and `received` count control messages of this pair of lives."""

    neighbour: str
    life: int = 1
    """Our own, on this link: it begins as the broker's incarnation and grows with each loss."""
    incarnation: int = 0
    """The life of the neighbour; 0 as long as we have never met in this life of ours."""
    sent: int = 0
    received: int = 0
    losses: int = 0
    """How often we gave the neighbour up because it stayed away for too long."""
    asked: int = 0
    """The last of the messages sent that widens what the neighbour must pass on to us."""
    told: int = 0
    """The last of the messages received that widens what we must pass on."""


class Phase(Enum):
    DOWN = "down"
    GREETING = "greeting"
    UP = "up"


class LinkSoft(Struct):
    """Soft: the current connection and its counters."""

    phase: Phase = Phase.DOWN
    connection: int = 0
    transmitted: int = 0
    """Control numbers up to this went out on the current connection."""
    offered: int = 0
    """Control numbers up to this have ever been on their way to the neighbour, in this life or
    before a recovery: it can have no others."""
    number: int = 0
    """Frames of publications sent on the current connection."""
    seen: int = 0
    """The last such frame received."""
    kept_from: int = 0
    """Control numbers above this count as kept for an absent neighbour: what it acknowledged does
    not, nor what a recovery gave back, since nobody knows how much of that it has."""
    refusal: str = ""
    """Why the last connection of this neighbour was refused, until it is let in again."""
    patience_s: float = 0.0
    """How long to wait before sending again what nobody acknowledged."""
    timed: int = 0
    """The control number whose acknowledgement is timed now; 0: none is."""
    timed_at: float = 0.0
    round_trip_s: float = 0.0
    """From sending control to hearing that the neighbour has written it down, smoothed."""
    alarm_at: float = 0.0
    """When that is; 0: nothing is to be sent again."""
    lost: int = 0
    """Publications for this neighbour that went nowhere because the link was down."""
    overtaken: int = 0
    """Publications dropped because control before them was still missing."""
