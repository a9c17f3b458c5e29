"""A transaction that was reported as committed stays committed, whatever crashes afterwards.

Every later answer is the same, and its events and cuts keep their ticks in the logs. Only a broker
that came back without its state may have forgotten.
"""

from __future__ import annotations

from motet.audit.records import COMMITTED, DONE, RUNNING, Deal
from motet.testing.checkers.excuses import is_cut_off, root_forgot
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History


def check(history: History) -> CheckResult:
    verdict = CheckResult("durability")
    for deal in history.deals.values():
        first = min((t.at for t in deal.told if t.outcome == COMMITTED), default=None)
        if first is None:
            continue
        for told in deal.told:
            if (
                told.asked_at > first
                and told.outcome != RUNNING
                and not verdict.holds(
                    told.outcome == COMMITTED or root_forgot(history, deal, told.at)
                )
            ):
                verdict.violated(
                    f"{deal} was reported committed at {first:.4f} s, but {told.outcome} to "
                    f"{told.who} at {told.at:.4f} s"
                )
        _check_effects(history, deal, verdict)
    return verdict


def _check_effects(history: History, deal: Deal, verdict: CheckResult) -> None:
    """Its events have been published by now."""
    for deed in deal.deeds:
        if (
            deed.event is not None
            and deed.answer == DONE
            and not verdict.holds(bool(deed.event.tick) or is_cut_off(history, deal, deed.session))
        ):
            verdict.violated(f"{deal} was committed, but {deed.event} is in no log")
