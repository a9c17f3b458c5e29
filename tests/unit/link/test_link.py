"""The link machine alone: two ends and a bad network between them."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from motet.errors import ProtocolError, StaleState
from motet.model import OpId
from motet.protocol.contract import Output, SetTimer
from motet.protocol.link.machine import MOVES, Ledger, Link, Phase
from motet.protocol.link.messages import Control, ControlAck, LinkHello, Publications
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import Echo

EVENTS = ("dialled", "hello", "control", "ack", "publications", "question", "closed")


def message(number: int) -> Echo:
    return Echo(OpId("c", "A-1", number))


def linked(incarnation: int = 7) -> Link:
    """A link that is up on connection 1 with a neighbour in its first life."""
    link = Link("A", Ledger("B", incarnation))
    link.ledger.restart(1)
    link.open(1)
    link.soft.phase = Phase.UP
    return link


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, EVENTS)))
def test_every_move_is_in_the_table_or_an_error_with_a_name(phase: Phase, event: str) -> None:
    link = linked()
    link.soft.phase = phase
    if (phase, event) in MOVES:
        link.move(event)
        assert link.soft.phase is MOVES[phase, event][1]
    else:
        with pytest.raises(ProtocolError, match=f"B sent {event} while the link is {phase.value}"):
            link.move(event)
        assert link.soft.phase is phase


def test_nothing_is_queued_for_a_neighbour_never_met() -> None:
    ledger = Ledger("B", life=1)
    ledger.enqueue(message(1))
    assert (ledger.record.sent, len(ledger.outbox)) == (0, 0)


def test_control_is_taken_once_and_in_order() -> None:
    ledger = linked().ledger
    assert ledger.take(Control(1, (message(1), message(2)))) == (message(1), message(2))
    assert ledger.take(Control(1, (message(1), message(2)))) == ()
    assert ledger.take(Control(4, (message(4),))) == (), "a gap: wait until it is sent again"
    assert ledger.take(Control(2, (message(2), message(3)))) == (message(3),)
    assert ledger.record.received == 3


def test_silence_sends_again_with_growing_patience() -> None:
    link, out = linked(), Output()
    link.ledger.enqueue(message(1))
    link.transmit(out, now=10.0)
    link.alarm(out, now=11.0)
    link.alarm(out, now=13.0)
    assert [frame for _, frame in out.send] == [Control(1, (message(1),))] * 3
    assert [t.at for t in out.timers if isinstance(t, SetTimer)] == [11.0, 13.0, 17.0]


def test_an_acknowledgement_of_the_future_is_the_peers_fault() -> None:
    link = linked()
    with pytest.raises(ProtocolError, match="never sent"):
        link.acknowledged(ControlAck(1), Output(), now=0.0)


def known_to_have(acknowledged: int, *, sent: int = 3) -> Link:
    """A link in our life 7 with a neighbour in its life 5."""
    link = linked(incarnation=7)
    link.ledger.restart(5)
    for number in range(1, sent + 1):
        link.ledger.enqueue(message(number))
    link.ledger.trim(acknowledged)
    link.soft.offered = 3
    return link


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (LinkHello(1, "B", 5, known=7, received=0), "has acknowledged 1 .* has only 0"),
        (LinkHello(1, "B", 5, known=6, received=9), "has acknowledged 1 .* has only 0"),
        (LinkHello(1, "B", 5, known=0, received=0), "has acknowledged 1 .* has only 0"),
        (LinkHello(1, "B", 4, known=7, received=2), "life 5, but it comes in life 4"),
        (LinkHello(1, "B", 4, known=0, received=0), "life 5, but it comes in life 4"),
    ],
)
def test_a_neighbour_on_an_older_copy_of_its_state_is_turned_away(
    hello: LinkHello, why: str
) -> None:
    objection = known_to_have(1).objection(hello)
    assert objection is not None
    assert objection.error == "StaleState"
    assert re.search(why, objection.text)
    assert "B runs on an older copy of its state" in objection.text
    assert "stop B, move its data folder away, and start it without" in objection.text


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (LinkHello(1, "B", 5, known=7, received=4), "has 4 .* sent only 3"),
        (LinkHello(1, "B", 6, known=7, received=1), "has 1 .* sent only 0"),
        (LinkHello(1, "B", 5, known=8, received=0), "in life 8, but we are in life 7"),
        (LinkHello(1, "B", 6, known=8, received=0), "in life 8, but we are in life 7"),
    ],
)
def test_on_an_older_copy_of_our_own_state_we_stop_ourselves(hello: LinkHello, why: str) -> None:
    with pytest.raises(StaleState, match=why) as caught:
        known_to_have(1).objection(hello)
    assert "stop A, move its data folder away, and start it without" in str(caught.value)


def test_an_acknowledged_message_that_was_never_sent_shows_stale_state() -> None:
    """An older copy of us reuses a number before it meets the neighbour that has the first one."""
    link = known_to_have(1)
    link.ledger.enqueue(message(4))
    with pytest.raises(StaleState, match=r"has 4 .* sent only 3"):
        link.objection(LinkHello(1, "B", 5, known=7, received=4))


@pytest.mark.parametrize(
    "hello",
    [
        LinkHello(1, "B", 5, known=7, received=1),
        LinkHello(1, "B", 5, known=7, received=3),
        LinkHello(1, "B", 6, known=7, received=0),
        LinkHello(1, "B", 6, known=6, received=40),
        LinkHello(1, "B", 6, known=0, received=0),
    ],
    ids=["as acknowledged", "all of it", "met us, we forgot", "gave us up", "lost its state"],
)
def test_a_neighbour_that_can_continue_or_rejoin_is_accepted(hello: LinkHello) -> None:
    assert known_to_have(1).objection(hello) is None


@pytest.mark.parametrize("known", [0, 6])
def test_a_neighbour_that_crashed_before_recording_the_link_is_accepted(known: int) -> None:
    hello = LinkHello(1, "B", 5, known=known, received=0)
    assert known_to_have(0).objection(hello) is None


def test_a_neighbour_that_is_given_up_is_never_met_in_our_next_life() -> None:
    link = known_to_have(1)
    link.ledger.lose(8)
    link.ledger.enqueue(message(4))
    record = link.ledger.record
    assert (record.life, record.incarnation, record.sent, record.received) == (8, 0, 0, 0)
    assert (record.losses, list(link.ledger.outbox)) == (1, [])


def test_the_kept_count_is_the_unacknowledged_messages_since_the_start() -> None:
    link = linked()
    for number in (1, 2, 3):
        link.ledger.enqueue(message(number))
    link.transmit(Output(), now=0.0)
    link.acknowledged(ControlAck(2), Output(), now=0.0)
    assert link.kept == 1
    recovered = Link("A", link.ledger)
    assert recovered.kept == 0, "after a recovery nobody knows what was acknowledged"
    link.ledger.enqueue(message(4))
    assert recovered.kept == 1
    recovered.resume(LinkHello(1, "B", 1, known=7, received=2), Output(), now=0.0)
    assert recovered.kept == 2, "now the neighbour has said so"


def test_counts_for_an_earlier_incarnation_are_ignored() -> None:
    link, out = linked(incarnation=7), Output()
    link.ledger.enqueue(message(1))
    link.resume(LinkHello(1, "B", 1, known=6, received=40), out, now=0.0)
    assert out.send == [(1, Control(1, (message(1),)))]


def test_a_duplicate_late_or_early_publication_is_dropped() -> None:
    link = linked()
    batch = [Publication("p", 1, Raw(b"\x90"))]
    assert link.admit(Publications(2, 0, batch))
    assert not link.admit(Publications(2, 0, batch)), "doubled"
    assert not link.admit(Publications(1, 0, batch)), "late"
    assert not link.admit(Publications(3, 1, batch)), "control #1 is still missing"
    assert link.soft.overtaken == 1


def test_publications_for_a_link_that_is_down_are_counted() -> None:
    link, out = linked(), Output()
    link.soft.phase = Phase.DOWN
    link.publish([Publication("p", 1, Raw(b"\x90"))], out)
    assert (out.send, link.soft.lost) == ([], 1)


FATES = st.lists(st.sampled_from(["pass", "lose", "double", "swap", "break"]), max_size=60)


@given(count=st.integers(1, 12), fates=FATES)
@settings(max_examples=150, deadline=None)
def test_control_messages_arrive_once_and_in_order_on_any_network(
    count: int, fates: list[str]
) -> None:
    """The sender's numbered messages against any fate of the frames; then the network heals."""
    sender, receiver = linked(), linked()
    arrived: list[object] = []
    wire: list[object] = []
    out = Output()

    def pump(fate: str) -> None:
        wire.extend(frame for _, frame in out.send)
        out.send.clear()
        if fate == "break":
            wire.clear()
            sender.open(sender.soft.connection + 1)
            sender.move("hello")
            hello = LinkHello(1, "B", 1, known=7, received=receiver.ledger.record.received)
            sender.resume(hello, out, now=0.0)
            return
        if fate == "swap" and len(wire) > 1:
            wire[0], wire[1] = wire[1], wire[0]
        if not wire:
            sender.alarm(out, now=0.0)
            return
        frame = wire.pop(0)
        for _ in range({"lose": 0, "double": 2}.get(fate, 1)):
            if isinstance(frame, Control):
                arrived.extend(receiver.ledger.take(frame))
                wire.append(ControlAck(receiver.ledger.record.received))
            elif isinstance(frame, ControlAck):
                sender.acknowledged(frame, out, now=0.0)

    for number in range(1, count + 1):
        sender.ledger.enqueue(message(number))
        sender.transmit(out, now=0.0)
        pump(fates[number] if number < len(fates) else "pass")
    for fate in fates[count:]:
        pump(fate)
    for _ in range(6 * count + 60):
        pump("pass")
    assert arrived == [message(number) for number in range(1, count + 1)]
    assert not sender.ledger.outbox
