"""Bugs in epochs, leases, requests and answers, and in durable sessions."""

from __future__ import annotations

from typing import Any

from motet.broker.core.durable import Durable
from motet.client.session.machine import ClientMachine
from motet.client.session.streams import Window
from motet.model import Hop
from motet.model.ids import is_newer
from motet.protocol.changes import SessionFenced
from motet.protocol.delivery.subend import Position
from motet.protocol.link.soft import Inquiries
from motet.protocol.routing.durable import DurableRouting
from motet.protocol.routing.messages import ClientGone
from motet.protocol.session.durable import DurableSessions
from motet.protocol.session.facts import DeadlinePassed, SessionEnded, SessionOpened
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import Done, Failed
from motet.protocol.session.soft import SoftSessions
from motet.protocol.session.state import Session
from motet.testing.bugs.catalogue import Patch, around, mutation, nothing, replaces


@mutation("crash", "sessions", "routing", "completeness", "invariants")
@around(Sessions, "__init__")
def epochs_are_used_again(original: Any, self: Any, broker: str, incarnation: int) -> None:
    """A broker that lost its state counts epochs from 1 again."""
    del incarnation
    original(self, broker, 0)


@mutation("clients", "routing", "invariants")
@around(DurableSessions, "_opened")
def fencing_leaves_the_old_session(original: Any, self: Any, fact: SessionOpened) -> None:
    """A new session of a client replaces the old one, but the old one's entries stay."""
    session = self._sessions.get(fact.client)
    if session is not None and session.epoch != fact.resume:
        self._sessions.end(session)
    original(self, fact)


@mutation("clients", "sessions", "invariants")
@replaces(DurableSessions, "_heard_of")
def a_client_elsewhere_is_not_fenced(self: Any, heard: Any) -> None:
    """A broker that hears of a newer session of its client elsewhere keeps its own."""
    self._sessions.heard(heard.epoch)


@mutation("clients", "sessions", "invariants")
@replaces(DurableSessions, "_heard_of")
def the_older_epoch_wins(self: Any, heard: Any) -> None:
    """Of two sessions of a client at two brokers, the newer one ends."""
    client, epoch = heard.client, heard.epoch
    self._sessions.heard(epoch)
    session = self._sessions.get(client)
    if session is not None and not is_newer(epoch, than=session.epoch):
        self._end(session)
        self._bus.emit(SessionFenced(client, epoch))


@mutation("clients", "sessions", "invariants")
def epochs_do_not_look_around() -> list[Patch]:
    """A broker issues epochs without regard to those that other brokers have issued."""
    return [Patch(Sessions, "heard", lambda *_: None)]


@mutation("clients", "sessions")
def an_old_client_steals_its_session_back() -> list[Patch]:
    """A client that was fenced while it was away takes over again when it reconnects."""
    return [Patch(DurableSessions, "newer_than", lambda *_: None)]


@mutation("clients", "routing", "settles")
def leases_never_run_out() -> list[Patch]:
    """The advertisements and subscriptions of a client that never returns stay in force."""
    return [Patch(SoftSessions, "_lease", nothing)]


@mutation("mixed", "routing")
@around(Durable, "recover")
def recovery_forgets_leases(original: Any, self: Any, now: float) -> Any:
    """A restarted broker does not resume the leases of absent clients."""
    return [timer for timer in original(self, now) if timer.key[0] != "lease"]


@mutation("calm", "routing", "invariants")
@replaces(DurableSessions, "_session_ended")
def session_end_leaves_entries(self: Any, fact: SessionEnded) -> None:
    """An ended session is forgotten, but its entries stay in the routing tables."""
    session = self._sessions.current(fact.client, fact.epoch)
    if session is not None:
        self._bus.route(ClientGone(fact.client, fact.epoch), Hop.client(fact.client))
        self._sessions.end(session)


@mutation("clients", "invariants", "routing")
@replaces(Sessions, "is_new")
def requests_take_effect_twice(self: Any, session: Any, request: Any) -> bool:
    """A request that is retransmitted after a reconnect is carried out again."""
    del self, session, request
    return True


