"""Bugs in epochs, leases, requests and their answers."""

from __future__ import annotations

from typing import Any

from motet.broker import durable, facts
from motet.broker.core import BrokerCore
from motet.broker.durable import Durable
from motet.broker.inquiry import Inquiries
from motet.model import Hop
from motet.model.epochs import is_newer
from motet.protocol.routing.messages import ClientGone
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import Done, Failed
from motet.testing.bugs.catalogue import mutation
from motet.testing.patches import Patch


@mutation("crash", "sessions", "routing", "completeness", "invariants")
def epochs_are_used_again() -> list[Patch]:
    """A broker that lost its state counts epochs from 1 again."""
    original = Sessions.__init__

    def from_one(self: Any, broker: str, incarnation: int) -> None:
        del incarnation
        original(self, broker, 0)

    return [Patch(Sessions, "__init__", from_one)]


@mutation("clients", "routing", "invariants")
def fencing_leaves_the_old_session() -> list[Patch]:
    """A new session of the same client replaces the old one, whose entries stay."""
    original = Durable._session_opened

    def polite(self: Any, fact: facts.SessionOpened) -> None:
        session = self.sessions.get(fact.client)
        if session is not None and session.epoch != fact.resume:
            self.sessions.end(session)
        original(self, fact)

    return [Patch(durable.MOVES, facts.SessionOpened, polite)]


@mutation("clients", "sessions", "invariants")
def a_client_elsewhere_is_not_fenced() -> list[Patch]:
    """A broker that hears of a newer session elsewhere keeps its own."""

    def polite(self: Any, client: str, epoch: str) -> None:
        del client
        self.sessions.heard(epoch)

    return [Patch(Durable, "_heard_of", polite)]


@mutation("clients", "sessions", "invariants")
def the_older_epoch_wins() -> list[Patch]:
    """Of two sessions at two brokers the newer one ends."""

    def conservative(self: Any, client: str, epoch: str) -> None:
        self.sessions.heard(epoch)
        session = self.sessions.get(client)
        if session is not None and not is_newer(epoch, than=session.epoch):
            self._end(session)
            self._then.fenced.append((client, epoch))

    return [Patch(Durable, "_heard_of", conservative)]


@mutation("clients", "sessions", "invariants")
def epochs_do_not_look_around() -> list[Patch]:
    """A broker counts its epochs without regard to those that others have issued."""
    return [Patch(Sessions, "heard", lambda *_: None)]


@mutation("clients", "sessions")
def an_old_client_steals_its_session_back() -> list[Patch]:
    """A client that was fenced while it was away takes over again when it comes back."""
    return [Patch(Durable, "newer_than", lambda *_: None)]


@mutation("clients", "routing", "settles")
def leases_never_run_out() -> list[Patch]:
    """A client that never comes back keeps what it had in force."""
    original = BrokerCore._timer_fired

    def patient(self: Any, key: Any, out: Any, now: float) -> None:
        if key[0] != "lease":
            original(self, key, out, now)

    return [Patch(BrokerCore, "_timer_fired", patient)]


@mutation("mixed", "routing")
def recovery_forgets_leases() -> list[Patch]:
    """After a restart nobody counts how long a client has been away."""
    original = Durable.recover

    def forgetful(self: Any, now: float) -> Any:
        return [timer for timer in original(self, now) if timer.key[0] != "lease"]

    return [Patch(Durable, "recover", forgetful)]


@mutation("calm", "routing", "invariants")
def session_end_leaves_entries() -> list[Patch]:
    """A session that ends is forgotten, but what it had in force stays in the tables."""

    def shallow(self: Any, fact: facts.SessionEnded) -> None:
        session = self.sessions.current(fact.client, fact.epoch)
        if session is not None:
            self._carry(
                self.routing.apply(ClientGone(fact.client, fact.epoch), Hop.client(fact.client))
            )
            self.sessions.end(session)

    return [Patch(durable.MOVES, facts.SessionEnded, shallow)]


@mutation("clients", "invariants", "routing")
def requests_take_effect_twice() -> list[Patch]:
    """A request that is sent again after a reconnect is carried out again."""

    def always(self: Any, session: Any, request: Any) -> bool:
        del self, session, request
        return True

    return [Patch(Sessions, "is_new", always)]


@mutation("clients", "answers", "settles")
def lost_answers_stay_lost() -> list[Patch]:
    """A request that is sent again, because the answer was lost, is not answered again."""
    return [Patch(Sessions, "answer_again", lambda *_: None)]


@mutation(
    "mixed",
    "answers",
    "routing",
    "effective",
    timeouts_s=(5.0, 1.0, 0.2, 0.02),
    menu={"drop_client": 8.0, "pace_s": 0.25},
)
def failures_are_answered_done_later() -> list[Patch]:
    """Whoever asks again hears that all is well, whatever was said before."""

    def flattering(self: Any, session: Any, sequence: int) -> Done | Failed | None:
        del self
        return None if sequence in session.unanswered else Done(sequence)

    return [Patch(Sessions, "answer_again", flattering)]


@mutation("lossy", "routing")
def timeout_leaves_the_operation() -> list[Patch]:
    """An operation that was not effective in time fails, but stays in force."""

    def half(self: Any, fact: facts.DeadlinePassed) -> None:
        op = fact.op
        if op in self.deadlines and op in self.routing.state.waits:
            self.routing.abandon(op)
            self._answer(op, Failed(op.sequence, "NotEffective", "", fact.missing))

    return [Patch(durable.MOVES, facts.DeadlinePassed, half)]


@mutation("lossy", "answers")
def timeout_blames_nobody() -> list[Patch]:
    """The error of a timeout names no broker."""
    return [Patch(Inquiries, "verdict", lambda *_: ())]


@mutation("lossy", "answers", timeouts_s=(2.0, 1.0))
def timeout_blames_an_innocent() -> list[Patch]:
    """The error of a timeout names the first neighbour, whatever happened."""

    def first(self: Any, op: Any) -> tuple[str, ...]:
        del op
        return tuple(self._links)[:1]

    return [Patch(Inquiries, "verdict", first)]
