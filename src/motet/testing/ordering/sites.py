"""A simulated site: the real core, driven in virtual time, killed and restarted.

The twin of the driver, and as strict: the order of `contract.Output` holds, no frame leaves before
its facts are durable, and each connection keeps the order of the steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from motet.broker.folder.journal import LoggedJournal
from motet.protocol.contract import Closed, Dialled, Input, Output, Received, SetTimer, TimerFired
from motet.protocol.frames import Frame
from motet.protocol.machine import FACT, FOUNDED, Snapshot
from motet.protocol.sequencing.messages import Numbers, OrderWelcome, TopicIds
from motet.protocol.sequencing.standby import PAIR, WITNESS, PairHello
from motet.protocol.session.messages import Farewell
from motet.protocol.traits import is_soft
from motet.sequencer.machine import SITE
from motet.sequencer.witness import WITNESS_MACHINE, WitnessConfig
from motet.testing.clock import Timers, VirtualClock
from motet.testing.log import SimulatedLog
from motet.testing.transport import Connection, End

if TYPE_CHECKING:
    from motet.testing.ordering.world import World

VALIDATE_EVERY = 23
"""Steps of a site between two checks of its invariants."""
REDIAL_S = (0.02, 0.4)
ASIDE = (PAIR, WITNESS)


class SimulatedSite:
    """One replica of a site, or, as a subclass, a witness. `name` is its address, too."""

    machine: Any = SITE

    def __init__(self, world: World, name: str, site: str = "") -> None:
        self.world = world
        self.name = name
        self.site = site or name
        self.core: Any = None
        self.ends: dict[int, End] = {}
        self.clock = VirtualClock(world.agenda)
        self.timers = Timers(world.agenda, self.clock, self._ring)
        self.doomed = False
        """It dies in its next step, after the facts are appended to the journal."""
        self.disk_fails = False
        self.slow_disk_s = 0.0
        """How long each sync takes; 0: as the plan says."""
        self.foreseen = world.crash_at is not None
        """It will be killed: digests of its state are kept from now on."""
        self.folders = 1
        """How often it began with an empty folder."""
        self._snapshot: list[bytes] = []
        self._snapshot_position = 0
        self._connections = 0
        self._aims: Mapping[str, str] = {}
        self._turns: Counter[str] = Counter()
        """By peer: how often it was dialled."""
        self._dialling: set[str] = set()
        self._dialled: dict[str, End] = {}
        self._aside: set[int] = set()
        """Connections to peers that do not wait for a standby."""
        self._holding: dict[int, End] = {}
        self._inbox: list[Any] | None = None
        """Inputs that wait while the process is paused."""
        self._digests: dict[int, str] = {}
        """Of the durable state, by journal position, since its death is foreseen."""
        self._new_folder()

    def _new_folder(self) -> None:
        self.log = SimulatedLog(self.world.agenda, self._sync_s)
        self.journal = LoggedJournal(self.log, self.machine.encode, "simulated")
        self._snapshot, self._snapshot_position = [], 0

    def lose_folder(self) -> None:
        """While it is dead."""
        self.folders += 1
        self._digests = {}
        self._new_folder()

    def settings(self) -> Any:
        return self.world.settings(self)

    def _sync_s(self) -> float:
        if self.slow_disk_s:
            return self.slow_disk_s
        longest_s = self.world.plan.sync_s
        return self.world.random.uniform(0.0, longest_s) if longest_s else 0.0

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self.journal.watch(self._facts_durable, self._disk_failed)
        state = self._rebuilt(self.journal.appended)
        self.core = self.machine.core_of(state)
        self.world.note(f"{self.name} starts with {self.journal.appended} facts")
        self.core.listens_at(self.name)
        self._carry(self.core.recover(self.clock.now()))

    def _rebuilt(self, upto: int) -> Any:
        """From the snapshot, and the facts since."""
        machine, settings = self.machine, self.settings()
        since = self._snapshot_position + 1
        facts = self.log.read(since, upto) if upto >= since else ()
        rows = [(FACT, each.payload) for each in facts]
        if self._snapshot:
            snapshot = Snapshot(machine.version, self._snapshot)
            return machine.rebuild(settings, snapshot, rows)
        return machine.rebuild(settings, None, [(FOUNDED, machine.founding(settings)), *rows])

    def take_snapshot(self) -> None:
        """The twin of `folder.compaction`: replay the durable facts and keep the result."""
        if self.core is None:
            return
        position = self.journal.durable
        state = self._rebuilt(position)
        for neighbour, received in self.core.acknowledged().items():
            state.ledgers[neighbour].trim(received)
        self._snapshot = [payload for _, payload in self.machine.picture(state)]
        self._snapshot_position = position
        self.log.trim(position)

    def foresee_death(self) -> None:
        if self.core is not None:
            self.foreseen = True
            self._digests = {self.journal.appended: self.core.durable.digest()}

    def fail_disk(self) -> None:
        self.disk_fails = True
        self.log.fail()

    def kill(self, *, loses: bool = False) -> None:
        """Die now. Unsynced records are lost, except for those that the disk took anyway."""
        if self.core is None:
            return
        self.doomed = self.disk_fails = False
        most = self.journal.durable if loses else self.journal.appended
        survivors = self.world.random.randint(self.journal.durable, most)
        expected = self._digests.get(survivors)
        self.foreseen, self._digests = self.world.crash_at is not None, {}
        self.core = self._inbox = None
        self.timers.clear()
        self._holding.clear()
        self._dialled.clear()
        self._aside.clear()
        self._aims = {}
        for end in self.ends.values():
            self.world.network.abandon(end)
        self.ends.clear()
        self.log.crash(survivors)
        self.world.note(f"{self.name} dies, {survivors} facts are left")
        self._compare(expected, survivors)

    def audit(self) -> None:
        """Replaying the journal gives exactly the current state."""
        if self.core is not None and self.journal.durable == self.journal.appended:
            self._compare(self.core.durable.digest(), self.journal.appended)

    def _compare(self, expected: str | None, upto: int) -> None:
        if expected is None:
            return
        self.world.replayed += 1
        if self._rebuilt(upto).digest() != expected:
            self.world.odd("replay", f"{self.name} is different after {upto} facts")

    def _disk_failed(self, failure: Exception) -> None:
        self.world.note(f"the disk of {self.name}: {failure}")
        self.world.restart_soon(self)

    def pause(self) -> None:
        if self._inbox is None:
            self._inbox = []

    def go_on(self) -> None:
        waiting, self._inbox = self._inbox or [], None
        for action, *args in waiting:
            action(*args)

    @property
    def paused(self) -> bool:
        return self._inbox is not None

    # ── connections ──────────────────────────────────────────────────────────────────────

    def new_number(self) -> int:
        self._connections += 1
        return self._connections

    def accept(self, end: End) -> None:
        self.ends[end.number] = end

    def _aim(self, aims: Mapping[str, str]) -> None:
        self._aims = aims
        for name in aims:
            self._dial_soon(name)

    def _dial_soon(self, name: str) -> None:
        if name not in self._dialling:
            self._dialling.add(name)
            self.world.agenda.after(self.world.random.uniform(*REDIAL_S), self._dial, name)

    def _dial(self, name: str) -> None:
        self._dialling.discard(name)
        if self.core is None or name in self._dialled or name not in self._aims:
            return
        turns = self._aims[name].split(",")
        address = turns[self._turns[name] % len(turns)]
        wire, other = (
            self.world.wire_between[frozenset((self.name, address))],
            self.world.processes[address],
        )
        if other.core is None or wire.cut or self.paused:
            self._turns[name] += 1
            self._dial_soon(name)
            return
        connection = Connection(self, self.new_number(), other, other.new_number(), wire)
        mine, theirs = connection.ends
        other.accept(theirs)
        self.accept(mine)
        self._dialled[name] = mine
        if name in ASIDE:
            self._aside.add(mine.number)
        self.step(Dialled(mine.number, name))

    def receive(self, end: End, frame: Frame) -> None:
        if self._inbox is not None:
            self._inbox.append((self.receive, end, frame))
        elif self.core is not None and not end.ended:
            if isinstance(frame, Farewell):
                self.world.network.close(end)
                self.lost(end)
            else:
                if isinstance(frame, PairHello):
                    self._aside.add(end.number)
                self.step(Received(end.number, frame))

    def lost(self, end: End) -> None:
        if self._inbox is not None:
            self._inbox.append((self.lost, end))
            return
        self.ends.pop(end.number, None)
        self._holding.pop(end.number, None)
        if self.core is None:
            return
        for name, dialled in list(self._dialled.items()):
            if dialled is end:
                del self._dialled[name]
                self._turns[name] += 1
                self._dial_soon(name)
        if not end.ended:
            self.step(Closed(end.number))

    def _ring(self, key: tuple[object, ...]) -> None:
        if self._inbox is not None:
            self._inbox.append((self._ring, key))
        elif self.core is not None:
            self.step(TimerFired(key))

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def step(self, given: Input) -> None:
        core, world = self.core, self.world
        if core is None:
            return
        if self._inbox is not None:
            self._inbox.append((self.step, given))
            return
        world.site_steps += 1
        if world.site_steps == world.crash_at:
            self.doomed = True
        try:
            out = core.step(given, self.clock.now())
            if not world.site_steps % VALIDATE_EVERY:
                core.validate()
                world.validated += 1
        except Exception as problem:
            # Any exception of a core is a finding, and a broken core cannot continue.
            world.broken(self.name, given, problem)
        world.trace.broker(world.agenda.now, self.name, given, out)
        if world.trace.story is not None:
            peers = {number: end.peer.owner.name for number, end in self.ends.items()}
            world.trace.tell_broker(world.agenda.now, self.name, given, out, peers)
        self._suspect(out)
        if self.doomed:
            self._append(out)
            world.restart_soon(self)
            return
        self._carry(out)

    def _suspect(self, out: Output) -> None:
        """All peers here are correct: expelling one of them is a bug on either side."""
        for close in out.close:
            end = self.ends.get(close.connection)
            if close.error not in ("", "Fenced", "NoClientsHere") and end is not None:
                who = end.peer.owner.name
                self.world.odd(
                    "invariants", f"{self.name} expelled {who}: {close.error}: {close.text}"
                )

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def _append(self, out: Output) -> int:
        if not out.persist:
            return 0
        assert self.core is not None
        position = self.journal.append(out.persist)
        if self.foreseen:
            self._digests[position] = self.core.durable.digest()
        return position

    def _carry(self, out: Output) -> None:
        own = self._append(out)
        for number, frame in (*out.send, *out.deliver):
            self._put(number, frame, own)
        for number, frame in out.feed:
            self._put(number, frame, -1)
        for timer in out.timers:
            if isinstance(timer, SetTimer):
                self.timers.set(timer.key, timer.at)
            else:
                self.timers.cancel(timer.key)
        for close in out.close:
            if close.connection in self.ends:
                if close.at_once:
                    self.ends[close.connection].held.clear()
                    self._holding.pop(close.connection, None)
                    own = 0
                self._put(close.connection, Farewell(close.error, close.text), own)
        if out.dial is not None:
            self._aim(out.dial)
        if self.core is not None and self._holding:
            self._facts_durable()

    def _passed(self, end: End) -> int:
        """The last fact that a frame to this end may depend on."""
        if end.number in self._aside:
            return self.journal.durable
        withheld: int = self.core.withheld()
        return min(self.journal.durable, max(0, self.journal.appended - withheld))

    def _put(self, number: int, frame: Frame, own: int) -> None:
        """Frames about durable state wait for all facts so far, others for their own step's."""
        end = self.ends.get(number)
        if end is None or end.ended:
            return
        if isinstance(frame, Farewell):
            end.ended = True
        position = own if own < 0 or is_soft(frame) else self.journal.appended
        if isinstance(frame, Farewell) and not own:
            position = 0
        if end.held or position > self._passed(end):
            end.held.append((position, frame))
            self._holding[number] = end
        else:
            self._release(end, frame)

    def _facts_durable(self) -> None:
        if self.core is None:
            return
        for number, end in list(self._holding.items()):
            while end.held and end.held[0][0] <= self._passed(end):
                self._release(end, end.held.popleft()[1])
            if not end.held:
                self._holding.pop(number, None)

    def _release(self, end: End, frame: Frame) -> None:
        if isinstance(frame, Numbers):
            self.world.recorder.numbers(self.site, end.peer.owner.name, frame)
        elif isinstance(frame, OrderWelcome):
            self.world.recorder.welcome(self.site, end.peer.owner.name, frame)
        elif isinstance(frame, TopicIds):
            self.world.recorder.ids(frame)
        self.world.network.carry(end, frame)
        if isinstance(frame, Farewell):
            self.world.network.close(end)
            self.lost(end)


class SimulatedWitness(SimulatedSite):
    machine = WITNESS_MACHINE

    def settings(self) -> WitnessConfig:
        return WitnessConfig(incarnation=self.folders)
