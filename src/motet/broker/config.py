"""What a broker's core is told at its start. Configuration is an input like any other."""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.delivery.curiosity import Liveness

OUTBOX_BOUND = 100_000
LIVENESS = Liveness()

SETTLED = ("covering", "lease_s", "heartbeat_s", "durability", "outbox_bound", "liveness", "root")
"""Settings of an overlay that its brokers take at their start and keep while they run."""
CELLULAR = ("mates", "cells")
"""The same of one broker: who is in its cell, and in those next to it."""


class BrokerConfig(Struct, frozen=True):
    """`incarnation` must differ from that of any earlier life whose state is lost: the driver
    takes the time in microseconds. A broker that recovers its state keeps it."""

    name: str
    neighbours: tuple[str, ...] = ()
    incarnation: int = 1
    covering: bool = False
    lease_s: float = 30.0
    outbox_bound: int = OUTBOX_BOUND
    """Control messages kept for a neighbour that stays away; beyond, it is given up and joins
    anew. A neighbour that needs more than that to join is kept as much as it needs."""
    heartbeat_s: float = 2.0
    """Every connection beats this often, and is dead after three beats of silence."""
    inquiry_s: float = 0.25
    """How long the answer to "who is missing?" is collected before an operation fails."""
    head: str = ""
    """Of a mate: the broker whose cell it belongs to."""
    head_at: str = ""
    """Where that one listens, for those who come to the wrong process."""
    mates: tuple[str, ...] = ()
    """Other processes of our cell, but for the head."""
    cells: dict[str, tuple[str, ...]] = {}
    """Neighbours that are cells of several processes, with their mates."""
    mirror_s: float = 0.5
    """How long a head waits for a mate to take a fact before it goes on without it."""
    root: str = ""
    """The broker that decides transactions; empty: there are none."""
    liveness: Liveness = LIVENESS
    """How soon exactly-once delivery asks for what is missing."""

    def not_here(self) -> str:
        """What a mate says to those who belong at its head."""
        at = f" at {self.head_at}" if self.head_at else ""
        return (
            f"{self.name} is a mate of {self.head} and carries streams only; "
            f"connect to {self.head}{at}"
        )
