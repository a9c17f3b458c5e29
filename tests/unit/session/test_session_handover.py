"""The state of a session can be handed out by one broker and taken in by another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from motet.broker.core import records
from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import picture, rebuild
from motet.model import Filter, Hop, OpId, encode_event
from motet.model.filters import from_wire
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received, Remembered
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link import messages as link
from motet.protocol.machine import Snapshot
from motet.protocol.routing import messages as routing
from motet.protocol.session import messages as session
from motet.protocol.session.durable import DurableSessions
from tests.unit.broker.test_image import CONFIG, eventful, lived

B, ANN = 1, 9
FAR = OpId("carol", "B-7", 1)
SPACE = Filter.parse("x > 1")


def lived_through() -> Durable:
    core = BrokerCore(CONFIG)
    lived(eventful(), core)
    return core.durable


def merging() -> Durable:
    """Of a client in total order: a start is known, and another one is expected."""
    core = BrokerCore(CONFIG)
    core.recover(0.0, Remembered())
    hello = session.ClientHello(PROTOCOL_VERSION, "ann", keep_s=60.0, total_order=True)
    told = (
        routing.PubendHere("B.1"),
        routing.PubendHere("Z.1"),
        routing.Advertise(FAR, SPACE),
        routing.Advertise(FAR._replace(epoch="Z-7"), SPACE),
        routing.Started(OpId("ann", "A-100.1", 2), "B.1", 9),
    )
    lived(
        [
            Received(B, link.LinkHello(PROTOCOL_VERSION, "B", 5, 0, 0)),
            Received(B, link.Control(1, told[:4])),
            Received(ANN, hello),
            Received(ANN, session.Publish(1, [encode_event({"y": 5}, b"")])),
            Received(ANN, session.AdvertiseRequest(1, Filter.parse("y > 1"), wait=False)),
            Received(ANN, session.SubscribeRequest(2, SPACE, wait=False, name="xs")),
            Received(B, link.Control(5, told[4:])),
        ],
        core,
    )
    starts, joins = core.durable.routing.starts, core.durable.routing.joins
    assert starts.known and joins.awaited and joins.merging  # noqa: PT018
    assert core.durable.sessions.sent_before == {"ann": {1: 1}}
    return core.durable


def handed_out(durable: Durable, client: str, epoch: str) -> dict[type, Any]:
    parts = {type(room): room.hand_out(client, epoch) for room in durable.rooms}
    return {kind: part for kind, part in parts.items() if part is not None}


def sent(part: Any) -> Any:
    payload = records.encode(part)
    return msgspec.msgpack.decode(payload, type=type(part), dec_hook=from_wire)


def arrive(other: Durable, parts: dict[type, Any], client: str, epoch: str) -> None:
    for kind, part in parts.items():
        other.room(kind).take_in(client, epoch, sent(part))
    other.routing.apply(routing.ClientHere(client, epoch), Hop.client(client))


@pytest.mark.parametrize("past", [lived_through, merging])
def test_a_session_handed_out_is_complete_after_it_was_taken_in(past: Any) -> None:
    durable = past()
    before = durable.digest()
    for each in list(durable.sessions):
        who = (each.client, each.epoch)
        parts = handed_out(durable, *who)
        assert DurableSessions in parts
        other = Durable(BrokerConfig("Z", incarnation=3))
        arrive(other, parts, *who)
        taken = other.sessions.current(*who)
        assert taken is not None
        taken.left_at = each.left_at  # its lease begins anew
        assert handed_out(other, *who) == parts
        other.validate()
        assert (each.client in other.routing.joins.merging) == each.total_order
    assert durable.digest() == before


def test_a_snapshot_says_which_publications_came_before_an_advertisement() -> None:
    durable = merging()
    again = rebuild(CONFIG, Snapshot(records.MACHINE_VERSION, _payloads(durable)), [])
    assert again.sessions.sent_before == {"ann": {1: 1}}
    assert again.digest() == durable.digest()
    (ann,) = again.sessions
    again.sessions.end(ann)
    assert not again.sessions.sent_before


def _payloads(durable: Durable) -> list[bytes]:
    return [payload for _, payload in picture(durable)]


def test_a_broker_does_not_hand_out_a_session_of_another_broker() -> None:
    durable = lived_through()
    assert ("carol", "B-7") in durable.routing.state.clients
    assert handed_out(durable, "carol", "B-7") == {}


def test_a_deadline_of_an_operation_does_not_move_with_its_session() -> None:
    core = BrokerCore(CONFIG)
    lived(
        [
            Received(B, link.LinkHello(PROTOCOL_VERSION, "B", 5, 0, 0)),
            Received(ANN, session.ClientHello(PROTOCOL_VERSION, "ann")),
            Received(ANN, session.AdvertiseRequest(1, SPACE)),
        ],
        core,
    )
    (ann,) = core.durable.sessions
    assert list(core.durable.requests.deadlines) == [OpId(ann.client, ann.epoch, 1)]
    other = Durable(BrokerConfig("Z", incarnation=3))
    who = (ann.client, ann.epoch)
    arrive(other, handed_out(core.durable, *who), *who)
    assert other.requests.deadlines == {}
    other.validate()
