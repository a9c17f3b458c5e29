"""No subscription sees an event twice, not even across a renewed session. Nor does an application
that writes its own cursors down, across all its processes and sessions."""

from __future__ import annotations

from motet.testing.checkers.verdict import Verdict
from motet.testing.history import History


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
    done: set[tuple[str, str, int]] = set()
    for effect in history.effects:
        if effect.event is None or effect.operation is None or not history.durable[effect.instance]:
            continue
        who = effect.operation.session.client
        what = (who, str(effect.operation.filter), effect.event.number)
        if what in done:
            verdict.violations.append(
                f"{who}, which writes its own cursors down, got {effect.event} twice, "
                f"the second time at {effect.at:.4f} s for {effect.operation}"
            )
        done.add(what)
    verdict.checked = len(history.deliveries) + len(done)
    return verdict
