"""Hosted clients in the simulator: the twin of `motet.hosted`.

Each broker has a container, which runs copies when the broker says so. A copy has the real machine
and the real inbox. Its application keeps a digest of everything that it has handled as its state,
and publishes some events; it moves by itself or is moved, fails, is slow, and ends with its broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from motet.audit.records import DeliveryRecord, EventRecord
from motet.client.session.hosted import HostedMachine
from motet.client.session.state import (
    Arrived,
    Failure,
    Kept,
    Missed,
    Notice,
    ProgressDemand,
    ReceivedInvitation,
    Resolved,
    Settled,
    StreamBatch,
)
from motet.hosted.session import Inbox
from motet.model import Event, Filter, encode_event
from motet.model.limits import MAX_KEEP_S
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.hosted.durable import DurableHosted
from motet.protocol.hosted.messages import (
    CheckpointKept,
    ContainerHello,
    HaltHosted,
    HostedHalted,
    Registered,
    RunHosted,
)
from motet.protocol.session.messages import AnswerRequest, Farewell, Invited, Welcome
from motet.testing.clients import SimulatedClient
from motet.testing.durable_clients import DurableApplication, Process
from motet.testing.history import CopyRecord, HandledRecord, HostedRecord
from motet.testing.movers import TIMEOUTS_S, Operator
from motet.testing.transport import Connection, End
from motet.testing.workload import filters, inside

if TYPE_CHECKING:
    from motet.testing.brokers import SimulatedBroker
    from motet.testing.cluster import Cluster

NAMES = ("h1", "h2", "h3")
NOT_EVERYWHERE = 0.3
"""The share of hosted clients whose code some broker does not have."""
WIDE = 0.5
"""The share of those with a second subscription."""
ANSWERS = 0.3
"""The share of events upon which one is published."""
MOVES = 0.02
"""The share of events upon which a client moves by itself."""
FAILS = 0.01
"""The share of events, if there are faults, upon which the code fails."""
HANDLE_S = (0.0, 0.004)
SLOW, SLOW_S = 0.02, (0.02, 0.3)
STUCK, STUCK_S = 0.002, (2.0, 4.0)
"""Longer than a copy that is to stop may take."""
HALT_S = 2.0
LEAVE_S = 2.0
LAG_S = 0.01
"""These three are those of the real container and session."""
DIAL_S = (0.001, 0.05)
PAUSE_S = (0.05, 1.0)
"""The pause after a failure."""
START_S = 10.0
KILLS, KILL_S = 0.02, 0.02
"""The share of checkpoints, if there are faults, shortly after which the broker dies."""
ANSWER_S = 0.05
"""The longest time until an invitation to a transaction is answered."""
AGAIN = 3
AGAIN_S = (0.05, 0.4)
"""How often, and when, an operator tries again."""


class HostedNode:
    """One state of an application: everything that it has handled so far."""

    def __init__(
        self, before: HostedNode | None = None, handled: HandledRecord | None = None
    ) -> None:
        self.before = before
        self.handled = handled
        self.number: int = 0 if before is None else before.number + 1
        what = f"{before.state if before else b''!r} {handled}"
        text = blake2b(what.encode(), digest_size=8).hexdigest()
        self.state: bytes = f"{self.number} {text}".encode()

    def lineage(self) -> list[HandledRecord]:
        """Everything that was handled, the first one first."""
        found: list[HandledRecord] = []
        node: HostedNode | None = self
        while node is not None and node.handled is not None:
            found.append(node.handled)
            node = node.before
        return found[::-1]


@dataclass(slots=True)
class HostedLife:
    """One session of a hosted client."""

    epoch: str
    made: dict[int, HostedNode] = field(default_factory=dict)
    """Its checkpoints by number, whether or not they are durable."""
    kept: int = 0
    """The last one that a copy was told to be durable."""


class HostedApplication:
    """One hosted client, across all its copies."""

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        brokers = cluster.tree.brokers
        self.name = name
        self.random = random
        self.home = random.choice(brokers)
        self.places = list(brokers)
        if len(brokers) > 2 and random.random() < NOT_EVERYWHERE:
            self.places.remove(random.choice([each for each in brokers if each != self.home]))
        known = filters()
        self.advertises = random.choice(known)
        self.subscribes = [random.choice(known)]
        another = random.choice(known) if random.random() < WIDE else self.subscribes[0]
        if another not in self.subscribes:
            self.subscribes.append(another)
        self.durable = DurableApplication(
            name, self.home, own=True, keep_s=MAX_KEEP_S, random=random, hosted=True
        )
        self.record = HostedRecord(name)
        self.nothing = HostedNode()
        self.known: dict[bytes, HostedNode] = {self.nothing.state: self.nothing}
        """All states that any copy has had."""
        self.lives: dict[str, HostedLife] = {}

    def node_of(self, state: bytes | None) -> HostedNode | None:
        return self.nothing if state is None else self.known.get(state)

    def start(
        self, epoch: str, broker: str, number: int, state: bytes | None, at: float
    ) -> HostedNode:
        """A copy is given a state. Returns what it stands for."""
        last = list(self.lives.values())[-1] if self.lives else None
        life = self.lives.setdefault(epoch, HostedLife(epoch))
        lost = last is not None and last is not life and bool(last.kept)
        wanted = life.made.get(number, self.nothing if not number else None)
        node = self.node_of(state)
        is_right = node is not None and wanted is node
        place = (self.name, epoch, broker, at)
        self.record.starts.append(CopyRecord(*place, number, life.kept, is_right, lost))
        # What came later was lost with its broker, or never came there.
        life.made = {n: each for n, each in life.made.items() if n <= number}
        life.kept = min(life.kept, number)
        return node or self.nothing

    def conclude(self, epoch: str, state: bytes | None) -> None:
        """The run is over, and this is the state that the last session has."""
        final = self.node_of(state) or self.nothing
        maybe: set[int] = set()
        for life in self.lives.values():
            if life.epoch == epoch:
                continue
            for node in life.made.values():
                maybe |= {id(each) for each in node.lineage()}
        self.record.handled = final.lineage()
        surely = {id(each) for each in self.record.handled}
        self.record.undone = [
            each for each in self.record.all if id(each) not in surely and id(each) not in maybe
        ]
        for event in (e for each in self.record.undone for e in each.outputs):
            event.fate = event.fate or "void"
        for event in (e for each in self.record.all for e in each.outputs):
            event.fate = event.fate or "unknown"

    def lost(self, epoch: str) -> list[HandledRecord]:
        """What was handled in earlier sessions, whose state is lost."""
        lives = (each for each in self.lives.values() if each.epoch != epoch)
        known = (life.made[life.kept] for life in lives if life.kept in life.made)
        return [each for node in known for each in node.lineage()]


class SimulatedProgress:
    """For the inbox: what is not handled is not reported."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told

    def brought(self, events: int) -> None:
        del events
        self._told()


