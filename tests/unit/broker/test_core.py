"""The broker's core, step by step: which peer may send which frame, and misbehaviour."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
from msgspec import Raw

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.model import Filter, OpId, encode_event
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    CancelTimer,
    Close,
    Closed,
    Dialled,
    Fact,
    Output,
    Received,
    SetTimer,
    TimerFired,
)
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link import messages as link
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import Complete
from motet.protocol.session import messages as session
from motet.protocol.traits import TRAITS
from motet.runtime.codec import decode
from tests.unit.examples import frames

OP = OpId("c", "A-1", 1)
GOLDEN = Path(__file__).parents[2] / "golden" / "frames.json"
BY_HAND: list[Frame] = [
    link.LinkHello(PROTOCOL_VERSION, "B", 5, 0, 0),
    link.Control(1, ()),
    link.ControlAck(0),
    link.Publications(1, 0, []),
    session.ClientHello(PROTOCOL_VERSION, "carol"),
    session.Publish(1, []),
]
"""Frames whose content must fit the broker. All others come from the golden ones, and those that
are newer from the examples of their rooms."""


def examples() -> Iterator[Frame]:
    yield from BY_HAND
    known = {type(frame) for frame in BY_HAND}
    golden = (bytes.fromhex(each["bytes"]) for each in json.loads(GOLDEN.read_text())["frames"])
    for frame in chain(map(decode, golden), frames()):
        if type(frame) not in known:
            known.add(type(frame))
            yield frame


EXAMPLES = list(examples())
LINK, CLIENT, STRANGER = 1, 2, 3


def broker() -> BrokerCore:
    """A with neighbour B on connection 1 and client alice on connection 2."""
    core = BrokerCore(BrokerConfig("A", ("B",), incarnation=100))
    core.step(Received(LINK, link.LinkHello(PROTOCOL_VERSION, "B", 5, 0, 0)), 0.0)
    core.step(Received(LINK, link.Control(1, (Complete(True),))), 0.0)
    core.step(Received(CLIENT, session.ClientHello(PROTOCOL_VERSION, "alice")), 0.0)
    return core


def replies(out: Output) -> list[Frame]:
    return [frame for _, frame in out.deliver]


def test_every_frame_type_has_an_example() -> None:
    declared = {kind for kind in TRAITS if kind.__module__.startswith("motet.")}
    assert {type(frame) for frame in EXAMPLES} == declared == set(get_args(Frame))


@pytest.mark.parametrize("connection", [LINK, CLIENT, STRANGER])
@pytest.mark.parametrize("frame", EXAMPLES, ids=lambda frame: type(frame).__name__)
def test_every_frame_is_accepted_or_its_sender_is_expelled(frame: Frame, connection: int) -> None:
    core = broker()
    out = core.step(Received(connection, frame), 1.0)
    who = {LINK: "broker", CLIENT: "client", STRANGER: "nobody"}[connection]
    taken = type(frame) in core._frames and who in TRAITS[type(frame)].senders
    expelled = [close for close in out.close if close.error == "ProtocolError"]
    assert bool(expelled) is not taken
    core.validate()
    # Whatever it was, the broker goes on serving others.
    out = core.step(Received(9, session.ClientHello(PROTOCOL_VERSION, "dave")), 2.0)
    assert isinstance(replies(out)[0], session.Welcome)


def test_a_hello_of_another_version_is_refused_by_name() -> None:
    core = broker()
    out = core.step(Received(7, session.ClientHello(PROTOCOL_VERSION + 1, "x")), 1.0)
    assert out.close[0].error == "VersionError"
    out = core.step(Received(8, link.LinkHello(99, "B", 5, 0, 0)), 1.0)
    assert out.close[0].error == "VersionError"


def test_an_unknown_broker_is_refused_with_the_way_out() -> None:
    out = broker().step(Received(7, link.LinkHello(PROTOCOL_VERSION, "Z", 5, 0, 0)), 1.0)
    assert out.close[0].error == "UnknownBroker"
    assert "add the link to the topology" in out.close[0].text


def test_a_dialled_neighbour_that_turns_out_to_be_another_is_refused() -> None:
    core = BrokerCore(BrokerConfig("A", ("B", "C")))
    core.step(Dialled(1, "B"), 0.0)
    out = core.step(Received(1, link.LinkHello(PROTOCOL_VERSION, "C", 5, 0, 0)), 0.0)
    assert "dialled B, but C answered" in out.close[0].text


@pytest.mark.parametrize("name", ["", "x" * 129, "tab\there"])
def test_a_client_id_must_be_printable(name: str) -> None:
    out = broker().step(Received(7, session.ClientHello(PROTOCOL_VERSION, name)), 1.0)
    assert out.close[0].error == "ProtocolError"


def test_a_newer_connection_fences_the_older_one() -> None:
    core = broker()
    out = core.step(Received(7, session.ClientHello(PROTOCOL_VERSION, "alice")), 1.0)
    assert out.close == [
        Close(CLIENT, "Fenced", "another client connected to A as 'alice' (session A-100.2)"),
    ]
    out = core.step(Received(8, link.LinkHello(PROTOCOL_VERSION, "B", 5, 100, 0)), 1.0)
    assert out.close == [Close(LINK, "", "a newer connection took over")]
    # The close of the fenced one comes late and must not hurt the new one.
    core.step(Closed(CLIENT), 2.0)
    core.step(Closed(LINK), 2.0)
    assert core.clients["alice"].connection == 7
    assert core.links["B"].up


def test_a_repeated_request_takes_effect_once() -> None:
    core = broker()
    request = session.SubscribeRequest(1, Filter.parse("x = 1"))
    assert replies(core.step(Received(CLIENT, request), 1.0)) == [session.Done(1)]
    out = core.step(Received(CLIENT, request), 1.0)
    assert replies(out) == [session.Done(1)]
    assert out.persist == []
    assert len(core.durable.routing.state.subscriptions) == 1


def test_a_repeated_request_gets_the_same_failure() -> None:
    core = broker()
    request = session.UnsubscribeRequest(1, 77)
    first = replies(core.step(Received(CLIENT, request), 1.0))
    again = replies(core.step(Received(CLIENT, request), 1.0))
    assert first == again
    assert isinstance(first[0], session.Failed)
    assert first[0].error == "NoSuchOperation"


def test_requests_must_not_leave_gaps() -> None:
    gap = session.SubscribeRequest(5, Filter.parse("true"))
    assert broker().step(Received(CLIENT, gap), 1.0).close[0].error == "ProtocolError"


def test_publications_may_skip_what_the_client_gave_up() -> None:
    core = broker()
    core.step(Received(CLIENT, session.AdvertiseRequest(1, Filter.parse("x > 0"))), 1.0)
    body = Raw(encode_event({"x": 1}, b""))
    out = core.step(Received(CLIENT, session.Publish(3, [body], sure=False)), 1.0)
    assert replies(out) == [session.Published(3)]
    # What comes again is not published again, but answered.
    out = core.step(Received(CLIENT, session.Publish(2, [body, body], sure=False)), 1.0)
    assert (replies(out), core.counts.published) == ([session.Published(3)], 1)
    assert not core.step(Received(CLIENT, session.Publish(0, [body])), 1.0).deliver


def test_a_broker_without_a_pubend_refuses_what_it_cannot_promise() -> None:
    core = broker()
    body = Raw(encode_event({"x": 1}, b""))
    (answer,) = replies(core.step(Received(CLIENT, session.Publish(1, [body])), 1.0))
    assert isinstance(answer, session.Published)
    assert (answer.upto, answer.refused[0].error) == (1, "NotOffered")


@pytest.mark.parametrize("timeout_s", [float("nan"), -1.0])
def test_a_timeout_must_be_a_duration(timeout_s: float) -> None:
    request = session.SubscribeRequest(1, Filter.parse("true"), True, timeout_s)
    assert broker().step(Received(CLIENT, request), 1.0).close[0].error == "ProtocolError"


def test_a_publication_sent_again_after_a_resume_counts_once() -> None:
    core = broker()
    core.step(Received(CLIENT, session.AdvertiseRequest(1, Filter.parse("true"), False)), 1.0)
    core.step(Received(CLIENT, session.SubscribeRequest(2, Filter.parse("true"), False)), 1.0)
    body = Raw(encode_event({"x": 1}, b""))
    core.step(Received(CLIENT, session.Publish(1, [body, body], sure=False)), 1.0)
    out = core.step(Received(CLIENT, session.Publish(2, [body, body], sure=False)), 1.0)
    delivered = next(f for f in replies(out) if isinstance(f, session.Deliver))
    assert [d.publication.sequence for d in delivered.batch] == [3]
    assert session.Published(3) in replies(out)


def test_a_malformed_event_is_refused_and_the_rest_of_its_batch_is_published() -> None:
    core = broker()
    core.step(Received(CLIENT, session.AdvertiseRequest(1, Filter.parse("true"), False)), 1.0)
    good = Raw(encode_event({"x": 1}, b""))
    out = core.step(
        Received(CLIENT, session.Publish(1, [good, Raw(b"\x01"), good], sure=False)), 1.0
    )
    published = replies(out)[-1]
    assert isinstance(published, session.Published)
    assert published.upto == 3
    assert [refusal.sequence for refusal in published.refused] == [2]
    assert core.counts.published == 2


def test_the_lease_starts_when_the_connection_goes_and_stops_when_it_is_back() -> None:
    core = broker()
    epoch = core.clients["alice"].epoch
    lease = ("lease", "alice", epoch)
    out = core.step(Closed(CLIENT), 10.0)
    assert out.timers == [SetTimer(lease, 40.0)]
    out = core.step(Received(7, session.ClientHello(PROTOCOL_VERSION, "alice", epoch)), 20.0)
    assert out.timers == [CancelTimer(lease)]
    assert replies(out) == [session.Welcome("A", epoch, True, 0, 30.0)]
    core.step(TimerFired(lease), 40.0)  # a timer that fired just before it was cancelled
    assert core.clients["alice"].epoch == epoch


def test_goodbye_leaves_nothing_behind() -> None:
    core = broker()
    core.step(Received(CLIENT, session.AdvertiseRequest(1, Filter.parse("true"), False)), 1.0)
    core.step(Received(CLIENT, session.SubscribeRequest(2, Filter.parse("true"), False)), 1.0)
    core.step(Received(CLIENT, session.Goodbye()), 2.0)
    state = core.durable.routing.state
    assert (len(state.advertisements), len(state.subscriptions), len(state.clients)) == (0, 0, 0)
    assert (len(core.durable.sessions), core.clients) == (0, {})


def test_a_replayed_broker_is_the_same_broker() -> None:
    journal: list[Fact] = []
    core = BrokerCore(BrokerConfig("A", ("B",), incarnation=100))
    for connection, frame in (
        (LINK, link.LinkHello(PROTOCOL_VERSION, "B", 5, 0, 0)),
        (CLIENT, session.ClientHello(PROTOCOL_VERSION, "alice")),
        (CLIENT, session.AdvertiseRequest(1, Filter.parse("x > 1"))),
        (CLIENT, session.SubscribeRequest(2, Filter.parse("x = 5 or y like 'a%'"))),
        (CLIENT, session.UnadvertiseRequest(3, 1)),
    ):
        journal += core.step(Received(connection, frame), 1.0).persist
    config = BrokerConfig("A", ("B",), incarnation=100)
    durable = Durable(config)
    durable.replay(journal)
    again = BrokerCore(config, durable)
    assert again.durable.digest() == core.durable.digest()
    assert list(again.links["B"].ledger.outbox) == list(core.links["B"].ledger.outbox)
    timers = again.recover(50.0).timers
    assert SetTimer(("lease", "alice", "A-100.1"), 80.0) in timers


def test_an_epoch_is_never_issued_again_even_by_a_broker_that_lost_its_state() -> None:
    first = broker().clients["alice"].epoch
    later = BrokerCore(BrokerConfig("A", (), incarnation=200))
    later.step(Received(1, session.ClientHello(PROTOCOL_VERSION, "alice", first)), 0.0)
    assert later.clients["alice"].epoch != first


def test_an_invalid_event_is_refused_from_a_client_and_dropped_from_a_neighbour() -> None:
    core = broker()
    core.step(Received(CLIENT, session.AdvertiseRequest(1, Filter.parse("true"), False)), 1.0)
    core.step(Received(CLIENT, session.SubscribeRequest(2, Filter.parse("true"), False)), 1.0)
    bad = Raw(encode_event({"\x1b[31m": 1}, b""))
    out = core.step(Received(CLIENT, session.Publish(1, [bad], sure=False)), 1.0)
    published = replies(out)[-1]
    assert isinstance(published, session.Published)
    assert published.refused[0].error == "EventError"
    good = Raw(encode_event({"x": 1}, b""))
    batch = [Publication("p", 1, bad), Publication("p", 2, good)]
    out = core.step(Received(LINK, link.Publications(1, 0, batch)), 1.0)
    assert not out.close
    delivered = replies(out)[0]
    assert isinstance(delivered, session.Deliver)
    assert [d.publication.sequence for d in delivered.batch] == [2]
    assert core.status()["counts"]["malformed"] == 1


def test_a_refusal_of_a_large_event_is_short() -> None:
    core = broker()
    values = ", ".join(str(i) for i in range(1000))
    wide = session.AdvertiseRequest(1, Filter.parse(f"a in ({values})"), False)
    core.step(Received(CLIENT, wide), 1.0)
    body = Raw(encode_event({"a": -1, "s": "z" * 200_000}, b""))
    out = core.step(Received(CLIENT, session.Publish(1, [body], sure=False)), 1.0)
    published = replies(out)[-1]
    assert isinstance(published, session.Published)
    assert len(published.refused[0].text) < 1100


def test_a_removed_subscription_that_stays_in_the_tables_gets_no_event() -> None:
    core = BrokerCore(BrokerConfig("A"))
    core.step(Received(CLIENT, session.ClientHello(PROTOCOL_VERSION, "alice")), 0.0)
    core.step(Received(CLIENT, session.AdvertiseRequest(1, Filter.parse("true"))), 0.0)
    core.step(Received(CLIENT, session.SubscribeRequest(2, Filter.parse("true"))), 0.0)
    (entry,) = core.durable.routing.state.subscriptions
    for number, came in ((1, True), (2, False)):
        event = session.Publish(number, [Raw(encode_event({"x": 1}, b""))], sure=False)
        told = core.step(Received(CLIENT, event), 0.0).deliver
        assert any(isinstance(frame, session.Deliver) for _, frame in told) == came
        # It waits for all to know the transaction that it came with.
        core.durable.routing.starts.forsake(entry.id)
