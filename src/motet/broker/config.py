"""What a broker's core is told at its start. Configuration is an input like any other."""

from __future__ import annotations

from msgspec import Struct

OUTBOX_BOUND = 100_000

SETTLED = ("covering", "lease_s", "heartbeat_s", "durability", "outbox_bound")
"""Settings of an overlay that its brokers take at their start and keep while they run."""


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
