"""What excuses brokers from what they owe to transactions: lost state, and nothing else."""

from __future__ import annotations

from math import inf

from motet.model import Filter
from motet.testing.deals import Deal, Deed
from motet.testing.history import Event, History, Operation, Session


def root_forgot(history: History, deal: Deal, until: float = inf) -> bool:
    """The root has lost its state since a transaction began, and perhaps how it ended."""
    return history.amnesia[history.root].meets(deal.at, until)


def is_cut_off(history: History, deal: Deal, broker: str, until: float = inf) -> bool:
    """Has a broker, or the root, or anything between them, forgotten what it knew of it?"""
    return history.forgot(history.tree.path(history.root, broker), deal.at, until)


def is_disturbed(history: History, deal: Deal) -> bool:
    """Has anybody forgotten anything, where somebody has part in a transaction?"""
    brokers = dict.fromkeys((deal.session.broker, *(d.session.broker for d in deal.deeds)))
    return any(is_cut_off(history, deal, broker) for broker in brokers)


def pubend_forgot(history: History, event: Event, operation: Operation, since: float) -> bool:
    """Has the log, the subscriber's broker, or anything between them, lost its state?"""
    home = event.pubend.rpartition(".")[0] if event.pubend else ""
    path = history.tree.path(home, operation.session.broker) if home else ()
    return history.forgot(path, since)


def stayed(history: History, operation: Operation) -> bool:
    """Its client was there to get everything: in the end, or until it was told that it had."""
    return operation.finished_at < inf or operation.session in history.living


def is_told_lost(history: History, event: Event, session: Session) -> bool:
    return any(
        loss.instance == session.instance
        and loss.pubend == event.pubend
        and loss.first <= event.tick <= loss.last
        for loss in history.losses
    )


def matches(wanted: Filter | None, event: Event) -> bool:
    return wanted is not None and wanted.matches(event.attributes)


def arrivals(history: History) -> set[tuple[Event | None, Operation | None]]:
    """Whatever came, whether its application was done with it or not."""
    return {(each.event, each.operation) for each in history.deliveries}


def behind(one: Deed, other: Deed) -> bool:
    """Does a deed come behind another one of the same transaction?"""
    return one.order > other.order
