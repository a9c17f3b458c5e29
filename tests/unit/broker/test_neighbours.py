"""Neighbours of one broker: given up, turned away, added, removed; and the same after a crash."""

from __future__ import annotations

import re

import pytest

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.errors import MisuseError, StaleState
from motet.model import Filter, OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    Close,
    Closed,
    Dialled,
    Fact,
    Output,
    Received,
    Reconfigured,
    TimerFired,
)
from motet.protocol.delivery.messages import Nack
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.facts import NeighbourLost, NeighbourMet
from motet.protocol.link.messages import Control, ControlAck, LinkHello
from motet.protocol.room import Objection
from motet.protocol.routing.messages import Advertise, ClientGone, ClientHere, Unadvertise
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Done,
    SubscribeRequest,
    UnadvertiseRequest,
)

CLIENT, LINK = 1, 2
ANYTHING = Filter.parse("true")


class Stage:
    """One broker with a client, and a journal that can bring it back."""

    def __init__(self, *neighbours: str, keep: int = 100) -> None:
        self.config = BrokerConfig("A", neighbours, 10, outbox_bound=keep)
        self.core = BrokerCore(self.config)
        self.journal: list[Fact] = []
        self.requests = 0
        self.hear(CLIENT, ClientHello(PROTOCOL_VERSION, "alice"))

    def step(self, given: object) -> Output:
        out = self.core.step(given, 1.0)  # type: ignore[arg-type]
        self.journal += out.persist
        self.core.validate()
        return out

    def hear(self, connection: int, frame: Frame) -> Output:
        return self.step(Received(connection, frame))

    def meet(self, neighbour: str, connection: int = LINK, life: int = 5) -> Output:
        known = self.core.links[neighbour].ledger.record
        self.hear(connection, LinkHello(PROTOCOL_VERSION, neighbour, life, 0, 0))
        return self.hear(connection, ControlAck(known.sent))

    def advertise(self) -> Output:
        self.requests += 1
        return self.hear(CLIENT, AdvertiseRequest(self.requests, ANYTHING, wait=False))

    def churn(self, count: int) -> list[Fact]:
        """So many control messages for every neighbour; what was written down."""
        written = []
        for number in range(count):
            if number % 2:
                self.requests += 1
                target = self.requests - 1
                request = UnadvertiseRequest(self.requests, target, wait=False)
                written += self.hear(CLIENT, request).persist
            else:
                written += self.advertise().persist
        return written

    def replayed(self) -> BrokerCore:
        durable = Durable(self.config)
        durable.replay(self.journal)
        return BrokerCore(self.config, durable)


def lost(written: list[Fact]) -> list[str]:
    return [f.body.neighbour for f in written if isinstance(f.body, NeighbourLost)]


# ── given up ─────────────────────────────────────────────────────────────────────────────


def test_an_absent_neighbour_is_given_up_when_its_queue_exceeds_the_bound() -> None:
    stage = Stage("B", "C", keep=6)
    stage.meet("B")
    stage.step(Closed(LINK))
    assert lost(stage.churn(6)) == []
    assert lost(stage.churn(2)) == ["B"]
    record = stage.core.links["B"].ledger.record
    assert (record.life, record.incarnation, record.sent, record.losses) == (11, 0, 0, 1)
    assert not stage.core.links["B"].ledger.outbox
    assert stage.core.links["C"].ledger.record.losses == 0, "never met, so nothing is kept"
    assert stage.replayed().durable.digest() == stage.core.durable.digest()


def test_a_connected_neighbour_is_not_given_up_if_it_is_slow() -> None:
    stage = Stage("B", keep=6)
    stage.meet("B")
    assert lost(stage.churn(40)) == []
    assert lost(stage.step(Closed(LINK)).persist) == ["B"], "but when it leaves, it is"


def test_a_neighbour_is_kept_if_joining_again_would_cost_as_much() -> None:
    stage = Stage("B", keep=2)
    stage.meet("B")
    stage.step(Closed(LINK))
    written = [fact for _ in range(20) for fact in stage.advertise().persist]
    assert lost(written) == []


def test_messages_restored_by_a_recovery_do_not_count_towards_the_bound() -> None:
    stage = Stage("B", keep=6)
    stage.meet("B")
    stage.churn(40)
    stage.core = stage.replayed()
    assert len(stage.core.links["B"].ledger.outbox) > 40
    stage.hear(CLIENT, ClientHello(PROTOCOL_VERSION, "alice", "A-10.1"))
    assert lost(stage.churn(6)) == []
    assert lost(stage.churn(2)) == ["B"]


def test_a_given_up_neighbour_rejoins_from_scratch_with_our_next_incarnation() -> None:
    stage = Stage("B", keep=6)
    stage.meet("B")
    stage.step(Closed(LINK))
    stage.churn(9)
    out = stage.step(Dialled(3, "B"))
    assert out.send == [(3, LinkHello(PROTOCOL_VERSION, "A", 11, 0, 0))]
    out = stage.hear(3, LinkHello(PROTOCOL_VERSION, "B", 5, known=11, received=0, heard=True))
    assert [type(fact.body) for fact in out.persist] == [NeighbourMet]
    (_, control), *_ = out.send
    assert isinstance(control, Control)
    assert control.first == 1


# ── turned away ──────────────────────────────────────────────────────────────────────────


