"""The client's machine when it moves, against hand-made frames."""

from __future__ import annotations

import pytest

from motet.client.session.machine import ClientMachine
from motet.client.session.state import (
    ConnectionEnd,
    Failure,
    Missed,
    Redirected,
    Resolved,
    Settled,
    Welcomed,
)
from motet.errors import ClosedError, MisuseError, ProtocolError
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.mobility.messages import ArrivalHello, Moved, MoveRefusal, MoveRequest
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    ClientHello,
    Done,
    Farewell,
    Goodbye,
    Processed,
    Publish,
    Ready,
    SubscribeRequest,
    Welcome,
)
from tests.unit.client.test_machine import F, bodies, happened, opened, reopen, sent, welcome

AWAY = Moved("B7", "tcp://b7:1")
ARRIVAL = ArrivalHello(PROTOCOL_VERSION, ClientHello(PROTOCOL_VERSION, "alice", "B1-1"))


def there(epoch: str = "B1-1", resumed: bool = True, **rest: int) -> Welcome:
    return Welcome("B7", epoch, resumed, rest.get("published", 0), 30.0)


def on_its_way() -> ClientMachine:
    machine = opened()
    machine.move("B7")
    machine.received(AWAY)
    machine.closed()
    machine.take()
    return machine


def test_a_move_ends_with_the_welcome_at_its_target() -> None:
    machine = opened()
    move = machine.move("B7", 3.0)
    assert sent(machine) == [MoveRequest(1, "B7", 3.0)]
    machine.received(AWAY)
    assert happened(machine) == [Redirected("B7", "tcp://b7:1")]
    assert (machine.state, machine.broker) == ("offline", "B1")
    machine.closed()
    machine.opened()
    assert sent(machine) == [ARRIVAL]
    machine.received(there())
    assert happened(machine) == [
        Welcomed("resumed", "B7", "B1-1", 30.0, 2.0),
        Resolved(move, None, "B7"),
    ]
    assert (machine.broker, machine.epoch, machine.at_rest) == ("B7", "B1-1", True)
    machine.closed()
    machine.opened()
    assert sent(machine) == [ARRIVAL.hello]


def test_a_move_to_the_own_broker_is_done_at_once() -> None:
    machine = opened()
    move = machine.move("B1")
    assert sent(machine) == []
    move = machine.move("B1")
    assert happened(machine) == [Resolved(move, None, "B1")]


def test_a_client_on_its_way_can_ask_for_the_broker_that_it_left() -> None:
    machine = opened()
    machine.received(AWAY)
    machine.closed()
    move = machine.move("B1")
    machine.opened()
    assert happened(machine) == [Redirected("B7", "tcp://b7:1")]
    machine.received(there())
    assert sent(machine) == [MoveRequest(1, "B1")]
    machine.received(MoveRefusal(1, "MoveRefused", "no"))
    assert happened(machine) == [Resolved(move, Failure("MoveRefused", "no"))]


def test_only_one_move_at_a_time() -> None:
    machine = opened()
    machine.move("B7")
    with pytest.raises(MisuseError, match="alice is moving to B7"):
        machine.move("B8")


def test_a_refused_move_leaves_the_session_as_it_is() -> None:
    machine = opened()
    move = machine.move("B7")
    machine.request("subscribe", F)
    machine.received(MoveRefusal(1, "NotEffective", "B5 is away", ("B5",)))
    machine.received(MoveRefusal(1, "NotEffective", "B5 is away", ("B5",)))
    failure = Failure("NotEffective", "B5 is away", ("B5",))
    assert happened(machine) == [Resolved(move, failure)]
    machine.received(Done(1))
    machine.move("B8")
    assert sent(machine) == [MoveRequest(2, "B8")]


def test_a_broker_cannot_answer_a_move_that_was_not_made() -> None:
    machine = opened()
    with pytest.raises(ProtocolError, match="an answer to move 1, which was never made"):
        machine.received(MoveRefusal(1, "MoveRefused", ""))


def test_a_move_made_offline_is_sent_after_the_welcome() -> None:
    machine = ClientMachine("alice")
    move = machine.move("B7")
    machine.publish(bodies("a"))
    machine.opened()
    machine.take()
    machine.received(welcome())
    assert sent(machine) == [Publish(1, bodies("a")), MoveRequest(1, "B7")]
    again, told = reopen(machine, welcome(resumed=True, published=1))
    assert again == [MoveRequest(1, "B7")]  # the same number
    assert Resolved(move, None, "B7") not in told


