"""One delivery machine with tables that a test writes by hand, and its last effects at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

from msgspec import Raw

from motet.model import OpId
from motet.model.ticks import LAST_TICK
from motet.protocol.contract import SetTimer
from motet.protocol.delivery.curiosity import Liveness
from motet.protocol.delivery.interest import Way
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import (
    AckExpected,
    AckUp,
    Delivered,
    DeliveryFrame,
    Knowledge,
    Nack,
)
from motet.protocol.delivery.spans import Record, Span, StartRecord, ops_of
from motet.protocol.delivery.state import Effects, Limits
from motet.protocol.publication import Publication

P = "P"


def event(topic: str, sequence: int = 0) -> Publication:
    """Its publisher is its topic: what the tables of a rig look at."""
    return Publication(topic, sequence, Raw(b"\xc4\x04body"))


def span(since: int, upto: int, *ticks: int, topic: str = "t") -> Span:
    return Span(since, upto, list(ticks), [event(topic, tick) for tick in ticks])


def op(client: str, sequence: int = 1) -> OpId:
    return OpId(client, "e", sequence)


class Rig:
    """`routes` says which hops want a topic; clients are hops too."""

    def __init__(
        self,
        routes: dict[str, Sequence[str]],
        neighbours: Sequence[str],
        upstream: str | None = None,
        liveness: Liveness | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.routes = routes
        self._neighbours = list(neighbours)
        self._upstream = upstream
        self.everything: list[str] = []
        self.several: dict[str, dict[int, Sequence[str]]] = {}
        """Clients with several subscriptions: by sequence, the topics."""
        self.homes: dict[OpId, str] = {}
        """Where a subscription came from; by default, its client is here."""
        self._names = [*neighbours]
        self.machine = DeliveryMachine(self, liveness, limits)
        self.now = 0.0
        self.out = Effects()
        self.timers: dict[object, float] = {}

    # ── the interest ─────────────────────────────────────────────────────────────────────

    def bit(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return 1 << self._names.index(name)

    client_bit = bit

    def masks(self, batch: list[Publication]) -> list[int]:
        return [sum(self.bit(n) for n in self.routes.get(p.publisher, ())) for p in batch]

    def lapsed(self, op: OpId, pubend: str) -> int:
        del op, pubend
        return 0

    def end_of(self, op: OpId, pubend: str) -> int:
        del op, pubend
        return LAST_TICK

    def stands(self, record: StartRecord) -> bool:
        del record
        return True

    def record_mask(self, record: Record) -> int:
        return reduce(or_, map(self.op_mask, ops_of(record)), 0)

    def op_mask(self, op: OpId) -> int:
        return self.bit(self.homes.get(op, op.client))

    def way(self, mask: int) -> Way:
        hit = [name for name in self._names if mask & self.bit(name)]
        return Way(
            tuple(n for n in hit if n in self._neighbours),
            tuple((n, (1,)) for n in hit if n not in self._neighbours and n not in self.several),
            tuple(n for n in hit if n in self.several),
        )

    def subscriptions_of(self, publication: Publication, client: str) -> tuple[int, ...]:
        own = self.several[client]
        return tuple(each for each, topics in own.items() if publication.publisher in topics)

    def neighbours(self) -> Sequence[str]:
        return self._neighbours

    def upstream(self, pubend: str) -> str | None:
        assert pubend
        return self._upstream

    def pass_all(self) -> int:
        return sum(self.bit(name) for name in self.everything)

    def wants(self, neighbour: str) -> bool:
        return any(neighbour in hops for hops in self.routes.values())

    # ── the doors ────────────────────────────────────────────────────────────────────────

    def do(self, door: Callable[[DeliveryMachine, Effects], None]) -> Effects:
        self.out = Effects()
        door(self.machine, self.out)
        for timer in self.out.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = timer.at
            else:
                self.timers.pop(timer.key, None)
        self.machine.validate()
        return self.out

    def host(self, last: int = 0) -> Effects:
        return self.do(lambda m, o: m.host(P, last, self.now, o))

    def publish(self, *ticks: int, topic: str = "t") -> Effects:
        batch = [event(topic, tick) for tick in ticks]
        return self.do(lambda m, o: m.published(P, list(ticks), batch, self.now, o))

    def write_start(self, tick: int, subscription: OpId) -> Effects:
        record = StartRecord(tick, subscription)
        return self.do(lambda m, o: m.published(P, [], [], self.now, o, (record,)))

    def receive(self, neighbour: str, frame: DeliveryFrame) -> Effects:
        return self.do(lambda m, o: m.receive(neighbour, frame, self.now, o))

    def told(self, known: Span, again: bool = False, cut: bool = False) -> Effects:
        assert self._upstream is not None
        return self.receive(self._upstream, Knowledge(P, known, again, cut))

    def attach(self, client: str, cursor: int = 0, total_order: bool = False) -> Effects:
        cursors = {P: cursor} if cursor else {}
        awaited = () if total_order else None
        return self.do(lambda m, o: m.attach(client, cursors, self.now, o, awaited))

    def start(self, client: str, tick: int, sequence: int = 1) -> Effects:
        """The pubend's broker has said that no other subscription started before."""
        if self._upstream is not None:
            self.receive(self._upstream, AckExpected(P, tick, ()))
        return self.begin(client, tick, sequence)

    def begin(self, client: str, tick: int, sequence: int = 1) -> Effects:
        return self.do(lambda m, o: m.start(client, op(client, sequence), P, tick, self.now, o))

    def start_above(self, since: int, subscription: OpId, tick: int) -> Effects:
        """Of a subscription that reaches back."""
        reaches = {subscription: since}
        self.machine.durables.reach = lambda each, _: reaches.get(each)
        return self.do(
            lambda m, o: m.start(subscription.client, subscription, P, tick, self.now, o)
        )

    def join(self, client: str, tick: int) -> None:
        """A client that is here and has started."""
        self.attach(client)
        self.start(client, tick)

    def acked(self, client: str, tick: int) -> Effects:
        return self.do(lambda m, o: m.acked(client, P, tick, self.now, o))

    def wait(self, seconds: float) -> list[Effects]:
        """Let time pass and timers fire."""
        until = self.now + seconds
        found = []
        while due := [(at, key) for key, at in self.timers.items() if at <= until]:
            at, key = min(due, key=lambda each: (each[0], str(each[1])))
            del self.timers[key]
            self.now = max(self.now, at)
            found.append(self.do(lambda m, o, key=key: m.alarm(key, self.now, o)))
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
