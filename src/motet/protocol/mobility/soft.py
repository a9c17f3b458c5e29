"""The soft half of mobility: offers before the decision, and what a client meets around a move.

    waiting ── no request, no transaction, nothing unsettled ──▶ offering
    offering ── the target accepts ──▶ frozen ── all publications are in the log ──▶ decided
    any of them ── refused, too late ──▶ the client stays, and what it has sent meanwhile is taken

Requests of a client that wants to move wait here in order, with all publications behind them. If it
moves, they are dropped: the client sends them again at its new broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct, field, msgpack
from msgspec.structs import replace

from motet.errors import ProtocolError
from motet.model import Hop, OpId, overlap
from motet.model.filters import to_wire
from motet.model.ids import is_newer
from motet.model.limits import MAX_BROKER_CHARS, MAX_CLIENT_ID_CHARS
from motet.protocol.changes import (
    ArrivalReported,
    Grouped,
    PathPassed,
    PredecessorsDue,
    PublisherAwaited,
    SessionArrived,
    SessionDeparted,
)
from motet.protocol.contract import CancelTimer, Close, Output, SetTimer
from motet.protocol.delivery.messages import AckUp
from motet.protocol.delivery.neighbours import MOMENT_S
from motet.protocol.delivery.soft import Newcomer, Streams
from motet.protocol.frames import Frame
from motet.protocol.hosted.messages import HostedCheckpoint
from motet.protocol.link.messages import Control
from motet.protocol.link.soft import SoftLinks
from motet.protocol.mobility.durable import DurableMobility
from motet.protocol.mobility.facts import MoveDecided, PublisherAdmitted
from motet.protocol.mobility.messages import (
    OPERATING,
    ArrivalHello,
    FencedAck,
    MoveCommit,
    Moved,
    MoveOffer,
    MoveOrder,
    MoveOrdered,
    MoveRefusal,
    MoveReply,
    MoveRequest,
)
from motet.protocol.mobility.state import Forwarding, Travel
from motet.protocol.room import LISTED, Objection, Peer, SoftRoom
from motet.protocol.routing.starts import broker_of_pubend
from motet.protocol.session.messages import (
    ClientHello,
    ExecuteRequest,
    Goodbye,
    Processed,
    ProgressQuery,
    Publish,
    Ready,
)
from motet.protocol.session.soft import SoftSessions
from motet.protocol.session.state import Session
from motet.protocol.shared import ClientSoft, SharedState
from motet.protocol.transactions.messages import Engage, Letter, op_of

OFFER_AGAIN_S = 0.5
EARLY_S = 1.0
"""How often a hello of a client that is on its way is examined again."""
ACCEPTED_S = 30.0
"""How long news of a session may be behind the offer of its move."""
LONGEST_S = 3600.0
MOST_HELD = 65_536
"""Frames of one client that wait for its move."""
MOST_HELD_BYTES = 256 * 1024 * 1024
"""All of them together. More than the window of a client with large events, which it sends again
wherever it comes."""
PASSING = (Processed, Ready, Goodbye, MoveRequest, HostedCheckpoint)
"""Frames of a client that do not wait for its move."""


class HeldFrames(deque[Frame]):
    """Frames of one client that wait for its move."""

    size_bytes = 0

    def hold(self, frame: Frame) -> bool:
        self.size_bytes += len(msgpack.encode(frame, enc_hook=to_wire))
        if len(self) >= MOST_HELD:
            raise ProtocolError(f"more than {MOST_HELD} frames were sent during a move")
        if self.size_bytes > MOST_HELD_BYTES:
            raise ProtocolError(f"more than {MOST_HELD_BYTES} bytes were sent during a move")
        self.append(frame)
        return True

    def clear(self) -> None:
        super().clear()
        self.size_bytes = 0


class Departure(Struct):
    """A client that wants to move, or must."""

    client: str
    epoch: str
    path: tuple[str, ...]
    until: float
    connection: int = 0
    """The client's connection, whose frames are kept."""
    number: int = 0
    """The client's own request; 0: only operators have asked."""
    asked_on: int = 0
    """The connection of that request."""
    orders: list[int] = field(default_factory=list)
    """Connections of operators that wait for an answer."""
    phase: str = "waiting"
    attempt: int = 0
    """Number of this offer."""
    address: str = ""
    missing: tuple[str, ...] = ()
    """Brokers that the last offer did not reach."""
    busy: str = ""
    held: HeldFrames = field(default_factory=HeldFrames)


class Early(NamedTuple):
    """A client that has come before its session, and what it has sent since."""

    connection: int
    arrival: ArrivalHello
    queue: HeldFrames


