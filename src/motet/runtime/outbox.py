"""What one connection still has to say, and when it may.

Frames leave in the order they were put in. A frame waits until the facts it rests on are durable,
and everything put in behind it waits with it. All that may leave goes out in one write.
Events are dropped, and counted, while too much waits: for the other side, or for the journal.
"""

from __future__ import annotations

from collections import deque

from motet.errors import FrameError
from motet.protocol.cell.messages import Said, Standing
from motet.protocol.delivery.messages import AckExpected, Delivered, Knowledge, Nack
from motet.protocol.frames import Beat, Frame
from motet.protocol.link.messages import Publications
from motet.protocol.reading.messages import CursorSet, Described, ReadAnswer, Refused
from motet.protocol.session.messages import Deliver, Goodnight, HowFar, Published, Status
from motet.runtime.batches import encoded, joined
from motet.runtime.codec import encode
from motet.runtime.traffic import Traffic, events_of
from motet.runtime.transport import MAX_FRAME_BYTES, Connection

SOFT = frozenset(
    {Publications, Deliver, Published, Beat, Status, Knowledge, Nack, AckExpected, Delivered}
    | {ReadAnswer, Described, CursorSet, Refused, Standing, HowFar}
)
"""Frames that tell nothing of durable state, so they wait for no fact but those of their step."""


def is_soft(frame: Frame) -> bool:
    if type(frame) is Said:
        return type(frame.frame) in SOFT
    return type(frame) in SOFT


EVENT_BYTES = 100
"""What an event that waits costs beside its body, about."""


class Outbox:
    def __init__(self, connection: Connection, bound_bytes: int, traffic: Traffic) -> None:
        self._connection = connection
        self._bound_bytes = bound_bytes
        self._traffic = traffic
        self._ready: list[Frame] = []
        self._held: deque[tuple[int, Frame, int]] = deque()
        """Position, frame, and the size of its events, which `_held_bytes` sums up."""
        self._held_bytes = 0
        self._has_gap = False
        """Among what is held, deliveries were left out."""
        self.ended = False
        """A `Goodnight` was put in: nothing after it will be heard."""
        self.dropped = 0
        """Events that were not sent because the other side, or our disk, is too slow."""
        self._told = 0
        self.frames_out = 0

    @property
    def holding(self) -> bool:
        """Something waits for the journal."""
        return bool(self._held)

    @property
    def drowning(self) -> bool:
        """Even without best-effort frames the backlog grows: the other side takes nothing."""
        return self._connection.backlog_bytes > 2 * self._bound_bytes

    def unwritten(self, kind: type) -> int:
        """How many frames of this kind were put in since the last write."""
        return sum(type(frame) is kind for frame in self._ready)

    def put(self, frame: Frame, position: int, durable: int) -> bool:
        """Queue a frame that may leave once `position` is durable; whether a flush is due."""
        if self.ended:
            return False
        if type(frame) is Goodnight:
            self.ended = True
        if self._held or position > durable:
            self._hold(position, frame)
            return False
        self._ready.append(frame)
        return True

    def _hold(self, position: int, frame: Frame) -> None:
        size = 0
        if isinstance(frame, Deliver | Publications):
            if self._held_bytes + self._connection.backlog_bytes > self._bound_bytes:
                self.dropped += len(frame.batch)
                self._has_gap = self._has_gap or type(frame) is Deliver
                return
            size = _size_bytes(frame)
            self._held_bytes += size
        self._held.append((position, frame, size))

    def last_word(self, frame: Goodnight) -> None:
        """Say this, unless another one was put in before. What still waits for the journal will
        never be said."""
        self._held.clear()
        self._held_bytes = 0
        if not self.ended:
            self.ended = True
            self._ready.append(frame)
        self.flush()

    def release(self, durable: int) -> None:
        held = self._held
        while held and held[0][0] <= durable:
            _, frame, size = held.popleft()
            self._held_bytes -= size
            self._ready.append(frame)
        if self._has_gap and not held:
            self._has_gap = False
            if not self.ended:
                self._ready.append(Deliver([]))  # tells how many are missing, if nothing else does

    def flush(self) -> None:
        """Write all that may leave, at once; after a `Goodnight`, close.

        Raises `FrameError` if something fits no frame. What stood before it is written; behind
        it nothing may follow but a last word, so whoever flushes has to say one.
        """
        if not self._ready:
            return
        frames, self._ready = joined(self._ready), []
        bodies: list[bytes] = []
        wrong: FrameError | None = None
        try:
            self._encode(frames, bodies)
        except FrameError as error:
            wrong = error
            frames = [frame for frame in frames[-1:] if type(frame) is Goodnight]
            bodies += [encode(frame) for frame in frames]
            self._held = deque(held for held in self._held if type(held[1]) is Goodnight)
            self._held_bytes = 0
        if bodies:
            self.frames_out += len(bodies)
            self._traffic.frames_out += len(bodies)
            self._connection.send(bodies)
        last = frames[-1] if frames else None
        if type(last) is Goodnight:
            self._connection.close(f"{last.error}: {last.text}")
        elif wrong is not None and not self.ended:
            raise wrong

    def _encode(self, frames: list[Frame], bodies: list[bytes]) -> None:
        full = self._connection.backlog_bytes > self._bound_bytes
        for frame in frames:
            kind = type(frame)
            if kind is Deliver or kind is Publications:
                self._encode_events(frame, bodies, full)
            else:
                body = encode(frame)
                self._traffic.events_out += events_of(frame)
                if len(body) <= MAX_FRAME_BYTES:  # nearly all are
                    bodies.append(body)
                else:
                    bodies += encoded(frame)[0]

    def _encode_events(self, frame: Frame, bodies: list[bytes], full: bool) -> None:
        assert isinstance(frame, Deliver | Publications)
        count = len(frame.batch)
        if full:
            self.dropped += count
            return
        if self.dropped and isinstance(frame, Deliver):
            self._told = self.dropped
            frame = Deliver(frame.batch, frame.dropped + self.dropped)
        parts, lost = encoded(frame)
        bodies += parts
        self._traffic.events_out += count - lost
        self.dropped += lost  # one event with more subscriptions than a frame can name

    def confess(self) -> None:
        """There is room again: tell a client what it lost, if nothing else has."""
        if self.dropped > self._told and not self.ended:
            self._told = self.dropped
            self._ready.append(Deliver([]))
            self.flush()


def _size_bytes(frame: Deliver | Publications) -> int:
    """Roughly, and without encoding it."""
    if isinstance(frame, Deliver):
        bodies_bytes = sum(len(memoryview(each.publication.body)) for each in frame.batch)
    else:
        bodies_bytes = sum(len(memoryview(each.body)) for each in frame.batch)
    return EVENT_BYTES * len(frame.batch) + bodies_bytes
