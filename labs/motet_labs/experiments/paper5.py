"""Parameters and results of paper 5, section 4. Figures are as its text gives them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.fleet.process import HOST
from motet.protocol.delivery.stream import Liveness
from motet.runtime.tcp import address_of

# ── section 4.1: overhead ────────────────────────────────────────────────────────────────

OVERHEAD_PER_S = 2000
OVERHEAD_BYTES = 250
SUBSCRIBER_PER_S = 2
SUBSCRIBER_BROKER_POINTS = 4.0
"""Additional CPU of the subscribers' broker for exactly once: less than this."""
PUBLISHER_BROKER_POINTS = 8.0
"""Additional CPU of the publishers' broker: about this."""
LATENCY_MS = 100.0
"""Additional latency of an event: about this."""

# ── section 4.2: faults ──────────────────────────────────────────────────────────────────

LIVENESS = Liveness(gap_s=0.2, nack_repeat_s=0.6, ack_expected_s=10.0, delay_s=float("inf"))
PUBLISHERS = 4
PUBLISHER_PER_S = 25.0
FAULT_BYTES = 100
LINK_PEAK_MS = 2500.0
"""The latency at s1 of the last event before link b1–s1 stalled."""
CRASH_NACKED_MS = 2750.0
"""What s1, and s2, lost of each pubend whose events went through b1."""
CONSOLIDATION = 0.5
"""The nack range that b2 sent, relative to what s1 and s2 together had sent to it."""

PUBLISHER_BROKER = "p1"
SUBSCRIBER_BROKERS = ("s1", "s2", "s3", "s4", "s5")
CELLS = {"IB1": ("b1", "b2"), "IB2": ("b3", "b4")}
BELOW = {"IB1": ("s1", "s2"), "IB2": ("s3", "s4", "s5")}


@dataclass(frozen=True)
class Schedule:
    """One fault: how long the overlay is healthy, how long the victim accepts data but forwards
    nothing, how long it is gone, and how long it is observed afterwards."""

    before_s: float
    stall_s: float
    gone_s: float
    after_s: float

    @property
    def total_s(self) -> float:
        return self.before_s + self.stall_s + self.gone_s + self.after_s


SCHEDULES = {
    "link": Schedule(before_s=5.0, stall_s=2.5, gone_s=10.0, after_s=8.0),
    "broker": Schedule(before_s=5.0, stall_s=2.75, gone_s=30.0, after_s=8.0),
    "publisher": Schedule(before_s=5.0, stall_s=2.5, gone_s=20.0, after_s=8.0),
}


def topology(ports: Iterable[int], subscribers: Collection[str] = SUBSCRIBER_BROKERS) -> Topology:
    """Figure 3, without the cells that none of the `subscribers` needs. The upstream broker dials,
    so that a broker that comes back finds its streams at once."""
    at = (address_of(HOST, port) for port in ports)
    below = {
        cell: tuple(name for name in names if name in subscribers) for cell, names in BELOW.items()
    }
    heads = {CELLS[cell][0]: cell for cell in CELLS if below[cell]}
    places = [BrokerPlace(PUBLISHER_BROKER, next(at), tuple(heads))]
    for head, cell in heads.items():
        listen = next(at)
        mates = tuple((mate, next(at)) for mate in CELLS[cell][1:])
        places.append(BrokerPlace(head, listen, below[cell], mates=mates))
    places += [BrokerPlace(name, next(at)) for name in subscribers]
    return Topology("paper5", tuple(places), liveness=LIVENESS)


MOST_BROKERS = 1 + sum(map(len, CELLS.values())) + len(SUBSCRIBER_BROKERS)
"""The number of ports that `topology` needs."""
