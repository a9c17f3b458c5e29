"""One delivery machine over the routing tables of its broker, and its last effects at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from msgspec import Raw

from motet.model import EVERYTHING, Filter, Hop, OpId, Value, encode_event
from motet.protocol.changes import Changes, StartMade
from motet.protocol.contract import SetTimer
from motet.protocol.delivery.interest import Interests
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import (
    AckExpected,
    AckUp,
    Delivered,
    DeliveryFrame,
    Knowledge,
    Nack,
)
from motet.protocol.delivery.spans import Span, StartRecord
from motet.protocol.delivery.stream import Effects, Limits, Liveness
from motet.protocol.publication import Publication
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    Complete,
    PubendHere,
    RoutingMessage,
    Subscribe,
)
from motet.protocol.routing.soft import Router
from motet.protocol.transactions.state import Marks

P = "P"


@cache
def body(topic: Value, payload: bytes = b"body") -> Raw:
    return Raw(encode_event({"topic": topic}, payload))


def event(topic: str, sequence: int = 0) -> Publication:
    return Publication("p", sequence, body(topic))


def wish(*topics: Value) -> Filter:
    return Filter.parse(f"topic in ({', '.join(map(repr, topics))})")


def span(since: int, upto: int, *ticks: int, topic: str = "t") -> Span:
    return Span(since, upto, list(ticks), [event(topic, tick) for tick in ticks])


def op(client: str, sequence: int = 1) -> OpId:
    return OpId(client, "e", sequence)


class Tables:
    """The routing tables of one broker, as its streams see them."""

    def __init__(self, name: str, neighbours: Sequence[str]) -> None:
        self.routing = Routing(f"{name}-1", neighbours, Marks())
        self._router = Router(self.routing, {}, {})
        links = dict.fromkeys(neighbours)
        self.interests = Interests(self.routing, links, self._router)  # type: ignore[arg-type]

    def host(self, pubend: str) -> Changes:
        """A client of this broker may publish everything there."""
        changes = self.routing.found(pubend)
        changes += self.routing.apply(Advertise(op(f"p@{pubend}"), EVERYTHING), Hop.client("p"))
        return changes

    def apply(self, message: RoutingMessage, source: Hop) -> Changes:
        changes = self.routing.apply(message, source)
        self.routing.validate_neighbours()
        self._router.tables_changed()
        return changes


class Rig:
    """`routes` says which neighbours and clients want a topic; without upstream, P is ours."""

    def __init__(
        self,
        routes: Mapping[str, Sequence[str]],
        neighbours: Sequence[str],
        upstream: str | None = None,
        liveness: Liveness | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._neighbours = neighbours
        self._upstream = upstream
        self.tables = Tables("here", neighbours)
        for neighbour in neighbours:
            self.control(Complete(True), neighbour)
        if upstream is None:
            self.tables.host(P)
        else:
            self.control(PubendHere(P), upstream)
        for topic, hops in routes.items():
            for hop in hops:
                self.subscribe(op(hop if hop not in neighbours else f"{topic}@{hop}"), hop, topic)
        self.machine = DeliveryMachine(self.tables.interests, liveness, limits)
        self.now = 0.0
        self.out = Effects(self.now)
        self.timers: dict[object, float] = {}

    # ── the tables ───────────────────────────────────────────────────────────────────────

    def control(self, message: RoutingMessage, source: str) -> Changes:
        kind = Hop.broker if source in self._neighbours else Hop.client
        return self.tables.apply(message, kind(source))

    def subscribe(self, subscription: OpId, source: str, topic: str = "t") -> Changes:
        return self.control(Subscribe(subscription, wish(topic)), source)

    # ── the doors ────────────────────────────────────────────────────────────────────────

    def do(self, door: Callable[[DeliveryMachine, Effects], None]) -> Effects:
        self.out = Effects(self.now)
        door(self.machine, self.out)
        for timer in self.out.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = timer.at
            else:
                self.timers.pop(timer.key, None)
        self.machine.validate()
        return self.out

    def host(self, last: int = 0) -> Effects:
        return self.do(lambda m, o: m.host(P, last, o))

    def publish(self, *ticks: int, topic: str = "t") -> Effects:
        batch = [event(topic, tick) for tick in ticks]
        return self.do(lambda m, o: m.published(P, list(ticks), batch, o))

    def write_start(self, tick: int, subscription: OpId, source: str) -> Effects:
        self.tables.routing.starts.advance(tick)
        changes = self.subscribe(subscription, source)
        records = [
            StartRecord(each.tick, each.op, each.tentative) for each in changes.of(StartMade)
        ]
        return self.do(lambda m, o: m.published(P, [], [], o, records))

    def receive(self, neighbour: str, frame: DeliveryFrame) -> Effects:
        return self.do(lambda m, o: m.receive(neighbour, frame, o))

    def told(self, known: Span, again: bool = False, cut: bool = False) -> Effects:
        assert self._upstream is not None
        return self.receive(self._upstream, Knowledge(P, known, again, cut))

    def attach(self, client: str, cursor: int = 0, total_order: bool = False) -> Effects:
        cursors = {P: cursor} if cursor else {}
        awaited = () if total_order else None
        return self.do(lambda m, o: m.clients.attach(client, cursors, o, awaited))

    def start(self, client: str, tick: int, sequence: int = 1) -> Effects:
        """The pubend's broker has said that no other subscription started before."""
        if self._upstream is not None:
            self.receive(self._upstream, AckExpected(P, tick, ()))
        return self.begin(client, tick, sequence)

    def begin(self, client: str, tick: int, sequence: int = 1) -> Effects:
        return self.do(lambda m, o: m.clients.start(op(client, sequence), P, tick, o))

    def start_above(self, since: int, subscription: OpId, tick: int) -> Effects:
        """Of a subscription that reaches back."""
        reaches = {subscription: since}
        self.machine.clients.reach = lambda each, _: reaches.get(each)
        return self.do(lambda m, o: m.clients.start(subscription, P, tick, o))

    def join(self, client: str, tick: int) -> None:
        """A client that is here and has started."""
        self.attach(client)
        self.start(client, tick)

    def acked(self, client: str, tick: int) -> Effects:
        return self.do(lambda m, o: m.clients.acked(client, P, tick, o))

    def wait(self, seconds: float) -> list[Effects]:
        """Let time pass and timers fire."""
        until = self.now + seconds
        found = []
        while due := [(at, key) for key, at in self.timers.items() if at <= until]:
            at, key = min(due, key=lambda each: (each[0], str(each[1])))
            del self.timers[key]
            self.now = max(self.now, at)
            found.append(self.do(lambda m, o, key=key: m.alarm(key, o)))
        self.now = until
        return found


# ── looking at effects ───────────────────────────────────────────────────────────────────


def knowledge(out: Effects, to: str) -> list[Knowledge]:
    return [f for name, f in out.send if name == to and isinstance(f, Knowledge)]


def nacks(*outs: Effects) -> list[tuple[int, int]]:
    return [r for out in outs for _, f in out.send if isinstance(f, Nack) for r in f.ranges]


def acks(*outs: Effects) -> list[int]:
    return [f.upto for out in outs for _, f in out.send if isinstance(f, AckUp)]


def expectations(*outs: Effects) -> list[tuple[str, int]]:
    return [(to, f.upto) for out in outs for to, f in out.send if isinstance(f, AckExpected)]


def given(out: Effects, client: str) -> list[int]:
    return [tick for name, each in out.deliver if name == client for tick in each.ticks]


def lost(out: Effects, client: str) -> list[tuple[int, int]]:
    return [r for name, each in out.deliver if name == client for r in each.lost]


def delivered(out: Effects, client: str) -> list[Delivered]:
    return [each for name, each in out.deliver if name == client]
