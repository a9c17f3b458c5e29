"""The rows of a client, re-pointed at one broker: the routing tables of the paper's section 4."""

from __future__ import annotations

from typing import Any

from motet.model import Filter, Hop, OpId
from motet.protocol.changes import AdvertisementRetired, Sent
from motet.protocol.mobility.durable import FENCED
from motet.protocol.routing.machine import RETIRED, Routing
from motet.protocol.routing.messages import (
    Advertise,
    ClientHere,
    Complete,
    MovingRow,
    MovingStarts,
    PubendHere,
    Rehome,
    Started,
    Subscribe,
    Unsubscribe,
)
from motet.protocol.routing.relocation import Relocated, Relocation
from motet.protocol.routing.state import HERE
from tests.unit.delivery.rig import Tables

PRE, SUC, ASIDE = (Hop.broker(name) for name in ("pre", "suc", "aside"))
CLIENT, EPOCH = "alice", "pre-1"
X = Filter.parse("x > 0")
SUB, ADV, RESIDUE = (OpId(CLIENT, EPOCH, number) for number in (1, 2, 9))
BOB = OpId("bob", "aside-1", 1)


class Broker:
    """Between `pre` and `suc` on the path, with a neighbour aside."""

    def __init__(self, name: str = "here") -> None:
        self.tables = Tables(name, [hop.name for hop in (PRE, SUC, ASIDE)])
        for hop in (PRE, SUC, ASIDE):
            self.tables.apply(Complete(True), hop)
        self.routing: Routing = self.tables.routing
        self.relocation = Relocation(self.routing)

    def turn(
        self,
        before: Hop = PRE,
        after: Hop = SUC,
        *,
        subscribes: bool = False,
        advertises: bool = False,
        residue: OpId | None = None,
        upto: int = 5,
    ) -> list[Any]:
        moving = Relocated(
            *(CLIENT, EPOCH, False, True, "pre", "suc"),
            (MovingRow(SUB, X),) if subscribes else (),
            (MovingRow(ADV, X, residue=residue),) if advertises else (),
            upto,
        )
        return [*self.relocation.turn(moving, before, after), *self.relocation.begin(moving)]

    def sent(self, changes: list[Any]) -> list[tuple[str, Any]]:
        return [(each.neighbour, each.message) for each in changes if isinstance(each, Sent)]


def test_a_row_turns_to_the_next_hop_and_is_known_to_the_one_before() -> None:
    here = Broker()
    here.tables.apply(Subscribe(SUB, X), PRE)
    here.turn(subscribes=True)
    state = here.routing.state
    entry = state.subscriptions.get(SUB)
    assert entry is not None
    assert entry.source == SUC
    assert entry.sent == state.bits.bit(PRE)
    assert here.routing.state.clients[CLIENT, EPOCH] == SUC


def test_a_subscription_off_the_path_needs_no_message() -> None:
    here = Broker()
    here.tables.apply(Advertise(BOB, X), ASIDE)
    here.tables.apply(Subscribe(SUB, X), PRE)
    assert here.sent(here.turn(subscribes=True)) == []


def test_a_subscription_that_was_not_needed_here_goes_where_it_is_needed() -> None:
    here = Broker()
    here.tables.apply(Advertise(BOB, X), ASIDE)
    changes = here.turn(subscribes=True)
    assert here.sent(changes) == [("aside", Subscribe(SUB, X))]


def test_rows_at_the_source_turn_from_the_client() -> None:
    here = Broker()
    source = Hop.client(CLIENT)
    here.tables.apply(Subscribe(SUB, X), source)
    assert here.relocation.rows(CLIENT, {}) == ((MovingRow(SUB, X),), ())
    here.turn(before=source, subscribes=True)
    assert here.relocation.rows(CLIENT, {}) == ((), ())
    entry = here.routing.state.subscriptions.get(SUB)
    assert entry is not None
    assert (entry.source, entry.sent) == (SUC, 0)


def test_residues_are_named_in_the_rows_of_their_advertisements() -> None:
    here = Broker()
    here.tables.apply(Advertise(ADV, X), Hop.client(CLIENT))
    _, (row,) = here.relocation.rows(CLIENT, {ADV: RESIDUE})
    assert row == MovingRow(ADV, X, residue=RESIDUE)


def test_an_advertisement_attracts_what_does_not_come_from_its_new_side() -> None:
    here = Broker()
    here.tables.apply(Advertise(ADV, X), PRE)
    for number, hop in enumerate((PRE, ASIDE, SUC), start=1):
        here.tables.apply(Subscribe(OpId(hop.name, "1", number), X), hop)
    told = here.sent(here.turn(advertises=True))
    follow = [(name, each.id.client) for name, each in told if isinstance(each, Subscribe)]
    assert follow == [("suc", "pre"), ("suc", "aside")]
    gone = [(name, each.target.client) for name, each in told if isinstance(each, Unsubscribe)]
    assert gone == [("pre", "aside"), ("pre", "suc")]


def test_with_a_residue_nothing_is_withdrawn() -> None:
    here = Broker()
    here.tables.apply(Advertise(ADV, X), PRE)
    here.tables.apply(Subscribe(BOB, X), ASIDE)
    told = here.sent(here.turn(advertises=True, residue=RESIDUE))
    assert not any(isinstance(each, Unsubscribe) for _, each in told)
    residue = here.routing.state.advertisements.get(RESIDUE)
    assert residue is not None
    assert (residue.source, residue.home) == (PRE, "pre")