def test_a_move_made_offline_is_done_if_the_client_is_welcomed_there() -> None:
    machine = ClientMachine("alice")
    move = machine.move("B1")
    machine.opened()
    machine.received(welcome())
    assert Resolved(move, None, "B1") in happened(machine)


def test_what_is_made_on_the_way_is_sent_at_the_target() -> None:
    machine = opened()
    machine.publish(bodies("a", "b"))
    subscription = machine.request("subscribe", F)
    machine.move("B7")
    machine.received(AWAY)
    machine.publish(bodies("c"))
    machine.request("advertise", F)
    machine.closed()
    machine.take()
    machine.opened()
    machine.publish(bodies("d"))
    (hello,) = sent(machine)
    assert isinstance(hello, ArrivalHello)
    assert hello.hello.published == 2
    machine.received(there(published=1))
    send = sent(machine)
    assert send[:2] == [Publish(2, bodies("b")), SubscribeRequest(1, F)]
    assert send[2] == Publish(3, bodies("c"))
    assert send[4] == Publish(4, bodies("d"))
    machine.received(Done(1))
    assert happened(machine) == [Resolved(subscription, None)]


def test_the_target_hears_how_far_the_client_is() -> None:
    machine = opened()
    machine.request("subscribe", F)
    machine.received(Done(1))
    machine.received(Delivered("B2", 7, [7], [Publication("bob", 1, bodies("e")[0])], every=(1,)))
    machine.processed("B2", 7)
    machine.received(AWAY)
    machine.closed()
    machine.take()
    machine.opened()
    (arrival,) = sent(machine)
    assert isinstance(arrival, ArrivalHello)
    assert (arrival.hello.cursors, arrival.hello.answered) == ({"B2": 7}, 1)
    machine.received(there())
    assert sent(machine) == [Processed("B2", 7)]


def test_a_hello_may_be_answered_with_another_place() -> None:
    machine = opened()
    machine.closed()
    machine.opened()
    machine.received(AWAY)  # an operator has moved it
    machine.closed()
    assert happened(machine) == [Redirected("B7", "tcp://b7:1")]
    machine.opened()
    assert sent(machine) == [ARRIVAL]
    machine.received(Moved("B8", "tcp://b8:1"))  # and further
    machine.closed()
    machine.opened()
    assert sent(machine) == [ARRIVAL]
    machine.received(Welcome("B8", "B1-1", True, 0, 30.0))
    assert machine.broker == "B8"


def test_a_durable_session_is_adopted_where_it_is() -> None:
    machine = ClientMachine("alice", keep_s=60.0)
    machine.opened()
    (hello,) = sent(machine)
    machine.received(AWAY)
    machine.closed()
    machine.opened()
    assert sent(machine) == [ArrivalHello(PROTOCOL_VERSION, hello)]
    machine.received(there("B1-1"))
    assert happened(machine)[-1] == Welcomed("adopted", "B7", "B1-1", 30.0, 2.0)


def test_a_moved_client_asks_again_if_the_broker_is_not_the_one_it_asked_for() -> None:
    machine = opened()
    move = machine.move("B8")
    machine.received(AWAY)  # an operator was faster
    machine.closed()
    machine.take()
    machine.opened()
    machine.received(there())
    assert sent(machine)[-1] == MoveRequest(1, "B8")
    machine.received(Moved("B8", ""))
    machine.closed()
    machine.opened()
    machine.received(Welcome("B8", "B1-1", True, 0, 30.0))
    assert happened(machine)[-1] == Resolved(move, None, "B8")


def test_a_lost_session_fails_its_move() -> None:
    machine = opened()
    move = machine.move("B7")
    machine.take()
    again, told = reopen(machine, welcome("B1-2"))
    assert again == []
    (resolved,) = (each for each in told if isinstance(each, Resolved))
    assert (resolved.handle, resolved.failure and resolved.failure.error) == (
        move,
        "UnavailableError",
    )


def test_an_abandoned_move_may_still_happen() -> None:
    machine = opened()
    machine.abandon(machine.move("B7"))
    machine.received(AWAY)
    machine.closed()
    machine.opened()
    machine.received(there())
    assert machine.broker == "B7"
    assert not any(isinstance(each, Resolved) for each in happened(machine))


def test_an_abandoned_move_is_not_sent_again_and_its_answer_is_ignored() -> None:
    machine = opened()
    machine.abandon(machine.move("B7"))
    machine.take()
    again, _ = reopen(machine, welcome(resumed=True))
    assert again == []
    second = machine.move("B8")
    machine.received(MoveRefusal(1, "MoveRefused", ""))
    machine.received(MoveRefusal(2, "MoveRefused", ""))
    assert happened(machine) == [Resolved(second, Failure("MoveRefused", ""))]


