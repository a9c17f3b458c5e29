"""Exactly-once deliveries at the client's machine: each tick once, in order, across connections."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Raw

from motet.client.session.machine import ClientMachine
from motet.client.session.state import Missed, StreamBatch
from motet.errors import ProtocolError
from motet.model import Filter
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    ClientHello,
    Done,
    Goodbye,
    Processed,
    Welcome,
)

F = Filter.parse("x > 1")


def events(*ticks: int) -> list[Publication]:
    return [Publication("bob", tick, Raw(str(tick).encode())) for tick in ticks]


def delivered(*ticks: int, upto: int = 0, pubend: str = "p", **more: Any) -> Delivered:
    """For subscription 1, if nothing else is said."""
    parts = {"every": () if "each" in more else (1,), **more}
    return Delivered(pubend, upto or ticks[-1], list(ticks), events(*ticks), **parts)


def welcome(epoch: str = "B1-1", resumed: bool = False) -> Welcome:
    return Welcome("B1", epoch, resumed, 0, 30.0)


def subscribed(count: int = 1) -> ClientMachine:
    """A machine with so many subscriptions in force, under handles and sequences from 1."""
    machine = ClientMachine("alice")
    machine.opened()
    machine.received(welcome())
    for sequence in range(1, count + 1):
        machine.request("subscribe", F)
        machine.received(Done(sequence))
    machine.take()
    return machine


def hear(machine: ClientMachine, *frames: Frame) -> list[Any]:
    for frame in frames:
        machine.received(frame)
    machine.validate()
    return machine.take().happened


def come_back(machine: ClientMachine, answer: Welcome) -> tuple[ClientHello, list[Frame]]:
    """Lose the connection and be welcomed again: the hello, and what is sent after it."""
    machine.closed()
    machine.opened()
    (hello,) = machine.take().send
    assert isinstance(hello, ClientHello)
    machine.received(answer)
    machine.validate()
    return hello, machine.take().send


# ── what arrives ─────────────────────────────────────────────────────────────────────────


def test_a_batch_goes_to_its_subscriptions() -> None:
    machine = subscribed(3)
    assert hear(machine, delivered(3, 5, upto=9, every=(1, 3))) == [
        StreamBatch("p", 9, [3, 5], events(3, 5), (1, 3), [])
    ]
    each = [(1,), (2, 3)]
    assert hear(machine, delivered(12, 14, each=each)) == [
        StreamBatch("p", 14, [12, 14], events(12, 14), (), each)
    ]
    assert machine.streams.received == {"p": 14}


def test_pubends_have_their_own_ticks() -> None:
    machine = subscribed()
    told = hear(machine, delivered(5), delivered(3, pubend="q"), delivered(6))
    assert [(t.pubend, t.ticks) for t in told] == [("p", [5]), ("q", [3]), ("p", [6])]
    assert machine.streams.received == {"p": 6, "q": 3}


def test_events_received_before_are_not_reported_again() -> None:
    machine = subscribed(2)
    hear(machine, delivered(3, 5, upto=6))
    assert hear(machine, delivered(3, 5, upto=6)) == []
    assert hear(machine, delivered(3, 5, upto=5)) == []
    each = [(1,), (2,), (1,), (1, 2)]
    assert hear(machine, delivered(3, 5, 7, 9, each=each)) == [
        StreamBatch("p", 9, [7, 9], events(7, 9), (), each[2:])
    ]
    assert hear(machine, delivered(5, 7, upto=12)) == []  # silence, but the cursor moves
    assert machine.streams.received == {"p": 12}
    assert hear(machine, delivered(12, 13)) == [StreamBatch("p", 13, [13], events(13), (1,), [])]


def test_a_hello_says_how_far_each_pubend_has_come() -> None:
    machine = subscribed()
    hear(machine, delivered(3, upto=6), delivered(4, pubend="q"))
    hello, _ = come_back(machine, welcome(resumed=True))
    assert (hello.resume, hello.cursors) == ("B1-1", {"p": 6, "q": 4})
    assert hear(machine, delivered(3, 7)) == [StreamBatch("p", 7, [7], events(7), (1,), [])]


def test_a_new_session_begins_new_streams() -> None:
    machine = subscribed()
    hear(machine, delivered(30, upto=60))
    machine.processed("p", 60)
    machine.take()
    _, again = come_back(machine, welcome("B1-2"))
    assert not any(isinstance(frame, Processed) for frame in again)
    assert machine.streams.received == {}
    machine.processed("p", 60)  # of the session before: nothing that the broker waits for
    assert machine.take().send == []
    assert hear(machine, Done(1), delivered(20)) == [
        StreamBatch("p", 20, [20], events(20), (1,), [])
    ]
    assert come_back(machine, welcome("B1-2", resumed=True))[0].cursors == {"p": 20}


def test_subscriptions_that_are_gone_get_nothing() -> None:
    machine = subscribed(2)
    machine.request("unsubscribe", target=1)
    hear(machine, Done(3))
    told = hear(machine, delivered(5), delivered(6, 7, each=[(1, 2), (1,)]))
    assert [(t.every, t.each) for t in told] == [((), []), ((), [(2,), ()])]


# ── what is lost ─────────────────────────────────────────────────────────────────────────


def test_losses_are_reported_in_order() -> None:
    machine = subscribed(2)
    each = [(1,), (2,), (1, 2)]
    lost = ((1, 4), (7, 7), (30, 40))
    assert hear(machine, delivered(5, 9, 20, upto=40, each=each, lost=lost)) == [
        Missed("p", 1, 4),
        StreamBatch("p", 6, [5], events(5), (), [(1,)]),
        Missed("p", 7, 7),
        StreamBatch("p", 29, [9, 20], events(9, 20), (), each[1:]),
        Missed("p", 30, 40),
    ]


def test_a_loss_is_told_once() -> None:
    machine = subscribed()
    hear(machine, delivered(5))
    lost = ((2, 3), (4, 8), (11, 12))
    frame = delivered(5, 9, 13, lost=lost)
    assert hear(machine, frame) == [
        Missed("p", 6, 8),
        StreamBatch("p", 10, [9], events(9), (1,), []),
        Missed("p", 11, 12),
        StreamBatch("p", 13, [13], events(13), (1,), []),
    ]
    assert hear(machine, frame, Delivered("p", 12, lost=((6, 12),))) == []


# ── what is processed ────────────────────────────────────────────────────────────────────


def test_the_broker_hears_only_news_of_what_is_processed() -> None:
    machine = subscribed()
    hear(machine, delivered(5, 9))
    for upto in (5, 5, 4, 100, 9):
        machine.processed("p", upto)
    machine.processed("nowhere", 7)
    # No client is done with what it has not received.
    assert machine.take().send == [Processed("p", 5), Processed("p", 9)]


def test_progress_is_reported_again_after_a_reconnect() -> None:
    machine = subscribed()
    hear(machine, delivered(5, 9), delivered(4, pubend="q"))
    machine.processed("p", 5)
    machine.take()
    machine.closed()
    machine.processed("q", 4)
    assert machine.take().send == []
    _, again = come_back(machine, welcome(resumed=True))
    assert again == [Processed("p", 5), Processed("q", 4)]
    machine.goodbye()
    machine.processed("p", 9)
    assert machine.take().send == [Goodbye()]


# ── misbehaviour ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "frame",
    [
        Delivered("p", 9, [1, 2], events(1), (1,)),
        Delivered("p", 9, [1, 2], events(1, 2), (), [(1,)]),
        Delivered("p", 1, [1, 2], events(1, 2), (1,)),
        Delivered("p", 5, lost=((4, 6),)),
    ],
)
def test_a_delivery_that_contradicts_itself_is_the_brokers_mistake(frame: Delivered) -> None:
    machine = subscribed()
    with pytest.raises(ProtocolError):
        machine.received(frame)
    assert machine.streams.received == {}


def test_nothing_is_delivered_before_the_welcome() -> None:
    machine = subscribed()
    machine.closed()
    machine.opened()
    with pytest.raises(ProtocolError):
        machine.received(delivered(5))


# ── whatever happens ─────────────────────────────────────────────────────────────────────

PUBENDS = ("p", "q")


class Redelivery(RuleBasedStateMachine):
    """A broker that delivers from its log, forgets where the client stood, and trims; connections
    that swallow frames; an application that is done with events in its own time."""

    def __init__(self) -> None:
        super().__init__()
        self.client = subscribed(2)
        self.log: dict[str, dict[int, int]] = {pubend: {} for pubend in PUBENDS}
        """By pubend and tick: the subscription that it is for."""
        self.top = dict.fromkeys(PUBENDS, 0)
        """Everything up to this tick is decided."""
        self.trimmed = dict.fromkeys(PUBENDS, 0)
        self.given = dict.fromkeys(PUBENDS, 0)
        self.acked = dict.fromkeys(PUBENDS, 0)
        self.wire: list[Frame] = []
        self.told: dict[str, list[int]] = defaultdict(list)
        self.missed: dict[str, set[int]] = defaultdict(set)
        self.last = dict.fromkeys(PUBENDS, 0)

    # ── the broker ───────────────────────────────────────────────────────────────────────

    @rule(pubend=st.sampled_from(PUBENDS), gap=st.integers(1, 3), which=st.integers(1, 2))
    def publish(self, pubend: str, gap: int, which: int) -> None:
        self.top[pubend] += gap
        self.log[pubend][self.top[pubend]] = which

    @rule(pubend=st.sampled_from(PUBENDS), share=st.floats(0, 1))
    def trim(self, pubend: str, share: float) -> None:
        self.trimmed[pubend] = max(self.trimmed[pubend], int(share * self.top[pubend]))

    @precondition(lambda self: self.client.state == "open")
    @rule(pubend=st.sampled_from(PUBENDS), length=st.integers(1, 12))
    def deliver(self, pubend: str, length: int) -> None:
        since, upto = self.given[pubend], min(self.given[pubend] + length, self.top[pubend])
        if since == upto:
            return
        gone = min(upto, self.trimmed[pubend])
        ticks = [t for t in self.log[pubend] if max(since, gone) < t <= upto]
        which = [(self.log[pubend][tick],) for tick in ticks]
        lost = ((since + 1, gone),) if gone > since else ()
        same = len(set(which)) == 1
        every, each = (which[0], []) if same else ((), which)
        frame = Delivered(pubend, upto, ticks, events(*ticks), every, each, lost)
        self.wire.append(frame)
        self.given[pubend] = upto

    @precondition(lambda self: self.wire)
    @rule(count=st.integers(1, 4))
    def arrive(self, count: int) -> None:
        for frame in self.wire[:count]:
            self.client.received(frame)
        del self.wire[:count]

    # ── the connection ───────────────────────────────────────────────────────────────────

    @rule(forgetful=st.booleans())
    def reconnect(self, forgetful: bool) -> None:
        """The client's cursor counts, or only what it has acknowledged, if the broker is new."""
        self.wire.clear()
        self.collect()
        self.client.closed()
        self.client.opened()
        (hello,) = self.client.take().send
        assert isinstance(hello, ClientHello)
        for pubend in PUBENDS:
            cursor = hello.cursors.get(pubend, 0)
            assert cursor >= self.acked[pubend]
            self.given[pubend] = self.acked[pubend] if forgetful else cursor
        self.client.received(welcome(resumed=True))

    # ── the application ──────────────────────────────────────────────────────────────────

    @rule(pubend=st.sampled_from(PUBENDS), share=st.floats(0, 1))
    def process(self, pubend: str, share: float) -> None:
        self.client.processed(pubend, int(share * self.client.streams.received.get(pubend, 0)))

    # ── what must hold ───────────────────────────────────────────────────────────────────

    @invariant()
    def collect(self) -> None:
        effects = self.client.take()
        self.client.validate()
        for frame in effects.send:
            assert isinstance(frame, Processed)
            assert frame.upto <= self.client.streams.received[frame.pubend]
            self.acked[frame.pubend] = max(self.acked[frame.pubend], frame.upto)
        for told in effects.happened:
            if isinstance(told, StreamBatch):
                self.told[told.pubend] += told.ticks
                which = told.each or [told.every] * len(told.ticks)
                assert which == [(self.log[told.pubend][tick],) for tick in told.ticks]
                assert self.last[told.pubend] < told.ticks[0] <= told.ticks[-1] <= told.upto
                self.last[told.pubend] = told.upto
            elif isinstance(told, Missed):
                assert self.last[told.pubend] < told.first <= told.last
                self.last[told.pubend] = told.last
                self.missed[told.pubend] |= set(range(told.first, told.last + 1))

    @invariant()
    def each_tick_once_in_order(self) -> None:
        for pubend in PUBENDS:
            upto = self.client.streams.received.get(pubend, 0)
            expected = [t for t in self.log[pubend] if t <= upto and t not in self.missed[pubend]]
            assert self.told[pubend] == expected
            assert all(tick <= self.trimmed[pubend] for tick in self.missed[pubend])


Redelivery.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestRedelivery = Redelivery.TestCase
