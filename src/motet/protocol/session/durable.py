"""The durable half of sessions: their lifetime, their requests with answers and deadlines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct, msgpack

from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.model.ids import is_newer
from motet.model.limits import MAX_KEEP_S
from motet.protocol.changes import (
    Answered,
    Changes,
    ClientHeard,
    ClientTold,
    Completed,
    SessionClosed,
    SessionFenced,
    SessionInterrupted,
    StartLapsed,
)
from motet.protocol.contract import CancelTimer, SetTimer, TimerKey
from motet.protocol.image import HeadImage, chunked
from motet.protocol.room import Bus, DurableRoom, Handler, Objection
from motet.protocol.routing.messages import ClientHere
from motet.protocol.routing.starts import Joins, Starts
from motet.protocol.routing.state import RoutingState
from motet.protocol.session.facts import (
    RequestReceived,
    SessionDropped,
    SessionEnded,
    SessionOpened,
)
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    Decided,
    Done,
    Failed,
    Invited,
    Over,
    Request,
    StandingEntry,
)
from motet.protocol.session.state import (
    GRANTED,
    DeadlinesImage,
    MovingSession,
    Session,
    SessionsImage,
)

NOWHERE = 1 << 62
"""Above every tick: the subscription no longer reaches into the past of that pubend."""
LONGEST_TIMEOUT_S = 3600.0


class Terms(Struct, frozen=True, gc=False):
    """The conditions under which a request takes effect."""

    refused: Objection | None = None
    """The request is refused, for a reason that is not in durable state."""
    tick: int = 0
    """The next tick of our pubend."""
    patient: bool = True
    """The request waits if there is no route to the root."""


RequestHandler = Callable[[OpId, Any, Terms], None]


class Entries(Protocol):
    """What sessions need of routing."""

    @property
    def state(self) -> RoutingState: ...
    @property
    def starts(self) -> Starts: ...
    @property
    def joins(self) -> Joins: ...

    def end(self, client: str, epoch: str) -> Changes: ...


class SessionParts(Protocol):
    """How transactions delay an answer, and are told of it. Both methods are called only while a
    transaction may be concerned."""

    @property
    def open(self) -> Collection[str]: ...
    @property
    def touched(self) -> Collection[str]: ...

    def postpone(self, op: OpId) -> bool: ...
    def effective(self, op: OpId, *, failed: bool) -> None: ...


class DurableSessions(DurableRoom):
    name = "sessions"
    moving = MovingSession

    def __init__(
        self, bus: Bus, sessions: Sessions, routing: Entries, parts: SessionParts, lease_s: float
    ) -> None:
        self._bus = bus
        self._sessions = sessions
        self._routing = routing
        self._parts = parts
        self._lease_s = lease_s
        self.requests: dict[type, RequestHandler] = {}
        """By type of request; each room registers its own."""
        self.deadlines: dict[OpId, tuple[float, float]] = {}
        """Of every pending request: its deadline, and the timeout that the client asked for."""

    def facts(self) -> Mapping[type, Handler]:
        return {
            SessionOpened: self._opened,
            SessionDropped: self._dropped,
            SessionEnded: self._session_ended,
            RequestReceived: self._request_received,
        }

    def reactions(self) -> Mapping[type, Handler]:
        return {
            Completed: self._completed,
            StartLapsed: self._lapsed,
            ClientHeard: self._heard_of,
        }

    def parts(self) -> Mapping[type[Struct], Iterable[Any]]:
        deadlines = ((op, at, timeout_s) for op, (at, timeout_s) in self.deadlines.items())
        return {
            HeadImage: [{"issued": self._sessions.issued}],
            SessionsImage: chunked(SessionsImage, self._sessions),
            DeadlinesImage: chunked(DeadlinesImage, deadlines),
        }

    def takers(self) -> Mapping[type[Struct], Handler]:
        return {
            HeadImage: self._take_head,
            SessionsImage: self._take_sessions,
            DeadlinesImage: self._take_deadlines,
        }

    def image(self) -> bytes:
        sent_before = self._sessions.sent_before
        return msgpack.encode(sent_before) if sent_before else b""

    def restore(self, image: bytes) -> None:
        self._sessions.sent_before = msgpack.decode(image, type=dict[str, dict[int, int]])

    def _take_head(self, head: HeadImage) -> None:
        self._sessions.issued = head.issued

    def _take_sessions(self, part: SessionsImage) -> None:
        for session in part.rows:
            self._sessions.restore(session)
            if session.total_order:
                self._routing.joins.enter(session.client)

    def _take_deadlines(self, part: DeadlinesImage) -> None:
        self.deadlines.update((op, (at, timeout_s)) for op, at, timeout_s in part.rows)

    def hand_out(self, client: str, epoch: str) -> MovingSession | None:
        session = self._sessions.current(client, epoch)
        if session is None:
            return None
        return MovingSession(session.copied(), dict(self._sessions.sent_before.get(client, {})))

    def fits(self, client: str, epoch: str, part: Struct) -> bool:
        if not isinstance(part, MovingSession):
            return False
        session = part.session
        numbers = (session.requests, session.taken, session.published, session.granted)
        return (
            (session.client, session.epoch) == (client, epoch)
            and 0 <= session.keep_s <= MAX_KEEP_S
            and all(0 <= each <= NOWHERE for each in numbers)
        )

    def take_in(self, client: str, epoch: str, part: Struct) -> None:
        assert isinstance(part, MovingSession)
        assert part.session.client == client
        self._sessions.heard(epoch)
        self._take_sessions(SessionsImage((part.session.copied(),)))
        if part.sent_before:
            self._sessions.sent_before[client] = dict(part.sent_before)
        session = self._sessions.current(client, epoch)
        assert session is not None
        session.left_at = self._bus.now
        at = session.expires_at(self._bus.now, self._lease_s)
        self._bus.emit(SetTimer(("lease", client, epoch), at))

    def recover(self, now: float) -> list[SetTimer]:
        """Leases and deadlines restart in full: while the broker was down they could be neither
        renewed nor met. The retention time of a durable session continues."""
        leases = [
            SetTimer(("lease", s.client, s.epoch), s.expires_at(now, self._lease_s))
            for s in self._sessions
        ]
        deadlines = [
            SetTimer(deadline_key(op), now + timeout_s)
            for op, (_, timeout_s) in self.deadlines.items()
        ]
        return leases + deadlines

    def validate(self) -> None:
        state = self._routing.state
        for session in self._sessions:
            if state.clients.newest(session.client) != session.epoch:
                raise InvariantError(f"{session.epoch} of {session.client} is not the newest")
        for op in self.deadlines:
            if op not in state.waits:
                raise InvariantError(f"{op} has a deadline, but does not wait")

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def _opened(self, fact: SessionOpened) -> None:
        session = self._sessions.get(fact.client)
        if session is not None and session.epoch == fact.resume:
            self._cancel(("lease", session.client, session.epoch))
            if session.instance != fact.instance:  # what its last process began is unknown
                self._bus.emit(SessionInterrupted(session.client, session.epoch))
                session.willing = False
                # The new process may use the numbers of lost events.
                self._sessions.sent_before.pop(session.client, None)
            session.instance = fact.instance
            session.keep_s = fact.keep_s or session.keep_s
            session.left_at = None
            if session.uncounted:
                session.published = max(session.published, fact.published)
                session.uncounted = False
            return
        if session is not None:
            self._end(session)
        session = self._sessions.open(fact.client, fact.instance, fact.resume, fact.total_order)
        session.keep_s = fact.keep_s
        if session.total_order:
            self._routing.joins.enter(session.client)
        here = ClientHere(session.client, session.epoch, session.durable, fact.plain)
        self._bus.route(here, Hop.client(session.client))

    def newer_than(self, client: str, resume: str | None, instance: str) -> str | None:
        """The session that fences a client that reconnects, or None."""
        newest = self._routing.state.clients.newest(client)
        if resume is None or newest is None:
            return None
        session = self._sessions.current(client, newest)
        if newest == resume and session is not None and session.durable:
            # A later process of the client has resumed it.
            return newest if session.instance != instance else None
        if not is_newer(newest, than=resume):
            return None
        if session is not None and instance and session.instance == instance:
            return None  # the client's own session, whose welcome was lost
        return newest

    def _heard_of(self, heard: ClientHeard) -> None:
        """A session was opened at another broker; an older one of the same client ends here."""
        client, epoch = heard.client, heard.epoch
        self._sessions.heard(epoch)
        session = self._sessions.get(client)
        if session is not None and is_newer(epoch, than=session.epoch):
            self._end(session)
            self._bus.emit(SessionFenced(client, epoch))

    def _dropped(self, fact: SessionDropped) -> None:
        session = self._sessions.current(fact.client, fact.epoch)
        if session is not None:
            session.left_at = self._bus.now
            session.taken = max(session.taken, fact.published)
            session.note(fact.cursors)
            session.done.update(fact.done)
            at = session.expires_at(self._bus.now, self._lease_s)
            self._bus.emit(SetTimer(("lease", fact.client, fact.epoch), at))

    def _session_ended(self, fact: SessionEnded) -> None:
        session = self._sessions.current(fact.client, fact.epoch)
        if session is not None:
            self._end(session)

    def _end(self, session: Session) -> None:
        self._cancel(("lease", session.client, session.epoch))
        self._bus.emit(SessionInterrupted(session.client, session.epoch))
        self._bus.settle()  # before its operations are removed: an abort may remove some itself
        self._bus.carry(self._routing.end(session.client, session.epoch))
        for sequence in sorted(session.unanswered):
            self.forget_deadline(OpId(session.client, session.epoch, sequence))
        self._sessions.end(session)
        self._bus.emit(SessionClosed(session.client, session.epoch))

    def depart(self, session: Session) -> None:
        """A session goes to another broker: here it is over, without an end."""
        self._cancel(("lease", session.client, session.epoch))
        self._sessions.end(session)

    def fence(self, session: Session) -> None:
        """End a session whose client has a newer one."""
        self._end(session)

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def _request_received(self, fact: RequestReceived) -> None:
        session = self._sessions.current(fact.client, fact.epoch)
        request = fact.request
        if session is None or not self._sessions.is_new(session, request):
            raise InvariantError("the journal has a request that must not take effect")
        self._sessions.accept(session, request, fact.published)
        self._routing.starts.advance(fact.tick)
        op = OpId(session.client, session.epoch, request.sequence)
        refused = Objection(*fact.refused) if fact.refused[0] else None
        terms = Terms(refused, fact.tick, fact.patient)
        self.requests[type(request)](op, request, terms)

    def obey(self, op: OpId, request: Request) -> None:
        """Apply a request that had to wait."""
        if self._sessions.current(op.client, op.epoch) is not None:
            self.requests[type(request)](op, request, Terms())

    def expect(self, op: OpId, timeout_s: float) -> None:
        """Set the deadline of a request."""
        timeout_s = min(max(timeout_s, 0.0), LONGEST_TIMEOUT_S)
        at = self._bus.now + timeout_s
        self.deadlines[op] = (at, timeout_s)
        self._bus.emit(SetTimer(deadline_key(op), at))

    def answer(self, op: OpId, reply: Done | Failed) -> None:
        self.forget_deadline(op)
        session = self._sessions.current(op.client, op.epoch)
        if session is not None and self._sessions.answer(session, reply):
            self._bus.emit(Answered(op.client, reply))
        if self._parts.open:
            self._parts.effective(op, failed=isinstance(reply, Failed))

    def refuse(self, op: OpId, refused: Objection) -> None:
        self.answer(op, Failed(op.sequence, refused.error, refused.text))

    def _completed(self, completed: Completed) -> None:
        op = completed.op
        if completed.withdrawn:
            # The text is kept with the session, and a golden journal has it.
            text = f"operation {op.sequence} was taken back before it was effective"
            self.answer(op, Failed(op.sequence, "Withdrawn", text))
        elif self._parts.touched and self._parts.postpone(op):
            self.forget_deadline(op)  # no other broker is waited for any more
        else:
            self.answer(op, Done(op.sequence))

    def _lapsed(self, lapsed: StartLapsed) -> None:
        self.forgo(lapsed.op, lapsed.pubend)

    def forgo(self, op: OpId, pubend: str) -> None:
        """Where a subscription is owed nothing, it no longer reaches into the past either."""
        session = self._sessions.current(op.client, op.epoch)
        since = session.since.get(op.sequence) if session is not None else None
        if session is not None and since is not None:
            session.since[op.sequence] = {**since, pubend: NOWHERE}

    def tell(self, client: str, told: Invited | Decided | Over) -> None:
        session = self._sessions.get(client)
        if session is not None and not isinstance(told, Invited):  # stays open until answered
            session.hear(told)
        self._bus.emit(ClientTold(client, told))

    def forget_deadline(self, op: OpId) -> None:
        if self.deadlines.pop(op, None) is not None:
            self._cancel(deadline_key(op))

    def _cancel(self, key: TimerKey) -> None:
        self._bus.emit(CancelTimer(key))

    # ── names ────────────────────────────────────────────────────────────────────────────

    def name_made(self, op: OpId, kind: str, name: str) -> None:
        """Record the name of an entry that a plan adds."""
        session = self._sessions.current(op.client, op.epoch)
        if session is not None:
            session.advertised = session.advertised or kind == "advertise"
            self._sessions.name(session, op.sequence, name)

    def standing(self, session: Session) -> tuple[StandingEntry, ...]:
        """The entries that are in force in a durable session, for a process that resumes it."""
        state = self._routing.state
        found: list[StandingEntry] = []
        for sequence, name in session.names.items():
            op = OpId(session.client, session.epoch, sequence)
            answered = sequence not in session.unanswered
            kind: Literal["advertise", "subscribe"] = "subscribe"
            entry = state.subscriptions.get(op)
            if entry is None and op not in state.retired:
                kind, entry = "advertise", state.advertisements.get(op)
            if entry is None or (entry.tx and sequence > GRANTED):
                continue  # if a plan adds it, the decision reports it
            found.append(StandingEntry(sequence, kind, name, entry.filter, answered))
        return tuple(found)


def deadline_key(op: OpId) -> TimerKey:
    return ("deadline", *op)
