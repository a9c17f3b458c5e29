"""No subscription sees an event twice, not even across a renewed session. Nor does an application
that writes its own cursors down, across all its processes and sessions; unless it has asked for the
same once more while it took that back, and that was refused, so that both stand."""

from __future__ import annotations

from motet.testing.checkers.verdict import Verdict
from motet.testing.history import History, Operation


def check(history: History) -> Verdict:
    verdict = Verdict("duplicates")
    seen: set[tuple[int, int, int]] = set()
    for delivery in history.deliveries:
        if delivery.event is None:
            continue  # the soundness checker's business
        key = (delivery.instance, delivery.handle, delivery.event.number)
        if key in seen:
            verdict.violations.append(
                f"{delivery.event} came again at {delivery.at:.4f} s for {delivery.operation}"
            )
        seen.add(key)
    done: dict[tuple[str, str, int], list[Operation]] = {}
    for effect in history.effects:
        if effect.event is None or effect.operation is None or not history.durable[effect.instance]:
            continue
        who = effect.operation.session.client
        what = (who, str(effect.operation.filter), effect.event.number)
        before = done.setdefault(what, [])
        stayed = any(each.stayed for each in (*before, effect.operation))
        if before and (effect.operation in before or not stayed):
            verdict.violations.append(
                f"{who}, which writes its own cursors down, got {effect.event} twice, "
                f"the second time at {effect.at:.4f} s for {effect.operation}"
            )
        before.append(effect.operation)
    verdict.checked = len(history.deliveries) + len(done)
    return verdict
