"""Exactly once, in the order of the log, nothing from before: content, and able to object."""

from __future__ import annotations

from typing import Any

import pytest

from motet.audit.records import (
    COMMITTED,
    Deal,
    Deed,
    DeliveryRecord,
    EventRecord,
    LossRecord,
    OperationRecord,
    OutcomeHeard,
    SessionRecord,
)
from motet.testing.checkers import duplicates, exactly_once, handover, order, soundness
from motet.testing.history import LoggedCut
from tests.unit.testing.past import Past

PUBEND = "A.1"


class Stream:
    """A seller at A with a log, and a buyer at C."""

    def __init__(self, *edges: tuple[str, str]) -> None:
        self.past = Past(*edges)
        self.history = self.past.history
        self.seller: SessionRecord = self.past.session("seller", "A")
        self.buyer: SessionRecord = self.past.session("buyer", "C")
        self.past.ask(self.seller, "advertise", "price > 0")
        self.wish: OperationRecord = self.past.ask(self.buyer, "subscribe", "price < 9")

    def publish(self, tick: int, at: float = 1.0, **more: Any) -> EventRecord:
        event = self.past.publish(self.seller, at, price=5)
        event.sure, event.pubend, event.tick = True, PUBEND, tick
        for name, value in more.items():
            setattr(event, name, value)
        return event

    def deliver(self, event: EventRecord, tick: int | None = None, pubend: str = PUBEND) -> None:
        tick = event.tick if tick is None else tick
        self.history.deliveries.append(
            DeliveryRecord(9.0, self.buyer.instance, 1, self.wish, event, "seller", pubend, tick)
        )

    def lose(self, first: int, last: int) -> None:
        self.history.losses.append(LossRecord(self.buyer.instance, PUBEND, first, last))


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.mark.parametrize(("dealt", "last", "owed"), [(True, 9, 0), (True, 3, 1), (False, 9, 1)])
def test_an_advertisement_that_a_plan_has_ended_carries_what_was_sent_before(
    stream: Stream, dealt: bool, last: int, owed: int
) -> None:
    (offer,) = (each for each in stream.seller.operations.values())
    offer.dealt, offer.doubted_position = dealt, 5
    stream.publish(7, last_position=last)
    assert len(exactly_once.check(stream.history).violations) == owed


def test_an_event_that_arrives_is_owed_once(stream: Stream) -> None:
    stream.deliver(stream.publish(3))
    verdict = exactly_once.check(stream.history)
    assert (verdict.checked, verdict.violations) == (1, [])


def test_a_missing_event_is_a_violation_whatever_was_broken(stream: Stream) -> None:
    stream.publish(3)
    stream.history.disturbed["B"].touch(0.0, 5.0)
    (found,) = exactly_once.check(stream.history).violations
    assert "was never delivered to subscribe buyer" in found
    assert exactly_once.missing(stream.history) == [found]


def test_a_loss_excuses_its_ticks_and_no_others(stream: Stream) -> None:
    stream.publish(3)
    stream.publish(4)
    stream.history.lost_upto[PUBEND] = 3
    stream.lose(1, 3)
    (found,) = exactly_once.check(stream.history).violations
    assert "event 1" in found


def test_a_reported_loss_of_events_that_the_log_has_is_a_violation(stream: Stream) -> None:
    stream.publish(3)
    stream.history.lost_upto[PUBEND] = 2
    stream.lose(1, 3)
    assert any("but the log has them" in f for f in exactly_once.check(stream.history).violations)
    stream.history.amnesia["A"].touch(2.0, 2.0)
    assert not exactly_once.check(stream.history).violations


def test_an_event_after_a_start_is_owed_before_the_advertisement_is_effective(
    stream: Stream,
) -> None:
    event = stream.publish(3, at=0.05)
    assert exactly_once.check(stream.history).checked == 0
    event.audience = frozenset({stream.wish.id})
    stream.history.starts[stream.wish.id, PUBEND] = event.tick - 1
    assert len(exactly_once.check(stream.history).violations) == 1
    stream.history.starts[stream.wish.id, PUBEND] = event.tick
    assert exactly_once.check(stream.history).checked == 0


def test_an_older_event_is_owed_to_a_subscription_that_reaches_back_to_it(stream: Stream) -> None:
    old, older = stream.publish(3, at=0.05), stream.publish(1, at=0.04)
    stream.wish.since = {"": 2}
    stream.history.first_starts[stream.wish.id, PUBEND] = 5
    (found,) = exactly_once.check(stream.history).violations
    assert "event 0" in found
    stream.deliver(old)
    assert not exactly_once.check(stream.history).violations
    # unless another subscription of the same client was there first
    stream.history.deliveries.clear()
    other = stream.past.ask(stream.buyer, "subscribe", "price < 2")
    stream.history.first_starts[other.id, PUBEND] = 4
    assert not exactly_once.check(stream.history).violations
    assert older.tick == 1


