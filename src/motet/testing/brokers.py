"""A simulated broker: the real core, driven in virtual time, killed and restarted.

The twin of `motet.broker.driver`, and as strict: the order of `contract.Output` holds, no frame
leaves before its facts are durable, and each connection keeps the order of the steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from motet.broker.core.broker import BrokerCore
from motet.broker.core.cell.mate import MateCore
from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import core_of, founding, picture, rebuild
from motet.broker.core.records import MACHINE_VERSION, encode
from motet.broker.driver.pubend import LettingGo
from motet.broker.folder.journal import LoggedJournal
from motet.errors import InvariantError
from motet.model import Filter, Hop, OpId, Value
from motet.model.ids import LAST_TICK
from motet.protocol.cell.messages import SidewaysFrame
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    Closed,
    Dialled,
    Input,
    LogCut,
    Logged,
    LogItem,
    LogRead,
    LogRun,
    LogStart,
    Output,
    Persisted,
    Received,
    SetTimer,
    TimerFired,
)
from motet.protocol.delivery.stream import ReadWanted
from motet.protocol.frames import Frame
from motet.protocol.hosted.messages import HostedHello
from motet.protocol.link.facts import ControlReceived, NeighbourLost
from motet.protocol.link.messages import Control
from motet.protocol.machine import FOUNDED, Snapshot
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.messages import ArrivalHello
from motet.protocol.session.facts import SessionDropped, SessionEnded, SessionOpened
from motet.protocol.session.messages import ClientHello, Deliver, Done, Farewell
from motet.protocol.traits import is_soft
from motet.testing.clock import Timers, VirtualClock
from motet.testing.history import LoggedCut
from motet.testing.log import SimulatedLog
from motet.testing.movers import is_of_a_move
from motet.testing.pubend import SimulatedPubend
from motet.testing.recorder import crossed, engaged, voided, withdrawn
from motet.testing.topology import edge_of
from motet.testing.transport import Connection, End, Wire

if TYPE_CHECKING:
    from motet.testing.cluster import Cluster


Core: TypeAlias = BrokerCore
"""The core that the simulator, scenarios and autopsies step, each in its own way."""

VALIDATE_EVERY = 97
"""Steps of the whole cluster between two checks of the invariants of the broker that steps."""
MOST_STEPS = 60_000
"""Far above what any run needs: more steps mean an endless loop."""
READ_S = 0.001
"""Duration of a read from a pubend's log."""
REDIAL_S = (0.02, 0.6)
REFUSALS = ("", "Fenced", "SessionIsDurable", "ClientElsewhere")
"""Errors with which a broker may close the connection of a correct client."""


class SimulatedProcess(ABC):
    """A core in virtual time with its connections to other processes."""

    core: Core | MateCore | None

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.cluster = cluster
        self.ends: dict[int, End] = {}
        self.wires: dict[str, Wire] = {}
        """By neighbour."""
        self.side_wires: dict[str, Wire] = {}
        """Stream links, by member of a cell."""
        self.clock = VirtualClock(cluster.agenda)
        self.timers = Timers(cluster.agenda, self.clock, self._ring)
        self._connections = 0
        self._dialling: set[str] = set()
        self._inbox: list[Any] | None = None
        """Inputs that wait while the process is paused."""

    def new_number(self) -> int:
        self._connections += 1
        return self._connections

    def accept(self, end: End) -> None:
        self.ends[end.number] = end

    def _dial_soon(self, other: str) -> None:
        if other not in self._dialling:
            self._dialling.add(other)
            delay_s = self.cluster.random.uniform(*REDIAL_S)
            self.cluster.agenda.after(delay_s, self._dial, other)

    def _dial(self, name: str) -> None:
        self._dialling.discard(name)
        wire = self.wires.get(name) or self.side_wires[name]
        other = self.cluster.cells.process(name)
        if self.core is None or any(end.connection.wire is wire for end in self.ends.values()):
            return
        if other.core is None or wire.cut or self._inbox is not None:
            self._dial_soon(name)
            return
        connection = Connection(self, self.new_number(), other, other.new_number(), wire)
        mine, theirs = connection.ends
        other.accept(theirs)
        self.accept(mine)
        self.step(Dialled(mine.number, name))

    def receive(self, end: End, frame: Frame) -> None:
        if self._inbox is not None:
            self._inbox.append((self.receive, end, frame))
        elif self.core is not None and not end.ended:
            if type(frame) is Farewell:
                self.cluster.network.close(end)
                self.lost(end)
            else:
                self.step(Received(end.number, frame))

    def lost(self, end: End) -> None:
        """A connection has ended."""
        if self._inbox is not None:
            self._inbox.append((self.lost, end))
            return
        self.ends.pop(end.number, None)
        wire = end.connection.wire
        if wire is not None and wire.dialler == self.name and self.core is not None:
            self._dial_soon(end.peer.owner.name)
        if self.core is not None and not end.ended:
            self.step(Closed(end.number))

    def _ring(self, key: tuple[object, ...]) -> None:
        if self._inbox is not None:
            self._inbox.append((self._ring, key))
        elif self.core is not None:
            self.step(TimerFired(key))

    @property
    def paused(self) -> bool:
        return self._inbox is not None

    def pause(self) -> None:
        if self._inbox is None:
            self._inbox = []

    def go_on(self) -> None:
        """Process in order everything that arrived during the pause."""
        waiting, self._inbox = self._inbox or [], None
        for action, *args in waiting:
            action(*args)

    @abstractmethod
    def step(self, given: Input) -> None:
        """Step the core, and carry out its output."""

    def _set_timers(self, out: Output) -> None:
        for timer in out.timers:
            if type(timer) is SetTimer:
                self.timers.set(timer.key, timer.at)
            else:
                self.timers.cancel(timer.key)

    def _tell(self, given: Input, out: Output) -> None:
        peers = {number: end.peer.owner.name for number, end in self.ends.items()}
        if isinstance(given, Closed):
            peers[given.connection] = "someone"
        self.cluster.trace.tell_broker(self.cluster.agenda.now, self.name, given, out, peers)


