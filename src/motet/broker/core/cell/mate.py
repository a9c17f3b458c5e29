"""A mate: a member of a cell that keeps nothing on disk and carries streams only.

It mirrors the durable state of its head, including the routing tables, so it knows for each stream
which neighbours want what. Clients, control and best-effort events are the head's responsibility.
While the head is away the mate continues with what it knows; receivers see from its word how much
that is (`motet.protocol.cell.belief`).

`step(input, now) -> Output`, like any core; none of it is journaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from motet.broker.core.cell.bundle import Bundle, Word
from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import rebuild
from motet.broker.core.records import MACHINE_VERSION, decode_fact
from motet.errors import NoClientsHere, PeerError, ProtocolError, StaleState
from motet.model import OpId
from motet.protocol.cell.messages import (
    Facts,
    FactsAck,
    ImagePart,
    InwardFrame,
    MemberFrame,
    MemberHello,
    Shared,
    SidewaysFrame,
    Standing,
)
from motet.protocol.changes import PubendDestroyed
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    Close,
    Closed,
    Dialled,
    Input,
    Output,
    Received,
    Remembered,
    TimerFired,
)
from motet.protocol.delivery.interest import Interests, Way
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import AckUp, DeliveryFrame
from motet.protocol.delivery.neighbours import Tally
from motet.protocol.delivery.stream import Effects
from motet.protocol.frames import Frame
from motet.protocol.link.machine import LinkRecord
from motet.protocol.link.messages import LinkHello
from motet.protocol.machine import Snapshot
from motet.protocol.room import Objection, Peer
from motet.protocol.routing.soft import Router
from motet.protocol.session.messages import ClientHello
from motet.protocol.traits import TRAITS


class MateInterests(Interests):
    """Clients are at the head, so no stream ends here."""

    def way(self, mask: int) -> Way:
        return Way(super().way(mask).neighbours, (), ())

    def is_ours(self, op: OpId) -> bool:
        """The head's clients are not clients of the mate: a start record of theirs must not begin a
        position here, because it would never be acknowledged or ended."""
        del op
        return False


class Reflection:
    """The head's durable state after a certain fact, with the streams that rest on it."""

    def __init__(self, config: BrokerConfig, number: int, payloads: list[bytes]) -> None:
        settings = replace(config, name=config.head, head="", mates=(), cells={})
        self.durable: Durable = rebuild(settings, Snapshot(MACHINE_VERSION, payloads), ())
        self.applied = number
        self.words: dict[str, tuple[int, int, int, int]] = {}
        """By neighbour, what our word rests on: as of the last confirmed fact."""
        self._behind: list[tuple[int, dict[str, tuple[int, int, int, int]]]] = []
        """The same after later facts, in order."""
        routing = self.durable.routing
        self._router = Router(routing, {}, {})
        self._ledgers: dict[str, Any] = {}
        self.interests = MateInterests(routing, self._ledgers, self._router)
        self.machine = DeliveryMachine(self.interests, config.liveness)
        self.edge = False
        """Do the head's clients have subscriptions? Only the head knows how far they are."""
        self._look()

    def apply(self, facts: Facts, effects: Effects) -> None:
        skipped = self.applied + 1 - facts.first
        for payload in facts.payloads[max(skipped, 0) :]:
            then = self.durable.apply(decode_fact(payload))
            self.applied += 1
            for destroyed in then.of(PubendDestroyed):
                self.machine.destroyed(destroyed.pubend, effects)
        for ledger in self.durable.ledgers.values():
            ledger.outbox.clear()  # the head sends and retransmits it
        self._router.tables_changed()
        self._look()
        self.machine.tables_changed(effects)

    def _look(self) -> None:
        ledgers = self.durable.ledgers
        if self._ledgers.keys() != ledgers.keys():
            self._ledgers.clear()
            self._ledgers.update(ledgers)
        self.edge = self._has_clients()
        records = [(name, ledger.record) for name, ledger in ledgers.items()]
        self._behind.append(
            (self.applied, {n: (r.life, r.incarnation, r.asked, r.told) for n, r in records})
        )

    def confirm(self, upto: int) -> None:
        while self._behind and self._behind[0][0] <= upto:
            self.words = self._behind.pop(0)[1]

    def _has_clients(self) -> bool:
        state = self.durable.routing.state
        hops = (hop for hop in state.bits.slots if hop is not None and not hop.is_broker)
        return any(state.subscriptions.count(hop) for hop in hops)


