"""The durable half of transactions: applies facts to the machine, and carries out its effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import starmap
from typing import Any, Protocol, get_args

from msgspec import Struct

from motet.model import Hop, OpId
from motet.protocol.changes import (
    BlockMade,
    Changes,
    NeighbourDismissed,
    NeighbourForgotten,
    NeighbourJoined,
    PubendMoved,
    PublisherGone,
    Sent,
    SessionInterrupted,
    SubscriptionEnding,
    SubscriptionSettled,
    TransactionMoved,
)
from motet.protocol.contract import SetTimer
from motet.protocol.image import chunked
from motet.protocol.room import Bus, DurableRoom, Handler
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import Switched, Unsubscribe
from motet.protocol.routing.state import Entry
from motet.protocol.session.durable import RequestHandler, Terms
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    CommitRequest,
    Decided,
    Done,
    Failed,
    Invited,
    Over,
    Request,
    TxRequest,
)
from motet.protocol.transactions.courier import TxEffects
from motet.protocol.transactions.facts import (
    CutLogged,
    CutMade,
    SubscriptionOver,
    SwitchLearnt,
    TransactionOverdue,
)
from motet.protocol.transactions.machine import Transactions
from motet.protocol.transactions.messages import Engage, TxMessage
from motet.protocol.transactions.state import (
    GhostImage,
    OutcomesImage,
    TransactionsImage,
    VersionsImage,
)


class SessionAnswers(Protocol):
    """How sessions answer requests and notify clients."""

    requests: dict[type, RequestHandler]

    def answer(self, op: OpId, reply: Done | Failed) -> None: ...
    def tell(self, client: str, told: Invited | Decided | Over) -> None: ...
    def name_made(self, op: OpId, kind: str, name: str) -> None: ...
    def obey(self, op: OpId, request: Request) -> None: ...


class DurableTransactions(DurableRoom):
    def __init__(
        self,
        bus: Bus,
        machine: Transactions,
        routing: Routing,
        sessions: Sessions,
        answers: SessionAnswers,
    ) -> None:
        self._bus = bus
        self._machine = machine
        self._routing = routing
        self._sessions = sessions
        self._answers = answers
        self.unsettled = machine.out.wanted
        answers.requests |= dict.fromkeys(
            (kind for kind in get_args(TxRequest) if kind is not CommitRequest), self._request
        )

    def facts(self) -> Mapping[type, Handler]:
        return {
            SwitchLearnt: self._switch_learnt,
            SubscriptionOver: self._subscription_over,
            TransactionOverdue: lambda fact: self._machine.overdue(fact.tx),
            CutMade: self._cut_made,
            CutLogged: lambda fact: self._machine.cutter.logged(fact.tx),
        }

    def parts(self) -> Mapping[type[Struct], Iterable[Any]]:
        machine, marks = self._machine, self._machine.versions.marks
        ghosts = tuple(
            (GhostImage(entry.id, entry.filter, entry.source, entry.version), gone)
            for entry, gone in marks.ghosts
        )
        return {
            VersionsImage: [VersionsImage(marks.version, marks.watched, ghosts)],
            TransactionsImage: [TransactionsImage(machine.image())],
            OutcomesImage: chunked(OutcomesImage, machine.outcomes.items()),
        }

    def takers(self) -> Mapping[type[Struct], Handler]:
        return {
            VersionsImage: self._take_versions,
            TransactionsImage: lambda part: self._machine.restore(part.state),
            OutcomesImage: self._take_outcomes,
        }

    def _take_outcomes(self, part: OutcomesImage) -> None:
        for tx, outcome in part.rows:
            self._machine.remember(tx, outcome)

    def _take_versions(self, part: VersionsImage) -> None:
        marks = self._machine.versions.marks
        marks.version, marks.watched = part.version, part.watched
        marks.ghosts = [
            (Entry(g.id, g.filter, g.source, 0, version=g.version), gone) for g, gone in part.ghosts
        ]

    def recover(self, now: float) -> list[SetTimer]:
        return self._machine.recover(now)

    def messages(self) -> Mapping[type, Callable[[Any, Hop], None]]:
        return dict.fromkeys(get_args(TxMessage), self._receive)

    def reactions(self) -> Mapping[type, Handler]:
        machine = self._machine
        return {
            PubendMoved: self._moved,
            NeighbourForgotten: lambda change: machine.forget(change.neighbour),
            NeighbourJoined: lambda change: machine.join(change.neighbour),
            NeighbourDismissed: lambda change: machine.dismiss(change.neighbour),
            SessionInterrupted: lambda change: machine.left(change.client, change.epoch),
            PublisherGone: lambda change: machine.cutter.forget_published(change.client),
        }

    def _receive(self, message: TxMessage, source: Hop) -> None:
        self._machine.receive(message, source)
        self.settle()

    def _moved(self, moved: PubendMoved) -> None:
        """Retry requests that wait for a route to the root only at the end of a fact: a plan must
        find the clients that it names."""
        del moved
        reroute = self._machine.root_requests.reroute
        if reroute not in self._bus.at_end:
            self._bus.at_end.append(reroute)

    def _request(self, op: OpId, request: TxRequest, terms: Terms) -> None:
        self._machine.request(op, request, patient=terms.patient)

    # ── facts ────────────────────────────────────────────────────────────────────────────

    def _switch_learnt(self, fact: SwitchLearnt) -> None:
        self._routing.starts.learn_switch(Switched(fact.op, fact.pubend, fact.tick, fact.ended))

    def _subscription_over(self, fact: SubscriptionOver) -> None:
        op = fact.op
        session = self._sessions.current(op.client, op.epoch)
        if session is not None and op in self._routing.state.subscriptions:
            self._sessions.forget(session, op.sequence)
            self._bus.route(Unsubscribe(op), Hop.client(op.client))
            self._answers.tell(op.client, Over(op.sequence))

    def _cut_made(self, fact: CutMade) -> None:
        self._routing.starts.advance(fact.tick)
        self._machine.cutter.cut(fact.tx, fact.tick)
        self.settle()
        self._machine.decisions.cut_told(fact.tx)

    # ── effects of the machine ───────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Carry out effects until none are left, each before its consequences in the tables."""
        while self._machine.out.wanted:
            self._carry(self._machine.out.wanted.pop())

    def _carry(self, effects: TxEffects) -> None:
        if effects.messages:
            self._bus.carry(Changes(starmap(Sent, effects.messages)))
        for op, kind, name in effects.made:
            self._answers.name_made(op, kind, name)
        for change, source in effects.routes:
            self._bus.route(change, source)
        if effects.doubts:
            self._bus.carry(self._routing.reassure())
        for tx, client in effects.followed:
            self._machine.plans.followed(tx, client)
        for letter in effects.refused:
            self._machine.plans.refused(letter)
        for op, reply in effects.answers:
            self._answers.answer(op, reply)
        for client, told in effects.tell:
            self._answers.tell(client, told)
        changes = Changes(effects.timers)
        if effects.blocks:
            changes += map(BlockMade, effects.blocks)
        if effects.ending:
            changes += map(SubscriptionEnding, effects.ending)
        if effects.moved_on:
            changes.append(TransactionMoved())
        if effects.settled:
            for op in effects.settled:
                self._routing.starts.settle(op)
            changes += map(SubscriptionSettled, effects.settled)
        if changes:
            self._bus.carry(changes)
        for held in effects.released:
            if isinstance(held.request, Engage):
                self._machine.plans.engage(held.request)
            else:
                self._answers.obey(held.op, held.request)
