"""The home of a session is looked up, and not taken from its epoch once it is announced."""

from __future__ import annotations

from motet.broker.core import records
from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import picture, rebuild
from motet.model import Filter, Hop, OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.machine import Snapshot
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    ClientHere,
    MovingRow,
    PubendHere,
    Rehome,
)
from motet.protocol.transactions.state import Marks

ANN = ("ann", "B-1.7")
SPACE = Filter.parse("x > 0")


def advertised(routing: Routing, number: int, told: str = "") -> str:
    """Its home; the neighbour may have `told` it before."""
    op = OpId(*ANN, number)
    if told:
        routing.apply(Rehome(op, told), Hop.broker("B"))
    routing.apply(Advertise(op, SPACE), Hop.broker("B"))
    entry = routing.state.advertisements.get(op)
    assert entry is not None
    return entry.home


def move(routing: Routing) -> None:
    """Ann moves from B to C, both behind the same neighbour; nothing of hers is owed."""
    ann = routing.state.advertisements.from_source(Hop.broker("B"))
    for row in [MovingRow(each.id, each.filter) for each in ann]:
        routing.apply(Rehome(row.id, "C", "B"), Hop.broker("B"))
    routing.state.clients.set_home(*ANN, "C")


def test_a_session_lives_where_it_is_announced_until_it_moves() -> None:
    routing = Routing("A-1", ["B"], Marks())
    clients = routing.state.clients
    assert clients.home("ann") is None
    routing.apply(ClientHere(*ANN), Hop.broker("B"))
    assert clients.home("ann") == clients.home_of(*ANN) == advertised(routing, 1) == "B"
    assert clients.moved() == {}
    move(routing)
    assert clients.home("ann") == clients.home_of(*ANN) == advertised(routing, 2, "C") == "C"
    assert [entry.home for entry in routing.state.advertisements] == ["C", "C"]
    routing.apply(ClientGone(*ANN), Hop.broker("B"))
    assert clients.home("ann") is None


def test_a_home_that_is_not_told_is_where_the_session_was_announced() -> None:
    """Ann may have moved on without an advertisement; nobody off her path hears of that."""
    routing = Routing("A-1", ["B"], Marks())
    routing.apply(ClientHere(*ANN), Hop.broker("B"))
    advertised(routing, 1)
    move(routing)
    assert advertised(routing, 2) == "B"
    assert advertised(routing, 3, "D") == "D"


def test_a_client_in_total_order_waits_for_the_log_at_the_new_home() -> None:
    routing = Routing("A-1", ["B"], Marks())
    for pubend in ("B.1", "C.1"):
        routing.apply(PubendHere(pubend), Hop.broker("B"))
    routing.apply(ClientHere(*ANN), Hop.broker("B"))
    move(routing)
    advertised(routing, 1, "C")
    wish = routing.state.subscriptions.add(OpId("bob", "A-1.1", 1), SPACE, Hop.client("bob"))
    (advertisement,) = routing.state.advertisements
    routing.joins.attract(wish, advertisement)
    assert routing.joins.awaited == {wish.id: {"C.1": 0}}


def test_a_snapshot_keeps_the_homes_of_sessions_that_have_moved() -> None:
    durable = Durable(BrokerConfig("A", ("B",)))
    routing = durable.routing
    routing.apply(ClientHere(*ANN), Hop.broker("B"))
    advertised(routing, 1)
    unmoved = durable.digest()
    move(routing)
    assert durable.digest() != unmoved
    payloads = [payload for _, payload in picture(durable)]
    again = rebuild(None, Snapshot(records.MACHINE_VERSION, payloads), [])
    assert again.routing.state.clients.home("ann") == "C"
    assert [entry.home for entry in again.routing.state.advertisements] == ["C"]


def test_a_snapshot_keeps_which_sessions_are_in_total_order() -> None:
    durable = Durable(BrokerConfig("A", ("B",)))
    clients = durable.routing.state.clients
    ordered = ClientHere("bob", "B-1.2", plain=False)
    for here in (ClientHere(*ANN, plain=True), ordered):
        durable.routing.apply(here, Hop.broker("B"))
    assert list(clients.merging) == [("bob", "B-1.2")]
    assert clients.as_told("bob", "B-1.2") == ordered
    payloads = [payload for _, payload in picture(durable)]
    again = rebuild(None, Snapshot(records.MACHINE_VERSION, payloads), [])
    assert again.routing.state.clients.merging == clients.merging
    durable.routing.apply(ClientGone("bob", "B-1.2"), Hop.broker("B"))
    assert clients.merging == {}


def test_an_advertisement_keeps_its_home_after_its_session_is_gone() -> None:
    durable = Durable(BrokerConfig("A", ("B",)))
    routing = durable.routing
    routing.apply(ClientHere(*ANN), Hop.broker("B"))
    advertised(routing, 1)
    move(routing)
    routing.apply(ClientGone(*ANN), Hop.broker("B"))
    payloads = [payload for _, payload in picture(durable)]
    again = rebuild(None, Snapshot(records.MACHINE_VERSION, payloads), [])
    assert [entry.home for entry in again.routing.state.advertisements] == ["C"]
    assert again.routing.state.clients.moved() == {}
    assert again.digest() == durable.digest()
