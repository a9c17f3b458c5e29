"""The client's side of a session, as a machine without I/O, clock or randomness.

    offline ── opened ──▶ greeting ── Welcome ──▶ open
       ▲                      │                    │
       └──────── closed, Moved, or a Farewell after which the client may reconnect
    A goodbye, or any other Farewell, ends it permanently. After Moved, the client says an
    ArrivalHello instead of its usual one, until it is welcomed.

A driver reports connection events (`opened`, `received`, `closed`) and the application's calls
(`request`, `publish`, `move`, `goodbye`; `parts` for transactions), and carries out the output of
`take`. Only these methods change its state; `requests`, `window`, `streams`, `parts` and `moving`
can be read. The asyncio client and the simulator use the same machine.

Guarantees: every request is resolved exactly once if it ends, never twice; every publication is
settled once, and is retransmitted only if the broker does not have it or detects the duplicate;
no exactly-once event is reported twice or out of order; frames leave in the order of the
application's calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from msgspec import Raw

from motet import errors
from motet.client.session.moves import ClientMoves
from motet.client.session.requests import MAX_REQUESTS, Parts, Requests
from motet.client.session.state import (
    INVERSE,
    MOVES,
    Arrived,
    ClientOutput,
    ConnectionEnd,
    Dismissed,
    Failure,
    Kind,
    Missed,
    ProgressDemand,
    SessionState,
    Settled,
    State,
    Welcomed,
)
from motet.client.session.streams import PubendStreams, Window
from motet.model import Filter
from motet.model.limits import MAX_HEARTBEAT_S, MIN_HEARTBEAT_S
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.mobility.messages import Moved, MoveRefusal
from motet.protocol.session.messages import (
    ClientHello,
    Decided,
    Deliver,
    Done,
    Failed,
    Farewell,
    Goodbye,
    Invited,
    Over,
    ProgressQuery,
    Published,
    Ready,
    Welcome,
)

__all__ = ["DEFAULT_WINDOW", "FINAL", "MAX_REQUESTS", "MOVES", "ClientMachine", "Kind", "State"]

FINAL = (errors.MisuseError, errors.Fenced, errors.VersionError, errors.StaleState)
"""After a Farewell of these kinds a reconnect would only fail again."""

BLAME = (errors.ProtocolError, errors.FrameError)
MAX_BLAMES = 3
"""After this many rejections in a row, without an answer or a delivery in between, the client gives
up; one or two may be caused by the network in between. A welcome does not reset the count: the
rejected frame is retransmitted right after it."""

DEFAULT_WINDOW = 8192
LOST_ANSWER = (
    "the session was lost before the answer, so it is unknown whether the event is durable; "
    "publish it again if receiving it twice does no harm, or connect with `durable=True`, which "
    "keeps the session"
)


class ClientMachine:
    """One client of one broker at a time, across connections, sessions and moves."""

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
        """`instance` differs from that of any other client with this id, now or later. With
        `keep_s` the session is durable, and the session of an earlier process is adopted.
        `cursors` are the positions, by pubend, that the application has stored itself."""
        self.total_order = total_order
        self.durable = keep_s > 0
        self.broker: str | None = None
        """The broker that welcomed the client last."""
        self._keep_s = keep_s
        self._careful = self.durable or cursors is not None
        """The application must not miss any event: see `ClientHello.hold`."""
        self._given = dict(cursors or {})
        self._ready = False
        self._taken = 0  # publications of another process in this session
        self._credentials, self._instance = credentials, instance
        self._blames = 0
        self.client = client
        self._session = SessionState(client)
        self.window = Window(window)
        self.requests = Requests(self._session, self.window)
        self.parts = Parts(self._session, self.requests)
        self.moving = ClientMoves(self._session)
        self.streams = PubendStreams(self.requests.routes, cursors)
        self._incomplete: list[Delivered] = []
        """Frames that belong to a frame that has not arrived."""
        self._early: deque[list[Delivered]] = deque()
        """Frames that arrived before the decision that begins their subscriptions."""
        self._dropped = 0

    # ── queries for the driver ───────────────────────────────────────────────────────────

    @property
    def state(self) -> State:
        return self._session.state

    @property
    def epoch(self) -> str | None:
        return self._session.epoch

    @property
    def can_publish(self) -> bool:
        return self.state != "ended" and self.window.room > 0

    @property
    def certain(self) -> bool:
        """The fate of everything that another process published in this session is known."""
        return self.window.answered >= self._taken

    @property
    def at_rest(self) -> bool:
        """Connected, with no request, no publication and no move in progress."""
        requests, window = self.requests, self.window
        asks_nothing = not requests.unanswered and self.moving.asked is None
        return self.state == "open" and asks_nothing and window.settled == window.made

    def take(self) -> ClientOutput:
        """The frames and notices since the last call."""
        session = self._session
        taken = ClientOutput(session.send, session.happened)
        session.send, session.happened = [], []
        return taken

    # ── the application ──────────────────────────────────────────────────────────────────

    def request(
        self,
        kind: Kind,
        filter: Filter | None = None,
        *,
        target: int | None = None,
        wait: bool = True,
        timeout_s: float = 10.0,
        name: str = "",
        since: Mapping[str, int] | None = None,
    ) -> int:
        """Advertise or subscribe a filter, or remove the operation with handle `target`. A
        registration has a `name`, by which a later process finds it in a durable session. `since`
        is where a subscription starts in the past; None: at the client's cursors, if any."""
        requests = self.requests
        requests.check_asking(kind)
        undone = None
        if kind not in INVERSE:
            undone = requests.take_back(kind, target)
        elif filter is None:
            raise errors.MisuseError(f"{kind} needs a filter")
        if since is None:
            since = self._reach() if kind == "subscribe" else {}
        self._check_reach(since)
        made = requests.issue(kind, filter, undone, wait, timeout_s, name=name, since=since)
        return made.handle

    def abandon(self, handle: int) -> None:
        """The caller no longer waits for this request; withdraw what it may have put in force."""
        self.requests.abandon(handle, self.parts.undecided)
        self.parts.abandon(handle)
        self.moving.abandon(handle)

    def move(self, to: str, timeout_s: float = 10.0) -> int:
        """Ask to be moved to another broker, which is decided within `timeout_s` or not at all. One
        move at a time. Returns a handle; the answer has the broker's name."""
        self.moving.check_asking()
        handle = self.requests.next_handle()
        self.moving.ask(handle, to, timeout_s, self.broker)
        return handle

    def impatient(self) -> None:
        """Wait no longer for a session that is on its way: with the next connection, open a new one
        that starts at the client's own cursors. Without effect if the client is not on its way."""
        if self.moving.told is not None:
            self.moving.impatient = True

    def publish(self, bodies: Sequence[Raw], sure: bool = True) -> range:
        """Accept encoded events into the window; returns their ordinals. The broker logs `sure`
        ones before it accepts them, and they arrive exactly once."""
        if self.state == "ended":
            raise errors.ClosedError(f"cannot publish: the session of {self.client!r} has ended")
        if len(bodies) > self.window.room:
            raise errors.MisuseError(f"more than {self.window.size} publications are unsettled")
        ordinals = self.window.add(bodies, sure)
        if self.state == "open":
            self._session.send.extend(self.window.send_last(bodies, sure))
        return ordinals

    def processed(self, pubend: str, upto: int) -> None:
        """The application has acknowledged every event of a pubend up to this tick."""
        frame = self.streams.done(pubend, upto)
        if frame is not None and self.state == "open":
            self._session.send.append(frame)

    def ready(self) -> None:
        """The application has made its first subscriptions and starts reading."""
        if not self._ready:
            self._ready = True
            if self._careful and self.state == "open":
                self._session.send.append(Ready())

    def _reach(self) -> Mapping[str, int]:
        """A client without a session to continue starts at its own cursors."""
        return {} if self._ready or self.total_order else self._given

    def _check_reach(self, since: Mapping[str, int]) -> None:
        if since and self.total_order:
            raise errors.MisuseError(
                "a client in total order cannot ask for earlier events, because its merged streams "
                "only move forward; use another client in publisher order"
            )
        for pubend, tick in self.streams.begun().items():
            if pubend in since or "" in since:
                raise errors.TooLate(
                    f"{self.client} has already read {pubend} up to tick {tick}, so a subscription "
                    "cannot ask for its earlier events; subscribe before reading, or use another "
                    "client"
                )

    def goodbye(
        self, *, forget: bool = False, done: Mapping[int, dict[str, int]] = MappingProxyType({})
    ) -> None:
        """End the session; a durable one stays for the next process unless `forget` is set.
        `done` has the cursors, by handle, of subscriptions that are ahead of `processed`. Open
        requests fail with `ClosedError`."""
        if self.state in ("greeting", "open"):
            stay = self.durable and not forget
            of_ours = {o.sequence: done[h] for h, o in self.requests.standing.items() if h in done}
            self._session.send.append(Goodbye(stay, of_ours if stay else {}))
        if self.state != "ended":
            self._end(Failure("ClosedError", "the client was closed"))
        self._session.move("goodbye")

    # ── the connection ───────────────────────────────────────────────────────────────────

    def opened(self) -> None:
        self._session.move("opened")
        self._careful = self._careful or self.moving.impatient
        resume = None if self.moving.impatient else self.epoch
        answered = 0 if self.moving.impatient else self.requests.answered_upto
        cursors = dict(self.streams.received)
        hello = ClientHello(
            *(PROTOCOL_VERSION, self.client, resume, self._credentials, self._instance, answered),
            *(cursors, self._keep_s, self._careful, self.total_order),
            0 if resume is None else self.window.last_number,
        )
        self._session.send.append(self._hello(hello))

    def _hello(self, usual: ClientHello) -> Frame:
        return self.moving.hello(usual)

    def _take_early(self) -> None:
        """Deliver groups of frames while all their subscriptions are known."""
        while self._early and not any(map(self.parts.is_unheard_of, self._early[0])):
            for each in self._early.popleft():
                self._session.happened.extend(self.streams.take(each))

    def closed(self) -> None:
        self._incomplete.clear()  # the broker sends all of them again
        self._early.clear()
        self._session.move("closed")

    def received(self, frame: Frame) -> None:
        """A frame from the broker. Raises only `PeerError`s: then close the connection."""
        was = self._session.state
        match frame:
            case Deliver() if was == "open":
                self._blames = 0
                self._on_deliver(frame)
            case Delivered() if was == "open":
                self._blames = 0
                self._incomplete.append(frame)
                if not frame.more:
                    self._early.append(self._incomplete)
                    self._incomplete = []
                    self._take_early()
            case ProgressQuery() if was == "open":
                self._session.happened.append(ProgressDemand())
            case Beat():
                pass
            case Farewell() if was == "offline" and self.moving.told is not None:
                pass  # the broker closes the connection of a client that has moved
            case Farewell():
                self._on_farewell(frame)
            case _:
                self._session.move(type(frame).__name__, errors.ProtocolError)
                if was != "ended":
                    self._on_answer(frame)

    def _on_answer(self, frame: Frame) -> None:
        if type(frame) is not Welcome:
            self._blames = 0
        match frame:
            case Welcome():
                self._on_welcome(frame)
            case Done():
                self.parts.done(frame)
            case Failed():
                self.parts.failed(frame)
                self.requests.failed(frame)
            case Published():
                self._tell(self.window.published(frame))
            case Invited():
                self.parts.invited(frame)
            case Decided():
                self.parts.decided(frame)
                self._take_early()
            case Over():
                self.parts.over(frame)
            case MoveRefusal():
                self.moving.refused(frame)
            case Moved():
                self.moving.moved(frame)

    # ── the session ──────────────────────────────────────────────────────────────────────

    def _on_welcome(self, frame: Welcome) -> None:
        adopted = frame.resumed and self.durable and self.epoch is None
        resumed = frame.resumed and not adopted
        if resumed and frame.epoch != self.epoch and self.moving.impatient:
            # Our own, if its first welcome was lost: it has nothing yet, as if it were new.
            resumed = bool(frame.requests or frame.taken)
        if resumed and frame.epoch != self.epoch:
            self._session.state = "greeting"
            raise errors.ProtocolError(f"the broker resumed session {frame.epoch}, not ours")
        if not MIN_HEARTBEAT_S <= frame.heartbeat_s <= MAX_HEARTBEAT_S:
            self._session.state = "greeting"
            raise errors.ProtocolError(f"the heartbeat of {frame.heartbeat_s} s is out of range")
        how: Literal["fresh", "resumed", "lost", "adopted"]
        self._taken = frame.taken if frame.resumed else 0
        if adopted:
            how = "adopted"
            self._given = {}
            self.window.take_over(frame)
            self.requests.take_over(frame.requests, frame.standing)
            self.parts.planning = True  # the earlier process may have had plans
        elif resumed:
            how = "resumed"
            self._resume(frame)
        else:
            how = "fresh" if self.epoch is None else "lost"
            self._begin_again()
        self.broker = frame.broker
        self._session.epoch = frame.epoch
        self._dropped = 0  # brokers count per connection
        welcomed = Welcomed(how, frame.broker, frame.epoch, frame.lease_s, frame.heartbeat_s)
        self._session.happened.append(welcomed)
        self._send_everything_open()
        self.moving.welcomed(welcomed)

    def _on_farewell(self, frame: Farewell) -> None:
        final = self._is_final(frame)
        was = self.state
        self._session.move("dismissed" if final else "invited back", errors.ProtocolError)
        failure = Failure(frame.error, frame.text)
        if was == "ended":
            return
        if final:
            self._end(failure)
            self._session.happened.append(Dismissed(failure))
        else:
            self._session.happened.append(ConnectionEnd(failure))

    def _is_final(self, frame: Farewell) -> bool:
        kind = getattr(errors, frame.error, None)
        if not isinstance(kind, type):
            kind = errors.UnavailableError
        if kind is errors.ClientElsewhere and self.moving.impatient:
            self.moving.impatient = False  # a durable session has no second one: wait for it
            return False
        self._blames = self._blames + 1 if issubclass(kind, BLAME) else 0
        return issubclass(kind, FINAL) or self._blames >= MAX_BLAMES

    def _end(self, failure: Failure) -> None:
        self.requests.end(failure)
        self.moving.end(failure)
        self._tell(self.window.lose(self.window.made, failure))

    def _resume(self, frame: Welcome) -> None:
        try:
            self._tell(self.window.resume(frame))
        except errors.ProtocolError:
            self._session.state = "greeting"
            raise
        self._session.send.extend(self.streams.done_again())

    def _begin_again(self) -> None:
        """Renew everything that was in force in the new session, then send what is unanswered."""
        lost = Failure("Disconnected", LOST_ANSWER)
        self._tell(self.window.begin_again(lost))
        since = dict(self.streams.received) if self._careful else {}
        if not self._careful:
            if self.streams.begun():
                self.requests.reach_no_further()
            self.streams.begin_again()
        elif self.total_order:  # the gap is never filled, and its length is unknown
            gaps = [Missed(pubend, tick + 1, tick + 1) for pubend, tick in since.items()]
            self._session.happened.extend(gaps)
            since = {}
        void = self.parts.drop()
        self.requests.begin_again(since, void, self.parts.lost_answer)
        self.parts.renew_consent()

    def _send_everything_open(self) -> None:
        send = self._session.send
        for after, request in self.requests.send_again():
            send.extend(self.window.send(after))
            send.append(request)
        send.extend(self.window.send(self.window.made))
        if self._ready and self._careful:
            send.append(Ready())

    # ── events ───────────────────────────────────────────────────────────────────────────

    def _tell(self, settled: Iterable[Settled]) -> None:
        self._session.happened.extend(settled)

    def _on_deliver(self, frame: Deliver) -> None:
        routes = self.requests.routes
        batch = [(routes[d.subscriptions], d.publication) for d in frame.batch]
        dropped = max(0, frame.dropped - self._dropped)
        self._dropped += dropped
        self._session.happened.append(Arrived(batch, dropped))

    # ── for tests and the simulator ──────────────────────────────────────────────────────

    def validate(self) -> None:
        """Raise `InvariantError` if the machine contradicts itself."""
        requests, window = self.requests, self.window
        claims = (
            requests.claims()
            | self.moving.claims()
            | {
                "publications are in order": window.in_order(),
                "all is sent while open": self.state != "open" or window.sent == self.window.made,
                "what is processed was received": self.streams.consistent(),
                "an end leaves nothing open": self.state != "ended"
                or not (requests.unanswered or requests.standing or window.settled < window.made),
            }
        )
        broken = [claim for claim, holds in claims.items() if not holds]
        if broken:
            raise errors.InvariantError(f"client {self.client!r}: not true: {', '.join(broken)}")
