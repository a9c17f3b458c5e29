"""Records the actions of simulated clients, and those of their brokers for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from motet.audit.records import (
    ABORTED,
    COMMITTED,
    DONE,
    Deal,
    Deed,
    DeliveryRecord,
    EventRecord,
    LossRecord,
    OperationRecord,
    SessionRecord,
    doubt,
    release,
)
from motet.broker.core.durable import Durable
from motet.client.history import Recorder
from motet.client.session.state import Missed
from motet.model import Hop, OpId
from motet.protocol.contract import Fact
from motet.protocol.frames import Frame
from motet.protocol.link.facts import ControlReceived
from motet.protocol.link.messages import Control, ControlMessage
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.messages import MoveCommit
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import Rehome, Unadvertise, Unsubscribe
from motet.protocol.session.durable import NOWHERE
from motet.protocol.session.facts import RequestReceived
from motet.protocol.session.messages import Decided, ExecuteRequest, Welcome
from motet.protocol.transactions.messages import Engage, Letter, op_of
from motet.testing.history import History

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient

MOST_STEPS = 1000


class SimulatedRecorder(Recorder):
    """Records into the history of the run. Its answers do not count as effective: the checker
    inspects the routing tables for that."""

    is_claim = False

    def __init__(self, client: SimulatedClient) -> None:
        super().__init__(client.machine, client.instance)
        self.title = client.title
        self._client = client
        self._cluster = client.cluster
        self._history = client.cluster.history

    def now(self) -> float:
        return self._cluster.agenda.now

    def odd(self, guarantee: str, detail: str) -> None:
        self._history.odd(guarantee, detail)

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def end_session(self, at: float) -> None:
        self._client.detach()
        super().end_session(at)

    def _welcomed(self, frame: Welcome) -> None:
        """Called before anything of the new session is recorded."""
        client, history, name = self._client, self._history, self._client.name
        process, epochs = client.process, self._cluster.epochs
        if not frame.resumed:
            if frame.epoch in epochs:
                if process is not None and client.outdone_at < inf:
                    return  # the next process of a durable session has it already
                history.odd("sessions", f"epoch {frame.epoch} was issued twice, to {name}")
            epochs.add(frame.epoch)
        before = self.session
        if frame.resumed and before is None and process is not None:
            epochs.add(frame.epoch)
            self.session = process.overtaken(frame) or process.adopt(frame)
            self._adopt_granted()
        elif before is None or before.epoch != frame.epoch:
            if frame.resumed:
                history.odd("sessions", f"{name} resumed {frame.epoch}, not its own")
            self.end_session(self.now())
            self.operations.clear()
            place = (frame.epoch, frame.broker, self.now())
            self.session = SessionRecord(name, client.instance, *place)
            self.session.total_order = client.machine.total_order
            self.session.stays = history.stays[name, frame.epoch]
            history.sessions.append(self.session)
            if process is not None:
                process.opened(self.session)
            if client.outdone_at < inf:
                self.end_session(client.outdone_at)
        client.recover()

    def _sent(self, frame: Frame) -> None:
        """A broker receives nothing of a process after another one has adopted its session, and
        the other one uses the same numbers."""
        process = self._client.process
        if process is None or self.session is None or process.owns(self.session):
            super()._sent(frame)

    # ── events ───────────────────────────────────────────────────────────────────────────

    def _event_made(self, body: bytes, sure: bool) -> EventRecord:
        del sure  # it is known
        return self._cluster.bodies[body]

    def _event_sent(self, session: SessionRecord, number: int, body: bytes) -> EventRecord:
        event = self._cluster.bodies[body]
        if self._client.process is not None:
            session.numbered[number] = event
        return event

    def _came(self, handle: int, publication: Publication, pubend: str, tick: int) -> None:
        operation, event = (
            self.operations.get(handle),
            self._cluster.bodies.get(bytes(publication.body)),
        )
        what = (operation, event, publication.publisher, pubend, tick, self.session)
        delivery = DeliveryRecord(self.now(), self.instance, handle, *what)
        self._history.deliveries.append(delivery)
        if self._client.process is not None:
            self._client.process.came(delivery)

    def _missed(self, news: Missed) -> None:
        """Record a loss, and whether it is of a past that a subscription can no longer get."""
        known = self._history.withdrawn_upto
        whose = (self._client.name, self.machine.epoch or "", news.pubend)
        heirs = self.session.instance if self.session else self.instance
        loss = LossRecord(heirs, *news, news.last <= known.get(whose, 0))
        self._history.losses.append(loss)

    # ── transactions ─────────────────────────────────────────────────────────────────────

    def _deal_of(self, tx: str) -> Deal | None:
        return self._history.deals.get(tx)

    def _all_deals(self) -> Iterable[Deal]:
        return self._history.deals.values()

    def _begun(self, deal: Deal) -> None:
        self._history.deals[deal.id] = deal

    def _strange(self, tx: str) -> None:
        name = op_of(tx).client
        namesakes = (each for each in self._cluster.clients if each.name == name)
        if not any(each.process is not None for each in namesakes):
            self.odd("atomicity", f"{self.title} is invited to {tx}: no client began it")
        # else one of two processes has begun it in the other's name

    def _invites(self, deed: Deed) -> None:
        deed.carried = any(
            each.kind == "advertise"
            and each.deal is None
            and each.effective_at < deed.deal.at
            and each.ended_at == inf
            and each.filter is not None
            and each.filter.matches(deed.attributes)
            for each in deed.session.operations.values()
        )

    def _staged(self, deed: Deed, body: bytes) -> None:
        session, event = deed.session, self._cluster.bodies[body]
        deed.event = event
        event.session, event.deal, event.sent_at = session, deed.deal, self.now()
        event.position = event.last_position = session.sent

    def _planned(self, session: SessionRecord, deal: Deal, frame: ExecuteRequest) -> None:
        """Record what brokers will do for the clients of a plan, in the current sessions of these
        clients, which may change meanwhile."""
        history, dealer = self._history, self._client.dealer
        deal.steps = dict(frame.parts)
        if dealer is not None:
            deal.before = dealer.before.get(frame.parts, frozenset())
        marks = count(-MOST_STEPS * len(history.deals))
        for name, steps in deal.steps.items():
            found = [s for s in history.sessions if s.client == name and s.ended_at == inf]
            theirs = session if name == session.client else found[-1] if found else None
            for step in steps:
                place = (deal, step.kind, step.order, theirs or session, next(marks), self.now())
                deed = Deed(*place, (theirs or session).instance, planned=True)
                if step.kind == "publish":
                    deed.answer = DONE
                    self._staged(deed, step.body)
                    deal.deeds.append(deed)
                elif step.kind.startswith("un"):
                    deal.deeds.append(deed)
                    history.planned.setdefault((name, step.kind, step.name), []).append(deed)
                    for operation in theirs.operations.values() if theirs is not None else ():
                        _doubt(deed, operation)

    def _added(self, operation: OperationRecord) -> None:
        """A plan that is under way may remove the operation."""
        where = (operation.session.client, f"un{operation.kind}", str(operation.filter))
        for deed in self._history.planned.get(where, ()):
            aborted = any(told.outcome == ABORTED for told in deed.deal.told)
            if deed.operation is None and not aborted:  # or has, and its client does not know
                doubt(deed, operation)

    def _fulfilled(self, session: SessionRecord, deal: Deal, frame: Decided) -> None:
        """A client is told what its broker has done for it."""
        if deal.kind != "static":
            return
        mine = deal.steps.get(session.client, ())
        deeds = {d.order: d for d in deal.deeds if d.planned}
        known = session.operations
        ended = {
            kind: [known[n] for n in frame.ended if n in known and f"un{known[n].kind}" == kind]
            for kind in ("unsubscribe", "unadvertise")
        }
        for step in mine:
            deed = deeds.get(step.order)
            if deed is None:
                deed = Deed(deal, step.kind, step.order, session, -1, self.now(), self.instance)
                deed.planned = True
                deal.deeds.append(deed)
            deed.session, deed.process = session, self.instance
            if deed.event is not None:
                deed.event.session = session
            if step.kind in ended and ended[step.kind] and deed.operation is None:
                deed.operation, deed.answer = ended[step.kind].pop(0), DONE
                if deed.operation not in deed.candidates:
                    doubt(deed, deed.operation)
                release(deed, but=deed.operation)
            added = [s for s in frame.added if (s.kind, s.name) == (step.kind, step.name)]
            for stands in added if deed.operation is None else ():
                operation = OperationRecord(
                    *(session, stands.sequence, 0, stands.kind, stands.filter, None, False, 10.0),
                    *(0, deal.at),  # anything its client had sent may follow it
                    ended_at=session.ended_at,
                    deal=deal,
                )
                operation.answered(DONE, self.now())
                deed.operation, deed.answer = operation, DONE
                known[stands.sequence] = operation
                self._added(operation)


def _doubt(deed: Deed, operation: OperationRecord) -> None:
    if f"un{operation.kind}" == deed.kind and not operation.gone:
        names = [s.name for s in deed.deal.steps[operation.session.client] if s.order == deed.order]
        if str(operation.filter) in names:
            doubt(deed, operation)


def engaged(history: History, durable: Durable, facts: Iterable[Fact] = ()) -> None:
    """A broker carries out parts of plans in the sessions that it knows. Such a session may have
    been outdone elsewhere, and end without its client being told of the plan. The root may have
    decided a plan in the step with these facts, in which it has carried out the last part."""
    for tx, local in durable.transactions.open.items():
        deal = history.deals.get(tx)
        for client, part in local.parts.items() if deal is not None else ():
            if part.plan is not None and deal is not None:
                _carried_out(history, deal, client, part.epoch)
    for tx, client in _parts(durable, facts):
        deal, session = history.deals.get(tx), durable.sessions.get(client)
        if deal is not None and session is not None and _is_committed(durable, tx):
            _carried_out(history, deal, client, session.epoch)


def _is_committed(durable: Durable, tx: str) -> bool:
    """A root without neighbours has settled a plan in the step in which it decides it."""
    decided = durable.transactions.active.get(tx)
    if decided is not None:
        return decided.decide.committed
    return durable.transactions.decider.outcome(tx) == COMMITTED


def _parts(durable: Durable, facts: Iterable[Fact]) -> Iterator[tuple[str, str]]:
    """The transactions and clients of the parts of plans that reach a broker with these facts."""
    for body in (fact.body for fact in facts):
        if type(body) is ControlReceived:
            letters = (each for each in body.control.messages if isinstance(each, Letter))
            for letter in letters:
                if isinstance(letter.body, Engage) and _is_here(durable, letter.body.client):
                    yield letter.body.tx, letter.body.client
        elif type(body) is RequestReceived and isinstance(body.request, ExecuteRequest):
            tx = str(OpId(body.client, body.epoch, body.request.sequence))
            for client, _ in body.request.parts:
                if _is_here(durable, client):
                    yield tx, client


def _is_here(durable: Durable, client: str) -> bool:
    """Is the broker that of the client, as far as it knows?"""
    clients = durable.routing.state.clients
    return clients.get((client, clients.newest(client) or "")) == Hop.client(client)


def _carried_out(history: History, deal: Deal, client: str, epoch: str) -> None:
    orders = {step.order for step in deal.steps.get(client, ())}
    deeds = [deed for deed in deal.deeds if deed.planned and deed.order in orders]
    if all((deed.session.client, deed.session.epoch) == (client, epoch) for deed in deeds):
        return
    found = [s for s in history.sessions if (s.client, s.epoch) == (client, epoch)]
    for session in found[-1:]:
        for deed in deeds:
            deed.session, deed.process = session, session.instance
            if deed.event is not None:
                deed.event.session = session
            release(deed)
            for operation in session.operations.values():
                _doubt(deed, operation)


def crossed(durable: Durable, control: Control) -> dict[OpId, int]:
    """Starts in a broker's pubend that control is about to void: a broker on the way has withdrawn
    the subscription because of an unadvertisement, and the pubend has started it for the next
    advertisement meanwhile. If the subscription comes again, only a second start counts."""
    table = durable.routing.state.subscriptions
    return {
        each.target: entry.start
        for each in control.messages
        if isinstance(each, Unsubscribe) and not each.lost
        if each.op is not None and not each.op.client  # a client has not removed it
        if (entry := table.get(each.target)) is not None and entry.start
    }


def voided(history: History, durable: Durable, starts: dict[OpId, int]) -> None:
    """The control was applied. The log shows new starts later."""
    routing = durable.routing.state
    for op, start in starts.items():
        entry = routing.subscriptions.get(op)
        if entry is None or entry.start != start:
            history.starts.pop((op, routing.hosted), None)


def _withdraws(message: ControlMessage) -> bool:
    """Does an advertisement leave a log, and nothing of it remain there? A session that arrives may
    find that this has happened while it was on its way."""
    if isinstance(message, Rehome):
        return bool(message.former) and message.residue is None
    return isinstance(message, Unadvertise | MoveCommit)


def withdrawn(history: History, durable: Durable, news: Control | MoveDecided) -> None:
    """A broker learns, or decides, that an advertisement was removed, or has moved to another log:
    clients that wanted the past of it are told that it is lost, perhaps only after they have
    removed the subscription."""
    if isinstance(news, Control) and not any(map(_withdraws, news.messages)):
        return
    lapsed_upto, known = durable.routing.starts.lapsed_upto, history.withdrawn_upto
    for session in durable.sessions:
        for sequence, since in session.since.items():
            op = OpId(session.client, session.epoch, sequence)
            for pubend in (p for p, tick in since.items() if tick == NOWHERE):
                place = (op.client, op.epoch, pubend)
                known[place] = max(known.get(place, 0), lapsed_upto(op, pubend))
