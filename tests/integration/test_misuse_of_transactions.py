"""What applications get wrong in transactions: they are told, and nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import motet
from motet import Client, Invitation, Plan, Transaction
from motet.client import LocalOverlay
from motet.client.checks import MAX_REASON_CHARS
from motet.errors import (
    Aborted,
    InTransaction,
    InvitationRefused,
    MisuseError,
    NotEffective,
    OutcomeUnknown,
    TransactionOver,
    TransactionTimedOut,
    UnavailableError,
)
from tests.waiting import PATIENCE_S, eventually

STREAM = "process = 'p1'"


@pytest.fixture
async def overlay() -> AsyncIterator[LocalOverlay]:
    async with motet.local(2) as overlay:
        yield overlay


@pytest.fixture
async def alice(overlay: LocalOverlay) -> AsyncIterator[Client]:
    async with overlay.connect("alice", broker="B2") as client:
        await client.advertise(f"{STREAM} or call is not null")
        yield client


# ── taking back what a transaction holds ─────────────────────────────────────────────────


@pytest.mark.parametrize("commits", [True, False])
async def test_a_refused_unsubscribe_changes_nothing(alice: Client, commits: bool) -> None:
    tx = await alice.transaction()
    if commits:
        entry = await tx.subscribe(STREAM)
    else:
        entry = await alice.subscribe(STREAM)
        await tx.unsubscribe(entry)
    reader = asyncio.ensure_future(anext(entry))
    with pytest.raises(InTransaction):
        await alice.unsubscribe(entry)
    assert entry.active
    await (tx.commit() if commits else tx.abort())
    await alice.send({"process": "p1"})
    assert (await asyncio.wait_for(reader, PATIENCE_S))["process"] == "p1"
    await alice.unsubscribe(entry)
    assert not entry.active
    assert [event async for event in entry] == []


@pytest.mark.parametrize("commits", [True, False])
async def test_a_refused_unadvertise_changes_nothing(alice: Client, commits: bool) -> None:
    tx = await alice.transaction()
    if commits:
        entry = await tx.advertise("other = 1")
    else:
        entry = await alice.advertise("other = 1")
        await tx.unadvertise(entry)
    with pytest.raises(InTransaction):
        await alice.unadvertise(entry)
    assert entry.active
    await (tx.commit() if commits else tx.abort())
    await alice.publish({"other": 1})
    await alice.unadvertise(entry)
    assert entry not in alice.registrations


async def test_a_refusal_that_no_request_waits_for_changes_nothing(alice: Client) -> None:
    tx = await alice.transaction()
    entry = await tx.subscribe(STREAM)
    taking = asyncio.ensure_future(alice.unsubscribe(entry))
    await asyncio.sleep(0)
    assert not entry.active  # asked for, and not answered
    taking.cancel()
    await tx.commit()
    assert entry.active
    await alice.unsubscribe(entry)
    assert not entry.active


# ── what is no argument ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reason", [ValueError("no"), 3, None])
async def test_a_wrong_reason_is_refused_and_the_transaction_stays_open(
    alice: Client, reason: Any
) -> None:
    tx = await alice.transaction()
    with pytest.raises(MisuseError, match="a reason is text"):
        await tx.abort(reason)
    await tx.publish({"process": "p1"})
    await tx.commit()
    assert tx.committed


@pytest.mark.parametrize("name", [None, 3, "", "no", "x" * 10_000, "half a pair \ud800/e/1"])
async def test_a_wrong_name_of_a_transaction_is_refused(alice: Client, name: Any) -> None:
    with pytest.raises(MisuseError, match="is not the id of a transaction") as raised:
        await alice.outcome(name)
    assert len(str(raised.value)) < 200
    assert alice.connected


async def test_the_outcome_of_a_transaction_is_asked_for_by_it_or_by_its_id(alice: Client) -> None:
    async with alice.transaction() as tx:
        await tx.publish({"process": "p1"})
    assert await alice.outcome(tx) == await alice.outcome(tx.id) == "committed"


@pytest.mark.parametrize("broker", ["B1", "B2"])
async def test_a_transaction_that_is_cancelled_while_it_begins_is_aborted(broker: str) -> None:
    async with motet.local(2) as overlay, overlay.connect("c", broker=broker) as client:

        async def block() -> None:
            async with client.transaction(timeout=600):
                await asyncio.sleep(PATIENCE_S)

        for turns in range(1, 20):
            task = asyncio.ensure_future(block())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        root = overlay.drivers["B1"]
        await eventually(lambda: root.status()["transactions"]["open"] == 0)


async def test_a_cancelled_publication_in_a_transaction_is_part_of_its_commit(
    alice: Client,
) -> None:
    subscription = await alice.subscribe(STREAM)
    async with alice.transaction() as tx:
        task = asyncio.ensure_future(tx.publish({"process": "p1", "step": 1}))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    assert (await anext(subscription))["step"] == 1
    with pytest.raises(TimeoutError):
        async with alice.transaction() as tx, asyncio.timeout(0):
            await tx.publish({"process": "p1", "step": 2})
    assert tx.committed is False  # the cancellation has left the block
    await alice.publish({"process": "p1", "step": 3})
    assert (await anext(subscription))["step"] == 3


@pytest.mark.parametrize("kind", ["subscribe", "advertise"])
async def test_a_commit_after_a_cancelled_addition_commits_without_it_or_is_refused(
    overlay: LocalOverlay, alice: Client, kind: str
) -> None:
    table = {"subscribe": "subscriptions", "advertise": "advertisements"}[kind]
    tables = overlay.drivers["B2"].core.status
    before, reasons = tables()["tables"][table], []
    for turns in range(4):
        try:
            async with alice.transaction() as tx:
                task = asyncio.ensure_future(getattr(tx, kind)(STREAM, name=f"n{turns}"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled():  # it was faster
                    raise RuntimeError("discard it")
        except Aborted as problem:
            reasons.append(str(problem))
        except RuntimeError:
            continue
        assert not [entry for entry in alice.registrations if entry.name.startswith("n")]
        await eventually(lambda: tables()["tables"][table] == before)
    refusal = "before all its operations were effective"
    assert not [reason for reason in reasons if refusal not in reason]


async def test_long_reasons_are_cut(overlay: LocalOverlay, alice: Client) -> None:
    long = "half a pair \ud800" + "x" * (9 << 20)

    async def refuse(invitation: Invitation, tx: Transaction) -> None:
        del invitation, tx
        raise ValueError(long)

    async with overlay.connect("bob") as bob:
        await bob.participate(refuse)
        await bob.subscribe("call = 1")
        tx = await alice.transaction()
        with pytest.raises(InvitationRefused, match="bob: ValueError: half") as raised:
            await tx.invite({"call": 1})
        assert len(str(raised.value)) < 2 * MAX_REASON_CHARS
        await tx.abort(long)
        with pytest.raises(ValueError, match="half"):
            async with alice.transaction():
                raise ValueError(long)
        assert (alice.connected, bob.connected) == (True, True)


@pytest.mark.parametrize("wrong", [{"handler": 3}, {"on_started": 3}])
async def test_handlers_must_be_callable(alice: Client, wrong: Any) -> None:
    with pytest.raises(MisuseError, match="must be callable"):
        await alice.participate(**wrong)


# ── one that others have ended ───────────────────────────────────────────────────────────


async def overdue(client: Client) -> Transaction:
    """One that is aborted because it took too long."""
    tx = await client.transaction(timeout=0.01)
    await asyncio.wait_for(asyncio.shield(tx.outcome), PATIENCE_S)
    return tx


async def test_operations_after_the_deadline_fail_with_the_reason(alice: Client) -> None:
    tx = await overdue(alice)
    for go_on in (lambda: tx.publish({"process": "p1"}), lambda: tx.subscribe(STREAM), tx.commit):
        with pytest.raises(Aborted, match=r"not complete within 0\.01 s"):
            await go_on()
    await tx.abort("that is harmless")
    with pytest.raises(TransactionTimedOut, match="not complete within") as raised:
        async with await overdue(alice):
            pass
    assert isinstance(raised.value, TimeoutError)
    with pytest.raises(Aborted, match="not complete within"):
        async with await overdue(alice) as tx:
            await tx.publish({"process": "p1"})


@pytest.mark.parametrize("error", [ValueError("mine"), asyncio.CancelledError("mine")])
async def test_a_transaction_block_raises_the_error_of_its_body(
    alice: Client, error: BaseException
) -> None:
    with pytest.raises(type(error), match="mine"):
        async with await overdue(alice):
            raise error


async def test_using_a_transaction_after_its_own_abort_raises_transaction_over(
    alice: Client,
) -> None:
    tx = await alice.transaction()
    await tx.abort("mine")
    for go_on in (lambda: tx.publish({"process": "p1"}), tx.commit):
        with pytest.raises(TransactionOver):
            await go_on()


async def test_a_block_that_raises_does_not_wait_long_for_the_abort(
    alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: object) -> str:
        await asyncio.Event().wait()
        return str(request)

    tx = await alice.transaction()
    monkeypatch.setattr(tx._driver.answers, "ask", silent)
    mine = ValueError("mine")
    await asyncio.wait_for(tx.__aexit__(ValueError, mine, None), PATIENCE_S)


async def test_a_second_transaction_with_the_same_key_gets_the_first(alice: Client) -> None:
    seen = await alice.subscribe(STREAM)
    names = []
    for number in range(3):
        async with alice.transaction(key="once") as tx:
            own = tx.id
            await tx.publish({"process": "p1", "n": number})
        assert tx.committed
        assert await alice.outcome(tx) == "committed"
        assert (tx.id == own) is (number == 0)
        names.append(tx.id)
        with pytest.raises(TransactionOver):
            await tx.publish({"process": "p1"})
    assert len(set(names)) == 1
    await alice.send({"process": "p1", "n": 3})
    assert [(await asyncio.wait_for(anext(seen), PATIENCE_S))["n"] for _ in range(2)] == [0, 3]


async def test_a_client_invited_twice_hears_the_end_twice(
    overlay: LocalOverlay, alice: Client
) -> None:
    handles: list[Transaction] = []

    async def keep(invitation: Invitation, tx: Transaction) -> None:
        del invitation
        handles.append(tx)

    async with overlay.connect("bob") as bob:
        await bob.participate(keep)
        await bob.subscribe("call is not null")
        async with alice.transaction() as tx:
            assert [await tx.invite({"call": n}) for n in range(2)] == [1, 1]
        for each in handles:
            await asyncio.wait_for(asyncio.shield(each.outcome), PATIENCE_S)
        assert [each.committed for each in (tx, *handles)] == [True] * 3


# ── plans ────────────────────────────────────────────────────────────────────────────────


async def test_the_coordinator_of_a_plan_needs_no_consent_and_others_learn_how_to_consent(
    overlay: LocalOverlay, alice: Client
) -> None:
    plan = Plan()
    plan.advertise("alice", "kind = 'order'")
    plan.subscribe("alice", STREAM, name="updates")
    plan.publish("alice", {"kind": "order"})
    await alice.execute(plan)
    assert "updates" in {entry.name for entry in alice.registrations}
    await alice.publish({"kind": "order"})
    async with overlay.connect("bob"):
        plan = Plan()
        plan.subscribe("bob", STREAM)
        with pytest.raises(Aborted, match=r"use client\.participate\(\), or motet sub --partic"):
            await alice.execute(plan)


async def test_an_unanswered_request_names_the_root(
    alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silence(handle: int, kind: str, timeout_s: float) -> str:
        del handle
        raise NotEffective(kind, ("B2",), timeout_s)

    plan = Plan()
    plan.publish("alice", {"process": "p1"})
    tx = await alice.transaction()
    monkeypatch.setattr(alice._driver.answers, "wait", silence)
    for asking in (tx.commit(), alice.execute(plan)):
        with pytest.raises(OutcomeUnknown, match=r"the root, .* within 10 s; client\.outcome\("):
            await asking
    with pytest.raises(UnavailableError, match="begin a transaction: the root, or a broker"):
        await alice.transaction()


async def test_misuse_of_transactions_is_explained_briefly(alice: Client) -> None:
    with pytest.raises(MisuseError, match="a number of seconds, 0 or more, not -1"):
        await alice.transaction(timeout=-1)
    with pytest.raises(MisuseError, match="a key is text") as raised:
        await alice.transaction(key="x" * 2000)
    assert len(str(raised.value)) < 200
    with pytest.raises(MisuseError, match="is not the id of a transaction") as raised:
        await alice.outcome("x" * 1000)
    assert len(str(raised.value)) < 200
