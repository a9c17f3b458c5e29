"""What a simulated client writes down of transactions: what it asks, does, hears and is told."""

from __future__ import annotations

from itertools import count
from math import inf
from typing import TYPE_CHECKING

from motet.model import decode_attributes
from motet.protocol.frames import Frame
from motet.protocol.session.messages import (
    AnswerRequest,
    BeginRequest,
    ConsentRequest,
    Decided,
    Done,
    EndRequest,
    ExecuteRequest,
    Failed,
    Invited,
    InviteRequest,
    OutcomeRequest,
    Over,
    StageRequest,
    Tag,
    TxRequest,
)
from motet.protocol.session.state import GRANTED
from motet.protocol.transactions.effects import op_of
from motet.testing.deals import (
    ABORTED,
    COMMITTED,
    Asking,
    Deal,
    Deed,
    Summoned,
    Told,
    doubt,
    release,
    tell,
)
from motet.testing.history import DONE, ENDLESS, Operation

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient
    from motet.testing.history import History, Session

MOST_STEPS = 1000
SPREADING = "StillSpreading"
"""It is committed, but nobody says that it is effective: somebody is away."""


def deal_of(client: SimulatedClient, tag: Tag) -> Deal | None:
    return client.cluster.history.deals.get(tag.tx)


# ── asking ───────────────────────────────────────────────────────────────────────────────


def noted(session: Session, deal: Deal, tag: Tag, operation: Operation, process: int) -> None:
    """An advertisement, a subscription, or the removal of one, is part of a transaction."""
    what = operation.target or operation
    if operation.target is not None:
        what.doubts |= {operation.sequence}
    deed = Deed(
        deal,
        operation.kind,
        tag.order,
        session,
        operation.sequence,
        operation.requested_at,
        process,
        operation=what,
    )
    deal.deeds.append(deed)
    session.asks[operation.sequence] = Asking(operation.kind, deal, deed.at, deed, deal.id)


def ask(client: SimulatedClient, frame: TxRequest) -> None:
    session, history = client.session, client.cluster.history
    if session is None or frame.sequence in session.asks:
        return  # another process has the session already; or it is sent again
    session.sent += 1
    now = client.cluster.agenda.now
    match frame:
        case BeginRequest(sequence, isolated, _, key):
            kind = "isolated" if isolated else "open"
            deal = _begin(client, session, sequence, kind, key)
            session.asks[sequence] = Asking("begin", deal, now, tx=deal.id)
        case ExecuteRequest(sequence, parts, _, key):
            deal = _begin(client, session, sequence, "static", key)
            deal.steps = dict(parts)
            if client.dealer is not None:
                deal.before = client.dealer.before.get(parts, frozenset())
            _plan(client, session, deal)
            session.asks[sequence] = Asking("execute", deal, now, tx=deal.id)
        case StageRequest(sequence, tag, body) | InviteRequest(sequence, tag, body):
            found = history.deals.get(tag.tx)
            if found is not None:
                kind = "publish" if isinstance(frame, StageRequest) else "invite"
                deed = Deed(found, kind, tag.order, session, sequence, now, client.instance)
                found.deeds.append(deed)
                _describe(client, deed, bytes(body))
                session.asks[sequence] = Asking(kind, found, now, deed, found.id)
        case AnswerRequest(sequence, tx):
            session.asks[sequence] = Asking("answer", history.deals.get(tx), now, tx=tx)
        case ConsentRequest(sequence):
            session.asks[sequence] = Asking("consent", None, now)
        case EndRequest(sequence, tx, commit):
            found = history.deals.get(tx)
            if found is not None and commit:
                found.commit_at = min(found.commit_at, now)
            session.asks[sequence] = Asking("commit" if commit else "abort", found, now, tx=tx)
        case OutcomeRequest(sequence, tx):
            session.asks[sequence] = Asking("outcome", history.deals.get(tx), now, tx=tx)