def test_a_goodbye_ends_a_move_and_later_frames_are_ignored() -> None:
    machine = opened()
    move = machine.move("B7")
    machine.take()
    machine.goodbye()
    assert sent(machine) == [Goodbye()]
    machine.received(MoveRefusal(1, "MoveRefused", ""))
    machine.received(AWAY)
    assert happened(machine) == []
    with pytest.raises(ClosedError, match="cannot move"):
        machine.move("B8")
    assert move == 1


def test_only_a_farewell_follows_a_redirect() -> None:
    machine = opened()
    machine.received(AWAY)
    machine.received(Farewell("", "alice has moved"))
    assert happened(machine) == [Redirected("B7", "tcp://b7:1")]
    with pytest.raises(ProtocolError, match="Done is not legal"):
        machine.received(Done(1))


# ── patience ─────────────────────────────────────────────────────────────────────────────


def test_an_impatient_client_opens_a_new_session_from_its_own_cursors() -> None:
    machine = opened()
    machine.ready()
    machine.request("subscribe", F)
    machine.received(Done(1))
    machine.received(Delivered("B2", 7, [7], [Publication("bob", 1, bodies("e")[0])], every=(1,)))
    machine.publish(bodies("a"))
    move = machine.move("B7")
    machine.received(AWAY)
    machine.closed()
    machine.opened()
    machine.take()
    machine.impatient()
    assert sent(machine) == []
    machine.closed()
    machine.opened()
    hello = ClientHello(PROTOCOL_VERSION, "alice", cursors={"B2": 7}, hold=True)
    assert sent(machine) == [hello]
    machine.received(there("B7-1", resumed=False))
    machine.validate()
    effects = machine.take()
    assert effects.send == [SubscribeRequest(1, F, False, since={"B2": 7}), Ready()]
    settled, welcomed, resolved = effects.happened
    assert isinstance(settled, Settled)
    assert (settled.upto, settled.unknown and settled.unknown.error) == (1, "Disconnected")
    assert welcomed == Welcomed("lost", "B7", "B7-1", 30.0, 2.0)
    assert resolved == Resolved(move, None, "B7")
    machine.closed()
    machine.opened()
    (again,) = sent(machine)
    assert isinstance(again, ClientHello)
    assert again.resume == "B7-1"


def test_an_impatient_client_in_total_order_reports_a_gap() -> None:
    machine = opened(total_order=True)
    machine.request("subscribe", F)
    machine.received(Done(1))
    machine.received(Delivered("B2", 7, [7], [Publication("bob", 1, bodies("e")[0])], every=(1,)))
    machine.received(AWAY)
    machine.closed()
    machine.take()
    machine.impatient()
    machine.opened()
    machine.received(there("B7-1", resumed=False))
    assert Missed("B2", 8, 8) in happened(machine)


def test_impatience_has_no_effect_unless_the_client_is_on_its_way() -> None:
    machine = opened()
    machine.impatient()
    machine.closed()
    machine.opened()
    assert sent(machine) == [ARRIVAL.hello]


def test_an_impatient_client_takes_its_session_if_it_has_arrived() -> None:
    machine = opened(keep_s=60.0)
    move = machine.move("B7")
    machine.received(AWAY)
    machine.closed()
    machine.impatient()
    machine.opened()
    machine.take()
    machine.received(there())
    assert happened(machine) == [
        Welcomed("resumed", "B7", "B1-1", 30.0, 2.0),
        Resolved(move, None, "B7"),
    ]


def test_an_impatient_client_finds_the_new_session_whose_welcome_was_lost() -> None:
    machine = opened(keep_s=60.0)
    machine.received(AWAY)
    machine.closed()
    machine.impatient()
    machine.opened()
    machine.take()
    machine.received(there("B7-1"))
    assert happened(machine)[-1] == Welcomed("lost", "B7", "B7-1", 30.0, 2.0)


def test_a_durable_session_on_its_way_has_no_second_one() -> None:
    machine = on_its_way()
    machine.impatient()
    machine.opened()
    machine.take()
    machine.received(Farewell("ClientElsewhere", "at B1"))
    assert happened(machine) == [ConnectionEnd(Failure("ClientElsewhere", "at B1"))]
    machine.closed()
    machine.opened()
    (hello,) = sent(machine)
    assert isinstance(hello, ArrivalHello)
