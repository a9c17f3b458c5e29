"""Parameters and results of paper 3 (its section 5).

Its figures show no numbers that can be read; the words are those of its text.
"""

from __future__ import annotations

from motet.broker.folder.journal import VOLATILE
from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.fleet.process import HOST
from motet.model.coverage import Covering
from motet.runtime.tcp import address_of

CLIENTS = 400
MOST_CLIENTS = 1000
PAUSE_S = 10.0
"""Between two moves of a client."""
STEPS = ("covered", "tree", "chained", "leaf", "distinct")
"""Of the incremental movement: what each ten further movers are."""
STEP = 10

# ── what it says ─────────────────────────────────────────────────────────────────────────

FASTER = "more than an order of magnitude"
FASTEST = "one to two orders of magnitude"
STABLE = "stable"
INSENSITIVE = "neither latency nor load changes drastically"
LIMITED = "limited to the path"
MUCH_WORSE = "much worse"
SLOWER = "slower than locally"

# ── the overlay ──────────────────────────────────────────────────────────────────────────

SOURCES, TARGETS = ("B1", "B2"), ("B13", "B14")
"""Clients of the first source move to the first target and back, those of the second likewise."""
HOPS = 5
"""From a source to its target."""
PUBLISHERS = ("B5", "B8", "B11")
PARENTS = {
    1: 3, 2: 3,
    6: 3, 4: 6, 5: 6,
    9: 6, 7: 9, 8: 9,
    12: 9, 10: 12, 11: 12, 13: 12, 14: 12,
}  # fmt: skip
"""Our choice: the text does not say how the links of figure 6 go. B3, B6, B9 and B12 form a line;
both sources are at one end, both targets at the other, and other brokers on both sides of it."""
LEAVES = (4, 5, 7, 8, 10, 11)
"""Further brokers are below these, in turn, so the paths of the clients stay the same."""
HEARTBEAT_S = 30.0
"""Those of thousands of connections would be a considerable load."""
BROKERS = 14
MOST_BROKERS = 26


def topology(ports: list[int], covering: Covering) -> Topology:
    """As many brokers as there are ports. Nothing is on disk, as in the paper."""
    parents = dict(PARENTS)
    for number in range(BROKERS + 1, len(ports) + 1):
        parents[number] = LEAVES[(number - BROKERS - 1) % len(LEAVES)]
    places = tuple(
        BrokerPlace(
            f"B{number}",
            address_of(HOST, port),
            (f"B{parents[number]}",) if number in parents else (),
        )
        for number, port in enumerate(ports, 1)
    )
    return Topology("paper3", places, covering, heartbeat_s=HEARTBEAT_S, durability=VOLATILE)
