"""Who takes part in a run of the profile `ordering`, and every fault, drawn before anything starts.

A line of sites; for each of them perhaps a standby, and then a witness; an event service; clients.
All are processes. A part of the plan names processes, so that another kind of process is a row.
"""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

from msgspec import Struct

Role = Literal["site", "standby", "witness", "service", "client"]
OrderFault = Literal[
    "kill_site",
    "restart_site",
    "pause_site",
    "kill_witness",
    "kill_service",
    "pause_service",
    "kill_client",
    "pause_client",
    "kill_numbered",
    "kill_published",
]
ORDER_DECK: tuple[OrderFault, ...] = (
    *("kill_site", "kill_site", "kill_site", "pause_site", "pause_site", "restart_site"),
    *("kill_service", "kill_service", "pause_service", "kill_witness"),
    *("kill_numbered", "kill_numbered", "kill_published", "kill_client", "pause_client"),
)
"""Shuffled and dealt repeatedly, so that every kind of fault comes early and often."""
TARGETS: dict[OrderFault, tuple[Role, ...]] = {
    "kill_site": ("site", "standby"),
    "restart_site": ("site", "standby"),
    "pause_site": ("site", "standby"),
    "kill_witness": ("witness",),
    "kill_service": ("service",),
    "pause_service": ("service",),
    "kill_client": ("client",),
    "pause_client": ("client",),
    "kill_numbered": ("client",),
    "kill_published": ("client",),
}
LASTS_S: dict[OrderFault, tuple[float, float]] = {
    "kill_site": (0.0, 2.0),
    "restart_site": (0.0, 1.0),
    "pause_site": (0.2, 4.0),
    "kill_witness": (0.0, 2.0),
    "kill_service": (0.0, 1.5),
    "pause_service": (0.2, 2.0),
    "kill_client": (0.0, 1.0),
    "pause_client": (0.2, 8.0),
    "kill_numbered": (0.0, 1.0),
    "kill_published": (0.0, 1.0),
}
"""How long what was hit is away: less and more than leases and heartbeats."""
TOPICS_PER_SITE = 2


class CastMember(NamedTuple):
    """One process: `site` is the one that it serves, or that its client calls first."""

    role: Role
    name: str
    site: str = ""


class OrderStrike(NamedTuple):
    """One fault. `draw` chooses its victim among those that are well then."""

    at_s: float
    kind: OrderFault
    draw: float
    lasts_s: float


class OrderChaosPlan(Struct, frozen=True):
    sites: int = 3
    clients: int = 4
    seconds: float = 60.0
    seed: int = 0
    mode: str = "causal"
    standbys: bool = False
    """Each site has a second process, and a witness decides which one leads."""
    strike_s: float = 1.5
    """The mean time between two faults."""
    rate: float = 25.0
    """Events per second of one client."""
    changes: float = 4.0
    """Changes of streams per second of one client."""
    lease_s: float = 2.0
    keep_s: float = 6.0
    heartbeat_s: float = 1.0
    patience_s: float = 1.0
    """After it a replica that says nothing is gone."""
    settle_s: float = 90.0

    @property
    def line(self) -> tuple[str, ...]:
        return tuple(f"S{number}" for number in range(1, self.sites + 1))

    @property
    def topics(self) -> tuple[str, ...]:
        """Each begins with the name of its site."""
        return tuple(
            f"{site}.{letter}" for site in self.line for letter in "abcdefgh"[:TOPICS_PER_SITE]
        )

    def cast(self) -> list[CastMember]:
        found = [CastMember("service", "nats")]
        if self.standbys:
            found.append(CastMember("witness", "witness"))
        for site in self.line:
            found.append(CastMember("site", site, site))
            if self.standbys:
                found.append(CastMember("standby", f"{site}-standby", site))
        for number in range(self.clients):
            found.append(CastMember("client", f"C{number + 1}", self.line[number % self.sites]))
        return found

    def strikes(self) -> list[OrderStrike]:
        random = Random(self.seed)
        found: list[OrderStrike] = []
        deck: list[OrderFault] = ["kill_site"]
        at_s = self.strike_s / 2
        while at_s < self.seconds:
            if not deck:
                deck = list(ORDER_DECK)
                random.shuffle(deck)
            kind = deck.pop(0)
            found.append(OrderStrike(at_s, kind, random.random(), random.uniform(*LASTS_S[kind])))
            at_s += random.expovariate(1 / self.strike_s)
        return found
