"""Starts of subscriptions in total order: above what was given, whatever crosses what."""

from __future__ import annotations

from motet.model import Filter, Hop, OpId
from motet.protocol.changes import Changes, Sent, StartKnown, StartMade, StartsAwaited
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    Complete,
    Join,
    PubendHere,
    RoutingMessage,
    Started,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.routing.starts import FARTHEST
from motet.protocol.transactions.state import Marks

SPACE = Filter.parse("x > 0")
LEFT, RIGHT, BOB, CAROL = Hop.broker("L"), Hop.broker("R"), Hop.client("bob"), Hop.client("carol")
WISH, OFFER, OTHER = OpId("bob", "M-1.1", 1), OpId("zoe", "Z-1.1", 1), OpId("yan", "Y-1.1", 1)


class Broker:
    """M between L and R, with a client in total order. Z and Y lie behind R."""

    def __init__(self, tick: int = 100) -> None:
        self.routing = Routing("M-1", ("L", "R"), Marks())
        self.state = self.routing.state
        self.routing.found("M.1")
        for pubend in ("Z.1", "Y.1"):
            self.tell(PubendHere(pubend), RIGHT)
        self.routing.joins.enter("bob")
        self.routing.starts.next_tick = tick

    def tell(self, message: RoutingMessage, source: Hop) -> Changes:
        return self.routing.apply(message, source)

    def sent(self, effects: Changes, neighbour: str) -> list[RoutingMessage]:
        return [each.message for each in effects.of(Sent) if each.neighbour == neighbour]


def test_a_subscription_asks_for_starts_above_what_was_given() -> None:
    broker = Broker()
    broker.tell(Advertise(OFFER, SPACE), RIGHT)
    effects = broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    assert broker.sent(effects, "R") == [Subscribe(WISH, SPACE, above=100)]
    assert broker.routing.joins.awaited == {WISH: {"Z.1": 100}}
    assert [each.client for each in effects.of(StartsAwaited)] == ["bob"]
    effects = broker.tell(Started(WISH, "Z.1", 100), RIGHT)
    assert not effects.of(StartKnown)  # one that was written before
    effects = broker.tell(Started(WISH, "Z.1", 101), RIGHT)
    assert effects.of(StartKnown) == [StartKnown(WISH, "Z.1", 101)]
    assert [each.client for each in effects.of(StartsAwaited)] == ["bob"]
    assert broker.routing.joins.awaited == {WISH: {}}
    assert broker.routing.starts.known == {WISH: {"Z.1": 101}}


def test_an_advertisement_that_attracts_it_elsewhere_is_followed_by_a_join() -> None:
    broker = Broker()
    broker.tell(Advertise(OTHER, SPACE), RIGHT)
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    broker.routing.starts.next_tick = 200
    effects = broker.tell(Advertise(OFFER, SPACE, echo=True), RIGHT)
    assert broker.sent(effects, "R") == [Join(WISH, "Z.1", 200)]
    assert broker.routing.joins.awaited[WISH] == {"Y.1": 100, "Z.1": 200}
    again = broker.tell(Advertise(OpId("zoe", "Z-1.1", 2), SPACE), RIGHT)
    assert broker.sent(again, "R") == []  # asked for already


def test_a_subscription_attracted_for_the_first_time_needs_no_join() -> None:
    broker = Broker()
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    broker.routing.starts.next_tick = 200
    effects = broker.tell(Advertise(OFFER, SPACE), RIGHT)
    assert broker.sent(effects, "R") == [Subscribe(WISH, SPACE, above=200)]


def test_a_start_is_not_awaited_after_the_last_advertisement_has_ended() -> None:
    broker = Broker()
    second = OpId("zoe", "Z-1.1", 2)
    broker.tell(Advertise(OFFER, SPACE), RIGHT)
    broker.tell(Advertise(second, SPACE), RIGHT)
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    assert not broker.tell(Unadvertise(OFFER, upto=150), RIGHT).of(StartsAwaited)
    effects = broker.tell(Unadvertise(second, upto=150), RIGHT)
    assert [each.client for each in effects.of(StartsAwaited)] == ["bob"]
    assert broker.routing.joins.awaited == {WISH: {}}
    broker.tell(Unsubscribe(WISH), BOB)
    assert broker.routing.joins.awaited == {}


def test_a_start_of_our_own_log_that_was_asked_for_elsewhere_counts() -> None:
    broker = Broker()
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    broker.routing.joins.awaited[WISH] = {"M.1": 100}  # bob has moved here
    assert not broker.tell(Started(WISH, "M.1", 100), LEFT).of(StartKnown)
    effects = broker.tell(Started(WISH, "M.1", 101), LEFT)
    assert effects.of(StartKnown) == [StartKnown(WISH, "M.1", 101)]
    assert [each.client for each in effects.of(StartsAwaited)] == ["bob"]
    assert broker.routing.joins.awaited == {WISH: {}}


