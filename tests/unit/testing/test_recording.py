"""What the simulator writes down of its brokers."""

from __future__ import annotations

from motet.broker.core.broker import BrokerCore
from motet.model import Filter, OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received, Remembered
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.routing.messages import Advertise, ClientHere, PubendHere, Started, Unadvertise
from motet.protocol.session.messages import ClientHello, SubscribeRequest, UnsubscribeRequest
from motet.testing.history import History
from motet.testing.recorder import withdrawn
from motet.testing.topology import Tree

B, ALICE = 1, 2
X = Filter.parse("x > 1")


def test_a_past_that_was_withdrawn_stays_so_when_who_wanted_it_does_not_any_more() -> None:
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
