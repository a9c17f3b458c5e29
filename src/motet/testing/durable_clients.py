"""Durable clients in the simulator: state that outlives their processes, and new processes.

An application processes events a little after they arrive. Some applications store their cursors
together with their effects and hand them to the next process; for them nothing may happen twice.
The others rely on the broker: nothing may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING

from motet.audit.records import (
    ADDITIONS,
    DONE,
    UNHEARD,
    DeliveryRecord,
    EventRecord,
    OperationRecord,
    SessionRecord,
)
from motet.protocol.session.facts import SessionDropped, SessionEnded, SessionOpened
from motet.protocol.session.messages import Welcome
from motet.protocol.session.state import GRANTED
from motet.testing.checkers.effective import is_on_its_way
from motet.testing.history import OpeningRecord

if TYPE_CHECKING:
    from motet.testing.brokers import SimulatedBroker
    from motet.testing.clients import SimulatedClient
    from motet.testing.cluster import Cluster


READY_S = 0.3
"""The longest time from an application's start until it is ready for events."""
ENDLESS = 1 << 60


@dataclass(slots=True)
class DurableApplication:
    """One durable client, across all its processes."""

    name: str
    home: str
    own: bool
    """It stores its own cursors, together with its effects."""
    keep_s: float
    random: Random
    cursors: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    """The sessions that its processes know of, by epoch."""
    latest: Process | None = None
    """The process that started last: the application rejects cursors from any other."""
    hosted: bool = False
    """Brokers run it, in their containers."""


class Process:
    """The additional behaviour of a process of a durable client."""

    def __init__(self, client: SimulatedClient, application: DurableApplication) -> None:
        self.application = application
        self._before = application.latest
        application.latest = self
        self._client = client
        self._history = client.cluster.history
        self._history.durable[client.instance] = application.own
        self._waiting: dict[str, list[DeliveryRecord]] = {}
        self._welcome: Welcome | None = None
        self._left: dict[int, EventRecord] = {}
        """Publications of earlier processes whose fate is still unknown."""

    def refused(self) -> None:
        """No broker accepted it: another process may still be working."""
        if self.application.latest is self:
            self.application.latest = self._before

    def begin(self) -> None:
        """Become ready for events soon."""
        delay_s = self.application.random.random() * READY_S
        self._client.cluster.agenda.after(delay_s, self._client.ready)

    @property
    def outdated(self) -> bool:
        """A newer process has started: the application rejects the cursors of this one."""
        return self.application.own and self.application.latest is not self

    # ── effects ──────────────────────────────────────────────────────────────────────────

    def came(self, delivery: DeliveryRecord) -> None:
        if delivery.tick:
            self._waiting.setdefault(delivery.pubend, []).append(delivery)

    def processed(self, pubend: str, upto: int) -> bool:
        """Effects and cursor are one transaction of the application. False if it was rejected
        because a newer process has started: then this process should end."""
        if self.outdated:
            return False
        waiting = self._waiting.get(pubend, [])
        self._history.effects += [each for each in waiting if each.tick <= upto]
        self._waiting[pubend] = [each for each in waiting if each.tick > upto]
        cursors = self.application.cursors
        cursors[pubend] = max(upto, cursors.get(pubend, 0))
        return True

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def opened(self, session: SessionRecord) -> None:
        """A new session was opened; there was none to adopt."""
        self.application.sessions[session.epoch] = session
        self.application.home = self._client.home
        self._end_if_lost(session)

    def _end_if_lost(self, session: SessionRecord) -> None:
        """The broker may have lost the session after it had sent the welcome."""
        lost_at = self._client.cluster.lasting.lost.get(session.epoch)
        if lost_at is not None:
            session.end(lost_at)

    def adopt(self, frame: Welcome) -> SessionRecord:
        """Continue the session of an earlier process; it must be as that process knew it."""
        session = self.application.sessions.get(frame.epoch)
        if session is None:  # the welcome to the earlier process was lost
            if frame.requests or frame.standing or frame.taken:
                self._odd(f"{frame.epoch} has requests, but no process was ever in it")
            client, now = self._client, self._client.cluster.agenda.now
            session = SessionRecord(client.name, client.instance, frame.epoch, frame.broker, now)
            session.stays = self._history.stays[client.name, frame.epoch]
            self.opened(session)
            self._history.sessions.append(session)
        certain = session.ended_at == inf
        session.ended_at = inf  # if it had ended, its broker died before the end was durable
        for other in self._client.cluster.clients:
            if other is not self._client and other.session is session:
                other.detach()
        self._reconcile(session, frame, certain)
        self._end_if_lost(session)
        known = session.numbered.items()
        self._left = {n: e for n, e in known if not e.fate and e.instance != self._client.instance}
        self._welcome = frame
        return session

    def _reconcile(self, session: SessionRecord, frame: Welcome, certain: bool) -> None:
        """Requests under way when the last process ended have either taken effect or not."""
        for sequence in [each for each in session.asks if each > frame.requests]:
            del session.asks[sequence]
        standing = {each.sequence for each in frame.standing}
        for sequence, operation in list(session.operations.items()):
            if frame.requests < sequence < GRANTED:  # the next request will have this number
                session.forgotten.append(session.operations.pop(sequence))
            if operation.kind not in ADDITIONS:
                continue
            stood = certain and operation.answer == DONE and operation.ended_at == inf
            stood = stood and operation.deal is None  # else its outcome may be unknown
            if stood and sequence not in standing:
                self._odd(f"{operation} is no longer in force")
            operation.gone = operation.dealt or sequence not in standing
            if not operation.gone:
                operation.ended_at, operation.ended_position = self._marked_at(operation), ENDLESS
            else:
                operation.ended_at = min(operation.ended_at, operation.requested_at)
                operation.answer = operation.answer or UNHEARD

    def _marked_at(self, operation: OperationRecord) -> float:
        """When an undecided transaction asked to remove it."""
        return min(
            (
                deed.at
                for deal in self._history.deals.values()
                for deed in deal.deeds
                if (deed.operation is operation or operation in deed.candidates)
                and deed.kind.startswith("un")
                and deed.answer in ("", DONE)
                and not deed.concluded
            ),
            default=inf,
        )

    def settle(self) -> None:
        """The broker has reported the fate of everything that was published in the session."""
        frame, machine = self._welcome, self._client.machine
        if frame is None or machine.state != "open" or not machine.certain:
            return
        refused = {each.sequence for each in frame.refused}
        for number, event in self._left.items():
            if number > machine.window.answered:
                event.fate = "void" if event.sure else "unknown"
            elif number in refused and (event.sure or not frame.forgot):
                event.fate = "refused"
            elif frame.forgot or number <= frame.forgotten:
                event.fate = "accepted" if event.tick else "unknown"
            else:
                event.fate = "accepted"
            event.inherited = True
            event.settled_at = self._client.cluster.agenda.now
        self._left = {}
        self._welcome = None

    def overtaken(self, frame: Welcome) -> SessionRecord | None:
        """A record apart, if a process that adopted the session later was welcomed earlier."""
        client, session = self._client, self.application.sessions.get(frame.epoch)
        others = (each for each in client.cluster.clients if each.session is session)
        if session is None or not any(each.outdone_at > client.outdone_at for each in others):
            return None
        apart = self.detached(session, client.outdone_at)
        for number in [each for each in apart.operations if frame.requests < each < GRANTED]:
            del apart.operations[number]  # requests of the later process
        return apart

    def owns(self, session: SessionRecord) -> bool:
        """Whether no other process is known to have adopted the session."""
        return self.application.sessions.get(session.epoch) is session

    def detached(self, session: SessionRecord, at: float) -> SessionRecord:
        """Another process has adopted the session: the actions of this one no longer affect it, not
        even the removal of its operations."""
        operations = {number: replace(each) for number, each in session.operations.items()}
        asks = dict(session.asks)
        return replace(session, ended_at=at, operations=operations, asks=asks, numbered={})

    def _odd(self, detail: str) -> None:
        self._history.odd("sessions", f"{self._client.title}: {detail}")


