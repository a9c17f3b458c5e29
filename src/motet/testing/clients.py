"""A simulated client: the real machine, an application that acts by chance, and a recorder.

Whatever the application sees goes into the history; what it could not know (that its connection
is dead already, say) goes there too, as trouble that excuses others.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec import Raw

from motet.client.happenings import Arrived, Ended, Failure, Parted, Resolved, Settled
from motet.client.machine import ClientMachine, Kind
from motet.errors import Fenced, InvariantError, NoSuchOperation, PeerError
from motet.model import Filter, Value, encode_event
from motet.protocol.frames import Frame
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Deliver,
    Done,
    Failed,
    Goodbye,
    Publish,
    Request,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
    Welcome,
)
from motet.testing.history import (
    ADDITIONS,
    DONE,
    Call,
    Delivery,
    Event,
    Fencing,
    Operation,
    Session,
)
from motet.testing.transport import Connection, End

if TYPE_CHECKING:
    from motet.testing.cluster import Cluster

RECONNECT_S = (0.02, 0.5)
VALIDATE_EVERY = 89
"""Steps of the whole cluster between two looks at the invariants of the client that steps."""
REQUESTS: dict[type, Kind] = {
    AdvertiseRequest: "advertise",
    UnadvertiseRequest: "unadvertise",
    SubscribeRequest: "subscribe",
    UnsubscribeRequest: "unsubscribe",
}


class SimulatedClient:
    def __init__(self, cluster: Cluster, instance: int, name: str, home: str) -> None:
        self.name = name
        self.instance = instance
        self.title = name if name == f"c{instance}" else f"{name} (process {instance})"
        self.home = home
        self.cluster = cluster
        self.machine = ClientMachine(name, instance=str(instance))
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
        self._published: list[Event] = []
        self._settled = 0
        self._trouble = cluster.history.disturbed[instance]
        self._trouble.begin(cluster.agenda.now)

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
        self._before(frame)
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
        self._end_session(now)
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

    def ask(self, kind: Kind, filter: Filter, *, wait: bool, timeout_s: float) -> int:
        handle = self.machine.request(kind, filter, wait=wait, timeout_s=timeout_s)
        self._called(handle, kind)
        return handle

    def take_back(self, handle: int, *, wait: bool, timeout_s: float) -> None:
        """Undo an advertisement or subscription, if it still stands."""
        kind: Kind = "unsubscribe" if self.calls[handle].kind == "subscribe" else "unadvertise"
        operation = self.operations.get(handle)
        try:
            undo = self.machine.request(kind, target=handle, wait=wait, timeout_s=timeout_s)
        except NoSuchOperation:
            return
        if operation is not None:
            operation.ended_at = min(operation.ended_at, self.cluster.agenda.now)
        self._called(undo, kind)

    def publish(self, attributes: dict[str, Value]) -> None:
        history = self.cluster.history
        event = Event(len(history.events), self.name, self.instance, attributes)
        history.events.append(event)
        body = encode_event(attributes, str(event.number).encode())
        self.cluster.bodies[body] = event
        self._published.append(event)
        self.machine.publish([Raw(body)])
        self._carry("publishes")

    def goodbye(self) -> None:
        now = self.cluster.agenda.now
        self._trouble.begin(now)
        self.machine.goodbye()
        self._carry("leaves")
        self._end_session(now)
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

    def _before(self, frame: Frame) -> None:
        """Answers as they stand on the wire: sent again or not, they must never change."""
        if not isinstance(frame, Done | Failed) or self.session is None:
            return
        operation = self.session.operations.get(frame.sequence)
        if operation is None:
            return
        failed = frame if isinstance(frame, Failed) else None
        answer, missing = (failed.error, failed.missing) if failed else (DONE, ())
        odd = operation.answered(answer, self.cluster.agenda.now, missing)
        if odd:
            self.cluster.history.odd("answers", odd)

    def _welcomed(self, frame: Welcome) -> None:
        """Before anything of the new session is recorded."""
        now, history = self.cluster.agenda.now, self.cluster.history
        if not frame.resumed:
            if frame.epoch in self.cluster.epochs:
                history.odd("sessions", f"epoch {frame.epoch} was issued twice, to {self.name}")
            self.cluster.epochs.add(frame.epoch)
        before = self.session
        if before is None or before.epoch != frame.epoch:
            if frame.resumed:
                history.odd("sessions", f"{self.name} resumed {frame.epoch}, not its own")
            self._end_session(now)
            self.operations.clear()
            self.session = Session(self.name, self.instance, frame.epoch, frame.broker, now)
            history.sessions.append(self.session)
            if self.outdone_at < inf:
                self._end_session(self.outdone_at)
        self._recover()

    def _end_session(self, at: float) -> None:
        if self.session is not None:
            self.session.end(at)

    def begins(self, epoch: str) -> None:
        """A broker opens a session for us, as the newest of our name so far."""
        self.opened = epoch
        self.outdone_at = inf

    def outdone(self, at: float) -> None:
        self.outdone_at = min(self.outdone_at, at)
        self._trouble.begin(at)
        self._end_session(at)

    # ── carrying out and recording what goes out ─────────────────────────────────────────

    def _carry(self, what: str, heard: Frame | None = None) -> None:
        effects, cluster = self.machine.take(), self.cluster
        cluster.trace.client(cluster.agenda.now, self.name, what, effects.send)
        if cluster.trace.story is not None:
            cluster.trace.tell_client(cluster.agenda.now, self.title, what, effects.send)
        if not cluster.trace.steps % VALIDATE_EVERY:
            self._validate(what)
        for frame in effects.send:
            self._record(frame)
            if self.end is not None:
                cluster.network.carry(self.end, frame)
        for happened in effects.happened:
            match happened:
                case Arrived():
                    self._arrived(happened, heard)
                case Settled():
                    self._settle(happened)
                case Resolved(handle, failure):
                    answer = "Done" if failure is None else failure.error
                    self.calls[handle].answers.append((cluster.agenda.now, answer))
                case Parted(failure) | Ended(failure):
                    self._dismissed(failure)

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
            self._end_session(self.cluster.agenda.now)
        else:
            self.connect_soon()

    def _record(self, frame: Frame) -> None:
        if type(frame) in REQUESTS:
            self._record_request(frame)  # type: ignore[arg-type]
        elif type(frame) is Publish:
            self._record_events(frame)
        elif type(frame) is Goodbye and self.session is not None:
            self._end_session(self.cluster.agenda.now)

    def _record_request(self, frame: Request) -> None:
        session = self.session
        assert session is not None
        if frame.sequence in session.operations:
            return  # sent again after the connection broke
        kind = REQUESTS[type(frame)]
        handle = self.machine._unanswered[frame.sequence].handle
        target, filter = None, None
        session.sent += 1
        now = self.cluster.agenda.now
        if isinstance(frame, UnadvertiseRequest | UnsubscribeRequest):
            target = session.operations[frame.target]
            target.ended_at = min(target.ended_at, now)
            target.ended_position = min(target.ended_position, session.sent)
        else:
            filter = frame.filter
        operation = Operation(
            session,
            frame.sequence,
            handle,
            kind,
            filter,
            target,
            frame.wait,
            frame.timeout_s,
            session.sent,
            now,
            ended_at=session.ended_at,
        )
        session.operations[frame.sequence] = operation
        if kind in ADDITIONS:
            self.operations[handle] = operation

    def _record_events(self, frame: Publish) -> None:
        session = self.session
        assert session is not None
        for body in frame.bodies:
            session.sent += 1
            event = self.cluster.bodies[bytes(body)]
            if event.session is None:
                event.session = session
                event.position = session.sent
            elif event.session is not session:
                self.cluster.history.odd("duplicates", f"{event} was sent in two sessions")
            # The broker has said that it does not have it: what counts is the last time.
            event.sent_at = self.cluster.agenda.now

    def _settle(self, settled: Settled) -> None:
        refused = {refusal.sequence for refusal in settled.refused}
        for ordinal in range(self._settled + 1, settled.upto + 1):
            event = self._published[ordinal - 1]
            if event.fate:
                self.cluster.history.odd("answers", f"{event} was settled twice")
            bad = "refused" if ordinal in refused else "accepted"
            event.fate = "unknown" if settled.unknown is not None else bad
        self._settled = settled.upto

    def _arrived(self, arrived: Arrived, heard: Frame | None) -> None:
        cluster = self.cluster
        assert isinstance(heard, Deliver)
        for (handles, publication), wire in zip(arrived.batch, heard.batch, strict=True):
            event = cluster.bodies.get(bytes(publication.body))
            if len(handles) != len(wire.subscriptions):
                cluster.history.odd(
                    "soundness",
                    f"{self.name} got {event} for subscriptions {wire.subscriptions}, "
                    "not all of which are in force",
                )
            for handle in handles:
                delivery = Delivery(
                    cluster.agenda.now,
                    self.instance,
                    handle,
                    self.operations.get(handle),
                    event,
                    publication.publisher,
                )
                cluster.history.deliveries.append(delivery)
