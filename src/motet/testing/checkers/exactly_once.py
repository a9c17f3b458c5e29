"""An accepted sure event reaches every matching subscription that is in force in the end, whatever
broke in between, if the subscription and a matching advertisement were effective before it was
sent, or if the event is in its log behind the start of the subscription. A subscription that has
ended must have got all its events before the last one that it got from the same log.

Excused: the publisher's or the subscriber's broker lost its state after the older of the two was
requested; a link on the path was removed from the overlay and put back; or the client was told that
the ticks are lost. A reported loss must be real: the log has dropped the tick, or the log is gone
as a whole; or the tick lies in the past that a subscription reached back to, and no client
advertises there any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from motet.audit.records import EventRecord, LossRecord, OperationRecord
from motet.model import Filter
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History
from motet.testing.topology import Edge

Arrived = set[tuple[EventRecord | None, OperationRecord | None]]


def check(history: History) -> CheckResult:
    verdict = CheckResult("exactly-once")
    _check_losses(history, verdict)
    _check_arrivals(history, verdict)
    return verdict


def missing(history: History) -> list[str]:
    """Owed events that have not arrived, or not yet."""
    verdict = CheckResult("exactly-once")
    _check_arrivals(history, verdict)
    return verdict.violations


def _check_arrivals(history: History, verdict: CheckResult) -> None:
    events = [e for e in history.events if e.sure and e.fate == "accepted" and e.session]
    if not events:
        return
    arrived: Arrived = {(d.event, d.operation) for d in history.taken()}
    last = _last_ticks(history)
    losses: dict[int, list[LossRecord]] = {}
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
            if not matches[key] or not _is_owed(history, event, operation):
                continue
            if not verdict.holds((event, operation) in arrived or _is_told(event, reported)):
                home = event.session.home if event.session else "?"
                verdict.violated(
                    f"{event}, sent at {event.sent_at:.4f} s at {home}, was never delivered to "
                    f"{operation}"
                )


def _last_ticks(history: History) -> dict[tuple[OperationRecord, str], int]:
    """By subscription and log: the last tick that arrived."""
    last: dict[tuple[OperationRecord, str], int] = {}
    for delivery in history.taken():
        if delivery.operation is not None and delivery.tick:
            key = (delivery.operation, delivery.pubend)
            last[key] = max(delivery.tick, last.get(key, 0))
    return last


def _is_behind_its_start(history: History, event: EventRecord, operation: OperationRecord) -> bool:
    """Had the subscription started when the event was logged, and does that start still count? In
    total order only a start that the client's broker has asked for counts, which cannot be observed
    from outside: there an event is owed only if its advertisement was effective before."""
    if operation.id not in event.audience or operation.session.total_order:
        return False
    return event.tick > history.starts.get((operation.id, event.pubend), event.tick)


def _is_reached(history: History, event: EventRecord, operation: OperationRecord) -> bool:
    """Is the event older than a subscription that reaches back to it? Only the first subscription
    of its client at a log does, up to its first start there."""
    since = operation.since.get(event.pubend, operation.since.get(""))
    start = history.first_starts.get((operation.id, event.pubend))
    if since is None or start is None or not since < event.tick <= start:
        return False
    ids = (each.id for each in operation.session.operations.values())
    others = [t for op in ids if (t := history.first_starts.get((op, event.pubend))) is not None]
    return min(others) == start


def _is_carried(event: EventRecord) -> bool:
    """Did the event match an advertisement of its session that was effective when it was sent? A
    plan may have ended it before without its client knowing: then it counts only for what was sent
    before the plan."""
    return event.session is not None and any(
        operation.kind == "advertise"
        and operation.filter is not None
        and operation.position < event.position < operation.ended_position
        and operation.effective_at <= event.sent_at
        and not (operation.dealt and event.last_position > operation.doubted_position)
        and operation.filter.matches(event.attributes)
        for operation in event.session.operations.values()
    )


def _is_owed(history: History, event: EventRecord, operation: OperationRecord) -> bool:
    assert event.session is not None
    since = min(operation.requested_at, event.sent_at)
    homes = (*event.session.homes(since), *operation.session.homes(since))
    return not _is_cut_off(history, homes, since)


def _is_cut_off(history: History, homes: Sequence[str], since: float) -> bool:
    """Has one of these brokers, or a link between them, lost its state?"""
    places: list[str | Edge] = [*homes, *history.tree.edges_within(homes)]
    return any(history.amnesia[place].meets(since, inf) for place in places)


def _is_told(event: EventRecord, losses: list[LossRecord]) -> bool:
    """Was its tick reported as lost? If the tick is unknown, any reported loss may be the event."""
    return any(
        not event.tick or (loss.pubend == event.pubend and loss.first <= event.tick <= loss.last)
        for loss in losses
    )


def _is_trimmed(history: History, loss: LossRecord) -> bool:
    return loss.last <= history.trimmed_upto.get(loss.pubend, 0)


def _check_losses(history: History, verdict: CheckResult) -> None:
    homes = {session.instance: session.homes() for session in history.sessions}
    merging = {session.instance for session in history.sessions if session.total_order}
    reaching = {o.session.instance for o in history.operations("subscribe") if o.since}
    for loss in history.losses:
        broker = loss.pubend.rpartition(".")[0]
        if not verdict.holds(
            loss.last <= history.lost_upto.get(loss.pubend, 0)
            or (loss.instance in merging and loss.first == loss.last)  # with its session
            or (loss.instance in reaching and (loss.withdrawn or _is_trimmed(history, loss)))
            or _is_cut_off(history, (broker, *homes[loss.instance]), 0.0)
        ):
            verdict.violated(
                f"client {loss.instance} was told that ticks {loss.first} to {loss.last} of "
                f"{loss.pubend} are lost, but the log has them"
            )
