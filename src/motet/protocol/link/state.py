"""State of one link: what is durable, and what a broken connection may take away."""

from __future__ import annotations

from collections import deque
from enum import Enum

from msgspec import Struct, field

from motet.protocol.routing.messages import RoutingMessage


class LinkRecord(Struct):
    """Durable. `sent` and `received` count control messages of this pair of incarnations."""

    neighbour: str
    incarnation: int = 0
    """Of the neighbour; 0 as long as we have never met."""
    sent: int = 0
    received: int = 0
    outbox: deque[tuple[int, RoutingMessage]] = field(default_factory=deque)
    """What may have to be sent again. Replay regenerates it; what is acknowledged may be
    forgotten at any time, so no journaled step ever looks at it."""


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
    number: int = 0
    """Frames of publications sent on the current connection."""
    seen: int = 0
    """The last such frame received."""
    patience_s: float = 0.0
    """How long to wait before sending again what nobody acknowledged."""
    lost: int = 0
    """Publications for this neighbour that went nowhere because the link was down."""
    overtaken: int = 0
    """Publications dropped because control before them was still missing."""