def test_trimmed_events_may_be_reported_lost_to_a_subscription_that_reaches_back(
    stream: Stream,
) -> None:
    stream.lose(1, 3)
    stream.history.trimmed_upto[PUBEND] = 3
    assert len(exactly_once.check(stream.history).violations) == 1
    stream.wish.since = {"": 0}
    assert not exactly_once.check(stream.history).violations


# ── durable clients ──────────────────────────────────────────────────────────────────────


def test_an_event_not_processed_by_a_durable_application_has_not_arrived(stream: Stream) -> None:
    event = stream.publish(3)
    stream.deliver(event)
    stream.history.durable[stream.buyer.instance] = False
    assert len(exactly_once.check(stream.history).violations) == 1
    stream.history.effects.append(stream.history.deliveries[-1])
    assert not exactly_once.check(stream.history).violations


def test_only_an_application_that_stores_cursors_must_not_repeat_an_effect(stream: Stream) -> None:
    stream.deliver(stream.publish(3))
    stream.history.effects += 2 * stream.history.deliveries
    stream.history.durable[stream.buyer.instance] = False
    assert not duplicates.check(stream.history).violations
    stream.history.durable[stream.buyer.instance] = True
    (found,) = duplicates.check(stream.history).violations
    assert "received event 0" in found


def test_two_subscriptions_are_owed_what_comes_before_the_end_of_the_first(
    stream: Stream,
) -> None:
    """A transaction has ended the first one, and the application has subscribed again."""
    history, first = stream.history, stream.wish
    again = stream.past.ask(stream.buyer, "subscribe", "price < 9", at=0.5)
    history.durable[stream.buyer.instance] = True
    event = stream.publish(3, audience=frozenset({first.id, again.id}))
    stream.deliver(event)
    history.effects += [history.deliveries[0], history.deliveries[0]._replace(operation=again)]
    assert len(duplicates.check(history).violations) == 1
    history.cuts.append(LoggedCut(PUBEND, 4, 4, "tx", 1, switches=((first.id, 4, True),)))
    assert not duplicates.check(history).violations
    history.cuts[0] = LoggedCut(PUBEND, 2, 2, "tx", 1, switches=((first.id, 2, True),))
    assert len(duplicates.check(history).violations) == 1  # it had ended before
    history.cuts[0] = LoggedCut(PUBEND, 4, 4, "tx", 1, switches=((first.id, 4, True),))
    event.audience = frozenset({first.id})
    assert len(duplicates.check(history).violations) == 1  # the second one had not started
    event.audience = frozenset({first.id, again.id})
    history.effects.append(history.effects[0])
    assert len(duplicates.check(history).violations) == 1  # the first one got it twice


# ── handovers ────────────────────────────────────────────────────────────────────────────


def _hand_over(stream: Stream) -> OperationRecord:
    """The subscription of the buyer ends at tick 2, and that of an heir begins."""
    heir = stream.past.session("heir", "C")
    new = stream.past.ask(heir, "subscribe", "price < 9")
    stream.wish.finished_at = 2.0
    deal = Deal("tx", "static", heir, 0.2, outcome=COMMITTED)
    for kind, operation in (("unsubscribe", stream.wish), ("subscribe", new)):
        place = (deal, kind, "1", operation.session, 1, 0.2, operation.session.instance)
        deal.deeds.append(Deed(*place, operation=operation, answer="Done"))
    deal.told.append(OutcomeHeard(0.3, 0.2, "heir", COMMITTED, 1))
    stream.history.deals[deal.id] = deal
    stream.history.starts |= {(stream.wish.id, PUBEND): 1, (new.id, PUBEND): 2}
    return new


def test_an_event_behind_a_handover_reaches_the_new_side(stream: Stream) -> None:
    new = _hand_over(stream)
    event = stream.publish(3, audience=frozenset({stream.wish.id, new.id}))
    (found,) = handover.check(stream.history).violations
    assert "was delivered neither to" in found
    stream.past.deliver(new, event)
    assert not handover.check(stream.history).violations


