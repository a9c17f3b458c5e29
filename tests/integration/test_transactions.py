"""Transactions as applications see them, in process and over three real brokers that die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

import motet
from motet import Client, Invitation, Plan, Subscription, Transaction
from motet.client import LocalOverlay, Role
from motet.errors import (
    Aborted,
    InTransaction,
    InvitationRefused,
    MisuseError,
    NoSuchOperation,
    NotAdvertised,
    NotInvited,
    NotOffered,
    PlanError,
    TimedOut,
    TransactionOver,
    UnknownClient,
)
from motet.protocol.transactions.messages import MOST_OPERATIONS
from motet.protocol.transactions.participant import MOST_BYTES
from tests.integration.durable_broker import DurableBroker
from tests.waiting import PATIENCE_S, POLL_S, eventually

STREAM = "process = 'p1'"


class Stage:
    """alice publishes at B1, bob listens at B2; each could invite the other."""

    def __init__(self, overlay: LocalOverlay, alice: Client, bob: Client) -> None:
        self.overlay, self.alice, self.bob = overlay, alice, bob


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with motet.local(2) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B2")
        await alice.advertise(f"{STREAM} or call is not null")
        await bob.subscribe("call is not null", callback=str)
        yield Stage(overlay, alice, bob)
        await alice.close()
        await bob.close()


async def take(subscription: Subscription, count: int) -> list[object]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(subscription))["n"] for _ in range(count)]


# ── what it is for ───────────────────────────────────────────────────────────────────────


class Pump:
    """Publishes n = 0, 1, 2, … for as long as it is asked to."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.made = 0
        self._task = asyncio.ensure_future(self._go_on())

    async def _go_on(self) -> None:
        while True:
            await self._client.send({"process": "p1", "n": self.made})
            self.made += 1
            await asyncio.sleep(POLL_S / 5)

    async def more(self, events: int = 20) -> None:
        before = self.made
        await eventually(lambda: self.made >= before + events)

    async def stop(self) -> int:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._client.flush(timeout=2 * PATIENCE_S)
        return self.made


