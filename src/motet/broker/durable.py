"""The durable half of a broker: what a crash must not take, changed only by facts.

`apply` reads nothing but this state and the fact. Replaying the same facts gives the same state
and the same outputs, numbered the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from motet.broker import facts
from motet.broker.config import BrokerConfig
from motet.broker.image import Part, parts_of, take_in
from motet.broker.records import encode
from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.model.epochs import is_newer
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
)
from motet.protocol.routing.obligations import Effects
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Done,
    Failed,
    Request,
    SubscribeRequest,
    UnadvertiseRequest,
)
from motet.protocol.session.state import Session

LONGEST_TIMEOUT_S = 3600.0


class Consequences:
    """What soft code must now carry out: talk on links, answer clients, set timers."""

    __slots__ = ("answers", "fenced", "neighbours", "timers")

    def __init__(self) -> None:
        self.neighbours: dict[str, None] = {}
        self.answers: list[tuple[str, Done | Failed]] = []
        self.timers: list[SetTimer | CancelTimer] = []
        self.fenced: list[tuple[str, str]] = []
        """Clients whose session here has ended, each with the newer epoch elsewhere."""


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
        """Timers after a replay: leases start again in full, since nobody could renew them."""
        leases = [
            SetTimer(("lease", s.client, s.epoch), now + self.config.lease_s) for s in self.sessions
        ]
        deadlines = [SetTimer(deadline_key(op), at) for op, (at, _) in self.deadlines.items()]
        return leases + deadlines

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def _session_opened(self, fact: facts.SessionOpened) -> None:
        session = self.sessions.get(fact.client)
        if session is not None and session.epoch == fact.resume:
            self._cancel(("lease", session.client, session.epoch))
            session.instance = fact.instance
            return
        if session is not None:
            self._end(session)
        session = self.sessions.open(fact.client, fact.instance, fact.resume)
        self._route(ClientHere(session.client, session.epoch), Hop.client(session.client))

    def newer_than(self, client: str, resume: str | None, instance: str) -> str | None:
        """The session for which a client that comes back must step aside, if there is one."""
        newest = self.routing.state.clients.newest(client)
        if resume is None or newest is None or not is_newer(newest, than=resume):
            return None
        session = self.sessions.current(client, newest)
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
        if self.sessions.current(fact.client, fact.epoch) is not None:
            at = self.now + self.config.lease_s
            self._then.timers.append(SetTimer(("lease", fact.client, fact.epoch), at))

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

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def _request_received(self, fact: facts.RequestReceived) -> None:
        session = self.sessions.current(fact.client, fact.epoch)
        request = fact.request
        if session is None or not self.sessions.is_new(session, request):
            raise InvariantError("a request was journaled that must not take effect")
        self.sessions.accept(session, request)
        op = OpId(session.client, session.epoch, request.sequence)
        source = Hop.client(session.client)
        message = self._as_message(op, request)
        if isinstance(message, Failed):
            self._answer(op, message)
            return
        self._route(message, source)
        if not request.wait:
            self._answer(op, Done(request.sequence))
        elif request.sequence in session.unanswered:  # else it was effective at once
            timeout_s = min(max(request.timeout_s, 0.0), LONGEST_TIMEOUT_S)
            at = self.now + timeout_s
            self.deadlines[op] = (at, timeout_s)
            self._then.timers.append(SetTimer(deadline_key(op), at))

    def _as_message(self, op: OpId, request: Request) -> RoutingMessage | Failed:
        if isinstance(request, AdvertiseRequest):
            return Advertise(op, request.filter, echo=request.wait)
        if isinstance(request, SubscribeRequest):
            return Subscribe(op, request.filter, echo=request.wait)
        state = self.routing.state
        target = OpId(op.client, op.epoch, request.target)
        waiting = op if request.wait else None
        if isinstance(request, UnadvertiseRequest):
            what, table = "advertisement", state.advertisements
            message: RoutingMessage = Unadvertise(target, waiting)
        else:
            what, table = "subscription", state.subscriptions
            message = Unsubscribe(target, waiting)
        if target not in table:
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
        self._answer(op, Failed(op.sequence, "NotEffective", text, fact.missing))

    # ── links ────────────────────────────────────────────────────────────────────────────

    def _control_received(self, fact: facts.ControlReceived) -> None:
        source = Hop.broker(fact.neighbour)
        for message in self.ledgers[fact.neighbour].take(fact.control):
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

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def _route(self, message: RoutingMessage, source: Hop) -> None:
        self._carry(self.routing.apply(message, source))

    def _carry(self, effects: Effects) -> None:
        for neighbour, message in effects.messages:
            self.ledgers[neighbour].enqueue(message)
            self._then.neighbours[neighbour] = None
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
    facts.NeighbourMet: Durable._neighbour_met,
    facts.NeighbourLost: Durable._neighbour_lost,
    facts.NeighboursChanged: Durable._neighbours_changed,
}
"""Every fact and what it does."""
