"""The durable half of a broker: what a crash must not take, changed only by facts.

`apply` reads nothing but this state and the fact. Replaying the same facts gives the same state
and the same outputs, numbered the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from motet.broker import facts
from motet.broker.carrying import Carrying, deadline_key
from motet.broker.consequences import Consequences
from motet.broker.image import Part, parts_of, take_in
from motet.broker.records import encode
from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.model.epochs import is_newer, number_of
from motet.protocol.contract import Fact, SetTimer
from motet.protocol.link.machine import Ledger
from motet.protocol.routing.messages import (
    Advertise,
    ClientHere,
    RoutingMessage,
    Subscribe,
    Switched,
    Unadvertise,
    Unsubscribe,
    widens,
)
from motet.protocol.session.messages import (
    AdvertiseRequest,
    CommitRequest,
    Done,
    Failed,
    Over,
    Request,
    RoutingRequest,
    Stands,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.protocol.session.state import GRANTED, Session

LONGEST_TIMEOUT_S = 3600.0


class Durable(Carrying):
    def apply(self, fact: Fact) -> Consequences:
        """The one door."""
        if fact.now < self.now:
            raise InvariantError(f"time ran backwards from {self.now} to {fact.now}")
        self.now = fact.now
        handle = MOVES.get(type(fact.body))
        if handle is None:
            raise InvariantError(f"{type(fact.body).__name__} is not a fact")
        self.transactions.now = fact.now
        handle(self, fact.body)
        self._carry_transactions()
        then, self._then = self._then, Consequences()
        return then

    def replay(self, facts: Iterable[Fact]) -> None:
        """What was carried out when it happened needs no carrying out now: what links still owe
        is in their outboxes, and clients ask for their answers again."""
        state = self.routing.state
        with state.advertisements.catching_up(), state.subscriptions.catching_up():
            for fact in facts:
                self.apply(fact)

    def restore(self, parts: Iterable[Part]) -> None:
        """Begin as the broker that an image shows, instead of empty."""
        take_in(self, parts)

    def recover(self, now: float) -> list[SetTimer]:
        """Timers after a replay: leases and deadlines start again in full, since nobody could
        renew or meet them. The time that a durable session is kept for goes on."""
        lease_s = self.config.lease_s
        leases = [
            SetTimer(("lease", s.client, s.epoch), s.expires_at(now, lease_s))
            for s in self.sessions
        ]
        deadlines = [
            SetTimer(deadline_key(op), now + timeout_s)
            for op, (_, timeout_s) in self.deadlines.items()
        ]
        return leases + deadlines + self.transactions.recover(now)

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def _session_opened(self, fact: facts.SessionOpened) -> None:
        session = self.sessions.get(fact.client)
        if session is not None and session.epoch == fact.resume:
            self._cancel(("lease", session.client, session.epoch))
            if session.instance != fact.instance:  # nobody knows what its last process had begun
                self.transactions.left(session.client, session.epoch)
                session.willing = False
            session.instance = fact.instance
            session.keep_s = fact.keep_s or session.keep_s
            session.left_at = None
            if session.uncounted:
                session.published = max(session.published, fact.published)
                session.uncounted = False
            return
        if session is not None:
            self._end(session)
        session = self.sessions.open(fact.client, fact.instance, fact.resume, fact.total_order)
        session.keep_s = fact.keep_s
        if session.total_order:
            self.routing.state.merging[session.client] = None
        here = ClientHere(session.client, session.epoch, session.durable)
        self._route(here, Hop.client(session.client))

    def newer_than(self, client: str, resume: str | None, instance: str) -> str | None:
        """The session for which a client that comes back must step aside, if there is one."""
        newest = self.routing.state.clients.newest(client)
        if resume is None or newest is None:
            return None
        session = self.sessions.current(client, newest)
        if newest == resume and session is not None and session.durable:
            # A later process of the client has gone on with it.
            return newest if session.instance != instance else None
        if not is_newer(newest, than=resume):
            return None
        if session is not None and instance and session.instance == instance:
            return None  # its own, whose welcome was lost
        return newest

    def _heard_of(self, client: str, epoch: str) -> None:
        """A session lives elsewhere; an older one of the same client, here, ends."""
        self.sessions.heard(epoch)
        session = self.sessions.get(client)
        if session is not None and is_newer(epoch, than=session.epoch):
            self._end(session)
            self._then.fenced.append((client, epoch))

    def _session_dropped(self, fact: facts.SessionDropped) -> None:
        session = self.sessions.current(fact.client, fact.epoch)
        if session is not None:
            session.left_at = self.now
            session.taken = max(session.taken, fact.published)
            self._note(session, fact.cursors)
            session.done.update(fact.done)
            at = session.expires_at(self.now, self.config.lease_s)
            self._then.timers.append(SetTimer(("lease", fact.client, fact.epoch), at))

    def _note(self, session: Session, cursors: Mapping[str, int]) -> None:
        for pubend, upto in cursors.items():
            session.cursors[pubend] = max(upto, session.cursors.get(pubend, 0))

    def _session_ended(self, fact: facts.SessionEnded) -> None:
        session = self.sessions.current(fact.client, fact.epoch)
        if session is not None:
            self._end(session)

    def _end(self, session: Session) -> None:
        self._cancel(("lease", session.client, session.epoch))
        self.transactions.left(session.client, session.epoch)
        self._carry_transactions()  # before its operations go: an abort may take some back itself
        self._carry(self.routing.end(session.client, session.epoch))
        for sequence in sorted(session.unanswered):
            self._forget_deadline(OpId(session.client, session.epoch, sequence))
        self.sessions.end(session)
        self._then.closed.append((session.client, session.epoch))
        self.routing.state.merging.pop(session.client, None)
        self._forget_blocks_of(session.client)

    def _forget_blocks_of(self, client: str) -> None:
        """Nobody asks what a client has published in transactions once its session is over, and
        no advertisement of it has to stay for that."""
        state = self.routing.state
        if self.sessions.get(client) is None and not any(
            op.client == client for op in state.retired
        ):
            self.transactions.state.published.pop(client, None)

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def _request_received(self, fact: facts.RequestReceived) -> None:
        session = self.sessions.current(fact.client, fact.epoch)
        request = fact.request
        if session is None or not self.sessions.is_new(session, request):
            raise InvariantError("a request was journaled that must not take effect")
        self.sessions.accept(session, request)
        self._tick(fact.tick)
        op = OpId(session.client, session.epoch, request.sequence)
        if isinstance(request, CommitRequest):
            self._commit(op, request, fact.tick, fact.refused)
        else:
            self._obey(op, request, fact.refused)

    def _obey(self, op: OpId, request: Request, refused: tuple[str, str] = ("", "")) -> None:
        session = self.sessions.current(op.client, op.epoch)
        if session is None:
            return
        if not isinstance(request, RoutingRequest):
            self.transactions.request(op, request)
            return
        source = Hop.client(session.client)
        message = self._as_message(op, request)
        wrong = refused if refused[0] else self.transactions.objection(op, request)
        if wrong is not None:
            message = Failed(request.sequence, *wrong)
        elif self.transactions.hold(op, request):
            self._forsake(session, request)
            return
        if isinstance(message, Failed):
            self._answer(op, message)
            return
        if request.tag is not None and not self.transactions.note(op, request, request.tag):
            self._answer(op, Done(request.sequence))
            return
        self._name(session, request)
        self._route(message, source)
        if not request.wait:
            self._answer(op, Done(request.sequence))
        elif request.sequence in session.unanswered:  # else it was effective at once
            timeout_s = min(max(request.timeout_s, 0.0), LONGEST_TIMEOUT_S)
            at = self.now + timeout_s
            self.deadlines[op] = (at, timeout_s)
            self._then.timers.append(SetTimer(deadline_key(op), at))

    def _forsake(self, session: Session, request: RoutingRequest) -> None:
        """It must wait. To its client, what it takes back is over all the same: else one that it
        asks for behind it would get the same events once more."""
        if isinstance(request, UnsubscribeRequest) and request.tag is None:
            target = OpId(session.client, session.epoch, request.target)
            self.routing.forsake(target)
            self._name(session, request)
            self._then.ended.append(target)

    def _name(self, session: Session, request: RoutingRequest) -> None:
        """Remember what a client calls what it asks for, and what reaches back."""
        if isinstance(request, UnadvertiseRequest | UnsubscribeRequest):
            self.sessions.forget(session, request.target)
            return
        session.advertised = session.advertised or isinstance(request, AdvertiseRequest)
        if session.durable or request.name:
            self.sessions.name(session, request.sequence, request.name)
        if isinstance(request, SubscribeRequest) and request.since:
            session.since[request.sequence] = request.since

    def _as_message(self, op: OpId, request: RoutingRequest) -> RoutingMessage | Failed:
        state = self.routing.state
        tx = request.tag.tx if request.tag is not None else ""
        if isinstance(request, AdvertiseRequest):
            return Advertise(op, request.filter, echo=request.wait, tx=tx)
        if isinstance(request, SubscribeRequest):
            above = state.next_tick if op.client in state.merging else 0
            return Subscribe(op, request.filter, echo=request.wait, above=above, tx=tx)
        target = OpId(op.client, op.epoch, request.target)
        waiting = op if request.wait else None
        if isinstance(request, UnadvertiseRequest):
            what, table = "advertisement", state.advertisements
            message: RoutingMessage = Unadvertise(target, waiting)
        else:
            what, table = "subscription", state.subscriptions
            message = Unsubscribe(target, waiting)
        if target not in table or target in state.retired:
            return Failed(
                op.sequence,
                "NoSuchOperation",
                f"{what} {request.target} of {op.client} is not in force: "
                "it was never made, was taken away before, or failed",
            )
        return message

    def _deadline_passed(self, fact: facts.DeadlinePassed) -> None:
        op = fact.op
        wait = self.routing.state.waits.get(op)
        if wait is None or op not in self.deadlines:
            return
        _, timeout_s = self.deadlines[op]
        self.routing.abandon(op)
        text = f"not effective within {timeout_s:g} s"
        if wait.what == "advertise":
            self._route(Unadvertise(op), Hop.client(op.client))
        elif wait.what == "subscribe":
            self._route(Unsubscribe(op), Hop.client(op.client))
        session = self.sessions.current(op.client, op.epoch)
        if session is not None and wait.what in ("advertise", "subscribe"):
            self.sessions.forget(session, op.sequence)
        if wait.what == "unadvertise" and (wait.retired or not fact.missing):
            text = f"events published under it have not all arrived within {timeout_s:g} s"
            self._answer(op, Failed(op.sequence, "StillOwed", text))
            return
        self._answer(op, Failed(op.sequence, "NotEffective", text, fact.missing))

    # ── links ────────────────────────────────────────────────────────────────────────────

    def _control_received(self, fact: facts.ControlReceived) -> None:
        self._tick(fact.tick)
        source = Hop.broker(fact.neighbour)
        record = self.ledgers[fact.neighbour].record
        fresh = self.ledgers[fact.neighbour].take(fact.control)
        for number, message in enumerate(fresh, record.received + 1 - len(fresh)):
            if widens(message):
                record.told = number
            self._route(message, source)
            if type(message) is ClientHere:
                self._heard_of(message.client, message.epoch)

    def _neighbour_met(self, fact: facts.NeighbourMet) -> None:
        self._carry(self.routing.forget(fact.neighbour))
        self.transactions.forget(fact.neighbour)
        self._carry_transactions()
        self.ledgers[fact.neighbour].restart(fact.incarnation)
        self._carry(self.routing.join(fact.neighbour))
        self.transactions.join(fact.neighbour)

    def _neighbour_lost(self, fact: facts.NeighbourLost) -> None:
        self._carry(self.routing.forget(fact.neighbour, empty=False))
        self.transactions.forget(fact.neighbour)
        self._carry_transactions()
        self.lives += 1
        self.ledgers[fact.neighbour].lose(self.lives)

    def _neighbours_changed(self, fact: facts.NeighboursChanged) -> None:
        before, after = self.ledgers, set(fact.neighbours)
        for neighbour in [name for name in before if name not in after]:
            self._carry(self.routing.dismiss(neighbour))
            del self.ledgers[neighbour]
            self.transactions.dismiss(neighbour)
        for neighbour in sorted(after - set(before)):
            self.lives += 1
            self.ledgers[neighbour] = Ledger(neighbour, self.lives)
            self._carry(self.routing.admit(neighbour))
        self.ledgers = dict(sorted(self.ledgers.items()))

    # ── exactly once ─────────────────────────────────────────────────────────────────────

    def _pubend_founded(self, fact: facts.PubendFounded) -> None:
        self._carry(self.routing.found(fact.pubend))

    def _log_destroyed(self, fact: facts.LogDestroyed) -> None:
        self.destroyed = (fact.upto, self.sessions.issued)
        for session in self.sessions:
            session.published = max(session.published, session.taken)
            session.uncounted = session.advertised and session.left_at is None

    def lost_with(self, epoch: str) -> int:
        """What a session of ours has published that our log knows nothing of lies below this."""
        upto, issued = self.destroyed
        return upto if number_of(epoch) <= issued else 0

    def _advertisement_over(self, fact: facts.AdvertisementOver) -> None:
        state = self.routing.state
        op = state.retired[fact.target]
        self._carry(self.routing.let_go(fact.target, fact.upto))
        self._forget_blocks_of(fact.target.client)
        if op is not None and op in self.deadlines:
            # If events have taken most of the time, nobody who now has the rest of it is late.
            at, timeout_s = self.deadlines[op]
            state.waits[op].retired = at - self.now < timeout_s / 2

    def _ticks_reserved(self, fact: facts.TicksReserved) -> None:
        self.reserved = max(self.reserved, fact.upto)

    def _floor_raised(self, fact: facts.FloorRaised) -> None:
        self.floors[fact.pubend] = max(fact.upto, self.floors.get(fact.pubend, 0))
        for client, upto in fact.cursors.items():
            session = self.sessions.get(client)
            if session is not None and session.durable:
                self._note(session, {fact.pubend: upto})

    def _loss_learnt(self, fact: facts.LossLearnt) -> None:
        session = self.sessions.current(fact.client, fact.epoch)
        if session is not None:
            session.cursors.pop(fact.pubend, None)

    def _start_learnt(self, fact: facts.StartLearnt) -> None:
        self.routing.learn(fact.op, fact.pubend, fact.tick, fact.tentative)

    # ── transactions ─────────────────────────────────────────────────────────────────────

    def _switch_learnt(self, fact: facts.SwitchLearnt) -> None:
        self.routing.learn_switch(Switched(fact.op, fact.pubend, fact.tick, fact.ended))

    def _subscription_over(self, fact: facts.SubscriptionOver) -> None:
        op = fact.op
        session = self.sessions.current(op.client, op.epoch)
        if session is not None and op in self.routing.state.subscriptions:
            self.sessions.forget(session, op.sequence)
            self._route(Unsubscribe(op), Hop.client(op.client))
            self._tell(op.client, Over(op.sequence))

    def _transaction_overdue(self, fact: facts.TransactionOverdue) -> None:
        self.transactions.overdue(fact.tx)

    def _cut_made(self, fact: facts.CutMade) -> None:
        self._tick(fact.tick)
        self.transactions.cut(fact.tx, fact.tick)
        self._carry_transactions()
        self.transactions.cut_told(fact.tx)

    def _cut_logged(self, fact: facts.CutLogged) -> None:
        self.transactions.logged(fact.tx)
        for op in self.sinks.logged(fact.tx):
            self._answer(op, Done(op.sequence, fact.tx))

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def standing(self, session: Session) -> tuple[Stands, ...]:
        """What a durable session has in force, for a process that goes on with it."""
        state = self.routing.state
        found: list[Stands] = []
        for sequence, name in session.names.items():
            op = OpId(session.client, session.epoch, sequence)
            answered = sequence not in session.unanswered
            kind: Literal["advertise", "subscribe"] = "subscribe"
            entry = state.subscriptions.get(op)
            if entry is None and op not in state.retired:
                kind, entry = "advertise", state.advertisements.get(op)
            if entry is None or (entry.tx and sequence > GRANTED):
                continue  # what a plan may put in force, the decision tells of
            found.append(Stands(sequence, kind, name, entry.filter, answered))
        return tuple(found)

    def digest(self) -> str:
        """A hash of everything durable; equal after replay, or the journal lied.

        Not in it: the outboxes, from which acknowledgements take things at any time."""
        picture = hashlib.sha256()
        for part in parts_of(self, outboxes=False):
            picture.update(encode(part))
        return picture.hexdigest()

    def validate(self) -> None:
        self.routing.validate()
        for session in self.sessions:
            if self.routing.state.clients.newest(session.client) != session.epoch:
                raise InvariantError(f"{session.epoch} of {session.client} is not the newest")
        for op in self.deadlines:
            if op not in self.routing.state.waits:
                raise InvariantError(f"{op} has a deadline but waits for nobody")


MOVES: dict[type, Callable[[Durable, Any], None]] = {
    facts.SessionOpened: Durable._session_opened,
    facts.SessionDropped: Durable._session_dropped,
    facts.SessionEnded: Durable._session_ended,
    facts.RequestReceived: Durable._request_received,
    facts.DeadlinePassed: Durable._deadline_passed,
    facts.ControlReceived: Durable._control_received,
    facts.PubendFounded: Durable._pubend_founded,
    facts.LogDestroyed: Durable._log_destroyed,
    facts.FloorRaised: Durable._floor_raised,
    facts.LossLearnt: Durable._loss_learnt,
    facts.TicksReserved: Durable._ticks_reserved,
    facts.StartLearnt: Durable._start_learnt,
    facts.SwitchLearnt: Durable._switch_learnt,
    facts.SubscriptionOver: Durable._subscription_over,
    facts.TransactionOverdue: Durable._transaction_overdue,
    facts.CutMade: Durable._cut_made,
    facts.CutLogged: Durable._cut_logged,
    facts.AdvertisementOver: Durable._advertisement_over,
    facts.NeighbourMet: Durable._neighbour_met,
    facts.NeighbourLost: Durable._neighbour_lost,
    facts.NeighboursChanged: Durable._neighbours_changed,
}
"""Every fact and what it does."""
