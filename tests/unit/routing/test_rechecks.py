"""A neighbour that is asked again for the echo of a subscription is asked under a new name."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from motet.model import Filter, Hop, OpId
from motet.protocol.changes import Changes, Completed, Sent
from motet.protocol.link.facts import ControlReceived
from motet.protocol.link.messages import Control
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import Advertise, Complete, Echo, Subscribe, Unadvertise
from motet.protocol.transactions.state import Marks

B, BOB = Hop.broker("B"), Hop.client("bob")
X = Filter.parse("x > 0")
OFFER, WISH = OpId("ann", "C-1.1", 1), OpId("bob", "A-1.1", 1)
AGAIN = OpId("", "A-1", 2)


def withdrawn(*, rechecks: bool) -> tuple[Routing, Changes]:
    """A, whose client's subscription was withdrawn from B, and came again."""
    made = Routing("A-1", ["B"], Marks())
    made.obligations.rechecks = rechecks
    made.join("B")
    made.apply(Advertise(OFFER, X), B)
    made.apply(Complete(True), B)
    made.apply(Subscribe(WISH, X, echo=True), BOB)
    made.apply(Complete(False), B)
    made.apply(Unadvertise(OFFER), B)
    made.apply(Advertise(OFFER, X), B)
    return made, made.apply(Complete(True), B)


def completed(changes: Changes) -> list[OpId]:
    return [each.op for each in changes if isinstance(each, Completed)]


def test_only_the_echo_of_the_probe_counts() -> None:
    made, changes = withdrawn(rechecks=True)
    assert Sent("B", Subscribe(AGAIN, X, echo=True, probe=True)) in changes
    assert completed(made.apply(Echo(WISH), B)) == []
    assert completed(made.apply(Echo(AGAIN), B)) == [WISH]
    assert completed(made.apply(Echo(WISH), B)) == []


def test_an_echo_from_a_neighbour_that_is_not_complete_does_not_count() -> None:
    made, _ = withdrawn(rechecks=True)
    made.apply(Complete(False), B)
    assert completed(made.apply(Echo(AGAIN), B)) == []
    assert completed(made.apply(Echo(WISH), B)) == []
    made.apply(Complete(True), B)
    assert completed(made.apply(Echo(AGAIN), B)) == []
    assert completed(made.apply(Echo(AGAIN._replace(sequence=3)), B)) == [WISH]
    assert not made.state.waits.rechecks


def test_a_removed_subscription_leaves_no_probe() -> None:
    made, _ = withdrawn(rechecks=True)
    made.end("bob", "A-1.1")
    assert [wait.what for wait in made.state.waits.values()] == ["withdraw"]
    assert not made.state.waits.rechecks


def test_facts_of_older_journals_ask_as_they_did() -> None:
    made, changes = withdrawn(rechecks=False)
    assert Sent("B", Subscribe(WISH, X, echo=True, probe=True)) in changes
    assert completed(made.apply(Echo(WISH), B)) == [WISH]


def test_a_fact_without_the_field_is_of_an_older_journal() -> None:
    now = ControlReceived("B", Control(1, ()), 5, rechecks=True, recalls=True)
    fields = msgspec.to_builtins(now)
    then = msgspec.convert(fields[:-3], ControlReceived)
    assert then == replace(now, rechecks=False, recalls=False)
