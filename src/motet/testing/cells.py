"""Cells in the simulator: mates, their stream links, and what befalls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from motet.broker.cell.mate import MateCore
from motet.broker.config import BrokerConfig
from motet.protocol.cell.messages import Sideways
from motet.protocol.contract import Closed, Dialled, Input, Output, Received, SetTimer, TimerFired
from motet.protocol.frames import Frame
from motet.protocol.session.messages import Goodnight
from motet.testing.clock import Timers, VirtualClock
from motet.testing.topology import edge_of
from motet.testing.transport import Connection, End, Wire

if TYPE_CHECKING:
    from motet.testing.brokers import SimulatedBroker
    from motet.testing.cluster import Cluster

REDIAL_S = (0.02, 0.6)
VALIDATE_EVERY = 97
LIFE = 1_000_000
"""Apart from each other by more than a mate can begin anew in one life."""


class SimulatedMate:
    """The real core, in virtual time. It has no disk, so what it says leaves at once."""

    def __init__(self, cluster: Cluster, name: str, head: str) -> None:
        self.name = name
        self.head = head
        self.cluster = cluster
        self.ends: dict[int, End] = {}
        self.side_wires: dict[str, Wire] = {}
        self.clock = VirtualClock(cluster.agenda)
        self.timers = Timers(cluster.agenda, self.clock, self._ring)
        self.core: MateCore | None = None
        self._lives = 0
        self._connections = 0
        self._dialling: set[str] = set()
        self._inbox: list[Any] | None = None
        """While it stands still: what it will find when it goes on."""

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        if self.core is not None:
            return
        self._lives += 1
        config = BrokerConfig(
            self.name,
            self.cluster.tree.neighbours[self.head],
            self._lives * LIFE,
            **self.cluster.cells.settings(self.head) | {"head": self.head},
        )
        self.core = MateCore(config)
        self.cluster.trace.note(self.cluster.agenda.now, f"{self.name}, a mate, starts")
        for other, wire in self.side_wires.items():
            if wire.dialler == self.name:
                self._dial_soon(other)

    def kill(self) -> None:
        if self.core is None:
            return
        self.cluster.trace.note(self.cluster.agenda.now, f"{self.name}, a mate, dies")
        self.core = None
        self._inbox = None
        self.timers.clear()
        for end in self.ends.values():
            self.cluster.network.abandon(end)
        self.ends.clear()

    @property
    def paused(self) -> bool:
        return self._inbox is not None

    def pause(self) -> None:
        if self._inbox is None:
            self._inbox = []

    def go_on(self) -> None:
        """Everything that came meanwhile is worked off in its order."""
        waiting, self._inbox = self._inbox or [], None
        for action, *args in waiting:
            action(*args)

    # ── connections ──────────────────────────────────────────────────────────────────────

    def new_number(self) -> int:
        self._connections += 1
        return self._connections

    def accept(self, end: End) -> None:
        self.ends[end.number] = end

    def _dial_soon(self, other: str) -> None:
        if other not in self._dialling:
            self._dialling.add(other)
            delay_s = self.cluster.random.uniform(*REDIAL_S)
            self.cluster.agenda.after(delay_s, self._dial, other)

    def _dial(self, name: str) -> None:
        self._dialling.discard(name)
        wire = self.side_wires[name]
        other = self.cluster.cells.process(name)
        if self.core is None or any(end.connection.wire is wire for end in self.ends.values()):
            return
        if other.core is None or wire.cut or self._inbox is not None:
            self._dial_soon(name)
            return
        connection = Connection(self, self.new_number(), other, other.new_number(), wire)
        mine, theirs = connection.ends
        other.accept(theirs)
        self.accept(mine)
        self.step(Dialled(mine.number, name))

    def receive(self, end: End, frame: Frame) -> None:
        if self._inbox is not None:
            self._inbox.append((self.receive, end, frame))
            return
        if self.core is None or end.ended:
            return
        if type(frame) is Goodnight:
            self.cluster.network.close(end)
            self.lost(end)
            return
        self.step(Received(end.number, frame))

    def lost(self, end: End) -> None:
        if self._inbox is not None:
            self._inbox.append((self.lost, end))
            return
        self.ends.pop(end.number, None)
        wire = end.connection.wire
        if wire is not None and wire.dialler == self.name and self.core is not None:
            self._dial_soon(end.peer.owner.name)
        if self.core is not None and not end.ended:
            self.step(Closed(end.number))

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def _ring(self, key: tuple[object, ...]) -> None:
        if self._inbox is not None:
            self._inbox.append((self._ring, key))
        elif self.core is not None:
            self.step(TimerFired(key))

    def step(self, given: Input) -> None:
        core, cluster = self.core, self.cluster
        assert core is not None
        try:
            out = core.step(given, self.clock.now())
            if not cluster.trace.steps % VALIDATE_EVERY:
                core.validate()
        except Exception as problem:
            cluster.broken(self.name, given, problem)
            return
        cluster.trace.broker(cluster.agenda.now, self.name, given, out)
        cluster.cells.watch(self.name, given, out)
        if cluster.trace.story is not None:
            self._tell(given, out)
        self._carry(out)

    def _tell(self, given: Input, out: Output) -> None:
        peers = {number: end.peer.owner.name for number, end in self.ends.items()}
        if isinstance(given, Closed):
            peers[given.connection] = "someone"
        self.cluster.trace.tell_broker(self.cluster.agenda.now, self.name, given, out, peers)

    def _carry(self, out: Output) -> None:
        for number, frame in out.send:
            end = self.ends.get(number)
            if end is not None and not end.ended:
                self.cluster.network.carry(end, frame)
        for timer in out.timers:
            if type(timer) is SetTimer:
                self.timers.set(timer.key, timer.at)
            else:
                self.timers.cancel(timer.key)
        for close in out.close:
            end = self.ends.get(close.connection)
            if end is None:
                continue
            if close.error:
                who = end.peer.owner.name
                text = f"{self.name} expelled {who}: {close.error}: {close.text}"
                self.cluster.history.odd("invariants", text)
            end.ended = True
            self.cluster.network.carry(end, Goodnight(close.error, close.text))
            self.cluster.network.close(end)
            self.lost(end)


class Cells:
    """All mates of a run, and the stream links between members."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.mates: dict[str, SimulatedMate] = {}
        self.wires: list[Wire] = []
        plan = cluster.plan.mates
        for head, names in plan.items():
            for name in names:
                self.mates[name] = SimulatedMate(cluster, name, head)
        for head, names in plan.items():
            family = (head, *names)
            for at, name in enumerate(family):
                for earlier in family[:at]:
                    self._wire(name, earlier)
        for edge, wire in cluster.wires.items():
            one, two = (edge[1], edge[0]) if wire.dialler == edge[1] else edge
            for caller in (one, *plan.get(one, ())):
                for called in (two, *plan.get(two, ())):
                    if (caller, called) != (one, two):
                        self._wire(caller, called)

    def _wire(self, caller: str, called: str) -> None:
        cluster = self._cluster
        wire = cluster.network.side_wire(edge_of(caller, called), caller, cluster.menu)
        self.wires.append(wire)
        self.process(caller).side_wires[called] = wire
        self.process(called).side_wires[caller] = wire

    def process(self, name: str) -> SimulatedBroker | SimulatedMate:
        return self.mates.get(name) or self._cluster.brokers[name]

    def settings(self, head: str) -> dict[str, Any]:
        """What a member of this cell is told of cells."""
        plan = self._cluster.plan.mates
        if not plan:
            return {}
        near = self._cluster.tree.neighbours[head]
        return {
            "mates": plan.get(head, ()),
            "cells": {name: plan[name] for name in near if name in plan},
        }

    def watch(self, name: str, given: Input, out: Output) -> None:
        """What came sideways must not go sideways again."""
        came = type(given) is Received and type(given.frame) is Sideways
        if came and any(type(frame) is Sideways for _, frame in out.send):
            self._cluster.history.odd("invariants", f"{name} carries sideways what came so")

    def inspect(self, when: str) -> None:
        """At rest every mate shows what its head has."""
        for mate in self.mates.values():
            head = self._cluster.brokers[mate.head].core
            if mate.core is None or head is None:
                continue
            ours = mate.core.now_of
            if ours is None or ours.durable.digest() != head.durable.digest():
                text = f"{mate.name} does not show the state of {mate.head} {when}"
                self._cluster.history.odd("replay", text)
