"""Which frames of clients become notes, and when a note is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from motet.protocol.contract import Output, SetTimer
from motet.protocol.notes.durable import DurableNotes
from motet.protocol.notes.facts import NoteLeft, NoteRead
from motet.protocol.notes.messages import LeaveNote, Note
from motet.protocol.room import Peer, SoftRoom
from motet.protocol.shared import SharedState


class SoftNotes(SoftRoom):
    def __init__(self, shared: SharedState, notes: DurableNotes) -> None:
        self._shared = shared
        self._notes = notes

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {LeaveNote: self._leave}

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"note": self._read}

    def account(self) -> dict[str, Any]:
        return {"note_count": len(self._notes.state.notes)}

    def _leave(
        self, connection: int, peer: Peer, frame: LeaveNote, out: Output, now: float
    ) -> None:
        del connection
        self._shared.journal(NoteLeft(peer.name, frame.text, now + frame.after_s), out, now)

    def _read(self, key: tuple[str, str], out: Output, now: float) -> None:
        client = key[1]
        text, _ = self._notes.state.notes[client]
        connection = self._shared.clients[client].connection
        if connection:  # else it is read when the client is back
            self._shared.journal(NoteRead(client), out, now)
            out.deliver.append((connection, Note(text)))
        else:
            out.timers.append(SetTimer(key, now + 1.0))
