"""The fault menu: the faults of a simulated overlay, their frequency, and their injection.

Rates are chances per frame on rough links. Weights are relative: about every `pace_s` one fault is
drawn. Every fault that really happened is counted by kind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from motet.errors import MisuseError
from motet.protocol.contract import Input, Received, Reconfigured
from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control
from motet.protocol.mobility.messages import MoveCommit, MoveDone
from motet.testing.topology import edge_of

if TYPE_CHECKING:
    from motet.testing.brokers import SimulatedBroker, SimulatedMate
    from motet.testing.clients import SimulatedClient
    from motet.testing.cluster import Cluster
    from motet.testing.transport import Wire


class FaultMenu(Struct, frozen=True):
    """With all zeros nothing ever goes wrong, and syncs take no time."""

    # ── frames between brokers, below the link layer ─────────────────────────────────────
    rough_links: float = 0.0
    """The share of links on which the frame rates below apply."""
    rough_sides: float = 0.0
    """The same for stream links between members of cells."""
    control_loss: float = 0.0
    """If not 0, the share of control that rough links lose on the way from the side that dialled;
    nothing else happens to control. Until it is retransmitted, streams overtake it."""
    loss: float = 0.0
    doubling: float = 0.0
    delay: float = 0.0
    reordering: float = 0.0

    # ── one of these about every `pace_s` ────────────────────────────────────────────────
    pace_s: float = 0.5
    cut: float = 0.0
    """A link is cut, each side notices after a delay of its own, and the link heals later."""
    kill: float = 0.0
    """A broker dies at some step and restarts from its journal."""
    amnesia: float = 0.0
    """A broker dies and comes back without its state, as a new incarnation."""
    disk_failure: float = 0.0
    """A sync fails: the broker dies at once, and restarts from the records on disk."""
    snapshot: float = 0.0
    """Not a fault, but it may reveal one: a snapshot replaces the journal before it."""
    clock_jump: float = 0.0
    drop_client: float = 0.0
    """A client's connection breaks; the client reconnects."""
    kill_client: float = 0.0
    """A client dies silently; its lease expires, or a successor comes before that."""
    pause_client: float = 0.0
    """A client neither reads nor acts."""
    twin_client: float = 0.0
    """A second client with the same id takes over."""
    twin_elsewhere: float = 0.0
    """A second client with the same id takes over at another broker."""
    slow_client: float = 0.0
    """A client acts but does not read, and its queue overflows."""

    kill_mate: float = 0.0
    """A mate of a cell dies and restarts; it keeps nothing on disk anyway."""
    pause_mate: float = 0.0
    """A mate pauses, and later processes everything that arrived meanwhile, however old."""
    cut_side: float = 0.0
    """A stream link between two members is cut, and heals later."""
    orphan: float = 0.0
    """The link between a mate and its head is cut: the mate continues with what it knows."""
    lag: float = 0.0
    """Messages from a head to a mate are late, but not so late that the mate is given up."""
    cells: float = 0.0
    """The share of runs in which some brokers are cells of several processes."""
    stall: float = 0.0
    """A link accepts frames and delivers none; later it continues, or is dead."""
    log_failure: float = 0.0
    """The disk of a pubend's log is full: the broker dies at once, and restarts when there is
    room."""

    sure: bool = False
    """Brokers have pubends: events are exactly-once."""

    deals: bool = False
    """Clients execute transactions."""

    moving: bool = False
    """Clients move to other brokers. If there are faults, some of them hit moves on purpose."""

    ordering: bool = False
    """No overlay, but sites that order events across topics; see `motet.testing.ordering`, which
    has most of its faults in a plan of its own."""

    sync_s: float = 0.0
    """The longest time until facts in a journal are durable."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Cumulative chances of the faults of a frame."""
        chances = [getattr(self, kind) for kind in FRAME_FAULTS]
        return tuple(sum(chances[: n + 1]) for n in range(len(chances)))

    @property
    def weights(self) -> dict[str, float]:
        return {kind: getattr(self, kind) for kind in DRAWN}

    @property
    def harmful(self) -> bool:
        return any(self.weights.values())


STEP_FAULTS = (
    *("kill", "amnesia", "cut", "give_up", "rewire", "pause"),
    *("drop_client", "pause_client", "kill_client", "twin_elsewhere"),
)
"""What may happen at a single step of a run that is calm otherwise. `give_up` is a cut where
neighbours keep few messages for each other."""

