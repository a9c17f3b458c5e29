"""A broker and its container: which copies count as running."""

from __future__ import annotations

from collections.abc import Iterable

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Closed, Fact, Output, Received
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.hosted.facts import HostingBegun
from motet.protocol.hosted.messages import (
    ContainerHello,
    HostedHello,
    Registered,
    RunHosted,
)
from motet.protocol.session.messages import ClientHello, Welcome

CONFIG = BrokerConfig("A", (), 1)
HELLO = HostedHello(PROTOCOL_VERSION, ClientHello(PROTOCOL_VERSION, "agent", keep_s=60.0))


class Broker:
    def __init__(self, journal: Iterable[Fact] = ()) -> None:
        durable = Durable(CONFIG)
        durable.replay(journal)
        self.core = BrokerCore(CONFIG, durable)
        self.core.recover(0.0)
        self.journal: list[Fact] = []

    def hears(self, connection: int, *frames: Frame) -> Output:
        out = Output()
        for frame in frames:
            step = self.core.step(Received(connection, frame), 1.0)
            self.journal += step.persist
            out.deliver += step.deliver
            out.close += step.close
        return out

    def container(self, connection: int) -> list[Frame]:
        """A container comes; returns what it is told."""
        registered = Registered(("agent",), ("agent",))
        told = self.hears(connection, ContainerHello(PROTOCOL_VERSION), registered).deliver
        return [frame for number, frame in told if number == connection]


def test_a_copy_is_started_once() -> None:
    broker = Broker()
    assert broker.container(1) == [RunHosted("agent")]
    frames = [frame for _, frame in broker.hears(2, HELLO).deliver]
    assert any(isinstance(each, Welcome) for each in frames)
    (close,) = broker.hears(3, HELLO).close
    assert close.text == "a copy of 'agent' runs already"


def test_copies_of_a_former_container_do_not_count() -> None:
    """It has dropped them, or it is gone: else nothing would ever run the client again."""
    broker = Broker()
    broker.container(1)
    broker.hears(2, HELLO)
    registered = Registered(("agent",), ("agent",))
    came = broker.hears(4, ContainerHello(PROTOCOL_VERSION), registered)
    assert {close.connection for close in came.close} == {1, 2}
    assert (4, RunHosted("agent")) in came.deliver
    assert {close.connection for close in broker.hears(5, HELLO).close} == {2}


def test_a_copy_that_comes_when_its_container_has_left_is_not_at_fault() -> None:
    broker = Broker()
    broker.container(1)
    broker.core.step(Closed(1), 1.0)
    (close,) = broker.hears(2, HELLO).close
    assert (close.error, close.text) == ("Disconnected", "the container is gone")


def test_a_client_runs_again_although_a_crash_came_before_its_hosting_was_noted() -> None:
    broker = Broker()
    broker.container(1)
    broker.hears(2, HELLO)
    opened, begun = broker.journal
    assert isinstance(begun.body, HostingBegun)
    again = Broker([opened])
    assert again.container(1) == [RunHosted("agent")]
    again.hears(2, HELLO)
    (noted,) = [fact.body for fact in again.journal if isinstance(fact.body, HostingBegun)]
    assert noted == begun.body
