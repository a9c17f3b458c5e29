"""What facts do to notes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from motet.protocol.changes import SessionClosed, SessionDeparted
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.notes.facts import NoteLeft, NoteRead
from motet.protocol.notes.state import MovingNote, NoteState
from motet.protocol.room import Bus, DurableRoom, Handler


class DurableNotes(DurableRoom):
    name = "notes"
    moving = MovingNote

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.state = NoteState()

    def facts(self) -> Mapping[type, Handler]:
        return {NoteLeft: self._left, NoteRead: self._read}

    def reactions(self) -> Mapping[type, Handler]:
        return {SessionClosed: self._closed, SessionDeparted: self._closed}

    def _left(self, fact: NoteLeft) -> None:
        self.state.notes[fact.client] = (fact.text, fact.at)
        self._bus.emit(SetTimer(("note", fact.client), fact.at))

    def _closed(self, closed: SessionClosed | SessionDeparted) -> None:
        if self.state.notes.pop(closed.client, None) is not None:
            self._bus.emit(CancelTimer(("note", closed.client)))

    def _read(self, fact: NoteRead) -> None:
        del self.state.notes[fact.client]

    def image(self) -> bytes:
        return msgspec.msgpack.encode(self.state) if self.state.notes else b""

    def restore(self, image: bytes) -> None:
        self.state = msgspec.msgpack.decode(image, type=NoteState)

    def hand_out(self, client: str, epoch: str) -> MovingNote | None:
        del epoch  # a note ends with its session: that of an older epoch is gone
        note = self.state.notes.get(client)
        return None if note is None else MovingNote(*note)

    def take_in(self, client: str, epoch: str, part: Struct) -> None:
        del epoch
        assert isinstance(part, MovingNote)
        self._left(NoteLeft(client, part.text, part.at))

    def recover(self, now: float) -> list[SetTimer]:
        del now
        return [SetTimer(("note", each), at) for each, (_, at) in self.state.notes.items()]
