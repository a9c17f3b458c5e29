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
not have it, or will know it again; no exactly-once event is told twice or out of order; frames
leave in the order in which the application made the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from msgspec import Raw

from motet import errors
from motet.client.happenings import (
    Arrived,
    Effects,
    Ended,
    Failure,
    Hurried,
    Missed,
    Parted,
    Resolved,
    Settled,
    Welcomed,
)
from motet.client.moves import MOVES, State
from motet.client.operation import INVERSE, Kind
from motet.client.requests import MAX_REQUESTS
from motet.client.streams import Streams
from motet.client.transacting import Transacting
from motet.client.window import Window
from motet.model.limits import MAX_HEARTBEAT_S, MIN_HEARTBEAT_S
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.session.messages import (
    ClientHello,
    ConsentRequest,
    Decided,
    Deliver,
    Done,
    Failed,
    Goodbye,
    Goodnight,
    HowFar,
    Invited,
    Over,
    Published,
    Ready,
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


class ClientMachine(Transacting):
    """One client of one broker, across connections and sessions."""

    def __init__(
        self,
        client: str,
        *,
        window: int = DEFAULT_WINDOW,
        credentials: bytes = b"",
        instance: str = "",
        keep_s: float = 0.0,
        cursors: Mapping[str, int] | None = None,
        total_order: bool = False,
    ) -> None:
        """`instance` is unlike that of any other client with this id, now or later. With `keep_s`
        the session is durable, and one that another process has left is gone on with. `cursors`
        are what the application is done with, by pubend, as it has written down itself."""
        super().__init__()
        self.client = client
        self.total_order = total_order
        self.durable = keep_s > 0
        self._keep_s = keep_s
        self._careful = self.durable or cursors is not None
        """The application must miss nothing: see `ClientHello.hold`."""
        self._given = dict(cursors or {})
        self._ready = False
        self._taken = 0  # publications of another process in our session
        self.state: State = "offline"
        self.epoch: str | None = None
        self.broker: str | None = None
        self._credentials, self._instance = credentials, instance
        self._blames = 0
        self._effects = Effects()
        # events
        self._window = Window(window)
        self._streams = Streams(self._routes, cursors)
        self._incomplete: list[Delivered] = []
        """Frames that belong to one that has not come."""
        self._early: deque[list[Delivered]] = deque()
        """Frames that have come before the word of what they are for."""
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

    @property
    def horizons(self) -> Mapping[str, int]:
        """By pubend: the tick up to which all of it has come, in this session."""
        return self._streams.received

    @property
    def published(self) -> int:
        """The number of the last publication of the session that has met its fate."""
        return self._window.answered

    @property
    def certain(self) -> bool:
        """Nothing that another process has published in our session is still under way."""
        return self._window.answered >= self._taken

    def in_force(self) -> list[int]:
        """Handles of what holds at the broker, as far as we know."""
        return list(self._standing)

    def take(self) -> Effects:
        """All that is to be done since the last call."""
        effects, self._effects = self._effects, Effects()
        return effects

    # ── the application ──────────────────────────────────────────────────────────────────

    def publish(self, bodies: Sequence[Raw], sure: bool = True) -> range:
        """Accept encoded events into the window; returns their ordinals. The broker logs `sure`
        ones before it accepts them, and they arrive exactly once."""
        if self.state == "ended":
            raise errors.ClosedError(f"cannot publish: the session of {self.client!r} has ended")
        if len(bodies) > self.room:
            raise errors.MisuseError(f"more than {self.window} publications await their fate")
        ordinals = self._window.add(bodies, sure)
        if self.state == "open":
            self._effects.send.extend(self._window.send_last(bodies, sure))
        return ordinals

    def processed(self, pubend: str, upto: int) -> None:
        """The application is done with every event of a pubend up to this tick."""
        frame = self._streams.done(pubend, upto)
        if frame is not None and self.state == "open":
            self._effects.send.append(frame)

    def ready(self) -> None:
        """The application has made its first subscriptions, and begins to read."""
        if not self._ready:
            self._ready = True
            if self._careful and self.state == "open":
                self._effects.send.append(Ready())

    def _reach(self) -> Mapping[str, int]:
        """Whoever has no session to go on with goes on where its own cursors are."""
        return {} if self._ready or self.total_order else self._given

    def _check_reach(self, since: Mapping[str, int]) -> None:
        if since and self.total_order:
            raise errors.MisuseError(
                "in total order a client cannot reach into the past: its streams run together, and "
                "only forward; take another client for the past"
            )
        for pubend, tick in self._streams.begun().items():
            if pubend in since or "" in since:
                raise errors.TooLate(
                    f"{self.client} has read {pubend} up to tick {tick}, so a subscription cannot "
                    "reach back there: make those that do before anything is read, or take a "
                    "client of its own for it"
                )

    def goodbye(
        self, *, forget: bool = False, done: Mapping[int, dict[str, int]] = MappingProxyType({})
    ) -> None:
        """End the session; but a durable one, unless we are to `forget` it, stays as it is for
        the next process. `done` has subscriptions that are further than what was processed, by
        handle. Whatever is still open fails with `ClosedError`."""
        if self.state in ("greeting", "open"):
            stay = self.durable and not forget
            of_ours = {o.sequence: done[h] for h, o in self._standing.items() if h in done}
            self._effects.send.append(Goodbye(stay, of_ours if stay else {}))
        if self.state != "ended":
            self._end(Failure("ClosedError", "the client was closed"))
        self._move("goodbye")

    # ── the connection ───────────────────────────────────────────────────────────────────

    def opened(self) -> None:
        self._move("opened")
        who = (self.client, self.epoch, self._credentials, self._instance, self._answered_upto)
        cursors = dict(self._streams.received)
        hello = ClientHello(
            *(PROTOCOL_VERSION, *who, cursors),
            *(self._keep_s, self._careful, self.total_order),
            0 if self.epoch is None else self._window.last_number,
        )
        self._effects.send.append(hello)

    def _take_early(self) -> None:
        """Frames that belong together, as long as we have heard of all that they are for."""
        while self._early and not any(map(self._is_unheard_of, self._early[0])):
            for each in self._early.popleft():
                self._effects.happened.extend(self._streams.take(each))

    def closed(self) -> None:
        self._incomplete.clear()  # they will come again, all of them
        self._early.clear()
        self._move("closed")

    def received(self, frame: Frame) -> None:
        """A frame from the broker. Raises only `PeerError`s: then close the connection."""
        match frame:
            case Deliver() if self.state == "open":
                self._blames = 0
                self._on_deliver(frame)
            case Delivered() if self.state == "open":
                self._blames = 0
                self._incomplete.append(frame)
                if not frame.more:
                    self._early.append(self._incomplete)
                    self._incomplete = []
                    self._take_early()
            case HowFar() if self.state == "open":
                self._effects.happened.append(Hurried())
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
                self._tell(self._window.published(frame))
            case Invited():
                self._on_invited(frame)
            case Decided():
                self._on_decided(frame)
                self._take_early()
            case Over():
                self._on_over(frame)

    def _move(self, name: str, blame: type[errors.MotetError] = errors.InvariantError) -> None:
        after = MOVES[self.state].get(name)
        if after is None:
            raise blame(f"{name} is not legal while the session is {self.state}")
        self.state = after

    # ── the session ──────────────────────────────────────────────────────────────────────

    def _on_welcome(self, frame: Welcome) -> None:
        adopted = frame.resumed and self.durable and self.epoch is None
        if frame.resumed and not adopted and frame.epoch != self.epoch:
            self.state = "greeting"
            raise errors.ProtocolError(f"session {frame.epoch} is not the one we asked for")
        if not MIN_HEARTBEAT_S <= frame.heartbeat_s <= MAX_HEARTBEAT_S:
            self.state = "greeting"
            raise errors.ProtocolError(f"a heartbeat of {frame.heartbeat_s} s")
        how: Literal["fresh", "resumed", "lost", "adopted"]
        self._taken = frame.taken if frame.resumed else 0
        if adopted:
            how = "adopted"
            self._given = {}
            self._window.take_over(frame)
            self._take_over(frame.requests, frame.standing)
            self._planning = True  # of the process before
        elif frame.resumed:
            how = "resumed"
            self._resume(frame)
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
        self._tell(self._window.lose(self.made, failure))

    def _resume(self, frame: Welcome) -> None:
        try:
            self._tell(self._window.resume(frame))
        except errors.ProtocolError:
            self.state = "greeting"
            raise
        self._effects.send.extend(self._streams.done_again())

    def _begin_again(self) -> None:
        """A new session knows nothing: renew what was in force, then go on with what is open."""
        lost = Failure("Disconnected", "the session was lost before the answer")
        self._tell(self._window.begin_again(lost))
        since = dict(self._streams.received) if self._careful else {}
        if not self._careful:
            if self._streams.begun():  # what reached into the past has been there
                for operation in (*self._standing.values(), *self._unanswered.values()):
                    operation.since = {}
            self._streams.begin_again()
        elif self.total_order:  # nothing fills the gap, and nobody knows how long it is
            gaps = [Missed(pubend, tick + 1, tick + 1) for pubend, tick in since.items()]
            self._effects.happened.extend(gaps)
            since = {}
        void = self._drop_transactions()
        unanswered = list(self._unanswered.values())
        standing = list(self._standing.values())
        gone = {operation.handle: self._lost_answer(operation) for operation in unanswered}
        self._sequences = self._shown = self._answered_upto = 0
        self._unanswered.clear()
        self._subscribed.clear()
        self._routes.clear()
        for kind in INVERSE:
            for operation in standing:
                if operation.kind == kind:
                    operation.awaited = operation.wait = False
                    operation.after = 0
                    if operation.kind == "subscribe" and since:
                        operation.since = {**operation.since, **since}
                    self._number(operation)
        undone = {each.target for each in unanswered if each.tag is None}
        for operation in unanswered:
            asks = operation.asks
            is_void = asks is not None and not isinstance(asks, ConsentRequest)
            if is_void or operation.tag is not None or operation in void:
                self._resolve(operation, gone[operation.handle])
            elif operation.target is not None:
                self._resolve(operation, None)  # it went with the session
            elif operation in undone or operation.gone:
                self._resolve(operation, Failure("Withdrawn", "taken back before the answer"))
            elif operation.handle not in self._standing:
                self._number(operation)
        self._renew_consent()

    def _send_everything_open(self) -> None:
        self._shown = self._sequences
        for operation in self._unanswered.values():
            self._effects.send.extend(self._window.send(operation.after))
            self._effects.send.append(operation.frame())
        self._effects.send.extend(self._window.send(self.made))
        if self._ready and self._careful:
            self._effects.send.append(Ready())

    # ── events ───────────────────────────────────────────────────────────────────────────

    def _tell(self, settled: Iterable[Settled]) -> None:
        self._effects.happened.extend(settled)

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
            "what is processed was received": self._streams.consistent(),
            "only subscriptions get events": all(
                o.kind == "subscribe" for o in self._subscribed.values()
            ),
            "an end leaves nothing open": self.state != "ended"
            or not (self._unanswered or self._standing or self.settled < self.made),
        }
        broken = [claim for claim, holds in claims.items() if not holds]
        if broken:
            raise errors.InvariantError(f"client {self.client!r}: not true: {', '.join(broken)}")
