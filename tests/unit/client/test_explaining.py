"""What a transaction costs: phases, messages and hops on a given overlay, and hints."""

from __future__ import annotations

import pytest

from motet import Plan
from motet.client.explanation import Made, Sketch, explain_transaction
from motet.errors import PlanError

LINKS = (("B1", "B3"), ("B2", "B3"), ("B3", "B4"), ("B4", "B5"))
HOMES = {"near": "B1", "far": "B5", "away": None}


def sketch(broker: str = "B1", root: str = "B3") -> Sketch:
    return Sketch(broker, root, LINKS, HOMES, (0.002, 0.004))


def plan(*clients: str) -> Plan:
    made = Plan()
    for client in clients:
        made.subscribe(client, "x = 1")
        made.unsubscribe(client, "old")
    return made


def test_distances_are_those_of_the_tree() -> None:
    assert sketch().distance("B1", "B5") == 3
    assert sketch().distance("B5", "B5") == 0
    assert sketch().depth("B3") == 2
    assert sketch().brokers == ["B1", "B2", "B3", "B4", "B5"]


def test_a_plan_costs_letters_echoes_and_two_floods() -> None:
    told = plan("near", "far").explain(sketch())
    found = {each.name: (each.messages, each.hops, each.at_most) for each in told.phases}
    assert found == {
        "engage": (3, 3, False),
        "operate": (8, 0, True),  # nobody waits for a plan's subscriptions
        "report": (3, 2, False),
        "decide": (12, 4, True),
        "settle": (4, 1, False),
    }
    assert (told.messages, told.hops) == (30, 10)
    assert told.expected_s == pytest.approx((10 * 0.0015, 10 * 0.003))
    assert "5 brokers, root B3, coordinated at B1" in str(told)
    assert told.as_dict()["phases"][0]["name"] == "engage"


def test_an_unsubscription_alone_crosses_no_link() -> None:
    made = Plan()
    made.unsubscribe("near", "old")
    operate = made.explain(sketch()).phases[1]
    assert (operate.messages, operate.hops, operate.at_most) == (0, 0, False)


def test_a_plan_without_an_overlay_has_phases_and_no_numbers() -> None:
    told = plan("near").explain()
    assert [each.name for each in told.phases][-1] == "settle"
    assert (told.messages, told.hops, told.expected_s) == (None, None, None)
    assert "?" in str(told)


def test_explain_predicts_refusals() -> None:
    assert "away: not connected" in plan("away").explain(sketch()).hints[0]
    assert "no root" in plan("near").explain(sketch(root="")).hints[0]
    with pytest.raises(PlanError, match="empty"):
        Plan().explain(sketch())


def test_isolation_costs_two_floods_more_if_something_is_read() -> None:
    invites = [Made("invite", "{'assign': 1}", 0.01, 2), Made("unsubscribe", "x")]
    names = [each.name for each in explain_transaction(invites, True, sketch()).phases]
    assert names == ["open", "invite", "unsubscribe", "submit", "validate", "decide", "settle"]
    names = [each.name for each in explain_transaction(invites, False, sketch()).phases]
    assert names == ["invite", "unsubscribe", "submit", "decide", "settle"]
    alone = [Made("publish")]
    names = [each.name for each in explain_transaction(alone, True, sketch()).phases]
    assert "validate" not in names


def test_explain_hints_when_a_plan_would_suffice() -> None:
    alone = [Made("subscribe", "x = 1")]
    assert "no client was invited" in explain_transaction(alone, False, None).hints[0]
    invites = [Made("invite", "{'assign': 1}", 0.01, 2)]
    same, other = invites, [Made("invite", "{'assign': 2}", 0.01, 2)]
    assert explain_transaction(invites, True, None, [same, other]).hints == ()
    assert (
        "the same operations"
        in explain_transaction(invites, True, None, [same, other, same]).hints[0]
    )
    assert explain_transaction([], True, None).hints == ()


def test_an_explained_transaction_shows_durations() -> None:
    made = [Made("invite", "{'assign': 1}", 0.0123, 2), Made("commit", "", 0.5)]
    told = str(explain_transaction(made, True, sketch()))
    assert "2 reached (took 12.3 ms)" in told
    assert "took 500.0 ms" in told


def test_a_sketch_is_read_from_a_status() -> None:
    status = {
        "broker": "B1",
        "tree": [["B1", "B2"]],
        "homes": {"c": "B2"},
        "links": {"B2": {"round_trip_s": 0.5}, "B9": {"round_trip_s": 0.0}},
        "transactions": {"root": "B2"},
    }
    assert Sketch.of(status) == Sketch("B1", "B2", (("B1", "B2"),), {"c": "B2"}, (0.5,))
