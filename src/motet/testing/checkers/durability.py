"""What a client was told to be committed stays so, whatever crashes afterwards.

Everybody who asks later hears the same; its events keep the places in the logs that they had, and
its cuts theirs. Only a broker that has come back with nothing may have forgotten.
"""

from __future__ import annotations

from motet.testing.checkers.excuses import is_cut_off, root_forgot
from motet.testing.checkers.verdict import Verdict
from motet.testing.deals import COMMITTED, RUNNING, Deal
from motet.testing.history import DONE, History


def check(history: History) -> Verdict:
    verdict = Verdict("durability")
    for deal in history.deals.values():
        first = min((t.at for t in deal.told if t.outcome == COMMITTED), default=None)
        if first is None:
            continue
        for told in deal.told:
            if told.asked_at > first and told.outcome != RUNNING:
                verdict.expect(
                    told.outcome == COMMITTED or root_forgot(history, deal, told.at),
                    "{} was told to be committed at {:.4f} s, and {} hears at {:.4f} s: {}",
                    deal,
                    first,
                    told.who,
                    told.at,
                    told.outcome,
                )
        _check_effects(history, deal, verdict)
    return verdict


def _check_effects(history: History, deal: Deal, verdict: Verdict) -> None:
    """Where it has published something, it has done so by now."""
    for deed in deal.deeds:
        if deed.event is not None and deed.answer == DONE:
            verdict.expect(
                bool(deed.event.tick) or is_cut_off(history, deal, deed.session.broker),
                "{} was committed, and {} is in no log",
                deal,
                deed.event,
            )
