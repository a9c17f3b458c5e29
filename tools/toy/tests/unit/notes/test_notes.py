"""Notes in a broker: its message, facts, timer, state of a session, image and status."""

from __future__ import annotations

from typing import Any

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.broker.core.image import parts_of
from motet.broker.core.records import MACHINE_VERSION, decode_fact, decode_parts, encode
from motet.protocol.changes import Sent
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    CancelTimer,
    Closed,
    Fact,
    Output,
    Received,
    Remembered,
    SetTimer,
    TimerFired,
)
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.facts import ControlReceived
from motet.protocol.link.messages import Control
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.notes.durable import DurableNotes
from motet.protocol.notes.messages import LeaveNote, Note
from motet.protocol.session.messages import ClientHello, Goodbye
from motet.runtime import codec
from motet.testing.words import tell

CONFIG = BrokerConfig("A", ("B",))
KEY = ("note", "alice")


class Past:
    """A broker that alice has left a note at, to be read at 8."""

    def __init__(self) -> None:
        self.core = BrokerCore(CONFIG)
        self.journal = list(self.core.recover(0.0, Remembered()).persist)
        self.step(Received(2, ClientHello(PROTOCOL_VERSION, "alice")), 2.0)
        frame = codec.decode(codec.encode(LeaveNote("buy milk", 5.0)))
        assert SetTimer(KEY, 8.0) in self.step(Received(2, frame), 3.0).timers

    def step(self, given: Any, now: float) -> Output:
        out = self.core.step(given, now)
        self.journal.extend(out.persist)
        self.core.validate()
        return out

    @property
    def notes(self) -> dict[str, tuple[str, float]]:
        return self.core.durable.room(DurableNotes).state.notes


def test_a_stranger_leaves_no_note() -> None:
    past = Past()
    assert past.step(Received(1, LeaveNote("too early", 1.0)), 3.0).close
    assert past.notes == {"alice": ("buy milk", 8.0)}


def test_notes_are_replayed_and_restored() -> None:
    past = Past()
    again = Durable(CONFIG)
    again.replay(decode_fact(encode(fact)) for fact in past.journal)
    assert again.room(DurableNotes).state.notes == past.notes
    assert again.digest() == past.core.durable.digest()
    restored = Durable(CONFIG)
    restored.restore(decode_parts(MACHINE_VERSION, [encode(part) for part in parts_of(again)]))
    assert restored.digest() == again.digest()
    assert SetTimer(KEY, 8.0) in restored.recover(7.0)


def test_a_note_is_read_once_and_waits_for_its_client() -> None:
    past = Past()
    past.step(Closed(2), 7.5)
    late = past.step(TimerFired(KEY), 8.0)
    assert not late.deliver
    assert SetTimer(KEY, 9.0) in late.timers
    (session,) = past.core.durable.sessions
    past.step(Received(3, ClientHello(PROTOCOL_VERSION, "alice", session.epoch)), 8.5)
    assert past.step(TimerFired(KEY), 9.0).deliver == [(3, Note("buy milk"))]
    assert past.notes == {}


def test_a_note_ends_with_its_session() -> None:
    past = Past()
    assert CancelTimer(KEY) in past.step(Received(2, Goodbye()), 4.0).timers
    assert past.notes == {}


def test_a_note_moves_with_its_session() -> None:
    past = Past()
    (session,) = past.core.durable.sessions
    assert past.core.durable.room(DurableNotes).hand_out("bob", "A-1.9") is None
    decided = MoveDecided("alice", session.epoch, ("A", "B"), "tcp://b")
    changes = past.core.durable.apply(Fact(4.0, decided))
    (commit,) = [each.message for each in changes if isinstance(each, Sent)]
    assert past.notes == {}
    assert CancelTimer(KEY) in changes
    other = Durable(BrokerConfig("B", ("A",)))
    frame = codec.decode(codec.encode(Control(1, (commit,))))
    assert isinstance(frame, Control)
    assert SetTimer(KEY, 8.0) in other.apply(Fact(5.0, ControlReceived("A", frame, 1)))
    assert other.room(DurableNotes).state.notes == {"alice": ("buy milk", 8.0)}
    other.validate()


def test_notes_are_counted_in_the_status() -> None:
    assert Past().core.status()["note_count"] == 1


def test_notes_have_texts_for_scenarios() -> None:
    assert tell(LeaveNote("buy milk", 5.0)) == "note to be read in 5 s: buy milk"
    assert tell(Note("buy milk")) == "note: buy milk"
