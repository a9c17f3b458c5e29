"""A sure event that was accepted arrives at every subscription that is in force in the end if
both the subscription and an advertisement that carries the event were effective before it was
sent, or if its log has it behind the start of the subscription, whatever broke in between. A
subscription that is over has missed nothing that lies before the last event it got from the same
log.

Excused is only what lost the log itself, or the subscription's session: a broker of the publisher
or of the subscriber that came back with nothing after the older of the two was requested, a link
on the path that was taken out of the overlay and put back, and ticks that the client was told to
be lost. Such a loss must be one: the log has let go of the tick, or is gone as a whole; or it is
of the past, and nobody advertises any more where a subscription has reached back to.
"""

from __future__ import annotations

from math import inf

from motet.model import Filter
from motet.testing.checkers.verdict import Verdict
from motet.testing.history import Event, History, Loss, Operation
from motet.testing.topology import Edge

Arrived = set[tuple[Event | None, Operation | None]]


def check(history: History) -> Verdict:
    verdict = Verdict("exactly-once")
    _check_losses(history, verdict)
    _check_arrivals(history, verdict)
    return verdict


def missing(history: History) -> list[str]:
    """What has not come, and perhaps is only late."""
    verdict = Verdict("exactly-once")
    _check_arrivals(history, verdict)
    return verdict.violations


def _check_arrivals(history: History, verdict: Verdict) -> None:
    events = [e for e in history.events if e.sure and e.fate == "accepted" and e.session]
    if not events:
        return
    arrived: Arrived = {(d.event, d.operation) for d in history.taken()}
    last = _last_ticks(history)
    losses: dict[int, list[Loss]] = {}
    for loss in history.losses:
        losses.setdefault(loss.instance, []).append(loss)
    lasting = set(history.in_force())
    carried = {event for event in events if _is_carried(event)}
    matches: dict[tuple[Filter, tuple[object, ...]], bool] = {}
    for operation in history.operations("subscribe"):
        reported = losses.get(operation.session.instance, [])
        for event in events:
            if operation not in lasting and event.tick >= last.get((operation, event.pubend), 0):
                continue
            if (
                not _is_behind_its_start(history, event, operation)
                and (event not in carried or operation.effective_at > event.sent_at)
                and not _is_reached(history, event, operation)
            ):
                continue
            if operation.filter is None:
                continue
            key = (operation.filter, tuple(event.attributes.items()))
            if key not in matches:
                matches[key] = operation.filter.matches(event.attributes)
            if matches[key] and _is_owed(history, event, operation):
                verdict.expect(
                    (event, operation) in arrived or _is_told(event, reported),
                    "{}, sent at {:.4f} s at {}, never came to {}",
                    event,
                    event.sent_at,
                    event.session.broker if event.session else "?",
                    operation,
                )


def _last_ticks(history: History) -> dict[tuple[Operation, str], int]:
    """By subscription and log, the last tick that came."""
    last: dict[tuple[Operation, str], int] = {}
    for delivery in history.taken():
        if delivery.operation is not None and delivery.tick:
            key = (delivery.operation, delivery.pubend)
            last[key] = max(delivery.tick, last.get(key, 0))
    return last


def _is_behind_its_start(history: History, event: Event, operation: Operation) -> bool:
    """Had the subscription started when the event was written, and does that start still count? In
    total order only one that its broker has asked for does, and nobody can say that from outside:
    there, an advertisement must be effective before what is published under it is owed."""
    if operation.id not in event.audience or operation.session.total_order:
        return False
    return event.tick > history.starts.get((operation.id, event.pubend), event.tick)


def _is_reached(history: History, event: Event, operation: Operation) -> bool:
    """Is it older than a subscription that reaches back to it? The first one of its client at a log
    does, where it started for the first time."""
    since = operation.since.get(event.pubend, operation.since.get(""))
    start = history.first_starts.get((operation.id, event.pubend))
    if since is None or start is None or not since < event.tick <= start:
        return False
    ids = (each.id for each in operation.session.operations.values())
    others = [t for op in ids if (t := history.first_starts.get((op, event.pubend))) is not None]
    return min(others) == start


def _is_carried(event: Event) -> bool:
    """By an advertisement of its session that everybody knew when it was sent."""
    return event.session is not None and any(
        operation.kind == "advertise"
        and operation.filter is not None
        and operation.position < event.position < operation.ended_position
        and operation.effective_at <= event.sent_at
        and operation.filter.matches(event.attributes)
        for operation in event.session.operations.values()
    )


def _is_owed(history: History, event: Event, operation: Operation) -> bool:
    assert event.session is not None
    since = min(operation.requested_at, event.sent_at)
    return not _is_cut_off(history, event.session.broker, operation.session.broker, since)


def _is_cut_off(history: History, one: str, other: str, since: float) -> bool:
    """Has either of two brokers, or a link between them, forgotten what it knew?"""
    places: list[str | Edge] = [one, other, *history.tree.edges_between(one, other)]
    return any(history.amnesia[place].meets(since, inf) for place in places)


def _is_told(event: Event, losses: list[Loss]) -> bool:
    """Was its tick reported as lost? Where nobody knows its tick, any loss may have been it."""
    return any(
        not event.tick or (loss.pubend == event.pubend and loss.first <= event.tick <= loss.last)
        for loss in losses
    )


def _is_trimmed(history: History, loss: Loss) -> bool:
    return loss.last <= history.trimmed_upto.get(loss.pubend, 0)


def _check_losses(history: History, verdict: Verdict) -> None:
    homes = {session.instance: session.broker for session in history.sessions}
    merging = {session.instance for session in history.sessions if session.total_order}
    reaching = {o.session.instance for o in history.operations("subscribe") if o.since}
    for loss in history.losses:
        broker = loss.pubend.rpartition(".")[0]
        verdict.expect(
            loss.last <= history.lost_upto.get(loss.pubend, 0)
            or (loss.instance in merging and loss.first == loss.last)  # with its session
            or (loss.instance in reaching and (loss.withdrawn or _is_trimmed(history, loss)))
            or _is_cut_off(history, broker, homes[loss.instance], 0.0),
            "client {} was told that ticks {} to {} of {} are lost, but the log has them",
            loss.instance,
            loss.first,
            loss.last,
            loss.pubend,
        )
