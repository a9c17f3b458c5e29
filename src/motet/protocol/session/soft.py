"""The soft half of sessions: connecting and leaving clients, their requests and notifications.

A client without a session to resume gets a new one; a durable client adopts the session of its
previous process. A client that would end a durable session unknowingly is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from itertools import islice
from typing import Any, Protocol, get_args

from motet.errors import (
    InvariantError,
    ProtocolError,
    StaleState,
    VersionError,
)
from motet.model import OpId
from motet.model.limits import LAST_SEQUENCE, MAX_CLIENT_ID_CHARS, MAX_KEEP_S
from motet.protocol.changes import Answered, ClientTold, Grouped, SessionFenced
from motet.protocol.contract import Close, Output, Remembered
from motet.protocol.delivery.soft import Streams
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.machine import way_out
from motet.protocol.link.soft import Inquiries
from motet.protocol.room import LISTED, Objection, Peer, SoftRoom
from motet.protocol.session.admission import Admission
from motet.protocol.session.facts import (
    DeadlinePassed,
    RequestReceived,
    SessionDropped,
    SessionEnded,
    SessionOpened,
)
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Goodbye,
    Refusal,
    Request,
    SubscribeRequest,
    Welcome,
)
from motet.protocol.session.state import Session
from motet.protocol.shared import ClientSoft, SharedState

REFUSED_BEFORE = (
    "refused before the broker was restarted, because it was not advertised; advertise it first, "
    "then publish it again"
)


class Carried(Protocol):
    """Publications of a session at its former brokers."""

    carried: int
    refused: tuple[Refusal, ...]
    forgotten: int


class SoftSessions(SoftRoom):
    concerns = frozenset({Answered, ClientTold, SessionFenced})

    def __init__(self, shared: SharedState, streams: Streams, inquiries: Inquiries) -> None:
        self._shared = shared
        self._streams = streams
        self._inquiries = inquiries
        self.admission = Admission(shared.config, shared.clients)
        self.holders: list[tuple[type, Sized, Callable[[Session, Request, Output], bool]]] = []
        """Each decides whether a request must wait, and then keeps it. It is called for one kind of
        request, and for all kinds while it keeps any."""
        self.objectors: dict[type, Callable[[Session, Any], Objection | None]] = {
            SubscribeRequest: streams.objection
        }
        """By type of request: the objection to it, for a reason that is not in durable state."""
        self.ahead: dict[type, Callable[[Any, Output, float], None]] = {}
        """By type of request: called with one that is about to be taken."""
        self.redirect: Callable[[int, ClientHello, Output], bool] = lambda *_: False
        """Whether a client was sent on to the broker that its session has moved to."""
        self.guard: Callable[[ClientHello], Objection | None] = lambda _: None
        """Why a client cannot have this id: a hosted client has it."""
        self.carried: Callable[[str, str], Carried | None] = lambda *_: None
        """What a session has brought along from another broker."""
        self.welcomed: Callable[[str, Output, float], None] = lambda *_: None
        """Called when a client has been welcomed."""

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {
            ClientHello: self._client_hello,
            Goodbye: self._goodbye,
            **dict.fromkeys(get_args(Request), self._request),
        }

    def closings(self) -> Mapping[str, Callable[[int, Peer, Output, float], None]]:
        return {"client": self._closed}

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"lease": self._lease, "deadline": self._deadline, "verdict": self._verdict}

    def changed(self, changes: Grouped, out: Output, now: float) -> None:
        clients = self._shared.clients
        for answered in changes.get(Answered, ()):
            soft = clients.get(answered.client)
            if soft is not None and soft.connection:
                out.deliver.append((soft.connection, answered.reply))
            self._streams.effective(answered.client, out, now)
        for notified in changes.get(ClientTold, ()):
            soft = clients.get(notified.client)
            if soft is not None and soft.connection:
                out.deliver.append((soft.connection, notified.told))
        for fenced in changes.get(SessionFenced, ()):
            soft = clients.get(fenced.client)
            if soft is None:
                continue  # it had arrived with a move in the same fact
            connection = soft.connection
            if connection:
                out.close.append(self._fencing(connection, fenced.client, fenced.newer))
                self._shared.unbind(connection)
            del clients[fenced.client]

    def account(self) -> dict[str, Any]:
        clients, durable = self._shared.clients, self._shared.durable.routing.state.clients.durable
        return {
            "sessions": {
                name: {
                    "epoch": soft.epoch,
                    "connected": bool(soft.connection),
                    "durable": (name, soft.epoch) in durable,
                    "published": soft.published,
                    "lost_deliveries": soft.lost,
                }
                for name, soft in sorted(islice(clients.items(), LISTED))
            },
            "session_count": len(clients),
            "sessions_away": sum(not soft.connection for soft in clients.values()),
            "admission": self.admission.account(),
        }

    def validate(self) -> None:
        sessions = {(s.client, s.epoch) for s in self._shared.durable.sessions}
        if sessions != {(name, soft.epoch) for name, soft in self._shared.clients.items()}:
            raise InvariantError("the sessions are not those of the clients")

    def recall(self, remembered: Remembered) -> None:
        """After a restart: take from the log which publications of each session it has."""
        for session in self._shared.durable.sessions:
            soft, key = self._shared.clients[session.client], (session.client, session.epoch)
            logged = remembered.published.get(key, 0)
            soft.published = soft.settled = max(logged, session.published)
            soft.refused = tuple(
                Refusal(sequence, "NotAdvertised", REFUSED_BEFORE)
                for sequence in remembered.skipped.get(key, ())
                if sequence > session.published
            )
            carried = self.carried(*key)
            if carried is not None:
                soft.published = soft.settled = max(soft.published, carried.carried)
                soft.refused = (*carried.refused, *soft.refused)
                soft.forgotten = carried.forgotten

    # ── timers ───────────────────────────────────────────────────────────────────────────

    def _lease(self, key: tuple[str, str, str], out: Output, now: float) -> None:
        _, client, epoch = key
        soft = self._shared.clients.get(client)
        if soft is not None and soft.epoch == epoch and not soft.connection:
            self._end_session(client, epoch, out, now)

    def _deadline(self, key: tuple[str, str, str, int], out: Output, now: float) -> None:
        self._inquiries.begin(OpId(*key[1:]), out, now)

    def _verdict(self, key: tuple[str, str, str, int], out: Output, now: float) -> None:
        op = OpId(*key[1:])
        missing = self._inquiries.verdict(op)
        if op in self._shared.durable.requests.deadlines:
            self._shared.journal(DeadlinePassed(op, missing), out, now)

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def _request(
        self, connection: int, peer: Peer, request: Request, out: Output, now: float
    ) -> None:
        soft, sessions = self._shared.clients[peer.name], self._shared.durable.sessions
        session = sessions.current(peer.name, soft.epoch)
        assert session is not None
        if not request.timeout_s >= 0:
            raise ProtocolError(f"the timeout of {request.timeout_s} s is negative")
        for kind, held, holds in self.holders:
            if (held or type(request) is kind) and holds(session, request, out):
                return
        if sessions.is_new(session, request):
            self.take(session, request, out, now)
            return
        again = sessions.answer_again(session, request.sequence)
        if again is not None:
            out.deliver.append((connection, again))

    def take(
        self,
        session: Session,
        request: Request,
        out: Output,
        now: float,
        objection: Objection | None = None,
    ) -> None:
        """Journal a request, which takes effect or is refused."""
        objects = self.objectors.get(type(request))
        if objection is None and objects is not None:
            objection = objects(session, request)
        wrong = ("", "") if objection is None else (objection.error, objection.text)
        if type(request) in self.ahead:
            self.ahead[type(request)](request, out, now)
        tick = self._streams.next_tick(now)
        who = (session.client, session.epoch)
        advertises = type(request) is AdvertiseRequest
        published = self._shared.clients[session.client].published if advertises else 0
        fact = RequestReceived(*who, request, tick, wrong, True, published)
        self._shared.journal(fact, out, now)

    # ── hello and goodbye ────────────────────────────────────────────────────────────────

    def _client_hello(
        self, connection: int, peer: None, hello: ClientHello, out: Output, now: float
    ) -> None:
        del peer
        if self.lets_in(connection, hello, out, now) and not self.redirect(connection, hello, out):
            self.greet(connection, hello, out, now)

    def lets_in(self, connection: int, hello: ClientHello, out: Output, now: float) -> bool:
        """Check a hello before anything else; a client that may not be here loses its
        connection."""
        self._check_hello(hello)
        objection = self.admission.to_connection(hello.client, hello.credentials)
        if objection is not None:
            self._shared.expel(connection, objection.exception(), out, now)
        return objection is None

    def greet(
        self, connection: int, hello: ClientHello, out: Output, now: float, *, hosted: bool = False
    ) -> None:
        sessions = self._shared.durable.sessions
        forgotten = sessions.forgotten(hello.client, hello.resume, hello.answered)
        if forgotten:  # our state may be stale, but the client may also be wrong: keep running
            text = f"{forgotten}: {way_out(self._shared.name)}"
            self._shared.expel(connection, StaleState(text), out, now)
            return
        session = sessions.get(hello.client)
        objection = None if hosted else self.guard(hello)
        objection = objection or self._objection_to(hello, session)
        if objection is not None:
            self._shared.expel(connection, objection.exception(), out, now)
            return
        newer = self._shared.durable.requests.newer_than(hello.client, hello.resume, hello.instance)
        if newer is not None:
            out.close.append(self._fencing(connection, hello.client, newer))
            return
        resume, adopts = hello.resume, False
        if resume is None and hello.keep_s and session is not None and session.durable:
            # If only its last process knows which numbers are used, a new session is opened.
            counted = hosted or not session.uncounted
            resume, adopts = (session.epoch, True) if counted else (None, False)
        if session is None or resume != session.epoch:
            objection = self.admission.to_session(hello.client, now)
            if objection is not None:
                self._shared.expel(connection, objection.exception(), out, now)
                return
        before = self._shared.clients.get(hello.client)
        wanted = (hello.client, resume, hello.instance, hello.keep_s, hello.total_order)
        self._shared.journal(
            SessionOpened(*wanted, hello.published, not hello.total_order), out, now
        )
        session = sessions.get(hello.client)
        assert session is not None
        if before is not None and before.connection:
            out.close.append(self._fencing(before.connection, hello.client, session.epoch))
            self._shared.unbind(before.connection)
        resumed = before is not None and before.epoch == resume
        if before is None or not resumed:
            before = self._shared.clients[hello.client] = ClientSoft(session.epoch)
        before.connection = connection
        before.credentials = hello.credentials
        before.published = max(before.published, session.published)
        before.settled = max(before.settled, session.published)
        before.resent = max(sessions.sent_before.get(hello.client, {}).values(), default=0)
        self._shared.peers[connection] = Peer("client", hello.client)
        out.deliver.append((connection, self._welcome(session, before, resumed, adopts)))
        called = self._shared.durable.transactions.open_invitations(session.client, session.epoch)
        out.deliver += [(connection, each) for each in (*session.retold(), *called)]
        self._streams.attach(hello, out, now)
        self.welcomed(hello.client, out, now)

    def _check_hello(self, hello: ClientHello) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"client speaks version {hello.version}, {self._shared.name} speaks "
                f"{PROTOCOL_VERSION}: use the same release of motet on both sides"
            )
        if not 0 < len(hello.client) <= MAX_CLIENT_ID_CHARS or not hello.client.isprintable():
            raise ProtocolError(f"a client id is 1 to {MAX_CLIENT_ID_CHARS} printable characters")
        if len(hello.instance) > MAX_CLIENT_ID_CHARS:
            raise ProtocolError(f"an instance has at most {MAX_CLIENT_ID_CHARS} characters")
        if not 0 <= hello.published <= LAST_SEQUENCE:
            raise ProtocolError(f"publication {hello.published} is not a sequence")
        if not 0 <= hello.keep_s <= MAX_KEEP_S:
            raise ProtocolError(f"a session is kept for at most {MAX_KEEP_S:g} s")

    def _objection_to(self, hello: ClientHello, session: Session | None) -> Objection | None:
        """Why a client is refused its session: it would end or take over a durable one, or resume
        one in another order, which does not fit the events already delivered."""
        who = hello.client
        goes_on = session is not None and (
            hello.resume == session.epoch or (session.durable and hello.keep_s > 0)
        )
        if session is not None and goes_on and session.total_order != hello.total_order:
            had, asked = ("total", "publisher") if session.total_order else ("publisher", "total")
            return Objection(
                "MisuseError",
                f"session {session.epoch} of {who!r} has the order {had!r} and cannot continue "
                f"with {asked!r}: connect with `order={had!r}`, or as another client",
            )
        if session is not None and session.durable:
            if not hello.keep_s and hello.resume != session.epoch:
                return Objection(
                    "SessionIsDurable",
                    f"{who!r} has a durable session at {self._shared.name}: connect with "
                    "`durable=True` to continue it, close it with `discard_session=True` to end "
                    "it, or use another client id",
                )
            return None
        clients = self._shared.durable.routing.state.clients
        newest = clients.newest(who) if hello.resume is None else None
        if newest is not None and (who, newest) in clients.durable:
            return Objection(
                "ClientElsewhere",
                f"the durable session of {who!r} is at {clients.home(who)}: connect there, "
                "or close it there with `discard_session=True` first",
            )
        return None

    def _welcome(self, session: Session, soft: ClientSoft, resumed: bool, adopts: bool) -> Welcome:
        return Welcome(
            self._shared.name,
            session.epoch,
            resumed,
            soft.settled,
            session.keep_s or self._shared.config.lease_s,
            soft.refused,
            soft.forgotten,
            self._shared.config.heartbeat_s,
            soft.forgot,
            session.requests,
            soft.published,
            self._shared.durable.requests.standing(session) if adopts else (),
            session.published,
        )

    def _goodbye(
        self, connection: int, peer: Peer, frame: Goodbye, out: Output, now: float
    ) -> None:
        soft = self._shared.clients[peer.name]
        session = self._shared.durable.sessions.current(peer.name, soft.epoch)
        if frame.stay and session is not None and session.durable:
            wanted = session.names.keys()
            done = {s: ticks for s, ticks in frame.done.items() if s in wanted}
            self._shared.unbind(connection)
            self._streams.detach(peer.name, out, now)
            self._drop(peer.name, out, now, done)
        else:
            self._shared.unbind(connection)
            self._streams.detach(peer.name, out, now)
            self._end_session(peer.name, soft.epoch, out, now)
        out.close.append(Close(connection, "", "goodbye"))

    def _drop(self, client: str, out: Output, now: float, done: dict[int, dict[str, int]]) -> None:
        """A client is gone, but its session remains."""
        epoch = self._shared.clients[client].epoch
        session = self._shared.durable.sessions.current(client, epoch)
        cursors: dict[str, int] = {}
        if session is not None and session.durable:
            cursors = self._streams.left(session, done)
        taken = self._shared.clients[client].published
        self._shared.journal(SessionDropped(client, epoch, cursors, done, taken), out, now)

    def _end_session(self, client: str, epoch: str, out: Output, now: float) -> None:
        del self._shared.clients[client]
        self._shared.journal(SessionEnded(client, epoch), out, now)

    def _closed(self, connection: int, peer: Peer, out: Output, now: float) -> None:
        del connection
        self._streams.detach(peer.name, out, now)
        self._drop(peer.name, out, now, {})

    def _fencing(self, connection: int, client: str, newer: str) -> Close:
        home = self._shared.durable.routing.state.clients.home_of(client, newer)
        text = f"another client connected to {home} as {client!r} (session {newer})"
        return Close(connection, "Fenced", text)
