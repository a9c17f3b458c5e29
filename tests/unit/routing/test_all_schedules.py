"""Routing machines on tiny overlays under every schedule that FIFO links allow.

The search is complete: at each point either the next operation of some client happens or the
oldest message of some link arrives, and every choice is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import pytest

from motet.model import Filter, Hop, OpId, covers, overlap
from motet.model.coverage import RETRACT, Covering
from motet.protocol.changes import Changes, Completed, Sent
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    RoutingMessage,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.transactions.state import Marks

Op = tuple[str, str, str]
"""Broker, client, and what it does: `+adv 1 x > 1`, `-adv 1`, `+sub 2 x = 5`, `-sub 2`."""

PLANS: dict[str, tuple[tuple[tuple[str, str], ...], list[list[Op]]]] = {
    "crossing": (
        (("A", "B"),),
        [
            [("A", "a", "+adv 1 x > 1"), ("A", "a", "-adv 1")],
            [("B", "b", "+sub 1 x = 5"), ("B", "b", "-sub 1")],
        ],
    ),
    "again and again": (
        (("A", "B"),),
        [
            [("A", "a", "+adv 1 x > 1"), ("A", "a", "-adv 1"), ("A", "a", "+adv 2 x > 2")],
            [("B", "b", "+sub 1 x = 5"), ("B", "b", "-sub 1"), ("B", "b", "+sub 2 x = 6")],
        ],
    ),
    "meeting in the middle": (
        (("A", "B"), ("B", "C")),
        [
            [("A", "a", "+adv 1 x > 1")],
            [("C", "c", "+sub 1 x = 5")],
            [("B", "b", "+adv 1 x = 5"), ("B", "b", "-adv 1")],
        ],
    ),
    "two advertisers support one subscription": (
        (("A", "B"),),
        [
            [("A", "a", "+adv 1 x > 1"), ("A", "a", "-adv 1")],
            [("A", "d", "+adv 1 x > 3"), ("A", "d", "-adv 1")],
            [("B", "b", "+sub 1 x = 5")],
        ],
    ),
    "covering leaves": (
        (("A", "B"),),
        [
            [("A", "a", "+adv 1 x > 1")],
            [("B", "w", "+sub 1 x > 0"), ("B", "w", "-sub 1")],
            [("B", "n", "+sub 1 x > 5"), ("B", "n", "-sub 1")],
        ],
    ),
    "a wider subscription from another side": (
        (("A", "B"), ("B", "C")),
        [
            [("A", "a", "+adv 1 x > 1")],
            [("B", "w", "+sub 1 x > 0"), ("B", "w", "-sub 1")],
            [("C", "n", "+sub 1 x > 5"), ("C", "n", "-sub 1")],
        ],
    ),
    "a wider advertisement": (
        (("A", "B"),),
        [
            [("A", "n", "+adv 1 x > 5"), ("A", "n", "-adv 1")],
            [("A", "w", "+adv 1 x > 0"), ("A", "w", "-adv 1")],
            [("B", "s", "+sub 1 x > 6")],
        ],
    ),
}


class Overlay:
    def __init__(self, edges: tuple[tuple[str, str], ...], *, covering: Covering) -> None:
        self.covering = covering
        names = sorted({name for edge in edges for name in edge})
        self.neighbours = {n: [b if a == n else a for a, b in edges if n in (a, b)] for n in names}
        self.brokers = {
            n: Routing(n, self.neighbours[n], Marks(), covering=covering) for n in names
        }
        for machine in self.brokers.values():  # as after all links have begun
            state = machine.state
            state.met = state.complete = state.declared = state.bits.all_neighbours
        self.wires: dict[tuple[str, str], list[RoutingMessage]] = {
            wire: [] for a, b in edges for wire in ((a, b), (b, a))
        }
        self.live: dict[str, dict[tuple[str, int], tuple[str, Filter]]] = {"adv": {}, "sub": {}}
        self.targets: dict[OpId, OpId] = {}
        self.asked: set[OpId] = set()
        self.answered: set[OpId] = set()
        self.counter = 0

    def apply(self, broker: str, message: RoutingMessage, source: Hop) -> None:
        machine = self.brokers[broker]
        self.carry(broker, machine.apply(message, source))

    def carry(self, broker: str, effects: Changes) -> None:
        machine = self.brokers[broker]
        for sent in effects.of(Sent):
            self.send(broker, sent.neighbour, sent.message)
        for done in effects.of(Completed):
            assert done.op not in self.answered
            self.answered.add(done.op)
            if not done.withdrawn:
                self.check_effective(broker, done.op)
                self.check_gone(done.op)
        machine.validate()
        machine.validate_neighbours()

    def send(self, broker: str, neighbour: str, message: RoutingMessage) -> None:
        self.wires[broker, neighbour].append(message)

    def arrive(self, sender: str, receiver: str) -> None:
        message = self.wires[sender, receiver].pop(0)
        self.apply(receiver, message, Hop.broker(sender))

    def allows(self, op: Op) -> bool:
        """Whether an operation may happen now."""
        return op[0] in self.brokers

    def operate(self, op: Op) -> None:
        broker, client, text = op
        verb, number, *words = text.split(" ", 2)
        kind, key = verb[1:], (client, int(number))
        id = OpId(client, "e", int(number))
        self.counter += 1
        removal = OpId(client, "e", 100 + self.counter)
        if verb[0] == "+":
            filter = Filter.parse(words[0])
            self.live[kind][key] = (broker, filter)
            make = Advertise if kind == "adv" else Subscribe
            self.asked.add(id)
            self.apply(broker, make(id, filter, echo=True), Hop.client(client))
        else:
            del self.live[kind][key]
            undo = Unadvertise if kind == "adv" else Unsubscribe
            self.asked.add(removal)
            self.targets[removal] = id
            self.apply(broker, undo(id, removal), Hop.client(client))

    def path(self, start: str, goal: str) -> list[str]:
        routes = [[start]]
        for route in routes:
            if route[-1] == goal:
                return route
            routes += [[*route, n] for n in self.neighbours[route[-1]] if n not in route]
        raise AssertionError

    def check_effective(self, broker: str, op: OpId) -> None:
        """At the instant of the answer, not later."""
        subscription = self.brokers[broker].state.subscriptions.get(op)
        if subscription is None:
            return
        for (client, number), (edge, filter) in self.live["adv"].items():
            if OpId(client, "e", number) in self.answered and overlap(filter, subscription.filter):
                for name in self.path(broker, edge):
                    entries = self.brokers[name].state.subscriptions
                    assert any(covers(e.filter, subscription.filter) for e in entries), name

    def check_gone(self, op: OpId) -> None:
        target = self.targets.get(op)
        for machine in self.brokers.values() if target else ():
            assert target not in machine.state.subscriptions
            assert target not in machine.state.advertisements

    def check_oracle(self, *, covering: Covering) -> None:
        for name, machine in self.brokers.items():
            wanted_ads, wanted_subs = {}, {}
            for (client, number), (edge, _) in self.live["adv"].items():
                wanted_ads[OpId(client, "e", number)] = self.last_hop(name, edge, client)
            for (client, number), (edge, filter) in self.live["sub"].items():
                reached = edge == name or any(
                    overlap(filter, advertised) and name in self.path(edge, where)[1:]
                    for where, advertised in self.live["adv"].values()
                )
                if reached:
                    wanted_subs[OpId(client, "e", number)] = self.last_hop(name, edge, client)
            state = machine.state
            found_ads = {e.id: e.source for e in state.advertisements}
            found_subs = {e.id: e.source for e in state.subscriptions}
            if covering:
                assert found_ads.items() <= wanted_ads.items()
                assert found_subs.items() <= wanted_subs.items()
                self.check_sent(name, narrowest=covering == RETRACT)
            else:
                assert found_ads == wanted_ads
                assert found_subs == wanted_subs
            assert not state.waits

    def check_sent(self, name: str, *, narrowest: bool) -> None:
        """A neighbour has what was sent there; if so wished, none of it covers another."""
        state = self.brokers[name].state
        for neighbour in self.neighbours[name]:
            bit = state.bits.bit(Hop.broker(neighbour))
            theirs = self.brokers[neighbour].state
            for ours, there in (
                (state.advertisements, theirs.advertisements),
                (state.subscriptions, theirs.subscriptions),
            ):
                sent = {entry.id: entry.filter for entry in ours if entry.sent & bit}
                assert sent.keys() == {e.id for e in there.from_source(Hop.broker(name))}
                pairs = permutations(sent.values(), 2) if narrowest else ()
                assert not any(covers(wide, narrow) for wide, narrow in pairs)

    def last_hop(self, name: str, edge: str, client: str) -> Hop:
        if name == edge:
            return Hop.client(client)
        return Hop.broker(self.path(name, edge)[1])

    def fingerprint(self) -> str:
        """Equal for states that behave alike from here on."""
        parts: list[object] = [sorted(self.answered), self.counter]
        for machine in self.brokers.values():
            state = machine.state
            for table in (state.advertisements, state.subscriptions):
                parts.append([(e.id, e.source, e.sent) for e in table])
            parts.append([(w.op, w.requester, w.missing) for w in state.waits.values()])
        return repr((parts, self.wires))


def explore(begin: Callable[[], Overlay], scripts: Sequence[Sequence[Op]]) -> int:
    """Follow every schedule until it reaches a state seen before; how many states there are."""
    schedules = [[]]  # prefixes of choices; each run extends one to its end
    seen: set[str] = set()
    while schedules:
        prefix: list[int] = schedules.pop()
        overlay = begin()
        positions = [0] * len(scripts)
        taken: list[int] = []
        while True:
            choices: list[tuple[str, object]] = [
                ("op", i)
                for i, at in enumerate(positions)
                if at < len(scripts[i]) and overlay.allows(scripts[i][at])
            ]
            choices += [("wire", wire) for wire, waiting in overlay.wires.items() if waiting]
            if not choices:
                assert positions == [len(script) for script in scripts]
                overlay.check_oracle(covering=overlay.covering)
                assert overlay.answered == overlay.asked, "someone waits for ever"
                break
            at = len(taken)
            if at >= len(prefix):
                state = f"{positions} {overlay.fingerprint()}"
                if state in seen:
                    break
                seen.add(state)
            if at < len(prefix):
                chosen = prefix[at]
            else:
                chosen = 0
                schedules.extend([*taken, other] for other in range(1, len(choices)))
            taken.append(chosen)
            kind, which = choices[chosen]
            if kind == "op":
                assert isinstance(which, int)
                overlay.operate(scripts[which][positions[which]])
                positions[which] += 1
            else:
                sender, receiver = which  # type: ignore[misc]
                overlay.arrive(sender, receiver)
    return len(seen)


@pytest.mark.parametrize("covering", [False, True, RETRACT], ids=["plain", "covering", RETRACT])
@pytest.mark.parametrize("plan", PLANS)
def test_every_schedule_ends_as_the_oracle_says(plan: str, covering: Covering) -> None:
    edges, scripts = PLANS[plan]
    assert explore(lambda: Overlay(edges, covering=covering), scripts) > 30
