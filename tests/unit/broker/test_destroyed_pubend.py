"""A durable client is told once that a pubend was destroyed, whatever its processes are."""

from __future__ import annotations

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.model.ids import LAST_TICK
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Closed, Fact, Received, Remembered
from motet.protocol.delivery.facts import LossLearnt
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.session import messages as session
from motet.protocol.session.facts import SessionDropped

CONFIG = BrokerConfig("A", (), incarnation=100)
GONE = "A.1"


def test_later_processes_are_not_told_again() -> None:
    core = BrokerCore(CONFIG)
    journal: list[Fact] = core.recover(0.0, Remembered()).persist

    def came(number: int) -> list[Delivered]:
        """Another process of the client: what it is told of pubends."""
        hello = session.ClientHello(PROTOCOL_VERSION, "bob", instance=f"p{number}", keep_s=60.0)
        out = core.step(Received(number, hello), 2.0)
        journal.extend(out.persist)
        return [frame for _, frame in out.deliver if isinstance(frame, Delivered)]

    def left(number: int) -> None:
        journal.extend(core.step(Closed(number), 2.0).persist)

    assert came(1) == []
    left(1)
    epoch = core.clients["bob"].epoch
    fact = Fact(2.0, SessionDropped("bob", epoch, {GONE: 7}, {}))
    core.durable.apply(fact)
    journal.append(fact)
    lost = Delivered(GONE, LAST_TICK, lost=((8, LAST_TICK),))
    assert came(2) == [lost], "it was away"
    left(2)
    assert came(3) == [lost], "nobody has said that it is known"
    for _ in range(2):
        frame = session.Processed(GONE, LAST_TICK)
        journal.extend(core.step(Received(3, frame), 2.0).persist)
    assert [type(each.body) for each in journal].count(LossLearnt) == 1
    left(3)
    durable = Durable(CONFIG)
    durable.replay(journal)
    assert durable.digest() == core.durable.digest()
    core = BrokerCore(CONFIG, durable)
    core.recover(2.0, Remembered())
    assert came(4) == []