class MateCore:
    """One process of a cell."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.bundle = Bundle(self, config)
        self.peers: dict[int, Peer] = {}
        self.now_of: Reflection | None = None
        """The state that we answer for."""
        self._next: Reflection | None = None
        """Its replacement, once the head waits for us."""
        self._parts: list[bytes] = []
        self._feed = 0
        """The connection on which the head sends its state."""
        self._fed: Reflection | None = None
        """The state that its facts apply to, once all of the head's state has arrived."""
        self.sync = config.incarnation
        self.tally = Tally()
        self.steps = 0

    # ── step ─────────────────────────────────────────────────────────────────────────────

    def step(self, given: Input, now: float) -> Output:
        out = Output()
        self.steps += 1
        match given:
            case Received(connection, frame):
                try:
                    self._received(connection, frame, out, now)
                except PeerError as error:
                    out.close.append(Close(connection, type(error).__name__, str(error)))
                    self._closed(connection, out, now)
            case TimerFired(("member", name)):
                self.bundle.alarm(str(name), out, now)
            case TimerFired(key) if key[0] == "delivery" and self.now_of is not None:
                effects = Effects(now)
                self.now_of.machine.alarm(key, effects)
                self._carry(effects, out, now)
            case Closed(connection):
                self._closed(connection, out, now)
            case Dialled(connection, name) if name not in self.bundle.members:
                out.close.append(Close(connection, "", f"{name} is not known here yet"))
            case Dialled(connection, name):
                self.peers[connection] = self.bundle.peer(name)
                self.bundle.dialled(connection, name, out, now)
            case _:
                pass
        self.bundle.after(out)
        return out

    def recover(self, now: float, remembered: Remembered | None = None) -> Output:
        """A mate starts empty."""
        del now, remembered
        return Output()

    def _received(self, connection: int, frame: Frame, out: Output, now: float) -> None:
        if isinstance(frame, ClientHello | LinkHello):
            out.close.append(Close(connection, NoClientsHere.__name__, self.config.not_here()))
            return
        peer = self.peers.get(connection)
        found = "nobody" if peer is None else peer.kind
        if found not in TRAITS[type(frame)].mate_senders:
            raise ProtocolError(f"{type(frame).__name__} from {found} on this connection")
        if type(frame) is MemberHello:
            name = self.bundle.hello(connection, frame, out, now)
            self.peers[connection] = self.bundle.peer(name)
            return
        assert peer is not None
        match frame:
            case ImagePart():
                self._image(connection, peer, frame, out, now)
            case Facts():
                self._facts(connection, frame, out, now)
            case InwardFrame() | SidewaysFrame() | Shared() | Standing() | MemberFrame():
                self.bundle.received(peer, frame, out, now)

    def _closed(self, connection: int, out: Output, now: float) -> None:
        peer = self.peers.pop(connection, None)
        if peer is not None:
            if connection == self._feed:
                self._feed = 0
                self._fed = self._next = None
            self.bundle.closed(peer.name, connection, out, now)

    # ── the mirror ───────────────────────────────────────────────────────────────────────

    def _image(self, connection: int, peer: Peer, part: ImagePart, out: Output, now: float) -> None:
        if peer.name != self.config.head:
            raise ProtocolError(f"{peer.name} is not the head of this cell")
        if part.at == 1:
            self._parts = []
            self._feed = connection
            self._fed = self._next = None
        if connection != self._feed or part.at != len(self._parts) + 1:
            self._start_over(connection, out, now)
            return
        self._parts.append(part.payload)
        if part.at == part.count:
            self._fed = self._next = Reflection(self.config, part.number, self._parts)
            self._parts = []
            out.send.append((connection, FactsAck(part.number)))

    def _start_over(self, connection: int, out: Output, now: float) -> None:
        """A part is missing or duplicate, or facts are missing: start over on a new connection."""
        out.close.append(Close(connection, "", "starts over with the state of its head"))
        self._closed(connection, out, now)

    def _facts(self, connection: int, facts: Facts, out: Output, now: float) -> None:
        fed = self._fed
        if connection != self._feed or fed is None or facts.first > fed.applied + 1:
            self._start_over(connection, out, now)
            return
        effects = Effects(now)
        if facts.first + len(facts.payloads) - 1 > fed.applied:
            fed.apply(facts, effects)
            out.send.append((connection, FactsAck(fed.applied)))
        if facts.confirmed >= 0:
            fed.confirm(facts.confirmed)
            if fed is self._next:
                self._begin_anew(fed, out, now)
        if fed is self.now_of:
            self._carry(effects, out, now)

    def _begin_anew(self, reflection: Reflection, out: Output, now: float) -> None:
        """The head waits for us from now on. What we know of streams from before may be wrong for a
        subscription that we did not know, and is dropped."""
        self.now_of, self._next = reflection, None
        self.sync += 1
        self.bundle.forget_doubts()
        self.bundle.open_up(out, now)
        for cell in reflection.durable.ledgers:
            self.linked(cell, out, now)

    # ── for the bundle ───────────────────────────────────────────────────────────────────

    def neighbours(self) -> Iterable[str]:
        return () if self.now_of is None else self.now_of.durable.ledgers

    def word(self, cell: str) -> Word:
        words = {} if self.now_of is None else self.now_of.words
        return (self.sync, *words.get(cell, (0, 0, 0, 0)))

    def record(self, cell: str) -> LinkRecord | None:
        ledger = None if self.now_of is None else self.now_of.durable.ledgers.get(cell)
        return None if ledger is None else ledger.record

    def need(self, cell: str) -> int:
        record = self.record(cell)
        return 0 if record is None else record.asked

    def head_link(self, cell: str) -> int:
        del cell
        return 0

    def edge(self) -> bool:
        return self.now_of is not None and self.now_of.edge

    def take(self, source: str, frame: DeliveryFrame, out: Output, now: float) -> None:
        if self.now_of is not None:
            self.tally.note("received", source, frame, now)
            effects = Effects(now)
            self.now_of.machine.receive(source, frame, effects)
            self._carry(effects, out, now)

    def linked(self, cell: str, out: Output, now: float) -> None:
        if self.now_of is not None:
            effects = Effects(now)
            self.now_of.machine.linked(cell, effects)
            self._carry(effects, out, now)

    def met(self, member: str, connection: int, out: Output, now: float) -> None:
        """Nothing to do: the head sends its state by itself."""

    def unasked(self, asker: str) -> None:
        if self.now_of is not None:
            self.now_of.machine.unasked(asker)

    def _carry(self, effects: Effects, out: Output, now: float) -> None:
        ours = self.now_of
        for name, frame in effects.send:
            if type(frame) is AckUp and ours is not None and ours.edge:
                continue
            self.tally.note("sent", name, frame, now)
            self.bundle.send(name, frame, out)
        out.timers.extend(effects.timers)

    # ── inspection ───────────────────────────────────────────────────────────────────────

    def outlives(self, error: str) -> bool:
        """Whether it goes on when a neighbour ends the connection with this error."""
        return error != StaleState.__name__

    def withheld(self) -> int:
        """A mate has no facts of its own."""
        return 0

    def done_with(self) -> int:
        return 0

    def listens_at(self, address: str) -> None:
        """No client moves to a mate."""

    def objection_to(self, neighbours: tuple[str, ...]) -> Objection | None:
        """A mate takes its neighbours from its head."""
        del neighbours
        return None

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]:
        del clients  # a mate has none
        ours = self.now_of
        tables = None if ours is None else ours.durable.routing.state
        return {
            "broker": self.config.name,
            "mate_of": self.config.head,
            "incarnation": self.config.incarnation,
            "cell": self.bundle.describe(),
            "mirror": {
                "live": ours is not None,
                "connected": bool(self._feed),
                "facts": 0 if ours is None else ours.applied,
            },
            "tables": {
                "advertisements": 0 if tables is None else len(tables.advertisements),
                "subscriptions": 0 if tables is None else len(tables.subscriptions),
                "buffered_subscriptions": None,
                "clients": 0 if tables is None else len(tables.clients),
                "waiting_operations": 0,
                "ignored_messages": 0,
            },
            "links": {},
            "delivery": self.tally.account(),
            "sessions": {},
            "session_count": 0,
            "sessions_away": 0,
            "counts": {"steps": self.steps, "refused": 0},
        }

    def validate(self) -> None:
        if self.now_of is not None:
            self.now_of.durable.validate()
            self.now_of.machine.validate()