class Taker:
    """Reads whatever subscriptions a client is given, each into a list of its own: a busy machine
    may come to read a later one while there is still something in an earlier one."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.turns: list[list[int]] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def seen(self) -> list[int]:
        return [n for turn in self.turns for n in turn]

    def read(self, subscription: Subscription) -> None:
        self.turns.append([])
        self._tasks.append(asyncio.ensure_future(self._read(subscription, self.turns[-1])))

    async def _read(self, subscription: Subscription, seen: list[int]) -> None:
        async for event in subscription:
            number = event["n"]
            assert isinstance(number, int)
            seen.append(number)


async def hand_over(pump: Client, old: Client, new: Client, turn: int) -> bool:
    """By a plan, again and again until it is committed; whether the first try was."""
    first = True
    while True:
        plan = Plan()
        plan.unsubscribe(old.client_id, f"turn {turn - 1}")
        plan.subscribe(new.client_id, STREAM, name=f"turn {turn}")
        try:
            await pump.execute(plan, timeout=2 * PATIENCE_S)
        except Aborted:
            first = False
        else:
            return first


@asynccontextmanager
async def line_of_three(directory: Path) -> AsyncIterator[list[DurableBroker]]:
    """B1 - B2 - B3, in processes of their own; B2 decides."""
    b2 = DurableBroker(directory, "B2", "--link", "B1", "--link", "B3", "--root", "B2")
    link = ("--link", f"B2={b2.address}", "--root", "B2")
    b1, b3 = DurableBroker(directory, "B1", *link), DurableBroker(directory, "B3", *link)
    async with AsyncExitStack() as stack:
        for broker in (b2, b1, b3):
            await stack.enter_async_context(broker)
        for broker in (b1, b2, b3):
            await broker.links_up()
        yield [b1, b2, b3]


async def test_a_live_stream_is_handed_over_while_brokers_die(tmp_path: Path) -> None:
    """Given a stream that never rests, when it is handed to and fro and every broker is killed in
    turn in the middle of it, then every event has gone to exactly one side, in order."""
    chance = random.Random(5)
    async with line_of_three(tmp_path) as brokers, AsyncExitStack() as stack:
        env, left, right = [
            await stack.enter_async_context(motet.connect(broker.address, client_id=name))
            for broker, name in zip(brokers, ("env", "left", "right"), strict=True)
        ]
        await env.advertise(STREAM)
        sides = [Taker(left), Taker(right)]
        for side in sides:
            await side.client.participate(on_started=side.read)
        sides[0].read(await left.subscribe(STREAM, name="turn 0"))
        pump = Pump(env)
        for turn, victim in enumerate([*brokers, None], 1):
            await pump.more()
            old, new = sides[(turn + 1) % 2], sides[turn % 2]
            handing = asyncio.ensure_future(hand_over(env, old.client, new.client, turn))
            if victim is not None:
                await asyncio.sleep(chance.uniform(0.0, 0.02))
                victim.kill()
                await victim.start()
            await asyncio.wait_for(handing, 3 * PATIENCE_S)
            before = len(new.seen)
            await eventually(lambda before=before, new=new: len(new.seen) > before)  # type: ignore[misc]
        made = await pump.stop()
        await eventually(lambda: sum(len(side.seen) for side in sides) >= made)
        assert sorted(n for side in sides for n in side.seen) == list(range(made))
        for side in sides:
            assert side.seen == sorted(side.seen)


async def test_a_second_participate_keeps_the_handler(stage: Stage) -> None:
    """It lets the broker do its part of plans, and says nothing about invitations."""
    alice, bob = stage.alice, stage.bob
    called: list[str] = []

    async def take_part(invitation: Invitation, tx: Transaction) -> None:
        assert invitation.tx_id == tx.id
        called.append(tx.id)

    await bob.participate(take_part)
    await bob.participate()
    async with alice.transaction() as tx:
        assert await tx.invite({"call": "bob"}) == 1
    assert called == [tx.id]


async def test_roles_are_asked_one_after_the_other(stage: Stage) -> None:
    """A layer brings a role of its own; the application's handler takes the other invitations."""
    alice, bob = stage.alice, stage.bob
    by_role: list[str] = []
    by_handler: list[str] = []

    class Votes(Role):
        async def invited(self, invitation: Invitation, tx: Transaction) -> bool:
            if "vote" in invitation.event:
                by_role.append(tx.id)
            return "vote" in invitation.event

    async def take_part(invitation: Invitation, tx: Transaction) -> None:
        assert "vote" not in invitation.event
        by_handler.append(tx.id)

    await bob.participate(take_part)
    await bob.participate(Votes())
    async with alice.transaction() as one:
        assert await one.invite({"call": "bob", "vote": 1}) == 1
    async with alice.transaction() as other:
        assert await other.invite({"call": "bob"}) == 1
    assert (by_role, by_handler) == ([one.id], [other.id])
    with pytest.raises(MisuseError, match="a handler must be callable"):
        await bob.participate(7)  # type: ignore[arg-type]


async def test_subscriptions_that_plans_start_are_an_iterator(stage: Stage) -> None:
    alice, bob = stage.alice, stage.bob
    await bob.participate()
    for name in ("one", "two"):
        plan = Plan()
        plan.subscribe("bob", STREAM, name=name)
        await alice.execute(plan)
    started = bob.started()
    async with asyncio.timeout(PATIENCE_S):
        assert [(await anext(started)).name for _ in range(2)] == ["one", "two"]
        waiting = asyncio.ensure_future(anext(started, None))
        await asyncio.sleep(0)
        await bob.close()
        assert await waiting is None


async def test_a_dynamic_hand_over(stage: Stage) -> None:
    """The one that has the stream invites the one that is to have it."""
    alice, bob = stage.alice, stage.bob
    mine = await alice.subscribe(STREAM)
    theirs: list[Subscription] = []

    async def take_over(invitation: Invitation, tx: Transaction) -> None:
        assert invitation.event["call"] == "bob"
        theirs.append(await tx.subscribe(STREAM))

    await bob.participate(take_over)
    await alice.send({"process": "p1", "n": 1})
    async with alice.transaction() as tx:
        assert await tx.invite({"call": "bob"}) == 1
        await alice.send({"process": "p1", "n": 2})  # of no transaction: before the cut
        await tx.publish({"process": "p1", "n": 3})
        await tx.unsubscribe(mine)
    assert tx.committed
    await alice.send({"process": "p1", "n": 4})
    await alice.flush()
    # What was published in the transaction stands before the end of one side, and behind the
    # beginning of the other: both were told so.
    assert await take(mine, 3) == [1, 2, 3]
    assert await take(theirs[0], 2) == [3, 4]
    assert [event async for event in mine] == []
    assert not mine.active
    assert await bob.outcome(tx.id) == "committed"


