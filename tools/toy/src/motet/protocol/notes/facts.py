"""Facts of notes."""

from __future__ import annotations

from msgspec import Struct


class NoteLeft(Struct, tag="note-left", array_like=True, frozen=True):
    client: str
    text: str
    at: float


class NoteRead(Struct, tag="note-read", array_like=True, frozen=True):
    client: str


NoteFact = NoteLeft | NoteRead
