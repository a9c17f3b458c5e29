"""Completeness, duplicates, order and soundness: each can be content, and each can object."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from motet.audit.records import (
    ABORTED,
    COMMITTED,
    Deal,
    EventRecord,
    OperationRecord,
    OutcomeHeard,
    SessionRecord,
)
from motet.model import Filter
from motet.protocol.transactions.messages import Step
from motet.testing.checkers import completeness, duplicates, order, soundness
from motet.testing.history import finish
from tests.unit.testing.past import Past


class Shop(NamedTuple):
    """A seller at A, a buyer at C, and one event between them."""

    past: Past
    seller: SessionRecord
    buyer: SessionRecord
    offer: OperationRecord
    wish: OperationRecord
    event: EventRecord


@pytest.fixture
def shop() -> Shop:
    past = Past()
    seller, buyer = past.session("seller", "A"), past.session("buyer", "C")
    offer = past.ask(seller, "advertise", "price > 0")
    wish = past.ask(buyer, "subscribe", "price < 9")
    return Shop(past, seller, buyer, offer, wish, past.publish(seller, 1.0, price=5))


# ── completeness ─────────────────────────────────────────────────────────────────────────


def test_an_event_that_arrives_is_complete(shop: Shop) -> None:
    shop.past.deliver(shop.wish, shop.event)
    verdict = completeness.check(shop.past.history)
    assert (verdict.checked, verdict.violations) == (1, [])


def test_an_event_that_does_not_arrive_is_missed(shop: Shop) -> None:
    verdict = completeness.check(shop.past.history)
    assert verdict.checked == 1
    assert "was never delivered to subscribe buyer" in verdict.violations[0]


def test_an_arrival_at_another_subscription_does_not_count(shop: Shop) -> None:
    other = shop.past.ask(shop.buyer, "subscribe", "price = 5")
    shop.past.deliver(other, shop.event)
    assert len(completeness.check(shop.past.history).violations) == 1


def test_events_that_do_not_match_are_not_owed(shop: Shop) -> None:
    shop.past.deliver(shop.wish, shop.event)
    shop.past.publish(shop.seller, 2.0, price=10)
    assert completeness.check(shop.past.history).checked == 1


@pytest.mark.parametrize("place", ["B", ("A", "B"), ("B", "C"), 1])
@pytest.mark.parametrize(("since", "until", "excused"), [(0.2, 0.9, 0), (0.9, 1.02, 1), (5, 6, 0)])
def test_only_trouble_on_the_path_at_that_time_excuses(
    shop: Shop, place: str | tuple[str, str] | int, since: float, until: float, excused: int
) -> None:
    shop.past.history.disturbed[place].touch(since, until)
    assert len(completeness.check(shop.past.history).violations) == 1 - excused


def test_trouble_beside_the_path_excuses_nothing() -> None:
    past = Past(("A", "B"), ("B", "C"), ("B", "D"))
    seller, buyer = past.session("seller", "A"), past.session("buyer", "C")
    past.ask(seller, "advertise", "price > 0")
    past.ask(buyer, "subscribe", "price < 9")
    past.publish(seller, 1.0, price=5)
    past.history.disturbed["D"].touch(0.0, 9.0)
    past.history.disturbed["B", "D"].touch(0.0, 9.0)
    assert completeness.check(past.history).violations


def test_lost_state_excuses_what_was_asked_before(shop: Shop) -> None:
    shop.past.history.amnesia["B"].touch(0.5, 0.5)
    assert completeness.check(shop.past.history).checked == 0


def test_lost_state_excuses_nothing_that_was_asked_later(shop: Shop) -> None:
    shop.past.history.amnesia["B"].touch(-1.0, -1.0)
    assert completeness.check(shop.past.history).violations


def test_a_subscription_that_was_not_effective_is_owed_nothing(shop: Shop) -> None:
    shop.wish.effective_at = 1.5
    assert completeness.check(shop.past.history).checked == 0


def test_a_subscription_whose_end_began_is_owed_nothing(shop: Shop) -> None:
    shop.wish.ended_at = 1.01
    assert completeness.check(shop.past.history).checked == 0


def test_a_withdrawal_behind_the_event_does_not_excuse(shop: Shop) -> None:
    shop.offer.ended_at, shop.offer.ended_position = 1.0, shop.event.position + 1
    assert completeness.check(shop.past.history).violations


def test_after_quiet_no_trouble_excuses(shop: Shop) -> None:
    history = shop.past.history
    history.settled_at = 0.5
    history.disturbed["A", "B"].begin(0.0)
    assert completeness.check(history).violations


# ── duplicates ───────────────────────────────────────────────────────────────────────────


def test_one_event_for_two_subscriptions_is_no_duplicate(shop: Shop) -> None:
    other = shop.past.ask(shop.buyer, "subscribe", "price = 5")
    shop.past.deliver(shop.wish, shop.event)
    shop.past.deliver(other, shop.event)
    verdict = duplicates.check(shop.past.history)
    assert (verdict.checked, verdict.violations) == (2, [])


def test_one_event_twice_for_one_subscription_is_a_duplicate(shop: Shop) -> None:
    shop.past.deliver(shop.wish, shop.event)
    shop.past.deliver(shop.wish, shop.event)
    assert "was delivered again" in duplicates.check(shop.past.history).violations[0]


# ── order ────────────────────────────────────────────────────────────────────────────────


def test_events_in_order_are_in_order(shop: Shop) -> None:
    later = shop.past.publish(shop.seller, 2.0, price=6)
    shop.past.deliver(shop.wish, shop.event)
    shop.past.deliver(shop.wish, later)
    verdict = order.check(shop.past.history)
    assert (verdict.checked, verdict.violations) == (1, [])


def test_events_of_one_session_out_of_order_are_found(shop: Shop) -> None:
    later = shop.past.publish(shop.seller, 2.0, price=6)
    shop.past.deliver(shop.wish, later)
    shop.past.deliver(shop.wish, shop.event)
    assert order.check(shop.past.history).violations


def test_events_of_two_publishers_have_no_order(shop: Shop) -> None:
    rival = shop.past.session("rival", "B")
    other = shop.past.publish(rival, 0.5, price=6)
    shop.past.deliver(shop.wish, shop.event)
    shop.past.deliver(shop.wish, other)
    assert not order.check(shop.past.history).violations


# ── soundness ────────────────────────────────────────────────────────────────────────────


def test_a_matching_advertised_event_is_sound(shop: Shop) -> None:
    shop.past.deliver(shop.wish, shop.event)
    verdict = soundness.check(shop.past.history)
    assert (verdict.checked, verdict.violations) == (3, [])


def test_an_event_that_does_not_match_its_subscription(shop: Shop) -> None:
    shop.past.deliver(shop.wish, shop.past.publish(shop.seller, 2.0, price=10))
    assert "at C as of seller" in soundness.check(shop.past.history).violations[0]


def test_an_event_that_was_never_published_is_a_violation(shop: Shop) -> None:
    shop.past.deliver(shop.wish, None)
    assert "was never published" in soundness.check(shop.past.history).violations[0]


def test_an_event_for_no_subscription(shop: Shop) -> None:
    shop.past.deliver(None, shop.event)
    assert "no subscription" in soundness.check(shop.past.history).violations[0]


def test_an_event_outside_the_advertised_space(shop: Shop) -> None:
    shop.past.deliver(shop.wish, shop.past.publish(shop.seller, 2.0, price=-1))
    found = soundness.check(shop.past.history).violations
    assert any("accepted, although it was never advertised" in each for each in found)
    assert any("though it was not advertised" in each for each in found)


def test_an_event_after_the_withdrawal_of_its_advertisement(shop: Shop) -> None:
    shop.offer.ended_position = shop.event.position - 1
    assert soundness.check(shop.past.history).violations


def test_refusing_an_advertised_event_is_a_violation(shop: Shop) -> None:
    shop.event.fate = "refused"
    assert "refused, although" in soundness.check(shop.past.history).violations[0]


def test_a_failed_advertisement_allows_both(shop: Shop) -> None:
    shop.offer.answer = "NotEffective"
    assert not soundness.check(shop.past.history).violations
    shop.event.fate = "refused"
    assert not soundness.check(shop.past.history).violations


@pytest.mark.parametrize("outcome", [COMMITTED, ABORTED])
def test_an_event_that_a_plan_has_advertised_for_a_client_that_left_before_it_heard(
    shop: Shop, outcome: str
) -> None:
    past, seller = shop.past, shop.seller
    plan = Deal("buyer/C-2/2", "static", shop.buyer, 2.0, answered_at=3.0)
    step = Step("advertise", "00000001", "price < 0", Filter.parse("price < 0"))
    plan.steps = {"seller": (step,)}
    plan.told = [OutcomeHeard(3.0, 2.0, "buyer", outcome)]
    past.history.deals[plan.id] = plan
    past.deliver(shop.wish, past.publish(seller, 4.0, fate="", price=-1))
    seller.end(5.0)
    later = past.session("seller", "A")
    later.opened_at = 6.0
    finish(past.history)
    found = soundness.check(past.history).violations
    assert len(found) == (1 if outcome == ABORTED else 0)
    assert len(seller.forgotten) == (0 if outcome == ABORTED else 1)
    assert later.forgotten == []
