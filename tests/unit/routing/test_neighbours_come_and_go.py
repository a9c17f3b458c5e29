"""A neighbour joins or leaves a running overlay, under every schedule that FIFO links allow.

A link begins with a hello in each direction. A broker that receives one meets the other: it forgets
what came from it, and tells it everything. What is sent to a neighbour that was never met goes
nowhere, as the ledgers of links have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from motet.errors import InvariantError
from motet.model import Filter, Hop, OpId
from motet.protocol.changes import Sent
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import Advertise, Complete, RoutingMessage
from motet.protocol.transactions.state import Marks
from tests.unit.routing.test_all_schedules import Op, Overlay, explore


@dataclass(frozen=True)
class Hello:
    """The first frame of a link. `heard`: in answer to another one."""

    heard: bool


JOINING: dict[str, list[list[Op]]] = {
    "a subscriber joins": [
        [("A", "a", "+adv 1 x > 1"), ("A", "a", "-adv 1")],
        [("B", "", "+near C")],
        [("C", "c", "+sub 1 x = 5")],
    ],
    "an advertiser joins": [
        [("C", "c", "+adv 1 x > 1")],
        [("B", "", "+near C")],
        [("A", "a", "+sub 1 x = 5"), ("A", "a", "-sub 1")],
    ],
    "both sides have both": [
        [("A", "a", "+adv 1 x > 1")],
        [("B", "", "+near C")],
        [("C", "c", "+adv 1 x > 2")],
        [("B", "b", "+sub 1 x = 5")],
    ],
}
MERGING: dict[str, list[list[Op]]] = {
    "an advertiser that was effective before": [
        [("C", "c", "+adv 1 x > 1"), ("B", "", "+near C"), ("B", "b", "+sub 1 x = 5")],
        [("A", "a", "+adv 1 x > 2")],
    ],
    "a subscriber that was effective before": [
        [("C", "c", "+sub 1 x = 5"), ("B", "", "+near C"), ("C", "c", "-sub 1")],
        [("A", "a", "+adv 1 x > 2")],
    ],
}
LEAVING: dict[str, list[list[Op]]] = {
    "its last subscriber has left": [
        [("A", "a", "+adv 1 x > 1")],
        [("C", "c", "+sub 1 x = 5"), ("C", "c", "-sub 1"), ("B", "", "-near C")],
    ],
    "its last advertiser has left": [
        [("A", "a", "+sub 1 x = 5")],
        [("C", "c", "+adv 1 x > 1"), ("C", "c", "-adv 1"), ("B", "", "-near C")],
    ],
    "others wait for it": [
        [("A", "a", "+adv 1 x > 1"), ("A", "a", "-adv 1")],
        [("B", "b", "+sub 1 x = 5"), ("B", "b", "-sub 1")],
        [("B", "", "-near C")],
    ],
    "it comes again": [
        [("A", "a", "+adv 1 x > 1")],
        [("B", "", "-near C"), ("B", "", "+near C"), ("C", "c", "+sub 1 x = 5")],
    ],
}


class Changing(Overlay):
    """A – B, and C, which joins B or leaves it."""

    def __init__(self, *, covering: bool, joined: bool = False, alone: bool = False) -> None:
        """`alone`: before C learns of B, it has been an overlay by itself."""
        edges = (("A", "B"), ("B", "C")) if joined else (("A", "B"),)
        super().__init__(edges, covering=covering)
        if not joined:
            self._begin_c([] if alone else ["B"])

    def _begin_c(self, neighbours: list[str]) -> None:
        self.brokers["C"] = Routing("C", neighbours, Marks(), covering=self.covering)
        self.neighbours["C"] = ["B"]

    def allows(self, op: Op) -> bool:
        if op[2] == "-near C":
            return not any(self.brokers["B"].in_force("C"))
        return super().allows(op)

    def operate(self, op: Op) -> None:
        if op[2] == "+near C":
            if "C" not in self.brokers:
                self._begin_c(["B"])
            elif not self.brokers["C"].state.bits.neighbours:
                self.carry("C", self.brokers["C"].admit("B"))
            self.neighbours["B"] = ["A", "C"]
            self.carry("B", self.brokers["B"].admit("C"))
            self.wires["B", "C"] = []
            self.wires["C", "B"] = [Hello(heard=False)]  # type: ignore[list-item]
        elif op[2] == "-near C":
            self.neighbours["B"] = ["A"]
            self._end_c()
            self.carry("B", self.brokers["B"].dismiss("C"))
        else:
            super().operate(op)

    def _end_c(self) -> None:
        """It stops; whatever its clients still waited for, they hear no more of it."""
        del self.brokers["C"]
        del self.wires["B", "C"], self.wires["C", "B"]
        self.asked = {op for op in self.asked if op.client != "c"} | self.answered

    def send(self, broker: str, neighbour: str, message: RoutingMessage) -> None:
        machine = self.brokers[broker]
        if machine.state.met & machine.state.bits.bit(Hop.broker(neighbour)):
            super().send(broker, neighbour, message)

    def arrive(self, sender: str, receiver: str) -> None:
        first = self.wires[sender, receiver][0]
        if not isinstance(first, Hello):
            super().arrive(sender, receiver)
            return
        self.wires[sender, receiver].pop(0)
        machine = self.brokers[receiver]
        self.carry(receiver, machine.forget(sender))
        if not first.heard:
            hello = Hello(heard=True)
            self.wires[receiver, sender].append(hello)  # type: ignore[arg-type]
        self.carry(receiver, machine.join(sender))

    def check_effective(self, broker: str, op: OpId) -> None:
        """As long as C is an overlay by itself, nobody there counts here, nor the other way."""
        everybody = self.live["adv"]
        if "C" not in self.neighbours["B"]:
            self.live["adv"] = {
                key: advertisement
                for key, advertisement in everybody.items()
                if (advertisement[0] == "C") == (broker == "C")
            }
        super().check_effective(broker, op)
        self.live["adv"] = everybody

    def fingerprint(self) -> str:
        known = [
            (name, m.state.met, m.state.complete, m.state.declared, m.state.bits.slots)
            for name, m in self.brokers.items()
        ]
        return f"{known} {super().fingerprint()}"


@pytest.mark.parametrize("covering", [False, True], ids=["plain", "covering"])
@pytest.mark.parametrize("plan", JOINING)
def test_a_neighbour_joins_in_every_schedule(plan: str, covering: bool) -> None:
    found = explore(lambda: Changing(covering=covering), JOINING[plan])
    assert found > 30


@pytest.mark.parametrize("covering", [False, True], ids=["plain", "covering"])
@pytest.mark.parametrize("plan", MERGING)
def test_two_overlays_become_one_in_every_schedule(plan: str, covering: bool) -> None:
    found = explore(lambda: Changing(covering=covering, alone=True), MERGING[plan])
    assert found > 20


@pytest.mark.parametrize("covering", [False, True], ids=["plain", "covering"])
@pytest.mark.parametrize("plan", LEAVING)
def test_a_neighbour_leaves_in_every_schedule(plan: str, covering: bool) -> None:
    found = explore(lambda: Changing(covering=covering, joined=True), LEAVING[plan])
    assert found > 20


def test_neighbours_are_told_that_tables_are_incomplete_while_a_neighbour_is_new() -> None:
    machine = Routing("B", ["A"], Marks())
    machine.join("A")
    assert machine.admit("C").of(Sent) == [Sent("A", Complete(False))]
    assert machine.dismiss("C").of(Sent) == [Sent("A", Complete(True))]


def test_a_neighbour_with_something_in_force_cannot_be_dismissed() -> None:
    machine = Routing("A", ["B"], Marks())
    machine.apply(Advertise(OpId("c", "B-1.1", 1), Filter.parse("x > 1")), Hop.broker("B"))
    with pytest.raises(InvariantError, match="B was removed while entries from it are in force"):
        machine.dismiss("B")


def test_bits_are_used_again_and_clients_are_not_taken_for_neighbours() -> None:
    bits = Routing("A", ["B", "D"], Marks()).state.bits
    client = Hop.client("c")
    bits.number(client)
    bits.dismiss("B")
    bits.admit("E")
    assert bits.neighbours == ("E", "D"), "in the order of their bits"
    assert not bits.all_neighbours & bits.bit(client)
    assert bits.bit(Hop.broker("B")) == 0
    bits.admit("B")
    assert bits.bit(Hop.broker("B")) > bits.bit(client), "neighbours need not come first"
