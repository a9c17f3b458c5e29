"""The small world, with a publisher that moves and durable clients whose processes end."""

from __future__ import annotations

from collections.abc import Sequence

from motet.model import Hop
from motet.protocol.delivery.spans import PredecessorRecord, Record
from motet.protocol.delivery.stream import Effects, Limits
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import Started
from tests.unit.delivery.rig import body
from tests.unit.delivery.world import PAYLOAD, World

MOVER = "m"


class MovingWorld(World):
    def __init__(
        self,
        links: dict[str, list[str]],
        roots: dict[str, str],
        clients: dict[str, str],
        *,
        durable: Sequence[str] = (),
        seed: int = 0,
        loss: float = 0.0,
        jitter_s: float = 0.0,
        limits: Limits | None = None,
    ) -> None:
        self.durable = durable
        self.home = next(iter(roots))
        """The pubend that the moving publisher uses now."""
        self.predecessors: dict[str, int] = {}
        self.moved: list[tuple[str, int]] = []
        """Pubend and tick of each of its events, in order."""
        self.noted: dict[str, dict[str, int]] = {name: {} for name in durable}
        """The positions of durable clients in the state of their broker."""
        self.committed: dict[str, dict[str, int]] = {name: {} for name in durable}
        """What their applications have processed durably, and acknowledged."""
        self.own: dict[str, dict[str, int]] = {name: {} for name in durable}
        """The same, only of their present processes."""
        self.processes = dict.fromkeys(durable, 0)
        """How many processes each durable client has had."""
        super().__init__(
            links, roots, clients, seed=seed, loss=loss, jitter_s=jitter_s, limits=limits
        )

    # ── the publisher ────────────────────────────────────────────────────────────────────

    def publish_moving(self, count: int = 1) -> None:
        pubend, log = self.home, self.logs[self.home]
        root = self.roots[pubend]
        if root not in self.machines or not count:
            return
        ticks: list[int] = []
        batch: list[Publication] = []
        for _ in range(count):
            self.sequence += 1
            ticks.append(self.tick(pubend))
            batch.append(Publication(MOVER, self.sequence, body(self.topic(), PAYLOAD)))
        log.ticks += ticks
        log.batch += batch
        self.moved += [(pubend, tick) for tick in ticks]
        self.step(root, lambda m, o: m.published(pubend, ticks, batch, o))

    def topic(self) -> int:
        return self.sequence % self.topics

    def move(self, pubend: str) -> None:
        """Its session is at another broker from now on."""
        if self.roots[pubend] not in self.machines or pubend == self.home:
            return
        log = self.logs[self.home]
        if log.last:
            self.predecessors[self.home] = log.last
        self.home = pubend
        self.precede()

    def precede(self) -> None:
        pubend = self.home
        others = tuple((p, tick) for p, tick in self.predecessors.items() if p != pubend)
        if others:
            self.write(pubend, PredecessorRecord(self.tick(pubend), MOVER, others))

    def write(self, pubend: str, record: Record) -> None:
        self.logs[pubend].records.append(record)
        root = self.roots[pubend]
        self.step(root, lambda m, o: m.published(pubend, [], [], o, (record,)))

    def hold_back(self, here: str, there: str, message: Started) -> None:
        """Control is ahead of what the stream says of a move, so it has reported earlier starts."""
        table, hop = self.tables[there], Hop.broker(here)
        self.later(0.0, lambda: self.spread(there, table.apply(message, hop)))

    # ── brokers ──────────────────────────────────────────────────────────────────────────

    def boot(self, broker: str) -> None:
        super().boot(broker)
        if self.roots[self.home] == broker and len(self.machines) == len(self.links):
            self.precede()

    def recall(self, broker: str) -> None:
        for name in self.durable:
            if self.clients[name].home == broker:
                self.machines[broker].clients.recall(name, self.noted[name])

    def carry_out(self, broker: str, out: Effects) -> None:
        for floor in out.floors:
            for name, upto in floor.cursors.items():
                self.noted[name][floor.pubend] = upto
            for name in self.durable:
                if self.clients[name].home == broker:
                    known = self.noted[name]
                    known[floor.pubend] = max(floor.upto, known.get(floor.pubend, 0))
        super().carry_out(broker, out)

    # ── durable clients ──────────────────────────────────────────────────────────────────

    def connect(self, name: str) -> None:
        client = self.clients[name]
        if name not in self.durable or client.home not in self.machines:
            super().connect(name)
            return
        client.connected = True
        client.generation += 1
        cursors = dict(client.cursors)
        self.step(
            client.home,
            lambda m, o: m.clients.attach(
                name, cursors, o, durable=True, resumes=bool(client.cursors)
            ),
        )
        self.tell_commits(name)

    def end_process(self, name: str) -> None:
        """The next process knows only what was processed durably."""
        client = self.clients[name]
        if client.connected:
            self.disconnect(name)
        done = self.committed[name]
        self.processes[name] += 1
        self.own[name].clear()
        client.got = [each for each in client.got if each[1] <= done.get(each[0], 0)]
        client.cursors.clear()

    def process(self, name: str) -> None:
        """A durable client commits later, and each pubend at another time."""
        if name not in self.durable:
            super().process(name)
            return
        client = self.clients[name]
        for delivered in client.unread:
            pubend = delivered.pubend
            for at, tick in enumerate(delivered.ticks):
                assert tick > client.cursors.get(pubend, 0), "twice, or out of order"
                subscriptions = delivered.every or delivered.each[at]
                found = (pubend, tick, delivered.batch[at].sequence, subscriptions)
                if found not in client.got:
                    client.got.append(found)
                client.cursors[pubend] = tick
            client.lost += [(pubend, *each) for each in delivered.lost]
            client.cursors[pubend] = delivered.upto
            self.commit_later(name, pubend, delivered.upto)
        client.unread.clear()

    def commit_later(self, name: str, pubend: str, upto: int) -> None:
        process = self.processes[name]

        def commit() -> None:
            if self.processes[name] == process:
                for done in (self.committed[name], self.own[name]):
                    done[pubend] = max(upto, done.get(pubend, 0))
                self.tell_commits(name)

        self.later(0.001 + self.random.random() * 0.5, commit)

    def tell_commits(self, name: str) -> None:
        client = self.clients[name]
        if client.connected:
            for pubend, upto in list(self.own[name].items()):
                self.step(
                    client.home, lambda m, o, p=pubend, u=upto: m.clients.acked(name, p, u, o)
                )

    # ── the judge ────────────────────────────────────────────────────────────────────────

    def judge_order(self, name: str) -> None:
        """The events of the moving publisher come in the order in which they were published."""
        places = {place: number for number, place in enumerate(self.moved)}
        got = [(pubend, tick) for pubend, tick, *_ in self.clients[name].got]
        numbers = [places[each] for each in got if each in places]
        assert numbers == sorted(numbers), f"{name} got events of {MOVER} out of order"

    def judge(self, name: str) -> None:
        self.judge_order(name)
        client, got = self.clients[name], self.clients[name].got
        client.got = sorted(got)  # pubend by pubend
        try:
            super().judge(name)
        finally:
            client.got = got