async def test_a_transaction_is_invisible_before_the_commit_and_after_an_abort(
    stage: Stage,
) -> None:
    alice, bob = stage.alice, stage.bob
    theirs = await bob.subscribe(STREAM)
    with suppress(ZeroDivisionError):
        async with alice.transaction() as tx:
            await tx.publish({"process": "p1", "n": 1})
            await tx.advertise("other = 1")
            subscription = await tx.subscribe(STREAM)
            raise ZeroDivisionError
    assert tx.committed is False
    assert await alice.outcome(tx.id) == "aborted"
    assert not subscription.active
    with pytest.raises(Aborted):
        await anext(subscription)
    receipt = await alice.send({"other": 1})
    with pytest.raises(NotAdvertised):
        await receipt
    await alice.publish({"process": "p1", "n": 2})
    assert await take(theirs, 1) == [2]


async def test_a_participant_that_refuses(stage: Stage) -> None:
    async def refuse(_: Invitation, tx: Transaction) -> None:
        await tx.subscribe(STREAM)
        raise ValueError("not today")

    await stage.bob.participate(refuse)
    async with stage.alice.transaction(isolation="none") as tx:
        with pytest.raises(InvitationRefused, match="bob: ValueError: not today"):
            await tx.invite({"call": 1})
        await tx.abort("bob will not")
    assert await stage.alice.outcome(tx.id) == "aborted"


async def test_a_client_that_does_not_participate_is_named(stage: Stage) -> None:
    plan = Plan()
    plan.subscribe("bob", STREAM)
    with pytest.raises(Aborted, match="bob does not take part in plans"):
        await stage.alice.execute(plan)
    async with stage.alice.transaction(isolation="none") as tx:
        with pytest.raises(InvitationRefused, match=r"call client\.participate\(handler\) first"):
            await tx.invite({"call": 1})
        await tx.abort()


async def test_an_invitation_that_reaches_no_client(stage: Stage) -> None:
    async with stage.alice.transaction() as tx:
        assert await tx.invite({"process": "p1"}) == 0
        with pytest.raises(MisuseError, match="cannot publish"):
            await tx.invite(7)  # type: ignore[arg-type]


async def test_a_key_is_committed_once(stage: Stage) -> None:
    theirs = await stage.bob.subscribe(STREAM)
    await stage.alice.participate()
    plan = Plan()
    plan.publish("alice", {"process": "p1", "n": 1})
    first = await stage.alice.execute(plan, key="order 17")
    assert await stage.alice.execute(plan, key="order 17") == first
    await stage.alice.send({"process": "p1", "n": 2})
    assert await take(theirs, 2) == [1, 2]


# ── bad input ────────────────────────────────────────────────────────────────────────────


async def test_operations_after_the_end(stage: Stage) -> None:
    tx = await stage.alice.transaction(isolation="none")
    await tx.publish({"process": "p1", "n": 1})
    await tx.commit()
    for late in (
        lambda: tx.publish({"process": "p1", "n": 2}),
        lambda: tx.subscribe(STREAM),
        lambda: tx.advertise(STREAM),
        lambda: tx.invite({"call": 1}),
        lambda: tx.commit(),
    ):
        with pytest.raises(TransactionOver, match=f"{tx.id} is over"):
            await late()
    await tx.abort("twice is harmless")
    assert await stage.alice.outcome(tx.id) == "committed"


