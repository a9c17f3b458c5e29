"""Durable clients in the simulator: what outlives their processes, and what each one finds.

An application is done with events a little after they came. Some write down how far they are
together with what they do, and hand it to their next process; for them nothing may happen twice.
The others rely on the broker: nothing may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING

from motet.protocol.session.messages import Welcome
from motet.protocol.session.state import GRANTED
from motet.testing.history import ADDITIONS, DONE, UNHEARD, Delivery, Event, Operation, Session

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient

READY_S = 0.3
"""How long an application takes at most from its start to its first look at events."""
ENDLESS = 1 << 60


@dataclass(slots=True)
class Application:
    """One durable client, whatever process it runs in."""

    name: str
    home: str
    own: bool
    """It writes its own cursors down, with its effects."""
    keep_s: float
    random: Random
    cursors: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    """As its processes know them, by epoch."""
    latest: Process | None = None
    """The one that began last: what others write down is refused."""


class Process:
    """What one process of a durable client does beyond what every client does."""

    def __init__(self, client: SimulatedClient, application: Application) -> None:
        self.application = application
        self._before = application.latest
        application.latest = self
        self._client = client
        self._history = client.cluster.history
        self._history.durable[client.instance] = application.own
        self._waiting: dict[str, list[Delivery]] = {}
        self._welcome: Welcome | None = None
        self._left: dict[int, Event] = {}
        """Publications of earlier processes whose fate nobody has heard of."""

    def refused(self) -> None:
        """No broker let it in: another process may still be at work."""
        if self.application.latest is self:
            self.application.latest = self._before

    def begin(self) -> None:
        """It will look at events soon."""
        delay_s = self.application.random.random() * READY_S
        self._client.cluster.agenda.after(delay_s, self._client.ready)

    # ── effects ──────────────────────────────────────────────────────────────────────────

    def came(self, delivery: Delivery) -> None:
        self._waiting.setdefault(delivery.pubend, []).append(delivery)

    def processed(self, pubend: str, upto: int) -> bool:
        """What is done with and how far that is are one transaction of the application; false if
        it was refused, because a newer process has begun: then this one had better end."""
        if self.application.own and self.application.latest is not self:
            return False
        waiting = self._waiting.get(pubend, [])
        self._history.effects += [each for each in waiting if each.tick <= upto]
        self._waiting[pubend] = [each for each in waiting if each.tick > upto]
        cursors = self.application.cursors
        cursors[pubend] = max(upto, cursors.get(pubend, 0))
        return True

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def opened(self, session: Session) -> None:
        """There was none to go on with."""
        self.application.sessions[session.epoch] = session
        self.application.home = self._client.home

    def adopt(self, frame: Welcome) -> Session:
        """Go on with what an earlier process has left; it must be what that one knew of."""
        session = self.application.sessions.get(frame.epoch)
        if session is None:  # its welcome was lost
            if frame.requests or frame.standing or frame.taken:
                self._odd(f"{frame.epoch} has requests, but nobody was ever in it")
            client, now = self._client, self._client.cluster.agenda.now
            session = Session(client.name, client.instance, frame.epoch, frame.broker, now)
            self.opened(session)
            self._history.sessions.append(session)
        certain = session.ended_at == inf
        session.ended_at = inf  # if it had ended, its broker has died before that was durable
        self._reconcile(session, frame, certain)
        known = session.numbered.items()
        self._left = {n: e for n, e in known if not e.fate and e.instance != self._client.instance}
        self._welcome = frame
        return session

    def _reconcile(self, session: Session, frame: Welcome, certain: bool) -> None:
        """What was under way when the last process ended has either happened or not."""
        for sequence in [each for each in session.asks if each > frame.requests]:
            del session.asks[sequence]
        standing = {each.sequence for each in frame.standing}
        for sequence, operation in list(session.operations.items()):
            if frame.requests < sequence < GRANTED:  # the next request will have this number
                session.forgotten.append(session.operations.pop(sequence))
            if operation.kind not in ADDITIONS:
                continue
            stood = certain and operation.answer == DONE and operation.ended_at == inf
            stood = stood and operation.deal is None  # else nobody knows how that ended
            if stood and sequence not in standing:
                self._odd(f"{operation} does not stand any more")
            operation.gone = operation.dealt or sequence not in standing
            if not operation.gone:
                operation.ended_at, operation.ended_position = self._marked_at(operation), ENDLESS
            else:
                operation.ended_at = min(operation.ended_at, operation.requested_at)
                operation.answer = operation.answer or UNHEARD

    def _marked_at(self, operation: Operation) -> float:
        """When a transaction that may still commit was to take it back."""
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
        """The broker has said what became of everything that was published in the session."""
        frame, machine = self._welcome, self._client.machine
        if frame is None or machine.state != "open" or not machine.certain:
            return
        refused = {each.sequence for each in frame.refused}
        for number, event in self._left.items():
            if number > machine.published:
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

    def detached(self, session: Session, at: float) -> Session:
        """Another process has taken the session over: what this one still does counts nowhere,
        not even if it takes back what the session has."""
        operations = {number: replace(each) for number, each in session.operations.items()}
        asks = dict(session.asks)
        return replace(session, ended_at=at, operations=operations, asks=asks, numbered={})

    def _odd(self, detail: str) -> None:
        self._history.odd("sessions", f"{self._client.title}: {detail}")
