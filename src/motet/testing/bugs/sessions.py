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
from motet.testing.bugs.catalogue import Patch, mutation, nothing


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
    """A new session of a client replaces the old one, but the old one's entries stay."""
    original = DurableSessions._opened

    def polite(self: Any, fact: SessionOpened) -> None:
        session = self._sessions.get(fact.client)
        if session is not None and session.epoch != fact.resume:
            self._sessions.end(session)
        original(self, fact)

    return [Patch(DurableSessions, "_opened", polite)]


@mutation("clients", "sessions", "invariants")
def a_client_elsewhere_is_not_fenced() -> list[Patch]:
    """A broker that hears of a newer session of its client elsewhere keeps its own."""

    def polite(self: Any, heard: Any) -> None:
        self._sessions.heard(heard.epoch)

    return [Patch(DurableSessions, "_heard_of", polite)]


@mutation("clients", "sessions", "invariants")
def the_older_epoch_wins() -> list[Patch]:
    """Of two sessions of a client at two brokers, the newer one ends."""

    def conservative(self: Any, heard: Any) -> None:
        client, epoch = heard.client, heard.epoch
        self._sessions.heard(epoch)
        session = self._sessions.get(client)
        if session is not None and not is_newer(epoch, than=session.epoch):
            self._end(session)
            self._bus.emit(SessionFenced(client, epoch))

    return [Patch(DurableSessions, "_heard_of", conservative)]


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
def recovery_forgets_leases() -> list[Patch]:
    """A restarted broker does not resume the leases of absent clients."""
    original = Durable.recover

    def forgetful(self: Any, now: float) -> Any:
        return [timer for timer in original(self, now) if timer.key[0] != "lease"]

    return [Patch(Durable, "recover", forgetful)]


@mutation("calm", "routing", "invariants")
def session_end_leaves_entries() -> list[Patch]:
    """An ended session is forgotten, but its entries stay in the routing tables."""

    def shallow(self: Any, fact: SessionEnded) -> None:
        session = self._sessions.current(fact.client, fact.epoch)
        if session is not None:
            self._bus.route(ClientGone(fact.client, fact.epoch), Hop.client(fact.client))
            self._sessions.end(session)

    return [Patch(DurableSessions, "_session_ended", shallow)]


@mutation("clients", "invariants", "routing")
def requests_take_effect_twice() -> list[Patch]:
    """A request that is retransmitted after a reconnect is carried out again."""

    def always(self: Any, session: Any, request: Any) -> bool:
        del self, session, request
        return True

    return [Patch(Sessions, "is_new", always)]


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
def failures_are_answered_done_later() -> list[Patch]:
    """A retransmitted request is answered as done, even if it had failed."""

    def flattering(self: Any, session: Any, sequence: int) -> Done | Failed | None:
        del self
        return None if sequence in session.unanswered else Done(sequence)

    return [Patch(Sessions, "answer_again", flattering)]


@mutation("lossy", "routing")
def timeout_leaves_the_operation() -> list[Patch]:
    """An operation that was not effective in time fails, but stays in force."""

    def half(self: Any, fact: DeadlinePassed) -> None:
        op = fact.op
        if op in self._answers.deadlines and op in self._routing.state.waits:
            self._routing.abandon(op)
            self._answers.answer(op, Failed(op.sequence, "NotEffective", "", fact.missing))

    return [Patch(DurableRouting, "_deadline_passed", half)]


@mutation("lossy", "answers")
def timeout_blames_nobody() -> list[Patch]:
    """The error of a timeout names no broker."""
    return [Patch(Inquiries, "verdict", lambda *_: ())]


@mutation("lossy", "answers", timeouts_s=(2.0, 1.0))
def timeout_blames_an_innocent() -> list[Patch]:
    """The error of a timeout always names the first neighbour."""

    def first(self: Any, op: Any) -> tuple[str, ...]:
        del op
        return tuple(self._links)[:1]

    return [Patch(Inquiries, "verdict", first)]


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
def own_cursors_are_ignored() -> list[Patch]:
    """A process does not send its broker the cursors that its application has stored."""
    original = ClientMachine.__init__

    def forgetful(self: Any, client: str, **options: Any) -> None:
        given: dict[str, int] | None = None if options.get("cursors") is None else {}
        original(self, client, **{**options, "cursors": given})

    return [Patch(ClientMachine, "__init__", forgetful)]


@mutation("delivery", "sessions", **LASTING)
def anybody_ends_a_durable_session() -> list[Patch]:
    """Any process that connects under the id of a durable client gets a new session."""
    return [Patch(SoftSessions, "_objection_to", nothing)]


@mutation("delivery", "sessions", "duplicates", "answers", first=15, **LASTING)
def a_replaced_process_takes_its_session_back() -> list[Patch]:
    """A process that lost its connection before it was replaced may resume the session."""
    original = DurableSessions.newer_than

    def lenient(self: Any, client: str, resume: str | None, instance: str) -> str | None:
        newer = original(self, client, resume, instance)
        return None if newer == resume else newer

    return [Patch(DurableSessions, "newer_than", lenient)]


@mutation("delivery", "sessions", **LASTING)
def a_durable_session_ends_with_its_lease() -> list[Patch]:
    """A durable session ends with its lease, however long it is to be kept."""

    def soon(self: Any, now: float, lease_s: float) -> float:
        del self
        return now + lease_s / 10

    return [Patch(Session, "expires_at", soon)]


@mutation("delivery", "soundness", "invariants", "answers", keep_s=60.0, **RELAYS)
def publications_are_counted_from_what_was_answered() -> list[Patch]:
    """A new process reuses the numbers of publications that are on their way into the log."""

    def hasty(self: Any, frame: Any) -> None:
        self._base = self.settled - frame.published
        self.answered = frame.published

    return [Patch(Window, "take_over", hasty)]


@mutation("delivery", "exactly-once", since=0.5, durable=0.0)
def the_past_is_asked_of_anybody() -> list[Patch]:
    """The past of a subscription is taken from a broker that had filtered it for other ones."""
    return [Patch(Position, "reach", nothing)]
