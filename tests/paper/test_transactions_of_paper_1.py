"""Multi-client transactions, sections 1, 3, 4 and 6, claim by claim.

And where the paper leaves something open, or cannot be meant as printed, what we do instead: events
that belong to no transaction are handed over exactly once, too; publications are routed when the
transaction commits, in one order of all transactions, so only invitations (tcm) read anything that
could be stale.
"""

from __future__ import annotations

import re

import pytest

from motet.client.plan import Plan
from motet.errors import PlanError
from motet.testing.scenario import Scenario


class Play:
    """A scenario, with all that its clients were ever given."""

    def __init__(self, *commands: str, links: str = "A-B B-C", clients: str = "") -> None:
        self.scenario = Scenario()
        self.lines: list[str] = []
        who = clients or "c1@A c2@B c3@C"
        connects = [f"connect {each.replace('@', ' ')}" for each in who.split()]
        self.run(f"overlay sure {links}", *connects, "settle", *commands)

    def run(self, *commands: str) -> list[str]:
        """Carry them out; what came of the last one."""
        told: list[str] = []
        for command in commands:
            told = self.scenario.run(command)
            self.lines += told
        return told

    def events(self, client: str) -> list[str]:
        """All events that a client was given, in order."""
        given = (line.partition(f" > {client}: ")[2] for line in self.lines)
        return [event for line in given for event in re.findall(r"\d+: \{(.*?)\}", line)]

    def heard(self, client: str) -> list[str]:
        found = (line.partition(f" > {client}: ")[2] for line in self.lines)
        return [line for line in found if line]

    def tables(self) -> dict[str, list[str]]:
        """Without the ticks: who has what from where."""
        return {name: self.scenario.run(f"tables {name}") for name in self.scenario.brokers}


def stream(*commands: str) -> Play:
    """c1 publishes x, and c3 has it."""
    settled = ("advertise c1 x > 0", "settle", "subscribe c3 x > 0", "settle")
    return Play(*settled, *commands)


CONSENT = ("consent c2", "consent c3")
HAND_OVER = (*CONSENT, "plan T1 c2 subscribe x > 0", "plan T1 c3 unsubscribe x > 0")


# ── section 1: the use cases ─────────────────────────────────────────────────────────────


def test_1_dispatching_hands_an_instance_over_so_that_all_updates_go_to_the_agent_alone() -> None:
    # given the dispatcher c3, which receives the updates of x1, and the agent c2, which receives
    # its assignments
    play = stream("subscribe c2 assign = 2", "advertise c3 assign > 0", "settle")
    play.run("publish c1 x=1", "settle")
    # when c3 assigns the instance to c2 in a transaction, in which c2 subscribes and c3 does not
    # any more, while updates go on
    play.run("begin c3 T1", "settle", "in T1 c3 invite assign=2", "settle")
    play.run("in T1 c2 subscribe x > 0", "settle", "publish c1 x=2", "settle")
    play.run("answer c2 T1", "settle", "in T1 c3 unsubscribe 1", "publish c1 x=3")
    play.run("commit c3 T1", "settle", "publish c1 x=4", "settle")
    # then every update was delivered to one of them, before the transition or behind it
    assert play.events("c3") == ["x=1", "x=2", "x=3"]
    assert play.events("c2") == ["x=4"]


def test_1_consolidation_acquires_instances_from_two_agents() -> None:
    # given two agents, each with an instance, and a consolidator
    play = Play(
        *("advertise e n > 0", "settle", "subscribe a1 n = 1", "subscribe a2 n = 2"),
        *("advertise c cons > 0", "subscribe a1 cons = 1", "subscribe a2 cons = 2", "settle"),
        clients="e@A a1@B a2@C c@B",
    )
    play.run("publish e n=1", "publish e n=2", "settle")
    # when the consolidator invites both, which unsubscribe, and subscribes to both itself
    play.run("begin c T1", "settle")
    for number in (1, 2):
        play.run(f"in T1 c invite cons={number}", "settle", f"in T1 a{number} unsubscribe 1")
        play.run(f"answer a{number} T1", "settle")
    play.run("in T1 c subscribe n = 1", "in T1 c subscribe n = 2", "settle", "publish e n=1")
    play.run("commit c T1", "settle", "publish e n=1", "publish e n=2", "settle")
    # then what follows is the consolidator's, and what came before was the agents'
    assert play.events("a1") == ["n=1", "n=1"]
    assert play.events("a2") == ["n=2"]
    assert play.events("c") == ["n=1", "n=2"]