class SimulatedBroker(SimulatedProcess):
    def __init__(self, cluster: Cluster, name: str, lease_s: float) -> None:
        super().__init__(cluster, name)
        self.core: Core | None = None
        self.digests: dict[int, str] | None = None
        """By journal position; recorded only while this broker is about to be killed."""
        self.doomed = False
        """It dies in its next step, after the facts are appended to the journal."""
        self.disk_fails = False
        """It dies at its next sync."""
        self._lease_s = lease_s
        self._incarnation = 0
        self._early: dict[int, ClientHello] = {}
        """Hellos of clients whose sessions are on their way here, until they are answered."""
        self._holding: dict[int, End] = {}
        self._made: dict[int, tuple[Done, float]] = {}
        """When answers were made that wait for the disk."""
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
        """Start or restart: from the journal, or without state as a new incarnation."""
        if not remember:
            self._begin_journal()
            self._incarnation = int(self.clock.now() * 1000) + 1
            self.log.append([founding(self._settings())], FOUNDED)
            self.log.sync()
        self.journal.watch(self._facts_durable, self._disk_failed)
        self._letting_go = LettingGo(self.journal)
        self.core = core_of(self._rebuilt(self.journal.appended))
        if self.cluster.plan.move_s:
            self.cluster.whereabouts.look(self)
        self.cluster.trace.note(
            self.cluster.agenda.now,
            f"{self.name} starts, incarnation {self._incarnation}, "
            f"with {self.journal.appended - 1} facts",
        )
        if self.cluster.crash_at is not None and self.cluster.fault in ("kill", "amnesia"):
            self.foresee_death()
        remembered = self.pubend.remembered() if self.cluster.plan.sure else None
        self.pubend.watch(self._records_durable, self._disk_failed)
        self.carry(self.core.recover(self.clock.now(), remembered))
        for neighbour, wire in (*self.wires.items(), *self.side_wires.items()):
            if wire.dialler == self.name:
                self._dial_soon(neighbour)
        self.cluster.hosting.up(self)

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

    def _rebuilt(self, upto: int) -> Durable:
        since = self._snapshot_position + 1
        records = self.log.read(since, upto) if upto >= since else ()
        return rebuild(
            self._settings(), self.snapshot, ((each.kind, each.payload) for each in records)
        )

    def take_snapshot(self) -> None:
        """The twin of `folder.compaction`: replay the durable facts and keep the result."""
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
        """From now on record the digest of the durable state at every journal position."""
        if self.core is not None and self.digests is None:
            self.digests = {self.journal.appended: self.core.durable.digest()}

    def fail_disk(self, *, of_pubend: bool = False) -> None:
        """Make the next sync of the journal, or of the pubend's log, fail."""
        self.disk_fails = True
        (self.pubend.log if of_pubend else self.log).fail()

    def kill(self) -> None:
        """Die now. Unsynced records are lost, except for those that the disk took anyway."""
        if self.core is None:
            return
        self.doomed = self.disk_fails = False
        journal, random = self.journal, self.cluster.random
        survivors = random.randint(journal.durable, journal.appended)
        expected = (self.digests or {}).get(survivors)
        if expected is None and survivors == journal.appended:
            expected = self.core.durable.digest()
        before, self.digests = self.core.durable, None
        self.core = self._inbox = None
        self.timers.clear()
        self._holding.clear()
        self._confirms.clear()
        for end in self.ends.values():
            self.cluster.network.abandon(end)
            if end.connection.wire is None:
                self.cluster.troubled(end)
        self.ends.clear()
        self._early.clear()
        for wire in self.wires.values():
            wire.trouble.begin(self.cluster.agenda.now)
        self.log.crash(survivors)
        records = self.pubend.log
        records.crash(random.randint(records.durable, records.appended))
        if expected is not None:
            self.cluster.check_replay(
                self.name, survivors, expected, before, self._rebuilt(self.journal.appended)
            )

    def audit_journal(self) -> None:
        """Check that replaying the journal gives exactly the current state."""
        if self.core is not None and self.journal.durable == self.journal.appended:
            here, position = self.core.durable, self.journal.appended
            self.cluster.check_replay(
                self.name, position, here.digest(), here, self._rebuilt(position)
            )

    # ── connections ──────────────────────────────────────────────────────────────────────

    def lost(self, end: End) -> None:
        self._holding.pop(end.number, None)
        if end.connection.wire is not None:
            end.connection.wire.trouble.begin(self.cluster.agenda.now)
        super().lost(end)

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def step(self, given: Input) -> None:
        if self._inbox is not None:
            self._inbox.append((self._step_late, given))
            return
        core, cluster = self.core, self.cluster
        assert core is not None
        plan = cluster.plan
        busy = 1 + len(cluster.cells.mates) + 2 * bool(plan.deal_s) + bool(plan.move_s)
        if cluster.trace.steps > MOST_STEPS * busy:
            cluster.runaway()
        cluster.broker_steps += 1
        if cluster.broker_steps == cluster.crash_at:
            cluster.strike_now(self, given)
        void: dict[OpId, int] = {}
        if type(given) is Received and type(given.frame) is Control:
            void = crossed(core.durable, given.frame)
        try:
            out = core.step(given, self.clock.now())
            if not cluster.trace.steps % VALIDATE_EVERY:
                core.validate()
                cluster.validated += 1
        except Exception as problem:
            # Any exception of a core is a finding, and a broken core cannot continue.
            cluster.broken(self.name, given, problem)
            return
        cluster.trace.broker(cluster.agenda.now, self.name, given, out)
        cluster.cells.watch(self.name, given, out)
        if type(given) is Received and type(given.frame) is ClientHello:
            cluster.greeted(self, given.connection, given.frame)
        elif type(given) is Received and type(given.frame) is HostedHello:
            cluster.greeted(self, given.connection, given.frame.hello)
        if cluster.plan.move_s:
            self._look_at_moves(given, out)
            if cluster.crash_at is not None and is_of_a_move(given, out):
                cluster.steps_of_moves.append(cluster.broker_steps)
        if cluster.trace.story is not None:
            self._tell(given, out)
        if out.close:
            self._suspect(out)
        for fact in out.persist:
            if type(fact.body) is NeighbourLost:
                cluster.given_up(self.name, fact.body.neighbour)
            elif isinstance(fact.body, SessionOpened | SessionDropped | SessionEnded):
                cluster.lasting.noted(self.name, fact.now, fact.body)
            elif type(fact.body) is MoveDecided:
                withdrawn(cluster.history, core.durable, fact.body)
            elif type(fact.body) is ControlReceived:
                withdrawn(cluster.history, core.durable, fact.body.control)
                voided(cluster.history, core.durable, void)
        if out.persist:
            self._look_at_doubts(core)
            engaged(cluster.history, core.durable, out.persist)
        if self.doomed:
            self.journal.append(out.persist)
            self._remember_digest()
            cluster.kill_broker(self)
            return
        self.carry(out)
        if self.cluster.plan.mates and self._holding:
            self._facts_durable()
        self._look_at_links()

    def _look_at_doubts(self, core: Core) -> None:
        spans = self.cluster.history.unsure[self.name]
        if core.durable.routing.state.unsure != spans.open:
            (spans.end if spans.open else spans.begin)(self.cluster.agenda.now)

    def _step_late(self, given: Input) -> None:
        if self.core is not None:
            self.step(given)

    def _look_at_moves(self, given: Input, out: Output) -> None:
        if type(given) is Received and type(given.frame) is ArrivalHello:
            self._early[given.connection] = given.frame.hello
        for number, hello in list(self._early.items()):
            if number not in self.ends or self.cluster.greeted(self, number, hello):
                del self._early[number]
        cluster = self.cluster
        cluster.whereabouts.moves.step(
            self.name, given, out, self._peer, self._attracts, cluster.agenda.now
        )
        if out.persist:
            cluster.whereabouts.look(self, out)

    def _peer(self, connection: int) -> str:
        end = self.ends.get(connection)
        return end.peer.owner.name if end is not None else ""

    def _attracts(self, neighbour: str, wanted: Filter) -> bool:
        assert self.core is not None
        found = self.core.durable.routing.state.advertisements.overlapping(wanted)
        return any(entry.source == Hop.broker(neighbour) for entry in found)

    def _suspect(self, out: Output) -> None:
        """All peers here are correct: expelling one of them is a bug on either side."""
        for close in out.close:
            if close.error not in REFUSALS:
                end = self.ends.get(close.connection)
                who = end.peer.owner.name if end else "somebody"
                if self.core is not None and who in self.wires and who not in self.core.links:
                    continue  # it was removed from the topology and does not know it
                if close.error == "Disconnected" and who in self.cluster.hosting.applications:
                    continue  # its container is gone, or the broker does not know where it is
                self.cluster.history.odd(
                    "invariants", f"{self.name} expelled {who}: {close.error}: {close.text}"
                )

    def _remember_digest(self) -> None:
        if self.digests is not None and self.core is not None:
            self.digests[self.journal.appended] = self.core.durable.digest()

    def _look_at_links(self) -> None:
        """End a link's trouble once both sides are up and have no unacknowledged control."""
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
        """Carry out an output in the order of its fields."""
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
        self._set_timers(out)
        for close in out.close:
            if close.connection in self.ends:
                self._put(close.connection, Farewell(close.error, close.text), own)

    def _write(self, items: list[LogItem]) -> None:
        """Append to the pubend's log, which first drops acknowledged records and any excess."""
        core, history = self.core, self.cluster.history
        assert core is not None
        name = core.streams.pubend
        self.pubend.acknowledged(self._letting_go.upto(core.done_with()))
        history.lost_upto[name] = self.pubend.lost_upto
        history.trimmed_upto[name] = self.pubend.floor
        try:
            self.pubend.append(items)
        except InvariantError as problem:
            self.cluster.broken(self.name, "its log", problem)
        for item in items:
            if isinstance(item, LogStart):
                history.starts[item.op, name] = LAST_TICK if item.tentative else item.tick
                if not item.tentative:
                    history.first_starts.setdefault((item.op, name), item.tick)
            elif isinstance(item, LogCut):
                self._note_cut(name, item)
            elif isinstance(item, LogRun):
                for tick, body in enumerate(item.bodies, item.first_tick):
                    event = self.cluster.bodies[bytes(body)]
                    event.pubend, event.tick = name, tick
                    event.audience = self._audience(event.attributes)

    def _note_cut(self, name: str, cut: LogCut) -> None:
        history, now = self.cluster.history, self.cluster.agenda.now
        place = (name, cut.tick, cut.last, cut.tx, cut.number)
        history.cuts.append(LoggedCut(*place, now, cut.switches))
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
        """Frames about durable state wait for all facts so far, others for their own step's."""
        end = self.ends.get(number)
        if end is None or end.ended:
            return
        if type(frame) is Farewell:
            end.ended = True
        position = own if is_soft(frame) else self.journal.appended
        if end.held or position > self._passed(end):
            end.held.append((position, frame))
            self._holding[number] = end
            if type(frame) is Done:
                self._made[id(frame)] = (frame, self.cluster.agenda.now)
        else:
            self._release(end, frame)

    def _disk_failed(self, failure: Exception) -> None:
        """A failed sync ends the process; how much the disk took is unknown."""
        self.cluster.trace.note(self.cluster.agenda.now, f"the disk of {self.name}: {failure}")
        self.cluster.kill_broker(self)

    def _records_durable(self, count: int) -> None:
        if self.core is not None and count == self.pubend.durable:
            self.step(Logged(count))

    def _read(self, want: ReadWanted, asker: Core | None) -> None:
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
        """How many facts a frame that leaves here may depend on: those on disk and at the mates."""
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
            now = self.cluster.agenda.now
            _, made_at = self._made.pop(id(frame), (frame, now))
            self.cluster.answer_leaves(end, frame, made_at)
        network.carry(end, frame)
        if type(frame) is Farewell:
            network.close(end)
            self.lost(end)