class HostedProcess(Process):
    """One copy, as the durable client that it is. All its effects are in its checkpoints."""

    def __init__(self, client: HostedCopy, application: DurableApplication) -> None:
        super().__init__(client, application)
        self._arrived: dict[tuple[int, str, int], list[DeliveryRecord]] = {}

    @property
    def outdated(self) -> bool:
        return False

    def came(self, delivery: DeliveryRecord) -> None:
        if delivery.event is not None:
            key = (delivery.event.number, delivery.pubend, delivery.tick)
            self._arrived.setdefault(key, []).append(delivery)

    def deliveries(self, event: Event) -> tuple[DeliveryRecord, ...]:
        """What was recorded when this event came."""
        key = (int(event.payload), event.pubend or "", event.tick or 0)
        return tuple(self._arrived.pop(key, ()))

    def settle(self) -> None:
        """The copy publishes again what is not in the log."""
        machine = self._client.machine
        if machine.state == "open" and machine.certain:
            answered = machine.window.answered
            self._left = {n: each for n, each in self._left.items() if n <= answered}
            super().settle()


class HostedCopy(SimulatedClient):
    """One copy, from its connection to its end; the twin of `Execution` and its session.

    greeting ── welcome ──▶ starting ── all in force ──▶ running ── halted ──▶ stopping ──▶ over
    If the connection breaks while an event is handled: ending, and over when that is done.
    """

    is_hosted = True
    machine: HostedMachine
    process: HostedProcess

    def __init__(
        self, cluster: Cluster, instance: int, container: SimulatedContainer, app: HostedApplication
    ) -> None:
        self.app = app
        self.phase = "greeting"
        super().__init__(cluster, instance, app.name, container.name, app.durable)
        self._container = container
        self._random = app.random
        progress: Any = SimulatedProgress(self._tell_soon)
        self._events = Inbox({}, progress, self.machine, self._advance, lambda each: (str(each),))
        self._node = app.nothing
        self._kept_state: bytes | None = None
        """As it was in the last checkpoint."""
        self._outputs: list[bytes] = []
        """Staged for the next checkpoint."""
        self._under_way: list[bytes] = []
        """Those of the checkpoint that is not durable yet."""
        self._made = 0
        self._number = 0
        self._unkept = False
        self._handling = False
        self._halting = False
        self._failed = False
        self._wish = ""
        """Where it wants to move."""
        self._order: SelfOrder | None = None
        self._pending: dict[int, None] = {}
        """Handles of requests that its start waits for."""

    def _made_process(self, application: DurableApplication | None) -> Process | None:
        assert application is not None
        return HostedProcess(self, application)

    def _made_machine(self, application: DurableApplication | None) -> HostedMachine:
        del application
        return HostedMachine(self.name, instance=str(self.instance), keep_s=MAX_KEEP_S)

    # ── the connection ───────────────────────────────────────────────────────────────────

    def connect_soon(self) -> None:
        """A copy lives for one connection."""

    def _taken(self, frame: Frame) -> None:
        """Record what the machine publishes."""
        machine = self.machine
        made = machine.window.made - self._made
        self._made = machine.window.made
        if type(frame) is Welcome:
            outputs = machine.known.outputs
            bodies = list(outputs[len(outputs) - made :]) if made else []
            self.recorder.published(range(self._made - made + 1, self._made + 1), bodies, True)
            self._welcomed()
        elif type(frame) is CheckpointKept and made:
            bodies = self._under_way
            self.recorder.published(range(self._made - made + 1, self._made + 1), bodies, True)
            self._under_way = []

    def _welcomed(self) -> None:
        known, epoch = self.machine.known, self.machine.epoch or ""
        now = self.cluster.agenda.now
        self._node = self.app.start(epoch, self.home, known.number, known.state, now)
        self._kept_state = known.state
        self._number = known.number

    def _disconnected(self, end: End) -> None:
        if end is self.end and self.alive:
            self.end = None
            self._trouble.begin(self.cluster.agenda.now)
            self.machine.closed()
            self._carry("is disconnected")
            self._end_soon()

    def _dismissed(self, failure: Failure) -> None:
        super()._dismissed(failure)
        if self.alive:
            self._end_soon()

    def _end_soon(self) -> None:
        """There is no session any more, but the code may still be handling an event."""
        if self._handling:
            self.phase = "ending"
        else:
            self._over()

    # ── notices ──────────────────────────────────────────────────────────────────────────

    def _carry(self, what: str) -> None:
        super()._carry(what)
        if self.alive and self.phase == "greeting":
            self._begin()

    def _happened(self, happened: Notice) -> None:
        inbox = self._events
        match happened:
            case Arrived():
                inbox.arrived(happened)
            case StreamBatch():
                inbox.brought(happened)
            case Missed():
                inbox.missed(happened)
            case ProgressDemand():
                self._tell()
            case Kept(number):
                self.app.lives[self.machine.epoch or ""].kept = number
                self._advance()
            case Settled():
                self._advance()
            case ReceivedInvitation(invited):
                delay_s = self._random.random() * ANSWER_S
                self.cluster.agenda.after(delay_s, self._answer, invited)
            case Resolved():
                super()._happened(happened)
                self._started(happened)
            case _:
                super()._happened(happened)

    def _answer(self, invited: Invited) -> None:
        """Take part in a transaction, without doing anything, or do not."""
        if self.alive and self.machine.state == "open":
            refusal = "" if self._random.random() < 0.5 else "it does not want to"
            request = AnswerRequest(0, invited.tx, invited.op, refusal, invited.timeout_s)
            self._called(self.machine.parts.ask(request), "answer")

    def _tell_soon(self) -> None:
        self.cluster.agenda.after(LAG_S, self._tell)

    def _tell(self) -> None:
        """Report silence, if all that was handled is in a checkpoint."""
        if self.alive and self.machine.state == "open" and not self._unkept:
            for pubend, upto in self._events.cursors().items():
                self.machine.processed(pubend, upto)
            self._carry("reports silence")

    # ── the life of a copy ───────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        """Run the code, when the fate of everything that was published is known."""
        if self.machine.state != "open" or not self.machine.certain:
            return
        if self._halting:
            self._leave()
            return
        self.phase = "starting"
        self.cluster.hosting.runs(self)
        calls = len(self.calls)
        self._put_in_force("advertise", self.app.advertises)
        for wanted in self.app.subscribes:
            self._put_in_force("subscribe", wanted)
        asked = list(self.calls)[calls:]
        self._pending = {each: None for each in asked if not self.calls[each].answers}
        self._run_if_ready()

    def _put_in_force(self, kind: Literal["advertise", "subscribe"], wanted: Filter) -> None:
        """Ask for it, or wait for what an earlier copy has asked for."""
        requests = self.machine.requests
        for operation in requests.in_force():
            is_known = (operation.kind, operation.name) == (kind, str(wanted))
            if is_known and requests.await_answer(operation.handle):
                self._called(operation.handle, kind)
                return
        self.ask(kind, wanted, wait=True, timeout_s=START_S)

    def _started(self, answer: Resolved) -> None:
        if self.phase == "starting" and answer.handle in self._pending:
            del self._pending[answer.handle]
            if answer.failure is not None:
                self._fail("its start has failed")
            else:
                self._run_if_ready()

    def _run_if_ready(self) -> None:
        if self.phase == "starting" and not self._pending:
            self.phase = "running"
            self.ready()
            self._advance()

    def _advance(self) -> None:
        """Go on until the loop of the code has to wait."""
        if self.phase != "running" or self._handling or not self.alive:
            return
        machine = self.machine
        if machine.state != "open":
            return
        self._checkpoint()
        if self._halting or self._wish:
            if self._unkept or machine.is_checkpointing:
                return
            if self._halting:
                self._leave()
                return
            self._ask_to_move()
        if self._events and machine.has_outlet:
            self._handling = True
            self.cluster.agenda.after(self._handling_s(), self._handled)

    def _handling_s(self) -> float:
        draw = self._random.random()
        if draw < STUCK and self.cluster.menu.harmful:
            return self._random.uniform(*STUCK_S)
        return self._random.uniform(*(SLOW_S if draw < SLOW else HANDLE_S))

    def _handled(self) -> None:
        """The code has handled the first event."""
        self._handling = False
        if self.phase == "ending":
            self._over()
        if self.phase != "running" or not self.alive:
            return
        random, cluster = self._random, self.cluster
        if cluster.menu.harmful and cluster.acting and random.random() < FAILS:
            self._fail("its code has failed")
            return
        what = self._events.first().what
        if isinstance(what, Event):
            self._take_effect(what)
        self._events.handled()
        self._unkept = True
        if cluster.acting and random.random() < MOVES:
            self._wish = random.choice(cluster.tree.brokers)
        self._advance()

    def _take_effect(self, event: Event) -> None:
        cluster, random = self.cluster, self._random
        handled = HandledRecord(cluster.agenda.now, self.process.deliveries(event))
        self.app.record.all.append(handled)
        source = handled.deliveries[0].event if handled.deliveries else None
        first = source is not None and source.client not in cluster.hosting.applications
        if first and random.random() < ANSWERS:
            handled.outputs.append(self._stage())
        self._node = HostedNode(self._node, handled)
        self.app.known[self._node.state] = self._node

    def _stage(self) -> EventRecord:
        history = self.cluster.history
        attributes = dict(self._random.choice(inside(self.app.advertises)))
        number = len(history.events)
        event = EventRecord(number, self.name, self.instance, attributes, sure=True)
        history.events.append(event)
        body = encode_event(attributes, str(number).encode())
        self.cluster.bodies[body] = event
        self.machine.stage(body)
        self._outputs.append(body)
        return event

    def _checkpoint(self) -> None:
        machine = self.machine
        if machine.is_checkpointing or not self._unkept:
            return
        state = self._node.state
        given = None if state == self._kept_state else state
        number = machine.checkpoint(given, self._events.cursors())
        self.app.lives[machine.epoch or ""].made[number] = self._node
        self._kept_state, self._unkept = state, False
        self._under_way, self._outputs = self._outputs, []
        self._carry("makes a checkpoint")
        cluster = self.cluster
        if cluster.acting and cluster.menu.harmful and self._random.random() < KILLS:
            after_s = self._random.random() * KILL_S
            cluster.mishaps.doom(cluster.brokers[self.home], after_s)

    def _ask_to_move(self) -> None:
        to, self._wish = self._wish, ""
        broker = self.cluster.brokers[self.home]
        if to != self.home and broker.core is not None and (not self._order or self._order.is_over):
            self._order = SelfOrder(self.cluster, broker, self.name, to)
            self._order.ask(self._random.choice(TIMEOUTS_S))

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def goodbye(self, *, forget: bool = False) -> None:
        """End behind the event that is handled now, if that does not take too long."""
        del forget
        self._halting = True
        if self.phase in ("starting", "running", "ending"):
            self.cluster.agenda.after(HALT_S, self._cancel)
            self._advance()

    def _cancel(self) -> None:
        if self.phase == "ending":
            self._over()
        elif self.alive and self.phase in ("starting", "running"):
            for handle in list(self._pending):
                self.machine.abandon(handle)
            self._carry("is cancelled")
            self._leave()

    def _fail(self, why: str) -> None:
        self._failed = True
        self.cluster.trace.note(self.cluster.agenda.now, f"{self.title}: {why}")
        self._leave()

    def _leave(self) -> None:
        """Say goodbye, and wait until the broker closes."""
        self.phase = "stopping"
        self._tell()
        self._close_order()
        self._trouble.begin(self.cluster.agenda.now)
        unsettled = list(self.recorder.made.values())
        self.machine.goodbye()
        self._carry("leaves")
        for event in unsettled:
            event.fate = ""  # the next copy hears of it
        self.cluster.agenda.after(LEAVE_S, self._over)

    def _over(self) -> None:
        """Nothing of it runs any more."""
        if not self.alive:
            return
        self._end()
        self._container.ended(self, failed=self._failed)

    def _end(self) -> None:
        self.phase = "over"
        self.alive = False
        self.cluster.hosting.ends(self)
        self.cluster.history.departed.add(self.instance)
        self._trouble.begin(self.cluster.agenda.now)
        self._close_order()
        self.hang_up()

    def kill(self) -> None:
        """Its broker has died, or has dropped it: there is no goodbye."""
        if self.alive:
            self._end()

    def _close_order(self) -> None:
        order, self._order = self._order, None
        if order is not None:
            order.leave()


