"""The client's side of a session, as a machine without I/O, clock or randomness.

    offline ── opened ──▶ greeting ── Welcome ──▶ open
       ▲                      │                    │
       └──────── closed, or a Goodnight that invites us back
    a goodbye, or a Goodnight that does not, ends it for good.

Whoever drives it reports what the connection did (`opened`, `received`, `closed`) and what the
application wants (`request`, `publish`, `goodbye`), and carries out what `take` returns. These
methods are the only door to its state. The asyncio client and the simulator use the same one.

What it promises: every request is resolved exactly once if it ends, never twice; every
publication is settled once, and none is ever sent twice unless the broker has said that it does
not have it; frames leave in the order in which the application made the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Raw

from motet import errors
from motet.client.happenings import (
    Arrived,
    Effects,
    Ended,
    Failure,
    Lapsed,
    Parted,
    Resolved,
    Settled,
    Welcomed,
)
from motet.client.moves import MOVES, State
from motet.client.operation import INVERSE, Kind, Operation, Routes
from motet.client.window import Window
from motet.model import Filter
from motet.model.limits import MAX_HEARTBEAT_S, MIN_HEARTBEAT_S
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.session.messages import (
    ClientHello,
    Deliver,
    Done,
    Failed,
    Goodbye,
    Goodnight,
    Published,
    Refusal,
    Welcome,
)

__all__ = ["DEFAULT_WINDOW", "FINAL", "MAX_REQUESTS", "MOVES", "ClientMachine", "Kind", "State"]

FINAL = (errors.MisuseError, errors.Fenced, errors.VersionError, errors.StaleState)
"""A Goodnight of these kinds would only be repeated if we came back."""

BLAME = (errors.ProtocolError, errors.FrameError)
MAX_BLAMES = 3
"""A broker that blames us so often in a row, without an answer or a delivery in between, will not
change its mind either. Once or twice may be the fault of what lies between us. A welcome does not
count: what the broker cannot take is sent again right after it."""

DEFAULT_WINDOW = 8192
MAX_REQUESTS = 1024


class ClientMachine:
    """One client of one broker, across connections and sessions."""

    def __init__(
        self,
        client: str,
        *,
        window: int = DEFAULT_WINDOW,
        credentials: bytes = b"",
        instance: str = "",
    ) -> None:
        """`instance` is unlike that of any other client with this id, now or later."""
        self.client = client
        self.state: State = "offline"
        self.epoch: str | None = None
        self.broker: str | None = None
        self._credentials = credentials
        self._instance = instance
        self._blames = 0
        self._effects = Effects()
        # operations
        self._handles = 0
        self._sequences = 0
        self._shown = 0  # requests up to this sequence may be known to the broker
        self._answered_upto = 0  # the broker has this request, and so all before it
        self._unanswered: dict[int, Operation] = {}  # by sequence, in the order they were made
        self._standing: dict[int, Operation] = {}  # by handle: in force and ours to renew
        self._subscribed: dict[int, Operation] = {}  # by sequence: where deliveries go
        self._routes = Routes(self._subscribed)
        # events
        self._window = Window(window)
        self._dropped = 0

    # ── what the driver may ask ──────────────────────────────────────────────────────────

    @property
    def made(self) -> int:
        """Ordinal of the last publication made."""
        return self._window.made

    @property
    def settled(self) -> int:
        """Every publication up to this ordinal has met its fate."""
        return self._window.settled

    @property
    def window(self) -> int:
        """How many publications may await their fate at once."""
        return self._window.size

    @property
    def room(self) -> int:
        """How many more publications fit into the window."""
        return self._window.room

    @property
    def can_publish(self) -> bool:
        return self.state != "ended" and self._window.room > 0

    def in_force(self) -> list[int]:
        """Handles of what holds at the broker, as far as we know."""
        return list(self._standing)

    def take(self) -> Effects:
        """All that is to be done since the last call."""
        effects, self._effects = self._effects, Effects()
        return effects

    # ── the application ──────────────────────────────────────────────────────────────────

    def request(
        self,
        kind: Kind,
        filter: Filter | None = None,
        *,
        target: int | None = None,
        wait: bool = True,
        timeout_s: float = 10.0,
    ) -> int:
        """Advertise or subscribe a filter, or take back the operation with handle `target`."""
        if self.state == "ended":
            raise errors.ClosedError(f"cannot {kind}: the session of {self.client!r} has ended")
        if len(self._unanswered) >= MAX_REQUESTS:
            raise errors.MisuseError(f"more than {MAX_REQUESTS} requests await their answer")
        undone = None
        if kind not in INVERSE:
            undone = self._take_back(kind, target)
        elif filter is None:
            raise errors.MisuseError(f"{kind} needs a filter")
        return self._issue(kind, filter, undone, wait, timeout_s).handle

    def abandon(self, handle: int) -> None:
        """Nobody waits for this request any more; what it may have put in force is undone."""
        # In force means that the answer came, but he who asked was gone before he could read it.
        operation = self._standing.get(handle) or self._awaited(handle)
        if operation is None:
            return
        operation.awaited = False
        if operation.kind not in INVERSE or self._being_undone(operation):
            return
        self._standing.pop(handle, None)
        if operation.sequence > self._shown:
            self._unmake(operation)
        else:
            undo = INVERSE[operation.kind]
            self._issue(undo, None, operation, False, operation.timeout_s, awaited=False)

    def _awaited(self, handle: int) -> Operation | None:
        waiting = (o for o in self._unanswered.values() if o.handle == handle and o.awaited)
        return next(waiting, None)

    def _unmake(self, operation: Operation) -> None:
        """It was never sent, so nobody knows its number: those behind it move up."""
        behind = [o for o in self._unanswered.values() if o.sequence >= operation.sequence]
        for other in behind:
            del self._unanswered[other.sequence]
            self._subscribed.pop(other.sequence, None)
        self._routes.clear()
        self._sequences = operation.sequence - 1
        for other in behind[1:]:
            self._number(other)

    def publish(self, bodies: Sequence[Raw]) -> range:
        """Accept encoded events into the window; returns their ordinals."""
        if self.state == "ended":
            raise errors.ClosedError(f"cannot publish: the session of {self.client!r} has ended")
        if len(bodies) > self.room:
            raise errors.MisuseError(f"more than {self.window} publications await their fate")
        ordinals = self._window.add(bodies)
        if self.state == "open":
            self._effects.send.extend(self._window.send_last(bodies))
        return ordinals

    def goodbye(self) -> None:
        """End the session. Whatever is still open fails with `ClosedError`."""
        if self.state in ("greeting", "open"):
            self._effects.send.append(Goodbye())
        if self.state != "ended":
            self._end(Failure("ClosedError", "the client was closed"))
        self._move("goodbye")

    # ── the connection ───────────────────────────────────────────────────────────────────

    def opened(self) -> None:
        self._move("opened")
        who = (self.client, self.epoch, self._credentials, self._instance, self._answered_upto)
        self._effects.send.append(ClientHello(PROTOCOL_VERSION, *who))

    def closed(self) -> None:
        self._move("closed")

    def received(self, frame: Frame) -> None:
        """A frame from the broker. Raises only `PeerError`s: then close the connection."""
        match frame:
            case Deliver() if self.state == "open":
                self._blames = 0
                self._on_deliver(frame)
            case Beat():
                pass
            case Goodnight():
                self._on_goodnight(frame)
            case _:
                was = self.state
                self._move(type(frame).__name__, errors.ProtocolError)
                if was != "ended":
                    self._on_answer(frame)

    def _on_answer(self, frame: Frame) -> None:
        if type(frame) is not Welcome:
            self._blames = 0
        match frame:
            case Welcome():
                self._on_welcome(frame)
            case Done():
                self._on_done(frame)
            case Failed():
                self._on_failed(frame)
            case Published():
                self._on_published(frame)

    def _move(self, name: str, blame: type[errors.MotetError] = errors.InvariantError) -> None:
        after = MOVES[self.state].get(name)
        if after is None:
            raise blame(f"{name} is not legal while the session is {self.state}")
        self.state = after

    # ── the session ──────────────────────────────────────────────────────────────────────

    def _on_welcome(self, frame: Welcome) -> None:
        if frame.resumed and (self.epoch is None or frame.epoch != self.epoch):
            self.state = "greeting"
            raise errors.ProtocolError(f"session {frame.epoch} is not the one we asked for")
        if not MIN_HEARTBEAT_S <= frame.heartbeat_s <= MAX_HEARTBEAT_S:
            self.state = "greeting"
            raise errors.ProtocolError(f"a heartbeat of {frame.heartbeat_s} s")
        how: Literal["fresh", "resumed", "lost"]
        if frame.resumed:
            how = "resumed"
            self._resume_publications(frame)
        else:
            how = "fresh" if self.epoch is None else "lost"
            self._begin_again()
        self.broker = frame.broker
        self.epoch = frame.epoch
        self._dropped = 0  # brokers count per connection
        welcomed = Welcomed(how, frame.broker, frame.epoch, frame.lease_s, frame.heartbeat_s)
        self._effects.happened.append(welcomed)
        self._send_everything_open()

    def _on_goodnight(self, frame: Goodnight) -> None:
        final = self._is_final(frame)
        was = self.state
        self._move("dismissed" if final else "invited back", errors.ProtocolError)
        failure = Failure(frame.error, frame.text)
        if was == "ended":
            return
        if final:
            self._end(failure)
            self._effects.happened.append(Ended(failure))
        else:
            self._effects.happened.append(Parted(failure))

    def _is_final(self, frame: Goodnight) -> bool:
        kind = getattr(errors, frame.error, None)
        if not isinstance(kind, type):
            kind = errors.UnavailableError
        self._blames = self._blames + 1 if issubclass(kind, BLAME) else 0
        return issubclass(kind, FINAL) or self._blames >= MAX_BLAMES

    def _end(self, failure: Failure) -> None:
        for operation in self._unanswered.values():
            if operation.awaited:
                self._effects.happened.append(Resolved(operation.handle, failure))
        self._unanswered.clear()
        self._standing.clear()
        self._subscribed.clear()
        self._routes.clear()
        self._settle(self.made, unknown=failure)

    def _begin_again(self) -> None:
        """A new session knows nothing: renew what was in force, then go on with what is open."""
        lost = Failure("Disconnected", "the session was lost before the answer")
        self._settle(self._window.sent, unknown=lost)
        self._window.begin_again()
        unanswered = list(self._unanswered.values())
        standing = list(self._standing.values())
        self._sequences = self._shown = self._answered_upto = 0
        self._unanswered.clear()
        self._subscribed.clear()
        self._routes.clear()
        for kind in INVERSE:
            for operation in standing:
                if operation.kind == kind:
                    operation.awaited = operation.wait = False
                    operation.after = 0
                    self._number(operation)
        undone = {operation.target for operation in unanswered}
        for operation in unanswered:
            if operation.target is not None:
                self._resolve(operation, None)  # it went with the session
            elif operation in undone:
                self._resolve(operation, Failure("Withdrawn", "taken back before the answer"))
            elif operation.handle not in self._standing:
                self._number(operation)

    def _send_everything_open(self) -> None:
        self._shown = self._sequences
        for operation in self._unanswered.values():
            self._effects.send.extend(self._window.send(operation.after))
            self._effects.send.append(operation.frame())
        self._effects.send.extend(self._window.send(self.made))

    # ── operations ───────────────────────────────────────────────────────────────────────

    def _issue(
        self,
        kind: Kind,
        wanted: Filter | None,
        target: Operation | None,
        wait: bool,
        timeout_s: float,
        awaited: bool = True,
    ) -> Operation:
        self._handles += 1
        operation = Operation(
            self._handles, kind, wanted, target, wait, timeout_s, self.made, awaited
        )
        self._number(operation)
        if self.state == "open":
            self._shown = self._sequences
            self._effects.send.append(operation.frame())
        return operation

    def _number(self, operation: Operation) -> None:
        self._sequences += 1
        operation.sequence = self._sequences
        self._unanswered[operation.sequence] = operation
        if operation.kind == "subscribe":
            self._subscribed[operation.sequence] = operation

    def _take_back(self, kind: Kind, target: int | None) -> Operation:
        """From now on the operation is no longer ours to renew."""
        candidates = (*self._standing.values(), *self._unanswered.values())
        for operation in candidates:
            undoable = operation.handle == target and INVERSE.get(operation.kind) == kind
            if undoable and not self._being_undone(operation):
                self._standing.pop(operation.handle, None)
                return operation
        raise errors.NoSuchOperation(f"{kind}: nothing of that kind is in force under this handle")

    def _being_undone(self, operation: Operation) -> bool:
        return any(other.target is operation for other in self._unanswered.values())

    def _resolve(self, operation: Operation, failure: Failure | None) -> None:
        if operation.awaited:
            operation.awaited = False
            self._effects.happened.append(Resolved(operation.handle, failure))

    def _answered(self, sequence: int) -> Operation | None:
        """The operation that an answer is for; None if it was answered before."""
        if not 0 < sequence <= self._sequences:
            raise errors.ProtocolError(f"an answer to request {sequence}, which was never made")
        self._answered_upto = max(self._answered_upto, sequence)
        return self._unanswered.pop(sequence, None)

    def _on_done(self, frame: Done) -> None:
        operation = self._answered(frame.sequence)
        if operation is None:
            return
        if operation.target is not None:
            self._forget(operation.target)
        elif not self._being_undone(operation):
            self._standing[operation.handle] = operation
        self._resolve(operation, None)

    def _on_failed(self, frame: Failed) -> None:
        operation = self._answered(frame.sequence)
        if operation is None:
            return
        failure = Failure(frame.error, frame.text, frame.missing)
        if operation.target is not None:
            self._forget(operation.target)  # our broker has let go of it, whatever others did
        else:
            self._forget(operation)  # what failed, the broker has taken back itself
            if self._standing.pop(operation.handle, None) is not None:
                self._effects.happened.append(Lapsed(operation.handle, failure))
        self._resolve(operation, failure)

    def _forget(self, operation: Operation) -> None:
        if self._subscribed.pop(operation.sequence, None) is not None:
            self._routes.clear()

    # ── publications ─────────────────────────────────────────────────────────────────────

    def _resume_publications(self, frame: Welcome) -> None:
        """What the broker has is settled, what it does not have is sent again."""
        if frame.published < 0:
            lost = Failure("Disconnected", "the broker restarted before the answer")
            self._settle(self._window.sent, unknown=lost)
            return
        handled = self._window.ordinal(frame.published)
        if handled > self._window.sent:
            self.state = "greeting"
            raise errors.ProtocolError(f"publication {frame.published} was never sent")
        # Some of these may have been refused; the broker cannot say which.
        forgotten = Failure("Disconnected", "the answer was lost with the connection")
        self._settle(min(handled, self._window.ordinal(frame.forgotten)), unknown=forgotten)
        self._settle(handled, self._window.news(frame.refused, handled))
        self._window.send_again()

    def _on_published(self, frame: Published) -> None:
        upto = self._window.ordinal(frame.upto)
        if upto > self._window.sent:
            raise errors.ProtocolError(f"publication {frame.upto} was never sent")
        self._settle(upto, self._window.news(frame.refused, upto))

    def _settle(
        self, upto: int, refused: tuple[Refusal, ...] = (), unknown: Failure | None = None
    ) -> None:
        if self._window.settle(upto):
            self._effects.happened.append(Settled(upto, refused, unknown))

    # ── deliveries ───────────────────────────────────────────────────────────────────────

    def _on_deliver(self, frame: Deliver) -> None:
        routes = self._routes
        batch = [(routes[d.subscriptions], d.publication) for d in frame.batch]
        dropped = max(0, frame.dropped - self._dropped)
        self._dropped += dropped
        self._effects.happened.append(Arrived(batch, dropped))

    # ── for tests and the simulator ──────────────────────────────────────────────────────

    def validate(self) -> None:
        """Raise `InvariantError` if the machine contradicts itself."""
        claims = {
            "sequences are keys": all(s == o.sequence for s, o in self._unanswered.items()),
            "requests are in order": list(self._unanswered) == sorted(self._unanswered),
            "nobody knows what is not made": self._shown <= self._sequences,
            "publications are in order": self._window.in_order(),
            "all is sent while open": self.state != "open" or self._window.sent == self.made,
            "only subscriptions get events": all(
                o.kind == "subscribe" for o in self._subscribed.values()
            ),
            "an end leaves nothing open": self.state != "ended"
            or not (self._unanswered or self._standing or self.settled < self.made),
        }
        broken = [claim for claim, holds in claims.items() if not holds]
        if broken:
            raise errors.InvariantError(f"client {self.client!r}: not true: {', '.join(broken)}")