# ── section 3: what a transaction is ─────────────────────────────────────────────────────

ALL_KINDS = (
    "in T1 c1 advertise y > 0",
    "in T1 c1 unadvertise 1",
    "in T1 c1 subscribe z > 0",
    "in T1 c1 publish y=1",
)


def all_kinds() -> Play:
    """A transaction of one client with every kind of operation, complete but for its end."""
    play = Play("advertise c1 x > 0", "subscribe c1 y > 5", "subscribe c2 y > 0", "settle")
    play.run("begin c1 T1", "settle", *ALL_KINDS, "in T1 c1 unsubscribe 2", "settle")
    return play


def test_3_1_atomicity_all_operations_are_processed() -> None:
    play = all_kinds()
    play.run("commit c1 T1", "settle", "read c2", "time 15", "settle", "time 15", "settle")
    # then SRTs and PRTs are updated, and clients are notified
    tables = play.tables()
    assert [row for row in tables["C"] if row.startswith("SRT")] == ["SRT c1/4 (y > 0) from B"]
    assert not any("c1/2" in row for rows in tables.values() for row in rows)
    assert any("c1/6 (z > 0)" in row for row in tables["A"])
    assert play.events("c2") == ["y=1"]


def test_3_1_atomicity_or_none_of_them() -> None:
    play = Play("advertise c1 x > 0", "subscribe c1 y > 5", "subscribe c2 y > 0", "settle")
    before = play.tables()
    play.run("begin c1 T1", "settle", *ALL_KINDS, "in T1 c1 unsubscribe 2", "settle")
    play.run("abort c1 T1", "settle", "time 15", "settle")
    assert play.tables() == before
    assert play.events("c2") == []
    assert "T1" not in play.run("open A")[0]


def test_3_1_internal_consistency_a_publication_meets_one_state_everywhere() -> None:
    """The paper's footnote: p1 is processed at b1 by one PRT and at b2 by another."""
    # given a publication that is on its way to b2
    play = stream(*HAND_OVER, "play c1 T1", "deliver A B", "deliver B A", "deliver B C")
    play.run("deliver C B", "publish c1 x=1")
    # when b2 changes its tables before it arrives there
    play.run("deliver B A", "settle")
    # then the state of its pubend's tick counts, at every broker
    assert (play.events("c3"), play.events("c2")) == (["x=1"], [])


def test_3_1_isolation_nothing_of_an_open_transaction_is_read() -> None:
    # given a subscription of an open transaction
    play = stream("begin c2 T1 none", "in T1 c2 subscribe x > 0", "settle")
    # when others publish, and invite
    play.run("publish c1 x=1", "settle", "begin c1 T2", "settle", "in T2 c1 invite x=2", "settle")
    # then it gets neither
    assert play.events("c2") == []
    assert not any("invited" in line for line in play.heard("c2"))
    assert any("invited" in line for line in play.heard("c3"))


def test_3_1_durability_a_committed_transaction_survives_node_failures() -> None:
    # given a decision that has reached nobody but the broker that made it
    play = stream(*HAND_OVER, "play c1 T1", "deliver A B", "deliver B C", "deliver C B")
    told = play.run("deliver B A 2")
    assert any("is committed" in line for line in told)
    # when every broker dies
    for broker in "ABC":
        assert f"{broker} replayed the same state" in play.run(f"crash {broker}")
    play.run("resume c1 A A-1.1", "resume c2 B B-1.1", "resume c3 C C-1.1", "settle")
    # then it takes effect
    play.run("publish c1 x=1", "settle")
    assert (play.events("c3"), play.events("c2")) == ([], ["x=1"])