async def test_an_invited_client_cannot_end_it(stage: Stage) -> None:
    said: list[str] = []

    async def meddle(_: Invitation, tx: Transaction) -> None:
        for end in (tx.commit, tx.abort):
            with pytest.raises(
                MisuseError, match="only the coordinator can end a transaction"
            ) as found:
                await end()
            said.append(str(found.value))

    await stage.bob.participate(meddle)
    async with stage.alice.transaction() as tx:
        assert await tx.invite({"call": 1}) == 1
    assert len(said) == 2


async def test_a_participants_handle_ends_with_the_invitation(stage: Stage) -> None:
    kept: list[Transaction] = []

    async def keep(_: Invitation, tx: Transaction) -> None:
        kept.append(tx)

    await stage.bob.participate(keep)
    async with stage.alice.transaction() as tx:
        await tx.invite({"call": 1})
        with pytest.raises(NotInvited, match="bob has no part in transaction"):
            await kept[0].subscribe(STREAM)
    await asyncio.wait_for(kept[0].outcome, PATIENCE_S)
    assert kept[0].committed
    with pytest.raises(TransactionOver):
        await kept[0].publish({"process": "p1"})


async def test_a_transaction_of_another_client(stage: Stage) -> None:
    alice, bob = stage.alice, stage.bob
    carol = await stage.overlay.connect("carol", broker="B1")
    async with alice.transaction(isolation="none") as tx:
        for stranger, error in ((carol, NotInvited), (bob, TransactionOver)):
            theirs = Transaction(stranger._driver, tx.id, 5.0)
            with pytest.raises(error, match=f"transaction {tx.id}"):
                await theirs.subscribe(STREAM)
            with pytest.raises(TransactionOver, match=f"was not begun by {stranger.client_id}"):
                await theirs.commit()
    assert tx.committed
    await carol.close()


async def test_a_transaction_cannot_end_a_subscription_that_is_not_active(stage: Stage) -> None:
    alice, bob = stage.alice, stage.bob
    mine, theirs = await alice.subscribe(STREAM), await bob.subscribe(STREAM)
    async with alice.transaction(isolation="none") as tx:
        with pytest.raises(NoSuchOperation, match="'never' is not in force"):
            await tx.unsubscribe("never")
        with pytest.raises(NoSuchOperation, match="is not in force at this client"):
            await tx.unsubscribe(theirs)
        await tx.unsubscribe(mine)
        with pytest.raises(NoSuchOperation):
            await tx.unsubscribe(mine)
        with pytest.raises(InTransaction, match="wait for it, or do it in that transaction"):
            await mine.unsubscribe()


async def test_impossible_plans_are_refused(stage: Stage) -> None:
    alice = stage.alice
    with pytest.raises(PlanError, match="the plan is empty"):
        await alice.execute(Plan())
    with pytest.raises(MisuseError, match="execute takes a Plan"):
        await alice.execute("subscribe")  # type: ignore[arg-type]
    plan = Plan()
    plan.subscribe("nobody", STREAM)
    with pytest.raises(UnknownClient, match="names nobody, but no such client"):
        await alice.execute(plan)
    circle = Plan()
    one = circle.subscribe("alice", STREAM, name="one")
    two = circle.subscribe("bob", STREAM, name="two")
    circle.order(two, one)
    with pytest.raises(PlanError, match="bob: subscribe two → alice: subscribe one → bob"):
        await alice.execute(circle)
    await alice.participate()
    missing = Plan()
    missing.unsubscribe("alice", "never")
    with pytest.raises(
        Aborted, match="alice: NoSuchOperation: unsubscribe: 'never' is not in force"
    ):
        await alice.execute(missing)


async def test_a_participant_that_goes_away(stage: Stage) -> None:
    """It was invited, and ends its session: clients that wait for it are told."""
    asked = asyncio.Event()

    async def wait(_: Invitation, tx: Transaction) -> None:
        await tx.subscribe(STREAM)
        asked.set()
        await asyncio.Event().wait()

    await stage.bob.participate(wait)
    tx = await stage.alice.transaction(isolation="none")
    inviting = asyncio.ensure_future(tx.invite({"call": 1}))
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    await stage.bob.close()
    with pytest.raises((InvitationRefused, Aborted), match="the session of bob has ended"):
        await asyncio.wait_for(inviting, PATIENCE_S)
    with pytest.raises((Aborted, TransactionOver)):
        await tx.commit()
    assert await stage.alice.outcome(tx.id) == "aborted"