def test_a_residue_at_the_source_is_retired_at_once() -> None:
    here = Broker()
    source = Hop.client(CLIENT)
    here.tables.apply(Advertise(ADV, X), source)
    changes = here.turn(before=source, advertises=True, residue=RESIDUE)
    assert AdvertisementRetired(RESIDUE) in changes
    residue = here.routing.state.advertisements.get(RESIDUE)
    assert residue is not None
    assert residue.source == RETIRED
    assert list(here.routing.state.retired) == [RESIDUE]


def test_a_residue_is_left_once() -> None:
    here = Broker()
    here.tables.apply(Advertise(ADV, X), PRE)
    here.turn(advertises=True, residue=RESIDUE)
    here.routing.state.advertisements.get(RESIDUE).home = "other"  # type: ignore[union-attr]
    here.turn(advertises=True, residue=RESIDUE)
    assert here.routing.state.advertisements.get(RESIDUE).home == "other"  # type: ignore[union-attr]


def test_only_neighbours_off_the_path_are_told_of_a_new_home() -> None:
    here = Broker()
    here.tables.apply(Advertise(ADV, X), PRE)
    told = [
        (name, each) for name, each in here.sent(here.turn(advertises=True)) if type(each) is Rehome
    ]
    assert told == [("aside", Rehome(ADV, "suc", "pre", None, 5))]


def test_starts_at_the_former_log_lapse_with_the_advertisement() -> None:
    here = Broker()
    here.tables.apply(PubendHere("pre.1"), PRE)
    here.tables.apply(Advertise(ADV, X), PRE)
    here.tables.apply(Subscribe(BOB, X), Hop.client("bob"))

    here.tables.apply(Started(BOB, "pre.1", 3), PRE)
    assert here.routing.starts.known[BOB] == {"pre.1": 3}
    here.turn(advertises=True, upto=5)
    assert here.routing.starts.known.get(BOB, {}) == {}
    assert here.routing.starts.lapsed_upto(BOB, "pre.1") == 5


def test_subscriptions_start_in_the_log_where_the_client_arrives() -> None:
    here = Broker("suc")
    here.tables.apply(PubendHere("suc.1"), HERE)
    here.tables.apply(Advertise(ADV, X), PRE)
    here.tables.apply(Subscribe(BOB, X), ASIDE)
    here.routing.starts.advance(7)
    here.turn(after=Hop.client(CLIENT), advertises=True)
    entry = here.routing.state.subscriptions.get(BOB)
    assert entry is not None
    assert entry.start == 7


def test_starts_that_are_taken_are_those_that_are_given() -> None:
    known = MovingStarts(
        known=((SUB, (("pre.1", 3),)),),
        tentative=((SUB, ("pre.1",)),),
        ends=((SUB, (("pre.1", 8),)),),
        lapsed=((SUB, (("old.1", 2),)),),
        severed=((SUB, ("cut.1",)),),
        awaited=((SUB, (("new.1", 4),)),),
    )
    here = Broker()
    here.relocation.give_starts(known)
    rows = [MovingRow(SUB, X)]
    assert here.relocation.take_starts(rows) == known
    assert here.relocation.take_starts(rows) == MovingStarts()


def test_rows_are_withdrawn_where_nobody_advertises_for_them() -> None:
    here = Broker()
    here.tables.apply(Subscribe(SUB, X), PRE)
    here.turn(subscribes=True)
    rows = (MovingRow(SUB, X),)
    here.tables.apply(Advertise(BOB, X), PRE)
    assert here.sent([*here.relocation.withdraw(rows, PRE)]) == []
    other = Broker()
    other.turn(subscribes=True)
    ((neighbour, told),) = other.sent([*other.relocation.withdraw(rows, PRE)])
    assert (neighbour, told.target) == ("pre", SUB)
    assert told.op in other.routing.state.waits
    assert other.sent([*other.relocation.withdraw(rows, PRE)]) == []
    entry = other.routing.state.subscriptions.get(SUB)
    assert entry is not None
    assert entry.sent == 0


def test_a_probe_goes_where_clients_in_total_order_want_the_events() -> None:
    moving = Relocated(CLIENT, EPOCH, False, True, "pre", "here", (), (MovingRow(ADV, X),), 5)

    def probed(*known: Any, source: Hop = ASIDE) -> int:
        here = Broker()
        for message in known:
            here.tables.apply(message, source)
        op = here.relocation.probe(moving)
        return 0 if op is None else here.routing.state.waits[op].missing

    wanted, bob = Subscribe(BOB, X), BOB[:2]
    aside = Broker().routing.state.bits.bit(ASIDE)
    assert probed(ClientHere(*bob, plain=False), wanted) == aside
    assert probed(ClientHere(*bob, plain=True), wanted) == 0
    assert probed(ClientHere(*bob, plain=False)) == 0
    assert probed(wanted, Complete(False)) == aside  # there may be a client that is not known yet


def test_rows_that_end_at_once_point_to_nobody() -> None:
    here = Broker()
    here.tables.apply(Subscribe(SUB, X), PRE)
    here.turn(after=FENCED, subscribes=True)
    entry = here.routing.state.subscriptions.get(SUB)
    assert entry is not None
    assert entry.source == FENCED
    assert not FENCED.is_broker
