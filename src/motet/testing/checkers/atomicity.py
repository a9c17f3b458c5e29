"""All of a committed transaction takes effect, nothing of an aborted one; it has one outcome, the
same for everybody; and of all that a client names with one key, one is committed.

Every event of a committed transaction has a place in the log of its publisher's broker, and no
other has. Whoever took part and is still there was told how it ended, as everybody else was. That
what was begun is there, and what was ended is gone, the checkers of tables see.

Excused is what a broker forgot that had part in it, or what lies between it and the root.
"""

from __future__ import annotations

from motet.testing.checkers.excuses import is_cut_off, root_forgot
from motet.testing.checkers.verdict import Verdict
from motet.testing.deals import ABORTED, COMMITTED, EXPIRED, RUNNING, UNKNOWN, Deal
from motet.testing.history import DONE, History


def check(history: History) -> Verdict:
    verdict = Verdict("atomicity")
    cut = {each.tx for each in history.cuts}
    for deal in history.deals.values():
        _check_words(history, deal, verdict)
        _check_events(history, deal, verdict)
        if deal.outcome == ABORTED:
            verdict.expect(deal.id not in cut, "{} was aborted, but has a cut", deal)
        _check_audience(history, deal, verdict)
    _check_keys(history, verdict)
    return verdict


def _check_words(history: History, deal: Deal, verdict: Verdict) -> None:
    said = [told for told in deal.told if told.outcome in (COMMITTED, ABORTED)]
    for told in said[1:]:
        verdict.expect(
            told.outcome == said[0].outcome or root_forgot(history, deal),
            "{} is {} as {} was told at {:.4f} s, and {} as {} was told at {:.4f} s",
            deal,
            said[0].outcome,
            said[0].who,
            said[0].at,
            told.outcome,
            told.who,
            told.at,
        )
    numbers = {told.number for told in said if told.number}
    verdict.expect(
        len(numbers) <= 1 or root_forgot(history, deal), "{} has numbers {}", deal, numbers
    )
    for told in deal.told:
        if told.outcome == RUNNING:
            verdict.expect(
                told.asked_at <= deal.answered_at,
                "{} was committed by {:.4f} s, but {} hears at {:.4f} s that it is in progress",
                deal,
                deal.answered_at,
                told.who,
                told.at,
            )
        elif told.outcome == EXPIRED and said and said[0].at <= told.asked_at:
            verdict.expect(
                root_forgot(history, deal, told.at),
                "{} was {}, but {} hears at {:.4f} s that nobody knows it",
                deal,
                said[0].outcome,
                told.who,
                told.at,
            )


def _check_events(history: History, deal: Deal, verdict: Verdict) -> None:
    for deed in deal.deeds:
        event = deed.event
        if event is None:
            continue
        if deal.committed and deed.answer == DONE:
            verdict.expect(
                bool(event.tick) or is_cut_off(history, deal, deed.session.broker),
                "{} is committed, but {} was never published",
                deal,
                event,
            )
        elif deal.outcome == ABORTED:
            verdict.expect(not event.tick, "{} was aborted, but {} was published", deal, event)


def _check_audience(history: History, deal: Deal, verdict: Verdict) -> None:
    """Whoever took part hears how it ended; who was sent away has not."""
    if deal.outcome == UNKNOWN:
        return
    deeds = [deed for deed in deal.deeds if deed.answer not in ("TransactionOver", "NotInvited")]
    if deal.outcome == ABORTED:  # who was to do something in a plan never hears of it
        deeds = [deed for deed in deeds if not deed.planned]
    for session, process in dict.fromkeys((deed.session, deed.process) for deed in deeds):
        if session in history.living and process in history.present:
            verdict.expect(
                (session.client, session.epoch) in deal.heirs
                or is_cut_off(history, deal, session.broker),
                "{} is {}, but {}, which took part in it, was never told",
                deal,
                deal.outcome,
                session.client,
            )


def _check_keys(history: History, verdict: Verdict) -> None:
    done: dict[tuple[str, str], Deal] = {}
    for deal in history.deals.values():
        if not deal.key or not deal.committed:
            continue
        key = (deal.session.client, deal.key)
        other = done.setdefault(key, deal)
        verdict.expect(
            other is deal or root_forgot(history, other),
            "{} and {} are both committed, and both are {!r} of {}",
            other,
            deal,
            deal.key,
            deal.session.client,
        )
