"""The broker as one deterministic, single-threaded machine: `step(input, now) -> Output`.

This file is the composition and the single entry point. The soft halves of the protocols interpret
an input and turn durable changes into facts; `durable` applies them, and every room reacts to the
changes.

No clock, socket, thread, randomness or set order: the same inputs give the same outputs under
asyncio, in one process and in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from msgspec import Struct

from motet.broker.core.cell.membership import CELL_FRAMES, Membership
from motet.broker.core.durable import Durable
from motet.broker.core.protocols import PROTOCOLS
from motet.errors import PeerError, ProtocolError, StaleState
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    CancelTimer,
    Closed,
    Fact,
    Input,
    Output,
    Received,
    Remembered,
    SetTimer,
    TimerFired,
)
from motet.protocol.delivery.facts import LogDestroyed
from motet.protocol.delivery.soft import Streams
from motet.protocol.frames import Frame
from motet.protocol.link.machine import Link
from motet.protocol.link.soft import Inquiries, SoftLinks
from motet.protocol.room import LISTED, Objection, SoftRoom
from motet.protocol.routing.soft import Router
from motet.protocol.session.soft import SoftSessions
from motet.protocol.shared import ClientSoft, Counts, SharedState
from motet.protocol.sinks.soft import SoftSinks
from motet.protocol.traits import TRAITS

S = TypeVar("S", bound=SoftRoom)


class BrokerCore:
    durable: Durable
    shared: SharedState
    router: Router
    inquiries: Inquiries
    is_among_cells: bool

    def __init__(self, config: BrokerConfig, durable: Durable | None = None) -> None:
        """A new broker; or, with the state restored from a journal, one that continues."""
        self.durable = durable or Durable(config)
        self.shared = shared = SharedState(config, self.durable, self.journal, self._closed)
        state = self.durable.routing.state
        self.is_among_cells = bool(config.mates or config.cells)
        self.router = Router(self.durable.routing, shared.links, shared.clients)
        self.inquiries = Inquiries(config, state, shared.links)
        shared.receive = self._receive_again
        self._compose()

    def listens_at(self, address: str) -> None:
        """Clients that move here are told this address."""
        self.shared.address = address

    def _compose(self) -> None:
        self._made: dict[type[SoftRoom], SoftRoom | None] = {}
        self._makers = dict(each.soft for each in PROTOCOLS if each.soft is not None)
        made = (self._make(kind) for kind in self._makers)
        self._rooms = rooms = tuple(room for room in made if room is not None)
        self.streams = self.room(Streams)
        self.sessions = self.room(SoftSessions)
        self.neighbours = self.room(SoftLinks)
        self.sinks = self.room(SoftSinks)
        self.membership = self.room(Membership) if self.is_among_cells else None
        self._frames: dict[type, Callable[..., None]] = {}
        self._inputs: dict[type, Callable[..., None]] = {
            TimerFired: self._timer_fired,
            Closed: self._connection_closed,
        }
        self._timers: dict[str, Callable[..., None]] = {}
        self._closings: dict[str, Callable[..., None]] = {}
        for room in rooms:
            self._frames |= room.frames()
            self._inputs |= room.inputs()
            self._timers |= room.timers()
            self._closings |= room.closings()
        self._stepped = [(each.astir, each.stepped) for each in rooms if overrides(each, "stepped")]
        self._journaled = [
            (each.due, each.journaled) for each in rooms if overrides(each, "journaled")
        ]
        reactions = [
            *((each.concerns, each.changed) for each in rooms if overrides(each, "changed")),
            *((each.concerns, each.concluded) for each in rooms if overrides(each, "concluded")),
        ]
        self._reactions = [(1 << at, reaction) for at, (_, reaction) in enumerate(reactions)]
        self._concerned: dict[type, int] = {}
        """By kind of change: the bits of the reactions that it concerns."""
        for at, (concerns, _) in enumerate(reactions):
            for kind in concerns:
                self._concerned[kind] = self._concerned.get(kind, 0) | 1 << at

    def _make(self, kind: type[SoftRoom]) -> SoftRoom | None:
        if kind not in self._made:
            self._made[kind] = self._makers[kind](self)
        return self._made[kind]

    def room(self, kind: type[S]) -> S:
        """The room of this kind; created at the first call."""
        found = self._make(kind)
        assert isinstance(found, kind)
        return found

    # ── the door ─────────────────────────────────────────────────────────────────────────

    def step(self, input: Input, now: float) -> Output:
        """One input, one output. A misbehaving peer loses its connection, with no other effect."""
        out = Output()
        self.shared.counts.steps += 1
        if type(input) is Received:  # by far the most frequent input: checked first, and cheaply
            connection, frame = input
            try:
                self._received(connection, frame, out, now)
            except PeerError as error:
                self.shared.expel(connection, error, out, now)
        else:
            self._inputs[type(input)](input, out, now)
        for astir, stepped in self._stepped:
            if not astir or any(astir):
                stepped(out, now)
        return out

    def recover(self, now: float, remembered: Remembered | None = None) -> Output:
        """The first output of a new or restored broker; `remembered` is the content of its pubend's
        log. Without it the broker has no pubend, and all events are best effort."""
        out = Output()
        out.timers.extend(self.durable.recover(now))
        if remembered is not None:
            if remembered.destroyed_upto > self.durable.delivery.destroyed[0]:
                self.journal(LogDestroyed(remembered.destroyed_upto), out, now)
            self.sessions.recall(remembered)
            self.streams.begin(remembered, out, now)
            for due, journaled in self._journaled:
                if due:
                    journaled(out, now)
        for astir, stepped in self._stepped:
            if not astir or any(astir):
                stepped(out, now)
        return out

    # ── inputs ───────────────────────────────────────────────────────────────────────────

    def _received(self, connection: int, frame: Frame, out: Output, now: float) -> None:
        detained = self.shared.detained
        if detained and connection in detained and detained[connection](frame):
            return
        self._handle(connection, frame, out, now)

    def _receive_again(self, connection: int, frame: Frame, out: Output, now: float) -> None:
        """A frame that was kept is received now."""
        try:
            self._handle(connection, frame, out, now)
        except PeerError as error:
            self.shared.expel(connection, error, out, now)

    def _handle(self, connection: int, frame: Frame, out: Output, now: float) -> None:
        kind = type(frame)
        handle = self._frames.get(kind)
        if handle is None:
            if kind in CELL_FRAMES:
                raise ProtocolError(f"{self.config.name} is in no cell, and next to none")
            raise ProtocolError(f"a broker does not take {kind.__name__}")
        peer = self.shared.peers.get(connection)
        found = "nobody" if peer is None else peer.kind
        if found not in TRAITS[kind].senders:
            raise ProtocolError(f"{kind.__name__} from {found} on this connection")
        handle(connection, peer, frame, out, now)

    def _connection_closed(self, news: Closed, out: Output, now: float) -> None:
        self._closed(news.connection, out, now)

    def _closed(self, connection: int, out: Output, now: float) -> None:
        peer = self.shared.peers.get(connection)
        if peer is None:
            return
        self.shared.unbind(connection)
        self._closings[peer.kind](connection, peer, out, now)

    def _timer_fired(self, news: TimerFired, out: Output, now: float) -> None:
        handle = self._timers.get(str(news.key[0]))
        if handle is not None:
            handle(news.key, out, now)

    # ── facts ────────────────────────────────────────────────────────────────────────────

    def journal(self, body: Struct, out: Output, now: float) -> None:
        """Write a fact; all rooms react to its changes."""
        fact = Fact(now, body)
        out.persist.append(fact)
        self.react(fact, out, now)
        for due, journaled in self._journaled:
            if due:
                journaled(out, now)

    def react(self, fact: Fact, out: Output, now: float) -> None:
        changes = self.durable.apply(fact)
        if self.router.plans:
            self.router.tables_changed()
        grouped: dict[type, list[Any]] = {}
        concerned = 0
        for change in changes:
            kind = type(change)
            if kind is SetTimer or kind is CancelTimer:
                out.timers.append(change)  # type: ignore[arg-type]
            elif (same := grouped.get(kind)) is not None:
                same.append(change)
            else:
                grouped[kind] = [change]
                concerned |= self._concerned.get(kind, 0)
        if concerned:
            for bit, reaction in self._reactions:
                if concerned & bit:
                    reaction(grouped, out, now)

    # ── looking in ───────────────────────────────────────────────────────────────────────

    @property
    def config(self) -> BrokerConfig:
        """The current configuration: the operator may change the neighbours."""
        return self.shared.config

    @property
    def links(self) -> dict[str, Link]:
        return self.shared.links

    @property
    def clients(self) -> dict[str, ClientSoft]:
        return self.shared.clients

    @property
    def counts(self) -> Counts:
        return self.shared.counts

    def objection_to(self, neighbours: tuple[str, ...]) -> Objection | None:
        """Why these cannot become the neighbours."""
        return self.neighbours.objection_to(neighbours)

    def acknowledged(self) -> dict[str, int]:
        """Control acknowledged by each neighbour, which a snapshot need not contain."""
        return {name: ledger.confirmed for name, ledger in self.durable.ledgers.items()}

    def outlives(self, error: str) -> bool:
        """Whether it goes on when a neighbour ends the connection with this error."""
        return error != StaleState.__name__

    def withheld(self) -> int:
        """Number of latest facts that some mate lacks; output that rests on them must not leave."""
        return 0 if self.membership is None else self.membership.mirror.withheld()

    def done_with(self) -> int:
        """The tick of our pubend up to which every receiver has acknowledged everything."""
        return self.streams.done_with()

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]:
        """The status for operators, with the homes of these clients; plain values only."""
        config = self.config
        homes = self.durable.routing.state.clients
        status = {
            "broker": config.name,
            "incarnation": config.incarnation,
            "covering": config.covering,
            "cell": None,
            "homes": {client: homes.home(client) for client in islice(clients, LISTED)},
        }
        for room in self._rooms:
            status |= room.account()
        return status

    def validate(self) -> None:
        """Raise if durable or soft state is inconsistent, or a neighbour sent invalid control."""
        self.durable.validate()
        self.durable.routing.validate_neighbours()
        for room in self._rooms:
            room.validate()


def overrides(room: SoftRoom, name: str) -> bool:
    return getattr(type(room), name) is not getattr(SoftRoom, name)
