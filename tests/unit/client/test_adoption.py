"""A new process goes on with a durable session: the client's machine against hand-made frames."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from motet.client.session.machine import ClientMachine
from motet.client.session.state import Failure, Missed, Resolved, Settled, StreamBatch, Welcomed
from motet.errors import MisuseError, ProtocolError, TooLate
from motet.model import Filter
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Done,
    Goodbye,
    Publish,
    Published,
    Ready,
    StandingEntry,
    SubscribeRequest,
    UnsubscribeRequest,
    Welcome,
)

F = Filter.parse("x > 1")
G = Filter.parse("y = 2")


def durable(**options: Any) -> ClientMachine:
    machine = ClientMachine("billing", instance="p2", keep_s=60.0, **options)
    machine.opened()
    return machine


def left(
    *standing: StandingEntry, requests: int = 7, published: int = 5, taken: int = 5
) -> Welcome:
    """What a broker says to a process that finds a session."""
    return Welcome(
        "B1", "B1-1.1", True, published, 60.0, requests=requests, taken=taken, standing=standing
    )


def sent(machine: ClientMachine, *frames: Frame) -> list[Frame]:
    for frame in frames:
        machine.received(frame)
    machine.validate()
    return machine.take().send


def events(*ticks: int) -> Delivered:
    batch = [Publication("p", tick, Raw(b"")) for tick in ticks]
    return Delivered("P", ticks[-1], list(ticks), batch, (3,))


def test_requests_go_on_where_the_session_is() -> None:
    machine = durable()
    machine.take()
    stands = (StandingEntry(3, "subscribe", "f", F), StandingEntry(5, "advertise", "g", G))
    assert sent(machine, left(*stands)) == []
    assert [(o.kind, o.name, o.filter) for o in machine.requests.in_force()] == [
        ("subscribe", "f", F),
        ("advertise", "g", G),
    ]
    (handle, _) = list(machine.requests.standing)
    machine.request("unsubscribe", target=handle)
    machine.request("subscribe", G, name="other")
    assert [(type(f), f.sequence) for f in sent(machine)] == [  # type: ignore[union-attr]
        (UnsubscribeRequest, 8),
        (SubscribeRequest, 9),
    ]
    assert [o.name for o in machine.requests.in_force()] == ["g", "other"]


def test_an_unanswered_operation_of_the_session_is_requested_again() -> None:
    machine = durable()
    machine.take()
    (again,) = sent(machine, left(StandingEntry(3, "subscribe", "f", F, answered=False)))
    assert isinstance(again, SubscribeRequest)
    assert again.sequence == 3
    (operation,) = machine.requests.in_force()
    assert machine.requests.await_answer(operation.handle)
    machine.received(Done(3))
    assert Resolved(operation.handle, None) in machine.take().happened
    assert list(machine.requests.standing) == [operation.handle]


def test_operations_requested_before_the_welcome_are_matched_with_the_session() -> None:
    machine = durable()
    same = machine.request("subscribe", F, name="f")
    other = machine.request("subscribe", G, name="g")
    third = machine.request("advertise", G, name="h")
    machine.take()
    standing = (StandingEntry(3, "subscribe", "f", F), StandingEntry(4, "subscribe", "g", F))
    machine.received(left(*standing))
    effects = machine.take()
    assert [(type(f), f.sequence) for f in effects.send] == [(AdvertiseRequest, 8)]  # type: ignore[union-attr]
    assert Resolved(same, None) in effects.happened
    (failed,) = [e for e in effects.happened if isinstance(e, Resolved) and e.handle == other]
    assert failed.failure is not None
    assert failed.failure.error == "NameTaken"
    assert third in [o.handle for o in machine.requests.in_force()]


def test_publications_follow_those_of_the_last_process() -> None:
    machine = durable()
    machine.publish([Raw(b"early")])
    machine.take()
    (frame,) = sent(machine, left(published=5, taken=8))
    assert frame == Publish(9, [Raw(b"early")])
    assert (machine.window.answered, machine.certain) == (5, False)
    machine.received(Published(8))
    assert (machine.window.answered, machine.certain) == (8, True)
    assert machine.take().happened == []
    machine.received(Published(9))
    assert machine.take().happened == [Settled(1)]
    # some of what was on its way into the log never came there: its broker has died
    machine.closed()
    machine.opened()
    machine.take()
    machine.received(Welcome("B1", "B1-1.1", True, 9, 60.0, taken=9))
    assert machine.certain


def test_own_cursors_are_told_and_nothing_below_them_comes_through() -> None:
    machine = durable(cursors={"P": 10})
    (hello,) = machine.take().send
    assert isinstance(hello, ClientHello)
    assert (hello.cursors, hello.keep_s, hello.hold) == ({"P": 10}, 60.0, True)
    sent(machine, left(StandingEntry(3, "subscribe", "f", F)))
    machine.received(events(9, 10, 11))
    assert [e.ticks for e in machine.take().happened if isinstance(e, StreamBatch)] == [[11]]


def test_without_a_session_cursors_are_where_subscriptions_begin() -> None:
    machine = durable(cursors={"P": 10})
    machine.take()
    machine.received(Welcome("B1", "B1-1.2", False, 0, 60.0))
    machine.request("subscribe", F)
    machine.request("subscribe", F, since={})
    machine.ready()
    machine.request("subscribe", G)
    one, two, ready, three = machine.take().send
    assert [f.since for f in (one, two, three)] == [{"P": 10}, {}, {}]  # type: ignore[union-attr]
    assert ready == Ready()


def test_a_lost_session_is_rebuilt_from_the_logs() -> None:
    machine = durable()
    machine.take()
    machine.received(Welcome("B1", "B1-1.1", False, 0, 60.0))
    machine.ready()
    handle = machine.request("subscribe", F, name="f")
    machine.received(Done(1))
    machine.received(Delivered("P", 20, [20], [Publication("p", 1, Raw(b""))], (1,)))
    machine.closed()
    machine.opened()
    machine.take()
    machine.received(Welcome("B1", "B1-1.9", False, 0, 60.0))
    effects = machine.take()
    assert effects.send == [
        SubscribeRequest(1, F, False, 10.0, "f", {"P": 20}),
        Ready(),
    ]
    assert Welcomed("lost", "B1", "B1-1.9", 60.0, 2.0) in effects.happened
    # what is trimmed is told, and the rest follows
    machine.received(Done(1))
    lost = Delivered("P", 40, [35], [Publication("p", 2, Raw(b""))], (1,), lost=((21, 30),))
    machine.received(lost)
    told = machine.take().happened
    assert Missed("P", 21, 30) in told
    (brought,) = [e for e in told if isinstance(e, StreamBatch)]
    assert (brought.ticks, brought.every) == ([35], (handle,))


def test_since_is_refused_after_the_client_has_read_the_log() -> None:
    machine = durable()
    machine.take()
    sent(machine, left(StandingEntry(3, "subscribe", "f", F)), events(9))
    for since in ({"": 0}, {"P": 3}):
        with pytest.raises(TooLate, match="up to tick 9"):
            machine.request("subscribe", G, since=since)
    machine.request("subscribe", G, since={"Q": 3})


def test_a_process_leaves_and_its_session_stays() -> None:
    machine = durable()
    machine.take()
    sent(machine, left(StandingEntry(3, "subscribe", "f", F)))
    (handle,) = list(machine.requests.standing)
    machine.goodbye(done={handle: {"P": 7}})
    assert machine.take().send == [Goodbye(stay=True, done={3: {"P": 7}})]
    other = durable()
    other.take()
    other.goodbye(forget=True)
    assert other.take().send == [Goodbye()]


def test_only_a_durable_client_gets_a_session_that_it_did_not_ask_for() -> None:
    machine = ClientMachine("c")
    machine.opened()
    with pytest.raises(ProtocolError, match="not ours"):
        machine.received(left())


def test_a_name_conflict_fails_only_the_new_request() -> None:
    machine = durable()
    handle = machine.request("subscribe", F, name="f")
    machine.take()
    machine.received(left(StandingEntry(3, "subscribe", "f", G)))
    (failed,) = [e for e in machine.take().happened if isinstance(e, Resolved)]
    assert failed.handle == handle
    assert isinstance(failed.failure, Failure)
    assert [o.filter for o in machine.requests.in_force()] == [G]


def test_in_total_order_a_gap_is_told_and_not_filled() -> None:
    machine = durable(cursors={"P": 10}, total_order=True)
    machine.take()
    machine.received(Welcome("B1", "B1-1.2", False, 0, 60.0))
    (gap,) = [e for e in machine.take().happened if isinstance(e, Missed)]
    assert (gap.pubend, gap.first) == ("P", 11)
    machine.request("subscribe", F)
    (frame,) = machine.take().send
    assert isinstance(frame, SubscribeRequest)
    assert frame.since == {}
    with pytest.raises(MisuseError, match="total order"):
        machine.request("subscribe", G, since={"": 0})


def test_a_plain_client_that_reached_back_does_not_do_so_again_in_a_new_session() -> None:
    machine = ClientMachine("c")
    machine.opened()
    machine.received(Welcome("B1", "B1-1.1", False, 0, 30.0))
    machine.request("subscribe", F, since={"": 0})
    machine.received(Done(1))
    machine.received(Delivered("P", 20, [20], [Publication("p", 1, Raw(b""))], (1,)))
    machine.closed()
    machine.opened()
    machine.take()
    machine.received(Welcome("B1", "B1-1.2", False, 0, 30.0))
    (again,) = machine.take().send
    assert isinstance(again, SubscribeRequest)
    assert again.since == {}