def test_3_2_a_consistent_state_is_reached_at_all_brokers() -> None:
    # when a transaction has been committed
    play = stream(*HAND_OVER, "play c1 T1", "settle")
    play.run("time 15", "settle", "time 15", "settle")
    # then the tables are those that the operations alone would have left, but for who numbers them
    alone = Play("advertise c1 x > 0", "settle", "subscribe c2 x > 0", "settle")
    left = {name: [row.replace("/+", "/") for row in rows] for name, rows in play.tables().items()}
    assert left == alone.tables()


def test_3_3_a_transaction_has_a_coordinator_and_an_identifier() -> None:
    play = Play()
    told = play.run("begin c1 T1 none")
    assert told == ["A > c1: 1 is effective: c1/1"]
    # whoever was not invited has no part in it
    assert "NotInvited" in play.run("connect c4 A", "in T1 c4 subscribe x > 0")[0]


def test_3_3_a_client_that_received_a_tcm_issues_operations_of_its_own() -> None:
    play = stream("begin c1 T1", "settle", "in T1 c1 invite x=1", "settle")
    assert "invited to c1/2 by {x=1}" in play.heard("c3")
    play.run("in T1 c3 subscribe y > 0", "answer c3 T1", "settle")
    assert play.run("commit c1 T1", "settle")
    assert "c1/2 is committed as 2" in play.heard("c3")


def test_3_3_an_advertisement_attracts_buffered_subscriptions_in_the_transaction() -> None:
    # given a buffered subscription
    play = Play("subscribe c3 y > 0", "settle")
    # when a transaction advertises what it wants
    play.run("begin c1 T1", "settle", "in T1 c1 advertise y > 0", "settle")
    # then the advertisement is effective only when that subscription has arrived
    assert any("PRT c3/1" in row for row in play.tables()["A"])
    assert "2 is effective" in play.heard("c1")


# ── definition 3.4 ───────────────────────────────────────────────────────────────────────


def test_3_4_the_example_of_figure_2() -> None:
    """a1 = adv(x), which attracts s1; t1 = tcm(x), which triggers s2; p1 = pub(y): the sequence is
    a1, s1, t1, s2, p1."""
    # given s1 of c2, buffered, since nobody advertises x; and y is advertised
    play = Play("subscribe c2 x > 0", "advertise c1 y > 0", "settle")
    # when
    play.run("begin c1 T1", "settle", "in T1 c1 advertise x > 0", "settle")
    assert any("PRT c2/1" in row for row in play.tables()["A"])  # a1 < s1 < what follows
    play.run("in T1 c1 invite x=1", "settle")
    assert "invited to c1/2 by {x=1}" in play.heard("c2")  # s1 < t1
    play.run("in T1 c2 subscribe y > 0", "settle", "answer c2 T1", "settle")
    play.run("in T1 c1 publish y=1", "commit c1 T1", "settle")
    # then s2 < p1: what was triggered by the invitation receives the publication behind it
    assert play.events("c2") == ["y=1"]


def test_3_4_thread_operations_of_one_client_keep_their_order() -> None:
    # subscribe, publish, unsubscribe, publish: the first one is received
    play = Play("advertise c1 x > 0", "settle", "subscribe c1 x > 9", "begin c1 T1", "settle")
    play.run("in T1 c1 subscribe x > 0", "settle", "in T1 c1 publish x=1")
    play.run("in T1 c1 unsubscribe 4", "in T1 c1 publish x=2", "commit c1 T1", "settle")
    assert play.events("c1") == ["x=1"]


