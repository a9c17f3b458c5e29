"""When tables are complete, and which starts count when an advertisement is removed."""

from __future__ import annotations

from motet.model import Filter, Hop, OpId
from motet.protocol.changes import Sent, StartKnown, StartLapsed
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    Complete,
    Echo,
    PubendHere,
    Started,
    Subscribe,
    Unadvertise,
)
from motet.protocol.transactions.state import Marks

A, C = Hop.broker("A"), Hop.broker("C")
BOB = Hop.client("bob")
X = Filter.parse("x > 0")
OFFER, OTHER = OpId("ann", "A-1.1", 1), OpId("ann", "A-1.1", 2)
WISH = OpId("bob", "B-1.1", 1)


def broker(*, hosts: bool = True) -> Routing:
    """B between A and C; both are new to it."""
    made = Routing("B-1", ["A", "C"], Marks())
    if hosts:
        made.found("B.1")
    for neighbour in ("A", "C"):
        made.join(neighbour)
    return made


def owed() -> Routing:
    """B with a client that is owed what A's pubend has above tick 5."""
    made = broker()
    made.apply(PubendHere("A.1"), A)
    made.apply(Advertise(OFFER, X), A)
    made.apply(Subscribe(WISH, X), BOB)
    made.apply(Started(WISH, "A.1", 5), A)
    assert made.starts.known[WISH] == {"A.1": 5}
    return made


# ── who wants what ───────────────────────────────────────────────────────────────────────


def test_a_neighbour_that_was_sent_nothing_is_complete_when_it_says_so() -> None:
    made = broker()
    made.apply(Complete(True), A)
    made.apply(Complete(True), C)
    assert not made.state.unsure


def test_subscriptions_attracted_by_our_advertisements_arrive_before_the_echo_of_a_probe() -> None:
    made = broker()
    made.apply(Complete(True), C)
    made.apply(Advertise(OFFER, X), C)
    effects = made.apply(Complete(True), A)
    (sent,) = effects.of(Sent)
    probe = sent.message
    assert sent.neighbour == "A"
    assert isinstance(probe, Advertise)
    assert probe.probe
    assert probe.filter.is_empty
    assert made.state.unsure, "A's subscriptions may be on their way"
    made.apply(Subscribe(WISH, X), A)
    made.apply(Echo(probe.id), A)
    assert not made.state.unsure


def test_subscriptions_attracted_from_the_other_side_are_awaited() -> None:
    made = broker()
    made.apply(Complete(True), C)
    made.apply(Advertise(OFFER, X), A)
    effects = made.apply(Complete(True), A)
    sent, *_ = [each for each in effects.of(Sent) if isinstance(each.message, Advertise)]
    assert sent.neighbour == "C"
    probe = sent.message
    assert isinstance(probe, Advertise)
    assert made.state.complete == made.state.bits.all_neighbours, "advertisements are all known"
    assert made.state.unsure
    made.apply(Echo(probe.id), C)
    assert not made.state.unsure


def test_a_withdrawn_complete_message_ends_its_probe() -> None:
    made = broker()
    made.apply(Complete(True), C)
    made.apply(Advertise(OFFER, X), C)
    effects = made.apply(Complete(True), A)
    (probe,) = [it.message for it in effects.of(Sent) if isinstance(it.message, Advertise)]
    made.apply(Complete(False), A)
    made.apply(Echo(probe.id), A)
    assert made.state.unsure
    assert made.state.waits.probes == 0


def test_a_broker_without_a_pubend_sends_no_probe() -> None:
    made = broker(hosts=False)
    made.apply(Advertise(OFFER, X), C)
    for source in (A, C):
        effects = made.apply(Complete(True), source)
        assert not [each for each in effects.of(Sent) if isinstance(each.message, Advertise)]
    assert not made.state.unsure


# ── what is owed ─────────────────────────────────────────────────────────────────────────


def test_a_start_goes_with_its_advertisement_and_the_next_one_counts() -> None:
    made = owed()
    effects = made.apply(Unadvertise(OFFER, None, 9), A)
    assert effects.of(StartLapsed) == [StartLapsed(WISH, "A.1", 9)]
    assert made.starts.known[WISH] == {}
    effects = made.apply(Started(WISH, "A.1", 20), A)
    assert effects.of(StartKnown) == [StartKnown(WISH, "A.1", 20)]
    assert made.starts.known[WISH] == {"A.1": 20}


def test_a_start_stays_as_long_as_another_advertisement_of_its_broker_carries_it() -> None:
    made = owed()
    made.apply(Advertise(OTHER, X), A)
    assert made.apply(Unadvertise(OFFER, None, 9), A).of(StartLapsed) == []
    assert made.starts.known[WISH] == {"A.1": 5}
    assert made.apply(Unadvertise(OTHER, None, 9), A).of(StartLapsed) == [
        StartLapsed(WISH, "A.1", 9)
    ]


def test_the_later_of_two_starts_counts() -> None:
    """The first one crossed the removal of its subscription, see `started-again.txt`."""
    made = owed()
    assert made.apply(Started(WISH, "A.1", 20), A).of(StartKnown) == [StartKnown(WISH, "A.1", 20)]
    assert made.starts.known[WISH] == {"A.1": 20}
    assert made.apply(Started(WISH, "A.1", 5), A).of(StartKnown) == []
    assert made.apply(Started(WISH, "A.1", 20), A).of(StartKnown) == []
    assert made.starts.known[WISH] == {"A.1": 20}


def test_the_later_of_two_tentative_starts_counts() -> None:
    made = broker()
    made.apply(PubendHere("A.1"), A)
    made.apply(Advertise(OFFER, X), A)
    made.apply(Subscribe(WISH, X, tx="ann/A-1.1/1"), BOB)
    for tick in (5, 20):
        started = Started(WISH, "A.1", tick, tentative=True)
        assert made.apply(started, A).of(StartKnown) == [
            StartKnown(started.op, started.pubend, started.tick, started.tentative)
        ]
    assert made.starts.known[WISH] == {"A.1": 20}
    assert made.starts.tentative[WISH] == {"A.1": None}


def test_a_start_that_is_told_again_holds_as_if_its_link_had_never_been_lost() -> None:
    made = owed()
    made.apply(Unadvertise(OFFER), A)
    assert made.starts.severed == {WISH: {"A.1": None}}
    made.apply(Advertise(OFFER, X), A)
    assert made.apply(Started(WISH, "A.1", 5), A).of(StartKnown) == []
    assert made.starts.severed == {}
    assert made.apply(Started(WISH, "A.1", 20), A).of(StartKnown) == [StartKnown(WISH, "A.1", 20)]


def test_a_start_stays_if_its_advertisement_is_removed_without_a_final_tick() -> None:
    made = owed()
    assert made.apply(Unadvertise(OFFER), A).of(StartLapsed) == []
    assert made.starts.known[WISH] == {"A.1": 5}
    again = made.apply(Started(WISH, "A.1", 20), A)
    assert again.of(StartKnown) == [], "what lies between them is owed, or lost"
    assert made.apply(Unadvertise(OTHER, None, 25), A).of(StartLapsed) == []
    made.apply(Advertise(OTHER, X), A)
    assert made.apply(Unadvertise(OTHER, None, 25), A).of(StartLapsed) == [
        StartLapsed(WISH, "A.1", 25)
    ]
    assert made.starts.severed == {}