class Persistent(Operator):
    """An operator who tries again if the client has something to do at first."""

    def __init__(
        self,
        cluster: Cluster,
        broker: SimulatedBroker,
        client: str,
        to: str,
        again: Callable[[], None],
    ) -> None:
        super().__init__(cluster, broker, client, to)
        self._again = again

    def receive(self, end: End, frame: Frame) -> None:
        super().receive(end, frame)
        if self.record.answers and self.record.answers[-1] == "InTransaction":
            self._again()


class SelfOrder(Operator):
    """A copy asks its broker to move it."""

    @property
    def is_over(self) -> bool:
        return bool(self.record.answers) or self.record.lost

    def leave(self) -> None:
        """The copy ends before it is answered."""
        if self._end.open:
            self.record.lost = self.record.lost or not self.record.answers
            self._cluster.network.close(self._end)


@dataclass(slots=True)
class SimulatedSlot:
    """One client, running or not."""

    app: HostedApplication
    busy: bool = False
    """A copy runs, or waits for the end of its pause."""
    failed: bool = False
    copy: HostedCopy | None = None


class SimulatedContainer:
    """The twin of `motet.hosted.container`."""

    def __init__(self, cluster: Cluster, broker: SimulatedBroker) -> None:
        self.name = broker.name
        self._cluster = cluster
        self._broker = broker
        self._end: End | None = None
        self._runs = False
        apps = cluster.hosting.applications.values()
        self._slots = {app.name: SimulatedSlot(app) for app in apps if broker.name in app.places}
        self._random = Random(f"container {cluster.seed} {broker.name}")

    def start(self) -> None:
        self._runs = True
        self._dial_soon()

    def kill(self) -> None:
        """The broker dies, and everything in it."""
        self._runs, self._end = False, None
        self._drop_all()

    def leave(self) -> None:
        """The connection to the broker breaks: all copies end, and the container comes again."""
        if self._end is not None:
            end, self._end = self._end, None
            self._drop_all()
            self._cluster.network.close(end)
            self._dial_soon()

    def _drop_all(self) -> None:
        for name, slot in self._slots.items():
            if slot.copy is not None:
                slot.copy.kill()
            self._slots[name] = SimulatedSlot(slot.app, failed=slot.failed)

    def _dial_soon(self) -> None:
        self._cluster.agenda.after(self._random.uniform(*DIAL_S), self._dial)

    def _dial(self) -> None:
        broker = self._broker
        if not self._runs or broker.core is None or self._end is not None:
            return
        connection = Connection(self, 0, broker, broker.new_number(), None)
        self._end = connection.ends[0]
        broker.accept(connection.ends[1])
        homes = tuple(name for name, each in self._slots.items() if each.app.home == self.name)
        self._send(ContainerHello(PROTOCOL_VERSION))
        self._send(Registered(tuple(self._slots), homes))

    def _send(self, frame: Frame) -> None:
        if self._end is not None:
            self._cluster.network.carry(self._end, frame)

    def receive(self, end: End, frame: Frame) -> None:
        end.peer.backlog -= 1
        if end is not self._end:
            return
        match frame:
            case RunHosted(client):
                self._start(self._slots[client])
            case HaltHosted(client):
                copy = self._slots[client].copy
                if copy is not None:
                    copy.goodbye()
            case Farewell():
                self._cluster.history.odd("invariants", f"the container of {self.name}: {frame}")

    def lost(self, end: End) -> None:
        if end is self._end:
            self._end = None
            self._drop_all()
            if self._runs:
                self._dial_soon()

    def _start(self, slot: SimulatedSlot) -> None:
        if slot.busy:
            return
        slot.busy = True
        delay_s = self._random.uniform(*PAUSE_S) if slot.failed else 0.0
        self._cluster.agenda.after(delay_s, self._launch, slot)

    def _launch(self, slot: SimulatedSlot) -> None:
        if self._slots[slot.app.name] is slot and self._runs:
            slot.copy = self._cluster.hosting.copy(self, slot.app)

    def ended(self, copy: HostedCopy, *, failed: bool) -> None:
        slot = self._slots[copy.name]
        if slot.copy is copy:
            slot.copy, slot.busy, slot.failed = None, False, failed
            self._send(HostedHalted(copy.name))


