"""The small parts of the client, each on its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from motet.client import publications
from motet.client import subscription as subscription_module
from motet.client.loop_guard import LoopGuard
from motet.client.publications import EventEncoder, Receipt, ReceiptBook
from motet.client.session.state import Failure, Settled, error_of
from motet.client.subscription import Advertisement, Registration, Subscription, finish
from motet.errors import (
    Disconnected,
    EventError,
    Fenced,
    FilterError,
    MisuseError,
    NotAdvertised,
    NotEffective,
    UnavailableError,
)
from motet.model import EVERYTHING, Event, decode_body, encode_event
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Refusal
from tests.waiting import eventually

# ── errors ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (Failure("NotAdvertised", "outside"), NotAdvertised, "outside"),
        (Failure("FilterError", "bad"), FilterError, "bad"),
        (Failure("NotEffective", "", ("B2", "B3")), NotEffective, "subscribe.* 5 s.*B2, B3"),
        (Failure("FromTheFuture", "news"), UnavailableError, "FromTheFuture: news"),
        (Failure("annotations", "not an error"), UnavailableError, "annotations"),
    ],
)
def test_names_on_the_wire_become_errors(failure: Failure, kind: type, text: str) -> None:
    error = error_of(failure, "subscribe", 5.0)
    assert type(error) is kind
    with pytest.raises(kind, match=text):
        raise error


# ── outgoing ─────────────────────────────────────────────────────────────────────────────


def test_bodies_are_what_the_event_would_encode() -> None:
    outgoing = EventEncoder()
    attributes = {"a": 1, "b": "x", "c": 2.5, "d": True}
    for _ in range(2):  # the careful way, then the quick one
        assert bytes(outgoing.body(attributes, b"p")) == encode_event(attributes, b"p")
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    body = outgoing.body(Event.of(at=moment))
    assert decode_body(body) == ({"at": moment}, b"")


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"a": None}, EventError),
        ({"a": [1]}, EventError),
        ({"a": 2**63}, EventError),
        ({"a": -(2**63) - 1}, EventError),
        ({"a": "\ud800"}, EventError),
        ({"a": "x" * 2_000_000}, EventError),
        ({1: 2}, EventError),
        ({"not a name": 2}, EventError),
        ("text", MisuseError),
        (None, MisuseError),
    ],
)
def test_bad_events_are_refused_where_they_are_made(event: object, error: type) -> None:
    outgoing = EventEncoder()
    outgoing.body({"a": 1})  # so that the quick way is open
    with pytest.raises(error):
        outgoing.body(event)  # type: ignore[arg-type]


def test_bad_payloads_are_refused() -> None:
    with pytest.raises(EventError):
        EventEncoder().body({"a": 1}, "text")  # type: ignore[arg-type]
    with pytest.raises(MisuseError):
        EventEncoder().body(Event.of(a=1), b"another")


# ── ledger ───────────────────────────────────────────────────────────────────────────────


async def test_receipts_tell_the_fate() -> None:
    ledger = ReceiptBook(LoopGuard())
    receipts = [Receipt(ledger, i) for i in range(1, 8)]
    early = asyncio.ensure_future(_await(receipts[1]))
    await asyncio.sleep(0)
    assert not receipts[0].settled
    ledger.settle(Settled(3, (Refusal(2, "NotAdvertised", "no"),)))
    ledger.settle(Settled(6, (), Failure("Disconnected", "gone")))
    ledger.settle(Settled(7))
    with pytest.raises(NotAdvertised):
        await early
    for accepted in (0, 2, 6):
        await receipts[accepted]
    for unknown in (3, 4, 5):
        with pytest.raises(Disconnected):
            await receipts[unknown]
    assert ledger.take_failures(7) == (7, 4, Failure("NotAdvertised", "no"))
    assert ledger.take_failures(7) == (0, 0, None)


async def test_remembered_refusals_are_bounded_and_forgotten_ones_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publications, "EXCEPTIONS_REMEMBERED", 10)
    ledger = ReceiptBook(LoopGuard())
    for i in range(1, 101, 2):
        ledger.settle(Settled(i + 1, (Refusal(i, "NotAdvertised", str(i)),)))
    with pytest.raises(UnavailableError):
        await Receipt(ledger, 1)
    with pytest.raises(NotAdvertised):
        await Receipt(ledger, 99)
    await Receipt(ledger, 100)


async def _await(receipt: Receipt) -> None:
    await receipt


# ── subscription ─────────────────────────────────────────────────────────────────────────


async def _nothing(entry: Registration, wait: str, timeout: float) -> None:
    del entry, wait, timeout


def idle() -> Any:
    """In place of `Progress`: nobody is told how far the application is."""
    nothing = SimpleNamespace(armed=True, begun=True, manual=False, begin=lambda: None)
    nothing.guard = SimpleNamespace(foreign=None, check=lambda: None)
    return nothing


def _publication(step: int) -> Publication:
    return Publication("bob", step, Raw(encode_event({"step": step}, b"")))


async def test_a_full_buffer_drops_the_newest_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscription = Subscription(EVERYTHING, _nothing, progress=idle(), buffer=3)
    with caplog.at_level(logging.WARNING, "motet.client"):
        for step in range(5):
            subscription._arrive(_publication(step))
    assert (subscription.buffered, subscription.dropped) == (3, 2)
    assert len(caplog.records) == 1
    subscription._end(None)
    assert [event["step"] async for event in subscription] == [0, 1, 2]


async def test_an_iterator_that_never_waits_yields_to_the_loop() -> None:
    subscription = Subscription(EVERYTHING, _nothing, progress=idle())
    for step in range(2000):
        subscription._arrive(_publication(step))
    subscription._end(None)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    assert len([event async for event in subscription]) == 2000
    task.cancel()
    assert turns >= 5


async def test_iteration_raises_what_ended_the_session() -> None:
    subscription = Subscription(EVERYTHING, _nothing, progress=idle())
    subscription._arrive(_publication(1))
    subscription._end(Fenced("another one"))
    assert (await anext(subscription))["step"] == 1
    with pytest.raises(Fenced):
        await anext(subscription)


async def test_readers_share_events_and_a_cancelled_reader_takes_none() -> None:
    subscription = Subscription(EVERYTHING, _nothing, progress=idle())
    readers = [asyncio.ensure_future(_next(subscription)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    await asyncio.sleep(0)
    subscription._arrive(_publication(1))
    subscription._arrive(_publication(2))
    assert {(await reader)["step"] for reader in readers[1:]} == {1, 2}


async def _next(subscription: Subscription) -> Event:
    return await anext(subscription)


async def test_each_standing_has_its_own_verb_only() -> None:
    assert not hasattr(Subscription(EVERYTHING, _nothing, progress=idle()), "unadvertise")
    assert not hasattr(Advertisement(EVERYTHING, _nothing), "unsubscribe")


async def test_a_callback_that_awaits_a_cancelled_future_fails_and_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "motet.client")
    seen: list[object] = []

    async def on_event(event: Event) -> None:
        seen.append(event["step"])
        if event["step"] == 1:
            never = asyncio.get_running_loop().create_future()
            never.cancel()
            await never

    subscription = Subscription(EVERYTHING, _nothing, progress=idle(), callback=on_event)
    for step in range(3):
        subscription._arrive(_publication(step))
    subscription._end(None)
    await finish([subscription])
    assert seen == [0, 1, 2]
    assert subscription.callback_errors == 1
    assert isinstance(subscription.last_callback_error, asyncio.CancelledError)


async def test_stuck_callbacks_are_stopped_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    wait = asyncio.wait

    async def counted(tasks: Collection[asyncio.Task[None]], timeout: float) -> object:
        waits.append(len(tasks))
        return await wait(tasks, timeout=timeout)

    monkeypatch.setattr(subscription_module, "FINISH_BOUND_S", 0.2)
    monkeypatch.setattr(asyncio, "wait", counted)
    stuck = [
        Subscription(EVERYTHING, _nothing, progress=idle(), callback=lambda _: asyncio.sleep(100))
        for _ in range(9)
    ]
    for subscription in stuck:
        subscription._arrive(_publication(1))
    await finish(stuck)
    assert waits == [9], "there is one wait for all of them"
    await eventually(lambda: all(s._calling is not None and s._calling.cancelled() for s in stuck))
    assert all(s.callback_errors == 0 for s in stuck)
