"""The broker as one deterministic, single-threaded machine: `step(input, now) -> Output`.

This file is the soft half and the composition. It knows connections, decides what an input
means, and turns what must last into facts; `durable` applies them. Publications pass through
here and leave no durable trace.

No clock, socket, thread, randomness or set order: the same inputs give the same outputs under
asyncio, in one process and in the simulator.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from motet.broker import facts
from motet.broker.account import account_of
from motet.broker.config import BrokerConfig
from motet.broker.durable import Consequences, Durable
from motet.broker.inquiry import Inquiries
from motet.broker.linking import Counts, Linking, Peer
from motet.broker.router import Router
from motet.errors import (
    InvariantError,
    MotetError,
    PeerError,
    ProtocolError,
    StaleState,
    VersionError,
)
from motet.model import OpId
from motet.model.epochs import broker_of
from motet.model.limits import MAX_CLIENT_ID_CHARS
from motet.protocol.contract import (
    Close,
    Closed,
    Dialled,
    Fact,
    Input,
    Output,
    Received,
    Reconfigured,
    TimerFired,
)
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.machine import Link, way_out
from motet.protocol.link.messages import (
    Control,
    ControlAck,
    Inquire,
    LinkHello,
    Publications,
    Waiting,
)
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Goodbye,
    Publish,
    Refusal,
    Request,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
    Welcome,
)

REMEMBERED_REFUSALS = 64
LAST_SEQUENCE = 2**53


class ClientSoft(Struct):
    """A client's current connection. `published` is -1 when we do not know any more."""

    epoch: str
    connection: int = 0
    published: int = 0
    lost: int = 0
    refused: tuple[Refusal, ...] = ()
    """Of its publications, in case the answer that said so is lost with the connection."""
    forgotten: int = 0
    """Refusals up to this publication are not remembered any more."""


