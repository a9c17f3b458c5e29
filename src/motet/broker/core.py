"""The broker as one deterministic, single-threaded machine: `step(input, now) -> Output`.

This file is the soft half and the composition. It knows connections, decides what an input
means, and turns what must last into facts; `durable` applies them. Publications pass through
here and leave no durable trace.

No clock, socket, thread, randomness or set order: the same inputs give the same outputs under
asyncio, in one process and in the simulator.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from motet.broker import facts
from motet.broker.account import account_of
from motet.broker.cell.membership import CELL_FRAMES, Membership
from motet.broker.config import BrokerConfig
from motet.broker.consequences import Consequences
from motet.broker.durable import Durable
from motet.broker.greeting import ClientSoft, Greeting, fencing
from motet.broker.inquiry import Inquiries
from motet.broker.linking import Counts, Peer
from motet.broker.remembered import Remembered
from motet.broker.router import Router
from motet.broker.sinking import Sinking
from motet.broker.streams import Streams
from motet.errors import (
    InvariantError,
    MotetError,
    PeerError,
    ProtocolError,
)
from motet.model import OpId
from motet.model.limits import LAST_SEQUENCE
from motet.protocol.contract import (
    Close,
    Closed,
    Dialled,
    Fact,
    Input,
    Logged,
    LogRead,
    Output,
    Persisted,
    Received,
    Reconfigured,
    RowsRead,
    StagingChecked,
    TimerFired,
)
from motet.protocol.delivery.messages import (
    AckExpected,
    AckUp,
    Knowledge,
    Nack,
)
from motet.protocol.frames import Frame
from motet.protocol.link.machine import Link
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
    AnswerRequest,
    BeginRequest,
    ClientHello,
    CommitRequest,
    ConsentRequest,
    EndRequest,
    ExecuteRequest,
    Goodbye,
    InviteRequest,
    OutcomeRequest,
    Processed,
    Publish,
    Published,
    Ready,
    Refusal,
    Request,
    StageRequest,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)

REMEMBERED_REFUSALS = 64
REFUSED_BEFORE = (
    "refused before the broker was restarted; it lay outside what was advertised: advertise it "
    "first, then publish it again"
)


class BrokerCore(Greeting):
    def __init__(self, config: BrokerConfig, durable: Durable | None = None) -> None:
        """A new broker; or, with what a journal gave back, one that goes on."""
        self.durable = durable or Durable(config)
        self.config = replace(config, neighbours=tuple(self.durable.ledgers))
        root = self.durable.transactions.root
        self.links = {
            name: Link(config.name, ledger, root) for name, ledger in self.durable.ledgers.items()
        }
        self.clients = {
            session.client: ClientSoft(session.epoch, forgot=True)
            for session in self.durable.sessions
        }
        self.peers: dict[int, Peer] = {}
        self.router = Router(self.durable.routing.state, self.links, self.clients)
        self.inquiries = Inquiries(config, self.durable.routing.state, self.links)
        self.counts = Counts()
        self.streams = Streams(self, config.liveness)
        self.sinking = Sinking(self)
        among_cells = config.mates or config.cells
        self.membership = Membership(self) if among_cells else None

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
        else:
            self._happened(input, out, now)
        if self.membership is not None:
            self.membership.after(out, now)
        return out

    def _happened(self, input: Input, out: Output, now: float) -> None:
        match input:
            case TimerFired(key):
                self._timer_fired(key, out, now)
            case Closed(connection):
                self._closed(connection, out, now)
            case Dialled(connection, neighbour):
                self._dialled(connection, neighbour, out, now)
            case Logged():
                self.streams.logged(input, out, now)
            case LogRead():
                self.streams.read(input, out, now)
            case Persisted(confirmed):
                self.streams.persisted(confirmed, out)
            case StagingChecked():
                self.sinking.checked(input, out, now)
            case RowsRead():
                self.streams.unlogged.rows(input, out)
            case Reconfigured(neighbours):
                self._reconfigured(neighbours, out, now)

    def recover(self, now: float, remembered: Remembered | None = None) -> Output:
        """The first output of a broker, new or one that goes on; `remembered` is what its
        pubend's log has. Without one there is no pubend, and all events are best effort."""
        out = Output()
        out.timers.extend(self.durable.recover(now))
        if remembered is not None:
            if remembered.destroyed_upto > self.durable.destroyed[0]:
                self._journal(facts.LogDestroyed(remembered.destroyed_upto), out, now)
            for session in self.durable.sessions:
                soft, key = self.clients[session.client], (session.client, session.epoch)
                logged = remembered.published.get(key, 0)
                soft.published = soft.settled = max(logged, session.published)
                soft.refused = tuple(
                    Refusal(sequence, "NotAdvertised", REFUSED_BEFORE)
                    for sequence in remembered.skipped.get(key, ())
                    if sequence > session.published
                )
            self.streams.begin(remembered, out, now)
            self._cut_if_due(out, now)
        if self.membership is not None:
            self.membership.after(out, now)
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

    def _request(
        self, connection: int, peer: Peer, request: Request, out: Output, now: float
    ) -> None:
        soft = self.clients[peer.name]
        session = self.durable.sessions.current(peer.name, soft.epoch)
        assert session is not None
        if not request.timeout_s >= 0:
            raise ProtocolError(f"a timeout of {request.timeout_s} s")
        if self.sinking.holds(session, request, out):
            return
        if self.durable.sessions.is_new(session, request):
            self.sinking.take(session, request, out, now)
            return
        again = self.durable.sessions.answer_again(session, request.sequence)
        if again is not None:
            out.deliver.append((connection, again))

    def _publish(
        self, connection: int, peer: Peer, frame: Publish, out: Output, now: float
    ) -> None:
        soft = self.clients[peer.name]
        if not 0 < frame.first <= LAST_SEQUENCE:
            raise ProtocolError(f"publication {frame.first} is not a sequence")
        first, bodies = frame.first, frame.bodies
        known = soft.published + 1 - first
        if known > 0:  # sent again: they are answered when they are durable
            first, bodies = first + known, bodies[known:]
        if not bodies:
            out.deliver.append((connection, Published(soft.settled)))
            return
        soft.published = first + len(bodies) - 1
        if frame.sure:
            accepted, refused = self._accept(peer.name, first, bodies)
            self.streams.publish(peer.name, soft.epoch, first, accepted, refused, out, now)
            self.counts.published += len(accepted)
            return
        answer = self.router.publish(peer.name, first, bodies, out)
        self.counts.published += len(bodies) - len(answer.refused)
        if not self.streams.follow(peer.name, soft.epoch, answer.upto, answer.refused):
            self.settled(peer.name, soft.epoch, answer.upto, answer.refused, out)

    def _accept(
        self, client: str, first: int, bodies: list[Raw]
    ) -> tuple[list[Raw], tuple[Refusal, ...]]:
        """Events to be delivered exactly once; without a pubend, none."""
        if self.streams.pubend:
            return self.router.accept(client, first, bodies)
        text = (
            f"{self.config.name} does not deliver exactly once"
            + (", because covering is on" if self.config.covering else "")
            + "; publish with `best_effort=True`"
        )
        numbers = range(first, first + len(bodies))
        return [], tuple(Refusal(number, "NotOffered", text) for number in numbers)

    def settled(
        self, client: str, epoch: str, upto: int, refused: tuple[Refusal, ...], out: Output
    ) -> None:
        """Publications have met their fate."""
        soft = self.clients.get(client)
        if soft is None or soft.epoch != epoch:
            return
        soft.settled = max(soft.settled, upto)
        if refused:
            self._remember_refusals(soft, refused)
        if soft.connection:
            out.deliver.append((soft.connection, Published(upto, refused)))

    def _processed(
        self, connection: int, peer: Peer, frame: Processed, out: Output, now: float
    ) -> None:
        del connection
        self.streams.processed(peer.name, frame.pubend, frame.upto, out, now)

    def _remember_refusals(self, soft: ClientSoft, refused: tuple[Refusal, ...]) -> None:
        together = soft.refused + refused
        soft.refused = together[-REMEMBERED_REFUSALS:]
        if len(together) > REMEMBERED_REFUSALS:
            soft.forgotten = together[-REMEMBERED_REFUSALS - 1].sequence

    def _ready(self, connection: int, peer: Peer, frame: Ready, out: Output, now: float) -> None:
        del connection, frame
        self.streams.ready(peer.name, out, now)

    def _goodbye(
        self, connection: int, peer: Peer, frame: Goodbye, out: Output, now: float
    ) -> None:
        soft = self.clients[peer.name]
        session = self.durable.sessions.current(peer.name, soft.epoch)
        if frame.stay and session is not None and session.durable:
            wanted = session.names.keys()
            done = {s: ticks for s, ticks in frame.done.items() if s in wanted}
            self._unbind(connection)
            self.streams.detach(peer.name, out, now)
            self._drop(peer.name, out, now, done)
        else:
            self._unbind(connection)
            self.streams.detach(peer.name, out, now)
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
            if self.membership is not None:
                self.membership.link_lost(peer.name, out, now)
            return
        if self.membership is not None and peer.kind != "client":
            self.membership.closed(connection, peer, out, now)
            return
        self.streams.detach(peer.name, out, now)
        self._drop(peer.name, out, now, {})

    def _drop(self, client: str, out: Output, now: float, done: dict[int, dict[str, int]]) -> None:
        """A client is gone, its session is not."""
        epoch = self.clients[client].epoch
        session = self.durable.sessions.current(client, epoch)
        cursors: dict[str, int] = {}
        if session is not None and session.durable:
            cursors = self.streams.machine.durables.begun(client)
            self.streams.done(session, done)
        taken = self.clients[client].published
        self._journal(facts.SessionDropped(client, epoch, cursors, done, taken), out, now)

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
            case ("delivery", *_):
                self.streams.alarm(key, out, now)
            case ("member" | "mirror" as kind, name) if self.membership is not None:
                self.membership.alarm(kind, name, out, now)
            case ("link", neighbour) if neighbour in self.links:
                self.links[neighbour].alarm(out, now)
            case ("lease", client, epoch):
                soft = self.clients.get(client)
                if soft is not None and soft.epoch == epoch and not soft.connection:
                    self._end_session(client, epoch, out, now)
            case ("transaction", tx):
                self._journal(facts.TransactionOverdue(tx), out, now)
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
        self._cut_if_due(out, now)

    def _cut_if_due(self, out: Output, now: float) -> None:
        due = self.durable.transactions.due()
        if due and self.streams.begun:
            self._journal(facts.CutMade(due, self.streams.next_tick(now)), out, now)

    def _carry_out(self, then: Consequences, out: Output, now: float) -> None:
        self.router.tables_changed()
        out.timers.extend(then.timers)
        for neighbour in then.neighbours:
            if neighbour in self.links:  # else it has just been given up, or taken away
                self.links[neighbour].transmit(out, now)
        if then.concern_streams:
            self.streams.tables_changed(then, out, now)
        for client, reply in then.answers:
            soft = self.clients.get(client)
            if soft is not None and soft.connection:
                out.deliver.append((soft.connection, reply))
            self.streams.effective(client, out, now)
        for client, told in then.tell:
            soft = self.clients.get(client)
            if soft is not None and soft.connection:
                out.deliver.append((soft.connection, told))
        for client, newer in then.fenced:
            connection = self.clients[client].connection
            if connection:
                out.close.append(fencing(connection, client, newer))
                self._unbind(connection)
            del self.clients[client]
        # Last: that is a fact of its own, and what follows from this one comes before it.
        for neighbour in then.neighbours:
            if neighbour in self.links:
                self._give_up_the_absent(neighbour, out, now)

    def _end_session(self, client: str, epoch: str, out: Output, now: float) -> None:
        del self.clients[client]
        self._journal(facts.SessionEnded(client, epoch), out, now)

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def acknowledged(self) -> dict[str, int]:
        """How much of our control each neighbour has confirmed; a snapshot need not keep that."""
        return {name: ledger.confirmed for name, ledger in self.durable.ledgers.items()}

    def withheld(self) -> int:
        """What rests on the last so many facts must not leave yet: some mate has not got them."""
        return 0 if self.membership is None else self.membership.mirror.withheld()

    def done_with(self) -> int:
        """Everybody is done with our pubend up to this tick."""
        pubend = self.streams.pubend
        return self.streams.machine.acknowledged(pubend) if pubend else 0

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]:
        """What an operator asks for, and where these clients are; plain values only."""
        return account_of(self, clients)

    def validate(self) -> None:
        """Raise if durable and soft state contradict each other or themselves, or a neighbour."""
        self.durable.validate()
        self.durable.routing.validate_neighbours()
        self.router.validate()
        if {(s.client, s.epoch) for s in self.durable.sessions} != {
            (name, soft.epoch) for name, soft in self.clients.items()
        }:
            raise InvariantError("the sessions are not those of the clients")


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
    BeginRequest: (CLIENT, BrokerCore._request),
    ExecuteRequest: (CLIENT, BrokerCore._request),
    StageRequest: (CLIENT, BrokerCore._request),
    InviteRequest: (CLIENT, BrokerCore._request),
    AnswerRequest: (CLIENT, BrokerCore._request),
    ConsentRequest: (CLIENT, BrokerCore._request),
    EndRequest: (CLIENT, BrokerCore._request),
    OutcomeRequest: (CLIENT, BrokerCore._request),
    CommitRequest: (CLIENT, BrokerCore._request),
    Publish: (CLIENT, BrokerCore._publish),
    Processed: (CLIENT, BrokerCore._processed),
    Ready: (CLIENT, BrokerCore._ready),
    Knowledge: (LINK, BrokerCore._stream_frame),
    Nack: (LINK, BrokerCore._stream_frame),
    AckUp: (LINK, BrokerCore._stream_frame),
    AckExpected: (LINK, BrokerCore._stream_frame),
    Goodbye: (CLIENT, BrokerCore._goodbye),
    **{kind: (who, BrokerCore._cell_frame) for kind, who in CELL_FRAMES.items()},
}
"""Which frame a broker takes from whom, and what it does with it. `Beat`, `StatusRequest` and
`Goodnight` are missing: they concern the connection, and the driver sees to them."""
