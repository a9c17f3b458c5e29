"""How large a run is, how fast everything goes, and which faults it has; drawn from the seed."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from motet.errors import MisuseError
from motet.testing.ordering.history import CAUSAL, PAIRS


class OrderPlan(Struct, frozen=True):
    mode: str = CAUSAL
    sites: int = 2
    topics: int = 4
    clients: int = 4
    chaos_s: float = 12.0
    """How long applications act and faults happen."""
    quiet_s: float = 60.0
    """Time to come to rest after that."""

    # ── sites ────────────────────────────────────────────────────────────────────────────
    lease_s: float = 2.0
    keep_s: float = 4.0
    hop_s: tuple[float, float] = (0.001, 0.01)
    """Between sites."""
    client_hop_s: tuple[float, float] = (0.0005, 0.003)
    sync_s: float = 0.01
    """The longest time until facts are durable."""

    standbys: int = 0
    """How many sites have one, from the lowest."""
    witness: bool = True
    """Without it, an operator promotes."""
    patience_s: float = 0.8
    near_s: tuple[float, float] = (0.001, 0.01)
    """Between the replicas of a site, and to their witness."""

    # ── the event service ────────────────────────────────────────────────────────────────
    lossless: bool = True
    service_s: tuple[float, float] = (0.001, 0.005)
    """From a publisher, or to a subscriber, mostly."""
    slow: float = 0.2
    """The share of messages that take up to `slow_s`."""
    slow_s: float = 0.3
    doubled: float = 0.1
    lost: float = 0.0
    """The share of messages that one subscriber does not get, unless the service is lossless."""
    failed: float = 0.02
    """The share of calls that raise; half of these publications happen nevertheless."""

    # ── applications ─────────────────────────────────────────────────────────────────────
    act_s: float = 0.25
    """Between two acts of a client, on average."""
    reply: float = 0.15
    """The chance that an application publishes something because of an event."""
    weights: tuple[float, ...] = (10.0, 3.0, 1.2, 1.0, 0.6, 0.4, 0.3)
    """Of `ACTS`."""
    most_streams: int = 3
    """Of one client."""

    # ── faults ───────────────────────────────────────────────────────────────────────────
    pace_s: float = 0.6
    """Between two faults, on average; 0: there are none."""
    faults: Mapping[str, float] = {}
    """Weights of `FAULTS`."""


ACTS = ("publish", "burst", "add", "drop", "open", "close", "ask_again")
"""What applications do; each is a method of `Application`."""

FAULTS: dict[str, float] = {
    "kill": 2.0,
    "disk_failure": 0.4,
    "snapshot": 0.7,
    "cut": 1.0,
    "pause_site": 0.4,
    "site_clock": 0.5,
    "client_clock": 0.3,
    "drop_client": 2.0,
    "isolate_client": 0.6,
    "kill_client": 0.8,
    "kill_publisher": 1.0,
    "pause_client": 0.6,
    "pause_publisher": 1.0,
    "interrupt_client": 0.8,
    "interrupt_service": 0.4,
    "slow_topic": 0.8,
}
"""Each is a method of `OrderMishaps`; a seed's draws depend on their order."""

SMALL: dict[str, Any] = {
    "clients": 3,
    "topics": 3,
    "chaos_s": 2.0,
    "quiet_s": 30.0,
    "pace_s": 0.0,
    "most_streams": 1,
    "failed": 0.0,
}
"""Runs that are repeated with a crash at each step."""


PAIR_FAULTS: dict[str, float] = {
    "kill_primary": 1.2,
    "kill_witness": 0.5,
    "part": 1.2,
    "pause_primary": 0.8,
    "fresh_standby": 0.4,
    "promote": 0.6,
    "slow_disk": 0.6,
}
"""More of them, where sites have standbys."""


def draw_pairs(random: Random, plan: OrderPlan, changes: Mapping[str, Any]) -> OrderPlan:
    """Half of all runs have standbys."""
    standbys = random.randint(1, plan.sites) if random.random() < 0.5 else 0
    witness, patience_s = random.random() < 0.8, random.choice((0.4, 0.8, 1.5))
    drawn: dict[str, Any] = {
        "standbys": standbys,
        "witness": witness,
        "patience_s": patience_s,
        "near_s": random.choice(((0.001, 0.01), (0.001, 0.01), (0.02, 0.08))),
    }
    if changes.get("standbys", standbys):
        drawn["lease_s"] = max(plan.lease_s, 2.0)  # each answer passes two disks
    return replace(plan, **{key: changes.get(key, value) for key, value in drawn.items()})


def draw_plan(random: Random, changes: Mapping[str, Any]) -> OrderPlan:
    unknown = sorted(changes.keys() - set(OrderPlan.__struct_fields__))
    if unknown:
        raise MisuseError(f"a plan has no {', '.join(unknown)}")
    far = random.random() < 0.4
    plan = OrderPlan(
        mode=random.choice((CAUSAL, PAIRS)),
        sites=random.choice((1, 2, 2, 3, 3, 4)),
        topics=random.randint(2, 7),
        clients=random.randint(3, 6),
        lease_s=random.choice((1.0, 2.0, 4.0)),
        keep_s=random.choice((3.0, 6.0, 20.0)),
        hop_s=(0.01, 0.15) if far else (0.001, 0.01),
        client_hop_s=random.choice(((0.0005, 0.003), (0.001, 0.1))),
        sync_s=random.choice((0.0, 0.01, 0.05)),
        lossless=random.random() < 0.6,
        slow=random.choice((0.0, 0.2, 0.5)),
        slow_s=random.choice((0.1, 0.6, 2.0)),
        act_s=random.choice((0.1, 0.25, 0.5)),
        pace_s=random.choice((0.3, 0.6, 1.2)),
        faults=FAULTS,
    )
    if not plan.lossless:
        plan = replace(plan, lost=random.choice((0.005, 0.03)))
    return replace(plan, **changes)
