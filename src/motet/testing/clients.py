"""A simulated client: the real machine, an application that acts by chance, and a recorder.

Whatever the application sees goes into the history; what it could not know (that its connection
is dead already, say) goes there too, as trouble that excuses others.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING

from msgspec import Raw

from motet.client.happenings import (
    Arrived,
    Brought,
    Concluded,
    Ended,
    Failure,
    Missed,
    Parted,
    Resolved,
    Settled,
    Summoned,
)
from motet.client.machine import ClientMachine, Kind
from motet.errors import Fenced, InvariantError, NoSuchOperation, PeerError, TooLate
from motet.model import Filter, Value, encode_event
from motet.protocol.frames import Frame
from motet.protocol.session.messages import Decided, Deliver, Welcome
from motet.testing import arrivals, recording, transacting
from motet.testing.dealers import Dealer
from motet.testing.durables import Application, Process
from motet.testing.history import Call, Event, Fencing, Loss, Operation, Session
from motet.testing.transport import Connection, End

if TYPE_CHECKING:
    from motet.testing.cluster import Cluster

SURE = 0.9
"""The share of events that are to arrive exactly once, where brokers offer it."""
RECONNECT_S = (0.02, 0.5)
VALIDATE_EVERY = 89
"""Steps of the whole cluster between two looks at the invariants of the client that steps."""


class SimulatedClient:
    def __init__(
        self,
        cluster: Cluster,
        instance: int,
        name: str,
        home: str,
        application: Application | None = None,
    ) -> None:
        self.name = name
        self.instance = instance
        self.title = name if name == f"c{instance}" else f"{name} (process {instance})"
        self.home = home
        self.cluster = cluster
        self.process: Process | None = None
        """If the client is durable."""
        keep_s, cursors = 0.0, None
        if application is not None:
            self.process = Process(self, application)
            keep_s = application.keep_s
            cursors = dict(application.cursors) if application.own else None
        draw = Random(f"order {cluster.seed} {name}").random()
        self.machine = ClientMachine(
            name,
            instance=str(instance),
            keep_s=keep_s,
            cursors=cursors,
            total_order=cluster.plan.sure and draw < cluster.plan.total_order,
        )
        self.end: End | None = None
        self.alive = True
        """The process runs."""
        self.paused = 0
        """Reads nothing, and does nothing, while above zero."""
        self.deaf = 0
        """Acts, but reads nothing, while above zero."""
        self.calls: dict[int, Call] = {}
        self.operations: dict[int, Operation] = {}
        """By handle: the operation of the current session."""
        self.session: Session | None = None
        self.opened = ""
        """The epoch of the last session that a broker opened for us."""
        self.outdone_at = inf
        """Since when there is a newer client with our id: our session may end at any moment."""
        self._inbox: list[tuple[End, Frame | None]] = []
        self.published: list[Event] = []
        self.settled = 0
        self.dealer: Dealer | None = None
        self._trouble = cluster.history.disturbed[instance]
        self._trouble.begin(cluster.agenda.now)
        if cluster.plan.deal_s:
            self.dealer = Dealer(self, Random(f"deals {cluster.seed} {instance}"))
            self.dealer.consent()

    # ── the connection ───────────────────────────────────────────────────────────────────

    @property
    def open(self) -> bool:
        """The session stands, and the connection under it is really there."""
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
            self.connect_soon()
            return
        connection = Connection(self, 0, broker, broker.new_number(), None)
        self.end = connection.ends[0]
        broker.accept(connection.ends[1])
        self.machine.opened()
        self._carry("connects")

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
        """One frame is read."""
        end.peer.backlog -= 1
        if end is not self.end or not self.alive:
            return
        recording.heard(self, frame)
        try:
            self.machine.received(frame)
        except (PeerError, InvariantError) as problem:
            self.cluster.history.odd(
                "invariants", f"{self.name} cannot take {frame}: {type(problem).__name__} {problem}"
            )
            self.cluster.network.close(end)
            self._disconnected(end)
            return
        if type(frame) is Welcome:
            self._welcomed(frame)
        elif type(frame) is Decided:
            transacting.begun(self)
        if self.process is not None:
            self.process.settle()
        self._carry(f"hears {type(frame).__name__}", frame)

    def _disconnected(self, end: End) -> None:
        if end is not self.end or not self.alive:
            return
        self.end = None
        self._trouble.begin(self.cluster.agenda.now)
        self.machine.closed()
        self._carry("is disconnected")
        if not self.over:
            self.connect_soon()

    # ── faults ───────────────────────────────────────────────────────────────────────────

    def drop(self) -> None:
        """The connection breaks under our feet."""
        if self.end is not None:
            self._trouble.begin(self.cluster.agenda.now)
            self.cluster.network.sever(self.end.connection)

    def kill(self) -> None:
        self.alive = False
        now = self.cluster.agenda.now
        self.cluster.history.departed.add(self.instance)
        self._trouble.begin(now)
        if self.process is None:
            self.end_session(now)
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
        self._recover()

    def _recover(self) -> None:
        """Nothing excuses us any more, if we are there, read, and are the newest of our name."""
        if self.open and not (self.paused or self.deaf) and self.outdone_at == inf:
            self._trouble.end(self.cluster.agenda.now)

    def _confess(self) -> None:
        """The broker tells what it has dropped, now that there is room."""
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
        """Unless it stands already, under the same name, in a durable session; or it is too late
        to reach into the past."""
        name = str(filter) if self.process is not None else ""
        if name and any((o.kind, o.name) == (kind, name) for o in self.machine.standing()):
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
        """Undo an advertisement or subscription, if it still stands."""
        operation = self.operations[handle]
        kind: Kind = "unsubscribe" if operation.kind == "subscribe" else "unadvertise"
        try:
            undo = self.machine.request(kind, target=handle, wait=wait, timeout_s=timeout_s)
        except NoSuchOperation:
            return
        operation.ended_at = min(operation.ended_at, self.cluster.agenda.now)
        self._called(undo, kind)

    def publish(self, attributes: dict[str, Value]) -> None:
        history = self.cluster.history
        sure = self.cluster.plan.sure and self.cluster.random.random() < SURE
        number = len(history.events)
        event = Event(number, self.name, self.instance, attributes, sure=sure)
        history.events.append(event)
        body = encode_event(attributes, str(event.number).encode())
        self.cluster.bodies[body] = event
        self.published.append(event)
        self.machine.publish([Raw(body)], sure)
        self._carry("publishes")

    def goodbye(self, *, forget: bool = False) -> None:
        now = self.cluster.agenda.now
        self._trouble.begin(now)
        self.machine.goodbye(forget=forget)
        self._carry("leaves")
        if self.process is None or forget:
            self.end_session(now)
        if self.end is not None:
            self.cluster.network.close(self.end)
            self.end = None

    def standing(self, kind: str) -> list[int]:
        """Handles of what was asked for, was not refused and was not taken back."""
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

    # ── recording what comes in ──────────────────────────────────────────────────────────

    def _welcomed(self, frame: Welcome) -> None:
        """Before anything of the new session is recorded."""
        now, history = self.cluster.agenda.now, self.cluster.history
        if not frame.resumed:
            if frame.epoch in self.cluster.epochs:
                if self.process is not None and self.outdone_at < inf:
                    return  # the next process of a durable session has it already
                history.odd("sessions", f"epoch {frame.epoch} was issued twice, to {self.name}")
            self.cluster.epochs.add(frame.epoch)
        before = self.session
        if frame.resumed and before is None and self.process is not None:
            self.cluster.epochs.add(frame.epoch)
            self.session = self.process.adopt(frame)
            known = self.session.operations
            for each in (*self.machine.standing(), *self.machine._ending.values()):
                if each.sequence in known:
                    self.operations[each.handle] = known[each.sequence]
        elif before is None or before.epoch != frame.epoch:
            if frame.resumed:
                history.odd("sessions", f"{self.name} resumed {frame.epoch}, not its own")
            self.end_session(now)
            self.operations.clear()
            self.session = Session(self.name, self.instance, frame.epoch, frame.broker, now)
            self.session.total_order = self.machine.total_order
            history.sessions.append(self.session)
            if self.process is not None:
                self.process.opened(self.session)
            if self.outdone_at < inf:
                self.end_session(self.outdone_at)
        self._recover()

    def end_session(self, at: float) -> None:
        if self.session is not None:
            self.session.end(at)

    def begins(self, epoch: str) -> None:
        """A broker opens a session for us, as the newest of our name so far."""
        self.opened = epoch
        self.outdone_at = inf

    def outdone(self, at: float, *, adopted: bool = False) -> None:
        """There is a newer one; or another process has adopted our session."""
        self.outdone_at = min(self.outdone_at, at)
        self._trouble.begin(at)
        if not adopted:
            self.end_session(at)
        elif self.session is not None and self.process is not None:
            self.session = self.process.detached(self.session, at)

    # ── carrying out and recording what goes out ─────────────────────────────────────────

    def _carry(self, what: str, heard: Frame | None = None) -> None:
        effects, cluster = self.machine.take(), self.cluster
        cluster.trace.client(cluster.agenda.now, self.name, what, effects.send)
        if cluster.trace.story is not None:
            cluster.trace.tell_client(cluster.agenda.now, self.title, what, effects.send)
        if not cluster.trace.steps % VALIDATE_EVERY:
            self._validate(what)
        for frame in effects.send:
            recording.sent(self, frame)
            if self.end is not None:
                cluster.network.carry(self.end, frame)
        for happened in effects.happened:
            match happened:
                case Arrived():
                    arrivals.best_effort(self, happened, heard)
                case Brought():
                    arrivals.sure(self, happened)
                    self._process_soon(happened.pubend, happened.upto)
                case Missed(pubend, first, last):
                    heirs = self.session.instance if self.session else self.instance
                    loss = Loss(heirs, pubend, first, last, self._is_withdrawn(pubend, last))
                    cluster.history.losses.append(loss)
                    # The gap that a lost session leaves has no end, but a cursor has.
                    known = self.machine.horizons.get(pubend, last)
                    self._process_soon(pubend, min(last, known))
                case Settled():
                    recording.settle(self, happened)
                case Resolved(handle, failure):
                    answer = "Done" if failure is None else failure.error
                    self.calls[handle].answers.append((cluster.agenda.now, answer))
                    if self.dealer is not None:
                        self.dealer.resolved(happened)
                case Summoned() if self.dealer is not None:
                    self.dealer.called(happened)
                case Concluded() if self.dealer is not None:
                    self.dealer.concluded(happened)
                case Parted(failure) | Ended(failure):
                    self._dismissed(failure)

    def _is_withdrawn(self, pubend: str, last: int) -> bool:
        """Was this a past that a subscription of ours wanted, and could not have any more?"""
        known = self.cluster.history.withdrawn_upto
        return last <= known.get((self.name, self.machine.epoch or "", pubend), 0)

    def _validate(self, what: str) -> None:
        self.cluster.validated += 1
        try:
            self.machine.validate()
        except InvariantError as problem:
            self.cluster.broken(self.name, what, problem)

    def _dismissed(self, failure: Failure) -> None:
        """The broker said goodnight; it closes, so do we."""
        if failure.error == Fenced.__name__:
            now, epoch = self.cluster.agenda.now, self.machine.epoch
            self.cluster.history.fencings.append(Fencing(self.name, self.instance, epoch, now))
        end, self.end = self.end, None
        self._trouble.begin(self.cluster.agenda.now)
        if end is not None:
            self.cluster.network.close(end)
        if self.over:
            if self.process is not None and self.session is None:
                self.process.refused()
            self.end_session(self.cluster.agenda.now)
        else:
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
