"""A new protocol touches tables only: a toy is added to a copy of the source, and works.

Notes: a client leaves a note (one message), which is kept with its session (facts, state that is
bound to a session) and read back to it once, after a while (one timer).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

MESSAGES = """
from msgspec import Struct

from motet.protocol.traits import CLIENT, frame


@frame(senders=CLIENT)
class LeaveNote(Struct, tag="note+", array_like=True, frozen=True):
    text: str
    after_s: float


@frame()
class Note(Struct, tag="note", array_like=True, frozen=True):
    text: str


NoteFrame = LeaveNote | Note


class NoteLeft(Struct, tag="note-left", array_like=True, frozen=True):
    client: str
    text: str
    at: float


class NoteRead(Struct, tag="note-read", array_like=True, frozen=True):
    client: str
"""

DURABLE = """
from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from motet.protocol.changes import SessionClosed
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.notes.messages import NoteLeft, NoteRead
from motet.protocol.room import Bus, DurableRoom, Handler


class NoteState(Struct):
    notes: dict[str, tuple[str, float]] = field(default_factory=dict)


class DurableNotes(DurableRoom):
    name = "notes"

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.state = NoteState()

    def facts(self) -> Mapping[type, Handler]:
        return {NoteLeft: self._left, NoteRead: self._read}

    def reactions(self) -> Mapping[type, Handler]:
        return {SessionClosed: self._closed}

    def _left(self, fact: NoteLeft) -> None:
        self.state.notes[fact.client] = (fact.text, fact.at)
        self._bus.emit(SetTimer(("note", fact.client), fact.at))

    def _closed(self, closed: SessionClosed) -> None:
        if self.state.notes.pop(closed.client, None) is not None:
            self._bus.emit(CancelTimer(("note", closed.client)))

    def _read(self, fact: NoteRead) -> None:
        del self.state.notes[fact.client]

    def image(self) -> bytes:
        return msgspec.msgpack.encode(self.state) if self.state.notes else b""

    def restore(self, image: bytes) -> None:
        self.state = msgspec.msgpack.decode(image, type=NoteState)

    def recover(self, now: float) -> list[SetTimer]:
        return [SetTimer(("note", each), at) for each, (_, at) in self.state.notes.items()]
"""

SOFT = """
from motet.protocol.shared import SharedState
from motet.protocol.notes.durable import DurableNotes
from motet.protocol.contract import SetTimer
from motet.protocol.notes.messages import LeaveNote, Note, NoteLeft, NoteRead
from motet.protocol.room import SoftRoom


class SoftNotes(SoftRoom):
    def __init__(self, shared: SharedState, notes: DurableNotes) -> None:
        self._shared = shared
        self._notes = notes

    def frames(self):
        return {LeaveNote: self._leave}

    def timers(self):
        return {"note": self._read}

    def _leave(self, connection, peer, frame, out, now):
        self._shared.journal(NoteLeft(peer.name, frame.text, now + frame.after_s), out, now)

    def _read(self, key, out, now):
        client = key[1]
        text, _ = self._notes.state.notes[client]
        connection = self._shared.clients[client].connection
        if connection:  # else it is read when the client is back
            self._shared.journal(NoteRead(client), out, now)
            out.deliver.append((connection, Note(text)))
        else:
            out.timers.append(SetTimer(key, now + 1.0))
