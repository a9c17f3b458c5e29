"""No subscription gets an event twice, not even across a renewed session. Neither does an
application with its own cursors, across all its processes and sessions; unless it subscribed again
before its unsubscription was refused, so that both subscriptions stand."""

from __future__ import annotations

from motet.audit.records import OperationRecord
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
    for effect in history.effects:
        if effect.event is None or effect.operation is None or not history.durable[effect.instance]:
            continue
        who = effect.operation.session.client
        what = (who, str(effect.operation.filter), effect.event.number)
        before = done.setdefault(what, [])
        stayed = any(each.stayed for each in (*before, effect.operation))
        if before and (effect.operation in before or not stayed):
            verdict.violations.append(
                f"{who}, which stores its own cursors, received {effect.event} twice, "
                f"the second time at {effect.at:.4f} s for {effect.operation}"
            )
        before.append(effect.operation)
    verdict.checked = len(history.deliveries) + len(done)
    return verdict
