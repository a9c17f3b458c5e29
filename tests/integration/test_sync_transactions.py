"""Transactions without `await`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

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


def test_roles_are_asked_in_threads_and_receive_synchronous_objects(
    alice: motet.client.sync.SyncClient, overlay: motet.client.sync.SyncOverlay
) -> None:
    did: list[object] = []
    closed = threading.Event()

    class Votes(motet.client.sync.SyncRole):
        def invited(
            self, invitation: motet.Invitation, tx: motet.client.sync.SyncTransaction
        ) -> bool:
            if "vote" not in invitation.event:
                return False
            assert isinstance(tx, motet.client.sync.SyncTransaction)
            if invitation.event["vote"] == "no":
                raise ValueError("not convinced")
            did.append(("vote", threading.current_thread().name != "motet-loop"))
            tx.subscribe(STREAM)  # it may block
            return True

        def started(self, subscription: motet.client.sync.SyncSubscription) -> None:
            did.append(subscription.get(PATIENCE_S)["n"])

        def close(self) -> None:
            closed.set()

    class Draws(motet.client.sync.SyncRole):
        def invited(
            self, invitation: motet.Invitation, tx: motet.client.sync.SyncTransaction
        ) -> bool:
            if "draw" in invitation.event:
                did.append("draw" if tx.committed is None else tx)
            return "draw" in invitation.event

    with overlay.connect("carol", broker="B2") as carol:
        carol.subscribe("call is not null")
        carol.participate(lambda invitation, _: did.append(invitation.event["call"]))
        carol.participate(Votes())
        carol.participate(Draws())
        for event in ({"call": 1, "draw": 1}, {"call": 2}):
            with alice.transaction() as tx:
                assert tx.invite(event) == 1
        with pytest.raises(InvitationRefused, match="carol: ValueError: not convinced"):
            alice.transaction().invite({"call": 3, "vote": "no"})
        assert did == ["draw", 2]
        with alice.transaction() as tx:
            assert tx.invite({"call": 4, "vote": "yes"}) == 1
        plan = motet.Plan()
        plan.subscribe("carol", "n > 1", name="planned")
        plan.publish("alice", {"n": 2})
        alice.participate()
        alice.execute(plan)
        wait_until(lambda: 2 in did[3:])
        assert did[2] == ("vote", True)
    assert closed.wait(PATIENCE_S)


class AsyncVotes(motet.client.Role):
    async def invited(self, invitation: motet.Invitation, tx: motet.Transaction) -> bool:
        raise NotImplementedError


class HalfAsync(motet.client.sync.SyncRole):
    async def invited(  # type: ignore[override]
        self, invitation: motet.Invitation, tx: motet.client.sync.SyncTransaction
    ) -> bool:
        raise NotImplementedError


async def nothing(*_: object) -> None:
    raise NotImplementedError


class AsyncCallable:
    async def __call__(self, *_: object) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"handler": "nonsense"}, "a handler must be callable; an object of type str is not"),
        ({"on_started": 5}, "on_started must be callable; an object of type int is not"),
        ({"handler": AsyncVotes()}, r"AsyncVotes is an asynchronous Role.*sync\.SyncRole.*connect"),
        ({"handler": AsyncVotes}, r"not the class AsyncVotes; write participate\(AsyncVotes\(\)\)"),
        ({"handler": HalfAsync()}, "`invited` of HalfAsync .* `def` instead of `async def`"),
        ({"handler": nothing}, "a handler .* nothing awaits it; write it with `def`"),
        ({"handler": AsyncCallable()}, "a handler .* nothing awaits it"),
        ({"on_started": nothing}, "on_started .* nothing awaits it"),
        ({"timeout": -1}, "timeout is a number of seconds"),
    ],
)
def test_participate_refuses_what_it_could_not_call(
    alice: motet.client.sync.SyncClient,
    bob: motet.client.sync.SyncClient,
    part: dict[str, Any],
    says: str,
) -> None:
    asked: list[object] = []
    bob.participate(lambda *_: asked.append(1))
    with pytest.raises(MisuseError, match=says):
        bob.participate(**part)
    with alice.transaction() as tx:
        assert tx.invite({"call": 1}) == 1
    assert asked == [1]  # the handler from before is still there


def test_no_callback_of_a_sync_client_is_async(
    overlay: motet.client.sync.SyncOverlay, bob: motet.client.sync.SyncClient
) -> None:
    with pytest.raises(MisuseError, match=r"a callback .* nothing awaits it"):
        bob.subscribe(STREAM, callback=nothing)
    for name in ("on_session_lost", "on_resumed"):
        with pytest.raises(MisuseError, match=f"{name} .* nothing awaits it"):
            overlay.connect("carol", **{name: nothing})  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match=f"{name} must be callable"):
            motet.connect_sync("motet://127.0.0.1:1", **{name: 5})  # type: ignore[arg-type]


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


def test_a_transaction_explains_itself(
    alice: motet.client.sync.SyncClient, overlay: motet.client.sync.SyncOverlay
) -> None:
    with overlay.connect("carol") as carol:
        carol.advertise(STREAM)
        with carol.transaction(timeout=7.0) as tx:
            tx.publish({"n": 1})
            assert "publish" in str(tx.explain())
        assert [made.kind for made in tx.made] == ["publish", "commit"]
        assert (tx.timeout, tx.isolated) == (7.0, True)
        assert str(carol.explain(tx))
    before = str(tx.explain())  # also after the end of the client
    with alice.transaction():
        pass
    assert str(tx.explain()) == before


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