async def test_a_participant_that_never_answers(stage: Stage) -> None:
    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    await stage.bob.participate(wait)
    tx = await stage.alice.transaction(isolation="none", timeout=0.5)
    with pytest.raises(Aborted, match=r"not complete within 0.5 s: .*did not answer"):
        await tx.invite({"call": 1})
    assert await stage.bob.outcome(tx.id) == "aborted"


async def test_a_client_in_total_order_cannot_subscribe_in_a_transaction(stage: Stage) -> None:
    async with await stage.overlay.connect("carol", broker="B1", order="total") as carol:
        subscription = await carol.subscribe(STREAM)
        async with carol.transaction(isolation="none") as tx:
            attempts: list[Callable[[], object]] = [
                lambda: tx.subscribe(STREAM),
                lambda: tx.unsubscribe(subscription),
            ]
            for attempt in attempts:
                with pytest.raises(NotOffered, match="use a client in publisher order"):
                    await attempt()  # type: ignore[misc]
            await tx.abort()


async def test_too_much_for_one_transaction(stage: Stage) -> None:
    tx = await stage.alice.transaction(isolation="none")
    large = b"x" * (MOST_BYTES // 8)
    for _ in range(7):
        await tx.publish({"process": "p1", "n": 1}, payload=large)
    with pytest.raises(MisuseError, match="bytes; use several transactions"):
        await tx.publish({"process": "p1", "n": 1}, payload=large)
    await tx.commit()
    many = await stage.alice.transaction(isolation="none")
    await asyncio.gather(*(many.publish({"process": "p1"}) for _ in range(MOST_OPERATIONS)))
    with pytest.raises(MisuseError, match="1,000 operations in one transaction"):
        await many.publish({"process": "p1"})
    await many.abort()
    plan = Plan()
    for _ in range(9):
        plan.publish("alice", {"process": "p1"}, payload=large)
    with pytest.raises(PlanError, match=r"a plan of 9 steps and .* bytes is above the limit"):
        await stage.alice.execute(plan)


async def test_the_outcome_of_an_unknown_transaction_is_misuse_or_expired(stage: Stage) -> None:
    with pytest.raises(MisuseError, match=r"is not the id of a transaction; use tx\.id"):
        await stage.alice.outcome("T1")
    assert await stage.alice.outcome("alice/B1-1.1/99") == "expired"


async def test_an_overlay_with_covering_offers_no_transactions() -> None:
    """An overlay with covering offers no transactions, and says why."""
    topology = motet.Topology.line(2, covering=True)
    async with motet.local(topology) as overlay:
        alice = await overlay.connect("alice")
        with pytest.raises(NotOffered, match="offers no transactions"):
            await alice.transaction()
        await alice.close()


async def test_a_transaction_waits_for_a_way_to_the_root() -> None:
    """Right after the start of a broker, it does not know where the root is; or the root comes
    last."""
    async with motet.local(2) as overlay:
        for name in ("B1", "B2"):
            await overlay.stop_broker(name)
        await overlay.start_broker("B2")
        async with overlay.connect("bob", broker="B2") as bob:
            with pytest.raises(TimedOut, match=r"no way to the root B1 .* within 0\.1 s"):
                await bob.transaction(timeout=0.1)
            begun = asyncio.ensure_future(bob.transaction(timeout=4 * PATIENCE_S))
            outcome = asyncio.ensure_future(bob.outcome("bob/B2-1.1/99", timeout=4 * PATIENCE_S))
            await bob.participate()  # it answers: the requests before it are there, and wait
            assert not begun.done()
            await overlay.start_broker("B1")
            tx = await begun
            assert await outcome == "expired"
            await tx.commit()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"isolation": "snapshot"}, "isolation is 'serializable' or 'none'"),
        ({"timeout": "soon"}, "timeout is a number"),
        ({"key": 7}, "a key is text"),
    ],
)
async def test_invalid_settings_of_a_transaction_are_misuse(
    stage: Stage, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(MisuseError, match=words):
        await stage.alice.transaction(**settings)  # type: ignore[arg-type]
