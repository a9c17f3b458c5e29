"""A stream that is handed over: every event goes to one of the two sides."""

from __future__ import annotations

from math import inf

from motet.audit.records import COMMITTED, DONE, Deal, Deed, EventRecord, OutcomeHeard
from motet.testing.checkers import handover
from motet.testing.history import LoggedCut
from tests.unit.testing.past import Past

PUBEND, TEXT = "A.1", "price < 9"


class HandOver:
    """From a buyer at A to one at C, decided at 1 s. The seller at A publishes at 4 s."""

    def __init__(self, advertised_at: float, effective_at: float = inf) -> None:
        self.past = Past()
        self.history = self.past.history
        seller = self.past.session("seller", "A")
        old = self.past.ask(self.past.session("old", "A"), "subscribe", TEXT)
        new = self.past.ask(self.past.session("new", "C"), "subscribe", TEXT, at=0.9)
        old.finished_at = 3.0
        self.past.ask(seller, "advertise", "price > 0", advertised_at, effective_at=effective_at)
        self.event: EventRecord = self.past.publish(seller, 4.0, price=5)
        self.event.sure, self.event.pubend, self.event.tick = True, PUBEND, 40
        self.event.audience = frozenset({old.id})
        self.history.starts[old.id, PUBEND] = 5
        self.deal = Deal("new/C-3/1", "static", new.session, 0.9, outcome=COMMITTED)
        for order, kind, side in (("1", "unsubscribe", old), ("2", "subscribe", new)):
            deed = Deed(self.deal, kind, order, side.session, -1, 0.9, side.session.instance)
            deed.operation, deed.answer = side, DONE
            self.deal.deeds.append(deed)
        self.history.deals[self.deal.id] = self.deal

    def cut(self, at: float) -> None:
        self.history.cuts.append(LoggedCut(PUBEND, 10, 10, self.deal.id, 1, at))

    def hear(self, at: float) -> None:
        self.deal.told.append(OutcomeHeard(at, at, "old", COMMITTED, 1))

    def violations(self) -> list[str]:
        return handover.check(self.history).violations


def test_an_event_that_reaches_no_side_is_a_violation() -> None:
    scene = HandOver(advertised_at=0.5)
    scene.cut(at=1.1)
    scene.hear(at=1.2)
    (found,) = scene.violations()
    assert "was delivered neither to" in found


def test_an_advertisement_made_after_the_cut_need_not_have_attracted_the_new_side() -> None:
    # given an advertisement that is younger than the decision and than the cut of its log
    scene = HandOver(advertised_at=2.0)
    scene.cut(at=1.1)
    # when the first client reads of the decision later
    scene.hear(at=3.0)
    # then an event sent before the advertisement is effective is not owed to the new side
    assert scene.violations() == []


def test_an_advertisement_made_before_the_cut_has_attracted_the_new_side() -> None:
    scene = HandOver(advertised_at=2.0)
    scene.cut(at=2.5)
    scene.hear(at=3.0)
    assert len(scene.violations()) == 1


def test_an_effective_advertisement_has_attracted_the_new_side_whenever_it_was_made() -> None:
    # given an advertisement that is younger than the cut
    scene = HandOver(advertised_at=2.0, effective_at=3.5)
    scene.cut(at=1.1)
    scene.hear(at=3.0)
    # when an event is sent after the advertisement is effective, and reaches no side
    # then that is a violation
    assert len(scene.violations()) == 1
