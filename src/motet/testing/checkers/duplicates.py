"""No subscription gets an event twice, not even across a renewed session. Neither does an
application with its own cursors, across all its processes and sessions; unless it subscribed again
before its unsubscription was refused, so that both subscriptions stand, or before the log had cut
for the transaction that ended its subscription, so that both are owed what comes before the cut."""

from __future__ import annotations

from motet.audit.records import DeliveryRecord, OperationRecord
from motet.model import OpId
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History


def check(history: History) -> CheckResult:
    verdict = CheckResult("duplicates")
    seen: set[tuple[int, int, int]] = set()
    for delivery in history.deliveries:
        if delivery.event is None:
            continue  # reported by the soundness checker
        key = (delivery.instance, delivery.handle, delivery.event.number)
        if key in seen:
            verdict.violations.append(
                f"{delivery.event} was delivered again at {delivery.at:.4f} s to "
                f"{delivery.operation}"
            )
        seen.add(key)
    done: dict[tuple[str, str, int], list[OperationRecord]] = {}
    ends = {
        (op, cut.pubend): tick
        for cut in history.cuts
        for op, tick, has_ended in cut.switches
        if has_ended
    }
    for effect in history.effects:
        if effect.event is None or effect.operation is None or not history.durable[effect.instance]:
            continue
        who = effect.operation.session.client
        what = (who, str(effect.operation.filter), effect.event.number)
        before = done.setdefault(what, [])
        stayed = any(each.stayed for each in (*before, effect.operation))
        both = stayed or _are_both_owed(effect, before, ends)
        if before and (effect.operation in before or not both):
            verdict.violations.append(
                f"{who}, which stores its own cursors, received {effect.event} twice, "
                f"the second time at {effect.at:.4f} s for {effect.operation}"
            )
        before.append(effect.operation)
    verdict.checked = len(history.deliveries) + len(done)
    return verdict


def _are_both_owed(
    effect: DeliveryRecord, before: list[OperationRecord], ends: dict[tuple[OpId, str], int]
) -> bool:
    """Had all these subscriptions started when the event was logged, and was one of them to end
    with a transaction for which the log had not cut yet?"""
    assert effect.event is not None
    assert effect.operation is not None
    ids = [each.id for each in (*before, effect.operation)]
    return all(op in effect.event.audience for op in ids) and any(
        effect.tick <= ends.get((op, effect.pubend), 0) for op in ids
    )
