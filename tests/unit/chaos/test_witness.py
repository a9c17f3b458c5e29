"""What the witness writes down is what the machine did."""

from __future__ import annotations

from math import inf

import pytest
from msgspec import Raw

from motet.audit.records import EventRecord, LossRecord
from motet.chaos.chronicle import Chronicle
from motet.chaos.traffic import FrailDriver
from motet.chaos.witness import Witness
from motet.client.session.machine import ClientMachine
from motet.model import Filter, encode_event
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import Frame
from motet.protocol.mobility.messages import Moved
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    Deliver,
    Delivery,
    Done,
    Failed,
    Farewell,
    Published,
    Refusal,
    Welcome,
)
from motet.runtime.codec import encode
from motet.testing.checkers import sessions
from motet.testing.topology import Tree

LEASE_S = 10.0
FILTER = Filter.parse("x > 1")


class Clocked(Chronicle):
    at = 0.0

    def now(self) -> float:
        return self.at


class Scene:
    def __init__(self) -> None:
        self.chronicle = Clocked(Tree([], ["B1"]), covering=False, hop_s=1.0, lease_s=LEASE_S)
        self.history = self.chronicle.history
        self.machine = ClientMachine("ann")
        self.witness = Witness(self.chronicle, 0, self.machine)

    def take(self) -> None:
        self.witness.watch(self.machine.take())

    def received(self, frame: Frame) -> None:
        self.witness.heard(frame)
        self.machine.received(frame)
        self.take()

    def closed(self) -> None:
        self.machine.closed()
        self.witness.closed()

    def welcome(
        self, epoch: str = "B1-1.1", *, resumed: bool = False, forgot: bool = False
    ) -> None:
        self.machine.opened()
        self.received(Welcome("B1", epoch, resumed, 0, LEASE_S, forgot=forgot))

    def ask(self, kind: str = "subscribe", **more: object) -> int:
        handle = self.machine.request(kind, FILTER, **more)  # type: ignore[arg-type]
        self.take()
        return handle

    def publish(self, *values: int, sure: bool = True) -> list[bytes]:
        bodies = []
        for value in values:
            number = len(self.history.events)
            self.history.events.append(EventRecord(number, "ann", 0, {"x": value}))
            bodies.append(encode_event({"x": value}, str(number).encode()))
        raws = [Raw(body) for body in bodies]
        self.witness.published(self.machine.publish(raws, sure), raws, sure)
        self.take()
        return bodies

    def oddities(self) -> list[str]:
        return [guarantee for guarantee, _ in self.history.oddities]


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.welcome()
    return made


def test_a_session_begins_with_its_welcome() -> None:
    scene = Scene()
    trouble = scene.history.disturbed[0]
    scene.chronicle.at = 1.0
    assert trouble.open
    scene.welcome()
    (session,) = scene.history.sessions
    assert (session.client, session.epoch, session.broker) == ("ann", "B1-1.1", "B1")
    assert session.opened_at == 1.0
    assert not trouble.open


def test_an_operation_and_its_answer(scene: Scene) -> None:
    scene.chronicle.at = 2.0
    scene.ask()
    operation = scene.history.sessions[0].operations[1]
    assert (operation.kind, operation.filter, operation.requested_at) == ("subscribe", FILTER, 2.0)
    assert operation.effective_at == inf
    scene.chronicle.at = 3.0
    scene.received(Done(1))
    assert (operation.answer, operation.effective_at) == ("Done", 3.0)
    assert scene.machine.at_rest


def test_an_operation_that_did_not_wait_is_not_recorded_as_effective(scene: Scene) -> None:
    scene.ask(wait=False)
    scene.received(Done(1))
    operation = scene.history.sessions[0].operations[1]
    assert (operation.answer, operation.effective_at) == ("Done", inf)


def test_a_removal_ends_its_target(scene: Scene) -> None:
    handle = scene.ask()
    scene.received(Done(1))
    scene.chronicle.at = 5.0
    scene.machine.request("unsubscribe", target=handle)
    scene.take()
    added, removal = scene.history.sessions[0].operations.values()
    assert removal.target is added
    assert (added.ended_at, added.ended_position, added.gone) == (5.0, removal.position, False)
    scene.received(Done(2))
    assert added.gone


