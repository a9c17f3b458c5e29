"""The configuration of a broker's core, given at its start. Configuration is an input."""

from __future__ import annotations

from msgspec import Struct

from motet.model.coverage import Covering
from motet.protocol.delivery.stream import Liveness

OUTBOX_BOUND = 100_000
LIVENESS = Liveness()

SETTLED = (
    *("covering", "lease_s", "heartbeat_s", "durability", "outbox_bound", "liveness", "root"),
    *("most_clients", "authorise"),
)
"""Settings of an overlay that a broker reads at its start and keeps while it runs."""
CELLULAR = ("mates", "cells")
"""The same for one broker: the processes of its cell and of the neighbouring cells."""


class BrokerConfig(Struct, frozen=True):
    """`incarnation` must differ from that of every earlier incarnation whose state is lost; the
    driver uses the time in microseconds. A broker that recovers its state keeps its incarnation."""

    name: str
    neighbours: tuple[str, ...] = ()
    incarnation: int = 1
    covering: Covering = False
    lease_s: float = 30.0
    outbox_bound: int = OUTBOX_BOUND
    """Maximum number of control messages kept for an absent neighbour, or as many as joining takes
    if that is more. Beyond it, the neighbour is given up and must join again."""
    heartbeat_s: float = 2.0
    """Interval of heartbeats. A connection is dead after three intervals of silence, and at
    least one second."""
    inquiry_s: float = 0.25
    """How long reports of missing brokers are collected before an operation fails."""
    head: str = ""
    """Of a mate: the head of its cell."""
    head_at: str = ""
    """The address of the head, for peers that connect to a mate by mistake."""
    mates: tuple[str, ...] = ()
    """The other processes of our cell, without the head."""
    cells: dict[str, tuple[str, ...]] = {}
    """Neighbours that are cells of several processes, with their mates."""
    mirror_s: float = 0.5
    """How long a head waits for a mate to confirm a fact before it continues without the mate."""
    root: str = ""
    """The broker that decides transactions; empty: transactions are not available."""
    liveness: Liveness = LIVENESS
    """How soon exactly-once delivery asks for missing events."""

    most_clients: int = 0
    """The most sessions that this broker has at a time; 0: any number."""
    authorise: str = ""
    """The operator's rule for clients, as `module:function`; empty: everybody is let in."""

    def not_here(self) -> str:
        """The text with which a mate refuses a peer that must connect to the head."""
        at = f" at {self.head_at}" if self.head_at else ""
        return (
            f"{self.name} is a mate of {self.head} and carries streams only; "
            f"connect to {self.head}{at}"
        )
