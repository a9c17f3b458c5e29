"""A session ends while a transaction that it has part in does not: what the next one hears."""

from __future__ import annotations

from motet.broker.core.broker import BrokerCore
from motet.model import Filter, OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received, Remembered
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.routing.messages import (
    Advertise,
    Complete,
    PubendHere,
    Started,
    Switched,
)
from motet.protocol.session.messages import (
    BeginRequest,
    ClientHello,
    Decided,
    Over,
    SubscribeRequest,
    Tag,
    Welcome,
)
from motet.protocol.transactions.messages import Begun, Decide

B, FIRST, SECOND = 1, 2, 3
X = Filter.parse("x > 1")


class Stage:
    """A, whose root is its neighbour B."""

    def __init__(self) -> None:
        self.core = BrokerCore(BrokerConfig("A", ("B",), incarnation=1, root="B"))
        self.core.recover(0.0, Remembered())
        self.hear(B, LinkHello(PROTOCOL_VERSION, "B", 1, 0, 0))
        self.hear(B, Control(1, (PubendHere("B.1", ("B",)), Complete(True))))

    def hear(self, connection: int, frame: Frame) -> list[Frame]:
        """What clients are told then."""
        return [told for _, told in self.core.step(Received(connection, frame), 0.0).deliver]

    def connect(self, connection: int, resume: str | None = None) -> str:
        hello = ClientHello(PROTOCOL_VERSION, "alice", resume)
        (epoch,) = (f.epoch for f in self.hear(connection, hello) if isinstance(f, Welcome))
        return epoch

    def subscribes_in_transaction(self, epoch: str) -> str:
        tx = f"alice/{epoch}/1"
        self.hear(FIRST, BeginRequest(1, isolated=False))
        self.hear(FIRST, SubscribeRequest(2, X, tag=Tag(tx, "00000001")))
        (entry,) = self.core.durable.routing.state.subscriptions
        assert entry.tx == tx
        return tx


def test_a_resumed_session_is_told_that_an_aborted_addition_has_ended() -> None:
    stage = Stage()
    epoch = stage.connect(FIRST)
    tx = stage.subscribes_in_transaction(epoch)
    assert stage.connect(SECOND, epoch) == epoch
    told = stage.hear(B, Control(3, (Decide(tx, 5, False, "no"),)))
    assert told[-2:] == [Decided(tx, 5, False, "no"), Over(2)]


def test_a_later_session_is_not_told_of_decisions_for_an_earlier_one() -> None:
    for committed in (False, True):
        stage = Stage()
        epoch = stage.connect(FIRST)
        tx = stage.subscribes_in_transaction(epoch)
        assert stage.connect(SECOND) != epoch
        stage.hear(SECOND, SubscribeRequest(1, X))
        stage.hear(SECOND, SubscribeRequest(2, X))
        told = stage.hear(B, Control(3, (Decide(tx, 5, committed, "no"),)))
        assert not any(isinstance(each, Decided | Over) for each in told)


def test_a_start_and_its_cut_may_be_told_together() -> None:
    """B was away: what it says of a subscription comes all at once, and only the cut counts."""
    stage = Stage()
    epoch = stage.connect(FIRST)
    stage.hear(B, Control(3, (Advertise(OpId("bob", "B-1.1", 1), X),)))
    tx = stage.subscribes_in_transaction(epoch)
    op = OpId("alice", epoch, 2)
    begun = (Begun(op, X, "00000001"),)
    decide = Decide(tx, 5, True, "", begun, brokers=("A",))
    news = (Started(op, "B.1", 10, True), decide, Switched(op, "B.1", 20, False))
    stage.hear(B, Control(4, news))
    position = stage.core.streams.machine._stream("B.1").subend.positions["alice"]
    assert [tick for tick in (5, 15, 20, 21) if position.is_owed(2, tick)] == [21]


def test_two_roots_do_not_link() -> None:
    core = BrokerCore(BrokerConfig("A", ("B",), incarnation=1, root="A"))
    core.recover(0.0, Remembered())
    out = core.step(Received(B, LinkHello(PROTOCOL_VERSION, "B", 1, 0, 0, root="B")), 0.0)
    assert "has the root B, but A has the root A" in out.close[0].text
    assert not out.send