class SoftMobility(SoftRoom):
    concerns = frozenset(
        {
            SessionDeparted,
            SessionArrived,
            PathPassed,
            ArrivalReported,
            PublisherAwaited,
            PredecessorsDue,
        }
    )

    def __init__(
        self,
        shared: SharedState,
        durable: DurableMobility,
        streams: Streams,
        sessions: SoftSessions,
        links: SoftLinks,
    ) -> None:
        self._shared = shared
        self._durable = durable
        self._streams = streams
        self._sessions = sessions
        self.objectors: list[Callable[[MoveOffer], Objection | None]] = [self._known_here]
        """Why this broker does not take a client in."""
        self.is_hosted: Callable[[str], bool] = lambda _: False
        self.halt: Callable[[str, Output], str] = lambda *_: ""
        """Stops the copy of a hosted client, and returns what a move must wait for."""
        self.follows: Callable[[str], str] = lambda _: ""
        """Returns what is still on its way here behind a client, and must arrive before a move."""
        self.stays: Callable[[str, Output], None] = lambda *_: None
        """A client does not move after all."""
        self._departures: dict[str, Departure] = {}
        self._gates: dict[str, None] = dict.fromkeys(durable.state.travels)
        """Clients that have arrived and may not publish yet."""
        self._awaited: dict[str, None] = {}
        """Of clients that have arrived: those whose gate a plan waits for."""
        self._queues: dict[str, tuple[int, HeldFrames]] = {}
        """Of such clients: their connection, and their frames that wait."""
        self._early: dict[str, Early] = {}
        self._landed: dict[str, None] = {}
        """Clients among them whose sessions have come in this step: they are greeted at its end, so
        that one write to the journal has both."""
        self.astir = (self._departures, self._gates, self._awaited, self._landed)
        self._accepted: dict[str, tuple[str, float]] = {}
        """By client that was offered to us: its epoch, and until when we believe that it comes,
        although we may not have heard of its session."""
        self._attempts = 0
        self._counts = dict.fromkeys(("asked", "done", "refused", "arrived", "passed"), 0)
        links.heard[MoveCommit] = self._heard
        links.ahead[Letter] = self._meet_letter
        sessions.ahead[ExecuteRequest] = self._meet_plan
        links.passing = durable.passing
        streams.fenced = self._fence
        streams.fencing, streams.swept = durable.state.fenced, durable.state.swept
        streams.interests.pins = durable.pins
        streams.arrivals = self._arrivals
        if durable.state.travels:
            streams.machine.clients.doubt = self._doubt
        sessions.redirect = self._redirect
        sessions.carried = durable.travel

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {
            MoveRequest: self._requested,
            MoveOrder: self._ordered,
            MoveOffer: self._offered,
            MoveReply: self._replied,
            ArrivalHello: self._arrival_hello,
            FencedAck: self._fenced_ack,
        }

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"move": self._alarm}

    def closings(self) -> Mapping[str, Callable[[int, Peer, Output, float], None]]:
        return {"operator": self._operator_left, "arriving": self._early_left}

    def account(self) -> dict[str, Any]:
        state = self._durable.state
        return {
            "moves": {
                "departing": {
                    name: {"to": each.path[-1], "phase": each.phase, "waits_for": each.busy}
                    for name, each in islice(sorted(self._departures.items()), LISTED)
                },
                "in_transit": {
                    each.commit.client: {"from": each.commit.path[0], "to": each.commit.path[-1]}
                    for each in islice(state.transits.values(), LISTED)
                },
                "gone_to": {
                    name: each.broker for name, each in islice(state.forwardings.items(), LISTED)
                },
                "residues": self._residues(),
                "arrived": len(state.travels),
                **self._counts,
            }
        }

    def _residues(self) -> list[str]:
        """Clients that have moved away, and some of whose events in our log are still owed."""
        state = self._shared.durable.routing.state
        gone = dict.fromkeys(
            op.client
            for op in islice(state.retired, LISTED)
            if (op.client, op.epoch) in state.clients
            and state.clients.home(op.client) != self._shared.name
        )
        return list(gone)

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def _requested(
        self, connection: int, peer: Peer, request: MoveRequest, out: Output, now: float
    ) -> None:
        known = self._departures.get(peer.name)
        asked = (known.number, known.path[-1]) if known is not None else (0, "")
        if known is not None and asked == (request.number, request.to):
            known.asked_on = connection  # it came again while nothing could be done yet
            return
        departure, problem = self._depart(peer.name, request.to, request.timeout_s, now)
        if departure is None:
            out.deliver.append((connection, MoveRefusal(request.number, *problem)))
            return
        self._shared.clients[peer.name].warned = True
        departure.number, departure.asked_on = request.number, connection
        self._advance(departure, out, now)

    def _ordered(
        self, connection: int, peer: Peer | None, order: MoveOrder, out: Output, now: float
    ) -> None:
        del peer
        self._shared.peers[connection] = Peer(*OPERATING)
        if order.client in self._shared.clients and order.to == self._shared.name:
            out.deliver.append((connection, MoveOrdered(order.client)))
            return
        departure, problem = self._depart(order.client, order.to, order.timeout_s, now)
        if departure is None:
            out.deliver.append((connection, MoveOrdered(order.client, *problem)))
            return
        soft = self._shared.clients[order.client]
        if soft.connection and not (departure.orders or departure.number):
            # What it has not acknowledged is read again at the target. If it moves by itself, it
            # says how far it is without being asked.
            out.deliver.append((soft.connection, ProgressQuery()))
        departure.orders.append(connection)
        self._advance(departure, out, now)

    def _depart(
        self, client: str, to: str, timeout_s: float, now: float
    ) -> tuple[Departure | None, Objection]:
        """A departure, or why there can be none."""
        soft = self._shared.clients.get(client[:MAX_CLIENT_ID_CHARS])
        if soft is None:
            text = f"{client!r} has no session at {self._shared.name}"
            home = self._shared.durable.routing.state.clients.home(client)
            more = f"; its session is at {home}: ask there" if home else ""
            return None, Objection("UnknownClient", text + more)
        path, problem = self._path(to)
        if problem is not None:
            return None, problem
        known = self._departures.get(client)
        if known is not None and known.path != path:
            text = f"{client!r} is about to move to {known.path[-1]}; try again when it has moved"
            return None, Objection("MoveRefused", text)
        if known is None:
            bound = self.bound_here(client)
            if bound is not None:
                return None, bound
            until = now + max(0.0, min(timeout_s, LONGEST_S))  # now, if it is not a number
            known = Departure(client, soft.epoch, path, until)
            self._departures[client] = known
            self._counts["asked"] += 1
        return known, Objection("", "")

    def bound_here(self, client: str) -> Objection | None:
        """Why a client can never move."""
        if client not in self._shared.durable.sinks.state.sinks:
            return None
        text = f"{client!r} is a sink, and its staged files are at {self._shared.name}"
        return Objection("MoveRefused", f"{text}: it stays there")

    def unable(self) -> Objection | None:
        """Why no client of this broker can move."""
        config = self._shared.config
        if not (config.covering or config.cells or config.mates):
            return None
        why = "covering is on" if config.covering else "it is in a cell, or next to one"
        return Objection("NotOffered", f"{config.name} moves no clients, because {why}")

    def _path(self, to: str) -> tuple[tuple[str, ...], Objection | None]:
        """The brokers on the way to another one, from this one on."""
        shared = self._shared
        unable = self.unable()
        if unable is not None:
            return (), unable
        if to == shared.name:
            return (), Objection("MisuseError", f"the client is at {to} already")
        for pubend, path in shared.durable.routing.state.paths.items():
            if broker_of_pubend(pubend) == to and path:
                return (shared.name, *path), None
        reached = sorted(map(broker_of_pubend, shared.durable.routing.state.paths))
        known = ", ".join([each for each in reached if each != shared.name][:20]) or "none"
        named = to[:MAX_BROKER_CHARS]
        text = f"{shared.name} knows no broker {named!r}, or has no route to it; it knows {known}"
        return (), Objection("MisuseError", text)

    # ── before the decision ──────────────────────────────────────────────────────────────

    def stepped(self, out: Output, now: float) -> None:
        if self._landed:
            landed = list(self._landed)
            self._landed.clear()
            for client in landed:
                self._look_at_early(client, out, now)
        if self._departures:
            for departure in list(self._departures.values()):
                if not self._awaits_reply(departure):
                    self._advance(departure, out, now)
        if self._gates:
            for client in list(self._gates):
                self._open_gate(client, out, now)
        if self._awaited:
            for client in list(self._awaited):
                self._admit(client, out, now)

    def _awaits_reply(self, departure: Departure) -> bool:
        """Nothing else changes it before the reply, as long as its client stays connected and no
        transaction comes to it."""
        soft = self._shared.clients.get(departure.client)
        return (
            departure.phase == "offering"
            and soft is not None
            and (soft.epoch, soft.connection) == (departure.epoch, departure.connection)
            and not self._is_in_transaction(departure.client)
        )

    def _advance(self, departure: Departure, out: Output, now: float) -> None:
        """Look whether the next phase can begin."""
        session = self._shared.durable.sessions.current(departure.client, departure.epoch)
        if session is None:
            self._refuse(departure, Objection("UnknownClient", "its session has ended"), out, now)
            return
        onward = departure.path[1]
        if onward not in self._shared.links:
            text = f"{onward} is no neighbour of {self._shared.name} any more"
            self._refuse(departure, Objection("NotEffective", text), out, now, (onward,))
            return
        if departure.client in self._gates:
            departure.busy = "its arrival"
            self._set_alarm(departure, departure.until, out)
            return
        self._detain(departure, out)
        if departure.client not in self._departures:
            return
        if self._is_in_transaction(departure.client):
            self._refuse_in_transaction(departure, out, now)
            return
        departure.busy = self._busy(session)
        if now > departure.until - MOMENT_S:
            self._too_late(departure, out, now)
            return
        if departure.phase == "waiting":
            if not departure.busy:
                departure.phase = "offering"
                self._offer(departure, out, now)
            else:
                self._set_alarm(departure, departure.until, out)
        elif departure.phase == "frozen":
            halting = self.halt(departure.client, out)
            departure.busy = halting or departure.busy or self.follows(departure.client)
            if not (departure.busy or self._streams.unlogged.answers(departure.client)):
                self._decide(departure, session, out, now)

    def is_frozen(self, client: str) -> bool:
        """The client is about to leave, if nothing comes in between."""
        departure = self._departures.get(client)
        return departure is not None and departure.phase == "frozen"

    def _detain(self, departure: Departure, out: Output) -> None:
        """Keep the frames of the client's connection. If the client has reconnected, it asks again
        for its own move; an operator's goes on."""
        connection = self._shared.clients[departure.client].connection
        if connection == departure.connection:
            return
        self._shared.detained.pop(departure.connection, None)
        departure.held.clear()
        if departure.number and departure.asked_on != connection:
            departure.number = 0
            if not departure.orders:
                self._drop(departure, out)
                return
        departure.connection = connection
        if connection:
            self._shared.detained[connection] = lambda frame: self._hold(departure, frame)

    def _hold(self, departure: Departure, frame: Frame) -> bool:
        """Whether a frame must wait for the move."""
        kind = type(frame)
        if kind in PASSING:
            return False
        if kind is Publish and departure.phase != "frozen" and not departure.held:
            return False
        return departure.held.hold(frame)

    def _is_in_transaction(self, client: str) -> bool:
        transactions = self._shared.durable.transactions
        held = transactions.decisions.state.held
        if not (transactions.open or held):
            return False
        return any(
            client in local.parts or any(each.client == client for each in local.invitations)
            for local in transactions.open.values()
        ) or any(
            isinstance(each.request, Engage) and each.request.client == client for each in held
        )

    def _refuse_in_transaction(self, departure: Departure, out: Output, now: float) -> None:
        text = f"{departure.client!r} takes part in an open transaction; end it, then move"
        self._refuse(departure, Objection("InTransaction", text), out, now)

    def _meet_letter(self, letter: Letter, out: Output, now: float) -> None:
        if isinstance(letter.body, Engage):
            self._meet(letter.body.client, out, now)

    def _meet_plan(self, plan: ExecuteRequest, out: Output, now: float) -> None:
        for client, _ in plan.parts:
            self._meet(client, out, now)

    def _meet(self, client: str, out: Output, now: float) -> None:
        """A plan is about to have a part for a local client. What the client has sent before comes
        first: the root may decide a plan in the same step in which it takes the part."""
        departure = self._departures.get(client)
        if departure is not None and departure.held:
            self._refuse_in_transaction(departure, out, now)

    def _busy(self, session: Session) -> str:
        """What a move must wait for; empty: nothing."""
        durable, client = self._shared.durable, session.client
        if session.unanswered:
            return f"{len(session.unanswered)} requests"
        transactions = durable.transactions
        if any(op_of(tx).client == client for tx in transactions.coordinator.state.coordinations):
            return "a transaction that it has begun"
        staging = transactions.staging() | durable.sinks.publishing()
        held = transactions.decisions.state.held
        if client in staging or any(each.op.client == client for each in held):
            return "a transaction"
        marks = durable.routing.marks
        known = (marks.undecided, marks.uncut, marks.unended, durable.routing.starts.forsaken)
        if any(op.client == client for each in known for op in each):
            return "a transaction"
        if transactions.active:
            own = durable.routing.state.subscriptions.from_source(Hop.client(client))
            ops = [each.id for each in own]
            ending = transactions.decisions.ending()
            if transactions.decisions.beginning(ops) or not ending.isdisjoint(ops):
                return "a transaction to settle"
        return ""

    def _offer(self, departure: Departure, out: Output, now: float) -> None:
        self._attempts += 1
        departure.attempt = self._attempts
        path = departure.path
        client = departure.client
        credentials = self._shared.clients[client].credentials
        hosted = self.is_hosted(client)
        offer = MoveOffer(client, departure.epoch, departure.attempt, path, credentials, hosted)
        departure.missing = self._send_on(path[1], offer, out)
        self._set_alarm(departure, min(now + OFFER_AGAIN_S, departure.until), out)

    def _send_on(
        self, neighbour: str, frame: MoveOffer | MoveReply, out: Output
    ) -> tuple[str, ...]:
        """Returns the neighbour if it is not connected."""
        link = self._shared.links.get(neighbour)
        if link is None or not link.up:
            return (neighbour,)
        out.send.append((link.soft.connection, frame))
        return ()

    def _offered(
        self, connection: int, peer: Peer, offer: MoveOffer, out: Output, now: float
    ) -> None:
        del connection
        name, path = self._shared.name, offer.path
        at = path.index(name) if name in path else 0
        if not at or path[at - 1] != peer.name or len(set(path)) != len(path):
            return
        reply = MoveReply(offer.client, offer.epoch, offer.number, path)
        _, problem = self._path(path[0])
        if self._shared.durable.routing.state.unsure:
            reply = replace(reply, missing=(name,))
        elif problem is not None:
            reply = replace(reply, error=problem.error, text=problem.text)
        elif at + 1 < len(path):
            missing = self._send_on(path[at + 1], offer, out)
            if not missing:
                return
            reply = replace(reply, missing=missing)
        else:
            objection = self._objection_to(offer, now)
            if objection is None:
                self._accept(offer, now)
                reply = replace(reply, address=self._shared.address or name)
            else:
                reply = replace(reply, error=objection.error, text=objection.text)
        self._send_on(peer.name, reply, out)

    def _accept(self, offer: MoveOffer, now: float) -> None:
        late = [client for client, (_, until) in self._accepted.items() if until < now]
        for client in late:
            del self._accepted[client]
        self._accepted[offer.client] = (offer.epoch, now + ACCEPTED_S)

    def _objection_to(self, offer: MoveOffer, now: float) -> Objection | None:
        for objects in self.objectors:
            objection = objects(offer)
            if objection is not None:
                return objection
        return self._sessions.admission.to_arrival(offer.client, offer.credentials, now)

    def _known_here(self, offer: MoveOffer) -> Objection | None:
        durable = self._shared.durable
        if durable.sessions.get(offer.client) is not None:
            text = f"{self._shared.name} has another session of {offer.client!r}"
            return Objection("MoveRefused", text)
        clients = durable.routing.state.clients
        newest = clients.newest(offer.client)
        if newest is not None and is_newer(newest, than=offer.epoch):
            text = f"another client has connected to {clients.home(offer.client)} as"
            return Objection("MoveRefused", f"{text} {offer.client!r}")
        return None

    def _replied(
        self, connection: int, peer: Peer, reply: MoveReply, out: Output, now: float
    ) -> None:
        del connection
        name, path = self._shared.name, reply.path
        at = path.index(name) if name in path else len(path)
        if at + 1 >= len(path) or path[at + 1] != peer.name:
            return
        if at:
            self._send_on(path[at - 1], reply, out)
            return
        departure = self._departures.get(reply.client)
        if (
            departure is None
            or departure.phase != "offering"
            or (departure.epoch, departure.attempt) != (reply.epoch, reply.number)
        ):
            return
        if reply.error:
            text = f"{path[-1]} does not take {reply.client!r}: {reply.text}"
            self._refuse(departure, Objection(reply.error, text), out, now)
        elif reply.missing:
            departure.missing = reply.missing
        else:
            departure.phase = "frozen"
            departure.address = reply.address
            self._set_alarm(departure, departure.until, out)
            self._advance(departure, out, now)

    def _too_late(self, departure: Departure, out: Output, now: float) -> None:
        to = departure.path[-1]
        if departure.phase == "offering":
            missing = departure.missing or (to,)
            text = f"{', '.join(missing)} did not answer in time; {departure.client!r} stays"
            self._refuse(departure, Objection("NotEffective", text), out, now, missing)
        else:
            waited = departure.busy
            if not waited and departure.phase == "frozen":
                waited = "its publications to reach the log"
            why = f"waited for {waited} for too long" if waited else "had no time to be asked for"
            text = f"{departure.client!r} {why}; try again later, or with a longer timeout"
            self._refuse(departure, Objection("MoveRefused", text), out, now)

    def _refuse(
        self,
        departure: Departure,
        problem: Objection,
        out: Output,
        now: float,
        missing: tuple[str, ...] = (),
    ) -> None:
        """The client stays: take what it has sent meanwhile."""
        self._counts["refused"] += 1
        soft = self._shared.clients.get(departure.client)
        connection = soft.connection if soft is not None else 0
        if departure.number and connection and connection == departure.asked_on:
            refusal = MoveRefusal(departure.number, *problem, missing)
            out.deliver.append((connection, refusal))
        for order in departure.orders:
            out.deliver.append((order, MoveOrdered(departure.client, *problem, missing)))
        self._drop(departure, out)
        if connection and connection == departure.connection:
            self._replay(connection, departure.held, out, now)
        self.stays(departure.client, out)

    def _drop(self, departure: Departure, out: Output) -> None:
        self._departures.pop(departure.client, None)
        self._shared.detained.pop(departure.connection, None)
        out.timers.append(CancelTimer(("move", "offer", departure.client)))

    def _replay(self, connection: int, held: Iterable[Frame], out: Output, now: float) -> None:
        for frame in list(held):
            if connection not in self._shared.peers:
                return  # it was expelled
            self._shared.receive(connection, frame, out, now)

    def _set_alarm(self, departure: Departure, at: float, out: Output) -> None:
        out.timers.append(SetTimer(("move", "offer", departure.client), at))

    def _alarm(self, key: tuple[str, str, str], out: Output, now: float) -> None:
        _, kind, client = key
        if kind == "early":
            self._look_at_early(client, out, now)
            return
        departure = self._departures.get(client)
        if departure is None:
            return
        if now > departure.until - MOMENT_S:
            self._too_late(departure, out, now)
        elif departure.phase == "offering":
            self._offer(departure, out, now)

    # ── the decision ─────────────────────────────────────────────────────────────────────

    def _decide(self, departure: Departure, session: Session, out: Output, now: float) -> None:
        durable, streams = self._shared.durable, self._streams
        client, epoch = departure.client, departure.epoch
        soft = self._shared.clients[client]
        clients = streams.machine.clients
        own = durable.routing.state.subscriptions.from_source(Hop.client(client))
        levels = clients.levels(client)
        concerned = (*levels, *self._pubends_for((each.filter for each in own), levels))
        doubts = {p: tick for p in concerned if (tick := streams.machine.frontier(p))}
        given = clients.given(client) if session.total_order else 0
        logged = streams.retirement.last_of(client, epoch)
        last = logged if logged and logged > streams.done_with() else 0
        cut, _ = durable.transactions.cutter.state.last_cut
        fact = MoveDecided(
            client,
            epoch,
            departure.path,
            departure.address,
            levels,
            doubts,
            max(streams.last_tick, given),
            cut,
            soft.published,
            last,
            0 if last else max(streams.last_tick, 1),
            soft.refused,
            soft.forgotten,
            logged,
            durable.transactions.decisions.unsettled(cut),
            soft.forgot and not soft.warned,
            clients.losses.of(client),
        )
        self._drop(departure, out)
        self._counts["done"] += 1
        self._shared.journal(fact, out, now)
        for order in departure.orders:
            out.deliver.append((order, MoveOrdered(client)))

    def _pubends_for(self, filters: Iterable[Any], known: Mapping[str, int]) -> list[str]:
        """The pubends that subscriptions with these filters may receive from, without those that
        are known anyway, and those of which nothing was heard."""
        state, frontier = self._shared.durable.routing.state, self._streams.machine.frontier
        others = [each for each in state.pubends if each not in known and frontier(each)]
        if not others:
            return []
        homes: dict[str, None] = {}
        for each in filters:
            for entry in state.advertisements.overlapping(each):
                homes[entry.home] = None
        return [pubend for pubend in others if broker_of_pubend(pubend) in homes]

    def _heard(self, control: Control) -> dict[str, int]:
        """The highest ticks heard of, for moves in a control frame."""
        commits = [each for each in control.messages if type(each) is MoveCommit]
        found: dict[str, int] = {}
        for commit in commits:
            named = {**commit.levels, **commit.doubts}
            filters = (row.filter for row in commit.subscriptions)
            for pubend in (*named, *self._pubends_for(filters, named)):
                tick = self._streams.machine.frontier(pubend)
                if tick:
                    found[pubend] = tick
        return found

    def changed(self, changes: Grouped, out: Output, now: float) -> None:
        for departed in changes.get(SessionDeparted, ()):
            self._departed(departed, out, now)
        for arrived in changes.get(SessionArrived, ()):
            self._arrived(arrived, out, now)
        for passed in changes.get(PathPassed, ()):
            self._counts["passed"] += 1
            again = self._streams.machine.again
            self._streams.run(out, now, again, passed.neighbour, passed.pinned)
        for reported in changes.get(ArrivalReported, ()):
            self._streams.run(out, now, self._streams.machine.repeat, reported.pubends)
        if PredecessorsDue in changes:
            self._precede_again([each.op for each in changes[PredecessorsDue]], out, now)
        for awaited in changes.get(PublisherAwaited, ()):
            self._awaited[awaited.client] = None

    def _departed(self, departed: SessionDeparted, out: Output, now: float) -> None:
        client = departed.client
        forwarding = self._durable.state.forwardings[client]
        connection = self._shared.clients[client].connection
        self._close_gate(client)
        if connection:
            self._shared.detained.pop(connection, None)
            self._shared.unbind(connection)
            self._send_away(connection, forwarding, out)
        self._streams.depart(client, departed.epoch, departed.ended, out, now)
        del self._shared.clients[client]

    # ── at the target, and after the move ────────────────────────────────────────────────

    def _arrived(self, arrived: SessionArrived, out: Output, now: float) -> None:
        client, epoch = arrived.client, arrived.epoch
        self._accepted.pop(client, None)
        travel = self._durable.travel(client, epoch)
        if travel is None:
            return  # it has ended with its arrival
        self._counts["arrived"] += 1
        self._streams.machine.clients.doubt = self._doubt
        soft = ClientSoft(epoch, published=travel.carried, settled=travel.carried)
        soft.refused, soft.forgotten = travel.refused, travel.forgotten
        soft.forgot = travel.forgot
        self._shared.clients[client] = soft
        self._streams.arrive(client, out, now)
        self._gates[client] = None
        if client in self._early:
            self._landed[client] = None

    def _arrivals(self, client: str) -> Iterable[Newcomer]:
        """All clients that have arrived, or only this one."""
        travels = self._durable.state.travels
        for name in (client,) if client else travels:
            if name in travels:
                travel = travels[name]
                yield Newcomer(name, travel.levels, travel.unclear, travel.gone)

    def _doubt(self, client: str, pubend: str) -> int:
        travel = self._durable.state.travels.get(client)
        return travel.doubts.get(pubend, 0) if travel is not None else 0

    def _redirect(self, connection: int, hello: ClientHello, out: Output) -> bool:
        """Send a client on that comes to the broker where its session was."""
        forwarding = self._durable.state.forwardings.get(hello.client)
        if forwarding is None or hello.client in self._shared.clients:
            return False
        clients = self._shared.durable.routing.state.clients
        if clients.newest(hello.client) != forwarding.epoch:
            return False
        adopts = hello.resume is None and hello.keep_s > 0
        if hello.resume != forwarding.epoch and not (
            adopts and (hello.client, forwarding.epoch) in clients.durable
        ):
            return False
        self._send_away(connection, forwarding, out)
        return True

    def _send_away(self, connection: int, forwarding: Forwarding, out: Output) -> None:
        where = (forwarding.broker, forwarding.address, forwarding.number)
        out.deliver.append((connection, Moved(*where)))
        out.close.append(Close(connection, "", f"moved to {forwarding.broker}"))

    def _arrival_hello(
        self, connection: int, peer: None, frame: ArrivalHello, out: Output, now: float
    ) -> None:
        del peer
        hello = frame.hello
        if not self._sessions.lets_in(connection, hello, out, now):
            return
        self._early.pop(hello.client, None)
        if self._has_left(frame) and self._redirect(connection, hello, out):
            return
        self._believe(frame, now)
        if self._is_on_its_way(hello, now):
            queue = HeldFrames()
            self._early[hello.client] = Early(connection, frame, queue)
            self._shared.peers[connection] = Peer("arriving", hello.client)
            self._shared.detained[connection] = queue.hold
            out.timers.append(SetTimer(("move", "early", hello.client), now + EARLY_S))
            return
        self._sessions.greet(connection, hello, out, now)

    def _believe(self, arrival: ArrivalHello, now: float) -> None:
        """A client that was sent here has a session of which we may have heard nothing: we have
        accepted it, forgotten that in a restart, and what its former broker has told us is behind
        much else. So it is believed once, as if we had accepted it now."""
        hello = arrival.hello
        if not (arrival.number and hello.resume):
            return
        newest = self._shared.durable.routing.state.clients.newest(hello.client)
        accepted, _ = self._accepted.get(hello.client, ("", 0.0))
        if accepted != hello.resume and (newest is None or is_newer(hello.resume, than=newest)):
            self._accepted[hello.client] = (hello.resume, now + ACCEPTED_S)

    def _is_on_its_way(self, hello: ClientHello, now: float) -> bool:
        clients = self._shared.durable.routing.state.clients
        newest = clients.newest(hello.client)
        if hello.resume and (newest is None or is_newer(hello.resume, than=newest)):
            accepted, until = self._accepted.get(hello.client, ("", now))
            return accepted == hello.resume and now < until
        epoch = hello.resume or newest
        if epoch is None or self._shared.durable.sessions.current(hello.client, epoch) is not None:
            return False
        if not hello.resume and (hello.client, epoch) not in clients.durable:
            return False
        return (hello.client, epoch) in clients and newest == epoch

    def _has_left(self, arrival: ArrivalHello) -> bool:
        """Was the session here with the move that the client knows of, and has gone on?"""
        forwarding = self._forwarding(arrival.hello)
        return forwarding is not None and 0 < arrival.number <= forwarding.number

    def _forwarding(self, hello: ClientHello) -> Forwarding | None:
        """A durable client whose process is new does not know the epoch of its session."""
        epoch = hello.resume or self._shared.durable.routing.state.clients.newest(hello.client)
        return self._durable.forwarding(hello.client, epoch or "")

    def _look_at_early(self, client: str, out: Output, now: float) -> None:
        early = self._early.get(client)
        if early is None:
            return
        connection, arrival, queue = early
        hello = arrival.hello
        left = self._forwarding(hello) is not None
        if arrival.number:
            left = self._has_left(arrival)
        if self._is_on_its_way(hello, now) and not left:
            out.timers.append(SetTimer(("move", "early", client), now + EARLY_S))
            return
        # If it was here before, it may be coming back, or may have gone on before its client came:
        # a client that does not know by which move has waited long enough.
        del self._early[client]
        out.timers.append(CancelTimer(("move", "early", client)))
        self._shared.unbind(connection)
        if not self._redirect(connection, hello, out):
            self._sessions.greet(connection, hello, out, now)
            self._replay(connection, queue, out, now)

    def _early_left(self, connection: int, peer: Peer, out: Output, now: float) -> None:
        del out, now
        early = self._early.get(peer.name)
        if early is not None and early.connection == connection:
            del self._early[peer.name]

    def _operator_left(self, connection: int, peer: Peer, out: Output, now: float) -> None:
        del peer, out, now
        for departure in self._departures.values():
            if connection in departure.orders:
                departure.orders.remove(connection)

    # ── the gate of a publisher ──────────────────────────────────────────────────────────

    def _open_gate(self, client: str, out: Output, now: float) -> None:
        """Take what a client that has arrived has sent, if it may publish; then plans go on."""
        soft = self._shared.clients.get(client)
        travel = self._durable.state.travels.get(client)
        if soft is None or travel is None:
            self._close_gate(client)
            return
        if not self._may_publish(travel):
            self._hold_at_gate(client, soft.connection)
            return
        predecessors = self._durable.predecessors(client, travel.epoch)
        if predecessors or travel.trail:
            self._streams.precede(client, predecessors, travel.trail, out, now)
        connection, queue = self._close_gate(client)
        if connection == soft.connection:
            self._replay(connection, queue, out, now)
        if travel.awaited:
            self._awaited[client] = None

    def _may_publish(self, travel: Travel) -> bool:
        return self._streams.begun and self._durable.may_publish(travel)

    def _admit(self, client: str, out: Output, now: float) -> None:
        """Plans wait until everything that the client has sent before them is taken."""
        travel = self._durable.state.travels.get(client)
        if travel is None or not travel.awaited:
            del self._awaited[client]
        elif client not in self._gates:
            del self._awaited[client]
            self._shared.journal(PublisherAdmitted(client, travel.epoch), out, now)

    def _precede_again(self, due: Sequence[OpId], out: Output, now: float) -> None:
        """Subscriptions have started above the records that name earlier events of clients that
        have arrived. If some are still owed, the subscribers must find the records above, too."""
        state = self._shared.durable.routing.state
        advertised = {op.client for op in due if op in state.advertisements}
        found = [state.subscriptions.get(op) for op in due]
        filters = [entry.filter for entry in found if entry is not None]
        for client, travel in self._durable.state.travels.items():
            if client in self._gates:
                continue  # a record is due when its gate opens
            own = state.advertisements.from_source(Hop.client(client))
            if client in advertised or any(
                overlap(each.filter, wanted) for each in own for wanted in filters
            ):
                predecessors = self._durable.predecessors(client, travel.epoch)
                self._streams.precede(client, predecessors, {}, out, now)

    def _hold_at_gate(self, client: str, connection: int) -> None:
        known, _ = self._queues.get(client, (0, None))
        if known == connection:
            return
        self._shared.detained.pop(known, None)
        queue = HeldFrames()
        self._queues[client] = (connection, queue)

        def hold(frame: Frame) -> bool:
            if type(frame) in PASSING:
                return False
            return queue.hold(frame)

        if connection:
            self._shared.detained[connection] = hold

    def _close_gate(self, client: str) -> tuple[int, HeldFrames]:
        """Returns the connection of a client that waited, and its frames."""
        self._gates.pop(client, None)
        connection, queue = self._queues.pop(client, (0, HeldFrames()))
        self._shared.detained.pop(connection, None)
        return connection, queue

    # ── acknowledgements around a move ───────────────────────────────────────────────────

    def _fence(self, neighbour: str, ack: AckUp) -> Frame:
        if neighbour not in self._durable.state.fenced:
            return ack
        return FencedAck(self._shared.links[neighbour].ledger.record.sent, ack)

    def _fenced_ack(
        self, connection: int, peer: Peer, frame: FencedAck, out: Output, now: float
    ) -> None:
        del connection
        received = self._shared.links[peer.name].ledger.record.received
        if self._durable.state.swept.get(peer.name, 0) <= frame.after <= received:
            self._streams.received(peer.name, frame.ack, out, now)

    def validate(self) -> None:
        for client, departure in self._departures.items():
            assert departure.client == client
        for connection in self._shared.detained:
            assert connection in self._shared.peers
