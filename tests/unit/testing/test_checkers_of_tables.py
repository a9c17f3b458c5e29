"""Routing and effective, on two real cores whose tables the test fills by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from motet.audit.records import OperationRecord, Stay
from motet.broker.core.broker import BrokerCore
from motet.model import Hop
from motet.protocol.changes import Sent
from motet.protocol.config import BrokerConfig
from motet.protocol.link.machine import Phase
from motet.protocol.routing.messages import Advertise, ClientHere, Subscribe, Unsubscribe
from motet.testing.checkers import routing
from motet.testing.checkers.effective import Checker
from tests.unit.testing.past import Past

NEIGHBOURS = {"A": ("B",), "B": ("A",)}


class World:
    """A-B, a seller at A and a buyer at B, and every message passed on at once."""

    def __init__(self, *, covering: bool = False) -> None:
        self.past = Past(("A", "B"), covering=covering)
        self.cores = {
            name: BrokerCore(BrokerConfig(name, there, covering=covering))
            for name, there in NEIGHBOURS.items()
        }
        for core in self.cores.values():
            for link in core.links.values():
                link.soft.phase = Phase.UP
        self.seller = self.past.session("seller", "A")
        self.buyer = self.past.session("buyer", "B")
        for session in (self.seller, self.buyer):
            core = self.cores[session.broker]
            opened = core.durable.sessions.open(session.client)
            session.epoch = opened.epoch
            self.say(session.broker, ClientHere(session.client, session.epoch), session.client)

    def say(self, broker: str, message: object, client: str) -> None:
        self._apply(broker, message, Hop.client(client))

    def _apply(self, broker: str, message: object, source: Hop) -> None:
        effects = self.cores[broker].durable.routing.apply(message, source)  # type: ignore[arg-type]
        for sent in effects.of(Sent):
            self._apply(sent.neighbour, sent.message, Hop.broker(broker))

    def offer(self, text: str, at: float = 0.0) -> OperationRecord:
        made = self.past.ask(self.seller, "advertise", text, at)
        assert made.filter is not None
        self.say("A", Advertise(made.id, made.filter), "seller")
        return made

    def wish(self, text: str, at: float = 0.0) -> OperationRecord:
        made = self.past.ask(self.buyer, "subscribe", text, at)
        assert made.filter is not None
        self.say("B", Subscribe(made.id, made.filter), "buyer")
        return made

    def complaints(self) -> list[str]:
        return routing.check(self.past.history, self.cores).violations


@pytest.fixture(params=[False, True], ids=["plain", "covering"])
def world(request: pytest.FixtureRequest) -> World:
    return World(covering=request.param)


# ── routing ──────────────────────────────────────────────────────────────────────────────


def test_correct_tables_are_no_violation(world: World) -> None:
    world.offer("x > 0")
    world.wish("x < 5")
    world.wish("x = 1")
    world.wish("y = 1 and x < 0")
    verdict = routing.check(world.past.history, world.cores)
    assert verdict.checked > 10
    assert verdict.violations == []


def forget_advertisement(world: World) -> None:
    table = world.cores["B"].durable.routing.state.advertisements
    table.remove(next(iter(table)))


def forget_subscription(world: World) -> None:
    table = world.cores["A"].durable.routing.state.subscriptions
    table.remove(next(iter(table)))


def forget_client(world: World) -> None:
    world.cores["A"].durable.routing.state.clients.popitem()


def keep_subscription(world: World) -> None:
    """The client has taken it back, but the tables have it still."""
    next(o for o in world.buyer.operations.values()).gone = True


def end_session(world: World) -> None:
    world.past.history.living.remove(world.buyer)


def keep_link_down(world: World) -> None:
    world.cores["A"].links["B"].soft.phase = Phase.GREETING


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (forget_advertisement, "SRT"),
        (forget_subscription, "PRT"),
        (forget_client, "CRT of A"),
        (keep_subscription, "should not be there"),
        (end_session, "CRT of B"),
        (keep_link_down, "the link of A to B is greeting"),
    ],
)
def test_every_damage_is_found(world: World, damage: Callable[[World], None], words: str) -> None:
    world.offer("x > 0")
    world.wish("x < 5")
    damage(world)
    assert any(words in each for each in world.complaints())


def test_a_covered_subscription_need_not_be_sent() -> None:
    world = World(covering=True)
    world.offer("x > 0")
    wide, narrow = world.wish("x < 5"), world.wish("x < 3")
    table = world.cores["A"].durable.routing.state.subscriptions
    assert wide.id in table
    assert narrow.id not in table
    assert not world.complaints()


def test_a_subscription_that_is_not_covered_must_be_sent() -> None:
    world = World(covering=True)
    world.offer("x > 0")
    world.wish("x < 5")
    missed = world.past.ask(world.buyer, "subscribe", "x < 7")
    assert any(f"covers {missed}" in each for each in world.complaints())


def test_an_entry_sent_without_need_is_a_violation() -> None:
    world = World(covering=True)
    made = world.wish("x < 5")
    world.cores["B"].durable.routing.state.subscriptions.get(made.id).sent = 1  # type: ignore[union-attr]
    assert any("is not needed" in each for each in world.complaints())


# ── effective ────────────────────────────────────────────────────────────────────────────


def checker(world: World) -> Checker:
    for operation in (*world.seller.operations.values(), *world.buyer.operations.values()):
        operation.effective_at = float("inf")
    return Checker(world.past.history, world.cores.get)


def test_a_true_claim_of_effectiveness_is_no_violation(world: World) -> None:
    offer, wish = world.offer("x > 0"), world.wish("x < 5", 1.0)
    looks = checker(world)
    looks.claimed(offer, 0.5)
    looks.claimed(wish, 1.5)
    assert (looks.verdict.checked, looks.verdict.violations) == (4, [])


def test_a_subscription_that_is_not_at_the_advertiser(world: World) -> None:
    offer, wish = world.offer("x > 0"), world.wish("x < 5", 1.0)
    looks = checker(world)
    looks.claimed(offer, 0.5)
    forget_subscription(world)
    looks.claimed(wish, 1.5)
    assert "but A, on its way to advertise" in looks.verdict.violations[0]


def test_an_advertisement_that_is_not_everywhere(world: World) -> None:
    offer = world.offer("x > 0")
    looks = checker(world)
    forget_advertisement(world)
    looks.claimed(offer, 0.5)
    assert "but B, on its way to all brokers" in looks.verdict.violations[0]


@pytest.mark.parametrize(
    ("left_at", "made_at", "is_excused"),
    [(0.4, 0.3, True), (0.4, 0.45, False), (inf, 0.3, False)],
    ids=["its session left behind it", "its session had left", "its session stays"],
)
def test_an_answer_may_wait_for_the_disk_with_the_decision_of_a_move_behind_it(
    left_at: float, made_at: float, is_excused: bool
) -> None:
    world = World()
    offer = world.offer("x > 0")
    looks = checker(world)
    forget_advertisement(world)
    offer.session.stays = [Stay(offer.session.home, left_at=left_at)]
    looks.claimed(offer, 0.5, made_at)
    assert bool(looks.verdict.violations) is not is_excused


def test_an_advertisement_that_attracted_nothing(world: World) -> None:
    wish = world.wish("x < 5")
    offer = world.offer("x > 0", 2.0)
    looks = checker(world)
    wish.wait = False
    looks.claimed(wish, 0.5)
    forget_subscription(world)
    looks.claimed(offer, 2.5)
    assert any(str(wish) in each for each in looks.verdict.violations)


@pytest.mark.parametrize(
    ("jumped_at", "place", "is_welcomed", "is_excused"),
    [
        (1.5, "B", False, True),
        (0.95, "B", False, False),
        (1.5, "A", False, False),
        (1.5, "B", True, False),
    ],
    ids=["it waits", "it was on its way", "elsewhere", "its client is there"],
)
def test_a_session_that_waits_for_its_client_may_end_where_the_clock_jumps(
    jumped_at: float, place: str, *, is_welcomed: bool, is_excused: bool
) -> None:
    # given a subscription whose session has arrived at B at 1.0 s, and has no row anywhere
    world = World()
    wish, offer = world.wish("x < 5"), world.offer("x > 0", 2.0)
    looks, history = checker(world), world.past.history
    wish.wait = False
    looks.claimed(wish, 0.5)
    forget_subscription(world)
    world.buyer.stays = [Stay("A", left_at=0.9, until=1.0), Stay("B", 0.9)]
    history.travels[world.buyer.instance].begin(0.9)
    if is_welcomed:
        history.travels[world.buyer.instance].end(1.2)
    history.jumps[place].touch(jumped_at, jumped_at)
    looks.claimed(offer, 2.5)
    assert any(str(wish) in each for each in looks.verdict.violations) is not is_excused


def test_a_subscription_being_removed_is_not_checked(world: World) -> None:
    offer, wish = world.offer("x > 0"), world.wish("x < 5", 1.0)
    looks = checker(world)
    looks.claimed(offer, 0.5)
    world.say("B", Unsubscribe(wish.id), "buyer")
    wish.ended_at = 1.2
    looks.claimed(wish, 1.5)
    assert looks.verdict.violations == []


def test_a_subscription_reported_removed_must_be_removed_everywhere() -> None:
    world = World()
    world.offer("x > 1")
    wish = world.wish("x = 5")
    checker = Checker(world.past.history, lambda name: world.cores[name])
    removal = world.past.ask(world.buyer, "unsubscribe", "true", 1.0, target=wish)
    world.cores["B"].durable.routing.state.subscriptions.remove(
        world.cores["B"].durable.routing.state.subscriptions.from_source(Hop.client("buyer"))[0]
    )
    checker.removed(removal, 2.0)
    assert checker.verdict.violations == [
        f"{wish} was reported removed at 2.0000 s, but A still has it"
    ]
