"""Nothing of a transaction is seen before it is committed, and nothing ever of one that is not.

An event that it publishes is delivered only when its coordinator had asked for the commit (or, of a
plan, everybody had done its part) and its log had the cut. Of what it begins nothing comes before
that, and of an aborted one nothing at all. Nothing is excused.
"""

from __future__ import annotations

from math import inf

from motet.testing.checkers.verdict import Verdict
from motet.testing.deals import ABORTED, Deal
from motet.testing.history import Delivery, History


def check(history: History) -> Verdict:
    verdict = Verdict("visibility")
    cut_at: dict[tuple[str, str], float] = {}
    for cut in history.cuts:
        key = (cut.tx, cut.pubend)
        cut_at[key] = min(cut.at, cut_at.get(key, inf))
    for delivery in history.deliveries:
        event, operation = delivery.event, delivery.operation
        if event is not None and event.deal is not None:
            _check(event.deal, delivery, f"{event}", verdict)
            at = cut_at.get((event.deal.id, delivery.pubend), inf)
            verdict.expect(
                at <= delivery.at,
                "{} of {} came at {:.4f} s from {}, which had not cut for it",
                event,
                event.deal,
                delivery.at,
                delivery.pubend,
            )
        if operation is not None and operation.deal is not None:
            _check(operation.deal, delivery, f"{event} for {operation}", verdict)
    return verdict


def _check(deal: Deal, delivery: Delivery, what: str, verdict: Verdict) -> None:
    verdict.expect(
        deal.ready_at <= delivery.at,
        "{} came at {:.4f} s, but {} could not be committed before {:.4f} s",
        what,
        delivery.at,
        deal,
        deal.ready_at,
    )
    verdict.expect(deal.outcome != ABORTED, "{} came, but {} was aborted", what, deal)
