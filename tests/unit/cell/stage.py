"""A cell of two in the simulator, without faults and with every link under the test's control."""

from __future__ import annotations

from math import inf
from typing import Any

from motet.model import Filter
from motet.testing.clients import SimulatedClient
from motet.testing.cluster import Cluster
from motet.testing.faults import FaultMenu
from motet.testing.topology import Tree
from motet.testing.transport import NOTICE_S, Wire

SETTLE_S = 0.05
"""More than all frames take together: only those of clients take any time."""
DIAL_S = 1.0
PLAN = {
    "covering": False,
    "sure": True,
    "mates": {"B": ("Bm",)},
    "hop_s": (0.0, 0.0),
    "process_s": inf,
}
"""Clients acknowledge nothing of their own accord."""


class Stage(Cluster):
    """P – {B, Bm} – E: a publisher's broker, a cell of two, and a subscriber's broker."""

    def __init__(self) -> None:
        tree = Tree([("P", "B"), ("B", "E")])
        super().__init__(1, FaultMenu(), needs=PLAN, tree=tree, story=True)
        self.processes = {**self.brokers, **self.cells.mates}
        for wire in (*self.wires.values(), *self.cells.wires):
            wire.cut = 1
        for broker in self.brokers.values():
            broker.start(remember=False)
        for mate in self.cells.mates.values():
            mate.start()

    @property
    def cores(self) -> dict[str, Any]:
        return {name: process.core for name, process in self.processes.items()}

    def wait(self, seconds: float = SETTLE_S) -> None:
        self.agenda.run(self.agenda.now + seconds)

    # ── links ────────────────────────────────────────────────────────────────────────────

    def _wire(self, one: str, two: str) -> Wire:
        process = self.processes[one]
        return process.wires.get(two) or process.side_wires[two]

    def link(self, *pairs: tuple[str, str]) -> None:
        for pair in pairs:
            self._wire(*pair).cut = 0
        self.wait(DIAL_S)

    def link_all(self) -> None:
        self.link(("Bm", "B"))
        self.link(("P", "B"), ("P", "Bm"), ("E", "B"), ("E", "Bm"))

    def cut(self, one: str, *others: str) -> None:
        for other in others:
            wire = self._wire(one, other)
            wire.cut = 1
            for end in list(self.processes[one].ends.values()):
                if end.connection.wire is wire:
                    self.network.sever(end.connection)
        self.wait(NOTICE_S[1])

    def stop(self, name: str) -> None:
        """It stands still: what comes for it waits."""
        self.processes[name].pause()

    def go_on(self, name: str) -> None:
        self.processes[name].go_on()
        self.wait()

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def connect(self, name: str, broker: str) -> SimulatedClient:
        client = self.arrive(name, broker)
        self.wait()
        return client

    def advertise(self, client: SimulatedClient, text: str) -> bool:
        return self._ask(client, "advertise", text)

    def subscribe(self, client: SimulatedClient, text: str) -> bool:
        return self._ask(client, "subscribe", text)

    def _ask(self, client: SimulatedClient, kind: Any, text: str) -> bool:
        client.ask(kind, Filter.parse(text), wait=True, timeout_s=60.0)
        self.wait()
        return self.is_done(client)

    def is_done(self, client: SimulatedClient) -> bool:
        """Whether its last request was effective in the end."""
        *_, call = client.calls.values()
        return [said for _, said in call.answers] == ["Done"]

    def publish(self, client: SimulatedClient, **attributes: Any) -> None:
        client.publish(attributes, sure=True)
        self.wait()

    def processed(self, client: SimulatedClient) -> None:
        """It acknowledges all that it was given."""
        for pubend, upto in client.machine.streams.received.items():
            client._process(pubend, upto)
        self.wait()

    def delivered(self, client: SimulatedClient) -> list[int]:
        """The numbers of the events that it got."""
        found = [each.event for each in self.history.deliveries if each.instance == client.instance]
        return [each.number + 1 for each in found if each is not None]
