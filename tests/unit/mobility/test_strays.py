"""Best-effort events that follow a client: who sends them, who keeps them, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from motet.model import Filter, OpId
from motet.model.limits import MAX_EVENT_BYTES
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import ControlAck, LinkHello
from motet.protocol.mobility import strays as room
from motet.protocol.mobility.messages import (
    ArrivalHello,
    MoveCommit,
    MoveDone,
    MoveOrder,
    Strays,
)
from motet.protocol.mobility.strays import CLIENT_S, LAST_S, SoftStrays
from motet.protocol.publication import Publication
from motet.protocol.routing.messages import ClientHere, MovingRow, Subscribe
from motet.protocol.session.messages import ClientHello, Deliver, SubscribeRequest
from tests.unit.mobility.place import WIDE, Place, departed, publication
from tests.unit.mobility.test_path import commit

ALICE, EPOCH = "alice", "A-1.1"
SUB = OpId(ALICE, EPOCH, 1)


def values(batch: list[Publication]) -> list[int]:
    return [each.sequence for each in batch]


def told(here: Place, neighbour: str) -> list[tuple[list[int], bool]]:
    """The strays that have left for a neighbour."""
    return [(values(each.batch), each.last) for each in here.sent(neighbour, Strays)]


def given(here: Place, client: str = ALICE) -> list[int]:
    """The best-effort events that have left for a client."""
    frames = here.sent(client, Deliver)
    return [each.publication.sequence for frame in frames for each in frame.batch]


def counts(here: Place) -> dict[str, int]:
    found: dict[str, int] = here.core.room(SoftStrays).account()["strays"]
    return found


# ── the source ───────────────────────────────────────────────────────────────────────────


def source() -> Place:
    """A, which alice has just left for C."""
    here = Place()
    here.connect()
    here.subscribe()
    here.depart()
    return here


def test_events_that_come_back_follow_the_client() -> None:
    here = source()
    here.events("B", 5, 6)
    here.events("B", 7)
    assert told(here, "B") == [([5, 6], False), ([7], False)]
    here.acknowledge("B")
    assert told(here, "B")[2:] == [([], True)]
    assert counts(here)["passing"] == 0


def test_behind_the_acknowledgement_nothing_follows() -> None:
    """The next broker has sent these to the client itself."""
    here = source()
    here.acknowledge("B")
    here.events("B", 5)
    assert told(here, "B") == [([], True)]


def test_only_what_the_client_wants_follows() -> None:
    here = source()
    here.events("B", -5)
    assert told(here, "B") == []


def test_events_from_elsewhere_take_the_new_rows() -> None:
    here = source()
    here.connect("xavier")
    here.advertise("xavier")
    before = len(here.told)
    here.publish(1, 5, client="xavier")
    assert told(here, "B") == []
    assert here.told[before:]


def test_what_others_want_is_no_stray() -> None:
    here = source()
    here.connect("bob")
    here.subscribe("bob")
    here.events("B", 5)
    assert given(here, "bob") == [5]
    assert told(here, "B") == [([5], False)]


def test_a_client_without_subscriptions_leaves_no_strays() -> None:
    here = Place()
    here.connect()
    here.depart()
    here.acknowledge("B")
    assert told(here, "B") == []


def test_strays_of_a_broker_that_acknowledges_nothing_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "MOST_BYTES", 300)
    here = source()
    for x in range(1, 9):
        here.events("B", x)
    assert told(here, "B") == [([1], False), ([2], False)]
    assert counts(here)["dropped"] == 6


# ── the path ─────────────────────────────────────────────────────────────────────────────


def way() -> Place:
    """B, which alice has just passed."""
    here = Place("B")
    here.control("A", ClientHere(ALICE, EPOCH))
    here.control("A", Subscribe(SUB, WIDE))
    here.control("A", commit())
    return here


def test_strays_pass_on_in_front_of_ours() -> None:
    here = way()
    here.events("C", 7)
    here.strays("A", 5)
    here.strays("A", 6)
    here.acknowledge("C")
    assert told(here, "C") == [([5], False), ([6], False)]
    here.strays("A", last=True)
    assert told(here, "C")[2:] == [([7], False), ([], True)]
    assert counts(here) | {"kept_bytes": 0, "passing": 0} == counts(here)


def test_the_last_one_waits_for_ours() -> None:
    here = way()
    here.strays("A", 5, last=True)
    here.events("C", 7)
    assert told(here, "C") == [([5], False), ([7], False)]
    here.acknowledge("C")
    assert told(here, "C")[2:] == [([], True)]


def test_what_the_next_broker_has_sent_the_client_itself_is_no_stray() -> None:
    """It has acknowledged the move, but strays of the source are still on their way."""
    here = way()
    here.acknowledge("C")
    here.events("C", 7)
    here.strays("A", last=True)
    assert told(here, "C") == [([], True)]


def test_the_next_broker_may_acknowledge_the_move_alone() -> None:
    """It is followed by the news that its subscription has started in our log."""
    here = Place("B")
    here.connect("xavier")
    here.advertise("xavier")
    here.control("A", ClientHere(ALICE, EPOCH))
    here.control("A", commit())
    ledger = here.core.durable.ledgers["C"]
    (number,) = (n for n, message in ledger.outbox if isinstance(message, MoveCommit))
    assert ledger.record.sent > number
    here.events("C", 6)
    here.hear("C", ControlAck(number))
    here.events("C", 7)
    here.strays("A", last=True)
    assert told(here, "C") == [([6], False), ([], True)]


def test_a_broken_link_to_the_source_ends_its_strays() -> None:
    here = way()
    here.events("C", 7)
    here.lose("A")
    here.link("A")
    here.strays("A", 5)
    assert told(here, "C") == [([7], False)]
    here.acknowledge("C")
    assert told(here, "C")[1:] == [([], True)]


def test_a_broker_that_restarts_knows_who_has_passed() -> None:
    """What it kept is lost. What comes before the next one has the move follows the client."""
    here = way()
    here.events("C", 7)
    here.restart(lost=1)
    here.events("C", 8)
    here.strays("A", 5)
    assert told(here, "C") == [([8], False)]
    here.acknowledge("C")
    assert told(here, "C")[1:] == [([], True)]


def test_a_session_that_comes_back_to_a_broker_that_it_has_passed() -> None:
    here = way()
    here.control("C", MoveDone(ALICE, EPOCH, 1))
    back = replace(commit(), number=2, path=("C", "B"))
    here.control("C", back)
    assert counts(here) | {"passing": 0, "arriving": 1} == counts(here)
    here.acknowledge("C")
    here.strays("A", 5)
    assert told(here, "C") == []


def test_what_is_kept_on_the_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_EVENTS", 2)
    here = way()
    here.events("C", 7, 8, 9)
    here.strays("A", last=True)
    assert told(here, "C") == [([7, 8], False)]
    assert counts(here)["dropped"] == 1


# ── the target ───────────────────────────────────────────────────────────────────────────


def target(place: str = "C", **changed: Any) -> Place:
    """C, where alice has arrived from A."""
    here = Place(place)
    arrive(here, departed(place), **changed)
    return here


def arrive(here: Place, moving: MoveCommit, **changed: Any) -> None:
    here.control(moving.path[-2], ClientHere(moving.client, moving.epoch))
    here.control(moving.path[-2], replace(moving, **changed))


def greet(here: Place) -> list[Frame]:
    here.ends.pop(ALICE, None)
    hello = ClientHello(PROTOCOL_VERSION, ALICE, EPOCH)
    return here.hear(ALICE, ArrivalHello(PROTOCOL_VERSION, hello))


def test_strays_come_first() -> None:
    here = target()
    here.events("B", 7)
    here.strays("B", 5)
    here.strays("B", 6, last=True)
    here.events("B", 8)
    assert given(here) == []
    greet(here)
    assert given(here) == [5, 6, 7, 8]
    here.events("B", 9)
    assert given(here) == [5, 6, 7, 8, 9]
    assert counts(here) | {"arriving": 0, "kept_bytes": 0} == counts(here)


def test_a_client_gets_strays_at_once_and_newer_events_behind_them() -> None:
    here = target()
    here.strays("B", 5)
    greet(here)
    assert given(here) == [5]
    here.events("B", 7)
    here.strays("B", 6)
    assert given(here) == [5, 6]
    here.strays("B", last=True)
    assert given(here) == [5, 6, 7]


def test_strays_are_not_awaited_for_ever() -> None:
    here = target()
    greet(here)
    here.events("B", 7)
    here.wait(LAST_S + 0.1)
    assert given(here) == [7]
    here.strays("B", 5, last=True)
    assert given(here) == [7], "it would come too late"


def test_a_client_is_not_awaited_for_ever() -> None:
    here = target()
    here.strays("B", 5, last=True)
    here.wait(CLIENT_S + 0.1)
    greet(here)
    here.events("B", 8)
    assert given(here) == [8]
    assert here.core.clients[ALICE].lost == 1


def test_events_wait_for_a_client_beyond_the_wait_for_strays() -> None:
    here = target()
    here.strays("B", 5)
    here.wait(LAST_S + 0.1)
    here.events("B", 8)
    greet(here)
    assert given(here) == [5, 8]


def test_a_broken_path_ends_the_strays() -> None:
    here = target()
    greet(here)
    here.events("B", 7)
    here.lose("B")
    assert given(here) == [7]
    here.link("B")
    here.strays("B", 5, last=True)
    assert given(here) == [7]


def test_strays_do_not_go_on_on_another_connection() -> None:
    here = target()
    here.strays("B", 5)
    here.lose("B")
    here.link("B")
    here.strays("B", 6, last=True)
    greet(here)
    assert given(here) == [5]


def test_after_a_restart_nothing_is_awaited() -> None:
    here = target()
    here.strays("B", 5)
    here.restart()
    greet(here)
    here.strays("B", 6, last=True)
    here.events("B", 8)
    assert given(here) == [8]


def test_a_frame_that_arrives_twice_brings_its_events_once() -> None:
    here = target()
    greet(here)
    frame = Strays(1, 0, ALICE, EPOCH, 1, [publication(5)])
    here.hear("B", frame)
    here.hear("B", frame)
    assert given(here) == [5]


def test_what_is_kept_for_a_client_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_EVENTS", 2)
    here = target()
    here.strays("B", 5)
    here.events("B", 7, 8)
    here.strays("B", last=True)
    greet(here)
    assert given(here) == [5, 7]
    assert here.core.clients[ALICE].lost == 1


def test_what_is_kept_for_all_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_BYTES_TOGETHER", 250)
    here = target()
    here.events("B", 7, 8, 9)
    assert 0 < counts(here)["kept_bytes"] <= 250
    here.strays("B", last=True)
    greet(here)
    assert given(here) == [7, 8]
    assert here.core.clients[ALICE].lost == 1
    assert counts(here)["kept_bytes"] == 0


def test_a_session_that_ends_takes_its_events_along() -> None:
    here = target()
    here.events("B", 7)
    here.wait(here.config.lease_s + 0.1)
    assert here.core.durable.sessions.get(ALICE) is None
    assert counts(here) | {"arriving": 0, "kept_bytes": 0} == counts(here)


def test_a_new_session_does_not_get_events_of_the_former_one() -> None:
    here = target()
    here.events("B", 7)
    here.connect()
    here.subscribe()
    here.strays("B", 5, last=True)
    here.events("B", 8)
    assert given(here) == [8]


# ── the next move ────────────────────────────────────────────────────────────────────────


def test_a_client_moves_on_when_its_strays_have_come() -> None:
    here = target()
    greet(here)
    here.ask("A")
    here.accept()
    assert here.sent("B", MoveCommit) == []
    assert "follow" in here.soft.account()["moves"]["departing"][ALICE]["waits_for"]
    here.strays("B", 5, last=True)
    assert given(here) == [5]
    assert here.sent("B", MoveCommit)[-1].number == 2


def test_what_an_absent_client_has_not_got_follows_it_again() -> None:
    here = target()
    here.strays("B", 5, last=True)
    here.events("B", 7)
    here.hear("operator", MoveOrder(ALICE, "A"))
    here.accept()
    assert told(here, "B") == [([5, 7], False)]
    here.events("B", 8)
    here.acknowledge("B")
    assert told(here, "B")[1:] == [([8], False), ([], True)]


# ── peers that lie ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "lie",
    [{"epoch": "A-1.2"}, {"move": 2}, {"move": 0}, {"client": "bob"}, {"client": "nobody"}],
)
def test_strays_of_another_session_or_move_are_not_believed(lie: dict[str, Any]) -> None:
    here = target()
    greet(here)
    here.connect("bob")
    here.subscribe("bob")
    here.strays("B", 5, **lie)
    assert given(here) == given(here, "bob") == []
    assert counts(here)["dropped"] == 1


def test_strays_of_another_neighbour_are_not_believed() -> None:
    here = way()
    here.strays("C", 5)
    assert told(here, "A") == told(here, "C") == []
    there = target("B")
    greet(there)
    there.strays("C", 5)
    assert given(there) == []
    there.strays("A", 5)
    assert given(there) == [5]


def test_strays_reach_only_subscriptions_that_the_client_has_brought() -> None:
    here = target()
    greet(here)
    here.hear(ALICE, SubscribeRequest(2, Filter.parse("x < 0"), wait=False))
    here.strays("B", -5, 5)
    assert given(here) == [5]


def test_strays_without_sense_reach_nobody() -> None:
    here = target()
    greet(here)
    bodies = [b"\xc1nothing", bytes(MAX_EVENT_BYTES + 1)]
    batch = [Publication("xavier", 1, Raw(each)) for each in bodies]
    here.hear("B", Strays(1, 0, ALICE, EPOCH, 1, [*batch, publication(5)]))
    assert given(here) == [5]


def test_a_commit_cannot_make_others_get_strays() -> None:
    """A row of another client does not move, so nothing follows it."""
    here = Place("B")
    here.is_lied_to = True
    here.control("A", ClientHere(ALICE, EPOCH))
    here.control("A", Subscribe(OpId("bob", "A-1.2", 1), WIDE))
    here.control("A", commit(subscriptions=(MovingRow(OpId("bob", "A-1.2", 1), WIDE),)))
    here.events("C", 5)
    assert told(here, "C") == []


def test_strays_from_a_client_are_refused() -> None:
    here = target()
    greet(here)
    here.hear(ALICE, Strays(1, 0, ALICE, EPOCH, 1, [publication(5)]))
    assert here.closed
    assert given(here) == []


def test_a_neighbour_that_starts_empty_ends_what_follows() -> None:
    here = source()
    here.events("B", 5)
    here.lose("B")
    here.ends.pop("B", None)
    here.hear("B", LinkHello(PROTOCOL_VERSION, "B", 2, 1, 0))
    assert counts(here)["passing"] == 0
