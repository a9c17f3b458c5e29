"""A simulated broker: the real core, carried out in virtual time, killed and restarted.

The twin of `motet.broker.driver`, and as strict: the order of `contract.Output` holds, nothing
leaves before its facts are durable, and per connection everything leaves in step order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from motet.broker.config import BrokerConfig
from motet.broker.core import BrokerCore
from motet.broker.durable import Durable
from motet.broker.facts import (
    ControlReceived,
    NeighbourLost,
    SessionDropped,
    SessionEnded,
    SessionOpened,
)
from motet.broker.rebuild import Snapshot, core_of, founding, picture, rebuild
from motet.broker.records import FOUNDED, MACHINE_VERSION, encode
from motet.model import OpId, Value
from motet.model.ticks import LAST_TICK
from motet.protocol.contract import (
    Closed,
    Dialled,
    Input,
    LogCut,
    Logged,
    LogItem,
    LogRead,
    LogStart,
    Output,
    Persisted,
    Received,
    SetTimer,
    TimerFired,
)
from motet.protocol.delivery.state import ReadWanted
from motet.protocol.frames import Frame
from motet.protocol.session.messages import ClientHello, Deliver, Done, Goodnight
from motet.runtime.journal import LoggedJournal
from motet.runtime.outbox import is_soft
from motet.testing import recording
from motet.testing.clock import Timers, VirtualClock
from motet.testing.history import Cut
from motet.testing.log import SimulatedLog
from motet.testing.pubend import SimulatedPubend
from motet.testing.transport import Connection, End, Wire

if TYPE_CHECKING:
    from motet.testing.cluster import Cluster

VALIDATE_EVERY = 97
"""Steps of the whole cluster between two looks at the invariants of the broker that steps."""
MOST_STEPS = 60_000
"""Far above what any run needs: beyond it, somebody goes round in circles."""
READ_S = 0.001
"""A look into a pubend's log."""
REDIAL_S = (0.02, 0.6)
REFUSALS = ("", "Fenced", "SessionIsDurable", "ClientElsewhere")
"""What a correct client may be told when its connection is closed."""