def test_a_start_stays_awaited_while_an_intermediate_broker_has_lost_its_advertisement() -> None:
    broker = Broker()
    broker.tell(Advertise(OFFER, SPACE), RIGHT)
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    broker.tell(Complete(False), RIGHT)
    assert not broker.tell(Unadvertise(OFFER), RIGHT).of(StartsAwaited)
    broker.routing.starts.advance(500)
    effects = broker.tell(Advertise(OFFER, SPACE), RIGHT)
    assert broker.sent(effects, "R") == [Subscribe(WISH, SPACE, above=100)]
    assert broker.routing.joins.awaited == {WISH: {"Z.1": 100}}


def test_an_advertisement_that_does_not_come_again_is_not_waited_for() -> None:
    broker = Broker()
    broker.tell(Advertise(OFFER, SPACE), RIGHT)
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    broker.tell(Complete(False), RIGHT)
    broker.tell(Unadvertise(OFFER), RIGHT)
    effects = broker.tell(Complete(True), RIGHT)
    assert [each.client for each in effects.of(StartsAwaited)] == ["bob"]
    assert broker.routing.joins.awaited == {WISH: {}}


def test_a_log_that_was_lost_with_its_broker_is_not_waited_for() -> None:
    broker = Broker()
    broker.tell(Advertise(OFFER, SPACE), RIGHT)
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    broker.tell(Unadvertise(OFFER), RIGHT)
    effects = broker.tell(PubendHere("Z.2"), RIGHT)
    assert [each.client for each in effects.of(StartsAwaited)] == ["bob"]
    assert broker.routing.joins.awaited == {WISH: {}}


def test_a_subscription_whose_start_is_known_is_sent_again_without_a_tick() -> None:
    broker = Broker()
    broker.tell(Advertise(OFFER, SPACE), RIGHT)
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    broker.tell(Started(WISH, "Z.1", 101), RIGHT)
    broker.tell(Complete(False), RIGHT)
    broker.tell(Unadvertise(OFFER), RIGHT)
    effects = broker.tell(Advertise(OTHER, SPACE), RIGHT)
    above = broker.routing.starts.next_tick
    assert broker.sent(effects, "R") == [Subscribe(WISH, SPACE), Join(WISH, "Y.1", above)]


def test_facts_of_older_journals_do_not_wait_for_what_is_lost() -> None:
    broker = Broker()
    broker.routing.joins.recalls = False
    broker.tell(Advertise(OFFER, SPACE), RIGHT)
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    assert broker.tell(Unadvertise(OFFER), RIGHT).of(StartsAwaited)
    assert broker.routing.joins.awaited == {WISH: {}}


def test_a_lost_start_counts_if_it_is_high_enough() -> None:
    for above, tick in ((50, 100), (100, 101)):
        broker = Broker()
        wish = OpId("lea", "L-1.1", 1)
        broker.tell(Advertise(OpId("carol", "M-1.2", 1), SPACE), CAROL)
        broker.tell(Subscribe(wish, SPACE), LEFT)
        broker.tell(Unsubscribe(wish, lost=True), LEFT)
        effects = broker.tell(Subscribe(wish, SPACE, above=above), LEFT)
        assert Started(wish, "M.1", tick) in broker.sent(effects, "L")


def test_a_pubend_that_is_heard_of_after_its_advertisement_is_joined_then() -> None:
    broker = Broker()
    broker.tell(Subscribe(WISH, SPACE, above=100), BOB)
    broker.tell(Advertise(OpId("una", "U-1.1", 1), SPACE), RIGHT)
    assert broker.routing.joins.awaited == {WISH: {}}
    effects = broker.tell(PubendHere("U.1"), RIGHT)
    assert Join(WISH, "U.1", 101) in broker.sent(effects, "R")
    assert broker.routing.joins.awaited == {WISH: {"U.1": 101}}


def test_a_join_travels_to_its_pubend() -> None:
    broker = Broker()
    join = Join(OpId("lea", "L-1.1", 1), "Z.1", 7)
    assert broker.sent(broker.tell(join, LEFT), "R") == [join]
    assert not broker.tell(Join(join.op, "N.1", 7), LEFT).of(Sent)


def test_a_join_writes_a_new_start_unless_the_old_one_is_high_enough() -> None:
    broker = Broker()
    wish = OpId("lea", "L-1.1", 1)
    broker.tell(Advertise(OpId("carol", "M-1.2", 1), SPACE), CAROL)
    broker.tell(Subscribe(wish, SPACE), LEFT)
    entry = broker.state.subscriptions.get(wish)
    assert entry is not None
    assert entry.start == 100
    effects = broker.tell(Join(wish, "M.1", 500), LEFT)
    assert effects.of(StartMade) == [StartMade(501, wish, False)]
    assert broker.sent(effects, "L") == [Started(wish, "M.1", 501)]
    again = broker.tell(Join(wish, "M.1", 300), LEFT)
    assert again.of(StartMade) == []
    assert broker.sent(again, "L") == [Started(wish, "M.1", 501)]
    assert broker.routing.starts.next_tick == 502


def test_a_claimed_tick_beyond_the_limit_is_ignored() -> None:
    broker = Broker()
    wish = OpId("lea", "L-1.1", 1)
    broker.tell(Advertise(OpId("carol", "M-1.2", 1), SPACE), CAROL)
    broker.tell(Subscribe(wish, SPACE, above=2 * FARTHEST), LEFT)
    entry = broker.state.subscriptions.get(wish)
    assert entry is not None
    assert entry.start == 100