"""

TABLES = {
    "src/motet/protocol/frames.py": (
        ("Frame = LinkFrame", "Frame = NoteFrame | LinkFrame"),
        (
            "from motet.protocol.reading.messages",
            "from motet.protocol.notes.messages import NoteFrame\n"
            "from motet.protocol.reading.messages",
        ),
    ),
    "src/motet/broker/core/protocols.py": (
        (
            "PROTOCOLS: tuple[BrokerProtocol, ...] = (\n",
            "PROTOCOLS: tuple[BrokerProtocol, ...] = (\n"
            "    BrokerProtocol(\n"
            "        (NoteLeft, NoteRead),\n"
            "        (DurableNotes, lambda d: DurableNotes(d)),\n"
            "        (SoftNotes, lambda b: SoftNotes(b.shared, b.durable.room(DurableNotes))),\n"
            "    ),\n",
        ),
        (
            "from motet.protocol.room import",
            "from motet.protocol.notes.soft import SoftNotes\n"
            "from motet.protocol.notes.durable import DurableNotes\n"
            "from motet.protocol.notes.messages import NoteLeft, NoteRead\n"
            "from motet.protocol.room import",
        ),
    ),
}
"""Rows in tables, by existing file: all that the source needs."""

EXISTING_FILES_TOUCHED = (
    "src/motet/protocol/frames.py",
    "src/motet/broker/core/protocols.py",
    "tools/rooms.py",
    "docs/architecture.md",
)
"""The two tables; and the table of who may import whom, with the map of rooms made from it."""

PROGRAM = """
from motet.broker.core.broker import BrokerCore
from motet.protocol.config import BrokerConfig
from motet.broker.core.durable import Durable
from motet.broker.core.image import parts_of
from motet.broker.core.records import decode_fact, decode_parts, encode, MACHINE_VERSION
from motet.protocol.contract import Remembered
from motet.protocol.contract import CancelTimer, Closed, Received, SetTimer, TimerFired
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.notes.durable import DurableNotes
from motet.protocol.notes.messages import LeaveNote, Note
from motet.protocol.session.messages import ClientHello, Goodbye
from motet.runtime import codec

config = BrokerConfig("A")
core = BrokerCore(config)
journal = list(core.recover(0.0, Remembered()).persist)

def step(given, now):
    out = core.step(given, now)
    journal.extend(out.persist)
    return out

assert step(Received(1, LeaveNote("too early", 1.0)), 1.0).close, "a stranger may not send it"
step(Received(2, ClientHello(PROTOCOL_VERSION, "alice")), 2.0)
frame = codec.decode(codec.encode(LeaveNote("buy milk", 5.0)))
out = step(Received(2, frame), 3.0)
assert SetTimer(("note", "alice"), 8.0) in out.timers

again = Durable(config)
again.replay(decode_fact(encode(fact)) for fact in journal)
assert again.room(DurableNotes).state.notes == {"alice": ("buy milk", 8.0)}
assert again.digest() == core.durable.digest()
restored = Durable(config)
restored.restore(decode_parts(MACHINE_VERSION, [encode(part) for part in parts_of(again)]))
assert restored.digest() == again.digest()
assert SetTimer(("note", "alice"), 8.0) in restored.recover(7.0)

step(Closed(2), 7.5)
late = step(TimerFired(("note", "alice")), 8.0)
assert not late.deliver and SetTimer(("note", "alice"), 9.0) in late.timers, "nobody is connected"
(session,) = core.durable.sessions
step(Received(3, ClientHello(PROTOCOL_VERSION, "alice", session.epoch)), 8.5)
assert step(TimerFired(("note", "alice")), 9.0).deliver == [(3, Note("buy milk"))]
assert core.durable.room(DurableNotes).state.notes == {}, "it is read once"

step(Received(3, LeaveNote("call bob", 5.0)), 10.0)
assert CancelTimer(("note", "alice")) in step(Received(3, Goodbye()), 11.0).timers
assert core.durable.room(DurableNotes).state.notes == {}
core.validate()
print("works")
"""


def test_a_toy_protocol_needs_rows_in_tables_and_nothing_else(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    room = tmp_path / "src/motet/protocol/notes"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "messages.py").write_text(MESSAGES)
    (room / "durable.py").write_text(DURABLE)
    (room / "soft.py").write_text(SOFT)
    for name, rows in TABLES.items():
        text = (tmp_path / name).read_text()
        for before, after in rows:
            assert text.count(before) == 1, f"{name}: {before!r}"
            text = text.replace(before, after)
        (tmp_path / name).write_text(text)
    surroundings = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=surroundings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "works\n"


def test_a_new_protocol_touches_at_most_six_existing_files() -> None:
    assert set(TABLES) <= set(EXISTING_FILES_TOUCHED)
    assert len(EXISTING_FILES_TOUCHED) == 4
    assert all((ROOT / name).exists() for name in EXISTING_FILES_TOUCHED)
