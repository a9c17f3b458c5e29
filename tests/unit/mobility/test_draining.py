"""A broker that is drained: whom it refuses, whom it keeps, and what it tells an operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from motet.broker.core.durable import Durable
from motet.broker.core.image import parts_of, restore_from
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Fact, Output, Received
from motet.protocol.mobility.facts import DrainingSet
from motet.protocol.mobility.messages import (
    DrainOrder,
    DrainOrdered,
    SessionAccount,
    SessionsListed,
    SessionsRequest,
)
from motet.protocol.session.messages import ClientHello
from motet.testing.scenario import Scenario

Run = Callable[[str], list[str]]


@pytest.fixture
def run() -> Run:
    """A – B – C, with alice at B, which is being drained."""
    stage = Scenario()
    for line in ("overlay sure A-B B-C", "connect alice B", "settle"):
        stage.run(line)
    assert stage.run("drain B") == ["B > operator: yes"]
    return lambda line: list(stage.run(line))


def test_who_has_no_session_gets_none(run: Run) -> None:
    assert run("connect bob B") == ["B closes bob: NotAdmitted"]
    assert run("connect bob A")[-1] == "A > bob: welcome in A-1.2"


def test_who_has_a_session_comes_back_to_it(run: Run) -> None:
    run("vanish alice")
    assert run("resume alice B B-1.1")[-1] == "B > alice: welcome back in B-1.1"


def test_a_client_that_forgot_its_session_gets_no_other(run: Run) -> None:
    run("vanish alice")
    assert run("connect alice B") == ["B closes alice: NotAdmitted"]
    assert run("resume alice B B-1.1")[-1] == "B > alice: welcome back in B-1.1"


def test_nobody_moves_there(run: Run) -> None:
    for line in ("connect carol A", "settle", "order A carol B"):
        run(line)
    said = run("settle")[-1]
    assert said.startswith("A > operator: carol stays: MoveRefused, B does not take 'carol'")
    assert "its operator drains it" in said


def test_whoever_is_there_may_go(run: Run) -> None:
    for line in ("order B alice C", "settle"):
        run(line)
    assert "C > alice: welcome back in B-1.1" in run("arrive alice")


def test_moves_pass_through(run: Run) -> None:
    for line in ("connect carol A", "settle", "order A carol C", "settle"):
        run(line)
    assert run("arrive carol")[0] == "C > carol: welcome back in A-1.2"


def test_a_second_order_changes_nothing(run: Run) -> None:
    assert run("drain B") == ["B > operator: it is so already"]
    assert run("refill B") == ["B > operator: yes"]
    assert run("refill B") == ["B > operator: it is so already"]


def test_it_survives_a_restart_and_can_be_undone(run: Run) -> None:
    run("crash B")
    assert run("connect bob B") == ["B closes bob: NotAdmitted"]
    run("refill B")
    assert run("connect bob B")[-1] == "B > bob: welcome in B-1.2"


def test_a_broker_without_its_state_serves(run: Run) -> None:
    run("amnesia B")
    run("settle")
    assert "welcome in" in run("connect bob B")[-1]


def test_it_is_part_of_a_snapshot() -> None:
    before = Durable(BrokerConfig("A"))
    before.apply(Fact(1.0, DrainingSet(True)))
    after = Durable(BrokerConfig("A"))
    restore_from(after, list(parts_of(before)))
    assert after.digest() == before.digest()
    before.apply(Fact(2.0, DrainingSet(False)))
    assert after.digest() != before.digest()


# ── what an operator is told ─────────────────────────────────────────────────────────────


def answers(output: Output) -> list[object]:
    return [frame for _, frame in output.deliver]


def test_status_shows_it() -> None:
    core = Scenario()
    for line in ("overlay sure A-B", "connect alice A"):
        core.run(line)
    assert core.brokers["A"].status()["draining"] is False
    core.run("drain A")
    assert core.brokers["A"].status()["draining"] is True
    assert core.brokers["B"].status()["draining"] is False


def test_status_tells_whether_the_log_is_owed() -> None:
    stage = Scenario()
    for line in (
        "overlay sure A-B B-C",
        "connect alice A",
        "connect bob C",
        "advertise alice x > 0",
        "subscribe bob x > 0",
        "settle",
    ):
        stage.run(line)
    a = stage.brokers["A"]
    assert a.status()["log_owed"] == {"owed": False, "towards": []}
    stage.run("publish alice x=1")
    assert a.status()["log_owed"] == {"owed": True, "towards": ["B"]}
    for line in ("settle", "read bob", "time 1", "settle", "time 1", "settle"):
        stage.run(line)
    assert a.status()["log_owed"] == {"owed": False, "towards": []}


def test_the_broker_names_itself_if_its_own_clients_are_behind() -> None:
    stage = Scenario()
    for line in (
        "overlay sure A-B",
        "connect alice A",
        "connect bob A",
        "advertise alice x > 0",
        "subscribe bob x > 0",
        "settle",
        "publish alice x=1",
    ):
        stage.run(line)
    assert stage.brokers["A"].status()["log_owed"] == {"owed": True, "towards": ["A"]}


def test_sessions_are_listed_in_order_and_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("motet.protocol.mobility.drain.LISTED", 2)
    stage = Scenario()
    for line in ("overlay sure A-B", "connect carol A", "connect bob A", "connect alice A"):
        stage.run(line)
    stage.run("vanish bob")
    core = stage.brokers["A"]

    def listed(after: str) -> list[object]:
        return answers(core.step(Received(100, SessionsRequest(after)), 1e6))

    alice = SessionAccount("alice", True, False)
    bob = SessionAccount("bob", False, False)
    carol = SessionAccount("carol", True, False)
    assert listed("") == [SessionsListed((alice, bob), True)]
    assert listed("bob") == [SessionsListed((carol,))]
    assert listed("carol") == [SessionsListed(())]


def test_an_operator_may_order_again_on_one_connection() -> None:
    stage = Scenario()
    stage.run("overlay sure A-B")
    core = stage.brokers["A"]
    for draining in (True, False):
        done = core.step(Received(100, DrainOrder(draining)), 1e6)
        assert answers(done) == [DrainOrdered(True)]
        assert not done.close


def test_a_client_gives_no_orders() -> None:
    stage = Scenario()
    for line in ("overlay sure A-B", "connect alice A"):
        stage.run(line)
    core = stage.brokers["A"]
    connection = core.clients["alice"].connection
    done = core.step(Received(connection, DrainOrder(True)), 1e6)
    assert [close.error for close in done.close] == ["ProtocolError"]
    assert core.status()["draining"] is False


def test_a_broker_whose_clients_cannot_move_is_not_drained() -> None:
    stage = Scenario()
    stage.run("overlay covering A-B")
    core = stage.brokers["A"]
    [refused] = answers(core.step(Received(100, DrainOrder(True)), 1e6))
    assert isinstance(refused, DrainOrdered)
    assert (refused.changed, refused.error) == (False, "NotOffered")
    assert "covering is on" in refused.text
    assert core.status()["draining"] is False
    assert answers(core.step(Received(100, DrainOrder(False)), 1e6)) == [DrainOrdered(False)]
    assert answers(core.step(Received(101, ClientHello(2, "alice")), 1e6))
