"""No subscription sees an event twice, not even across a renewed session."""

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
    verdict.checked = len(history.deliveries)
    return verdict
