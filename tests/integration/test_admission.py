"""Which clients a broker takes in, those that connect and those that move there; and every error of
a move, in one process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

import motet
from motet.broker.driver.rule import BROKEN, rule_of
from motet.broker.overlay.topology import Topology
from motet.client.local import LocalOverlay
from motet.errors import (
    Disconnected,
    InTransaction,
    MisuseError,
    MoveRefused,
    NotAdmitted,
    NotAuthorised,
    NotEffective,
    NotOffered,
    TopologyError,
)
from motet.model.limits import MAX_CREDENTIALS_BYTES
from motet.protocol.mobility.messages import MoveOffer
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.session.admission import Admission
from tests.waiting import eventually

RULE = "rule_of_a_test:rule"


@pytest.fixture
async def overlay() -> AsyncIterator[LocalOverlay]:
    async with motet.local(3) as overlay:
        yield overlay


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """A rule that lets in whoever knows the word, and fails for "bug"; returns its calls."""
    calls: list[tuple[str, bytes]] = []

    def decide(client: str, credentials: bytes) -> str | None:
        calls.append((client, credentials))
        if client == "bug":
            raise ValueError("a mistake")
        return None if credentials == b"word" else f"{client} does not know the word"

    module = ModuleType(RULE.partition(":")[0])
    module.rule = decide  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def admission(overlay: LocalOverlay, broker: str) -> Admission:
    core = overlay.drivers[broker].core
    return core.sessions.admission  # type: ignore[attr-defined, no-any-return]


async def works(client: motet.Client, number: int) -> None:
    """A client that stayed, or has moved, receives what it publishes."""
    events = await client.subscribe(f"own = {number}", wait="local")
    await client.advertise(f"own = {number}", wait="local")
    await client.publish({"own": number})
    assert (await anext(events))["own"] == number


# ── draining ─────────────────────────────────────────────────────────────────────────────


async def test_a_draining_broker_refuses_new_sessions_and_moves(overlay: LocalOverlay) -> None:
    old = await overlay.connect("old", broker="B3")
    alice = await overlay.connect("alice", broker="B1")
    admission(overlay, "B3").draining = "its operator drains it"
    with pytest.raises(NotAdmitted, match="B3 opens no new sessions: its operator drains it"):
        await overlay.connect("new", broker="B3")
    with pytest.raises(MoveRefused, match=r"B3 does not take 'alice': .* drains it"):
        await alice.move("B3")
    assert alice.broker == "B1"
    await works(alice, 1)
    old._driver._line.connection.abort("a fault")  # type: ignore[union-attr]
    await works(old, 2)  # it resumes its session
    admission(overlay, "B3").draining = ""
    await alice.move("B3")
    await works(alice, 3)


async def test_a_client_with_several_addresses_tries_the_next_one(overlay: LocalOverlay) -> None:
    admission(overlay, "B1").draining = "its operator drains it"
    where = (overlay.address("B1"), overlay.address("B2"))
    async with motet.connect(*where, client_id="alice") as alice:
        assert alice.broker == "B2"


# ── the most clients ─────────────────────────────────────────────────────────────────────


async def test_a_full_broker() -> None:
    places = Topology.line(2).brokers
    full = dataclasses.replace(places[1], most_clients=2)
    async with motet.local(Topology("full", (places[0], full))) as overlay:
        first, second = [await overlay.connect(name, broker="B2") for name in ("a", "b")]
        alice = await overlay.connect("alice", broker="B1")
        with pytest.raises(NotAdmitted, match="B2 has 2 clients, the most that it takes"):
            await overlay.connect("c", broker="B2")
        with pytest.raises(MoveRefused, match="B2 has 2 clients"):
            await alice.move("B2")
        await overlay.connect("b", broker="B2")  # takes the place of the other process
        await eventually(lambda: second.closed)
        await first.move("B1")
        await alice.move("B2")
        assert (first.broker, alice.broker) == ("B1", "B2")
        await works(alice, 1)


def test_a_place_is_kept_for_a_while_for_those_who_come() -> None:
    clients: list[str] = ["a"]
    config = Topology.line(1, most_clients=3).config("B1")
    desk = Admission(config, clients)
    assert desk.to_arrival("b", b"", 0.0) is None
    assert desk.to_arrival("b", b"", 1.0) is None  # asked again
    assert desk.to_arrival("c", b"", 2.0) is None
    refused = desk.to_arrival("d", b"", 3.0)
    assert refused is not None
    assert refused.error == "MoveRefused"
    assert desk.to_session("d", 3.0) is not None
    clients.append("b")
    assert desk.to_session("d", 3.0) is not None  # c may still come
    assert desk.to_session("d", 13.0) is None


# ── the operator's rule ──────────────────────────────────────────────────────────────────


async def test_the_rule_is_asked_about_hellos_and_moves(rule: list[tuple[str, bytes]]) -> None:
    async with motet.local(Topology.line(2, authorise=RULE)) as overlay:
        with pytest.raises(NotAuthorised, match="B1: eve does not know the word"):
            await overlay.connect("eve", broker="B1")
        with pytest.raises(NotAuthorised, match="its rule for clients has failed"):
            await overlay.connect("bug", broker="B1", credentials=b"word")
        alice = await overlay.connect("alice", broker="B1", credentials=b"word")
        asked = len(rule)
        await alice.move("B2")
        assert rule[asked:] == [("alice", b"word")] * 2  # the offer, and the hello
        await works(alice, 1)
        admission(overlay, "B1").authorise = lambda client, _: f"{client} may not come back"
        with pytest.raises(MoveRefused, match="B1: alice may not come back"):
            await alice.move("B1")
        await works(alice, 2)


async def test_credentials_that_nobody_checks(overlay: LocalOverlay) -> None:
    with pytest.raises(NotOffered, match="B1 checks no credentials"):
        await overlay.connect("alice", credentials=b"word")
    with pytest.raises(MisuseError, match="at most 4096 bytes"):
        await overlay.connect("alice", credentials=bytes(MAX_CREDENTIALS_BYTES + 1))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no.such.module:rule", "cannot be imported"),
        ("os:no_such_function", "cannot be imported"),
        ("sys:path", "is not a function"),
    ],
)
def test_rules_that_cannot_be_used(name: str, text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        rule_of(name)


def test_a_rule_returns_text(rule: list[tuple[str, bytes]]) -> None:
    answers = []
    for name in ("builtins:len", "operator:eq", "operator:ne", RULE):
        check = rule_of(name)
        assert check is not None
        answers.append(check("alice", b"word"))
    # It takes one argument only; returns False; returns True; returns None.
    assert answers == [BROKEN, "", BROKEN, ""]
    assert rule == [("alice", b"word")]
    assert rule_of("") is None


@pytest.mark.parametrize(
    "line",
    ["most_clients = -1", "most_clients = true", 'most_clients = "3"', 'authorise = "rule"'],
)
def test_a_topology_with_senseless_admission(line: str) -> None:
    with pytest.raises(TopologyError, match=r"most_clients|authorise"):
        Topology.parse(f'[overlay]\n{line}\n[brokers.B1]\nlisten = "127.0.0.1:7701"\n')


def test_admission_in_a_topology_file(tmp_path: Path) -> None:
    text = (
        f'[overlay]\nmost_clients = 5\nauthorise = "{RULE}"\n[brokers.B1]\n'
        'listen = "127.0.0.1:7701"\nmost_clients = 0\n[brokers.B2]\n'
        'listen = "127.0.0.1:7702"\nlinks = ["B1"]\n'
    )
    topology = Topology.parse(text)
    assert [topology.config(name).most_clients for name in topology.names] == [0, 5]
    assert topology.config("B1").authorise == RULE
    file = tmp_path / "topology.toml"
    file.write_text(topology.to_toml())
    assert Topology.load(file) == topology


# ── a duplicate id ───────────────────────────────────────────────────────────────────────


async def test_another_client_of_the_same_id_at_the_target(overlay: LocalOverlay) -> None:
    await overlay.connect("alice", broker="B3")
    core = overlay.drivers["B3"].core
    mobility = core.room(SoftMobility)  # type: ignore[attr-defined]

    def refused(client: str, epoch: str) -> str:
        offer = MoveOffer(client, epoch, 1, ("B1", "B2", "B3"))
        found = [each for each in (objects(offer) for objects in mobility.objectors) if each]
        assert all(each.error == "MoveRefused" for each in found)
        return found[0].text if found else ""

    assert refused("alice", "B1-1.1") == "B3 has another session of 'alice'"
    bob = await overlay.connect("bob", broker="B2")
    await eventually(lambda: refused("bob", "B1-1.1"))
    assert refused("bob", "B1-1.1") == "another client has connected to B2 as 'bob'"
    assert refused("bob", bob.session.epoch) == ""


async def test_a_newer_client_of_the_same_id_ends_one_that_has_moved(
    overlay: LocalOverlay,
) -> None:
    old = await overlay.connect("alice", broker="B1")
    await old.move("B3")
    new = await overlay.connect("alice", broker="B1")
    await eventually(lambda: old.closed)
    assert not new.closed


# ── other errors ─────────────────────────────────────────────────────────────────────────


async def test_to_the_same_broker_and_to_unknown_ones(overlay: LocalOverlay) -> None:
    alice = await overlay.connect("alice", broker="B1")
    await alice.move("B1")
    with pytest.raises(MisuseError, match=r"knows no broker 'B9'.*knows B2, B3"):
        await alice.move("B9")
    await works(alice, 1)


async def test_a_broker_that_cannot_be_reached_is_named(overlay: LocalOverlay) -> None:
    alice = await overlay.connect("alice", broker="B1")
    await overlay.stop_broker("B2")
    with pytest.raises(NotEffective, match="not reached: B2; the client stays where") as caught:
        await alice.move("B3", timeout=0.3)
    assert caught.value.missing == ("B2",)
    await overlay.start_broker("B2")
    await overlay.stop_broker("B3")
    with pytest.raises(NotEffective, match="brokers not reached: B3"):
        await alice.move("B3", timeout=0.3)
    assert (alice.broker, alice.connected) == ("B1", True)
    await works(alice, 1)


async def test_a_client_in_an_open_transaction_stays(overlay: LocalOverlay) -> None:
    alice = await overlay.connect("alice", broker="B2")
    await alice.advertise("n > 0")
    async with alice.transaction() as tx:
        await tx.publish({"n": 1})
        with pytest.raises(InTransaction, match="open transaction; end it, then move"):
            await alice.move("B3")
    await alice.move("B3")
    assert alice.broker == "B3"
    await works(alice, 1)


async def test_covering_moves_no_clients() -> None:
    async with motet.local(2, covering=True) as overlay:
        alice = await overlay.connect("alice", broker="B1", best_effort=True)
        with pytest.raises(NotOffered, match="moves no clients, because covering is on"):
            await alice.move("B2")
        assert alice.connected


async def test_who_comes_to_the_old_broker_is_sent_on(overlay: LocalOverlay) -> None:
    """A durable client whose process ends, and whose next one knows the old address only."""
    first = await overlay.connect("alice", broker="B1", durable=True)
    await first.subscribe("n > 0", name="all")
    await first.move("B3")
    await first.close()
    bob = await overlay.connect("bob", broker="B2")
    await bob.advertise("n > 0")
    await bob.publish({"n": 1})
    again = await overlay.connect("alice", broker="B1", durable=True)
    assert (again.broker, again.session.resumed) == ("B3", True)
    (events,) = again.subscriptions
    assert (await anext(events))["n"] == 1


def test_moves_without_await() -> None:
    with motet.local_sync(3) as overlay, overlay.connect("alice", broker="B1") as alice:
        events = iter(alice.subscribe("n > 0"))
        alice.advertise("n > 0")
        for number, broker in enumerate(("B2", "B3", "B1"), 1):
            alice.move(broker)
            assert alice.broker == broker
            alice.publish({"n": number})
            assert next(events)["n"] == number
        with pytest.raises(MisuseError, match="knows no broker"):
            alice.move("B9")
        with pytest.raises(MisuseError):
            alice.move(to=7)  # type: ignore[arg-type]


async def test_a_closed_overlay_is_no_target(overlay: LocalOverlay) -> None:
    alice = await overlay.connect("alice", broker="B1")
    await overlay.close()
    with pytest.raises((Disconnected, MisuseError)):
        await alice.move("B2", timeout=0.1)