class SimulatedBroker:
    def __init__(self, cluster: Cluster, name: str, lease_s: float) -> None:
        self.name = name
        self.cluster = cluster
        self.ends: dict[int, End] = {}
        self.wires: dict[str, Wire] = {}
        """By neighbour."""
        self.side_wires: dict[str, Wire] = {}
        """By member of a cell: stream links."""
        self.clock = VirtualClock(cluster.agenda)
        self.timers = Timers(cluster.agenda, self.clock, self._ring)
        self.core: BrokerCore | None = None
        self.digests: dict[int, str] | None = None
        """By journal position, while somebody is about to kill this broker."""
        self.doomed = False
        """Dies in its next step, after the facts went to the journal."""
        self.disk_fails = False
        """Dies when it syncs the next time."""
        self._lease_s = lease_s
        self._incarnation = 0
        self._connections = 0
        self._dialling: set[str] = set()
        self._holding: dict[int, End] = {}
        self._confirms: deque[tuple[int, Output]] = deque()
        self._begin_journal()

    def _begin_journal(self) -> None:
        self.log = SimulatedLog(self.cluster.agenda, self.cluster.sync_s)
        self.journal = LoggedJournal(self.log, encode, "simulated")
        self.snapshot: Snapshot | None = None
        self._snapshot_position = 0
        cluster = self.cluster
        self.pubend = SimulatedPubend(cluster.agenda, cluster.sync_s, cluster.plan.kept_events)

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def start(self, *, remember: bool) -> None:
        """Begin, or come back: with the journal, or as a new incarnation with nothing."""
        if not remember:
            self._begin_journal()
            self._incarnation = int(self.clock.now() * 1000) + 1
            self.log.append([founding(self._settings())], FOUNDED)
            self.log.sync()
        self.journal.watch(self._facts_durable, self._disk_failed)
        self.core = self._replayed()
        self.cluster.trace.note(
            self.cluster.agenda.now,
            f"{self.name} starts, incarnation {self._incarnation}, "
            f"with {self.journal.appended - 1} facts",
        )
        if self.cluster.crash_at is not None:
            self.foresee_death()
        remembered = self.pubend.remembered() if self.cluster.plan.sure else None
        self.pubend.watch(self._records_durable, self._disk_failed)
        self.carry(self.core.recover(self.clock.now(), remembered))
        for neighbour, wire in (*self.wires.items(), *self.side_wires.items()):
            if wire.dialler == self.name:
                self._dial_soon(neighbour)

    def _settings(self) -> BrokerConfig:
        return BrokerConfig(
            self.name,
            self.cluster.tree.neighbours[self.name],
            self._incarnation,
            covering=self.cluster.plan.covering,
            lease_s=self._lease_s,
            outbox_bound=self.cluster.plan.outbox_bound,
            root=self.cluster.plan.root,
            **self.cluster.cells.settings(self.name),
        )

    def _replayed(self) -> BrokerCore:
        return core_of(self._rebuilt(self.journal.appended))

    def _rebuilt(self, upto: int) -> Durable:
        since = self._snapshot_position + 1
        records = self.log.read(since, upto) if upto >= since else ()
        return rebuild(
            self._settings(), self.snapshot, ((each.kind, each.payload) for each in records)
        )

    def take_snapshot(self) -> None:
        """The twin of `motet.broker.compaction`: replays what is durable, keeps the result."""
        if self.core is None:
            return
        position = self.journal.durable
        durable = self._rebuilt(position)
        for neighbour, received in self.core.acknowledged().items():
            if neighbour in durable.ledgers:
                durable.ledgers[neighbour].trim(received)
        payloads = [payload for _, payload in picture(durable)]
        self.snapshot = Snapshot(MACHINE_VERSION, payloads)
        self._snapshot_position = position
        self.log.trim(position)

    def foresee_death(self) -> None:
        """From now on remember what the durable state was at every journal position."""
        if self.core is not None and self.digests is None:
            self.digests = {self.journal.appended: self.core.durable.digest()}

    def fail_disk(self, *, of_pubend: bool = False) -> None:
        """The next sync of the journal fails, or of the pubend's log."""
        self.disk_fails = True
        (self.pubend.log if of_pubend else self.log).fail()

    def kill(self) -> None:
        """Die now. What was not synced is lost, but for what the disk took anyway."""
        if self.core is None:
            return
        self.doomed = self.disk_fails = False
        journal, random = self.journal, self.cluster.random
        survivors = random.randint(journal.durable, journal.appended)
        expected = (self.digests or {}).get(survivors)
        if expected is None and survivors == journal.appended:
            expected = self.core.durable.digest()
        before, self.digests = self.core.durable, None
        self.core = None
        self.timers.clear()
        self._holding.clear()
        self._confirms.clear()
        for end in self.ends.values():
            self.cluster.network.abandon(end)
            if end.connection.wire is None:
                self.cluster.troubled(end)
        self.ends.clear()
        for wire in self.wires.values():
            wire.trouble.begin(self.cluster.agenda.now)
        self.log.crash(survivors)
        records = self.pubend.log
        records.crash(random.randint(records.durable, records.appended))
        if expected is not None:
            self.cluster.check_replay(self.name, survivors, expected, before, self._replayed())

    def audit_journal(self) -> None:
        """Whether the journal would bring back exactly what is here."""
        if self.core is not None and self.journal.durable == self.journal.appended:
            here, position = self.core.durable, self.journal.appended
            self.cluster.check_replay(self.name, position, here.digest(), here, self._replayed())

    # ── connections ──────────────────────────────────────────────────────────────────────

    def new_number(self) -> int:
        self._connections += 1
        return self._connections

    def accept(self, end: End) -> None:
        self.ends[end.number] = end

    def _dial_soon(self, neighbour: str) -> None:
        if neighbour not in self._dialling:
            self._dialling.add(neighbour)
            delay_s = self.cluster.random.uniform(*REDIAL_S)
            self.cluster.agenda.after(delay_s, self._dial, neighbour)

    def _dial(self, neighbour: str) -> None:
        self._dialling.discard(neighbour)
        wire = self.wires.get(neighbour) or self.side_wires[neighbour]
        other = self.cluster.cells.process(neighbour)
        if self.core is None or any(end.connection.wire is wire for end in self.ends.values()):
            return
        if other.core is None or wire.cut:
            self._dial_soon(neighbour)
            return
        connection = Connection(self, self.new_number(), other, other.new_number(), wire)
        mine, theirs = connection.ends
        other.accept(theirs)
        self.accept(mine)
        self.step(Dialled(mine.number, neighbour))

    def receive(self, end: End, frame: Frame) -> None:
        if self.core is None or end.ended:
            return
        if type(frame) is Goodnight:
            self.cluster.network.close(end)
            self.lost(end)
            return
        self.step(Received(end.number, frame))

    def lost(self, end: End) -> None:
        self.ends.pop(end.number, None)
        self._holding.pop(end.number, None)
        wire = end.connection.wire
        if wire is not None:
            wire.trouble.begin(self.cluster.agenda.now)
            if wire.dialler == self.name and self.core is not None:
                self._dial_soon(end.peer.owner.name)
        if self.core is not None and not end.ended:
            self.step(Closed(end.number))

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def _ring(self, key: tuple[object, ...]) -> None:
        if self.core is not None:
            self.step(TimerFired(key))

    def step(self, given: Input) -> None:
        core, cluster = self.core, self.cluster
        assert core is not None
        busy = 1 + len(cluster.cells.mates) + 2 * bool(cluster.plan.deal_s)
        if cluster.trace.steps > MOST_STEPS * busy:
            cluster.runaway()
        cluster.broker_steps += 1
        if cluster.broker_steps == cluster.crash_at:
            cluster.crash_now(self)
        try:
            out = core.step(given, self.clock.now())
            if not cluster.trace.steps % VALIDATE_EVERY:
                core.validate()
                cluster.validated += 1
        except Exception as problem:
            # Whatever escapes from a core is a finding, and a broken core cannot go on.
            cluster.broken(self.name, given, problem)
            return
        cluster.trace.broker(cluster.agenda.now, self.name, given, out)
        cluster.cells.watch(self.name, given, out)
        if type(given) is Received and type(given.frame) is ClientHello:
            cluster.greeted(self, given.connection, given.frame)
        if cluster.trace.story is not None:
            self._tell(given, out)
        if out.close:
            self._suspect(out)
        for fact in out.persist:
            if type(fact.body) is NeighbourLost:
                cluster.given_up(self.name, fact.body.neighbour)
            elif isinstance(fact.body, SessionOpened | SessionDropped | SessionEnded):
                cluster.lasting.noted(self.name, fact.now, fact.body)
            elif type(fact.body) is ControlReceived:
                recording.withdrawn(cluster.history, core, fact.body.control)
        if self.doomed:
            self.journal.append(out.persist)
            self._remember_digest()
            cluster.kill_broker(self)
            return
        self.carry(out)
        if self.cluster.plan.mates and self._holding:
            self._facts_durable()
        self._look_at_links()

    def _suspect(self, out: Output) -> None:
        """All peers here are correct ones: whoever is expelled shows a bug on one side."""
        for close in out.close:
            if close.error not in REFUSALS:
                end = self.ends.get(close.connection)
                who = end.peer.owner.name if end else "somebody"
                if self.core is not None and who in self.wires and who not in self.core.links:
                    continue  # it was taken out of the topology, and does not know
                self.cluster.history.odd(
                    "invariants", f"{self.name} expelled {who}: {close.error}: {close.text}"
                )

    def _remember_digest(self) -> None:
        if self.digests is not None and self.core is not None:
            self.digests[self.journal.appended] = self.core.durable.digest()

    def _look_at_links(self) -> None:
        """A troubled link is well again once both sides are up and owe each other nothing."""
        for neighbour, wire in self.wires.items():
            if wire.trouble.open and not wire.strays and not wire.cut:
                other = self.cluster.brokers[neighbour]
                if self._is_well(neighbour) and other._is_well(self.name):
                    wire.trouble.end(self.cluster.agenda.now)

    def _is_well(self, neighbour: str) -> bool:
        if self.core is None:
            return False
        link = self.core.links.get(neighbour)
        if link is None:
            return False
        end = self.ends.get(link.soft.connection)
        return link.up and end is not None and end.connection.alive and not link.ledger.outbox

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def carry(self, out: Output) -> None:
        """In the order of the fields of `Output`."""
        own = 0
        if out.persist:
            own = self.journal.append(out.persist)
            self._remember_digest()
        if out.confirm or out.forgotten:
            self._confirms.append((own, out))
            if own <= self.journal.durable:
                self.cluster.agenda.after(0.0, self._confirm)
        for number, frame in out.send:
            self._put(number, frame, own)
        for number, frame in out.deliver:
            self._put(number, frame, own)
        if out.log:
            self._write(out.log)
            if self.pubend.durable:
                self.cluster.agenda.after(0.0, self._records_durable, self.pubend.durable)
        for want in out.reads:
            self.cluster.agenda.after(READ_S, self._read, want, self.core)
        for timer in out.timers:
            if type(timer) is SetTimer:
                self.timers.set(timer.key, timer.at)
            else:
                self.timers.cancel(timer.key)
        for close in out.close:
            if close.connection in self.ends:
                self._put(close.connection, Goodnight(close.error, close.text), own)

    def _write(self, items: list[LogItem]) -> None:
        """Into our pubend's log, which lets go of what is done with, or too much."""
        core, history = self.core, self.cluster.history
        assert core is not None
        name = core.streams.pubend
        self.pubend.acknowledged(core.done_with())
        history.lost_upto[name] = self.pubend.lost_upto
        history.trimmed_upto[name] = self.pubend.floor
        self.pubend.append(items)
        for item in items:
            if isinstance(item, LogStart):
                history.starts[item.op, name] = LAST_TICK if item.tentative else item.tick
                if not item.tentative:
                    history.first_starts.setdefault((item.op, name), item.tick)
            elif isinstance(item, LogCut):
                self._note_cut(name, item)
            else:
                for tick, body in enumerate(item.bodies, item.first_tick):
                    event = self.cluster.bodies[bytes(body)]
                    event.pubend, event.tick = name, tick
                    event.audience = self._audience(event.attributes)

    def _note_cut(self, name: str, cut: LogCut) -> None:
        history, now = self.cluster.history, self.cluster.agenda.now
        place = (name, cut.tick, cut.last, cut.tx, cut.number)
        history.cuts.append(Cut(*place, now, cut.switches))
        for op, tick, ended in cut.switches:
            (history.ends if ended else history.starts)[op, name] = tick
            if not ended:
                history.first_starts.setdefault((op, name), tick)

    def _audience(self, attributes: dict[str, Value]) -> frozenset[OpId]:
        """Subscriptions that our pubend owes an event with these attributes."""
        assert self.core is not None
        table = self.core.durable.routing.state.subscriptions
        found = (table.entry(key) for key in table.index.match(attributes))
        return frozenset(entry.id for entry in found if entry.start)

    def _put(self, number: int, frame: Frame, own: int) -> None:
        """What tells of durable state waits for all facts so far, the rest for its own step's."""
        end = self.ends.get(number)
        if end is None or end.ended:
            return
        if type(frame) is Goodnight:
            end.ended = True
        position = own if is_soft(frame) else self.journal.appended
        if end.held or position > self._passed(end):
            end.held.append((position, frame))
            self._holding[number] = end
        else:
            self._release(end, frame)

    def _disk_failed(self, failure: Exception) -> None:
        """A failed sync ends the process; what the disk took meanwhile, nobody knows."""
        self.cluster.trace.note(self.cluster.agenda.now, f"the disk of {self.name}: {failure}")
        self.cluster.kill_broker(self)

    def _records_durable(self, count: int) -> None:
        if self.core is not None and count == self.pubend.durable:
            self.step(Logged(count))

    def _read(self, want: ReadWanted, asker: BrokerCore | None) -> None:
        if self.core is not None and self.core is asker:
            self.step(LogRead(want, self.pubend.read(want)))

    def _confirm(self) -> None:
        while self.core and self._confirms and self._confirms[0][0] <= self.journal.durable:
            _, out = self._confirms.popleft()
            self.pubend.forget(out.forgotten)
            if out.confirm:
                self.step(Persisted(out.confirm))

    def _facts_durable(self) -> None:
        self._confirm()
        for number, end in list(self._holding.items()):
            held, passed = end.held, self._passed(end)
            while held and held[0][0] <= passed:
                self._release(end, held.popleft()[1])
            if not held:
                self._holding.pop(number, None)

    def _passed(self, end: End) -> int:
        """How many facts what leaves at this end may rest on: those on disk, and at the mates."""
        durable = self.journal.durable
        withheld = 0 if self.core is None else self.core.withheld()
        if not withheld or end.peer.owner.name in self.cluster.plan.mates.get(self.name, ()):
            return durable
        return min(durable, self.journal.appended - withheld)

    def _release(self, end: End, frame: Frame) -> None:
        network = self.cluster.network
        if type(frame) is Deliver:
            if not network.deliver(end, frame):
                self.cluster.overflowed(end)
            return
        if type(frame) is Done:
            self.cluster.answer_leaves(end, frame)
        network.carry(end, frame)
        if type(frame) is Goodnight:
            network.close(end)
            self.lost(end)

    # ── words ────────────────────────────────────────────────────────────────────────────

    def _tell(self, given: Input, out: Output) -> None:
        peers = {number: end.peer.owner.name for number, end in self.ends.items()}
        if isinstance(given, Closed):
            peers[given.connection] = "someone"
        self.cluster.trace.tell_broker(self.cluster.agenda.now, self.name, given, out, peers)