def test_a_stale_neighbour_is_refused_and_the_status_says_so() -> None:
    stage = Stage("B")
    stage.meet("B", life=5)
    stage.step(Closed(LINK))
    out = stage.hear(4, LinkHello(PROTOCOL_VERSION, "B", 4, 10, 0))
    ((connection, error, text, _),) = out.close
    assert (connection, error) == (4, "StaleState")
    assert "move its data folder away" in text
    assert not out.persist
    link = stage.core.status()["links"]["B"]
    assert (link["phase"], link["refusal"]) == ("refused", text)
    stage.step(Dialled(5, "B"))
    assert stage.core.status()["links"]["B"]["phase"] == "greeting"


def test_a_stale_copy_beside_a_neighbour_that_is_up_does_not_fence_it() -> None:
    stage = Stage("B")
    stage.meet("B", life=5)
    out = stage.hear(4, LinkHello(PROTOCOL_VERSION, "B", 4, 10, 0))
    assert [(close.connection, close.error) for close in out.close] == [(4, "StaleState")]
    assert stage.core.links["B"].up


def test_on_stale_state_of_our_own_nothing_is_written_down() -> None:
    stage = Stage("B")
    with pytest.raises(StaleState, match="stop A, move its data folder away"):
        stage.core.step(Received(4, LinkHello(PROTOCOL_VERSION, "B", 5, 10, 99)), 1.0)
    assert stage.core.durable.digest() == stage.replayed().durable.digest()


# ── added and removed ────────────────────────────────────────────────────────────────────


def test_a_neighbour_is_added_and_subscriptions_wait_for_it() -> None:
    stage = Stage("B")
    stage.meet("B")
    stage.step(Reconfigured(("B", "C")))
    assert list(stage.core.links) == ["B", "C"]
    assert stage.core.links["C"].ledger.record.life == 11
    stage.requests += 1
    out = stage.hear(CLIENT, SubscribeRequest(stage.requests, ANYTHING))
    assert not any(isinstance(frame, Done) for _, frame in out.deliver)
    assert stage.replayed().durable.digest() == stage.core.durable.digest()


def test_the_same_neighbours_in_another_order_change_nothing() -> None:
    stage = Stage("B", "C")
    assert stage.step(Reconfigured(("C", "B"))).persist == []


@pytest.mark.parametrize("count", [1, 5])
def test_a_neighbour_with_clients_behind_it_is_not_removed(count: int) -> None:
    stage = Stage("B")
    stage.meet("B")
    here = tuple(ClientHere(f"c{number}", f"B-5.{number}") for number in range(count))
    stage.hear(LINK, Control(1, here))
    objection = stage.core.objection_to(())
    assert objection is not None
    assert re.match(rf"B still has {count} clients? behind it: c0", objection.text)
    with pytest.raises(MisuseError, match="disconnect them first"):
        stage.core.step(Reconfigured(()), 1.0)
    assert "B" in stage.core.links
    assert stage.replayed().durable.digest() == stage.core.durable.digest()


def test_a_neighbour_with_entries_in_force_is_not_removed() -> None:
    stage = Stage("B")
    stage.meet("B")
    op = OpId("bob", "B-5.1", 1)
    here, gone = ClientHere("bob", "B-5.1"), ClientGone("bob", "B-5.1")
    stage.hear(LINK, Control(1, (here, Advertise(op, ANYTHING), gone)))
    objection = stage.core.objection_to(())
    assert objection is not None
    assert "1 advertisements and 0 subscriptions from B" in objection.text
    stage.hear(LINK, Control(4, (Unadvertise(op),)))
    assert stage.core.objection_to(()) is None


def test_a_removed_neighbour_is_notified_and_then_refused_as_unknown() -> None:
    stage = Stage("B", "C")
    stage.meet("B")
    out = stage.step(Reconfigured(("C",)))
    assert out.close == [Close(LINK, "", "B is not a neighbour of A any more")]
    out = stage.hear(7, LinkHello(PROTOCOL_VERSION, "B", 5, 10, 0))
    assert [close.error for close in out.close] == ["UnknownBroker"]
    out = stage.step(Dialled(8, "B"))
    assert [close.connection for close in out.close] == [8]
    assert stage.step(TimerFired(("link", "B"))) == Output()
    assert stage.replayed().durable.digest() == stage.core.durable.digest()


def test_removing_a_neighbour_completes_operations_that_wait_for_it() -> None:
    stage = Stage("B")
    stage.requests += 1
    stage.hear(CLIENT, AdvertiseRequest(stage.requests, ANYTHING))
    out = stage.step(Reconfigured(()))
    assert [frame for _, frame in out.deliver] == [Done(stage.requests)]
    assert not stage.core.durable.routing.state.waits


def test_removing_a_neighbour_drops_its_stream_requests() -> None:
    stage = Stage("B", "C")
    stage.meet("B")
    stage.hear(LINK, Nack("C.1", ((1, 5),)))
    (stream,) = stage.core.streams.machine._streams.values()
    assert list(stream.outs) == ["B"]
    stage.step(Reconfigured(("C",)))
    assert not stream.outs


def test_a_neighbour_added_again_gets_a_new_life_number() -> None:
    stage = Stage("B")
    for life in (11, 12):
        stage.step(Reconfigured(()))
        stage.step(Reconfigured(("B",)))
        assert stage.core.links["B"].ledger.record.life == life


def test_a_broker_is_not_its_own_neighbour() -> None:
    objection = Objection("MisuseError", "A cannot be its own neighbour")
    assert Stage("B").core.objection_to(("A", "B")) == objection
