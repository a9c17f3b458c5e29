"""When a transaction hands over a live stream, every exactly-once event goes to exactly one side,
whether it belongs to a transaction or not.

The sides are a subscription that ends and one that begins, with the same filter, in one committed
transaction. An event never reaches both. An event that a log owed to the old side, because it had
started there, reaches one of them. Excused: either client has left or was told of a loss; the log
or a broker on the path has lost its state. Also excused, if no advertisement of the event was
effective at its broker when it was sent: at the decision, or at some time after it, no client of
that broker advertised the event, so that the new side had not been attracted yet; or the new side
was attracted by an advertisement that had ended, and started again behind the event.
"""

from __future__ import annotations

from math import inf

from motet.audit.records import COMMITTED, DONE, Deal, EventRecord, OperationRecord
from motet.protocol.routing.starts import broker_of_pubend
from motet.testing.checkers import excuses
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History


def check(history: History) -> CheckResult:
    verdict = CheckResult("handover")
    arrived = excuses.arrivals(history)
    for deal in history.deals.values():
        if deal.committed:
            for old, new in _pairs(deal):
                _check_pair(history, deal, old, new, arrived, verdict)
    return verdict


def _pairs(deal: Deal) -> list[tuple[OperationRecord, OperationRecord]]:
    ended = [d.operation for d in deal.endings() if d.operation is not None]
    begun = [d.operation for d in deal.beginnings() if d.operation is not None]
    return [
        (old, new)
        for old in ended
        for new in begun
        if old.answer == DONE and old.filter == new.filter and old not in begun and new not in ended
    ]


def _check_pair(
    history: History,
    deal: Deal,
    old: OperationRecord,
    new: OperationRecord,
    arrived: set[tuple[EventRecord | None, OperationRecord | None]],
    verdict: CheckResult,
) -> None:
    lasting = excuses.stayed(history, new) and not new.gone
    for event in history.events:
        if not event.sure or not event.tick or event.deal is deal:
            continue  # `transaction_order` checks events of the same transaction
        if not excuses.matches(old.filter, event):
            continue
        both = (event, old) in arrived, (event, new) in arrived
        verdict.expect(
            not all(both), "{} was delivered to both {} and {} of {}", event, old, new, deal
        )
        start = history.starts.get((old.id, event.pubend), event.tick)
        if any(both) or old.id not in event.audience or start >= event.tick:
            continue
        if event.fate != "accepted" or not lasting or old.finished_at == inf:
            continue
        if _is_excused(history, event, old, new):
            continue
        if not _is_advertised(history, event) and (
            _is_advertised_late(history, deal, event, new)
            or _is_attracted_again(history, event, new)
        ):
            continue
        verdict.expect(
            False,
            "{}, tick {} of {}, was delivered neither to {} nor to {} of {}",
            event,
            event.tick,
            event.pubend,
            old,
            new,
            deal,
        )


def _is_excused(
    history: History, event: EventRecord, old: OperationRecord, new: OperationRecord
) -> bool:
    since = min(old.requested_at, new.requested_at, event.sent_at)
    return any(
        excuses.is_told_lost(history, event, side.session)
        or excuses.pubend_forgot(history, event, side, since)
        for side in (old, new)
    )


def _is_advertised(history: History, event: EventRecord) -> bool:
    """Was an advertisement of the event effective when it was sent? Then it had attracted the new
    side."""
    return any(
        each.effective_at <= event.sent_at < each.ended_at for each in _carriers(history, event)
    )


def _is_advertised_late(
    history: History, deal: Deal, event: EventRecord, new: OperationRecord
) -> bool:
    """At some time since the decision no client there advertised the event: then it had not
    attracted the new side yet, or attracts it again. The old side may be at that very broker, where
    its entry is never removed."""
    if new.id in event.audience:
        return False
    decided_at = _decided_by(history, deal)
    carriers = _carriers(history, event)
    ends = (each.ended_at for each in carriers if decided_at < each.ended_at < event.sent_at)
    return any(
        all(each.requested_at > moment or each.ended_at <= moment for each in carriers)
        for moment in (decided_at, *ends)
    )


def _is_attracted_again(history: History, event: EventRecord, new: OperationRecord) -> bool:
    """The new side had started there, and did so again behind the event: its broker had still known
    an advertisement that was over, withdrew the subscription when it heard of the end, and heard of
    the next advertisement after that."""
    if new.id not in event.audience:
        return False
    return history.starts.get((new.id, event.pubend), 0) >= event.tick


def _carriers(history: History, event: EventRecord) -> list[OperationRecord]:
    """Advertisements of the event by clients of the broker that has it in its log."""
    return [
        operation
        for session in history.sessions
        if broker_of_pubend(event.pubend) in session.homes()
        for operation in session.operations.values()
        if operation.kind == "advertise" and excuses.matches(operation.filter, event)
    ]


def _decided_by(history: History, deal: Deal) -> float:
    """When a committed transaction was decided, at the latest. Pubends cut after the decision, but
    perhaps long before the first client reads of it."""
    heard = [told.at for told in deal.told if told.outcome == COMMITTED]
    return min([*heard, *(cut.at for cut in history.cuts if cut.tx == deal.id)], default=inf)