def test_3_4_trigger_an_operation_comes_behind_what_has_triggered_it() -> None:
    # c1 publishes, then invites; c3, invited, subscribes: it does not get what was before
    play = stream("begin c1 T1", "settle", "in T1 c1 publish y=1")
    assert "NotAdvertised" in play.heard("c1")[-1]
    play.run("in T1 c1 publish x=1", "in T1 c1 invite x=9", "settle", "in T1 c3 subscribe x = 1")
    play.run("settle", "in T1 c3 unsubscribe 1", "answer c3 T1", "settle", "commit c1 T1", "settle")
    # the old subscription ends behind x=1, the new one begins behind it
    assert play.events("c3") == ["x=1"]


def test_3_4_trigger_star_it_comes_before_what_follows_where_it_was_triggered() -> None:
    # c1 invites, then publishes; c3, invited, unsubscribes: it gets nothing
    play = stream("begin c1 T1", "settle", "in T1 c1 invite x=9", "settle")
    play.run("in T1 c3 unsubscribe 1", "answer c3 T1", "settle", "in T1 c1 publish x=1")
    play.run("commit c1 T1", "settle")
    assert play.events("c3") == []


def test_3_4_transitivity_in_a_plan_of_several_clients() -> None:
    # sub c2 < pub c1 (x=1) < usub c3 < pub c1 (x=2)
    play = stream(*CONSENT, "plan T1 c2 subscribe x > 0", "plan T1 c1 publish x=1")
    play.run("plan T1 c3 unsubscribe x > 0", "plan T1 c1 publish x=2", "play c1 T1")
    # whichever part comes to the root first
    play.run("deliver A B", "deliver B C", "deliver C B", "settle")
    assert play.events("c2") == ["x=1", "x=2"]
    assert play.events("c3") == ["x=1"]


# ── section 3.3: isolation ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("published", ["before", "between", "behind"])
def test_3_3_of_three_schedules_only_the_first_and_the_third_happen(published: str) -> None:
    """t1 = {sub[c2](x), usub[c3](x)} beside t2 = {pub[c1](x)}."""
    play = stream("begin c1 T2", "settle", "in T2 c1 publish x=1", "settle")
    if published == "before":
        play.run("commit c1 T2", "settle")
    play.run(*HAND_OVER, "play c1 T1", "deliver A B", "deliver B A")
    if published == "between":  # c2 is there, and nobody has heard of c3
        play.run("commit c1 T2")
    play.run("settle")
    if published == "behind":
        play.run("commit c1 T2", "settle")
    # then c2 or c3 has it, and never both
    got = (play.events("c2"), play.events("c3"))
    assert got == (([], ["x=1"]) if published != "behind" else (["x=1"], []))


# ── section 4: D-TX ──────────────────────────────────────────────────────────────────────


def test_4_1_begin_returns_when_the_transaction_is_initialized_everywhere() -> None:
    play = Play()
    assert play.run("begin c1 T1") == ["A > B: #4 c1/1 opens"]
    told = play.run("settle")
    assert told.index("B > C: #6 c1/1 opens") < told.index("A > c1: 1 is effective: c1/1")


def test_4_1_commit_waits_for_all_operations_and_says_how_it_ended() -> None:
    play = stream("begin c2 T1", "settle")
    play.run("in T1 c2 subscribe x > 0", "commit c2 T1", "settle")
    # it was committed before the subscription was effective: that cannot be what was meant
    (failed,) = [line for line in play.heard("c2") if "failed" in line]
    assert "before all its operations were effective" in failed
    play.run(
        "begin c2 T2", "settle", "in T2 c2 subscribe x > 0", "settle", "commit c2 T2", "settle"
    )
    assert play.heard("c2")[-1].endswith("is effective: c2/4")


def test_4_2_operation_phase_acknowledgements_are_nested() -> None:
    """A triggered operation holds back the acknowledgement of its cause."""
    # given an invitation that two clients behind one another have received
    play = Play(
        *("advertise c1 x > 0", "subscribe c2 x > 0", "subscribe c3 x > 0", "settle"),
        *("begin c1 T1", "settle", "in T1 c1 invite x=1", "settle"),
    )
    # when one of them has done its part
    play.run("answer c3 T1", "settle")
    # then its coordinator hears nothing before the other one has
    assert not any(line.startswith("3 is") for line in play.heard("c1"))
    play.run("answer c2 T1", "settle")
    assert "3 is effective: 2" in play.heard("c1")


