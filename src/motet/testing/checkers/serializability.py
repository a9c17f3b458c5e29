"""Isolated transactions that were committed could have run one after the other.

What a transaction reads is whom its invitations and events reach; what it writes are subscriptions
that it begins or ends. Of two transactions, one must come before the other if an invitation or
event of the one met, or did not meet, a subscription that the other has begun or ended. If these
relations go round in a circle, there is no order.

An invitation meets clients, each once, however many of their subscriptions it matches. It counts if
its client had advertised it effectively before the transaction began: then subscriptions that it
matches were on its way. What reached a client that left, or passed a broker that forgot, shows
nothing.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

from motet.testing.checkers import excuses
from motet.testing.checkers.verdict import Verdict
from motet.testing.deals import Deal, Deed
from motet.testing.history import Event, History, Operation

Edges = dict[Deal, dict[Deal, str]]
"""By transaction: those that come after it, each with why."""


def check(history: History) -> Verdict:
    verdict = Verdict("serializability")
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
        verdict.violations.append(f"there is no order of these: {told}")
    return verdict


def _relate(
    history: History,
    deed: Deed,
    writer: Deal,
    arrived: set[tuple[Event | None, Operation | None]],
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
        verb = "met" if met else "did not meet"
        edges[first].setdefault(then, f"{deed} {verb} {operation}")


def _should_have_met(operation: Operation, reader: Deal, begins: bool) -> bool:
    """Did it not meet because of this transaction alone? What was taken back since, by whomever,
    shows nothing, nor what had not begun for sure."""
    if begins:
        return operation.ended_at > reader.answered_at
    return operation.effective_at < reader.at


def _ended_by(deal: Deal) -> list[Operation | None]:
    return [each.operation for each in deal.endings()]


def _met(
    history: History,
    deed: Deed,
    operation: Operation,
    arrived: set[tuple[Event | None, Operation | None]],
) -> bool | None:
    """Did an invitation or event reach a subscription? None if that says nothing."""
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


def _invited(history: History, deed: Deed, operation: Operation) -> bool | None:
    assert operation.filter is not None
    session = operation.session
    if (session.client, session.epoch) == (deed.session.client, deed.session.epoch):
        return None  # nobody invites itself
    if deed.answer != "Done" or not operation.filter.matches(deed.attributes):
        return None
    for called in deed.deal.called:
        same = (called.client, called.epoch) == (session.client, session.epoch)
        if same and called.op == deed.op:
            met = called.subscriptions == (operation.sequence,)
            return True if met and _is_alone(operation, deed) else None
    path = history.tree.path(deed.session.broker, session.broker)
    if not deed.carried or history.forgot(path, 0.0) or not _was_there(operation, deed):
        return None
    return False


def _is_alone(operation: Operation, deed: Deed) -> bool:
    """No other subscription would have met the same client, before or after."""
    return not any(
        other is not operation
        and other.kind == "subscribe"
        and other.requested_at < deed.deal.answered_at
        and other.ended_at > deed.deal.at
        and other.filter is not None
        and other.filter.matches(deed.attributes)
        for other in operation.session.operations.values()
    )


def _was_there(operation: Operation, deed: Deed) -> bool:
    """Its client had a session when the invitation went out, and has it still."""
    session = operation.session
    return session.opened_at < deed.at and session.ended_at == inf


def _circle(edges: Edges) -> list[tuple[Deal, Deal]]:
    """Some circle, as its edges; empty if there is none."""
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
