"""The plan of a run: the overlay, the traffic, and every fault, drawn before anything starts.

The same seed draws the same faults at the same times. Their effects depend on the operating
system, so two runs of one seed are similar, not equal.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

from msgspec import Struct

from motet.broker.overlay.topology import Topology
from motet.testing.topology import Tree
from motet.testing.workload import WorkloadPlan

Shape = Literal["line", "star", "tree"]
Profile = Literal["control", "delivery", "transactions", "mobility"]
Role = Literal["publisher", "middle", "subscriber"]
Station = Literal["source", "target", "path"]
Phase = Literal["asking", "offering", "in transit", "arriving"]
Kind = Literal[
    "kill",
    "kill_publisher",
    "kill_middle",
    "kill_subscriber",
    "restart",
    "pause",
    "cut",
    "stall",
    "seize",
    "drop_client",
    "restart_client",
    "kill_source",
    "kill_target",
    "kill_path",
    "pause_source",
    "pause_target",
    "pause_path",
    "cut_path",
    "seize_path",
    "drop_mover",
]

SHAPES: dict[Shape, Callable[[int], Topology]] = {
    "line": Topology.line,
    "star": Topology.star,
    "tree": Topology.tree,
}
DECK: tuple[Kind, ...] = (
    *("kill", "kill", "kill", "cut", "cut", "stall", "pause", "pause"),
    *("restart", "drop_client", "drop_client", "restart_client"),
)
"""Shuffled and dealt repeatedly, so that every kind of fault comes early and often."""
DELIVERY_DECK: tuple[Kind, ...] = (
    *("kill_publisher", "kill_middle", "kill_middle", "kill_subscriber"),
    *("pause", "pause", "cut", "cut", "stall", "seize", "seize"),
    *("restart", "drop_client", "drop_client", "drop_client", "restart_client"),
)
TRANSACTIONS_DECK: tuple[Kind, ...] = (
    *("kill", "kill", "kill", "kill", "pause", "pause", "cut", "stall", "seize", "restart"),
)
"""Every broker has every role at some time; connections of clients break in addition."""
MOBILITY_DECK: tuple[Kind, ...] = (
    *("kill_source", "kill_source", "kill_target", "kill_target", "kill_path", "kill_path"),
    *("pause_source", "pause_target", "pause_path", "cut_path", "cut_path", "seize_path"),
    *("drop_mover", "restart", "drop_client", "restart_client"),
)
"""Most of them hit a client while it moves."""
DECKS: dict[Profile, tuple[Kind, ...]] = {
    "control": DECK,
    "delivery": DELIVERY_DECK,
    "transactions": TRANSACTIONS_DECK,
    "mobility": MOBILITY_DECK,
}
FIRST: dict[Profile, Kind] = {
    "control": "kill",
    "delivery": "kill_middle",
    "transactions": "kill",
    "mobility": "kill_source",
}
"""The first fault of a run."""
STATIONS: dict[Kind, Station] = {
    "kill_source": "source",
    "kill_target": "target",
    "kill_path": "path",
    "pause_source": "source",
    "pause_target": "target",
    "pause_path": "path",
    "cut_path": "path",
    "seize_path": "path",
    "drop_mover": "path",
}
"""Where on the way of a client that moves these faults hit."""
PHASES: tuple[Phase, ...] = ("asking", "offering", "in transit", "arriving")
"""When they hit: as soon as the client asks; while the target is asked; once its source has
decided; a little later. A move is too fast to be hit surely: a phase may be over."""
ROLES: dict[Kind, Role] = {
    "kill_publisher": "publisher",
    "kill_middle": "middle",
    "kill_subscriber": "subscriber",
}
"""The role of the brokers that these faults hit, if there is such a broker; else any broker."""
LASTS_S: dict[Kind, tuple[float, float]] = {
    "kill": (0.0, 2.0),
    "kill_publisher": (0.0, 2.0),
    "kill_middle": (0.0, 2.0),
    "kill_subscriber": (0.0, 2.0),
    "restart": (0.0, 1.0),
    "pause": (0.2, 4.0),
    "cut": (0.1, 3.0),
    "stall": (0.2, 3.0),
    "seize": (0.2, 3.0),
    "drop_client": (0.0, 0.0),
    "restart_client": (0.0, 1.5),
    "kill_source": (0.0, 2.0),
    "kill_target": (0.0, 2.0),
    "kill_path": (0.0, 2.0),
    "pause_source": (0.2, 4.0),
    "pause_target": (0.2, 4.0),
    "pause_path": (0.2, 4.0),
    "cut_path": (0.1, 3.0),
    "seize_path": (0.2, 3.0),
    "drop_mover": (0.0, 0.0),
}
"""The shortest and the longest time until it is repaired. With the time a broker takes to start,
all of them stay well below the lease: no session may be lost."""
KILLS = ("kill", *ROLES, "kill_source", "kill_target", "kill_path")
ON_LINKS = ("cut", "stall", "seize", *STATIONS)
CALM_S = 0.5
"""No fault begins this close to the end: it would be repaired at once."""
ELSEWHERE = 0.4
"""The chance that a killed client comes back at any broker, not at its own."""
RELAPSES = 0.2
"""The chance that a broker is killed again while it recovers."""
WEIGHTS = (100.0, 5.0, 3.0, 4.5, 2.5, 0.3, 0.0)
"""Relative rates at which clients publish, subscribe, advertise, unsubscribe, unadvertise, leave;
they come back by themselves."""


DELIVERY_WEIGHTS = (100.0, 1.5, 0.8, 1.2, 0.6, 0.1, 0.0)
"""Where delivery is checked, streams last longer."""
SHORT_TIMEOUTS_S = (0.7, 2.0)
"""Of requests of clients that move: a move waits until they are answered."""


class Strike(NamedTuple):
    """One fault. `target` in [0, 1) chooses among the candidates at the time."""

    at_s: float
    kind: Kind
    target: float
    lasts_s: float
    relapse_s: float | None = None
    """The fraction of its recovery after which a broker is killed again."""
    elsewhere: float | None = None
    """Chooses another broker for a client that restarts."""
    phase: Phase = "asking"
    """Of the move that it hits."""


class ChaosPlan(Struct, frozen=True):
    brokers: int = 5
    seconds: float = 60.0
    seed: int = 0
    shape: Shape = "tree"
    profile: Profile = "control"
    """What is checked: operations, exactly-once events, streams handed over, or moves."""
    covering: bool = False
    durability: str = "fsync"
    snapshot_bytes: int = 8 * 1024
    """So small that brokers take snapshots all the time, and are killed while they do."""
    clients_per_broker: int = 2
    strike_s: float = 1.5
    """The mean time between two faults."""
    action_s: float = 0.015
    """The mean time between two actions of all clients together."""
    history: bool = False
    """Whether brokers and clients record a history, for the audit."""
    move_s: float = 0.25
    """With moves: the mean time between two of them."""
    timeouts_s: tuple[float, ...] = (3.0, 8.0, 25.0)
    lease_s: float = 10.0
    heartbeat_s: float = 0.5
    hop_s: float = 1.0
    """No undisturbed hop takes longer, however busy the machine is."""
    settle_s: float = 90.0
    """Once everything is repaired, the overlay must come to rest within this time."""

    @property
    def topology(self) -> Topology:
        return SHAPES[self.shape](self.brokers)

    @property
    def tree(self) -> Tree:
        topology = self.topology
        return Tree(topology.edges, topology.names)

    @property
    def traffic(self) -> WorkloadPlan:
        return WorkloadPlan(
            covering=self.covering,
            clients=self.brokers * self.clients_per_broker,
            chaos_s=self.seconds,
            action_s=self.action_s,
            burst=0.2,
            lease_s=self.lease_s,
            sync=0.0,
            timeouts_s=SHORT_TIMEOUTS_S if self.moves else self.timeouts_s,
            local=0.1,
            hop_s=(0.0, self.hop_s),
            control_chunk=0,
            weights=DELIVERY_WEIGHTS if self.sure else WEIGHTS,
            sure=self.sure,
        )

    @property
    def sure(self) -> bool:
        """Whether most events are exactly-once."""
        return self.profile in ("delivery", "mobility")

    @property
    def apart(self) -> bool:
        """Whether publishers and subscribers are at different brokers."""
        return self.profile == "delivery"

    @property
    def moves(self) -> bool:
        return self.profile == "mobility"

    @property
    def deals(self) -> bool:
        """Whether there are transactions."""
        return self.profile in ("transactions", "mobility")

    def homes(self, role: Role) -> tuple[str, ...]:
        """The brokers of publishers, of subscribers, or without clients ("middle"). Unless
        they live apart, and if there are too few brokers, clients are at all brokers."""
        tree = self.tree
        leaves = [name for name in tree.brokers if len(tree.neighbours[name]) <= 1]
        if not self.apart or len(leaves) < 2:
            return () if role == "middle" else tree.brokers
        publishers = tuple(leaves[: len(leaves) // 2])
        if role == "publisher":
            return publishers
        if role == "subscriber":
            return tuple(name for name in leaves if name not in publishers)
        return tuple(name for name in tree.brokers if name not in leaves)

    @property
    def inhabited(self) -> tuple[str, ...]:
        """Brokers that have clients."""
        there = {*self.homes("publisher"), *self.homes("subscriber")}
        return tuple(name for name in self.tree.brokers if name in there)

    def random(self, purpose: str) -> Random:
        """Each purpose has its own random stream: the clients' draws do not change the faults."""
        return Random(f"{self.seed}/{purpose}")

    def strikes(self) -> list[Strike]:
        """Every fault of the run, in order. The first one kills a broker."""
        random = self.random("faults")
        found: list[Strike] = []
        deck: list[Kind] = [FIRST[self.profile]]
        at_s = random.uniform(0.1, 0.5) * self.strike_s
        while at_s < self.seconds - CALM_S or not found:
            kind = deck.pop()
            target, lasts_s = random.random(), random.uniform(*LASTS_S[kind])
            relapse_s = random.uniform(0.0, 1.0) if random.random() < RELAPSES else None
            elsewhere = random.random() if random.random() < ELSEWHERE else None
            if not (kind in ON_LINKS and self.brokers == 1):
                relapse_s = relapse_s if kind in KILLS else None
                elsewhere = elsewhere if kind == "restart_client" else None
                phase = random.choice(PHASES) if kind in STATIONS else PHASES[0]
                found.append(Strike(at_s, kind, target, lasts_s, relapse_s, elsewhere, phase))
                at_s += random.expovariate(1.0 / self.strike_s)
            if not deck:
                deck = list(DECKS[self.profile])
                random.shuffle(deck)
        return found