def test_4_2_an_operation_of_the_invited_is_acknowledged_before_the_invitation_is() -> None:
    play = stream("begin c1 T1", "settle", "in T1 c1 invite x=9", "settle")
    play.run("in T1 c3 subscribe x = 1", "answer c3 T1")
    assert not any(line.startswith("3 is") for line in play.heard("c1"))
    play.run("settle")
    assert "3 is effective: 1" in play.heard("c1")


def test_4_2_termination_phase_a_conflict_aborts() -> None:
    # given a transaction that has invited c3
    play = stream("begin c1 T1", "settle", "in T1 c1 invite x=1", "settle")
    play.run("answer c3 T1", "settle")
    # when somebody else subscribes to what it has sent, and that is effective
    play.run("subscribe c2 x > 0", "settle", "commit c1 T1", "settle")
    # then it is aborted, and nothing of it has happened
    assert any("failed: Aborted" in line for line in play.heard("c1"))


def test_4_2_transactions_without_conflict_both_commit() -> None:
    play = stream("begin c1 T1", "settle", "begin c3 T2", "settle")
    play.run("in T1 c1 invite x=1", "settle", "answer c3 T1", "settle")
    play.run("in T2 c3 subscribe q > 0", "settle", "commit c3 T2", "commit c1 T1", "settle")
    done = [line for line in play.heard("c1") + play.heard("c3") if "is committed" in line]
    assert len(done) == 3  # c3 has part in both


def test_4_2_without_isolation_no_broker_validates() -> None:
    """D-TX_NI: no initialization, no conflict detection."""
    play = stream()
    assert play.run("begin c1 T1 none") == ["A > c1: 2 is effective: c1/2"]
    play.run("in T1 c1 invite x=1", "settle", "answer c3 T1", "settle")
    play.run("subscribe c2 x > 0", "settle")
    assert "c1/2 is committed" in play.run("commit c1 T1")[0]


# ── section 6: S-TX ──────────────────────────────────────────────────────────────────────


def test_6_operations_are_issued_without_waiting_for_one_another() -> None:
    # given a plan in which the last step depends on the first
    play = stream(*CONSENT, "plan T1 c3 unsubscribe x > 0", "plan T1 c2 subscribe x > 0")
    # when it is executed, and whoever is to do the first step has not even heard of it
    play.run("play c1 T1")
    told = play.run("deliver A B")
    assert play.run("open C") == ["nothing"]
    # then the last one is done
    assert any("c2: begins +1" in line for line in told)


def test_6_dependencies_may_be_a_partial_order_and_never_a_circle() -> None:
    plan = Plan()
    first = plan.subscribe("c2", "x > 0")
    other = plan.advertise("c1", "y > 0", after=[])
    last = plan.publish("c1", {"x": 1}, after=[first])
    assert plan.dependencies(last) == [first]
    plan.order(last, other)
    assert plan.in_order() == [first, last, other]
    plan.order(other, first)
    with pytest.raises(PlanError, match="form a cycle"):
        plan.in_order()


def test_6_commit_delivers_publications_and_abort_discards_them() -> None:
    for end, events in (("commit", ["x=1"]), ("abort", [])):
        play = stream("begin c1 T1 none", "in T1 c1 publish x=1", "settle")
        assert play.events("c3") == []  # nothing is delivered before the decision
        play.run(f"{end} c1 T1", "settle")
        assert play.events("c3") == events


def test_6_a_participant_that_never_answers_does_not_block_for_ever() -> None:
    """The paper has no word about it. Here: its broker cannot be reached."""
    play = stream(*HAND_OVER, "cut B C", "play c1 T1 timeout=3")
    play.run("settle", "time 4", "settle")
    assert any("c3 did not answer" in line for line in play.heard("c1"))
    assert not any("c2/+1" in row for rows in play.tables().values() for row in rows)
