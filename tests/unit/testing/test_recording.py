"""What the simulator writes down of its brokers."""

from __future__ import annotations

import pytest

from motet.audit.records import Deal, Deed, doubt
from motet.broker.core.broker import BrokerCore
from motet.model import Filter, OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received, Remembered
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.routing.messages import (
    Advertise,
    ClientHere,
    PubendHere,
    Started,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    ConsentRequest,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.protocol.transactions.messages import Engage, Letter, Step
from motet.testing.history import History
from motet.testing.recorder import crossed, engaged, voided, withdrawn
from motet.testing.topology import Tree
from tests.unit.mobility.place import WIDE, Place
from tests.unit.testing.past import Past

B, ALICE = 1, 2
X = Filter.parse("x > 1")


def test_a_withdrawn_past_is_recorded_after_its_subscription_was_removed() -> None:
    # given a client that wants the past of B's log
    core, far = BrokerCore(BrokerConfig("A", ("B",), incarnation=1)), OpId("bob", "B-1.1", 1)
    core.recover(0.0, Remembered())
    core.step(Received(B, LinkHello(PROTOCOL_VERSION, "B", 1, 0, 0)), 0.0)
    here = (PubendHere("B.1", ("B",)), ClientHere("bob", "B-1.1"), Advertise(far, X))
    core.step(Received(B, Control(1, here)), 0.0)
    core.step(Received(ALICE, ClientHello(PROTOCOL_VERSION, "alice")), 0.0)
    core.step(Received(ALICE, SubscribeRequest(1, X, since={"": 0})), 0.0)
    (session,) = core.durable.sessions
    op = OpId("alice", session.epoch, 1)
    core.step(Received(B, Control(4, (Started(op, "B.1", 20),))), 0.0)
    # when nobody advertises there any more, and then the client takes its subscription back
    history, gone = History(Tree([("A", "B")]), False, 0.1), Unadvertise(far, upto=30)
    core.step(Received(B, Control(5, (gone,))), 0.0)
    withdrawn(history, core.durable, Control(5, (gone,)))
    core.step(Received(ALICE, UnsubscribeRequest(2, 1)), 0.0)
    withdrawn(history, core.durable, Control(6, (gone,)))
    # then what it hears of that past only now is known to have been withdrawn
    assert history.withdrawn_upto == {("alice", session.epoch, "B.1"): 30}


def test_no_past_is_withdrawn_where_its_last_publisher_leaves() -> None:
    # given a client that wants the past of its own broker's log
    here = Place()
    here.connect("bob")
    here.advertise("bob")
    epoch = here.connect("alice")
    here.hear("alice", SubscribeRequest(1, WIDE, since={"": 0}, wait=False))
    # when the only publisher there moves away
    here.depart(client="bob")
    (decided,) = (each.body for each in here.journal if isinstance(each.body, MoveDecided))
    history = History(Tree([("A", "B"), ("B", "C")]), False, 0.1)
    withdrawn(history, here.core.durable, decided)
    # then nothing may be told to be lost: the log still has it
    assert (epoch, decided.client) == ("A-1.2", "bob")
    assert history.withdrawn_upto == {}


@pytest.mark.parametrize(
    ("root", "to", "is_ours"),
    [("B", "alice", True), ("A", "alice", True), ("A", "carol", False)],
    ids=["decided later", "decided at once", "of another client"],
)
def test_a_part_of_a_plan_belongs_to_the_session_in_which_a_broker_carries_it_out(
    root: str, to: str, is_ours: bool
) -> None:
    # given a client whose broker A has not heard yet that it was outdone at B
    core, tx = BrokerCore(BrokerConfig("A", ("B",), root=root, incarnation=1)), "bob/B-1.1/7"
    core.recover(0.0, Remembered())
    core.step(Received(B, LinkHello(PROTOCOL_VERSION, "B", 1, 0, 0, root=root)), 0.0)
    here = (PubendHere("B.1", ("B",)), ClientHere("bob", "B-1.1"))
    core.step(Received(B, Control(1, here)), 0.0)
    core.step(Received(ALICE, ClientHello(PROTOCOL_VERSION, "alice")), 0.0)
    core.step(Received(ALICE, ConsentRequest(1)), 0.0)
    core.step(Received(ALICE, SubscribeRequest(2, X)), 0.0)
    (session,) = core.durable.sessions
    past = Past(("A", "B"))
    outdone = past.session("alice", "A", epoch=session.epoch)
    newest = past.session("alice", "B")
    removed, kept = (past.ask(each, "subscribe", str(X)) for each in (outdone, newest))
    # and a plan, which is recorded for the newest session
    step = Step("unsubscribe", "1", str(X))
    deal = Deal(tx, "static", past.session("bob", "B"), 0.5, steps={"alice": (step,)})
    deed = Deed(deal, step.kind, step.order, newest, -1, 0.5, newest.instance, planned=True)
    doubt(deed, kept)
    deal.deeds.append(deed)
    past.history.deals[tx] = deal
    # when A carries it out
    letter = Letter("A", Engage(tx, to, (step,), 9.0, (to,)))
    out = core.step(Received(B, Control(3, (letter,))), 0.0)
    engaged(past.history, core.durable, out.persist)
    # then that is recorded for the session at A, and nothing is removed in the other one
    assert (deed.session is outdone) is is_ours
    assert (deed.process == outdone.instance) is is_ours
    assert deed.candidates == ([removed] if is_ours else [kept])
    assert bool(kept.doubts) is not is_ours


def started() -> tuple[BrokerCore, History, OpId]:
    """A, where Alice advertises and the subscription of Bob from B has started in the log."""
    core, op = BrokerCore(BrokerConfig("A", ("B",), incarnation=1)), OpId("bob", "B-1.1", 1)
    core.recover(0.0, Remembered())
    core.step(Received(B, LinkHello(PROTOCOL_VERSION, "B", 1, 0, 0)), 0.0)
    core.step(Received(ALICE, ClientHello(PROTOCOL_VERSION, "alice")), 0.0)
    core.step(Received(ALICE, AdvertiseRequest(1, X)), 0.0)
    core.step(Received(B, Control(1, (ClientHere("bob", "B-1.1"), Subscribe(op, X)))), 0.0)
    entry = core.durable.routing.state.subscriptions.get(op)
    assert entry is not None
    history = History(Tree([("A", "B")]), False, 0.1)
    history.starts[op, "A.1"] = entry.start
    return core, history, op


def remove(core: BrokerCore, history: History, removal: Unsubscribe) -> None:
    """Apply the removal, which arrives from B, and record it."""
    control = Control(3, (removal,))
    void = crossed(core.durable, control)
    core.step(Received(B, control), 0.0)
    voided(history, core.durable, void)


WITHDRAWN_BY_B = OpId("", "B-1", 1)
REMOVED_BY_BOB = OpId("bob", "B-1.1", 2)


def test_a_start_that_crosses_the_withdrawal_of_its_subscription_is_void() -> None:
    core, history, op = started()
    remove(core, history, Unsubscribe(op, WITHDRAWN_BY_B))
    assert history.starts == {}


@pytest.mark.parametrize(("by", "lost"), [(REMOVED_BY_BOB, False), (None, True)])
def test_a_start_counts_although_its_client_or_a_loss_removes_the_subscription(
    by: OpId | None, lost: bool
) -> None:
    core, history, op = started()
    remove(core, history, Unsubscribe(op, by, lost=lost))
    assert (op, "A.1") in history.starts


def test_a_start_counts_if_its_subscription_is_withdrawn_after_the_last_advertisement() -> None:
    # given a start for an advertisement that has ended, and none for another one
    core, history, op = started()
    core.step(Received(ALICE, UnadvertiseRequest(2, 1)), 0.0)
    # when B withdraws the subscription because of that end
    remove(core, history, Unsubscribe(op, WITHDRAWN_BY_B))
    # then the events before the end are still owed
    assert (op, "A.1") in history.starts