@mutation("clients", "answers", "settles")
def lost_answers_stay_lost() -> list[Patch]:
    """A request that is retransmitted because its answer was lost is not answered."""
    return [Patch(Sessions, "answer_again", lambda *_: None)]


@mutation(
    "mixed",
    "answers",
    "routing",
    "effective",
    timeouts_s=(5.0, 1.0, 0.2, 0.02),
    menu={"drop_client": 8.0, "pace_s": 0.25},
)
@replaces(Sessions, "answer_again")
def failures_are_answered_done_later(
    self: Any, session: Any, sequence: int
) -> Done | Failed | None:
    """A retransmitted request is answered as done, even if it had failed."""
    del self
    return None if sequence in session.unanswered else Done(sequence)


@mutation("lossy", "routing")
@replaces(DurableRouting, "_deadline_passed")
def timeout_leaves_the_operation(self: Any, fact: DeadlinePassed) -> None:
    """An operation that was not effective in time fails, but stays in force."""
    op = fact.op
    if op in self._answers.deadlines and op in self._routing.state.waits:
        self._routing.abandon(op)
        self._answers.answer(op, Failed(op.sequence, "NotEffective", "", fact.missing))


@mutation("lossy", "answers")
def timeout_blames_nobody() -> list[Patch]:
    """The error of a timeout names no broker."""
    return [Patch(Inquiries, "verdict", lambda *_: ())]


@mutation("lossy", "answers", timeouts_s=(2.0, 1.0))
@replaces(Inquiries, "verdict")
def timeout_blames_an_innocent(self: Any, op: Any) -> tuple[str, ...]:
    """The error of a timeout always names the first neighbour."""
    del op
    return tuple(self._links)[:1]


LASTING: dict[str, Any] = {"durable": 0.6, "keep_s": 60.0}
RELAYS: dict[str, Any] = {
    "durable": 1.0,
    "sync": 4.0,
    "clients": 5,
    "chaos_s": 5.0,
    "menu": {"twin_client": 6.0, "pace_s": 0.25},
}
"""One process takes over from another while the log is slow."""


@mutation("delivery", "duplicates", first=15, **LASTING)
@around(ClientMachine, "__init__")
def own_cursors_are_ignored(original: Any, self: Any, client: str, **options: Any) -> None:
    """A process does not send its broker the cursors that its application has stored."""
    given: dict[str, int] | None = None if options.get("cursors") is None else {}
    original(self, client, **{**options, "cursors": given})


@mutation("delivery", "sessions", **LASTING)
def anybody_ends_a_durable_session() -> list[Patch]:
    """Any process that connects under the id of a durable client gets a new session."""
    return [Patch(SoftSessions, "_objection_to", nothing)]


@mutation("delivery", "sessions", "duplicates", "answers", first=80, **LASTING)
@around(DurableSessions, "newer_than")
def a_replaced_process_takes_its_session_back(
    original: Any, self: Any, client: str, resume: str | None, instance: str
) -> str | None:
    """A process that lost its connection before it was replaced may resume the session."""
    newer = original(self, client, resume, instance)
    return None if newer == resume else newer


@mutation("delivery", "sessions", **LASTING)
@replaces(Session, "expires_at")
def a_durable_session_ends_with_its_lease(self: Any, now: float, lease_s: float) -> float:
    """A durable session ends with its lease, however long it is to be kept."""
    del self
    return now + lease_s / 10


@mutation("delivery", "soundness", "invariants", "answers", keep_s=60.0, **RELAYS)
@replaces(Window, "take_over")
def publications_are_counted_from_what_was_answered(self: Any, frame: Any) -> None:
    """A new process reuses the numbers of publications that are on their way into the log."""
    self._base = self.settled - frame.published
    self.answered = frame.published


@mutation("delivery", "exactly-once", since=0.5, durable=0.0)
def the_past_is_asked_of_anybody() -> list[Patch]:
    """The past of a subscription is taken from a broker that had filtered it for other ones."""
    return [Patch(Position, "reach", nothing)]
