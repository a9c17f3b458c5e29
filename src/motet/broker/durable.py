"""The durable half of a broker: what a crash must not take, changed only by facts.

`apply` reads nothing but this state and the fact. Replaying the same facts gives the same state
and the same outputs, numbered the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from motet.broker import facts
from motet.broker.config import BrokerConfig
from motet.broker.consequences import Consequences
from motet.broker.image import Part, parts_of, take_in
from motet.broker.records import encode
from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.model.epochs import is_newer, number_of
from motet.protocol.contract import CancelTimer, Fact, SetTimer, TimerKey
from motet.protocol.link.machine import Ledger
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    ClientHere,
    RoutingMessage,
    Subscribe,
    Unadvertise,
    Unsubscribe,
    widens,
)
from motet.protocol.routing.obligations import Effects
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Done,
    Failed,
    Request,
    Stands,
    SubscribeRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.protocol.session.state import Session

LONGEST_TIMEOUT_S = 3600.0
NOWHERE = 1 << 62
"""Above every tick: a subscription does not reach back there any more."""


class Durable:
    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        life = f"{config.name}-{config.incarnation}"
        self.routing = Routing(life, config.neighbours, covering=config.covering)
        self.sessions = Sessions(config.name, config.incarnation)
        self.lives = config.incarnation
        """The highest life that any of our links has had: none returns, not even for a neighbour
        that was taken away and added again."""
        self.ledgers = {name: Ledger(name, self.lives) for name in sorted(config.neighbours)}
        self.floors: dict[str, int] = {}
        """By pubend: all clients of ours are done with it up to here."""
        self.reserved = 0
        """Our own events come above this after a restart."""
        self.destroyed = (0, 0)
        """Our log up to this tick is gone; the last epoch that we had issued then."""
        self.deadlines: dict[OpId, tuple[float, float]] = {}
        """Of every request that someone waits for: when, and the timeout that was asked for."""
        self.now = 0.0
        self._then = Consequences()

    def apply(self, fact: Fact) -> Consequences:
        """The one door."""
        if fact.now < self.now:
            raise InvariantError(f"time ran backwards from {self.now} to {fact.now}")
        self.now = fact.now
        handle = MOVES.get(type(fact.body))
        if handle is None:
            raise InvariantError(f"{type(fact.body).__name__} is not a fact")
        handle(self, fact.body)
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
        return leases + deadlines

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def _session_opened(self, fact: facts.SessionOpened) -> None:
        session = self.sessions.get(fact.client)
        if session is not None and session.epoch == fact.resume:
            self._cancel(("lease", session.client, session.epoch))
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
        self._carry(self.routing.end(session.client, session.epoch))
        for sequence in sorted(session.unanswered):
            self._forget_deadline(OpId(session.client, session.epoch, sequence))
        self.sessions.end(session)
        self._then.closed.append((session.client, session.epoch))
        self.routing.state.merging.pop(session.client, None)

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def _request_received(self, fact: facts.RequestReceived) -> None:
        session = self.sessions.current(fact.client, fact.epoch)
        request = fact.request
        if session is None or not self.sessions.is_new(session, request):
            raise InvariantError("a request was journaled that must not take effect")
        self.sessions.accept(session, request)
        self._tick(fact.tick)
        op = OpId(session.client, session.epoch, request.sequence)
        source = Hop.client(session.client)
        message = self._as_message(op, request)
        if fact.refused[0]:
            message = Failed(request.sequence, *fact.refused)
        if isinstance(message, Failed):
            self._answer(op, message)
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

    def _name(self, session: Session, request: Request) -> None:
        """Remember what a durable client calls what it asks for, and what reaches back."""
        if isinstance(request, UnadvertiseRequest | UnsubscribeRequest):
            session.forget(request.target)
            return
        session.advertised = session.advertised or isinstance(request, AdvertiseRequest)
        if session.durable:
            session.names[request.sequence] = request.name
        if isinstance(request, SubscribeRequest) and request.since:
            session.since[request.sequence] = request.since

    def _as_message(self, op: OpId, request: Request) -> RoutingMessage | Failed:
        state = self.routing.state
        if isinstance(request, AdvertiseRequest):
            return Advertise(op, request.filter, echo=request.wait)
        if isinstance(request, SubscribeRequest):
            above = state.next_tick if op.client in state.merging else 0
            return Subscribe(op, request.filter, echo=request.wait, above=above)
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
            session.forget(op.sequence)
        if wait.what == "unadvertise" and (wait.retired or not fact.missing):
            text = f"events published under it have not all arrived within {timeout_s:g} s"
            self._answer(op, Failed(op.sequence, "StillOwed", text))
            return
        self._answer(op, Failed(op.sequence, "NotEffective", text, fact.missing))

    # ── links ────────────────────────────────────────────────────────────────────────────

    def _tick(self, tick: int) -> None:
        state = self.routing.state
        state.next_tick = max(state.next_tick, tick)

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
        self.ledgers[fact.neighbour].restart(fact.incarnation)
        self._carry(self.routing.join(fact.neighbour))

    def _neighbour_lost(self, fact: facts.NeighbourLost) -> None:
        self._carry(self.routing.forget(fact.neighbour, empty=False))
        self.lives += 1
        self.ledgers[fact.neighbour].lose(self.lives)

    def _neighbours_changed(self, fact: facts.NeighboursChanged) -> None:
        before, after = self.ledgers, set(fact.neighbours)
        for neighbour in [name for name in before if name not in after]:
            self._carry(self.routing.dismiss(neighbour))
            del self.ledgers[neighbour]
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
        self.routing.learn(fact.op, fact.pubend, fact.tick)

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def _route(self, message: RoutingMessage, source: Hop) -> None:
        self._carry(self.routing.apply(message, source))

    def _carry(self, effects: Effects) -> None:
        for neighbour, message in effects.messages:
            self.ledgers[neighbour].enqueue(message, widens=widens(message))
            self._then.neighbours[neighbour] = None
        self._then.starts += effects.starts
        self._then.restarted += effects.restarted
        self._then.started += effects.started
        self._then.lifted += effects.lifted
        for each in effects.lifted:
            session = self.sessions.current(each.op.client, each.op.epoch)
            since = session.since.get(each.op.sequence) if session is not None else None
            if session is not None and since is not None:  # the past is over there
                session.since[each.op.sequence] = {**since, each.pubend: NOWHERE}
        self._then.ended += effects.ended
        self._then.retired += effects.retired
        self._then.awaiting |= effects.awaiting
        self._then.rerouted |= effects.rerouted
        for pubend in effects.destroyed:
            self.floors.pop(pubend, None)
            self._then.destroyed.append(pubend)
        for op, withdrawn in effects.completed:
            if withdrawn:
                text = f"operation {op.sequence} was taken back before it was effective"
                self._answer(op, Failed(op.sequence, "Withdrawn", text))
            else:
                self._answer(op, Done(op.sequence))

    def _answer(self, op: OpId, reply: Done | Failed) -> None:
        self._forget_deadline(op)
        session = self.sessions.current(op.client, op.epoch)
        if session is not None and self.sessions.answer(session, reply):
            self._then.answers.append((op.client, reply))

    def _forget_deadline(self, op: OpId) -> None:
        if self.deadlines.pop(op, None) is not None:
            self._cancel(deadline_key(op))

    def _cancel(self, key: TimerKey) -> None:
        self._then.timers.append(CancelTimer(key))

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def standing(self, session: Session) -> tuple[Stands, ...]:
        """What a durable session has in force, for a process that goes on with it."""
        state = self.routing.state
        found: list[Stands] = []
        for sequence, name in session.names.items():
            op = OpId(session.client, session.epoch, sequence)
            answered = sequence not in session.unanswered
            if (entry := state.subscriptions.get(op)) is not None:
                found.append(Stands(sequence, "subscribe", name, entry.filter, answered))
            elif (entry := state.advertisements.get(op)) is not None and op not in state.retired:
                found.append(Stands(sequence, "advertise", name, entry.filter, answered))
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


def deadline_key(op: OpId) -> TimerKey:
    return ("deadline", *op)


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
    facts.AdvertisementOver: Durable._advertisement_over,
    facts.NeighbourMet: Durable._neighbour_met,
    facts.NeighbourLost: Durable._neighbour_lost,
    facts.NeighboursChanged: Durable._neighbours_changed,
}
"""Every fact and what it does."""
