"""Examples of the frames of `protocol/notes`."""

from __future__ import annotations

from motet.protocol.frames import Frame
from motet.protocol.notes.messages import LeaveNote, Note

FRAMES: list[Frame] = [LeaveNote("buy milk", 5.0), Note("buy milk")]
