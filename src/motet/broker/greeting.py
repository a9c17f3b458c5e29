"""The soft half of a broker towards clients that come: who may have which session.

`core` is built on this. A client without a session to go on with gets a new one; a durable client
gets the one that its last process has left. Whoever would end a durable session without knowing of
it is refused.
"""

from __future__ import annotations

from msgspec import Struct

from motet.broker import facts
from motet.broker.linking import Linking, Peer
from motet.errors import (
    ClientElsewhere,
    MisuseError,
    MotetError,
    ProtocolError,
    SessionIsDurable,
    StaleState,
    VersionError,
)
from motet.model.epochs import broker_of
from motet.model.limits import LAST_SEQUENCE, MAX_CLIENT_ID_CHARS, MAX_KEEP_S
from motet.protocol.contract import Close, Output
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.machine import way_out
from motet.protocol.session.messages import ClientHello, Refusal, Welcome
from motet.protocol.session.state import Session


class ClientSoft(Struct):
    """A client's current connection. `published` is the last publication that we have taken,
    `settled` the last that was answered: between them are those on their way into the log."""

    epoch: str
    connection: int = 0
    published: int = 0
    settled: int = 0
    forgot: bool = False
    """Since a restart we do not know which best-effort ones we have seen."""
    lost: int = 0
    refused: tuple[Refusal, ...] = ()
    """Of its publications, in case the answer that said so is lost with the connection."""
    forgotten: int = 0
    """Refusals up to this publication are not remembered any more."""


class Greeting(Linking):
    clients: dict[str, ClientSoft]

    def _client_hello(
        self, connection: int, peer: None, hello: ClientHello, out: Output, now: float
    ) -> None:
        del peer
        self._check_hello(hello)
        sessions = self.durable.sessions
        forgotten = sessions.forgotten(hello.client, hello.resume, hello.answered)
        if forgotten:  # it is we who are wrong, but whoever says so may be, too: we go on
            text = f"{forgotten}: {way_out(self.config.name)}"
            self._expel(connection, StaleState(text), out, now)
            return
        session = sessions.get(hello.client)
        objection = self._objection_to(hello, session)
        if objection is not None:
            self._expel(connection, objection, out, now)
            return
        newer = self.durable.newer_than(hello.client, hello.resume, hello.instance)
        if newer is not None:
            out.close.append(fencing(connection, hello.client, newer))
            return
        resume, adopts = hello.resume, False
        if resume is None and hello.keep_s and session is not None and session.durable:
            # If only its last process knows which numbers are used, the next one begins anew.
            resume, adopts = (None, False) if session.uncounted else (session.epoch, True)
        before = self.clients.get(hello.client)
        wanted = (hello.client, resume, hello.instance, hello.keep_s, hello.total_order)
        self._journal(facts.SessionOpened(*wanted, hello.published), out, now)
        session = sessions.get(hello.client)
        assert session is not None
        if before is not None and before.connection:
            out.close.append(fencing(before.connection, hello.client, session.epoch))
            self._unbind(before.connection)
        resumed = before is not None and before.epoch == resume
        if before is None or not resumed:
            before = self.clients[hello.client] = ClientSoft(session.epoch)
        before.connection = connection
        before.published = max(before.published, session.published)
        before.settled = max(before.settled, session.published)
        self.peers[connection] = Peer("client", hello.client)
        out.deliver.append((connection, self._welcome(session, before, resumed, adopts)))
        called = self.durable.transactions.open_invitations(session.client, session.epoch)
        out.deliver += [(connection, each) for each in (*session.retold(), *called)]
        self.streams.attach(hello, out, now)

    def _check_hello(self, hello: ClientHello) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"client speaks version {hello.version}, {self.config.name} speaks "
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

    def _objection_to(self, hello: ClientHello, session: Session | None) -> MotetError | None:
        """Why a client may not have the session that it asks for, if it would end, or take back,
        a durable one, or go on with one in another order: what it was given does not fit that."""
        who = hello.client
        goes_on = session is not None and (
            hello.resume == session.epoch or (session.durable and hello.keep_s > 0)
        )
        if session is not None and goes_on and session.total_order != hello.total_order:
            had, asked = ("total", "publisher") if session.total_order else ("publisher", "total")
            return MisuseError(
                f"session {session.epoch} of {who!r} has the order {had!r} and cannot go on with "
                f"{asked!r}: connect with `order={had!r}`, or as another client"
            )
        if session is not None and session.durable:
            if not hello.keep_s and hello.resume != session.epoch:
                return SessionIsDurable(
                    f"{who!r} has a durable session at {self.config.name}: connect with "
                    "`durable=True` to go on with it, close it with `forget=True` to end it, or "
                    "take another client id"
                )
            return None
        clients = self.durable.routing.state.clients
        newest = clients.newest(who) if hello.resume is None else None
        if newest is not None and (who, newest) in clients.durable:
            return ClientElsewhere(
                f"the durable session of {who!r} lives at {broker_of(newest)}: connect there, "
                "or close it there with `forget=True` first"
            )
        return None

    def _welcome(self, session: Session, soft: ClientSoft, resumed: bool, adopts: bool) -> Welcome:
        return Welcome(
            self.config.name,
            session.epoch,
            resumed,
            soft.settled,
            session.keep_s or self.config.lease_s,
            soft.refused,
            soft.forgotten,
            self.config.heartbeat_s,
            soft.forgot,
            session.requests,
            soft.published,
            self.durable.standing(session) if adopts else (),
            session.published,
        )


def fencing(connection: int, client: str, newer: str) -> Close:
    text = f"another client connected to {broker_of(newer)} as {client!r} (session {newer})"
    return Close(connection, "Fenced", text)
