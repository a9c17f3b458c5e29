"""Committed isolated transactions are equivalent to some serial order.

A transaction reads the set of subscribers that its invitations and events reach; it writes the
subscriptions that it begins or ends. One of two transactions must precede the other if its
invitation or event met, or did not meet, a subscription that the other has begun or ended. If these
relations form a cycle, there is no order.

An invitation meets each client once, however many of its subscriptions match. It counts if its
client had an effective advertisement for it before the transaction began: then matching
subscriptions were routed to it. A client that left, or a path with a broker that lost its state, is
no evidence.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

from motet.audit.records import Deal, Deed, EventRecord, OperationRecord
from motet.testing.checkers import excuses
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History

Edges = dict[Deal, dict[Deal, str]]
"""By transaction: its successors, each with the reason."""


def check(history: History) -> CheckResult:
    verdict = CheckResult("serializability")
    deals = [d for d in history.deals.values() if d.kind == "isolated" and d.committed]
    edges: Edges = {deal: {} for deal in deals}
    arrived = excuses.arrivals(history)
    for reader in deals:
        for writer in deals:
            if reader is not writer:
                for deed in reader.deeds:
                    _relate(history, deed, writer, arrived, edges)
    verdict.checked = len(deals) + sum(len(found) for found in edges.values())
    circle = _circle(edges)
    if circle:
        told = "; ".join(f"{a} before {b}: {edges[a][b]}" for a, b in circle)
        verdict.violations.append(f"no serial order of these transactions exists: {told}")
    return verdict


def _relate(
    history: History,
    deed: Deed,
    writer: Deal,
    arrived: set[tuple[EventRecord | None, OperationRecord | None]],
    edges: Edges,
) -> None:
    reader = deed.deal
    for written, begins in (
        *((each, True) for each in writer.beginnings()),
        *((each, False) for each in writer.endings()),
    ):
        operation = written.operation
        assert operation is not None
        met = _met(history, deed, operation, arrived)
        if met is None or (begins and operation in _ended_by(writer)):
            continue
        if not met and not _should_have_met(operation, reader, begins):
            continue
        first, then = (writer, reader) if met == begins else (reader, writer)
        verb = "reached" if met else "did not reach"
        edges[first].setdefault(then, f"{deed} {verb} {operation}")


def _should_have_met(operation: OperationRecord, reader: Deal, begins: bool) -> bool:
    """Did it miss the subscription because of this transaction alone? A subscription that has been
    removed since, or that had not surely begun, is no evidence."""
    if begins:
        return operation.ended_at > reader.answered_at
    return operation.effective_at < reader.at


def _ended_by(deal: Deal) -> list[OperationRecord | None]:
    return [each.operation for each in deal.endings()]


def _met(
    history: History,
    deed: Deed,
    operation: OperationRecord,
    arrived: set[tuple[EventRecord | None, OperationRecord | None]],
) -> bool | None:
    """Did an invitation or event reach a subscription? None if there is no evidence."""
    if operation.filter is None:
        return None
    if deed.kind == "invite":
        return _invited(history, deed, operation)
    event = deed.event
    if event is None or not event.tick or not operation.filter.matches(event.attributes):
        return None
    if (event, operation) in arrived:
        return True
    over = operation.gone and operation.finished_at == inf
    if over or not excuses.stayed(history, operation) or operation.id not in event.audience:
        return None
    if excuses.is_told_lost(history, event, operation.session):
        return None
    forgot = excuses.pubend_forgot(history, event, operation, 0.0)
    return None if forgot else False


def _invited(history: History, deed: Deed, operation: OperationRecord) -> bool | None:
    assert operation.filter is not None
    session = operation.session
    if (session.client, session.epoch) == (deed.session.client, deed.session.epoch):
        return None  # a client never invites itself
    if deed.answer != "Done" or not operation.filter.matches(deed.attributes):
        return None
    for called in deed.deal.called:
        same = (called.client, called.epoch) == (session.client, session.epoch)
        if same and called.op == deed.op:
            met = called.subscriptions == (operation.sequence,)
            return True if met and _is_alone(operation, deed) else None
    homes = (*deed.session.homes(), *session.homes())
    if not deed.carried or history.forgot(homes, 0.0) or not _was_there(operation, deed):
        return None
    return False


def _is_alone(operation: OperationRecord, deed: Deed) -> bool:
    """No other subscription of the client matched the invitation at that time."""
    return not any(
        other is not operation
        and other.kind == "subscribe"
        and other.requested_at < deed.deal.answered_at
        and other.ended_at > deed.deal.at
        and other.filter is not None
        and other.filter.matches(deed.attributes)
        for other in operation.session.operations.values()
    )


def _was_there(operation: OperationRecord, deed: Deed) -> bool:
    """Its client had a session when the invitation was sent, and still has it."""
    session = operation.session
    return session.opened_at < deed.at and session.ended_at == inf


def _circle(edges: Edges) -> list[tuple[Deal, Deal]]:
    """The edges of some cycle; empty if there is none."""
    done: set[Deal] = set()
    for start in edges:
        path: list[Deal] = []
        found = _visit(start, edges, path, done)
        if found:
            return found
    return []


def _visit(deal: Deal, edges: Edges, path: list[Deal], done: set[Deal]) -> list[tuple[Deal, Deal]]:
    if deal in path:
        circle = [*path[path.index(deal) :], deal]
        return list(pairwise(circle))
    if deal in done:
        return []
    path.append(deal)
    for then in edges[deal]:
        found = _visit(then, edges, path, done)
        if found:
            return found
    path.pop()
    done.add(deal)
    return []
