"""What a simulated client writes down of transactions: what it asks, does, hears and is told."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from motet.model import decode_attributes
from motet.protocol.frames import Frame
from motet.protocol.session.messages import (
    AnswerRequest,
    BeginRequest,
    Decided,
    Done,
    EndRequest,
    ExecuteRequest,
    Failed,
    FollowRequest,
    Invited,
    InviteRequest,
    OutcomeRequest,
    Over,
    StageRequest,
    Tag,
    TxRequest,
)
from motet.protocol.transactions.effects import op_of
from motet.protocol.transactions.messages import Step
from motet.testing.deals import ABORTED, COMMITTED, Asking, Called, Deal, Deed, Told, tell
from motet.testing.history import DONE, ENDLESS, Operation

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient
    from motet.testing.history import Session

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
            deal.cast = tuple(name for name, _ in parts)
            if client.dealer is not None:
                deal.before = client.dealer.before.get(parts, frozenset())
            _publishes(client, session, deal, sequence, dict(parts).get(session.client, ()))
            session.asks[sequence] = Asking("execute", deal, now, tx=deal.id)
        case StageRequest(sequence, tag, body) | InviteRequest(sequence, tag, body):
            found = history.deals.get(tag.tx)
            if found is not None:
                kind = "publish" if isinstance(frame, StageRequest) else "invite"
                deed = Deed(found, kind, tag.order, session, sequence, now, client.instance)
                found.deeds.append(deed)
                _describe(client, deed, bytes(body))
                session.asks[sequence] = Asking(kind, found, now, deed, found.id)
        case AnswerRequest(sequence, tx, op, refusal):
            found = history.deals.get(tx)
            if found is not None and not refusal:
                found.done.setdefault(session.client, now)
            session.asks[sequence] = Asking("answer", found, now, tx=tx)
            del op
        case FollowRequest(sequence, tx):
            found = history.deals.get(tx)
            deeds = _followed(client, session, found, frame) if found is not None else ()
            session.asks[sequence] = Asking("follow", found, now, tx=tx, deeds=deeds)
        case EndRequest(sequence, tx, commit):
            found = history.deals.get(tx)
            if found is not None and commit:
                found.commit_at = min(found.commit_at, now)
            elif found is not None:
                found.abort_at = min(found.abort_at, now)
            session.asks[sequence] = Asking("commit" if commit else "abort", found, now, tx=tx)
        case OutcomeRequest(sequence, tx):
            session.asks[sequence] = Asking("outcome", history.deals.get(tx), now, tx=tx)


def _publishes(
    client: SimulatedClient, session: Session, deal: Deal, sequence: int, steps: tuple[Step, ...]
) -> None:
    """Who executes a plan and only publishes in it is not asked."""
    if not steps or any(step.kind != "publish" for step in steps):
        return
    now = client.cluster.agenda.now
    deal.done.setdefault(session.client, now)
    for step in steps:
        deed = Deed(deal, step.kind, step.order, session, sequence, now, client.instance)
        deed.answer = "Done"
        _describe(client, deed, step.body)
        deal.deeds.append(deed)


def _followed(
    client: SimulatedClient, session: Session, deal: Deal, frame: FollowRequest
) -> tuple[Deed, ...]:
    """A client does its part of a plan: its additions have the numbers before the request's."""
    assert client.dealer is not None
    now, process = client.cluster.agenda.now, client.instance
    deal.done.setdefault(session.client, now)
    number, targets = frame.sequence - frame.additions, iter(frame.targets)
    deeds: list[Deed] = []
    for step in client.dealer.plans[deal.id]:
        deed = Deed(deal, step.kind, step.order, session, frame.sequence, now, process)
        if step.kind == "publish":
            _describe(client, deed, step.body)
        elif step.kind.startswith("un"):
            deed.operation = session.operations[next(targets)]
            deed.operation.ended_at = min(deed.operation.ended_at, now)
            doubted = min(deed.operation.doubted_position, session.sent)
            deed.operation.doubted_position = doubted
            deed.operation.doubts |= {frame.sequence}
        else:
            handle = client.machine._unanswered[number].handle
            deed.operation = Operation(
                *(session, number, handle, step.kind, step.filter, None, False, frame.timeout_s),
                *(session.sent, now),
                ended_at=session.ended_at,
                deal=deal,
            )
            session.operations[number] = client.operations[handle] = deed.operation
            number += 1
        deeds.append(deed)
    deal.deeds += deeds
    return tuple(deeds)


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
                called = Called(now, session.client, session.epoch, op, subscriptions)
                deal.called.append(called)
        case Decided(tx, number, committed):
            deal = history.deals.get(tx)
            if deal is not None:
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
    for each in asking.deeds if deed is None else (deed,):
        each.answer = each.answer or (frame.error if isinstance(frame, Failed) else DONE)
        if failed and each.event is not None and not each.event.fate:
            each.event.fate = "void"
        if failed and each.kind.startswith("un") and each.operation is not None:
            _unmark(client, each, session)
        elif each.operation is not None and each.operation.deal is each.deal and deed is None:
            odd = each.operation.answered(each.answer, now)
            if odd:
                history.odd("answers", odd)
    if deed is not None:
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
    for deal in client.cluster.history.deals.values():
        for each in deal.deeds:
            is_mark = each.operation is operation and each.kind.startswith("un")
            if is_mark and each is not deed and (deal is deed.deal or each.answer in ("", DONE)):
                return
    if session.ended_at == inf and not operation.gone:
        operation.doubted_position = ENDLESS
        if not operation.is_being_removed:
            operation.ended_at = inf
