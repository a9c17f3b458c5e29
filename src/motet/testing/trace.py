"""The trace of a run: every step, hashed; and the story, if it is asked for.

Two runs of one seed must give the same hash, in any process. A frame is hashed when it leaves a
machine; on arrival only time, order and connection are, which identify it.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import pack
from typing import Any

import msgspec

from motet.model import Filter
from motet.protocol.contract import (
    Close,
    Closed,
    Dialled,
    Input,
    Logged,
    LogRead,
    Output,
    Persisted,
    Received,
    Reconfigured,
    RowsRead,
    StagingChecked,
    TimerFired,
)
from motet.protocol.frames import Frame
from motet.protocol.link.messages import ControlAck
from motet.testing.words import tell

FOLD_AFTER = 512

_texts: dict[Filter, str] = {}


def _text(value: object) -> Any:
    assert isinstance(value, Filter)
    text = _texts.get(value)
    if text is None:
        text = _texts[value] = str(value)
    return text


_encode = msgspec.msgpack.Encoder(enc_hook=_text).encode


class Trace:
    """`story` is None unless it is asked for: writing it costs more than the steps themselves."""

    def __init__(self, *, story: bool = False) -> None:
        self.steps = 0
        self.story: list[str] | None = [] if story else None
        self._hash = blake2b(digest_size=16)
        self._parts: list[bytes] = []

    def digest(self) -> str:
        self._hash.update(b"".join(self._parts))
        self._parts.clear()
        return self._hash.hexdigest()

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def broker(self, at: float, name: str, given: Input, out: Output) -> None:
        self.steps += 1
        parts = self._parts
        parts.append(pack("<d", at))
        parts.append(name.encode())
        if type(given) is Received:
            parts.append(_label(given.connection, type(given.frame)))
        else:
            parts.append(_encode((type(given).__name__, *given)))
        for number, frame in out.send:
            parts.append(_label(number, type(frame)))
            parts.append(_encode(frame))
        for number, frame in out.deliver:
            parts.append(_label(number, type(frame)))
            parts.append(_encode(frame))
        if out.persist or out.timers or out.close:
            parts.append(_encode((len(out.persist), out.timers, out.close)))
        if len(parts) > FOLD_AFTER:
            self._fold()

    def client(self, at: float, name: str, what: str, frames: list[Frame]) -> None:
        self.steps += 1
        parts = self._parts
        parts.append(pack("<d", at))
        parts.append(f"{name} {what}".encode())
        if frames:
            parts.append(_encode(frames))

    def note(self, at: float, text: str) -> None:
        """A fault, or a stage of the run."""
        self._parts.append(text.encode())
        if self.story is not None:
            self.story.append(f"{at:9.4f}  ** {text}")

    def _fold(self) -> None:
        self._hash.update(b"".join(self._parts))
        self._parts.clear()

    # ── story ────────────────────────────────────────────────────────────────────────────

    def tell_broker(
        self, at: float, name: str, given: Input, out: Output, peers: dict[int, str]
    ) -> None:
        assert self.story is not None
        if isinstance(given, Received) and isinstance(given.frame, ControlAck) and not out.persist:
            return  # there are too many of them, and most change nothing
        self.story.append(f"{at:9.4f}  {name}: {_came_in(given, peers)}")
        if out.persist:
            kinds = ", ".join(type(fact.body).__name__ for fact in out.persist)
            self.story.append(f"{'':9}      writes down {kinds}")
        for number, frame in (*out.send, *out.deliver):
            if isinstance(frame, ControlAck):
                continue
            self.story.append(f"{'':9}      to {peers.get(number, '?')}: {tell(frame)}")
        for close in out.close:
            self.story.append(f"{'':9}      {_closing(close, peers)}")

    def tell_client(self, at: float, name: str, what: str, frames: list[Frame]) -> None:
        assert self.story is not None
        self.story.append(f"{at:9.4f}  {name}: {what}")
        self.story.extend(f"{'':9}      says: {tell(frame)}" for frame in frames)


_labels: dict[tuple[int, type], bytes] = {}


def _label(number: int, kind: type) -> bytes:
    label = _labels.get((number, kind))
    if label is None:
        label = _labels[number, kind] = f" {number} {kind.__name__} ".encode()
    return label


def _came_in(given: Input, peers: dict[int, str]) -> str:
    match given:
        case Received(connection, frame):
            return f"from {peers.get(connection, '?')}: {tell(frame)}"
        case Dialled(_, neighbour):
            return f"has a connection to {neighbour}"
        case Closed(connection):
            return f"the connection to {peers.get(connection, '?')} is gone"
        case TimerFired(("link", neighbour)):
            return f"has waited long enough for {neighbour}"
        case TimerFired(key):
            return f"the timer {' '.join(map(str, key))} rings"
        case Reconfigured(neighbours):
            return f"now has these neighbours: {', '.join(neighbours) or 'none'}"
        case Logged(records):
            return f"{records} records of its pubend are durable"
        case LogRead(want, _):
            return f"its pubend was read from {want.since} to {want.upto}"
        case Persisted(upto):
            return f"has reserved its ticks up to {upto}"
        case StagingChecked(_, refused):
            if refused is None:
                return "all is staged"
            return f"cannot commit what is staged: {refused.error}: {refused.text}"
        case RowsRead(tx, at, bodies):
            return f"has read rows {at} to {at + len(bodies) - 1} of {tx}"


def _closing(close: Close, peers: dict[int, str]) -> str:
    reason = close.text if not close.error else f"{close.error}: {close.text}"
    return f"closes the connection to {peers.get(close.connection, '?')}: {reason}"