LIFE = 1_000_000
"""The distance between two lives of a mate: more than it can restart its links in one life."""


class SimulatedMate(SimulatedProcess):
    """The real core in virtual time. It has no disk, so its frames leave at once."""

    def __init__(self, cluster: Cluster, name: str, head: str) -> None:
        super().__init__(cluster, name)
        self.head = head
        self.core: MateCore | None = None
        self._lives = 0

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        if self.core is not None:
            return
        self._lives += 1
        config = BrokerConfig(
            self.name,
            self.cluster.tree.neighbours[self.head],
            self._lives * LIFE,
            **self.cluster.cells.settings(self.head) | {"head": self.head},
        )
        self.core = MateCore(config)
        self.cluster.trace.note(self.cluster.agenda.now, f"{self.name}, a mate, starts")
        for other, wire in self.side_wires.items():
            if wire.dialler == self.name:
                self._dial_soon(other)

    def kill(self) -> None:
        if self.core is None:
            return
        self.cluster.trace.note(self.cluster.agenda.now, f"{self.name}, a mate, dies")
        self.core = None
        self._inbox = None
        self.timers.clear()
        for end in self.ends.values():
            self.cluster.network.abandon(end)
        self.ends.clear()

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def step(self, given: Input) -> None:
        core, cluster = self.core, self.cluster
        assert core is not None
        try:
            out = core.step(given, self.clock.now())
            if not cluster.trace.steps % VALIDATE_EVERY:
                core.validate()
        except Exception as problem:
            cluster.broken(self.name, given, problem)
            return
        cluster.trace.broker(cluster.agenda.now, self.name, given, out)
        cluster.cells.watch(self.name, given, out)
        if cluster.trace.story is not None:
            self._tell(given, out)
        self._carry(out)

    def _carry(self, out: Output) -> None:
        for number, frame in out.send:
            end = self.ends.get(number)
            if end is not None and not end.ended:
                self.cluster.network.carry(end, frame)
        self._set_timers(out)
        for close in out.close:
            end = self.ends.get(close.connection)
            if end is None:
                continue
            if close.error:
                who = end.peer.owner.name
                text = f"{self.name} expelled {who}: {close.error}: {close.text}"
                self.cluster.history.odd("invariants", text)
            end.ended = True
            self.cluster.network.carry(end, Farewell(close.error, close.text))
            self.cluster.network.close(end)
            self.lost(end)