def test_a_failed_operation_is_recorded_as_gone(scene: Scene) -> None:
    scene.ask()
    scene.received(Failed(1, "NotEffective", "too slow", ("B9",)))
    (operation,) = scene.history.sessions[0].operations.values()
    assert (operation.answer, operation.missing, operation.gone) == ("NotEffective", ("B9",), True)


def test_a_changed_answer_is_reported(scene: Scene) -> None:
    scene.ask()
    scene.received(Done(1))
    scene.received(Failed(1, "NotEffective", "on second thoughts"))
    assert scene.oddities() == ["answers"]


def test_a_resumed_session_is_recorded_as_the_same_session(scene: Scene) -> None:
    scene.ask()
    scene.closed()
    assert scene.history.disturbed[0].open
    scene.welcome(resumed=True)
    assert len(scene.history.sessions) == 1
    assert len(scene.history.sessions[0].operations) == 1  # sent again, and known
    assert (scene.chronicle.resumed, scene.chronicle.lost_sessions) == (1, 0)
    assert scene.oddities() == []


def test_a_forgotten_session_breaks_a_promise(scene: Scene) -> None:
    scene.ask()
    scene.received(Done(1))
    scene.closed()
    scene.chronicle.at = 1.0
    scene.welcome("B1-2.1")
    assert scene.oddities() == ["durability"]
    assert (scene.chronicle.lost_sessions, scene.chronicle.lost_operations) == (1, 1)
    before, after = scene.history.sessions
    assert before.ended_at == 1.0
    assert [operation.filter for operation in after.operations.values()] == [FILTER]  # renewed


def test_a_session_lost_after_its_lease_is_no_violation(scene: Scene) -> None:
    scene.closed()
    scene.chronicle.at = LEASE_S + 1.0
    scene.welcome("B1-1.2")
    assert scene.oddities() == []
    assert scene.chronicle.lost_sessions == 1


def test_an_epoch_issued_twice_is_reported(scene: Scene) -> None:
    scene.closed()
    scene.chronicle.at = LEASE_S + 1.0
    scene.welcome("B1-1.1")
    assert scene.oddities() == ["sessions"]


def test_the_fates_of_events_are_recorded(scene: Scene) -> None:
    scene.chronicle.at = 4.0
    scene.publish(1, 2, 3, sure=False)
    one, two, three = scene.history.events
    assert [event.sent_at for event in scene.history.events] == [4.0] * 3
    assert one.position < two.position < three.position
    scene.received(Published(2, (Refusal(2, "NotAdvertised", "not yours"),)))
    assert [event.fate for event in scene.history.events] == ["accepted", "refused", ""]
    scene.closed()
    scene.welcome(resumed=True, forgot=True)
    assert three.fate == "unknown"


def test_a_delivery_names_its_event_and_its_subscription(scene: Scene) -> None:
    handle = scene.ask()
    (body,) = scene.publish(7)
    scene.received(Deliver([Delivery((1,), Publication("ann", 1, Raw(body)))]))
    (delivery,) = scene.history.deliveries
    assert delivery.event is scene.history.events[0]
    assert delivery.operation is scene.history.sessions[0].operations[1]
    assert (delivery.handle, delivery.publisher) == (handle, "ann")


def test_an_altered_event_matches_no_publication(scene: Scene) -> None:
    scene.ask()
    scene.publish(7)
    other = encode_event({"x": 8}, b"0")
    scene.received(Deliver([Delivery((1,), Publication("ann", 1, Raw(other)))]))
    assert scene.history.deliveries[0].event is None


def test_a_delivery_without_a_subscription_is_reported(scene: Scene) -> None:
    (body,) = scene.publish(7)
    scene.received(Deliver([Delivery((5,), Publication("ann", 1, Raw(body)))]))
    assert scene.oddities() == ["soundness"]


