"""Transactions without `await`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

import motet
from motet.errors import Aborted, InvitationRefused, MisuseError, TransactionOver
from tests.waiting import PATIENCE_S, wait_until

STREAM = "n >= 0"


@pytest.fixture(scope="module")
def overlay() -> Iterator[motet.client.sync.SyncOverlay]:
    with motet.local_sync(2) as overlay:
        yield overlay


@pytest.fixture
def alice(overlay: motet.client.sync.SyncOverlay) -> Iterator[motet.client.sync.SyncClient]:
    with overlay.connect("alice", broker="B1") as client:
        client.advertise(f"{STREAM} or call is not null")
        yield client


@pytest.fixture
def bob(overlay: motet.client.sync.SyncOverlay) -> Iterator[motet.client.sync.SyncClient]:
    with overlay.connect("bob", broker="B2") as client:
        client.subscribe("call is not null")
        yield client


def test_a_hand_over(
    alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient
) -> None:
    theirs: list[motet.client.sync.SyncSubscription] = []
    threads: list[str] = []

    def take_over(invitation: motet.Invitation, tx: motet.client.sync.SyncTransaction) -> None:
        threads.append(threading.current_thread().name)
        assert invitation.event["call"] == 1
        theirs.append(tx.subscribe(STREAM))

    bob.participate(take_over)
    mine = alice.subscribe(STREAM)
    alice.send({"n": 1})
    with alice.transaction() as tx:
        assert tx.invite({"call": 1}) == 1
        tx.unsubscribe(mine)
        tx.publish({"n": 2})
    assert tx.committed
    alice.send({"n": 3})
    assert mine.get(PATIENCE_S)["n"] == 1
    assert list(mine) == []
    assert [theirs[0].get(PATIENCE_S)["n"] for _ in range(2)] == [2, 3]
    assert threads[0] != "motet-loop"  # it may block there
    assert alice.outcome(tx.id) == "committed"
    assert repr(tx).startswith("<SyncTransaction alice/")


def test_a_plan_hands_a_stream_over(
    alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient
) -> None:
    began: list[motet.client.sync.SyncSubscription] = []
    bob.participate(on_started=began.append)
    alice.participate()
    plan = motet.Plan()
    plan.subscribe("bob", STREAM)
    plan.publish("alice", {"n": 1})
    tx = alice.execute(plan)
    assert bob.outcome(tx) == "committed"
    wait_until(lambda: bool(began))
    assert began[0].get(PATIENCE_S)["n"] == 1
    missing = motet.Plan()
    missing.unsubscribe("bob", "never")
    with pytest.raises(Aborted):
        alice.execute(missing)


def test_subscriptions_that_plans_start(
    alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient
) -> None:
    bob.participate()
    plan = motet.Plan()
    plan.subscribe("bob", STREAM, name="taken over")
    plan.publish("alice", {"n": 1})
    alice.execute(plan)
    for subscription in bob.started():
        assert subscription.name == "taken over"
        assert subscription.get(PATIENCE_S)["n"] == 1
        break


def test_callbacks_and_advertisements(
    alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient
) -> None:
    seen: list[object] = []
    with bob.transaction(isolation="none") as tx:
        tx.subscribe("m > 0", callback=lambda event: seen.append(event["m"]))
    with alice.transaction(isolation="none") as tx:
        advertisement = tx.advertise("m > 0")
        tx.publish({"m": 1})
    wait_until(lambda: seen == [1])
    with alice.transaction(isolation="none") as tx:
        tx.unadvertise(advertisement)
        tx.publish({"n": 1})
    with pytest.raises(MisuseError, match="a callback must be callable"):
        alice.transaction().subscribe("m > 0", callback=7)  # type: ignore[arg-type]


def test_an_error_aborts(alice: motet.client.sync.SyncClient) -> None:
    with suppress(ZeroDivisionError), alice.transaction() as tx:
        tx.publish({"n": 1})
        raise ZeroDivisionError
    assert tx.committed is False
    assert alice.outcome(tx.id) == "aborted"
    with pytest.raises(TransactionOver):
        tx.publish({"n": 2})
    with alice.transaction() as tx:
        tx.abort("changed my mind")
    assert alice.outcome(tx.id) == "aborted"


def test_a_refusal(alice: motet.client.sync.SyncClient, bob: motet.client.sync.SyncClient) -> None:
    def refuse(invitation: motet.Invitation, tx: motet.client.sync.SyncTransaction) -> None:
        raise ValueError(f"not {invitation.event['call']} in {tx.id}")

    bob.participate(refuse)
    with alice.transaction() as tx:
        with pytest.raises(InvitationRefused, match="bob: ValueError: not 1 in alice/"):
            tx.invite({"call": 1})
        tx.abort()


def test_a_sync_transaction_refuses_objects_of_other_types(
    alice: motet.client.sync.SyncClient,
) -> None:
    with alice.transaction() as tx:
        with pytest.raises(MisuseError, match="takes a SyncSubscription"):
            tx.unsubscribe(7)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="takes a SyncAdvertisement"):
            tx.unadvertise(7)  # type: ignore[arg-type]
        tx.abort()