def test_the_new_side_of_a_handover_may_start_again_if_no_advertisement_is_effective(
    stream: Stream,
) -> None:
    """The advertisement that attracted it had ended, and the next one has not reached it yet."""
    new = _hand_over(stream)
    stream.publish(3, audience=frozenset({stream.wish.id, new.id}))
    (offer,) = stream.seller.operations.values()
    stream.history.starts[new.id, PUBEND] = 5
    assert len(handover.check(stream.history).violations) == 1
    offer.effective_at = 1.5
    assert not handover.check(stream.history).violations
    stream.history.starts[new.id, PUBEND] = 2
    assert len(handover.check(stream.history).violations) == 1


# ── publishers, and what is over ─────────────────────────────────────────────────────────


def test_delivering_a_void_publication_is_a_violation(stream: Stream) -> None:
    event = stream.publish(3, fate="void")
    stream.deliver(event)
    assert any("never published" in f for f in soundness.check(stream.history).violations)


def test_a_gap_before_the_last_event_of_an_ended_subscription_is_a_violation(
    stream: Stream,
) -> None:
    stream.publish(3)
    last = stream.publish(4)
    stream.publish(5)
    stream.wish.gone = True
    assert exactly_once.check(stream.history).checked == 0
    stream.deliver(last)
    (found,) = exactly_once.check(stream.history).violations
    assert "event 0" in found


def test_events_of_all_publishers_are_ordered_by_tick(stream: Stream) -> None:
    first, second = stream.publish(3), stream.publish(4)
    stream.deliver(first)
    stream.deliver(second)
    assert not order.check(stream.history).violations
    stream.deliver(second)
    (found,) = order.check(stream.history).violations
    assert "tick 4 of A.1, was delivered after tick 4" in found


def test_an_event_may_come_late_from_another_log_only_for_a_reason(stream: Stream) -> None:
    moved = {"pubend": "B.1"}
    first, second = stream.publish(3), stream.publish(9, **moved)
    stream.deliver(second, pubend="B.1")
    stream.deliver(first)
    (found,) = order.check(stream.history).violations
    assert "was delivered after event 1" in found
    # it is older than the subscription, which reaches back
    stream.history.first_starts[stream.wish.id, PUBEND] = 3
    assert order.check(stream.history).violations
    stream.wish.since = {"": 0}
    assert not order.check(stream.history).violations
    stream.history.first_starts[stream.wish.id, PUBEND] = 2
    assert order.check(stream.history).violations
    # the other log has lost something before the later event
    stream.history.losses.append(LossRecord(stream.buyer.instance, "B.1", 1, 9))
    assert order.check(stream.history).violations
    stream.history.losses.append(LossRecord(stream.buyer.instance, "B.1", 1, 8))
    assert not order.check(stream.history).violations


@pytest.mark.parametrize(
    ("place", "at", "pubend", "is_excused"),
    [
        (("A", "B"), 5.0, "B.1", True),
        (("A", "B"), 0.5, "B.1", False),
        (("A", "B"), 9.5, "B.1", False),
        (("C", "D"), 5.0, "B.1", False),
        ("B", 5.0, "B.1", False),
        (("A", "B"), 5.0, PUBEND, False),
    ],
    ids=["on the way", "before the event", "too late", "aside", "a broker", "the same log"],
)
def test_an_event_may_come_late_from_a_log_that_was_out_of_the_overlay(
    place: Any, at: float, pubend: str, *, is_excused: bool
) -> None:
    # given a log at A, a subscriber at C, and D behind C
    stream = Stream(("A", "B"), ("B", "C"), ("C", "D"))
    first, second = stream.publish(3), stream.publish(9, pubend=pubend)
    stream.deliver(second, pubend=pubend)
    stream.deliver(first)
    assert order.check(stream.history).violations
    stream.history.amnesia[place].touch(at, at)
    assert (not order.check(stream.history).violations) is is_excused


def test_past_events_of_one_log_have_an_order(stream: Stream) -> None:
    first, second = stream.publish(3), stream.publish(4)
    stream.wish.since = {"": 0}
    stream.history.first_starts[stream.wish.id, PUBEND] = 5
    stream.deliver(second)
    stream.deliver(first)
    assert len(order.check(stream.history).violations) == 2


def test_a_tick_holds_one_event(stream: Stream) -> None:
    first, second = stream.publish(3), stream.publish(4)
    stream.deliver(first)
    stream.deliver(second, tick=3)
    assert any(
        "tick 3 of A.1 is event 0" in found for found in order.check(stream.history).violations
    )


def test_delivering_an_event_older_than_the_subscription_is_a_violation(stream: Stream) -> None:
    event = stream.publish(3, settled_at=4.0)
    stream.wish.requested_at = 4.0
    stream.deliver(event)
    assert not soundness.check(stream.history).violations
    stream.wish.requested_at = 4.5
    (found,) = soundness.check(stream.history).violations
    assert "which was requested later" in found