def test_the_end_of_a_killed_client(scene: Scene) -> None:
    scene.ask()
    scene.chronicle.at = 6.0
    scene.witness.die()
    assert scene.history.departed == {0}
    assert scene.history.sessions[0].ended_at == 6.0
    assert scene.history.sessions[0].operations[1].ended_at == 6.0


def test_a_goodbye_ends_the_session(scene: Scene) -> None:
    scene.chronicle.at = 6.0
    scene.machine.goodbye()
    scene.take()
    assert scene.history.sessions[0].ended_at == 6.0


def test_a_refused_session_is_reported(scene: Scene) -> None:
    scene.received(Farewell("VersionError", "you are too old"))
    scene.take()
    assert scene.oddities() == ["sessions"]


def test_a_fencing_is_recorded_and_left_to_the_checker(scene: Scene) -> None:
    (opening,) = scene.history.openings
    assert (opening.client, opening.epoch, opening.resume) == ("ann", "B1-1.1", None)
    scene.chronicle.at = 7.0
    scene.received(Farewell("Fenced", "another one came"))
    scene.take()
    assert scene.oddities() == []
    (fencing,) = scene.history.fencings
    assert (fencing.client, fencing.epoch, fencing.at) == ("ann", "B1-1.1", 7.0)
    assert sessions.check(scene.history).violations  # for nobody newer had come


def test_sure_events_and_losses_are_written_down_once(scene: Scene) -> None:
    handle = scene.ask()
    scene.received(Done(1))
    (body,) = scene.publish(5)
    scene.chronicle.at = 4.0
    told = Delivered("B1.1", 9, [7], [Publication("ann", 1, Raw(body))], (1,), lost=((8, 9),))
    scene.received(told)
    scene.received(told)
    scene.take()
    (delivery,) = scene.history.deliveries
    event = scene.history.events[0]
    assert (delivery.at, delivery.handle, delivery.event) == (4.0, handle, event)
    assert (delivery.pubend, delivery.tick) == (event.pubend, event.tick) == ("B1.1", 7)
    assert scene.history.losses == [LossRecord(0, "B1.1", 8, 9)]


def test_a_move_is_no_trouble_and_the_session_is_followed(scene: Scene) -> None:
    trouble, travels = scene.history.disturbed[0], scene.history.travels[0]
    scene.chronicle.at = 5.0
    scene.received(Moved("B2", "motet://b2"))
    scene.closed()
    assert not trouble.open
    assert travels.open
    scene.chronicle.at = 6.0
    scene.machine.opened()
    scene.received(Welcome("B2", "B1-1.1", True, 0, LEASE_S))
    (session,) = scene.history.sessions
    assert [(s.broker, s.left_at, s.until) for s in session.stays] == [
        ("B1", 5.0, 6.0),
        ("B2", inf, inf),
    ]
    assert session.home == scene.history.places["ann", "B1-1.1"] == "B2"
    assert scene.chronicle.longest_transit_s == 1.0
    assert not travels.open
    assert scene.oddities() == []


def test_a_connection_that_breaks_on_the_way_is_trouble(scene: Scene) -> None:
    scene.received(Moved("B2", "motet://b2"))
    scene.closed()
    scene.machine.opened()
    scene.closed()
    assert scene.history.disturbed[0].open


def test_a_client_that_does_not_wait_may_lose_its_session(scene: Scene) -> None:
    scene.received(Moved("B2", "motet://b2"))
    scene.closed()
    scene.witness.lose_patience()
    scene.machine.opened()
    scene.received(Welcome("B2", "B2-1.1", False, 0, LEASE_S))
    assert scene.oddities() == []
    assert scene.chronicle.lost_sessions == 0
    assert scene.history.sessions[0].ended_at < inf


async def test_an_invalid_answer_of_a_broker_is_reported(scene: Scene) -> None:
    driver = FrailDriver(["tcp://127.0.0.1:1"], scene.machine, recorder=scene.witness)
    driver.heard([encode(Done(99))])
    assert scene.oddities() == ["invariants"]
