"""Multi-client transactions, section 2.2 (distributed publish/subscribe), claim by claim.

And where the printed definition cannot be meant, what we do instead.
"""

from __future__ import annotations

from motet.model import Filter, overlap
from motet.testing.scenario import Scenario


def overlay(*commands: str, links: str = "A-B B-C") -> Scenario:
    scenario = Scenario()
    for command in (f"overlay {links}", "connect p A", "connect s C", "settle", *commands):
        scenario.run(command)
    return scenario


def test_2_2_advertisements_are_broadcast_to_all_brokers_and_stored_with_their_last_hop() -> None:
    # given an overlay; when p advertises
    scenario = overlay("advertise p x > 1", "settle")
    # then every broker has it in its SRT, with the hop it came from
    rows = [scenario.run(f"tables {name}")[0] for name in "ABC"]
    assert [row.split(" from ")[1].split(",")[0] for row in rows] == ["p", "A", "B"]


def test_2_2_subscriptions_are_forwarded_to_the_last_hops_of_matching_advertisements() -> None:
    # given an advertisement on one branch of a star
    scenario = overlay("advertise p x > 1", "settle", links="A-B B-C B-D")
    # when s subscribes to something that overlaps it
    scenario.run("subscribe s x = 5")
    scenario.run("settle")
    # then the subscription is on the path, and only there
    assert any("PRT s/1" in row for row in scenario.run("tables A"))
    assert any("PRT s/1" in row for row in scenario.run("tables B"))
    assert not any("PRT" in row for row in scenario.run("tables D"))


def test_2_2_a_subscription_without_advertisement_is_buffered_and_attracted_later() -> None:
    # given a subscription that nothing matches: it stays where it is
    scenario = overlay("subscribe s x = 5", "settle")
    assert scenario.brokers["C"].durable.routing.state.buffered()
    assert not any("PRT" in row for row in scenario.run("tables B"))
    # when a matching advertisement arrives
    scenario.run("advertise p x > 1")
    scenario.run("settle")
    # then it is forwarded
    assert any("PRT s/1" in row for row in scenario.run("tables A"))
    assert not scenario.brokers["C"].durable.routing.state.buffered()


def test_2_2_matching_publications_reach_the_client_and_others_are_dropped() -> None:
    scenario = overlay("advertise p x > 1", "settle", "subscribe s x = 5", "settle")
    scenario.run("publish p x=5")
    assert "C > s: {x=5} for 1" in scenario.run("settle")
    assert scenario.run("publish p x=6") == ["A > p: published up to 2"]


def test_2_2_a_publication_must_lie_in_the_publication_space_of_its_client() -> None:
    scenario = overlay("advertise p x > 1", "advertise p y = 1", "settle", "unadvertise p 2")
    assert "NotAdvertised" not in scenario.run("publish p x=5")[0]
    assert "NotAdvertised" in scenario.run("publish p y=1")[0], "the space shrank"


def test_2_2_unsubscribe_and_unadvertise_undo_exactly_that() -> None:
    scenario = overlay("advertise p x > 1", "settle", "subscribe s x = 5", "settle")
    scenario.run("unsubscribe s 1")
    scenario.run("settle")
    scenario.run("unadvertise p 1")
    scenario.run("settle")
    assert [scenario.run(f"tables {name}") for name in "ABC"] == [["empty"]] * 3


def test_definition_2_1_as_printed_is_not_what_we_do() -> None:
    """One overlapping attribute is not enough: every attribute that both constrain must."""
    left, right = Filter.parse("x > 1 and y = 1"), Filter.parse("x > 5 and y = 2")
    assert not overlap(left, right)
    assert overlap(left, Filter.parse("x > 5")), "an attribute left open constrains nothing"


def test_6_the_client_routing_table_knows_the_direction_of_every_client() -> None:
    scenario = overlay()
    found = {
        name: {client: hop.name for (client, _), hop in core.durable.routing.state.clients.items()}
        for name, core in scenario.brokers.items()
    }
    assert found == {
        "A": {"p": "p", "s": "B"},
        "B": {"p": "A", "s": "C"},
        "C": {"p": "B", "s": "s"},
    }
