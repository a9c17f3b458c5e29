"""Faults that are drawn from the menu while a cluster runs, and mended afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.testing.faults import DRAWN

if TYPE_CHECKING:
    from motet.testing.brokers import SimulatedBroker
    from motet.testing.cells import SimulatedMate
    from motet.testing.clients import SimulatedClient
    from motet.testing.cluster import Cluster
    from motet.testing.transport import Wire

FORESIGHT_S = 0.05
"""From a death sentence to the death: longer than any fact takes to become durable."""
CUT_S = (0.1, 4.0)
STALL_S = (0.1, 3.0)
LAG_S = (0.05, 0.4)
"""Shorter than a head waits for a mate."""
DOWN_S = (0.05, 3.0)
PAUSE_S = (0.2, 4.0)
SILENCE_S = 2.0
"""A client that pauses longer than this is taken for dead by its broker."""
JUMP_S = (0.5, 20.0)
SUCCESSOR = 0.6
"""The chance that a killed client is started again under the same id."""
ELSEWHERE = 0.3
"""The chance that such a successor comes to another broker."""


class Mishaps:
    """Draws, injects and counts; `stop` mends all that can be mended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._weights = [cluster.menu.weights[kind] for kind in DRAWN]
        self._running = False

    def begin(self) -> None:
        self._running = any(self._weights)
        if self._running:
            self._next()

    def stop(self) -> None:
        """No more faults: the weather clears, links heal, brokers come back, clients wake up."""
        self._running = False
        cluster = self._cluster
        for wire in cluster.wires.values():
            wire.rates = ()
            wire.control_loss = 0.0
            wire.cut = 0
            wire.stalled_until = 0.0
        for wire in cluster.cells.wires:
            wire.rates = ()
            wire.cut = 0
            wire.stalled_until = 0.0
        for mate in cluster.cells.mates.values():
            mate.go_on()
            mate.start()
        for broker in cluster.brokers.values():
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
        if STRIKES[kind](self):
            self._count(kind)

    def _count(self, kind: str) -> None:
        faults = self._cluster.faults
        faults[kind] = faults.get(kind, 0) + 1

    def _note(self, text: str) -> None:
        self._cluster.trace.note(self._cluster.agenda.now, text)

    # ── links ────────────────────────────────────────────────────────────────────────────

    def cut(self) -> bool:
        cluster = self._cluster
        if not cluster.wires:
            return False
        wire = cluster.random.choice(list(cluster.wires.values()))
        wire.cut += 1
        self._note(f"the link {'-'.join(wire.edge)} is cut")
        self._sever(wire)
        cluster.agenda.after(cluster.random.uniform(*CUT_S), self._heal, wire)
        return True

    def _heal(self, wire: Wire) -> None:
        if wire.cut:
            wire.cut -= 1
            self._note(f"the link {'-'.join(wire.edge)} is whole again")

    def stall(self) -> bool:
        """Frames wait until the link moves on. Half of the links that stall never do: then all
        that waits is lost."""
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
        """Sentence a broker. It dies between two steps, or in the middle of one."""
        cluster = self._cluster
        broker = self._some_broker()
        if broker is None or broker.digests is not None:
            return False
        broker.foresee_death()
        in_step = cluster.random.random() < 0.5
        cluster.agenda.after(FORESIGHT_S, self._execute, broker, remember, in_step)
        return True

    def amnesia(self) -> bool:
        return self.kill(remember=False)

    def log_failure(self) -> bool:
        return self.disk_failure(of_pubend=True)

    def disk_failure(self, *, of_pubend: bool = False) -> bool:
        """The next sync of a broker fails; it comes back on a disk that works."""
        broker = self._some_broker()
        if broker is None or broker.digests is not None:
            return False
        broker.foresee_death()
        broker.fail_disk(of_pubend=of_pubend)
        down_s = self._cluster.random.uniform(*DOWN_S)
        self._cluster.agenda.after(FORESIGHT_S + down_s, self._mend_disk, broker)
        return True

    def _mend_disk(self, broker: SimulatedBroker) -> None:
        if broker.disk_fails:  # it had nothing to write yet
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
            # It was to die in a step, but had none; or the run is mended already.
            broker.doomed, broker.digests = False, None
            return
        cluster = self._cluster
        if not remember:
            cluster.history.amnesia[broker.name].touch(cluster.agenda.now, cluster.agenda.now)
            cluster.lasting.forgotten(broker.name)
        broker.start(remember=remember)
        cluster.history.disturbed[broker.name].end(cluster.agenda.now)

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
        self._note(f"{mate.name}, a mate, stands still")
        mate.pause()
        pause_s = cluster.random.uniform(*PAUSE_S)
        if pause_s > SILENCE_S:
            cluster.agenda.after(SILENCE_S, self._give_up, mate)
        cluster.agenda.after(pause_s, mate.go_on)
        return True

    def _give_up(self, mate: SimulatedMate) -> None:
        """The others have heard nothing for too long."""
        if mate.paused:
            for end in list(mate.ends.values()):
                self._cluster.network.sever(end.connection)

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
        if client is None:
            return False
        cluster = self._cluster
        self._note(f"{client.name} is killed")
        client.kill()
        if cluster.lasting.return_later(client):
            return True
        if cluster.random.random() < SUCCESSOR:
            delay_s = cluster.random.uniform(0.0, 2.0)
            home = client.home
            if cluster.random.random() < ELSEWHERE:
                home = cluster.random.choice(cluster.tree.brokers)
            cluster.agenda.after(delay_s, self._arrive, client.name, home)
        return True

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
        if client is None:
            return False
        cluster = self._cluster
        self._note(f"{client.name} {'stands still' if entirely else 'stops reading'}")
        client.stop_reading(entirely=entirely)
        pause_s = cluster.random.uniform(*PAUSE_S)
        if entirely and pause_s > SILENCE_S:
            cluster.agenda.after(SILENCE_S, client.drop)
        cluster.agenda.after(pause_s, self._wake, client, entirely)
        return True

    def _wake(self, client: SimulatedClient, entirely: bool) -> None:
        if self._running:  # else everybody is awake already
            client.read_again(entirely=entirely)

    def _some_client(self) -> SimulatedClient | None:
        able = self._cluster.able()
        return self._cluster.random.choice(able) if able else None


STRIKES = {
    "cut": Mishaps.cut,
    "kill": Mishaps.kill,
    "amnesia": Mishaps.amnesia,
    "disk_failure": Mishaps.disk_failure,
    "snapshot": Mishaps.snapshot,
    "clock_jump": Mishaps.clock_jump,
    "drop_client": Mishaps.drop_client,
    "kill_client": Mishaps.kill_client,
    "pause_client": Mishaps.pause_client,
    "twin_client": Mishaps.twin_client,
    "slow_client": Mishaps.slow_client,
    "twin_elsewhere": Mishaps.twin_elsewhere,
    "kill_mate": Mishaps.kill_mate,
    "pause_mate": Mishaps.pause_mate,
    "cut_side": Mishaps.cut_side,
    "orphan": Mishaps.orphan,
    "lag": Mishaps.lag,
    "stall": Mishaps.stall,
    "log_failure": Mishaps.log_failure,
}
