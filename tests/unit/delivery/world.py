"""A small world of delivery machines: a tree, bad links, crashes, clients of all kinds.

Routing tables, the pubends' logs, the brokers' floors and the clients' cursors survive everything;
machines lose all they have when their broker crashes. What each client received is compared with
what the logs owe it.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from motet.model import Hop, OpId
from motet.protocol.changes import Changes, Sent, StartKnown, StartMade
from motet.protocol.contract import SetTimer
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.delivery.messages import Delivered, DeliveryFrame, Nack
from motet.protocol.delivery.spans import Record, Span, StartRecord
from motet.protocol.delivery.stream import Effects, Limits, Liveness, ReadWanted
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import RoutingMessage, Started, Subscribe, Unsubscribe
from tests.unit.delivery.rig import Tables, body, wish

PAYLOAD = b"x" * 90


@dataclass
class Log:
    """What the disk of a pubend's broker has."""

    last: int = 0
    trimmed: int = 0
    ticks: list[int] = field(default_factory=list)
    batch: list[Publication] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def read(self, want: ReadWanted) -> list[Span]:
        spans = []
        since = want.since
        if since <= self.trimmed:
            upto = min(self.trimmed, want.upto)
            spans.append(Span(since, upto, lost=True))
            since = upto + 1
        if since <= want.upto:
            first, last = bisect_left(self.ticks, since), bisect_right(self.ticks, want.upto)
            upto = want.upto
            if last - first > want.most_events:
                last = first + want.most_events
                upto = self.ticks[last - 1]
            records = tuple(r for r in self.records if since <= r.tick <= upto)
            spans.append(Span(since, upto, self.ticks[first:last], self.batch[first:last], records))
        return spans


@dataclass
class Client:
    name: str
    home: str
    connected: bool = False
    generation: int = 0
    reads: bool = True
    merged: bool = False
    highest: int = 0
    """Of all ticks it was given, whether it has read them or not."""
    cursors: dict[str, int] = field(default_factory=dict)
    got: list[tuple[str, int, int, tuple[int, ...]]] = field(default_factory=list)
    lost: list[tuple[str, int, int]] = field(default_factory=list)
    unread: list[Delivered] = field(default_factory=list)


