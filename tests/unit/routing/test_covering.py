"""Covering that takes back what a wider filter covers, and the kind that does not."""

from __future__ import annotations

from motet.model import Filter, Hop, OpId
from motet.model.coverage import RETRACT, Covering
from motet.protocol.changes import Changes, Completed, Sent
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    Echo,
    RoutingMessage,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.transactions.state import Marks

B, WIDE, NARROW = Hop.broker("B"), Hop.client("wide"), Hop.client("narrow")
OFFER = OpId("ann", "B-1.1", 1)
COVERED = 9


def operation(client: Hop, number: int) -> OpId:
    return OpId(client.name, "A-1.1", number)


def broker(covering: Covering) -> Routing:
    """A, where an advertiser behind B attracts everything."""
    made = Routing("A-1", ["B"], Marks(), covering=covering)
    state = made.state
    state.met = state.complete = state.declared = state.bits.all_neighbours
    made.apply(Advertise(OFFER, Filter.parse("true")), B)
    return made


def sent(changes: Changes) -> list[RoutingMessage]:
    return [each.message for each in changes.of(Sent)]


def narrow_subscriptions(made: Routing) -> list[OpId]:
    ops = [operation(NARROW, number) for number in range(1, COVERED + 1)]
    for op in ops:
        made.apply(Subscribe(op, Filter.parse(f"x = {op.sequence}")), NARROW)
    return ops


def move_of_the_wide_one(made: Routing, number: int) -> list[RoutingMessage]:
    """It arrives and leaves."""
    op = operation(WIDE, number)
    messages = sent(made.apply(Subscribe(op, Filter.parse("x > 0"), echo=True), WIDE))
    for each in messages:
        if isinstance(each, Unsubscribe):
            made.apply(Echo(each.op), B)
    made.apply(Echo(op), B)
    return messages + sent(made.apply(Unsubscribe(op), WIDE))


def test_every_move_of_a_wide_subscription_is_dear_if_covering_takes_back() -> None:
    made = broker(RETRACT)
    narrow = narrow_subscriptions(made)
    for number in (1, 3, 5):
        messages = move_of_the_wide_one(made, number)
        came, *middle, left = messages
        assert (came.id, left.target) == (operation(WIDE, number),) * 2
        assert [each.target for each in middle[:COVERED]] == narrow
        assert [each.id for each in middle[COVERED:]] == narrow
        assert not made.state.waits
        made.validate()


def test_otherwise_no_move_is() -> None:
    made = broker(covering=True)
    narrow_subscriptions(made)
    for number in (1, 3):
        assert len(move_of_the_wide_one(made, number)) == 2


def test_a_removal_waits_until_what_was_taken_back_is_gone() -> None:
    made = broker(RETRACT)
    narrow, op = operation(NARROW, 1), operation(NARROW, 2)
    made.apply(Subscribe(narrow, Filter.parse("x = 1")), NARROW)
    changes = made.apply(Subscribe(operation(WIDE, 1), Filter.parse("x > 0")), WIDE)
    (taken_back,) = [each for each in sent(changes) if isinstance(each, Unsubscribe)]
    assert not made.apply(Unsubscribe(narrow, op), NARROW).of(Completed)
    assert Completed(op) in made.apply(Echo(taken_back.op), B).of(Completed)


def test_the_same_holds_for_advertisements() -> None:
    made = broker(RETRACT)
    narrow, op = operation(NARROW, 1), operation(NARROW, 2)
    made.apply(Advertise(narrow, Filter.parse("x = 1")), NARROW)
    changes = made.apply(Advertise(operation(WIDE, 1), Filter.parse("x > 0")), WIDE)
    (taken_back,) = [each for each in sent(changes) if isinstance(each, Unadvertise)]
    assert taken_back.target == narrow
    assert not made.apply(Unadvertise(narrow, op), NARROW).of(Completed)
    assert Completed(op) in made.apply(Echo(taken_back.op), B).of(Completed)
    assert not made.state.waits.removals


def test_who_waits_for_a_covered_operation_waits_behind_the_wider_one() -> None:
    made = broker(RETRACT)
    narrow = operation(NARROW, 1)
    made.apply(Subscribe(narrow, Filter.parse("x = 1"), echo=True), NARROW)
    changes = made.apply(Subscribe(operation(WIDE, 1), Filter.parse("x > 0")), WIDE)
    assert sent(changes)[-1] == Subscribe(narrow, Filter.parse("x = 1"), echo=True, probe=True)
    assert Completed(narrow) in made.apply(Echo(narrow), B).of(Completed)


def test_equal_filters_do_not_take_each_other_back() -> None:
    made = broker(RETRACT)
    first, second = operation(NARROW, 1), operation(WIDE, 1)
    made.apply(Subscribe(first, Filter.parse("x = 1")), NARROW)
    assert not sent(made.apply(Subscribe(second, Filter.parse("x = 1")), WIDE))
