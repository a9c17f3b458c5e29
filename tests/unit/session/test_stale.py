"""A client that knows more of its session than its broker: the broker's state is an old copy."""

from __future__ import annotations

import pytest

from motet.broker.core.broker import BrokerCore
from motet.model import Filter
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Output, Received
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.session.messages import ClientHello, SubscribeRequest, Welcome

FIRST, SECOND = 1, 2


def broker() -> BrokerCore:
    return BrokerCore(BrokerConfig("A", incarnation=100))


def take(core: BrokerCore, connection: int, frame: Frame) -> Output:
    out = core.step(Received(connection, frame), 1.0)
    core.validate()
    return out


def hello(core: BrokerCore, connection: int, resume: str | None, answered: int = 0) -> Output:
    frame = ClientHello(PROTOCOL_VERSION, "alice", resume, answered=answered)
    return take(core, connection, frame)


def lived() -> BrokerCore:
    """Alice has a session here, and two requests in it."""
    core = broker()
    hello(core, FIRST, None)
    for sequence in (1, 2):
        take(core, FIRST, SubscribeRequest(sequence, Filter.parse("true")))
    return core


@pytest.mark.parametrize(
    ("resume", "answered", "why"),
    [
        ("A-100.2", 0, "the last one we know of is session 1"),
        ("A-101.1", 0, "we are in life 100"),
        ("A-100.1", 3, "our answer to request 3 of session A-100.1, but we know of 2"),
    ],
    ids=["a session", "a life", "a request"],
)
def test_a_client_with_answers_that_we_do_not_know_is_refused_as_stale_state(
    resume: str, answered: int, why: str
) -> None:
    core = lived()
    digest = core.durable.digest()
    out = hello(core, SECOND, resume, answered)
    (close,) = out.close
    assert (close.connection, close.error) == (SECOND, "StaleState")
    assert why in close.text
    assert "stop A, move its data folder away, and start it without" in close.text
    assert (out.persist, out.deliver) == ([], [])
    assert core.durable.digest() == digest
    assert core.clients["alice"].connection == FIRST  # nobody lost anything by it
    assert core.status()["counts"]["expelled"] == {"StaleState": 1}


@pytest.mark.parametrize(
    ("resume", "answered", "resumed"),
    [
        ("A-100.1", 2, True),
        ("A-100.1", 0, True),
        ("A-99.7", 5, False),  # of a life before we lost our state
        ("B-100.7", 5, False),  # of another broker
        ("A-1-100.7", 5, False),
    ],
)
def test_answers_of_other_brokers_or_incarnations_do_not_show_stale_state(
    resume: str, answered: int, resumed: bool
) -> None:
    out = hello(lived(), SECOND, resume, answered)
    (welcome,) = [frame for _, frame in out.deliver if isinstance(frame, Welcome)]
    assert welcome.resumed is resumed


def test_a_session_that_ended_is_no_sign_of_an_old_copy() -> None:
    core = lived()
    hello(core, SECOND, None)
    out = hello(core, FIRST, "A-100.1", 2)
    assert [close.error for close in out.close] == ["Fenced"]


def test_an_empty_copy_knows_of_no_session_at_all() -> None:
    (close,) = hello(broker(), FIRST, "A-100.1").close
    assert "the last one we know of is none" in close.text