class Hosting:
    """All hosted clients of a run. Uses random generators of its own, so that a seed's other draws
    do not depend on it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(f"hosting {seed}")
        self.applications: dict[str, HostedApplication] = {}
        self._containers: dict[str, SimulatedContainer] = {}
        for name in NAMES[: cluster.plan.hosted]:
            app = HostedApplication(cluster, name, Random(f"hosted {seed} {name}"))
            self.applications[name] = app
            cluster.lasting.know(app.durable)
            cluster.history.hosted[name] = app.record

    # ── brokers and their containers ─────────────────────────────────────────────────────

    def up(self, broker: SimulatedBroker) -> None:
        """A broker has started."""
        if self.applications:
            container = self._containers[broker.name] = SimulatedContainer(self._cluster, broker)
            container.start()

    def down(self, broker: str) -> None:
        container = self._containers.pop(broker, None)
        if container is not None:
            container.kill()

    def copy(self, container: SimulatedContainer, app: HostedApplication) -> HostedCopy:
        cluster = self._cluster
        copy = HostedCopy(cluster, len(cluster.clients), container, app)
        cluster.clients.append(copy)
        cluster.trace.note(cluster.agenda.now, f"{copy.title} is started at {container.name}")
        copy.connect()
        return copy

    def runs(self, copy: HostedCopy) -> None:
        cluster = self._cluster
        cluster.whereabouts.runs.begins(copy.name, copy.home, cluster.agenda.now, cluster.history)

    def ends(self, copy: HostedCopy) -> None:
        self._cluster.whereabouts.runs.ends(copy.name, copy.home)

    # ── moves and harm ───────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        if self.applications:
            self._next()

    def _next(self) -> None:
        delay_s = self._random.expovariate(1.0 / self._cluster.plan.hosted_s)
        self._cluster.agenda.after(delay_s, self._act)

    def _act(self) -> None:
        cluster, random = self._cluster, self._random
        if not cluster.acting:
            return
        self._next()
        name = random.choice(list(self.applications))
        home, to = cluster.whereabouts.home_of(name), random.choice(cluster.tree.brokers)
        if not self._order(name, to, AGAIN):
            return
        assert home is not None
        harmful = cluster.menu.harmful and random.random() < cluster.plan.harmed
        if harmful and random.random() < 0.7:
            cluster.relocations.harm(random, home, to, lambda: self._drop(name))
        elif harmful:
            copy = self._copy_of(name)
            if copy is not None and random.random() < 0.8:
                cluster.agenda.after(random.random() * 0.1, copy.drop)
            else:
                cluster.agenda.after(random.random() * 0.1, self._leave, home)

    def _order(self, name: str, to: str, times: int) -> bool:
        """An operator wants a client to move; false if there is nobody to ask."""
        cluster, random = self._cluster, self._random
        home = cluster.whereabouts.home_of(name)
        if home is None or home == to or not cluster.acting:
            return False
        broker = cluster.brokers[home]
        if broker.core is None:
            return False
        cluster.trace.note(cluster.agenda.now, f"an operator moves {name} from {home} to {to}")

        def again() -> None:
            if times:
                delay_s = random.uniform(*AGAIN_S)
                cluster.agenda.after(delay_s, self._order, name, to, times - 1)

        Persistent(cluster, broker, name, to, again).ask(random.choice(TIMEOUTS_S))
        return True

    def _copy_of(self, name: str) -> HostedCopy | None:
        found = [c for c in self._cluster.clients if c.name == name and c.alive]
        return found[-1] if found and isinstance(found[-1], HostedCopy) else None

    def _drop(self, name: str) -> None:
        copy = self._copy_of(name)
        if copy is not None:
            copy.drop()

    def _leave(self, broker: str) -> None:
        container = self._containers.get(broker)
        if container is not None:
            container.leave()

    # ── the end of a run ─────────────────────────────────────────────────────────────────

    def conclude(self) -> None:
        """Everything is at rest: the effects of a hosted client are those in its state."""
        cluster, history = self._cluster, self._cluster.history
        for app in self.applications.values():
            found = [
                room.hosted[app.name]
                for broker in cluster.brokers.values()
                if broker.core is not None
                for room in broker.core.durable.rooms
                if isinstance(room, DurableHosted) and app.name in room.hosted
            ]
            epoch, state = (found[-1].epoch, found[-1].state) if found else ("", None)
            app.conclude(epoch, state)
            app.record.copies = cluster.whereabouts.runs.places(app.name)
            for delivery in (d for each in app.lost(epoch) for d in each.deliveries):
                history.durable[delivery.instance] = False  # its effect may come again
                history.effects.append(delivery)
            for handled in app.record.handled:
                history.effects += handled.deliveries
