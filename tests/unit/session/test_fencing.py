"""One client id, one session: what a broker does when it hears of another one."""

from __future__ import annotations

import pytest

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.errors import InvariantError
from motet.model import Filter, Hop
from motet.model.limits import MAX_CLIENT_ID_CHARS
from motet.protocol.changes import Sent
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import CancelTimer, Close, Closed, Fact, Output, Received
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import ClientGone, ClientHere, Complete, RoutingMessage
from motet.protocol.routing.state import ClientTable
from motet.protocol.session.messages import (
    ClientHello,
    Failed,
    Publish,
    SubscribeRequest,
    Welcome,
)
from motet.protocol.transactions.state import Marks

LINK, CLIENT, LATER = 1, 2, 3


class Stage:
    """Broker A with neighbour B, and everything that A journaled."""

    def __init__(self) -> None:
        self.core = BrokerCore(BrokerConfig("A", ("B",), incarnation=100))
        self.journal: list[Fact] = []
        self._heard = 0
        self.take(LINK, LinkHello(PROTOCOL_VERSION, "B", 5, 0, 0))
        self.hear(Complete(True))

    def take(self, connection: int, frame: Frame) -> Output:
        out = self.core.step(Received(connection, frame), 1.0)
        self.journal += out.persist
        self.core.validate()
        return out

    def hear(self, message: RoutingMessage) -> Output:
        self._heard += 1
        return self.take(LINK, Control(self._heard, (message,)))

    def hello(self, connection: int, resume: str | None = None, instance: str = "") -> Output:
        hello = ClientHello(PROTOCOL_VERSION, "alice", resume, b"", instance)
        return self.take(connection, hello)

    @property
    def epochs(self) -> list[str]:
        return [session.epoch for session in self.core.durable.sessions]

    def told(self, out: Output) -> list[RoutingMessage]:
        controls = [frame for _, frame in out.send if isinstance(frame, Control)]
        return [message for control in controls for message in control.messages]


def fenced(connection: int, broker: str, epoch: str) -> list[Close]:
    text = f"another client connected to {broker} as 'alice' (session {epoch})"
    return [Close(connection, "Fenced", text)]


def welcome(out: Output) -> Welcome:
    (answer,) = [frame for _, frame in out.deliver if isinstance(frame, Welcome)]
    return answer


def test_a_newer_session_elsewhere_ends_the_one_here() -> None:
    stage = Stage()
    stage.hello(CLIENT)
    stage.take(CLIENT, SubscribeRequest(1, Filter.parse("true"), False))
    out = stage.hear(ClientHere("alice", "B-5.2"))
    assert out.close == fenced(CLIENT, "B", "B-5.2")
    assert stage.told(out) == [ClientGone("alice", "A-100.1")]
    assert CancelTimer(("lease", "alice", "A-100.1")) in out.timers
    state = stage.core.durable.routing.state
    assert (stage.epochs, stage.core.clients, len(state.subscriptions)) == ([], {}, 0)
    assert dict(state.clients.items()) == {("alice", "B-5.2"): Hop.broker("B")}


def test_an_older_session_elsewhere_leaves_the_one_here() -> None:
    stage = Stage()
    stage.hear(ClientHere("bob", "B-5.7"))
    stage.hello(CLIENT)
    out = stage.hear(ClientHere("alice", "B-5.3"))
    assert (out.close, stage.told(out)) == ([], [])
    assert stage.epochs == ["A-100.8"]
    stage.hear(ClientGone("alice", "B-5.3"))
    assert stage.core.clients["alice"].connection == CLIENT


def test_a_waiting_request_is_answered_before_its_client_is_fenced() -> None:
    stage = Stage()
    stage.hello(CLIENT)
    stage.hear(Complete(False))
    stage.take(CLIENT, SubscribeRequest(1, Filter.parse("true")))
    out = stage.hear(ClientHere("alice", "B-5.2"))
    ((connection, answer),) = out.deliver
    assert isinstance(answer, Failed)
    assert (connection, answer.error) == (CLIENT, "Withdrawn")
    assert not stage.core.durable.requests.deadlines


def test_a_client_that_is_away_is_fenced_too() -> None:
    stage = Stage()
    stage.hello(CLIENT)
    stage.core.step(Closed(CLIENT), 1.0)
    assert stage.hear(ClientHere("alice", "B-5.2")).close == []
    assert stage.epochs == []


def test_a_fenced_connection_belongs_to_no_client() -> None:
    stage = Stage()
    stage.hello(CLIENT)
    stage.hear(ClientHere("alice", "B-5.2"))
    (close,) = stage.take(CLIENT, Publish(1, [])).close
    assert close.error == "ProtocolError"
    assert stage.core.step(Closed(CLIENT), 2.0) == Output()


def test_a_new_client_takes_over_from_another_broker() -> None:
    stage = Stage()
    stage.hear(ClientHere("alice", "B-5.9"))
    out = stage.hello(CLIENT)
    assert welcome(out).epoch == "A-100.10"
    assert stage.told(out) == [ClientHere("alice", "A-100.10", plain=True)]


@pytest.mark.parametrize("instance", ["", "one"])
def test_a_returning_client_does_not_take_over_from_a_newer_one_at_another_broker(
    instance: str,
) -> None:
    stage = Stage()
    stage.hello(CLIENT, None, instance)
    stage.hear(ClientHere("alice", "B-5.9"))
    before = len(stage.journal)
    assert stage.hello(LATER, "A-100.1", instance).close == fenced(LATER, "B", "B-5.9")
    assert (stage.epochs, len(stage.journal)) == ([], before), "nothing happened"
    stage.hear(ClientGone("alice", "B-5.9"))
    assert welcome(stage.hello(LATER, "A-100.1", instance)).epoch == "A-100.10"


