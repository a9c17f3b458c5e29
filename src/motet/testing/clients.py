"""A simulated client: the real machine, a random application, and a recorder.

Everything that the application sees is recorded in the history. So is trouble that it cannot know
of, such as a connection that is dead already: it excuses missing events.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING

from msgspec import Raw

from motet.audit.records import EventRecord, OperationRecord, SessionRecord
from motet.client.session.machine import ClientMachine, Kind
from motet.client.session.state import (
    Concluded,
    ConnectionEnd,
    Dismissed,
    Failure,
    Missed,
    Notice,
    ReceivedInvitation,
    Redirected,
    Resolved,
    StreamBatch,
    Welcomed,
)
from motet.errors import Fenced, InvariantError, NoSuchOperation, PeerError, TooLate
from motet.model import Filter, Value, encode_event
from motet.protocol.frames import Frame
from motet.protocol.session.messages import Deliver
from motet.testing.durable_clients import DurableApplication, Process
from motet.testing.history import Call, Fencing
from motet.testing.movers import Mover
from motet.testing.recorder import SimulatedRecorder
from motet.testing.transactions import Dealer
from motet.testing.transport import Connection, End

if TYPE_CHECKING:
    from motet.testing.cluster import Cluster

RECONNECT_S = (0.02, 0.5)
VALIDATE_EVERY = 89
"""Steps of the whole cluster between two checks of the invariants of the client that steps."""


class SimulatedClient:
    is_hosted = False
    """It runs in a broker's container."""

    def __init__(
        self,
        cluster: Cluster,
        instance: int,
        name: str,
        home: str,
        application: DurableApplication | None = None,
    ) -> None:
        self.name = name
        self.instance = instance
        self.title = name if name == f"c{instance}" else f"{name} (process {instance})"
        self.home = home
        self.cluster = cluster
        self.process = self._made_process(application)
        """None unless the client is durable."""
        self.machine = self._made_machine(application)
        self.end: End | None = None
        self.alive = True
        """The process is running."""
        self.paused = 0
        """It neither reads nor acts while this is above zero."""
        self.deaf = 0
        """It acts but does not read while this is above zero."""
        self.calls: dict[int, Call] = {}
        self.recorder = SimulatedRecorder(self)
        self.opened = ""
        """The epoch of the last session that a broker opened for this client."""
        self._replaced_at = inf
        self._adopted_at = inf
        self._inbox: list[tuple[End, Frame | None]] = []
        self.dealer: Dealer | None = None
        self._trouble = cluster.history.disturbed[instance]
        self._trouble.begin(cluster.agenda.now)
        if cluster.plan.deal_s and not self.is_hosted:
            self.dealer = Dealer(self, Random(f"deals {cluster.seed} {instance}"))
            self.dealer.consent()
        moves = cluster.plan.move_s and not self.is_hosted
        self.mover = Mover(self) if moves else None

    def _made_process(self, application: DurableApplication | None) -> Process | None:
        return Process(self, application) if application is not None else None

    def _made_machine(self, application: DurableApplication | None) -> ClientMachine:
        keep_s, cursors = 0.0, None
        if application is not None:
            keep_s = application.keep_s
            cursors = dict(application.cursors) if application.own else None
        plan = self.cluster.plan
        draw = Random(f"order {self.cluster.seed} {self.name}").random()
        return ClientMachine(
            self.name,
            instance=str(self.instance),
            keep_s=keep_s,
            cursors=cursors,
            total_order=plan.sure and draw < plan.total_order,
        )

    @property
    def session(self) -> SessionRecord | None:
        return self.recorder.session

    @property
    def outdone_at(self) -> float:
        """Since when a newer client has our id: our session may end at any time."""
        return min(self._replaced_at, self._adopted_at)

    @property
    def operations(self) -> dict[int, OperationRecord]:
        """The operations of the current session, by handle."""
        return self.recorder.operations

    # ── the connection ───────────────────────────────────────────────────────────────────

    @property
    def open(self) -> bool:
        """The session is open, and its connection is really alive."""
        end = self.end
        return self.machine.state == "open" and end is not None and end.connection.alive

    @property
    def over(self) -> bool:
        return not self.alive or self.machine.state == "ended"

    def connect(self) -> None:
        if self.over or self.end is not None:
            return
        broker = self.cluster.brokers[self.home]
        if broker.core is None or self.paused:
            self._turn_back()
            self.connect_soon()
            return
        connection = Connection(self, 0, broker, broker.new_number(), None)
        self.end = connection.ends[0]
        broker.accept(connection.ends[1])
        self.machine.opened()
        self._carry("connects")
        if self.mover is not None:
            self.mover.connected(self.end)

    def connect_soon(self) -> None:
        self.cluster.agenda.after(self.cluster.random.uniform(*RECONNECT_S), self.connect)

    def receive(self, end: End, frame: Frame) -> None:
        if self.paused or self.deaf or self._inbox:
            self._inbox.append((end, frame))
        else:
            self._take(end, frame)

    def lost(self, end: End) -> None:
        self._trouble.begin(self.cluster.agenda.now)
        if self.paused or self.deaf or self._inbox:
            self._inbox.append((end, None))
        else:
            self._disconnected(end)

    def _take(self, end: End, frame: Frame) -> None:
        end.peer.backlog -= 1
        if end is not self.end or not self.alive:
            return
        self.recorder.heard(frame)
        try:
            self.machine.received(frame)
        except (PeerError, InvariantError) as problem:
            self.cluster.history.odd(
                "invariants", f"{self.name} cannot take {frame}: {type(problem).__name__} {problem}"
            )
            self.cluster.network.close(end)
            self._disconnected(end)
            return
        self.recorder.look()
        self._taken(frame)
        if self.process is not None:
            self.process.settle()
        self._carry(f"hears {type(frame).__name__}")

    def _taken(self, frame: Frame) -> None:
        """The machine has taken a frame."""

    def _disconnected(self, end: End) -> None:
        if end is not self.end or not self.alive:
            return
        self.end = None
        self._trouble.begin(self.cluster.agenda.now)
        self.machine.closed()
        self._turn_back()
        self._carry("is disconnected")
        if not self.over:
            self.connect_soon()

    def hang_up(self) -> None:
        end, self.end = self.end, None
        if end is not None:
            self.cluster.network.close(end)

    def _turn_back(self) -> None:
        if self.mover is not None:
            self.mover.turn_back()

    # ── faults ───────────────────────────────────────────────────────────────────────────

    def drop(self) -> None:
        """Break the connection."""
        if self.end is not None:
            self._trouble.begin(self.cluster.agenda.now)
            self.cluster.network.sever(self.end.connection)

    def kill(self) -> None:
        self.alive = False
        now = self.cluster.agenda.now
        self.cluster.history.departed.add(self.instance)
        self._trouble.begin(now)
        if self.process is None:
            self.recorder.end_session(now)
        if self.end is not None:
            self.cluster.network.abandon(self.end)
            self.end = None

    def stop_reading(self, *, entirely: bool) -> None:
        self._trouble.begin(self.cluster.agenda.now)
        if entirely:
            self.paused += 1
        else:
            self.deaf += 1

    def read_again(self, *, entirely: bool) -> None:
        if entirely:
            self.paused -= 1
        else:
            self.deaf -= 1
        if self.paused or self.deaf:
            return
        inbox, self._inbox = self._inbox, []
        for end, frame in inbox:
            if frame is None:
                self._disconnected(end)
            else:
                self._take(end, frame)
        self._confess()
        self.recover()

    def recover(self) -> None:
        """End our trouble if we are connected, reading, and the newest client with our id."""
        if self.open and not (self.paused or self.deaf) and self.outdone_at == inf:
            self._trouble.end(self.cluster.agenda.now)

    def _confess(self) -> None:
        """The broker reports how many events it has dropped, now that there is room."""
        if self.end is not None and self.end.peer.dropped and self.end.connection.alive:
            self.cluster.network.deliver(self.end.peer, Deliver([]))

    # ── the application ──────────────────────────────────────────────────────────────────

    def ask(
        self,
        kind: Kind,
        filter: Filter,
        *,
        wait: bool,
        timeout_s: float,
        since: dict[str, int] | None = None,
    ) -> None:
        """Request an operation, unless it already stands under the same name in a durable session,
        or it is too late to reach into the past."""
        name = str(filter) if self.process is not None else ""
        if name and any((o.kind, o.name) == (kind, name) for o in self.machine.requests.in_force()):
            return
        try:
            handle = self.machine.request(
                kind, filter, wait=wait, timeout_s=timeout_s, name=name, since=since
            )
        except TooLate:
            return
        self._called(handle, kind)

    def ready(self) -> None:
        if self.alive and not self.over:
            self.machine.ready()
            self._carry("is ready")

    def take_back(self, handle: int, *, wait: bool, timeout_s: float) -> None:
        """Remove an advertisement or subscription, if it is still in force."""
        operation = self.operations[handle]
        kind: Kind = "unsubscribe" if operation.kind == "subscribe" else "unadvertise"
        try:
            undo = self.machine.request(kind, target=handle, wait=wait, timeout_s=timeout_s)
        except NoSuchOperation:
            return
        operation.ended_at = min(operation.ended_at, self.cluster.agenda.now)
        self._called(undo, kind)

    def publish(self, attributes: dict[str, Value], *, sure: bool | None = None) -> None:
        """Whether exactly-once is drawn, unless `sure` says it."""
        history = self.cluster.history
        if sure is None:
            sure = (
                self.cluster.plan.sure
                and self.cluster.random.random() < self.cluster.plan.sure_share
            )
        number = len(history.events)
        event = EventRecord(number, self.name, self.instance, attributes, sure=sure)
        history.events.append(event)
        body = encode_event(attributes, str(event.number).encode())
        self.cluster.bodies[body] = event
        self.recorder.published(self.machine.publish([Raw(body)], sure), [body], sure)
        self._carry("publishes")

    def goodbye(self, *, forget: bool = False) -> None:
        now = self.cluster.agenda.now
        self._trouble.begin(now)
        self.machine.goodbye(forget=forget)
        self._carry("leaves")
        if self.process is None or forget:
            self.recorder.end_session(now)
        self.hang_up()

    def standing(self, kind: str) -> list[int]:
        """Handles of operations that were neither refused nor removed."""
        return [
            handle
            for handle, operation in self.operations.items()
            if operation.kind == kind and operation.ended_at == inf and not operation.gone
        ]

    def _called(self, handle: int, kind: str) -> None:
        call = Call(self.name, self.instance, handle, kind, self.cluster.agenda.now)
        self.calls[handle] = call
        self.cluster.history.calls.append(call)
        self._carry(f"wants to {kind}")

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def begins(self, epoch: str) -> None:
        """A broker opens a session for us, as the newest client with our id."""
        self.opened = epoch
        self._replaced_at = self._adopted_at = inf

    def resumes(self) -> None:
        """A broker continues our session with us. If another process had adopted it, the broker
        died before that was durable: no process was told."""
        self._adopted_at = inf

    def outdone(self, at: float, *, adopted: bool = False) -> None:
        """A newer client has our id, or another process adopts our session."""
        self._trouble.begin(at)
        if adopted:
            self._adopted_at = min(self._adopted_at, at)
        else:
            self._replaced_at = min(self._replaced_at, at)
            self.recorder.end_session(at)

    def detach(self) -> None:
        """If another process has adopted our session, that process alone continues its record. Call
        this as soon as either process knows, but not before: see `resumes`."""
        if self._adopted_at < inf and self.session is not None and self.process is not None:
            at = self._adopted_at
            self.recorder.session = self.process.detached(self.session, at)

    # ── carrying out and recording effects ───────────────────────────────────────────────

    def _carry(self, what: str) -> None:
        effects, cluster = self.machine.take(), self.cluster
        cluster.trace.client(cluster.agenda.now, self.name, what, effects.send)
        if cluster.trace.story is not None:
            cluster.trace.tell_client(cluster.agenda.now, self.title, what, effects.send)
        if not cluster.trace.steps % VALIDATE_EVERY:
            self._validate(what)
        self.recorder.watch(effects)
        for frame in effects.send:
            if self.end is not None:
                cluster.network.carry(self.end, frame)
        for happened in effects.happened:
            self._happened(happened)

    def _happened(self, happened: Notice) -> None:
        match happened:
            case StreamBatch():
                self._process_soon(happened.pubend, happened.upto)
            case Missed(pubend, _, last):
                # The gap of a lost session has no end, but a cursor needs one.
                known = self.machine.streams.received.get(pubend, last)
                self._process_soon(pubend, min(last, known))
            case Resolved():
                self._resolved(happened)
            case Redirected() if self.mover is not None:
                self.mover.sent_on(happened)
            case Welcomed() if self.mover is not None:
                self.mover.welcomed(happened)
            case ReceivedInvitation() if self.dealer is not None:
                self.dealer.called(happened)
            case Concluded() if self.dealer is not None:
                self.dealer.concluded(happened)
            case ConnectionEnd(failure) | Dismissed(failure):
                self._dismissed(failure)

    def _resolved(self, answer: Resolved) -> None:
        told = "Done" if answer.failure is None else answer.failure.error
        self.calls[answer.handle].answers.append((self.cluster.agenda.now, told))
        if self.dealer is not None:
            self.dealer.resolved(answer)
        if self.mover is not None:
            self.mover.resolved(answer)

    def _validate(self, what: str) -> None:
        self.cluster.validated += 1
        try:
            self.machine.validate()
        except InvariantError as problem:
            self.cluster.broken(self.name, what, problem)

    def _dismissed(self, failure: Failure) -> None:
        """The broker has sent a `Farewell` and closes; so do we."""
        if failure.error == Fenced.__name__:
            now, epoch = self.cluster.agenda.now, self.machine.epoch
            self.cluster.history.fencings.append(Fencing(self.name, self.instance, epoch, now))
        self._trouble.begin(self.cluster.agenda.now)
        self.hang_up()
        if self.over:
            if self.process is not None and self.session is None:
                self.process.refused()
            self.recorder.end_session(self.cluster.agenda.now)
        else:
            self._turn_back()
            self.connect_soon()

    def _process_soon(self, pubend: str, upto: int) -> None:
        delay_s = self.cluster.random.random() * self.cluster.plan.process_s
        self.cluster.agenda.after(delay_s, self._process, pubend, upto)

    def _process(self, pubend: str, upto: int) -> None:
        if self.alive and not self.over:
            if self.process is not None and not self.process.processed(pubend, upto):
                self.kill()
                self.cluster.lasting.return_later(self)
                return
            self.machine.processed(pubend, upto)
            self._carry("is done with events")
