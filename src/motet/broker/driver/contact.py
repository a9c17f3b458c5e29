"""One connection of a broker: its peer, its input, and its outbox of frames to send.

Input. All frames of one read are decoded together, and adjacent publications are joined: a batch in
one frame costs a hop far less than the same events one by one.

Output. Frames leave in the order in which they were put in. A frame waits until the facts it
depends on are durable, and all frames after it wait as well. All that may leave go out in one
write, joined where the meaning stays the same, and split where too large. Events are dropped, and
counted, while too much waits for the peer or for the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from motet.errors import (
    AddressError,
    Disconnected,
    FrameError,
    MotetError,
    PeerError,
    ProtocolError,
    SlowConsumer,
)
from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control, ControlAck, Publications
from motet.protocol.sequencing.standby import SiteFacts, SiteFactsAck
from motet.protocol.session.messages import Deliver, Farewell, Publish, Published
from motet.protocol.traits import SMALL_BYTES, TRAITS
from motet.runtime.addresses import transport_for
from motet.runtime.codec import blame, decode_unchecked, encode, too_large
from motet.runtime.redial import Backoff
from motet.runtime.transport import MAX_FRAME_BYTES, Connection, Handler, Transport

log = logging.getLogger("motet.broker")

ORDERLY = ("", "Disconnected")
"""Errors in the `Farewell` of a broker that just stops, or continues on another connection."""
RATE_SAMPLES = 10
"""The number of samples over which a rate is computed."""
EVENT_BYTES = 100
"""The approximate cost of a waiting event in addition to its body."""
FRAME_EVENTS = 4096
"""Events that a client may publish in one frame. Even if all are refused, with reasons, other
clients are not delayed."""
JOINED_FACTS = 64
"""Of a site, for its standby, in one frame."""
STEP_EVENTS = 1024
STEP_BYTES = 1024 * 1024
"""The input of one step of the core. Events grow a little from hop to hop (names are added), and
this keeps the output of a step well below the limit of a frame."""


class TrafficCounters:
    """Counters that only grow; `sample` is called periodically."""

    __slots__ = ("_samples", "events_in", "events_out", "frames_in", "frames_out", "sent")

    def __init__(self) -> None:
        self.frames_in = self.frames_out = self.events_in = self.events_out = 0
        self.sent: defaultdict[type, int] = defaultdict(int)
        """By kind: frames, and the messages in control frames."""
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=RATE_SAMPLES)

    def totals(self) -> dict[str, int]:
        return {
            "frames_in": self.frames_in,
            "frames_out": self.frames_out,
            "events_in": self.events_in,
            "events_out": self.events_out,
        }

    def by_kind(self) -> dict[str, int]:
        return {kind.__name__: count for kind, count in self.sent.items()}

    def sample(self, now: float) -> None:
        self._samples.append((now, tuple(self.totals().values())))

    def rates(self, now: float) -> dict[str, float]:
        """Per second, since the oldest sample that is kept."""
        totals = self.totals()
        since, then = self._samples[0] if self._samples else (now, tuple(totals.values()))
        span_s = max(now - since, 1e-9)
        return {
            f"{name}_per_s": round((total - old) / span_s, 1)
            for (name, total), old in zip(totals.items(), then, strict=True)
        }


class Contact:
    """The handler of one connection: `read` gets its frames, `lost` is called at its end. Numbers
    count up, so the newer of two has the larger number."""

    def __init__(
        self,
        read: Callable[[Contact, Sequence[bytes]], None],
        lost: Callable[[Contact], None],
        number: int,
        connection: Connection,
        now: float,
        *,
        dialled: str | None,
        inside: bool,
        bound_bytes: int,
        traffic: TrafficCounters,
    ) -> None:
        self.number = number
        self.connection = connection
        self.outbox = Outbox(connection, bound_bytes, traffic)
        self.gone = asyncio.Event()
        self.greeted = False
        self.since = now
        """Since when we wait for a hello."""
        self.dialled = dialled
        """The neighbour that we dialled, if we opened the connection."""
        self.inside = inside
        """The peer is code in this process."""
        self.kind = "broker" if dialled is not None else "unknown"
        self.name = dialled or ""
        """The peer's name, as far as it is known."""
        self._read = read
        self._lost = lost
        self._received_bytes = 0
        self._silent_ticks = 0
        self._frames_out = 0
        self._spoke_at = now

    def __str__(self) -> str:
        return f"connection {self.number} ({self.kind} {self.name or self.connection.peer})"

    # ── callbacks of the transport ───────────────────────────────────────────────────────

    def frames(self, bodies: Sequence[bytes]) -> None:
        self._read(self, bodies)

    def closed(self, reason: str) -> None:
        log.debug("%s is gone: %s", self, reason)
        self._lost(self)
        self.gone.set()

    def writable(self) -> None:
        if self.kind == "client":
            self.outbox.confess()

    # ── frames about the peer ────────────────────────────────────────────────────────────

    def hear_hello(self, kind: str, name: str) -> None:
        self.greeted = True
        self.kind, self.name = kind, name

    def hear_reader(self) -> None:
        """A late reader of the log needs no hello."""
        if not self.greeted:
            self.greeted = True
            self.kind = "reader"

    def hear_farewell(self, farewell: Farewell) -> None:
        """Another broker refuses us; the operator of this one should know why."""
        level = logging.INFO if farewell.error in ORDERLY else logging.WARNING
        log.log(level, "%s closes: %s: %s", self, farewell.error, farewell.text)
        self.connection.close(f"{farewell.error}: {farewell.text}")

    # ── heartbeats ───────────────────────────────────────────────────────────────────────

    def problem(
        self, now: float, hello_s: float, silence_s: float, ticks: int
    ) -> MotetError | None:
        """Why this connection cannot continue, or None. Called in each tick of the driver;
        `silence_s` are so many `ticks`. Any byte counts as a sign of life. Counts ticks, not
        seconds: a broker that did not get to run, for whatever reason, could not read either."""
        if self.outbox.ended:
            return None
        received_bytes = self.connection.received_bytes
        silent = received_bytes == self._received_bytes
        self._received_bytes = received_bytes
        self._silent_ticks = self._silent_ticks + 1 if silent else 0
        if not self.greeted and now - self.since > hello_s:
            return ProtocolError(f"no hello within {hello_s:g} s")
        if self._silent_ticks > ticks:
            return Disconnected(f"nothing was heard for {silence_s:g} s")
        if self.kind != "broker" and self.outbox.drowning:
            return SlowConsumer(
                f"{self.connection.backlog_bytes} bytes wait for a client that does not read"
            )
        return None

    def idle(self, now: float, heartbeat_s: float) -> bool:
        """Whether a heartbeat to the peer is due."""
        if self.outbox.frames_out != self._frames_out:
            self._frames_out = self.outbox.frames_out
            self._spoke_at = now
        return not self.outbox.ended and now - self._spoke_at >= heartbeat_s

    def describe(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "kind": self.kind,
            "name": self.name,
            "peer": self.connection.peer,
            "dialled": self.dialled is not None,
            "greeted": self.greeted,
            "backlog_bytes": self.connection.backlog_bytes,
            "slow": self.connection.congested,
            "dropped_events": self.outbox.dropped,
            "frames_out": self.outbox.frames_out,
            "bytes_in": self.connection.received_bytes,
        }


