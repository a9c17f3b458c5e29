"""Durable state of notes."""

from __future__ import annotations

from msgspec import Struct, field


class NoteState(Struct):
    notes: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By client: the text, and when it is to be read."""


class MovingNote(Struct, array_like=True, frozen=True):
    """The note of a session that moves to another broker."""

    text: str
    at: float