DRAWN = (
    *("cut", "kill", "amnesia", "disk_failure", "snapshot", "clock_jump"),
    *("drop_client", "kill_client", "pause_client", "twin_client", "slow_client", "twin_elsewhere"),
    *("stall", "log_failure", "kill_mate", "pause_mate", "cut_side", "orphan", "lag"),
)
"""Each is a method of `Mishaps`; a seed's draws depend on their order."""

FRAME_FAULTS = ("loss", "doubling", "delay", "reordering")

PROFILES: dict[str, FaultMenu] = {
    "calm": FaultMenu(sync_s=0.004),
    "lossy": FaultMenu(
        rough_links=0.6,
        loss=0.03,
        doubling=0.08,
        delay=0.02,
        reordering=0.03,
        cut=1.0,
        pace_s=1.0,
        sync_s=0.004,
    ),
    "crash": FaultMenu(
        kill=3.0,
        amnesia=1.0,
        disk_failure=0.7,
        snapshot=3.0,
        clock_jump=0.5,
        cut=0.5,
        pace_s=0.5,
        sync_s=0.02,
    ),
    "clients": FaultMenu(
        drop_client=3.0,
        kill_client=1.5,
        pause_client=1.0,
        twin_client=1.0,
        twin_elsewhere=1.0,
        slow_client=1.5,
        clock_jump=0.5,
        pace_s=0.3,
        sync_s=0.004,
    ),
    "mixed": FaultMenu(
        rough_links=0.35,
        loss=0.02,
        doubling=0.05,
        delay=0.01,
        reordering=0.02,
        cut=1.0,
        kill=1.2,
        amnesia=0.4,
        disk_failure=0.3,
        snapshot=1.0,
        clock_jump=0.5,
        drop_client=1.0,
        kill_client=0.5,
        pause_client=0.5,
        twin_client=0.5,
        twin_elsewhere=0.5,
        slow_client=0.5,
        pace_s=0.5,
        sync_s=0.01,
    ),
}
PROFILES["delivery"] = replace(
    PROFILES["mixed"], stall=1.0, log_failure=0.3, drop_client=2.0, sure=True, cells=0.1
)
PROFILES["cells"] = replace(
    PROFILES["delivery"],
    cells=1.0,
    kill_mate=1.0,
    pause_mate=1.0,
    cut_side=1.5,
    orphan=2.5,
    amnesia=0.2,
    pace_s=0.4,
)
PROFILES["orphans"] = FaultMenu(
    sure=True, cells=1.0, orphan=3.0, pause_mate=1.0, kill=0.3, pace_s=0.6, sync_s=0.004
)
PROFILES["transactions"] = replace(PROFILES["delivery"], deals=True, cells=0.0, amnesia=0.15)
PROFILES["moves"] = FaultMenu(sure=True, moving=True, sync_s=0.004)
PROFILES["mobility"] = replace(PROFILES["transactions"], moving=True)
PROFILES["ordering"] = FaultMenu(
    ordering=True, rough_links=0.4, loss=0.03, doubling=0.08, delay=0.02, reordering=0.03
)
DEFAULT_PROFILE = "mixed"


def profile(name: str) -> FaultMenu:
    menu = PROFILES.get(name)
    if menu is None:
        raise MisuseError(f"no fault profile is called {name!r}; there are {', '.join(PROFILES)}")
    return menu


FORESIGHT_S = 0.05
"""From choosing a broker to killing it: longer than any fact takes to become durable."""
CUT_S = (0.1, 4.0)
STALL_S = (0.1, 3.0)
LAG_S = (0.05, 0.4)
"""Shorter than the time that a head waits for a mate."""
DOWN_S = (0.05, 3.0)
PAUSE_S = (0.2, 4.0)
SILENCE_S = 2.0
"""A broker considers a client dead that pauses longer than this."""
JUMP_S = (0.5, 20.0)
SUCCESSOR = 0.6
"""The chance that a killed client is started again under the same id."""
ELSEWHERE = 0.3
"""The chance that such a successor connects to another broker."""


