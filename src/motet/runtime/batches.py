"""Fewer, larger frames: what several frames of one read may become without changing meaning.

A batch in one frame costs a hop far less than the same events one by one. So neighbouring frames
of publications are joined on the way in, before the core sees them, and neighbouring deliveries
on the way out. Frames that would be too large are cut; both keep order and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from motet.errors import FrameError, PeerError, ProtocolError
from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control, ControlAck, Publications
from motet.protocol.session.messages import Deliver, Publish, Published
from motet.runtime.codec import decode, encode
from motet.runtime.transport import MAX_FRAME_BYTES

FRAME_EVENTS = 4096
"""Events that a client may publish in one frame. Even if all are refused, with reasons, that does
not keep others waiting."""
STEP_EVENTS = 1024
STEP_BYTES = 1024 * 1024
"""What the core gets in one step. Events grow a little from hop to hop (names are added), and
this keeps what comes out of a step well below the limit of a frame."""


# ── in ───────────────────────────────────────────────────────────────────────────────────


def decoded(bodies: Sequence[bytes]) -> tuple[list[Frame], PeerError | None]:
    """The frames of one read, up to the first that is not one, and what was wrong with it."""
    frames: list[Frame] = []
    room = 0
    """Bytes that may still be joined to the last frame; 0 if it takes none."""
    for body in bodies:
        try:
            frame = decode(body)
        except PeerError as error:
            return frames, error
        kind = type(frame)
        if type(frame) is Publish and len(frame.bodies) > FRAME_EVENTS:
            text = f"{len(frame.bodies)} events in one frame; at most {FRAME_EVENTS} are taken"
            return frames, ProtocolError(text)
        if kind is not Publish and kind is not Publications:
            room = 0
            frames.append(frame)
            continue
        size = len(body)
        if size <= room and (joined := _JOIN_IN[kind](frames[-1], frame)) is not None:
            frames[-1] = joined
            room -= size
        else:
            frames.extend(_cut_in(frame, size))
            room = STEP_BYTES - size
    return frames, None


def _join_publish(before: Any, after: Publish) -> Frame | None:
    if type(before) is not Publish or after.first != before.first + len(before.bodies):
        return None
    if before.sure != after.sure:
        return None
    if len(before.bodies) + len(after.bodies) > STEP_EVENTS:
        return None
    before.bodies.extend(after.bodies)  # fresh from the decoder, so ours alone
    return before


def _join_publications(before: Any, after: Publications) -> Frame | None:
    if (
        type(before) is not Publications
        or after.number != before.number + 1
        or after.after != before.after
        or len(before.batch) + len(after.batch) > STEP_EVENTS
    ):
        return None
    before.batch.extend(after.batch)
    return Publications(after.number, after.after, before.batch)


_JOIN_IN: dict[type, Callable[[Any, Any], Frame | None]] = {
    Publish: _join_publish,
    Publications: _join_publications,
}


def _cut_in(frame: Frame, size: int) -> Iterable[Frame]:
    """Only a client's frames need it: a neighbour has cut its own."""
    if type(frame) is not Publish or (size <= STEP_BYTES and len(frame.bodies) <= STEP_EVENTS):
        return (frame,)
    pieces: list[Frame] = []
    first, held, held_bytes = frame.first, 0, 0
    for index, body in enumerate(frame.bodies):
        body_bytes = len(memoryview(body))
        if held and (held == STEP_EVENTS or held_bytes + body_bytes > STEP_BYTES):
            pieces.append(Publish(first, frame.bodies[index - held : index], frame.sure))
            first, held, held_bytes = first + held, 0, 0
        held += 1
        held_bytes += body_bytes
    pieces.append(Publish(first, frame.bodies[len(frame.bodies) - held :], frame.sure))
    return pieces


# ── out ──────────────────────────────────────────────────────────────────────────────────


def joined(frames: list[Frame]) -> list[Frame]:
    """Neighbouring frames of the same kind as one, where that says the same."""
    if len(frames) < 2:
        return frames
    result = [frames[0]]
    for frame in frames[1:]:
        join = _JOIN_OUT.get(type(frame))
        both = join(result[-1], frame) if join is not None else None
        if both is None:
            result.append(frame)
        else:
            result[-1] = both
    return result


def _join_deliver(before: Any, after: Deliver) -> Frame | None:
    if type(before) is not Deliver or len(before.batch) + len(after.batch) > STEP_EVENTS:
        return None
    return Deliver(before.batch + after.batch, max(before.dropped, after.dropped))


def _join_published(before: Any, after: Published) -> Frame | None:
    if type(before) is not Published or len(before.refused) + len(after.refused) > STEP_EVENTS:
        return None
    return Published(after.upto, before.refused + after.refused)


def _join_ack(before: Any, after: ControlAck) -> Frame | None:
    return after if type(before) is ControlAck else None


_JOIN_OUT: dict[type, Callable[[Any, Any], Frame | None]] = {
    Deliver: _join_deliver,
    Published: _join_published,
    ControlAck: _join_ack,
}
"""Publications are missing on purpose: what arrives joined leaves joined."""


def encoded(frame: Frame) -> tuple[list[bytes], int]:
    """The frame as one body, or as several if it would be too large, and how many events had to
    be left out: those that fit no frame even alone. `FrameError` if anything else does not fit."""
    body = encode(frame)
    if len(body) <= MAX_FRAME_BYTES:
        return [body], 0
    halves = _halves(frame)
    if not halves:
        if isinstance(frame, Deliver | Publications):
            return [], len(frame.batch)
        raise FrameError(
            f"a {type(frame).__name__} of {len(body)} bytes cannot be cut, and a frame holds "
            f"{MAX_FRAME_BYTES}"
        )
    parts, lost = encoded(halves[0])
    more, more_lost = encoded(halves[1])
    return parts + more, lost + more_lost


def _halves(frame: Frame) -> tuple[Frame, Frame] | None:
    if isinstance(frame, Deliver) and len(frame.batch) > 1:
        middle = len(frame.batch) // 2
        return (
            Deliver(frame.batch[:middle], frame.dropped),
            Deliver(frame.batch[middle:], frame.dropped),
        )
    if isinstance(frame, Control) and len(frame.messages) > 1:
        middle = len(frame.messages) // 2
        return (
            Control(frame.first, frame.messages[:middle]),
            Control(frame.first + middle, frame.messages[middle:]),
        )
    if isinstance(frame, Published) and len(frame.refused) > 1:
        middle = len(frame.refused) // 2  # they are in the order of their numbers
        return (
            Published(frame.refused[middle - 1].sequence, frame.refused[:middle]),
            Published(frame.upto, frame.refused[middle:]),
        )
    return None