class BrokerCore(Linking):
    def __init__(self, config: BrokerConfig, durable: Durable | None = None) -> None:
        """A new broker; or, with what a journal gave back, one that goes on."""
        self.durable = durable or Durable(config)
        self.config = replace(config, neighbours=tuple(self.durable.ledgers))
        self.links = {
            name: Link(config.name, ledger) for name, ledger in self.durable.ledgers.items()
        }
        self.clients = {
            session.client: ClientSoft(session.epoch, published=-1)
            for session in self.durable.sessions
        }
        self.peers: dict[int, Peer] = {}
        self.router = Router(self.durable.routing.state, self.links, self.clients)
        self.inquiries = Inquiries(config, self.durable.routing.state, self.links)
        self.counts = Counts()

    # ── the door ─────────────────────────────────────────────────────────────────────────

    def step(self, input: Input, now: float) -> Output:
        """One input, one output. Peer misbehaviour closes that peer's connection, no more."""
        out = Output()
        self.counts.steps += 1
        if type(input) is Received:  # nearly always, so it is asked first, and cheaply
            connection, frame = input
            try:
                self._received(connection, frame, out, now)
            except PeerError as error:
                self._expel(connection, error, out, now)
            return out
        match input:
            case TimerFired(key):
                self._timer_fired(key, out, now)
            case Closed(connection):
                self._closed(connection, out, now)
            case Dialled(connection, neighbour):
                self._dialled(connection, neighbour, out, now)
            case Reconfigured(neighbours):
                self._reconfigured(neighbours, out, now)
        return out

    def recover(self, now: float) -> Output:
        """The first output of a broker that goes on."""
        out = Output()
        out.timers.extend(self.durable.recover(now))
        return out

    # ── frames ───────────────────────────────────────────────────────────────────────────

    def _received(self, connection: int, frame: Frame, out: Output, now: float) -> None:
        handle = MOVES.get(type(frame))
        if handle is None:
            raise ProtocolError(f"a broker does not take {type(frame).__name__}")
        who, action = handle
        peer = self.peers.get(connection)
        found = "nobody" if peer is None else peer.kind
        if found not in who:
            raise ProtocolError(f"{type(frame).__name__} from {found} on this connection")
        action(self, connection, peer, frame, out, now)

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def _client_hello(
        self, connection: int, peer: None, hello: ClientHello, out: Output, now: float
    ) -> None:
        del peer
        if hello.version != PROTOCOL_VERSION:
            raise VersionError(
                f"client speaks version {hello.version}, {self.config.name} speaks "
                f"{PROTOCOL_VERSION}: use the same release of motet on both sides"
            )
        if not 0 < len(hello.client) <= MAX_CLIENT_ID_CHARS or not hello.client.isprintable():
            raise ProtocolError(f"a client id is 1 to {MAX_CLIENT_ID_CHARS} printable characters")
        if len(hello.instance) > MAX_CLIENT_ID_CHARS:
            raise ProtocolError(f"an instance has at most {MAX_CLIENT_ID_CHARS} characters")
        sessions = self.durable.sessions
        forgotten = sessions.forgotten(hello.client, hello.resume, hello.answered)
        if forgotten:  # it is we who are wrong, but whoever says so may be, too: we go on
            text = f"{forgotten}: {way_out(self.config.name)}"
            self._expel(connection, StaleState(text), out, now)
            return
        newer = self.durable.newer_than(hello.client, hello.resume, hello.instance)
        if newer is not None:
            out.close.append(_fencing(connection, hello.client, newer))
            return
        before = self.clients.get(hello.client)
        opened = facts.SessionOpened(hello.client, hello.resume, hello.instance)
        self._journal(opened, out, now)
        session = sessions.get(hello.client)
        assert session is not None
        if before is not None and before.connection:
            out.close.append(_fencing(before.connection, hello.client, session.epoch))
            self._unbind(before.connection)
        resumed = before is not None and before.epoch == hello.resume
        if before is None or not resumed:
            before = self.clients[hello.client] = ClientSoft(session.epoch)
        before.connection = connection
        self.peers[connection] = Peer("client", hello.client)
        welcome = Welcome(
            self.config.name,
            session.epoch,
            resumed,
            before.published,
            self.config.lease_s,
            before.refused,
            before.forgotten,
            self.config.heartbeat_s,
        )
        out.deliver.append((connection, welcome))

    def _request(
        self, connection: int, peer: Peer, request: Request, out: Output, now: float
    ) -> None:
        soft = self.clients[peer.name]
        session = self.durable.sessions.current(peer.name, soft.epoch)
        assert session is not None
        if not request.timeout_s >= 0:
            raise ProtocolError(f"a timeout of {request.timeout_s} s")
        if self.durable.sessions.is_new(session, request):
            self._journal(facts.RequestReceived(peer.name, soft.epoch, request), out, now)
            return
        again = self.durable.sessions.answer_again(session, request.sequence)
        if again is not None:
            out.deliver.append((connection, again))

    def _publish(
        self, connection: int, peer: Peer, frame: Publish, out: Output, now: float
    ) -> None:
        del now
        soft = self.clients[peer.name]
        if not 0 < frame.first <= LAST_SEQUENCE:
            raise ProtocolError(f"publication {frame.first} is not a sequence")
        if soft.published < 0:
            soft.published = frame.first - 1
        known = soft.published + 1 - frame.first
        if known < 0:
            raise ProtocolError(f"publication {frame.first} follows {soft.published}")
        bodies = frame.bodies[known:] if known else frame.bodies
        answer = self.router.publish(peer.name, soft.published + 1, bodies, out)
        soft.published = answer.upto
        if answer.refused:
            self._remember_refusals(soft, answer.refused)
        self.counts.published += len(bodies) - len(answer.refused)
        out.deliver.append((connection, answer))

    def _remember_refusals(self, soft: ClientSoft, refused: tuple[Refusal, ...]) -> None:
        together = soft.refused + refused
        soft.refused = together[-REMEMBERED_REFUSALS:]
        if len(together) > REMEMBERED_REFUSALS:
            soft.forgotten = together[-REMEMBERED_REFUSALS - 1].sequence

    def _goodbye(
        self, connection: int, peer: Peer, frame: Goodbye, out: Output, now: float
    ) -> None:
        del frame
        soft = self.clients[peer.name]
        self._unbind(connection)
        self._end_session(peer.name, soft.epoch, out, now)
        out.close.append(Close(connection, "", "goodbye"))

    # ── connections ──────────────────────────────────────────────────────────────────────

    def _closed(self, connection: int, out: Output, now: float) -> None:
        peer = self.peers.get(connection)
        if peer is None:
            return
        self._unbind(connection)
        if peer.kind == "broker":
            link = self.links[peer.name]
            if link.move("closed") == "drop":
                link.drop(out)
            self._give_up_the_absent(peer.name, out, now)
            return
        soft = self.clients[peer.name]
        self._journal(facts.SessionDropped(peer.name, soft.epoch), out, now)

    def _expel(self, connection: int, error: MotetError, out: Output, now: float) -> None:
        """Close the connection of a peer that misbehaved; what the step had to do stays."""
        name = type(error).__name__
        self.counts.expelled[name] = self.counts.expelled.get(name, 0) + 1
        out.close.append(Close(connection, name, str(error)))
        self._closed(connection, out, now)

    def _unbind(self, connection: int) -> None:
        peer = self.peers.pop(connection, None)
        if peer is not None and peer.kind == "client":
            self.clients[peer.name].connection = 0

    # ── timers ───────────────────────────────────────────────────────────────────────────

    def _timer_fired(self, key: tuple[Any, ...], out: Output, now: float) -> None:
        match key:
            case ("link", neighbour) if neighbour in self.links:
                self.links[neighbour].alarm(out, now)
            case ("lease", client, epoch):
                soft = self.clients.get(client)
                if soft is not None and soft.epoch == epoch and not soft.connection:
                    self._end_session(client, epoch, out, now)
            case ("deadline", client, epoch, sequence):
                self.inquiries.begin(OpId(client, epoch, sequence), out, now)
            case ("verdict", client, epoch, sequence):
                op = OpId(client, epoch, sequence)
                missing = self.inquiries.verdict(op)
                if op in self.durable.deadlines:
                    self._journal(facts.DeadlinePassed(op, missing), out, now)

    # ── facts ────────────────────────────────────────────────────────────────────────────

    def _journal(self, body: facts.FactBody, out: Output, now: float) -> None:
        fact = Fact(now, body)
        out.persist.append(fact)
        self._carry_out(self.durable.apply(fact), out, now)

    def _carry_out(self, then: Consequences, out: Output, now: float) -> None:
        self.router.tables_changed()
        out.timers.extend(then.timers)
        for neighbour in then.neighbours:
            if neighbour in self.links:  # else it has just been given up, or taken away
                self.links[neighbour].transmit(out, now)
                self._give_up_the_absent(neighbour, out, now)
        for client, reply in then.answers:
            soft = self.clients.get(client)
            if soft is not None and soft.connection:
                out.deliver.append((soft.connection, reply))
        for client, newer in then.fenced:
            connection = self.clients[client].connection
            if connection:
                out.close.append(_fencing(connection, client, newer))
                self._unbind(connection)
            del self.clients[client]

    def _end_session(self, client: str, epoch: str, out: Output, now: float) -> None:
        del self.clients[client]
        self._journal(facts.SessionEnded(client, epoch), out, now)

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def acknowledged(self) -> dict[str, int]:
        """How much of our control each neighbour has confirmed; a snapshot need not keep that."""
        return {name: ledger.confirmed for name, ledger in self.durable.ledgers.items()}

    def status(self) -> dict[str, Any]:
        """What an operator asks for; plain values only."""
        return account_of(self)

    def validate(self) -> None:
        """Raise if durable and soft state contradict each other or themselves, or a neighbour."""
        self.durable.validate()
        self.durable.routing.validate_neighbours()
        self.router.validate()
        if {(s.client, s.epoch) for s in self.durable.sessions} != {
            (name, soft.epoch) for name, soft in self.clients.items()
        }:
            raise InvariantError("the sessions are not those of the clients")