# ── the outbox ───────────────────────────────────────────────────────────────────────────


class Outbox:
    def __init__(self, connection: Connection, bound_bytes: int, traffic: TrafficCounters) -> None:
        self._connection = connection
        self._bound_bytes = bound_bytes
        self._traffic = traffic
        self._ready: list[Frame] = []
        self.held: deque[tuple[int, Frame, int]] = deque()
        """Frames that wait for the journal: position, frame, and the size of its events.
        `_held_bytes` is the sum of the sizes."""
        self._held_bytes = 0
        self._has_gap = False
        """Deliveries were dropped while frames were held."""
        self.ended = False
        """A `Farewell` was put in: the peer ignores anything after it."""
        self.dropped = 0
        """Events that were not sent because the peer, or our disk, is too slow."""
        self._told = 0
        self.frames_out = 0

    @property
    def drowning(self) -> bool:
        """The backlog grows even without best-effort frames: the peer does not read."""
        return self._connection.backlog_bytes > 2 * self._bound_bytes

    def unwritten(self, kind: type) -> int:
        """How many frames of this kind were put in since the last write."""
        return sum(type(frame) is kind for frame in self._ready)

    def put(self, frame: Frame, position: int, durable: int) -> bool:
        """Queue a frame that may leave once `position` is durable; True if a flush is due."""
        if self.ended:
            return False
        if type(frame) is Farewell:
            self.ended = True
        if self.held or position > durable:
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
        self.held.append((position, frame, size))

    def last_word(self, frame: Farewell) -> None:
        """Send a final frame, unless another one was put in before. Frames that still wait for the
        journal are never sent."""
        self.held.clear()
        self._held_bytes = 0
        if not self.ended:
            self.ended = True
            self._ready.append(frame)
        self.flush()

    def release(self, durable: int) -> None:
        held = self.held
        while held and held[0][0] <= durable:
            _, frame, size = held.popleft()
            self._held_bytes -= size
            self._ready.append(frame)
        if self._has_gap and not held:
            self._has_gap = False
            if not self.ended:
                self._ready.append(Deliver([]))  # reports the loss, if no other frame does

    def flush(self) -> None:
        """Write all frames that may leave, at once; after a `Farewell`, close.

        Raises `FrameError` if a frame cannot be split to fit. The frames before it are written;
        only a last word may follow, so the caller has to send one.
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
            frames = [frame for frame in frames[-1:] if type(frame) is Farewell]
            bodies += [encode(frame) for frame in frames]
            self.held = deque(held for held in self.held if type(held[1]) is Farewell)
            self._held_bytes = 0
        if bodies:
            self.frames_out += len(bodies)
            self._traffic.frames_out += len(bodies)
            self._connection.send(bodies)
        last = frames[-1] if frames else None
        if type(last) is Farewell:
            self._connection.close(f"{last.error}: {last.text}")
        elif wrong is not None and not self.ended:
            raise wrong

    def _encode(self, frames: list[Frame], bodies: list[bytes]) -> None:
        full = self._connection.backlog_bytes > self._bound_bytes
        sent = self._traffic.sent
        for frame in frames:
            kind = type(frame)
            sent[kind] += 1
            if kind is Deliver or kind is Publications:
                self._encode_events(frame, bodies, full)
            else:
                body = encode(frame)
                if type(frame) is Control:
                    for message in frame.messages:
                        sent[type(message)] += 1
                events = TRAITS[kind].events
                if events is not None:
                    self._traffic.events_out += len(events(frame))
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
        self.dropped += lost  # events with more subscriptions than a frame can name

    def confess(self) -> None:
        """There is room again: tell a client how many events it lost, if it does not know yet."""
        if self.dropped > self._told and not self.ended:
            self._told = self.dropped
            self._ready.append(Deliver([]))
            self.flush()


def _size_bytes(frame: Deliver | Publications) -> int:
    """The approximate size, without encoding the frame."""
    if isinstance(frame, Deliver):
        bodies_bytes = sum(len(memoryview(each.publication.body)) for each in frame.batch)
    else:
        bodies_bytes = sum(len(memoryview(each.body)) for each in frame.batch)
    return EVENT_BYTES * len(frame.batch) + bodies_bytes


# ── frames of one read ───────────────────────────────────────────────────────────────────


def decoded(bodies: Sequence[bytes]) -> tuple[list[Frame], PeerError | None]:
    """The frames of one read up to the first invalid one, and the error of that one."""
    frames: list[Frame] = []
    room = 0
    """Bytes that may still be joined to the last frame; 0 if it takes none."""
    for body in bodies:
        size = len(body)
        try:
            frame = decode_unchecked(body)
        except Exception as problem:
            return frames, blame(body, problem)
        if size > SMALL_BYTES and (wrong := too_large(frame, size)) is not None:
            return frames, wrong
        kind = type(frame)
        if kind is not Publish and kind is not Publications:
            room = 0
            frames.append(frame)
            continue
        if type(frame) is Publish and len(frame.bodies) > FRAME_EVENTS:
            text = f"{len(frame.bodies)} events in one frame; at most {FRAME_EVENTS} are taken"
            return frames, ProtocolError(text)
        if size <= room and (joined := _JOIN_IN[kind](frames[-1], frame)) is not None:
            frames[-1] = joined
            room -= size
            continue
        if type(frame) is Publish and (size > STEP_BYTES or len(frame.bodies) > STEP_EVENTS):
            frames += _steps(frame)
        else:  # a neighbour has split its own
            frames.append(frame)
        room = STEP_BYTES - size
    return frames, None


def _join_publish(before: Any, after: Publish) -> Frame | None:
    if (
        type(before) is not Publish
        or after.first != before.first + len(before.bodies)
        or before.sure != after.sure
        or len(before.bodies) + len(after.bodies) > STEP_EVENTS
    ):
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


def _steps(frame: Publish) -> Iterable[Frame]:
    """Events of a client, split into the input of single steps of the core."""
    first, held, held_bytes = frame.first, 0, 0
    for index, body in enumerate(frame.bodies):
        body_bytes = len(memoryview(body))
        if held and (held == STEP_EVENTS or held_bytes + body_bytes > STEP_BYTES):
            yield Publish(first, frame.bodies[index - held : index], frame.sure)
            first, held, held_bytes = first + held, 0, 0
        held += 1
        held_bytes += body_bytes
    yield Publish(first, frame.bodies[len(frame.bodies) - held :], frame.sure)


# ── frames of one write ──────────────────────────────────────────────────────────────────


def joined(frames: list[Frame]) -> list[Frame]:
    """The same frames; adjacent ones of a kind are joined where the meaning stays the same."""
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


def _join_site_facts(before: Any, after: SiteFacts) -> Frame | None:
    if type(before) is not SiteFacts or before.received or after.received:
        return None
    payloads = before.payloads + after.payloads
    if after.first != before.first + len(before.payloads) or len(payloads) > JOINED_FACTS:
        return None
    return SiteFacts(before.first, payloads)


def _join_site_facts_ack(before: Any, after: SiteFactsAck) -> Frame | None:
    return after if type(before) is SiteFactsAck else None


_JOIN_OUT: dict[type, Callable[[Any, Any], Frame | None]] = {
    Deliver: _join_deliver,
    Published: _join_published,
    ControlAck: _join_ack,
    SiteFacts: _join_site_facts,
    SiteFactsAck: _join_site_facts_ack,
}
"""Publications are missing on purpose: those that arrive joined leave joined."""


def encoded(frame: Frame) -> tuple[list[bytes], int]:
    """The frame as one or, if too large, several bodies, and the number of events dropped because
    they fit no frame even alone. Raises `FrameError` if anything else does not fit."""
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
    if isinstance(frame, Deliver) and (half := len(frame.batch) // 2):
        few, rest = frame.batch[:half], frame.batch[half:]
        return Deliver(few, frame.dropped), Deliver(rest, frame.dropped)
    if isinstance(frame, Control) and (half := len(frame.messages) // 2):
        messages = frame.messages
        return Control(frame.first, messages[:half]), Control(frame.first + half, messages[half:])
    if isinstance(frame, Published) and (half := len(frame.refused) // 2):
        refused = frame.refused  # in the order of their sequences
        first = Published(refused[half - 1].sequence, refused[:half])
        return first, Published(frame.upto, refused[half:])
    if isinstance(frame, SiteFacts) and (half := len(frame.payloads) // 2):
        facts = SiteFacts(frame.first, frame.payloads[:half])
        return facts, SiteFacts(frame.first + half, frame.payloads[half:], frame.received)
    return None


# ── dialling ─────────────────────────────────────────────────────────────────────────────


def transport(address: str) -> Transport:
    """The transport for an address; it tells a peer that breaks the framing why it closes."""
    return transport_for(address, lambda error: encode(Farewell(type(error).__name__, str(error))))


SEPARATOR = ","
"""Between addresses that are tried in turn."""
LONGEST_TURN_S = 0.5
"""Between two of them: one of both answers."""
ASIDE = "@"
"""Names of peers that are no neighbours begin with it: those that a process cannot do without."""


class Dialling:
    """The neighbours to dial and their addresses: one connection after the other to each. `meet`
    takes a new connection to a neighbour. The addresses may change while the broker runs. Several,
    separated by commas, are tried in turn."""

    def __init__(
        self,
        transports: Callable[[str], Transport],
        meet: Callable[[Connection, str], Contact],
        keep: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._transports = transports
        self._meet = meet
        self._keep = keep
        self._calls: dict[str, tuple[str, asyncio.Task[None]]] = {}

    def aim(self, addresses: Mapping[str, str]) -> list[str]:
        """Dial exactly these from now on; returns the neighbours that are no longer dialled, or at
        another address."""
        changed = [name for name, (at, _) in self._calls.items() if addresses.get(name) != at]
        for name in changed:
            _, task = self._calls.pop(name)
            task.cancel()
        for name, address in addresses.items():
            if name not in self._calls:
                self._calls[name] = (address, self._keep(self._call(name, address)))
        return changed

    async def _call(self, neighbour: str, address: str) -> None:
        """Open one connection after the other, without end."""
        turns = address.split(SEPARATOR)
        hasty = len(turns) > 1 or neighbour.startswith(ASIDE)
        backoff = Backoff(last_s=LONGEST_TURN_S) if hasty else Backoff()
        made: list[Contact] = []
        at = 0
        told: set[str] = set()

        def accept(connection: Connection) -> Handler:
            made.append(self._meet(connection, neighbour))
            return made[-1]

        while True:
            turn = turns[at % len(turns)]
            at += 1
            try:
                await self._transports(turn).connect(turn, accept)
            except (Disconnected, AddressError) as problem:
                if str(problem) not in told:  # once, until it is reached
                    told.add(str(problem))
                    log.info("%s is not reached: %s", neighbour, problem)
            else:
                told.clear()
                contact = made[-1]
                made.clear()
                await contact.gone.wait()
                if contact.greeted:
                    backoff.reset()
            await asyncio.sleep(backoff.wait_s())