def _plan(client: SimulatedClient, session: Session, deal: Deal) -> None:
    """What brokers will do for the clients of a plan, in sessions that these have now, unless they
    get others meanwhile."""
    history, now = client.cluster.history, client.cluster.agenda.now
    marks = count(-MOST_STEPS * len(history.deals))
    for name, steps in deal.steps.items():
        found = [s for s in history.sessions if s.client == name and s.ended_at == inf]
        theirs = session if name == session.client else found[-1] if found else None
        for step in steps:
            where = theirs or session
            deed = Deed(deal, step.kind, step.order, where, next(marks), now, where.instance)
            deed.planned = True
            if step.kind == "publish":
                deed.answer = DONE
                _describe(client, deed, step.body)
                deal.deeds.append(deed)
            elif step.kind.startswith("un"):
                deal.deeds.append(deed)
                history.planned.setdefault((name, step.kind, step.name), []).append(deed)
                for operation in theirs.operations.values() if theirs is not None else ():
                    _doubt(deed, operation)


def _doubt(deed: Deed, operation: Operation) -> None:
    if f"un{operation.kind}" == deed.kind and not operation.gone:
        names = [s.name for s in deed.deal.steps[operation.session.client] if s.order == deed.order]
        if str(operation.filter) in names:
            doubt(deed, operation)


def expect_end(history: History, operation: Operation) -> None:
    """It is new; a plan that is under way may take it back."""
    where = (operation.session.client, f"un{operation.kind}", str(operation.filter))
    for deed in history.planned.get(where, ()):
        aborted = any(told.outcome == ABORTED for told in deed.deal.told)
        if deed.operation is None and not aborted:  # or has, if its client has yet to hear of it
            doubt(deed, operation)


def _fulfil(client: SimulatedClient, session: Session, deal: Deal, frame: Decided) -> None:
    """A client hears what its broker has done for it."""
    history, now = client.cluster.history, client.cluster.agenda.now
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
            deed = Deed(deal, step.kind, step.order, session, -1, now, client.instance)
            deed.planned = True
            deal.deeds.append(deed)
        deed.session, deed.process = session, client.instance
        if deed.event is not None:
            deed.event.session = session
        if step.kind in ended and ended[step.kind] and deed.operation is None:
            deed.operation, deed.answer = ended[step.kind].pop(0), DONE
            if deed.operation not in deed.candidates:
                doubt(deed, deed.operation)
            release(deed, but=deed.operation)
        added = [s for s in frame.added if (s.kind, s.name) == (step.kind, step.name)]
        for stands in added if deed.operation is None else ():
            operation = Operation(
                *(session, stands.sequence, 0, stands.kind, stands.filter, None, False, 10.0),
                *(0, deal.at),  # whatever its client had sent may have come behind it
                ended_at=session.ended_at,
                deal=deal,
            )
            operation.answered(DONE, now)
            deed.operation, deed.answer = operation, DONE
            known[stands.sequence] = operation
            expect_end(history, operation)


def begun(client: SimulatedClient) -> None:
    """The machine knows by now what a plan has put in force."""
    if client.session is None:
        return
    machine = client.machine
    for operation in (*machine.standing(), *machine._ending.values()):
        if operation.sequence > GRANTED and operation.handle not in client.operations:
            known = client.session.operations.get(operation.sequence)
            if known is not None:
                known.handle = operation.handle
                client.operations[operation.handle] = known


def _begin(client: SimulatedClient, session: Session, sequence: int, kind: str, key: str) -> Deal:
    name = f"{session.client}/{session.epoch}/{sequence}"
    deal = Deal(name, kind, session, client.cluster.agenda.now, key)
    client.cluster.history.deals[name] = deal
    return deal


def _describe(client: SimulatedClient, deed: Deed, body: bytes) -> None:
    session, now = deed.session, client.cluster.agenda.now
    if deed.kind == "invite":
        deed.attributes = decode_attributes(body)
        deed.carried = any(
            each.kind == "advertise"
            and each.deal is None
            and each.effective_at < deed.deal.at
            and each.ended_at == inf
            and each.filter is not None
            and each.filter.matches(deed.attributes)
            for each in session.operations.values()
        )
        return
    event = client.cluster.bodies[body]
    deed.event = event
    event.session, event.deal, event.sent_at = session, deed.deal, now
    event.position = event.last_position = session.sent


