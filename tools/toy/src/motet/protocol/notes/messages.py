"""Frames of notes."""

from __future__ import annotations

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
