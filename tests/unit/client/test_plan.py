"""Plans: an order of operations, total or partial, and what cannot be one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.client.plan import Plan
from motet.errors import EventError, FilterError, MisuseError, PlanError
from motet.protocol.transactions.messages import MOST_OPERATIONS

S = "process = 'p1'"


def test_steps_follow_each_other_unless_said_otherwise() -> None:
    plan = Plan()
    one = plan.subscribe("bob", S)
    two = plan.publish("alice", {"n": 1})
    three = plan.unsubscribe("carol", "x", after=[one])
    four = plan.advertise("dora", S, after=[])
    assert plan.dependencies(two) == [one]
    assert plan.dependencies(three) == [one]
    assert plan.dependencies(four) == []
    assert plan.clients == ["bob", "alice", "carol", "dora"]
    assert plan.in_order() == [one, two, three, four]


def test_an_order_may_be_added() -> None:
    plan = Plan()
    one = plan.subscribe("bob", S, after=[])
    two = plan.unsubscribe("carol", "x", after=[])
    three = plan.publish("alice", {"n": 1}, after=[])
    plan.order(three, one)
    plan.order(two, one)
    assert plan.in_order() == [two, three, one]
    plan.order(two, one)  # twice is harmless
    assert plan.dependencies(one) == [two, three]


@given(st.data())
def test_any_order_without_a_circle_is_obeyed(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    plan = Plan()
    steps = [plan.publish("alice", {"n": n}, after=[]) for n in range(count)]
    hidden = data.draw(st.permutations(range(count)))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    for low, high in data.draw(st.lists(pairs, max_size=12)):
        if low < high:
            plan.order(steps[hidden[low]], steps[hidden[high]])
    found = plan.in_order()
    assert sorted(step.index for step in found) == list(range(count))
    for step in steps:
        for before in plan.dependencies(step):
            assert found.index(before) < found.index(step)
    orders = [step.order for _, part in plan.parts() for step in part]
    assert orders == sorted(orders)


def test_a_cycle_of_dependencies_is_named() -> None:
    plan = Plan()
    one = plan.subscribe("bob", S, name="one")
    two = plan.unsubscribe("carol", "two", after=[one])
    plan.publish("alice", {"n": 1})
    plan.order(two, one)
    with pytest.raises(PlanError, match="form a cycle: carol: unsubscribe two → bob"):
        plan.in_order()
    with pytest.raises(PlanError, match="cycle"):
        plan.parts()


def test_a_step_does_not_wait_for_itself() -> None:
    plan = Plan()
    one = plan.subscribe("bob", S, name="one")
    plan.order(one, one)
    with pytest.raises(PlanError, match="bob: subscribe one → bob: subscribe one"):
        plan.in_order()


def test_steps_of_other_plans_are_refused() -> None:
    plan, other = Plan(), Plan()
    foreign = other.subscribe("bob", S)
    with pytest.raises(PlanError, match="is a step of another plan"):
        plan.publish("alice", {"n": 1}, after=[foreign])
    mine = plan.subscribe("bob", S)
    with pytest.raises(PlanError, match="is a step of another plan"):
        plan.order(mine, foreign)
    with pytest.raises(MisuseError, match="takes steps of this plan, not 7"):
        plan.publish("alice", {"n": 1}, after=[7])  # type: ignore[list-item]
    assert plan.steps == [mine]  # what was refused is not in it


def test_an_empty_plan_is_an_error() -> None:
    with pytest.raises(PlanError, match="the plan is empty"):
        Plan().parts()


def test_by_client_and_each_with_its_place() -> None:
    plan = Plan()
    plan.subscribe("bob", S)
    plan.publish("alice", {"n": 1}, payload=b"p")
    plan.unsubscribe("bob", "old")
    (bob, steps), (alice, (event,)) = plan.parts()
    assert (bob, alice) == ("bob", "alice")
    assert [(step.kind, step.order, step.name) for step in steps] == [
        ("subscribe", "00000001", S),  # called as its filter is written
        ("unsubscribe", "00000003", "old"),
    ]
    assert (event.kind, event.order) == ("publish", "00000002")
    assert event.body


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda plan: plan.subscribe("", S), MisuseError),
        (lambda plan: plan.subscribe(7, S), MisuseError),
        (lambda plan: plan.subscribe("bob", "process ="), FilterError),
        (lambda plan: plan.unsubscribe("bob", ""), MisuseError),
        (lambda plan: plan.unadvertise("bob", None), MisuseError),
        (lambda plan: plan.publish("bob", {"n": object()}), EventError),
        (lambda plan: plan.publish("bob", 7), MisuseError),
    ],
)
def test_invalid_steps_are_refused(wrong: object, error: type[Exception]) -> None:
    plan = Plan()
    assert callable(wrong)
    with pytest.raises(error):
        wrong(plan)
    assert plan.steps == []


def test_a_step_follows_all_earlier_steps_and_depends_on_the_last_ones_only() -> None:
    """A step that follows the last one also follows all steps before that one."""
    plan = Plan()
    first = plan.publish("a", {"n": 1})
    aside = plan.publish("a", {"n": 2}, after=[])
    both = plan.publish("a", {"n": 3})
    last = plan.publish("a", {"n": 4})
    assert plan.dependencies(both) == [first, aside]
    assert plan.dependencies(last) == [both]
    assert plan.in_order() == [first, aside, both, last]


def test_a_plan_is_as_long_as_its_steps() -> None:
    plan = Plan()
    for number in range(6000):
        plan.publish(f"client {number // MOST_OPERATIONS}", {"n": number})
    assert sum(len(plan.dependencies(step)) for step in plan.steps) == 5999
    assert plan.in_order() == plan.steps
    with pytest.raises(PlanError, match="at most 1,000 steps of one client"):
        plan.publish("client 0", {"n": 0})
    assert len(plan.steps) == 6000


def test_a_plan_cannot_remove_an_operation_that_it_adds() -> None:
    plan = Plan()
    plan.unsubscribe("a", "x")
    plan.subscribe("a", "n > 1", name="x")  # another filter for it: that one can be
    plan.unsubscribe("b", "x")
    plan.advertise("a", "m > 1", name="y")
    with pytest.raises(PlanError, match="a is to unadvertise 'y', which the plan itself adds"):
        plan.unadvertise("a", "y")
    with pytest.raises(PlanError, match="a is to unsubscribe 'x', which the plan itself adds"):
        plan.unsubscribe("a", "x")


@pytest.mark.parametrize("after", [3, "x", Plan().publish("a", {})])
def test_after_takes_only_steps_of_the_plan(after: Any) -> None:
    with pytest.raises(MisuseError, match="`after` takes steps of this plan"):
        Plan().subscribe("a", "true", after=after)