OWN = 0.5
"""The share of applications that store their own cursors."""
FORGETS = 0.2
"""The chance that a departing client ends its durable session."""
CARELESS = 0.1
"""The chance that an ordinary client uses the id of a durable one."""
AWAY_S = (0.0, 6.0)
TOLERANCE_S = 1e-6
RETURNS = 0.8
"""The chance that an absent client returns before everything comes to rest."""


class Lasting:
    """Uses a random generator of its own, so that a seed's other draws do not depend on it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(f"durable {seed}")
        self._applications: dict[str, DurableApplication] = {}
        self._opened: dict[str, str] = {}
        """The broker of each session, by epoch."""
        self.lost: dict[str, float] = {}
        """When the broker of a session came back without its state, by epoch."""
        self._left: dict[tuple[str, str], float] = {}
        """By broker and client: since when the client has been away, by the broker's clock."""

    def application(self, name: str, instance: int, home: str) -> DurableApplication | None:
        """The application of a process that starts; None if it is an ordinary client."""
        plan, random = self._cluster.plan, self._random
        if not plan.durable:
            return None
        if name:
            known = self._applications.get(name)
            return None if known is None or random.random() < CARELESS else known
        if random.random() >= plan.durable:
            return None
        name = f"c{instance}"
        own = random.random() < OWN
        made = DurableApplication(name, home, own, plan.keep_s, random)
        self._applications[name] = made
        return made

    def know(self, application: DurableApplication) -> None:
        """A hosted client: brokers start its processes."""
        self._applications[application.name] = application

    def draw_since(self, client: SimulatedClient, action: str) -> dict[str, int] | None:
        plan, process = self._cluster.plan, client.process
        if action != "subscribe" or not plan.since or client.machine.total_order:
            return None
        if process and process.application.own:
            return None  # a client with its own cursors continues from them
        return {"": 0} if self._random.random() < plan.since else None

    # ── leaving and coming back ──────────────────────────────────────────────────────────

    def forgets(self) -> bool:
        return bool(self._cluster.plan.durable) and self._random.random() < FORGETS

    def return_later(self, client: SimulatedClient) -> bool:
        """A process of a durable client has ended; start another one later."""
        if client.process is None:
            return False
        application = client.process.application
        self._cluster.agenda.after(self._random.uniform(*AWAY_S), self._return, application)
        return True

    def _return(self, application: DurableApplication) -> None:
        here = [c for c in self._cluster.clients if c.name == application.name and not c.over]
        if not here and self._cluster.acting:
            self._cluster.arrive(application.name, application.home)

    def return_all(self) -> None:
        """Faults have stopped: most absent clients return."""
        for application in self._applications.values():
            if not application.hosted and self._random.random() < RETURNS:
                self._return(application)

    def replace_outdated(self) -> bool:
        """End each process whose application has started a newer one, and start the next; true if
        any.

        Two brokers that cannot reach each other may both accept a process of a client, and the
        session of the older process may survive. The application rejects its cursors at their next
        write, and the process ends. It must not find out by a probe event.
        """
        outdated = [
            client
            for client in self._cluster.clients
            if not client.over and client.process is not None and client.process.outdated
        ]
        for client in outdated:
            note = f"{client.title} is outdated and ends; the next process comes"
            self._cluster.trace.note(self._cluster.agenda.now, note)
            client.kill()
            self._cluster.arrive(client.name, client.home)
        return bool(outdated)

    # ── owners of sessions ───────────────────────────────────────────────────────────────

    def adopted(self, newcomer: SimulatedClient, epoch: str, broker: str) -> bool:
        """A broker has given a client a session: did it exist before?"""
        if epoch not in self._opened:
            self._opened[epoch] = broker
            self._check_that_none_is_left(newcomer, epoch, broker)
            return False
        cluster, now = self._cluster, self._cluster.agenda.now
        instance = newcomer.instance
        opening = OpeningRecord(newcomer.name, instance, epoch, broker, now, None, (), adopted=True)
        cluster.history.openings.append(opening)
        newcomer.begins(epoch)
        for other in cluster.clients:
            if other is not newcomer and epoch in (other.opened, other.machine.epoch):
                other.outdone(now, adopted=True)
        return True

    def absent(self) -> list[str]:
        """Durable clients none of whose processes runs."""
        here = {client.name for client in self._cluster.clients if not client.over}
        return [name for name in self._applications if name not in here]

    def arrived(self, session: tuple[str, str], broker: SimulatedBroker) -> None:
        """A session has moved to a broker, where its lease begins anew."""
        client, epoch = session
        self._opened[epoch] = broker.name
        if client in self._applications:
            self._left[broker.name, client] = broker.clock.now()

    def _check_that_none_is_left(self, newcomer: SimulatedClient, epoch: str, broker: str) -> None:
        application = self._applications.get(newcomer.name)
        for left in application.sessions.values() if application is not None else ():
            if left.ended_at < inf or left.home != broker or self._may_be_lost(left):
                continue
            text = f"{newcomer.title} was given {epoch}, though {left.epoch} is kept for it"
            self._cluster.history.odd("sessions", text)

    def _may_be_lost(self, session: SessionRecord) -> bool:
        """Was it on its way, and has the overlay forgotten anything, or been rewired, since?"""
        history, everybody = self._cluster.history, self._cluster.tree.brokers
        return is_on_its_way(session) and history.forgot(everybody, session.stays[-1].left_at)

    def noted(
        self, broker: str, now: float, fact: SessionOpened | SessionDropped | SessionEnded
    ) -> None:
        """A broker has journaled, by its own clock, that a session was opened, lost its client, or
        ended: the end of a durable session is visible nowhere else."""
        application = self._applications.get(fact.client)
        if application is None:
            return
        if isinstance(fact, SessionOpened):
            self._left.pop((broker, fact.client), None)
        elif isinstance(fact, SessionDropped):
            self._left[broker, fact.client] = now
        elif (session := application.sessions.get(fact.epoch)) is not None:
            session.end(self._cluster.agenda.now)
            away_s = now - self._left.get((broker, fact.client), -inf)
            if away_s < application.keep_s - TOLERANCE_S:
                text = f"{fact.epoch} of {fact.client} was kept for {away_s:.4f} s only"
                self._cluster.history.odd("sessions", text)

    def forgotten(self, broker: str) -> None:
        """A broker has come back without its state."""
        now = self._cluster.agenda.now
        for epoch, home in self._opened.items():
            if home == broker:
                self.lost.setdefault(epoch, now)
        for application in self._applications.values():
            for session in application.sessions.values():
                if session.home == broker or is_on_its_way(session):
                    session.end(now)
