"""One broker; its neighbours, its clients and operators are the test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TypeVar

import msgspec

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.model import Filter, OpId, encode_event
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    Closed,
    Fact,
    Input,
    Logged,
    LogItem,
    LogRead,
    Output,
    Persisted,
    Received,
    SetTimer,
    TimerFired,
)
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import (
    Control,
    ControlAck,
    ControlMessage,
    LinkHello,
    Publications,
)
from motet.protocol.mobility.durable import DurableMobility
from motet.protocol.mobility.messages import (
    MoveCommit,
    MoveOffer,
    MoveReply,
    MoveRequest,
    Strays,
)
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.publication import Publication
from motet.protocol.room import Peer
from motet.protocol.routing.messages import Advertise, Complete, PubendHere
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Publish,
    SubscribeRequest,
    Welcome,
)
from motet.testing.clock import Agenda
from motet.testing.pubend import SimulatedPubend

F = TypeVar("F")
WIDE = Filter.parse("x > 0")
PATHS = {"A": ("A", "B", "C"), "B": ("B",), "C": ("C", "B", "A")}
"""By broker of A - B - C: itself and the others, in the order of a path that begins there."""


def body(x: int) -> msgspec.Raw:
    return msgspec.Raw(encode_event({"x": x}, b""))


def publication(x: int) -> Publication:
    return Publication("xavier", x, body(x))


class Place:
    """A broker of the overlay A - B - C, with an exactly-once log."""

    def __init__(self, name: str = "A", *, covering: bool = False, root: str = "") -> None:
        self.name = name
        self.neighbours = {"A": ("B",), "B": ("A", "C"), "C": ("B",)}[name]
        self.config = BrokerConfig(name, self.neighbours, 1, covering=covering, root=root)
        self.now = 1.0
        self.journal: list[Fact] = []
        self.timers: dict[tuple[object, ...], float] = {}
        self.told: list[tuple[int, Frame]] = []
        """Frames that left, with their connections."""
        self.closed: dict[int, str] = {}
        self.is_writing = True
        """Are records of the log durable at once?"""
        self.is_lied_to = False
        """May neighbours send control that is not valid?"""
        self.logged: list[LogItem] = []
        """What was given to the log, durable or not."""
        self._unwritten: list[Sequence[LogItem]] = []
        self._connections = count(1)
        self._numbers: dict[str, int] = {}
        self._soft_numbers = count(1)
        self.ends: dict[str, int] = {}
        """By neighbour or client: its connection."""
        self._pubend = SimulatedPubend(Agenda(), lambda: 0.0)
        self._begin([])
        for neighbour in self.neighbours:
            self.link(neighbour)
            self.control(neighbour, Complete(True))
        for neighbour in self.neighbours:
            for broker in self._behind(neighbour):
                way = self._way(broker)
                self.control(neighbour, PubendHere(f"{broker}.1", way))

    def _behind(self, neighbour: str) -> tuple[str, ...]:
        if self.name == "B":
            return (neighbour,)
        return tuple(name for name in PATHS[self.name] if name != self.name)

    def _way(self, broker: str) -> tuple[str, ...]:
        if self.name == "B":
            return (broker,)
        path = PATHS[self.name]
        return path[1 : path.index(broker) + 1]

    def _begin(self, journal: list[Fact]) -> None:
        durable = Durable(self.config)
        durable.replay(journal)
        self.core = BrokerCore(self.config, durable)
        self.core.listens_at(f"inproc://{self.name}")
        self.journal = list(journal)
        self._pubend.watch(lambda _: None, _unexpected)
        self._carry(self.core.recover(self.now, self._pubend.remembered()))

    def restart(self, *, lost: int = 0) -> None:
        """Die, and continue with what is durable. Neighbours connect again; the last few control
        messages to them were lost."""
        self.ends.clear()
        self.timers.clear()
        self.core = None  # type: ignore[assignment]
        self._begin(self.journal)
        for neighbour in self.neighbours:
            self.link(neighbour, lost)

    @property
    def durable(self) -> DurableMobility:
        return self.core.durable.room(DurableMobility)

    @property
    def soft(self) -> SoftMobility:
        return self.core.room(SoftMobility)

    @property
    def counts(self) -> dict[str, int]:
        return {
            kind: count
            for kind, count in self.soft.account()["moves"].items()
            if isinstance(count, int) and count
        }

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def step(self, input: Input) -> Output:
        out = self.core.step(input, self.now)
        self._carry(out)
        if not self.is_lied_to:
            self.core.validate()
        return out

    def _carry(self, out: Output) -> None:
        self.journal += out.persist
        self.told += [*out.send, *out.deliver]
        for timer in out.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = timer.at
            else:
                self.timers.pop(timer.key, None)
        for connection, error, text, _ in out.close:
            self.closed[connection] = error or text
        if out.log:
            self.logged += out.log
            self._unwritten.append(out.log)
            if self.is_writing:
                self.write()
        if out.confirm:
            self.step(Persisted(out.confirm))
        for want in out.reads:
            self.step(LogRead(want, self._pubend.read(want)))

    def write(self) -> None:
        """What was appended to the log is durable."""
        self.is_writing = True
        items, self._unwritten = self._unwritten, []
        for each in items:
            self._pubend.append(each)
        if items:
            self.step(Logged(self._pubend.durable))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [(at, str(key), key) for key, at in self.timers.items() if at <= until]:
            at, _, key = min(due, key=lambda each: each[:2])
            del self.timers[key]
            self.now = max(self.now, at)
            self.step(TimerFired(key))
        self.now = until

    # ── neighbours ───────────────────────────────────────────────────────────────────────

    def link(self, neighbour: str, lost: int = 0) -> None:
        self._numbers.setdefault(neighbour, 0)
        received = self.core.durable.ledgers[neighbour].record.sent - lost
        root = self.config.root
        self.hear(neighbour, LinkHello(PROTOCOL_VERSION, neighbour, 1, 1, received, root=root))

    def control(self, neighbour: str, *messages: ControlMessage) -> None:
        first = self._numbers[neighbour] + 1
        self._numbers[neighbour] += len(messages)
        self.hear(neighbour, Control(first, messages))

    def acknowledge(self, neighbour: str) -> list[Frame]:
        """The neighbour has all control that we have sent it."""
        sent = self.core.durable.ledgers[neighbour].record.sent
        return self.hear(neighbour, ControlAck(sent))

    def events(self, neighbour: str, *values: int) -> list[Frame]:
        """Best-effort events come from a neighbour."""
        batch = [publication(x) for x in values]
        return self.hear(neighbour, Publications(next(self._soft_numbers), 0, batch))

    def strays(
        self,
        neighbour: str,
        *values: int,
        last: bool = False,
        client: str = "alice",
        epoch: str = "A-1.1",
        move: int = 1,
    ) -> list[Frame]:
        """Events come behind a client from the neighbour before us."""
        batch = [publication(x) for x in values]
        number = next(self._soft_numbers)
        return self.hear(neighbour, Strays(number, 0, client, epoch, move, batch, last))

    def hear(self, who: str, frame: Frame) -> list[Frame]:
        """A frame arrives on a connection, which opens with the first one; returns all frames that
        leave then, to anybody."""
        if who not in self.ends:
            self.ends[who] = next(self._connections)
        before = len(self.told)
        self.step(Received(self.ends[who], frame))
        return [frame for _, frame in self.told[before:]]

    def lose(self, who: str) -> None:
        self.step(Closed(self.ends.pop(who)))

    def sent(self, who: str, kind: type[F]) -> list[F]:
        """All frames or control messages of a kind that left on a connection of a peer."""
        found: list[F] = []
        for connection, frame in self.told:
            if connection != self.ends.get(who):
                continue
            each = frame.messages if isinstance(frame, Control) else (frame,)
            found += [one for one in each if isinstance(one, kind)]
        return found

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def connect(
        self, client: str = "alice", resume: str | None = None, *, keep_s: float = 0.0
    ) -> str:
        """Returns the epoch."""
        self.ends.pop(client, None)
        hello = ClientHello(PROTOCOL_VERSION, client, resume, keep_s=keep_s)
        (welcome,) = (f for f in self.hear(client, hello) if isinstance(f, Welcome))
        return welcome.epoch

    def advertise(self, client: str = "alice", sequence: int = 1) -> OpId:
        self.hear(client, AdvertiseRequest(sequence, WIDE, wait=False))
        return self._op(client, sequence)

    def subscribe(self, client: str = "alice", sequence: int = 1) -> OpId:
        self.hear(client, SubscribeRequest(sequence, WIDE, wait=False))
        return self._op(client, sequence)

    def subscribe_and_wait(self, client: str = "alice", sequence: int = 1) -> OpId:
        """It is not effective before B has echoed it, because somebody advertises there."""
        there = OpId("xavier", "B-1.1", 1)
        self.control("B", Advertise(there, WIDE))
        self.hear(client, SubscribeRequest(sequence, WIDE))
        return self._op(client, sequence)

    def _op(self, client: str, sequence: int) -> OpId:
        session = self.core.durable.sessions.get(client)
        assert session is not None
        return OpId(client, session.epoch, sequence)

    def publish(self, first: int, *values: int, client: str = "alice") -> list[Frame]:
        return self.hear(client, Publish(first, [body(x) for x in values], True))

    def peer(self, who: str) -> Peer | None:
        return self.core.shared.peers.get(self.ends.get(who, 0))

    # ── moves ────────────────────────────────────────────────────────────────────────────

    def ask(
        self, to: str = "C", timeout_s: float = 10.0, number: int = 1, client: str = "alice"
    ) -> list[Frame]:
        return self.hear(client, MoveRequest(number, to, timeout_s))

    def offer(self) -> MoveOffer:
        """The last offer that left."""
        return [frame for _, frame in self.told if isinstance(frame, MoveOffer)][-1]

    def accept(self, offer: MoveOffer | None = None) -> list[Frame]:
        each = offer or self.offer()
        reply = MoveReply(each.client, each.epoch, each.number, each.path, "inproc://C")
        return self.hear(each.path[1], reply)

    def depart(self, to: str = "C", client: str = "alice") -> MoveCommit:
        """A client of ours leaves."""
        self.ask(to, client=client)
        self.accept()
        return self.sent(self.offer().path[1], MoveCommit)[-1]


def _unexpected(failure: Exception) -> None:
    raise failure


def departed(to: str = "C", *, publishes: int = 0, subscribes: bool = True) -> MoveCommit:
    """What A sends when alice, with a subscription, and an advertisement if she `publishes`, has
    left for another broker."""
    source = Place()
    source.connect()
    sequence = 0
    if subscribes:
        sequence += 1
        source.subscribe(sequence=sequence)
    if publishes:
        source.advertise(sequence=sequence + 1)
        source.publish(1, *range(1, publishes + 1))
    return source.depart(to)