# ── hearing ──────────────────────────────────────────────────────────────────────────────


def heard(client: SimulatedClient, frame: Frame) -> None:
    """Before the machine has it."""
    session, history = client.session, client.cluster.history
    if session is None:
        return
    now = client.cluster.agenda.now
    match frame:
        case Done() | Failed():
            asking = session.asks.get(frame.sequence)
            if asking is not None:
                _answered(client, session, asking, frame)
        case Invited(tx, _, _, op, _, subscriptions):
            deal = history.deals.get(tx)
            if deal is None and _is_durable(client, tx):
                pass  # of two processes, one has begun it in the other's name
            elif deal is None:
                history.odd("atomicity", f"{client.title} is invited to {tx}: nobody began it")
            else:
                called = Summoned(now, session.client, session.epoch, op, subscriptions)
                deal.called.append(called)
        case Decided(tx, number, committed):
            deal = history.deals.get(tx)
            if deal is not None:
                if deal.kind == "static" and committed:
                    _fulfil(client, session, deal, frame)
                outcome = COMMITTED if committed else ABORTED
                told = Told(now, inf, client.title, outcome, number)
                tell(deal, told, session)
        case Over(sequence):
            operation = session.operations.get(sequence)
            if operation is not None:
                operation.finished_at = min(operation.finished_at, now)


def _is_durable(client: SimulatedClient, tx: str) -> bool:
    name = op_of(tx).client
    return any(each.process is not None for each in client.cluster.clients if each.name == name)


def _answered(
    client: SimulatedClient, session: Session, asking: Asking, frame: Done | Failed
) -> None:
    history, now = client.cluster.history, client.cluster.agenda.now
    deal, deed = asking.deal, asking.deed
    failed = isinstance(frame, Failed)
    if deed is not None:
        deed.answer = deed.answer or (frame.error if isinstance(frame, Failed) else DONE)
        if failed and deed.event is not None and not deed.event.fate:
            deed.event.fate = "void"
        if failed and deed.kind.startswith("un") and deed.operation is not None:
            _unmark(client, deed, session)
        return
    if deal is None:
        return
    value = frame.value if isinstance(frame, Done) else ""
    if asking.kind in ("begin", "execute") and isinstance(frame, Failed):
        deal.refused = frame.error not in ("Aborted", SPREADING)
    if asking.kind in ("execute", "commit"):
        other = history.deals.get(value) if value else None
        if isinstance(frame, Failed):
            if frame.error in ("Aborted", SPREADING):  # or it was never begun
                outcome = ABORTED if frame.error == "Aborted" else COMMITTED
                tell(deal, Told(now, asking.at, client.title, outcome), session)
        elif other is not None:
            told = Told(now, asking.at, client.title, COMMITTED)
            tell(other, told, session if other is deal else None)
            if other is deal:
                deal.answered_at = min(deal.answered_at, now)
            else:
                _check_key(client, deal, other)
                tell(deal, Told(now, asking.at, client.title, ABORTED), session)
    elif asking.kind == "outcome" and value:
        tell(deal, Told(now, asking.at, client.title, value))


def _check_key(client: SimulatedClient, deal: Deal, other: Deal) -> None:
    if not deal.key or (deal.key, deal.session.client) != (other.key, other.session.client):
        text = f"{client.title} was told that {deal} was done before as {other}, with another key"
        client.cluster.history.odd("atomicity", text)


def _unmark(client: SimulatedClient, deed: Deed, session: Session) -> None:
    """The removal was refused: what was to go stays, unless it was asked for elsewhere, too."""
    operation = deed.operation
    if operation is None:
        return
    operation.doubts -= {deed.sequence}
    if operation.doubts:
        return
    for deal in client.cluster.history.deals.values():
        for each in deal.deeds:
            is_mark = each.operation is operation and each.kind.startswith("un")
            if is_mark and each is not deed and (deal is deed.deal or each.answer in ("", DONE)):
                return
    if session.ended_at == inf and not operation.gone:
        operation.doubted_position = ENDLESS
        if not operation.is_being_removed:
            operation.ended_at = inf