class World:
    def __init__(
        self,
        links: dict[str, list[str]],
        roots: dict[str, str],
        clients: dict[str, str],
        *,
        seed: int = 0,
        topics: int = 4,
        loss: float = 0.0,
        doubling: float = 0.0,
        jitter_s: float = 0.0,
        liveness: Liveness | None = None,
        limits: Limits | None = None,
        merged: Sequence[str] = (),
    ) -> None:
        self.links = links
        self.roots = roots
        self.topics = topics
        self.random = random.Random(seed)
        self.loss, self.doubling, self.jitter_s = loss, doubling, jitter_s
        self.liveness = liveness or Liveness()
        self.limits = limits or Limits()
        self.clients = {
            name: Client(name, home, merged=name in merged) for name, home in clients.items()
        }
        self.subscriptions: dict[OpId, frozenset[int]] = {}
        """With the topics that each wants."""
        self.logs = {pubend: Log() for pubend in roots}
        self.floors: dict[str, dict[str, int]] = {broker: {} for broker in links}
        self.down: set[frozenset[str]] = set()
        self.machines: dict[str, DeliveryMachine] = {}
        self.lives = dict.fromkeys(links, 0)
        self.timers: dict[tuple[str, object], float] = {}
        self.now = 1.0
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.sequence = 0
        self.frames: list[tuple[str, str, DeliveryFrame]] = []
        self.trimming = True
        self.tables = {broker: Tables(broker, neighbours) for broker, neighbours in links.items()}
        for broker, neighbours in links.items():
            for neighbour in neighbours:
                self.spread(broker, self.tables[broker].routing.join(neighbour))
        for pubend, root in roots.items():
            self.spread(root, self.tables[root].host(pubend))
        for broker in links:
            self.boot(broker)

    # ── the world's own affairs ──────────────────────────────────────────────────────────

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.agenda, (self.now + delay_s, self.count, action))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.agenda and self.agenda[0][0] <= until:
            self.now, _, action = heapq.heappop(self.agenda)
            action()
        self.now = until

    # ── control ──────────────────────────────────────────────────────────────────────────

    def control(self, client: str, message: RoutingMessage) -> None:
        home = self.clients[client].home
        self.spread(home, self.tables[home].apply(message, Hop.client(client)))

    def spread(self, broker: str, changes: Changes) -> None:
        """All tables change at once, also those of brokers that are down. But a client's broker
        hears of a start at another one late, and of some from the stream alone."""
        todo = deque([(broker, changes)])
        while todo:
            here, changes = todo.popleft()
            for sent in changes.of(Sent):
                there, message = sent.neighbour, sent.message
                if type(message) is Started and there == self.clients[message.op.client].home:
                    self.hold_back(here, there, message)
                else:
                    todo.append((there, self.tables[there].apply(message, Hop.broker(here))))
            for made in changes.of(StartMade):
                self.write_start(here, StartRecord(made.tick, made.op, made.tentative))
            for known in changes.of(StartKnown):
                self.learn_start(here, known)

    def hold_back(self, here: str, there: str, message: Started) -> None:
        if self.clients[message.op.client].merged or self.random.random() < 0.5:
            table, hop = self.tables[there], Hop.broker(here)
            delay_s = 0.1 + self.random.random()
            self.later(delay_s, lambda: self.spread(there, table.apply(message, hop)))

    # ── brokers ──────────────────────────────────────────────────────────────────────────

    def boot(self, broker: str) -> None:
        self.lives[broker] += 1
        machine = DeliveryMachine(self.tables[broker].interests, self.liveness, self.limits)
        self.machines[broker] = machine
        self.recall(broker)
        out = Effects(self.now)
        for pubend, floor in self.floors[broker].items():
            machine.restore(pubend, floor)
        routing = self.tables[broker].routing
        if routing.state.hosted:
            begun = sorted((each.start, each.id) for each in routing.state.subscriptions)
            records = tuple(StartRecord(*each) for each in begun)
            machine.host(routing.state.hosted, self.logs[routing.state.hosted].last, out, records)
        for op, ticks in routing.starts.known.items():
            for pubend, tick in ticks.items():
                machine.clients.start(op, pubend, tick, out)
        self.carry_out(broker, out)
        for neighbour in self.links[broker]:
            self.link_up(broker, neighbour)

    def recall(self, broker: str) -> None:
        """No client is durable."""

    def link_up(self, one: str, other: str) -> None:
        if other not in self.machines or one not in self.machines:
            return
        self.down.discard(frozenset((one, other)))
        for here, there in ((one, other), (other, one)):
            out = Effects(self.now)
            self.machines[here].linked(there, out)
            self.carry_out(here, out)

    def cut(self, one: str, other: str) -> None:
        self.down.add(frozenset((one, other)))

    def crash(self, broker: str) -> None:
        del self.machines[broker]
        self.lives[broker] += 1
        self.timers = {key: at for key, at in self.timers.items() if key[0] != broker}
        for client in self.clients.values():
            if client.home == broker:
                client.connected = False
                client.generation += 1
                client.unread.clear()

    def step(self, broker: str, door: Callable[[DeliveryMachine, Effects], None]) -> None:
        machine = self.machines.get(broker)
        if machine is not None:
            out = Effects(self.now)
            door(machine, out)
            machine.validate()
            self.carry_out(broker, out)

    def carry_out(self, broker: str, out: Effects) -> None:
        for floor in out.floors:
            self.floors[broker][floor.pubend] = floor.upto
        for start in out.started:
            if not self.clients[start.op.client].merged:  # in total order, control decides
                self.tables[broker].routing.starts.learn(*start)
        for neighbour, frame in out.send:
            self.transmit(broker, neighbour, frame)
        for name, delivered in out.deliver:
            self.hand_over(name, delivered)
        for timer in out.timers:
            if isinstance(timer, SetTimer):
                self.set_timer(broker, timer)
            else:
                self.timers.pop((broker, timer.key), None)
        for want in out.reads:
            life = self.lives[broker]
            self.later(0.002, lambda want=want, life=life: self.read(broker, want, life))
        for silence in out.silences:
            log = self.logs[silence.pubend]
            log.last = max(log.last, silence.upto)
            upto = log.last
            self.step(broker, lambda m, o, s=silence, u=upto: m.advance(s.pubend, u, o))

    def read(self, broker: str, want: ReadWanted, life: int) -> None:
        if self.lives[broker] == life:
            spans = self.logs[want.pubend].read(want)
            self.step(broker, lambda m, o: m.read_done(want, spans, o))

    def set_timer(self, broker: str, timer: SetTimer) -> None:
        key = (broker, timer.key)
        self.timers[key] = timer.at
        life = self.lives[broker]

        def fire() -> None:
            if self.timers.get(key) == timer.at and self.lives[broker] == life:
                del self.timers[key]
                self.step(broker, lambda m, o: m.alarm(timer.key, o))

        self.later(max(0.0, timer.at - self.now), fire)

    def transmit(self, here: str, there: str, frame: DeliveryFrame) -> None:
        self.frames.append((here, there, frame))
        if frozenset((here, there)) in self.down:
            return
        for _ in range(1 + (self.random.random() < self.doubling)):
            if self.random.random() < self.loss:
                continue
            delay_s = 0.005 + self.random.random() * self.jitter_s
            life = self.lives[there]
            self.later(delay_s, lambda life=life: self.arrive(here, there, frame, life))

    def arrive(self, here: str, there: str, frame: DeliveryFrame, life: int) -> None:
        if self.lives[there] == life and frozenset((here, there)) not in self.down:
            self.step(there, lambda m, o: m.receive(here, frame, o))

    def trim(self) -> None:
        """Logs shrink as acknowledgements arrive."""
        for pubend, root in self.roots.items():
            if root in self.machines:
                log = self.logs[pubend]
                log.trimmed = max(log.trimmed, self.machines[root].acknowledged(pubend))

    # ── publishing and subscribing ───────────────────────────────────────────────────────

    def tick(self, pubend: str) -> int:
        log = self.logs[pubend]
        log.last = max(log.last + 1, int(self.now * 1e6))
        return log.last

    def publish(self, pubend: str, count: int = 1) -> None:
        root = self.roots[pubend]
        if root not in self.machines:
            return
        log = self.logs[pubend]
        ticks: list[int] = []
        batch: list[Publication] = []
        for _ in range(count):
            self.sequence += 1
            ticks.append(self.tick(pubend))
            topic = self.sequence % self.topics
            batch.append(Publication("p", self.sequence, body(topic, PAYLOAD)))
        log.ticks += ticks
        log.batch += batch
        self.step(root, lambda m, o: m.published(pubend, ticks, batch, o))

    def subscribe(self, client: str, topics: Sequence[int], sequence: int) -> None:
        """In force everywhere at once; each pubend writes the start."""
        op = OpId(client, "e", sequence)
        self.subscriptions[op] = frozenset(topics)
        self.await_starts(client)
        for pubend, root in self.roots.items():
            self.logs[pubend].last = max(self.logs[pubend].last, self.clients[client].highest)
            self.tables[root].routing.starts.advance(self.tick(pubend))
        self.control(client, Subscribe(op, wish(*topics)))

    def awaited(self, client: str) -> list[str] | None:
        """For a client in total order: the pubends at which it will start."""
        if not self.clients[client].merged:
            return None
        known = self.tables[self.clients[client].home].routing.starts.known
        own = [known.get(op, {}) for op in self.subscriptions if op.client == client]
        return [pubend for pubend in self.roots if any(pubend not in ticks for ticks in own)]

    def await_starts(self, client: str) -> None:
        pubends = self.awaited(client)
        if pubends is not None:
            home = self.clients[client].home
            self.step(home, lambda m, o: m.clients.awaits(client, pubends, o))

    def write_start(self, root: str, record: StartRecord) -> None:
        pubend = self.tables[root].routing.state.hosted
        self.logs[pubend].records.append(record)
        self.step(root, lambda m, o: m.published(pubend, [], [], o, (record,)))

    def learn_start(self, home: str, known: StartKnown) -> None:
        op, pubend, tick = known.op, known.pubend, known.tick
        self.step(home, lambda m, o: m.clients.start(op, pubend, tick, o))
        self.await_starts(op.client)
        self.step(home, lambda m, o: m.effective(op.client, o))

    def unsubscribe(self, op: OpId) -> None:
        del self.subscriptions[op]
        self.control(op.client, Unsubscribe(op))
        self.step(self.clients[op.client].home, lambda m, o: m.clients.end(op, o))
        self.await_starts(op.client)

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def connect(self, name: str) -> None:
        client = self.clients[name]
        if client.home in self.machines:
            client.connected = True
            client.generation += 1
            cursors = dict(client.cursors)
            awaited = self.awaited(name)
            self.step(client.home, lambda m, o: m.clients.attach(name, cursors, o, awaited))

    def disconnect(self, name: str) -> None:
        client = self.clients[name]
        client.connected = False
        client.generation += 1
        client.unread.clear()
        self.step(client.home, lambda m, o: m.clients.detach(name, o))

    def hand_over(self, name: str, delivered: Delivered) -> None:
        client = self.clients[name]
        assert client.connected, "delivered to a client that is not there"
        generation = client.generation
        client.highest = max(client.highest, *delivered.ticks, 0)

        def take() -> None:
            if client.generation == generation:
                client.unread.append(delivered)
                if client.reads:
                    self.process(name)

        self.later(0.001, take)

    def process(self, name: str) -> None:
        client = self.clients[name]
        for delivered in client.unread:
            pubend = delivered.pubend
            assert delivered.upto >= client.cursors.get(pubend, 0)
            for at, tick in enumerate(delivered.ticks):
                assert tick > client.cursors.get(pubend, 0), "twice, or out of order"
                subscriptions = delivered.every or delivered.each[at]
                client.cursors[pubend] = tick
                client.got.append((pubend, tick, delivered.batch[at].sequence, subscriptions))
            client.lost += [(pubend, *each) for each in delivered.lost]
            client.cursors[pubend] = delivered.upto
        latest = {each.pubend: each.upto for each in client.unread}
        client.unread.clear()
        generation = client.generation

        def acknowledge() -> None:
            if client.generation == generation:
                for pubend, upto in latest.items():
                    self.step(
                        client.home,
                        lambda m, o, p=pubend, u=upto: m.clients.acked(name, p, u, o),
                    )

        self.later(0.001, acknowledge)

    # ── the judge ────────────────────────────────────────────────────────────────────────

    def owed(self, name: str, pubend: str) -> list[tuple[int, int, tuple[int, ...]]]:
        """What must have arrived: tick, sequence, subscriptions."""
        log = self.logs[pubend]
        begun = [r for r in log.records if isinstance(r, StartRecord)]
        starts = {r.op: r.tick for r in begun if r.op.client == name}
        found = []
        for tick, each in zip(log.ticks, log.batch, strict=True):
            topic = each.sequence % self.topics
            matching = tuple(
                op.sequence
                for op, topics in self.subscriptions.items()
                if op.client == name and topic in topics and starts.get(op, tick) < tick
            )
            if matching:
                found.append((tick, each.sequence, matching))
        return found

    def judge(self, name: str) -> None:
        """Exactly what is owed to subscriptions that are in force, or reported as lost."""
        client = self.clients[name]
        for pubend in self.roots:
            lost = [each[1:] for each in client.lost if each[0] == pubend]
            owed = [
                each
                for each in self.owed(name, pubend)
                if not any(low <= each[0] <= high for low, high in lost)
            ]
            current = {op.sequence for op in self.subscriptions if op.client == name}
            got = [
                (tick, sequence, kept)
                for where, tick, sequence, subscriptions in client.got
                if where == pubend and (kept := tuple(s for s in subscriptions if s in current))
            ]
            assert got == owed, f"{name} of {pubend}"
        if client.merged:
            places = [(tick, pubend) for pubend, tick, _, _ in client.got]
            assert places == sorted(places), f"{name} is out of order"

    def nacks(self, here: str, there: str) -> list[Nack]:
        return [f for a, b, f in self.frames if (a, b) == (here, there) and isinstance(f, Nack)]

    # ── storms ───────────────────────────────────────────────────────────────────────────

    def disturb(self, turn: int, name: str, broker: str, neighbour: str) -> None:
        """What a turn of a storm does to a client, a broker or a link; most do nothing."""
        client, dice = self.clients[name], self.random
        if turn in (12, 13) and not client.connected:
            self.connect(name)
        elif turn == 14:
            client.reads = not client.reads
            if client.reads and client.connected:
                self.process(name)
        elif turn == 15 and broker in self.machines:
            self.crash(broker)
            self.later(dice.random() * 3, lambda: self.boot(broker))
        elif turn == 16:
            self.cut(broker, neighbour)
            self.later(dice.random() * 3, lambda: self.link_up(broker, neighbour))
        elif turn == 17:
            self.trim()

    def end_storm(self) -> None:
        """Everything works again, everybody reads, and everything comes to rest."""
        self.run(5.0)
        for name, client in self.clients.items():
            client.reads = True
            if not client.connected:
                self.connect(name)
            else:
                self.process(name)
        self.settle()

    def settle(self, most_s: float = 120.0) -> None:
        """Until every client that reads has what it is owed, or time is up; then judge."""
        deadline = self.now + most_s
        while self.now < deadline:
            self.run(1.0)
            if self.trimming:
                self.trim()
            try:
                for name, client in self.clients.items():
                    if client.connected and client.reads:
                        self.judge(name)
            except AssertionError:
                continue
            return
        for name, client in self.clients.items():
            if client.connected and client.reads:
                self.judge(name)