class Mishaps:
    """Draws, injects and counts faults; `stop` repairs everything that can be repaired."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._weights = [cluster.menu.weights[kind] for kind in DRAWN]
        self._running = False

    def begin(self) -> None:
        self._running = any(self._weights) or self._cluster.crash_at is not None
        if any(self._weights):
            self._next()

    def stop(self) -> None:
        """No more faults: links heal, brokers restart, clients continue."""
        self._running = False
        cluster = self._cluster
        for wire in (*cluster.wires.values(), *cluster.cells.wires):
            wire.heal()
        for mate in cluster.cells.mates.values():
            mate.go_on()
            mate.start()
        for broker in cluster.brokers.values():
            self._go_on(broker)
            broker.doomed = False
            if broker.disk_fails:
                cluster.kill_broker(broker)
            if broker.core is None:
                self._restart(broker, remember=True)
        for client in cluster.clients:
            while client.paused:
                client.read_again(entirely=True)
            while client.deaf:
                client.read_again(entirely=False)

    def _next(self) -> None:
        cluster = self._cluster
        pace_s = cluster.menu.pace_s
        cluster.agenda.after(cluster.random.expovariate(1.0 / pace_s), self._strike)

    def _strike(self) -> None:
        if not self._running:
            return
        self._next()
        kind = self._cluster.random.choices(DRAWN, self._weights)[0]
        if getattr(self, kind)():
            self._cluster.faults[kind] += 1

    def _note(self, text: str) -> None:
        self._cluster.trace.note(self._cluster.agenda.now, text)

    def at_step(self, kind: str, broker: SimulatedBroker, given: Input) -> None:
        """Inject one of `STEP_FAULTS` in this step of a broker, or right after it."""
        self._cluster.faults[kind] += 1
        if kind in ("kill", "amnesia"):
            broker.doomed = True
            self.restart_soon(broker, remember=kind == "kill")
            return
        hit: Callable[[], object]
        if kind == "pause":
            hit = partial(self._pause, broker)
        elif kind in ("cut", "give_up"):
            hit = partial(self._cut, self._wire_of(broker, given))
        elif kind == "rewire":
            edge = self._wire_of(broker, given).edge
            hit = partial(self._cluster.rewiring.part, *edge)
        else:
            hit = partial(self._hit_client, kind, self._client_of(broker, given))
        self._cluster.agenda.after(0.0, hit)

    def _wire_of(self, broker: SimulatedBroker, given: Input) -> Wire:
        """The link that brought this input, or any link of the broker."""
        end = broker.ends.get(given.connection) if isinstance(given, Received) else None
        if end is not None and end.connection.wire is not None:
            return end.connection.wire
        return self._cluster.random.choice(list(broker.wires.values()))

    def _client_of(self, broker: SimulatedBroker, given: Input) -> SimulatedClient | None:
        """The client that has sent this input, or that it is about, or any."""
        able = self._cluster.able()
        if isinstance(given, Received):
            end = broker.ends.get(given.connection)
            names = {_client_in(given.frame), end.peer.owner.name if end is not None else ""}
            able = [client for client in able if client.name in names] or able
        return self._cluster.random.choice(able) if able else None

    def _hit_client(self, kind: str, client: SimulatedClient | None) -> None:
        if client is None or client.over:
            return
        if kind == "drop_client":
            client.drop()
        elif kind == "pause_client":
            self._make_silent(client, entirely=True)
        elif kind == "kill_client":
            self._kill_client(client)
        else:
            self._cluster.arrive(
                client.name, self._cluster.random.choice(self._cluster.tree.brokers)
            )

    # ── links ────────────────────────────────────────────────────────────────────────────

    def cut(self) -> bool:
        cluster = self._cluster
        if not cluster.wires:
            return False
        self._cut(cluster.random.choice(list(cluster.wires.values())))
        return True

    def cut_link(self, wire: Wire) -> None:
        """Cut this link now."""
        if self._running:
            self._cut(wire)
            self._cluster.faults["cut"] += 1

    def _cut(self, wire: Wire) -> None:
        cluster = self._cluster
        wire.cut += 1
        self._note(f"the link {'-'.join(wire.edge)} is cut")
        self._sever(wire)
        cluster.agenda.after(cluster.random.uniform(*CUT_S), self._heal, wire)

    def _heal(self, wire: Wire) -> None:
        if wire.cut:
            wire.cut -= 1
            self._note(f"the link {'-'.join(wire.edge)} is whole again")

    def stall(self) -> bool:
        """Frames wait until the link continues. Half of the stalled links never do: then all
        waiting frames are lost."""
        cluster = self._cluster
        if not cluster.wires:
            return False
        random, now = cluster.random, cluster.agenda.now
        wire = random.choice(list(cluster.wires.values()))
        wire.stalled_until = max(wire.stalled_until, now + random.uniform(*STALL_S))
        wire.trouble.begin(now)
        wire.trouble.touch(now, wire.stalled_until + cluster.history.hop_s)
        self._note(f"the link {'-'.join(wire.edge)} stalls until {wire.stalled_until:.3f} s")
        if random.random() < 0.5:
            cluster.agenda.at(wire.stalled_until, self._give_out, wire)
        return True

    def _give_out(self, wire: Wire) -> None:
        if self._running:
            self._sever(wire)

    def _sever(self, wire: Wire) -> None:
        cluster = self._cluster
        wire.trouble.begin(cluster.agenda.now)
        for end in list(cluster.brokers[wire.edge[0]].ends.values()):
            if end.connection.wire is wire:
                cluster.network.sever(end.connection)

    # ── brokers ──────────────────────────────────────────────────────────────────────────

    def kill(self, *, remember: bool = True) -> bool:
        """Choose a broker that will die soon, between two steps or in the middle of one."""
        broker = self._some_broker()
        return broker is not None and self._kill(broker, remember)

    def doom(self, broker: SimulatedBroker, after_s: float = FORESIGHT_S) -> None:
        """This broker will die soon."""
        if self._running and broker.core is not None and self._kill(broker, True, after_s):
            self._cluster.faults["kill"] += 1

    def _kill(self, broker: SimulatedBroker, remember: bool, after_s: float = FORESIGHT_S) -> bool:
        cluster = self._cluster
        if broker.digests is not None:
            return False
        broker.foresee_death()
        in_step = cluster.random.random() < 0.5
        cluster.agenda.after(after_s, self._execute, broker, remember, in_step)
        return True

    def amnesia(self) -> bool:
        return self.kill(remember=False)

    def log_failure(self) -> bool:
        return self.disk_failure(of_pubend=True)

    def disk_failure(self, *, of_pubend: bool = False) -> bool:
        """Make the next sync of a broker fail; it restarts on a working disk."""
        broker = self._some_broker()
        if broker is None or broker.digests is not None:
            return False
        broker.foresee_death()
        broker.fail_disk(of_pubend=of_pubend)
        down_s = self._cluster.random.uniform(*DOWN_S)
        self._cluster.agenda.after(FORESIGHT_S + down_s, self._mend_disk, broker)
        return True

    def _mend_disk(self, broker: SimulatedBroker) -> None:
        if broker.disk_fails:  # it has not written anything since
            self._cluster.kill_broker(broker)
        self._restart(broker, remember=True)

    def snapshot(self) -> bool:
        broker = self._some_broker()
        if broker is not None:
            self._note(f"{broker.name} takes a snapshot")
            broker.take_snapshot()
        return broker is not None

    def _execute(self, broker: SimulatedBroker, remember: bool, in_step: bool) -> None:
        cluster = self._cluster
        if not self._running or broker.core is None:
            broker.digests = None
            return
        if in_step:
            broker.doomed = True
        else:
            cluster.kill_broker(broker)
        self.restart_soon(broker, remember=remember)

    def restart_soon(self, broker: SimulatedBroker, *, remember: bool = True) -> None:
        down_s = self._cluster.random.uniform(*DOWN_S)
        self._cluster.agenda.after(down_s, self._restart, broker, remember)

    def _restart(self, broker: SimulatedBroker, remember: bool) -> None:
        if broker.core is not None:
            # It was to die in a step but took none, or faults have already stopped.
            broker.doomed, broker.digests = False, None
            return
        cluster = self._cluster
        if not remember:
            cluster.history.amnesia[broker.name].touch(cluster.agenda.now, cluster.agenda.now)
            cluster.lasting.forgotten(broker.name)
        broker.start(remember=remember)
        cluster.history.disturbed[broker.name].end(cluster.agenda.now)

    def _pause(self, broker: SimulatedBroker) -> None:
        """It does nothing for a while; its peers give its connections up if that is too long."""
        cluster, now = self._cluster, self._cluster.agenda.now
        if broker.core is None or broker.paused:
            return
        self._note(f"{broker.name} is paused")
        cluster.history.disturbed[broker.name].begin(now)
        for wire in broker.wires.values():
            wire.trouble.begin(now)
        broker.pause()
        pause_s = cluster.random.uniform(*PAUSE_S)
        if pause_s > SILENCE_S:
            cluster.agenda.after(SILENCE_S, self._give_up, broker)
        cluster.agenda.after(pause_s, self._go_on, broker)

    def _go_on(self, broker: SimulatedBroker) -> None:
        if broker.paused:
            self._note(f"{broker.name} goes on")
            self._cluster.history.disturbed[broker.name].end(self._cluster.agenda.now)
            broker.go_on()

    def clock_jump(self) -> bool:
        broker = self._some_broker()
        if broker is None:
            return False
        cluster = self._cluster
        ahead_s = cluster.random.uniform(*JUMP_S)
        now = cluster.agenda.now
        self._note(f"the clock of {broker.name} jumps {ahead_s:.3f} s ahead")
        cluster.history.jumps[broker.name].touch(now, now)
        broker.timers.jump(ahead_s)
        return True

    def _some_broker(self) -> SimulatedBroker | None:
        cluster = self._cluster
        up = [broker for broker in cluster.brokers.values() if broker.core is not None]
        return cluster.random.choice(up) if up else None

    # ── mates ────────────────────────────────────────────────────────────────────────────

    def kill_mate(self) -> bool:
        mate = self._some_mate()
        if mate is None:
            return False
        mate.kill()
        self._cluster.agenda.after(self._cluster.random.uniform(*DOWN_S), mate.start)
        return True

    def pause_mate(self) -> bool:
        mate, cluster = self._some_mate(), self._cluster
        if mate is None:
            return False
        self._note(f"{mate.name}, a mate, is paused")
        mate.pause()
        pause_s = cluster.random.uniform(*PAUSE_S)
        if pause_s > SILENCE_S:
            cluster.agenda.after(SILENCE_S, self._give_up, mate)
        cluster.agenda.after(pause_s, mate.go_on)
        return True

    def _give_up(self, process: SimulatedBroker | SimulatedMate) -> None:
        """Its peers have heard nothing for too long."""
        if process.paused:
            for end in list(process.ends.values()):
                self._cluster.network.sever(end.connection)
                self._cluster.troubled(end)

    def cut_side(self) -> bool:
        cluster = self._cluster
        if not cluster.cells.wires:
            return False
        self._cut_side(cluster.random.choice(cluster.cells.wires))
        return True

    def orphan(self) -> bool:
        mate = self._some_mate()
        if mate is None:
            return False
        self._cut_side(mate.side_wires[mate.head])
        return True

    def lag(self) -> bool:
        mate, cluster = self._some_mate(), self._cluster
        if mate is None:
            return False
        wire = mate.side_wires[mate.head]
        wire.stalled_until = cluster.agenda.now + cluster.random.uniform(*LAG_S)
        self._note(f"{mate.head} and {mate.name} are slow to hear each other")
        return True

    def _cut_side(self, wire: Wire) -> None:
        cluster = self._cluster
        wire.cut += 1
        self._note(f"the stream link {'-'.join(wire.edge)} is cut")
        for end in list(cluster.cells.process(wire.edge[0]).ends.values()):
            if end.connection.wire is wire:
                cluster.network.sever(end.connection)
        cluster.agenda.after(cluster.random.uniform(*CUT_S), self._heal, wire)

    def _some_mate(self) -> SimulatedMate | None:
        cluster = self._cluster
        up = [m for m in cluster.cells.mates.values() if m.core is not None and not m.paused]
        return cluster.random.choice(up) if up else None

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def drop_client(self) -> bool:
        client = self._some_client()
        if client is None or client.end is None:
            return False
        self._note(f"the connection of {client.name} breaks")
        client.drop()
        return True

    def kill_client(self) -> bool:
        client = self._some_client()
        if client is not None:
            self._kill_client(client)
        return client is not None

    def _kill_client(self, client: SimulatedClient) -> None:
        cluster = self._cluster
        self._note(f"{client.name} is killed")
        client.kill()
        if cluster.lasting.return_later(client):
            return
        if cluster.random.random() < SUCCESSOR:
            delay_s = cluster.random.uniform(0.0, 2.0)
            home = client.home
            if cluster.random.random() < ELSEWHERE:
                home = cluster.random.choice(cluster.tree.brokers)
            cluster.agenda.after(delay_s, self._arrive, client.name, home)

    def _arrive(self, name: str, home: str) -> None:
        if self._running:
            self._cluster.arrive(name, home)

    def twin_client(self) -> bool:
        client = self._some_client()
        if client is None:
            return False
        self._note(f"a second {client.name} comes")
        self._cluster.arrive(client.name, client.home)
        return True

    def twin_elsewhere(self) -> bool:
        client, cluster = self._some_client(), self._cluster
        others = [name for name in cluster.tree.brokers if client and name != client.home]
        if client is None or not others:
            return False
        home = cluster.random.choice(others)
        self._note(f"a second {client.name} comes to {home}")
        cluster.arrive(client.name, home)
        return True

    def pause_client(self) -> bool:
        return self._silence(entirely=True)

    def slow_client(self) -> bool:
        return self._silence(entirely=False)

    def _silence(self, *, entirely: bool) -> bool:
        client = self._some_client()
        if client is not None:
            self._make_silent(client, entirely=entirely)
        return client is not None

    def _make_silent(self, client: SimulatedClient, *, entirely: bool) -> None:
        cluster = self._cluster
        self._note(f"{client.name} {'is paused' if entirely else 'stops reading'}")
        client.stop_reading(entirely=entirely)
        pause_s = cluster.random.uniform(*PAUSE_S)
        if entirely and pause_s > SILENCE_S:
            cluster.agenda.after(SILENCE_S, client.drop)
        cluster.agenda.after(pause_s, self._wake, client, entirely)

    def _wake(self, client: SimulatedClient, entirely: bool) -> None:
        if self._running:  # else all clients have been woken
            client.read_again(entirely=entirely)

    def _some_client(self) -> SimulatedClient | None:
        able = self._cluster.able()
        return self._cluster.random.choice(able) if able else None


PACE_S = 0.4
APART_S = (0.1, 3.0)


class Rewiring:
    """Uses a random generator of its own, so that a seed's other draws do not depend on it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(f"rewiring {seed}")
        self._running = False

    def begin(self) -> None:
        menu = self._cluster.menu
        self._running = self._cluster.plan.rewiring and bool(menu.cut or menu.kill)
        self._next()

    def stop(self) -> None:
        """Every broker that is up gets its neighbours back."""
        self._running = False
        for broker in self._cluster.brokers.values():
            self._put_back(broker)

    def _next(self) -> None:
        if self._running:
            delay_s = self._random.expovariate(1.0 / PACE_S)
            self._cluster.agenda.after(delay_s, self._take_out)

    def _take_out(self) -> None:
        if not self._running:
            return
        self._next()
        cluster = self._cluster
        ends = [
            (broker, neighbour)
            for broker in cluster.brokers.values()
            if broker.core is not None
            for neighbour in broker.core.links
            if not broker.core.objection_to(_without(broker, neighbour))
        ]
        if not ends:
            return
        self._take_out_of(*self._random.choice(ends))

    def part(self, one: str, other: str) -> None:
        """Two neighbours are taken out of each other's topology, if one of them may."""
        for name, neighbour in ((one, other), (other, one)):
            broker = self._cluster.brokers[name]
            if broker.core is None or neighbour not in broker.core.links:
                continue
            if not broker.core.objection_to(_without(broker, neighbour)):
                self._take_out_of(broker, neighbour)
                return

    def _take_out_of(self, broker: SimulatedBroker, neighbour: str) -> None:
        cluster = self._cluster
        now, edge = cluster.agenda.now, edge_of(broker.name, neighbour)
        cluster.faults["rewired"] += 1
        cluster.trace.note(now, f"{broker.name} takes {neighbour} out of its topology")
        # Brokers behind the link do not know that the others continue without them, and when
        # they rejoin the news takes time: only what holds in the end counts here.
        cluster.history.amnesia[edge].touch(now, inf)
        cluster.history.disturbed[edge].begin(now)
        broker.step(Reconfigured(_without(broker, neighbour)))
        cluster.agenda.after(self._random.uniform(*APART_S), self._put_back, broker)

    def _put_back(self, broker: SimulatedBroker) -> None:
        neighbours = self._cluster.tree.neighbours[broker.name]
        if broker.core is not None and set(broker.core.links) != set(neighbours):
            now = self._cluster.agenda.now
            self._cluster.trace.note(now, f"{broker.name} has all its neighbours again")
            broker.step(Reconfigured(neighbours))


def _without(broker: SimulatedBroker, neighbour: str) -> tuple[str, ...]:
    assert broker.core is not None
    return tuple(name for name in broker.core.links if name != neighbour)


def _client_in(frame: Frame) -> str:
    """The client that a frame is about, if it moves."""
    parts = frame.messages if type(frame) is Control else ()
    moves = [part for part in parts if isinstance(part, MoveCommit | MoveDone)]
    return getattr(moves[0] if moves else frame, "client", "")
