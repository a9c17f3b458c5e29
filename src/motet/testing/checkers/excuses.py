"""Excuses of brokers for breaking a guarantee of transactions: lost state, and nothing else."""

from __future__ import annotations

from math import inf

from motet.audit.records import Deal, Deed, EventRecord, OperationRecord, SessionRecord
from motet.model import Filter
from motet.testing.history import History


def root_forgot(history: History, deal: Deal, until: float = inf) -> bool:
    """The root has lost its state since the transaction began, and perhaps its outcome."""
    return history.amnesia[history.root].meets(deal.at, until)


def is_decided_again(history: History, deal: Deal) -> bool:
    """The root has lost a decision that some neighbour had not heard when it had its first cut,
    because it was away. If that one is back before the others, the root may decide otherwise."""
    cut_at = min(cut.at for cut in history.cuts if cut.tx == deal.id)
    if not history.amnesia[history.root].meets(cut_at, inf):
        return False
    near = [edge for edge in history.tree.edges if history.root in edge]
    names = {name for edge in near for name in edge} - {history.root}
    broken = (since for edge in near for since, _ in history.disturbed[edge])
    return any(history.disturbed[name].meets(deal.at, cut_at) for name in names) or any(
        deal.at <= since <= cut_at for since in broken
    )


def is_cut_off(history: History, deal: Deal, session: SessionRecord, until: float = inf) -> bool:
    """Has the session's broker, the root, or anything between them lost its state?"""
    return history.forgot((history.root, *session.homes(deal.at, until)), deal.at, until)


def pubend_forgot(
    history: History, event: EventRecord, operation: OperationRecord, since: float
) -> bool:
    """Has the log, the subscriber's broker, or anything between them lost its state?"""
    home = event.pubend.rpartition(".")[0] if event.pubend else ""
    names = (home, *operation.session.homes(since)) if home else ()
    return history.forgot(names, since)


def stayed(history: History, operation: OperationRecord) -> bool:
    """The client was connected until the end, or until it was told that it had got everything."""
    return operation.finished_at < inf or operation.session in history.living


def is_told_lost(history: History, event: EventRecord, session: SessionRecord) -> bool:
    return any(
        loss.instance == session.instance
        and loss.pubend == event.pubend
        and loss.first <= event.tick <= loss.last
        for loss in history.losses
    )


def matches(wanted: Filter | None, event: EventRecord) -> bool:
    return wanted is not None and wanted.matches(event.attributes)


def arrivals(history: History) -> set[tuple[EventRecord | None, OperationRecord | None]]:
    """All deliveries, acknowledged by the application or not."""
    return {(each.event, each.operation) for each in history.deliveries}


def behind(one: Deed, other: Deed) -> bool:
    """Does a deed follow another one of the same transaction?"""
    return one.order > other.order
