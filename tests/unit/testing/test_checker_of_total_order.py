"""One order for all who ask for it: content, and able to object."""

from __future__ import annotations

import pytest

from motet.audit.records import DeliveryRecord, EventRecord, SessionRecord
from motet.testing.checkers import total_order
from tests.unit.testing.past import Past


class Audience:
    """A seller at A, and three buyers, two of them in total order."""

    def __init__(self) -> None:
        self.past = Past()
        self.seller: SessionRecord = self.past.session("seller", "A")
        self.buyers = [self.past.session(f"buyer{n}", "C") for n in range(3)]
        for buyer in self.buyers[:2]:
            buyer.total_order = True

    def event(self, *, sure: bool = True) -> EventRecord:
        event = self.past.publish(self.seller, 1.0, price=5)
        event.sure = sure
        return event

    def give(self, buyer: int, event: EventRecord, tick: int, pubend: str = "A.1") -> None:
        session = self.buyers[buyer]
        self.past.history.deliveries.append(
            DeliveryRecord(9.0, session.instance, 1, None, event, "seller", pubend, tick, session)
        )

    def objections(self) -> list[str]:
        return total_order.check(self.past.history).violations


@pytest.fixture
def audience() -> Audience:
    return Audience()


def test_a_common_order_with_missing_events_is_no_violation(audience: Audience) -> None:
    first, second, third = (audience.event() for _ in range(3))
    for buyer in (0, 1):
        audience.give(buyer, first, 5, "A.1")
        if buyer:
            audience.give(buyer, second, 5, "B.1")
        audience.give(buyer, third, 6, "A.1")
        audience.give(buyer, third, 6, "A.1")  # for another subscription
    verdict = total_order.check(audience.past.history)
    assert verdict.violations == []
    assert verdict.checked == 4


def test_two_orders_are_noticed_even_if_both_look_right(audience: Audience) -> None:
    first, second = audience.event(), audience.event()
    audience.give(0, first, 5)
    audience.give(0, second, 6)
    audience.give(1, second, 5)
    audience.give(1, first, 6)
    (found,) = audience.objections()
    assert "was delivered before event 1" in found
    assert "to buyer0" in found


@pytest.mark.parametrize(("tick", "pubend"), [(4, "Z.1"), (5, "A.1")])
def test_an_event_must_not_come_behind_its_place(
    audience: Audience, tick: int, pubend: str
) -> None:
    audience.give(0, audience.event(), 5, "B.1")
    audience.give(0, audience.event(), tick, pubend)
    (found,) = audience.objections()
    assert f"at ({tick}, '{pubend}') was delivered after" in found


def test_best_effort_and_publisher_order_are_not_concerned(audience: Audience) -> None:
    audience.give(0, audience.event(), 5)
    audience.give(0, audience.event(sure=False), 0, "")
    audience.give(2, audience.event(), 5)
    audience.give(2, audience.event(), 4)
    assert audience.objections() == []
