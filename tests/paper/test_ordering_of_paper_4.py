"""Total notification order, sections 2, 3 and 4, claim by claim.

And where the paper's algorithm breaks its own promise, its counterexample beside what we do
instead: decision record 0043. The real machines of sites and clients run in the simulator; the
algorithm as published is the model in `motet_labs.experiments.as_published`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.sequencing.messages import (
    CAUSAL,
    MODES,
    PAIRS,
    VOID,
    ChangeRequest,
    NumberRequest,
    Numbers,
    OrderHello,
    Timestamp,
    TopicIds,
    TopicQuery,
)
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.testing import transport
from motet.testing.bugs.catalogue import Patch, patched
from motet.testing.ordering.history import Given, StreamSession
from motet.testing.ordering.schedules import CALM, ScheduledWorld
from motet.testing.ordering.simulation import verdicts
from motet_labs.experiments import as_published, our_schedules
from motet_labs.experiments.as_published import READINGS, Reading


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    with patched([Patch(transport, "CLIENT_HOP_S", CALM["client_hop_s"])]):
        yield


def session(stage: ScheduledWorld, name: str) -> StreamSession:
    """The only session of a client."""
    (found,) = (each for each in stage.history.sessions if each.client.startswith(f"{name}."))
    return found


def events(stage: ScheduledWorld, name: str) -> list[tuple[str, int]]:
    """What a stream got in order: topics with the numbers of their events."""
    return [(step.topic, step.number) for step in session(stage, name).in_order()]


def at_rest(stage: ScheduledWorld) -> list[str]:
    """Every violation, of all checkers, when the world has come to rest."""
    stage.rest()
    return [text for verdict in verdicts(stage) for text in verdict.violations]


class OneSite:
    """A site and its topics, with a publisher that publishes what it gets numbers for."""

    def __init__(self, mode: str, *topics: str) -> None:
        self.core = SiteCore(SiteConfig("S1", mode=mode))
        self.requests = 0
        self.step(OrderHello(PROTOCOL_VERSION, "client"))
        (answer,) = self.step(TopicQuery(topics))
        assert isinstance(answer, TopicIds)
        self.ids = answer.ids

    def step(self, frame: object) -> list[object]:
        return [given for _, given in self.core.step(Received(1, frame), 0.0).deliver]

    def stream(self, name: str, number: int, *topics: str) -> None:
        self.step(ChangeRequest(name, number, tuple(self.ids[topic] for topic in topics)))

    def stamp(self, topic: str) -> Timestamp:
        self.requests += 1
        request = NumberRequest(self.requests, (self.ids[topic],), self.requests - 1)
        (numbers,) = (frame for frame in self.step(request) if isinstance(frame, Numbers))
        (stamp,) = numbers.stamps
        assert stamp is not None
        return stamp

    def named(self, topic: str) -> dict[str, int]:
        """The topics and numbers in the next timestamp of this one."""
        names = {number: name for name, number in self.ids.items()}
        flat = self.stamp(topic).entries
        return {names[other]: number for other, number in zip(flat[::2], flat[1::2], strict=True)}


# ── section 2: the order ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
def test_2_two_subscribers_get_the_same_two_events_in_the_same_order(mode: str) -> None:
    # given two subscribers of two topics, whose sequencers do not know of each other (figure 1)
    stage = ScheduledWorld(mode, {"T1": 1, "T2": 0})
    for name in ("s1", "s2"):
        stage.stream(name, "T1", "T2")
    stage.publishers(p1="T1", p2="T2")
    # when the service delivers e1 late to one of them, and e2 late to the other
    stage.hold("s1", "T1")
    stage.hold("s2", "T2")
    stage.publish("p1", "T1")
    stage.publish("p2", "T2")
    stage.release("s1", "T1")
    stage.release("s2", "T2")
    # then both get the same
    assert events(stage, "s1") == events(stage, "s2")
    assert set(events(stage, "s1")) == {("T1", 1), ("T1", 2), ("T2", 1), ("T2", 2)}
    assert at_rest(stage) == []


# ── section 3.1: what is ordered with what ───────────────────────────────────────────────


def test_3_1_events_of_topics_that_no_two_subscribers_share_are_not_ordered() -> None:
    # given figure 2: s2 and s3 share T2 and T5, s1 and s3 share T3 and T4; T1 has s1 and s2
    site = OneSite(PAIRS, "T1", "T2", "T3", "T4", "T5")
    site.stream("s1", 1, "T1", "T3", "T4")
    site.stream("s2", 1, "T1", "T2", "T5")
    site.stream("s3", 1, "T2", "T3", "T4", "T5")
    # when an event is published on each topic
    for topic in site.ids:
        site.stamp(topic)
    # then timestamps name topics of their own group only, and one on T1 names none
    assert site.named("T1") == {}
    assert site.named("T2") == {"T5": 1}
    assert site.named("T3") == {"T4": 1}


# ── section 3.4: timestamps ──────────────────────────────────────────────────────────────


def test_3_4_definition_1_a_group_has_topics_that_two_subscriptions_share() -> None:
    # given the subscriptions of figure 4
    site = OneSite(PAIRS, "T1", "T2", "T3")
    site.stream("i", 1, "T1", "T2", "T3")
    site.stream("j", 1, "T1", "T2")
    site.stream("k", 1, "T2")
    # when events are published on all topics, then SG of T1 and T2 is {T1, T2}, of T3 {T3}
    for topic in site.ids:
        site.stamp(topic)
    assert site.named("T1") == {"T2": 1}
    assert site.named("T2") == {"T1": 2}
    assert site.named("T3") == {}


def test_3_4_the_number_of_a_topic_counts_its_events_and_grows_by_one() -> None:
    site = OneSite(PAIRS, "T")
    assert [site.stamp("T").number for _ in range(3)] == [1, 2, 3]


def test_3_4_a_timestamp_goes_one_way_over_the_sites_and_is_completed_by_the_last() -> None:
    # given two topics that two streams share, at the lowest and at the highest of three sites
    stage = ScheduledWorld(PAIRS, {"low": 0, "between": 1, "high": 2})
    for name in ("i", "j"):
        stage.stream(name, "low", "high")
    stage.publish("p", "high")
    # when an event is published at the lowest one
    before = {name: site.core.counts.passed for name, site in stage.sites.items() if site.core}
    stage.publish("p", "low")
    passed = {name: site.core.counts.passed for name, site in stage.sites.items() if site.core}
    # then its timestamp passes all sites above, once; it names what happened before
    assert {name: passed[name] - before[name] for name in passed} == {"S0": 0, "S1": 1, "S2": 1}
    last = stage.history.numbered[-1]
    assert (last.topic, last.entries) == ("low", (("high", 1),))
    assert at_rest(stage) == []


def test_3_4_an_event_waits_for_the_one_before_it_and_then_both_are_given() -> None:
    # given the situation of figure 5: k shares two topics with another subscriber
    stage = ScheduledWorld(PAIRS, {"T1": 0, "T2": 0})
    for name in ("i", "k"):
        stage.stream(name, "T1", "T2")
    # when e1 comes late to k
    stage.hold("k", "T1")
    stage.publish("p", "T1")
    stage.publish("p", "T2")
    # then e2 waits for it
    assert events(stage, "k") == []
    stage.release("k", "T1")
    assert events(stage, "k") == events(stage, "i") == [("T1", 1), ("T2", 1)]


def test_3_4_subscribers_of_one_topic_each_need_no_entries_at_all() -> None:
    # given the best case of the paper
    for mode in MODES:
        site = OneSite(mode, "T", "U")
        site.stream("i", 1, "T")
        site.stream("j", 1, "U")
        # then timestamps are one number, whatever is published
        for _ in range(3):
            assert site.named("T") == site.named("U") == {}


def test_0043_a_timestamp_names_only_what_has_changed() -> None:
    # given the worst case of the paper: all subscribe to all, so its groups have ten topics
    topics = [f"T{number}" for number in range(10)]
    site = OneSite(PAIRS, *topics)
    for name in ("i", "j"):
        site.stream(name, 1, *topics)
    for topic in topics:
        site.stamp(topic)
    assert len(site.named("T0")) == 9
    # when nothing but T3 was published since, then nothing but T3 is named
    site.stamp("T3")
    assert site.named("T0") == {"T3": 2}
    assert site.named("T0") == {}


# ── section 3.4: changes of subscriptions ────────────────────────────────────────────────


def test_3_4_events_from_before_a_subscription_are_discarded() -> None:
    # given an event that is on its way when a subscriber joins
    stage = ScheduledWorld(PAIRS, {"T2": 0, "T3": 0})
    stage.stream("i", "T2", "T3")
    stage.stream("k", "T2")
    stage.publish("p", "T3", "T2")
    # when k adds T3, and more events come
    stage.add("k", "T3")
    stage.publish("p", "T3", "T2")
    # then k has what comes after its change
    assert events(stage, "k") == [("T2", 1), ("T3", 2), ("T2", 2)]
    assert at_rest(stage) == []


def test_0043_a_change_takes_no_number_and_needs_no_dummy_events() -> None:
    # given a topic with an event
    site = OneSite(PAIRS, "T", "U")
    site.stream("i", 1, "T", "U")
    assert site.stamp("T").number == 1
    # when others join, where the paper's timestamps of subscriptions take numbers
    site.stream("j", 1, "T", "U")
    site.stream("k", 1, "T")
    # then the next event has the next number
    assert site.stamp("T").number == 2


def test_3_4_after_it_left_a_topic_a_subscriber_ignores_its_events() -> None:
    stage = ScheduledWorld(PAIRS, {"T": 0, "U": 0})
    stage.stream("i", "T", "U")
    stage.publish("p", "T", "U")
    stage.drop("i", "U")
    stage.publish("p", "U", "T")
    assert events(stage, "i") == [("T", 1), ("U", 1), ("T", 2)]
    assert at_rest(stage) == []


# ── where the algorithm as published breaks its promise ──────────────────────────────────

SCHEDULES = {name: (as_published.SCHEDULES[name], our_schedules.OURS[name])
             for name in as_published.SCHEDULES}  # fmt: skip


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
def test_0043_as_published_a_number_that_is_overtaken_stalls_its_subscribers(
    reading: Reading,
) -> None:
    # given correct processes, FIFO links and a reliable service; V leaves the group of U while a
    # timestamp of U is between them; the next one skips V, and arrives at T first
    outcome = as_published.overtaken_number(reading)
    # then each of three events waits for another one
    assert len(outcome.stalled) == 6
    assert outcome.inverted == ()


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
def test_0043_as_published_a_subscriber_that_changes_its_interest_inverts(
    reading: Reading,
) -> None:
    # given the same; x leaves the topic of f, of which it has had f, and joins the topic of e
    outcome = as_published.changed_interest(reading)
    # then x got f before e, and y got e before f
    assert outcome.stalled == ()
    assert len(outcome.inverted) == 1


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
def test_4_as_published_a_request_that_is_started_again_takes_another_number(
    reading: Reading,
) -> None:
    # given a publisher that re-initiates the procedure, as section 4 says, after an answer is lost
    outcome = as_published.repeated_request(reading)
    # then no event ever has the first number, and subscribers wait for it
    assert outcome.stalled == ("i has event 1 of T, and waits for ever",)


@pytest.mark.parametrize("ours", our_schedules.OURS.values(), ids=our_schedules.OURS)
def test_0043_ours_keeps_its_order_in_the_same_schedules(ours: Callable[[], object]) -> None:
    # given the same schedules, with real machines; then nobody waits, and all orders agree
    assert our_schedules.judged(ours()) == []  # type: ignore[arg-type]


def test_0043_numbers_pass_every_site_so_none_is_overtaken() -> None:
    # given U's number, which is slow on its way over V's site, which leaves U's group meanwhile
    stage = our_schedules.overtaken_number()
    # then both streams have all events, in the sequence of their numbers
    given = [events(stage, name) for name in ("i", "j")]
    for known in given:
        numbers = [number for topic, number in known if topic == "U"]
        assert numbers == sorted(numbers)
        assert len(numbers) >= 4
    both = [[each for each in known if each[0] != "V"] for known in given]
    assert both[0] == both[1]


# ── section 4: reliability ───────────────────────────────────────────────────────────────


def test_4_a_request_is_repeated_until_it_is_answered_and_keeps_its_number() -> None:
    # given a request whose answer is lost
    site = OneSite(PAIRS, "T")
    first = site.stamp("T")
    # when it comes again, then it gets the same timestamp
    (again,) = site.step(NumberRequest(1, (site.ids["T"],), 0))
    assert again == Numbers(1, (first,))
    assert site.stamp("T").number == 2


def test_4_a_publisher_that_dies_with_a_number_stops_nobody() -> None:
    # given the paper's assumption that processes do not fail, broken: a publisher dies with number
    # 2 of T before it publishes
    stage = ScheduledWorld(PAIRS, {"T": 0})
    stage.stream("x", "T")
    stage.publishers(q="T", p="T")
    stage.cast["q"].doom = "numbered"
    stage.publish("q", "T")
    stage.publish("p", "T", wait_s=4.0)
    # then its number is void after the lease, and what comes behind it is given
    core = stage.sites["S0"].core
    assert core is not None
    topic = core.site.ids["T"]
    void = [
        number for number in core.site.given[topic] if core.site.became(topic, number)[0] == VOID
    ]
    assert len(void) == 1
    assert [number for _, number in events(stage, "x")] == [
        number for number in range(1, 5) if number not in void
    ][: len(events(stage, "x"))]
    assert events(stage, "x")[-1][1] > void[0]
    assert at_rest(stage) == []


def test_4_an_event_that_comes_too_late_is_tagged() -> None:
    # given an event whose number was void before it came
    stage = ScheduledWorld(CAUSAL, {"T": 0})
    stage.stream("x", "T")
    stage.publishers(q="T", p="T")
    stage.hold("x", "T")
    stage.cast["q"].doom = "published"
    stage.publish("q", "T", wait_s=2.0)
    stage.service.held["x.1", "T"], late = [], stage.service.held["x.1", "T"]
    stage.release("x", "T")
    stage.publish("p", "T", wait_s=2.0)
    # when it comes after the one behind it
    stage.service.held["x.1", "T"] = late
    stage.release("x", "T")
    # then it is given at once, and the application can treat it as it likes
    tagged = [step for step in session(stage, "x").steps if isinstance(step, Given) and step.late]
    assert len(tagged) == 1
    assert tagged[0].number < events(stage, "x")[-1][1]
    assert at_rest(stage) == []


def test_4_causality_needs_pairs_that_a_single_subscriber_has() -> None:
    # given one subscriber of T and T', and another one of T alone
    for mode, named in ((CAUSAL, {"T": 1}), (PAIRS, {})):
        site = OneSite(mode, "T", "T'")
        site.stream("s", 1, "T", "T'")
        site.stream("other", 1, "T")
        # when the other one is notified about e on T, and publishes e' on T'
        site.stamp("T")
        # then the timestamp of e' is behind that of e, in mode causal only
        assert site.named("T'") == named


def test_4_an_effect_comes_behind_its_cause() -> None:
    # given the same over two sites, where e comes late to the subscriber of both
    stage = ScheduledWorld(CAUSAL, {"T": 0, "U": 1})
    stage.stream("s", "T", "U")
    stage.stream("other", "T")
    stage.hold("s", "T")
    # when the other one gets e, and then publishes e'
    stage.publish("p", "T")
    assert events(stage, "other") == [("T", 1)]
    stage.publish("other", "U")
    # then s gets nothing before e
    assert events(stage, "s") == []
    stage.release("s", "T")
    assert events(stage, "s") == [("T", 1), ("U", 1)]
    assert at_rest(stage) == []