def _fencing(connection: int, client: str, newer: str) -> Close:
    text = f"another client connected to {broker_of(newer)} as {client!r} (session {newer})"
    return Close(connection, "Fenced", text)


LINK, CLIENT, NOBODY = ("broker",), ("client",), ("nobody",)

MOVES: dict[type, tuple[tuple[str, ...], Any]] = {
    LinkHello: (("nobody", "broker"), BrokerCore._link_hello),
    Control: (LINK, BrokerCore._control),
    ControlAck: (LINK, BrokerCore._control_ack),
    Publications: (LINK, BrokerCore._publications),
    Inquire: (LINK, BrokerCore._inquire),
    Waiting: (LINK, BrokerCore._waiting),
    ClientHello: (NOBODY, BrokerCore._client_hello),
    AdvertiseRequest: (CLIENT, BrokerCore._request),
    UnadvertiseRequest: (CLIENT, BrokerCore._request),
    SubscribeRequest: (CLIENT, BrokerCore._request),
    UnsubscribeRequest: (CLIENT, BrokerCore._request),
    Publish: (CLIENT, BrokerCore._publish),
    Goodbye: (CLIENT, BrokerCore._goodbye),
}
"""Which frame a broker takes from whom, and what it does with it. `Beat`, `StatusRequest` and
`Goodnight` are missing: they concern the connection, and the driver sees to them."""