@pytest.mark.parametrize("instance", ["", "one"])
def test_a_returning_client_does_not_take_over_from_a_newer_one_at_this_broker(
    instance: str,
) -> None:
    stage = Stage()
    stage.hello(CLIENT, None, instance)
    assert stage.hello(LATER, None, "two").close == fenced(CLIENT, "A", "A-100.2")
    assert stage.hello(CLIENT, "A-100.1", instance).close == fenced(CLIENT, "A", "A-100.2")
    assert stage.core.clients["alice"].connection == LATER


def test_a_client_that_missed_its_welcome_is_recognised_by_its_instance() -> None:
    stage = Stage()
    stage.hello(CLIENT, "A-99.7", "one")
    out = stage.hello(LATER, "A-99.7", "one")
    assert (welcome(out).epoch, welcome(out).resumed) == ("A-100.8", False)
    assert stage.epochs == ["A-100.8"]


def test_an_instance_that_resumes_a_session_owns_it() -> None:
    stage = Stage()
    stage.hello(CLIENT, None, "one")
    assert welcome(stage.hello(LATER, "A-100.1", "two")).resumed
    assert stage.hello(CLIENT, "A-99.1", "one").close == fenced(CLIENT, "A", "A-100.1")
    assert welcome(stage.hello(CLIENT, "A-99.1", "two")).epoch == "A-100.2"


def test_a_session_that_moved_to_another_broker_is_its_own_successor() -> None:
    stage = Stage()
    stage.hear(ClientHere("alice", "B-5.9"))
    assert welcome(stage.hello(CLIENT, "B-5.9", "one")).epoch == "A-100.10"


@pytest.mark.parametrize("resume", ["", "nonsense", "A-100.x", "9" * 6000])
def test_an_invalid_epoch_to_resume_is_older_than_any(resume: str) -> None:
    stage = Stage()
    assert welcome(stage.hello(CLIENT, resume)).epoch == "A-100.1"
    assert stage.hello(LATER, resume).close == fenced(LATER, "A", "A-100.1")


def test_a_long_instance_name_is_a_protocol_error() -> None:
    stage = Stage()
    out = stage.hello(CLIENT, None, "x" * (MAX_CLIENT_ID_CHARS + 1))
    assert [close.error for close in out.close] == ["ProtocolError"]
    assert stage.epochs == []


def test_a_replayed_broker_has_fenced_the_same_sessions() -> None:
    stage = Stage()
    stage.hello(CLIENT, None, "one")
    stage.hear(ClientHere("alice", "B-5.9"))
    stage.hear(ClientHere("bob", "B-5.12"))
    stage.hello(LATER, None, "two")
    again = Durable(BrokerConfig("A", ("B",), incarnation=100))
    for fact in stage.journal:
        again.apply(fact)
    again.validate()
    assert again.digest() == stage.core.durable.digest()
    assert again.requests.newer_than("alice", "B-5.9", "two") is None
    assert again.requests.newer_than("alice", "B-5.9", "one") == "A-100.13"


def test_a_client_returning_to_a_broker_without_state_is_fenced_by_a_newer_one() -> None:
    stage = Stage()
    stage.hello(CLIENT, "A-99.7", "one")
    assert stage.hear(ClientHere("alice", "B-5.8")).close == fenced(CLIENT, "B", "B-5.8")


def test_a_session_that_is_not_the_newest_is_found() -> None:
    stage = Stage()
    stage.hello(CLIENT)
    stage.core.durable.routing.state.clients["alice", "B-5.9"] = Hop.broker("B")
    with pytest.raises(InvariantError, match=r"A-100\.1 of alice is not the newest"):
        stage.core.validate()


def test_soft_and_durable_sessions_must_agree() -> None:
    stage = Stage()
    stage.hello(CLIENT)
    stage.core.clients["alice"].epoch = "A-100.9"
    with pytest.raises(InvariantError, match="the sessions are not those of the clients"):
        stage.core.validate()


# ── the client routing table ─────────────────────────────────────────────────────────────


def test_invalid_messages_about_clients_are_ignored_and_counted() -> None:
    routing = Routing("A-1", ("B", "C"), Marks())
    b, c = Hop.broker("B"), Hop.broker("C")
    routing.apply(ClientHere("alice", "B-1.1"), b)
    for message, source in (
        (ClientHere("alice", "B-1.1"), c),
        (ClientGone("alice", "B-1.1"), c),
        (ClientGone("alice", "B-1.2"), b),
    ):
        ignored = routing.ignored
        assert not routing.apply(message, source).of(Sent)
        assert routing.ignored == ignored + 1
    assert dict(routing.state.clients.items()) == {("alice", "B-1.1"): b}


def test_the_newest_of_a_client_is_found_while_others_come_and_go() -> None:
    table, hop = ClientTable(), Hop.broker("B")
    assert table.newest("alice") is None
    for epoch in ("B-1.5", "C-1.6", "A-1.6", "B-2.1"):
        table["alice", epoch] = hop
    table["alice", "C-1.6"] = hop
    table["bob", "B-1.9"] = hop
    assert (len(table), table.newest("alice"), table.newest("bob")) == (5, "C-1.6", "B-1.9")
    del table["alice", "C-1.6"]
    assert table.newest("alice") == "A-1.6"
    for key in list(table):
        del table[key]
    assert (table.newest("alice"), table.newest("bob"), len(table)) == (None, None, 0)