class Cells:
    """All mates of a run, and the stream links between members."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.mates: dict[str, SimulatedMate] = {}
        self.wires: list[Wire] = []
        plan = cluster.plan.mates
        for head, names in plan.items():
            for name in names:
                self.mates[name] = SimulatedMate(cluster, name, head)
        for head, names in plan.items():
            family = (head, *names)
            for at, name in enumerate(family):
                for earlier in family[:at]:
                    self._wire(name, earlier)
        for edge, wire in cluster.wires.items():
            one, two = (edge[1], edge[0]) if wire.dialler == edge[1] else edge
            for caller in (one, *plan.get(one, ())):
                for called in (two, *plan.get(two, ())):
                    if (caller, called) != (one, two):
                        self._wire(caller, called)

    def _wire(self, caller: str, called: str) -> None:
        cluster = self._cluster
        wire = cluster.network.side_wire(edge_of(caller, called), caller, cluster.menu)
        self.wires.append(wire)
        self.process(caller).side_wires[called] = wire
        self.process(called).side_wires[caller] = wire

    def process(self, name: str) -> SimulatedBroker | SimulatedMate:
        return self.mates.get(name) or self._cluster.brokers[name]

    def settings(self, head: str) -> dict[str, Any]:
        """The settings of a member of this cell that concern cells."""
        plan = self._cluster.plan.mates
        if not plan:
            return {}
        near = self._cluster.tree.neighbours[head]
        return {
            "mates": plan.get(head, ()),
            "cells": {name: plan[name] for name in near if name in plan},
        }

    def watch(self, name: str, given: Input, out: Output) -> None:
        """A frame that came sideways must not go sideways again."""
        came = type(given) is Received and type(given.frame) is SidewaysFrame
        if came and any(type(frame) is SidewaysFrame for _, frame in out.send):
            self._cluster.history.odd("invariants", f"{name} carries sideways what came so")

    def inspect(self, when: str) -> None:
        """At rest, the mirror of every mate equals the state of its head."""
        for mate in self.mates.values():
            head = self._cluster.brokers[mate.head].core
            if mate.core is None or head is None:
                continue
            ours = mate.core.now_of
            if ours is None or ours.durable.digest() != head.durable.digest():
                text = f"{mate.name} does not show the state of {mate.head} {when}"
                self._cluster.history.odd("replay", text)
