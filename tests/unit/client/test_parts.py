"""The small parts of the client, each on its own."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from msgspec import Raw

from motet.client import ledger as ledger_module
from motet.client import pulse as pulse_module
from motet.client import subscription as subscription_module
from motet.client.ear import Ear
from motet.client.failures import error_of
from motet.client.happenings import Failure, Settled
from motet.client.ledger import Ledger, Receipt
from motet.client.outgoing import Outgoing
from motet.client.pulse import BEAT, FRAMED_BEAT, Line
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import Subscription, finish
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
    outgoing = Outgoing()
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
    outgoing = Outgoing()
    outgoing.body({"a": 1})  # so that the quick way is open
    with pytest.raises(error):
        outgoing.body(event)  # type: ignore[arg-type]


def test_bad_payloads_are_refused() -> None:
    with pytest.raises(EventError):
        Outgoing().body({"a": 1}, "text")  # type: ignore[arg-type]
    with pytest.raises(MisuseError):
        Outgoing().body(Event.of(a=1), b"another")


# ── ledger ───────────────────────────────────────────────────────────────────────────────


async def test_receipts_tell_the_fate() -> None:
    ledger = Ledger()
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


async def test_the_books_are_bounded_and_never_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "EXCEPTIONS_REMEMBERED", 10)
    ledger = Ledger()
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


async def _nothing(entry: Standing, /, *, wait: str, timeout: float) -> None:
    del entry, wait, timeout


def _publication(step: int) -> Publication:
    return Publication("bob", step, Raw(encode_event({"step": step}, b"")))


async def test_a_full_buffer_drops_the_newest_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscription = Subscription(EVERYTHING, _nothing, buffer=3)
    with caplog.at_level(logging.WARNING, "motet.client"):
        for step in range(5):
            subscription.arrive(_publication(step))
    assert (subscription.buffered, subscription.dropped) == (3, 2)
    assert len(caplog.records) == 1
    subscription.end(None)
    assert [event["step"] async for event in subscription] == [0, 1, 2]


async def test_an_iterator_that_never_waits_lets_the_loop_breathe() -> None:
    subscription = Subscription(EVERYTHING, _nothing)
    for step in range(2000):
        subscription.arrive(_publication(step))
    subscription.end(None)
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
    subscription = Subscription(EVERYTHING, _nothing)
    subscription.arrive(_publication(1))
    subscription.end(Fenced("another one"))
    assert (await anext(subscription))["step"] == 1
    with pytest.raises(Fenced):
        await anext(subscription)


async def test_two_readers_share_and_a_cancelled_one_harms_nobody() -> None:
    subscription = Subscription(EVERYTHING, _nothing)
    readers = [asyncio.ensure_future(_next(subscription)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    await asyncio.sleep(0)
    subscription.arrive(_publication(1))
    subscription.arrive(_publication(2))
    assert {(await reader)["step"] for reader in readers[1:]} == {1, 2}


async def _next(subscription: Subscription) -> Event:
    return await anext(subscription)


async def test_each_standing_has_its_own_verb_only() -> None:
    assert not hasattr(Subscription(EVERYTHING, _nothing), "unadvertise")
    assert not hasattr(Advertisement(EVERYTHING, _nothing), "unsubscribe")


async def test_a_callback_that_awaits_something_cancelled_has_failed_and_goes_on(
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

    subscription = Subscription(EVERYTHING, _nothing, callback=on_event)
    for step in range(3):
        subscription.arrive(_publication(step))
    subscription.end(None)
    await finish([subscription])
    assert seen == [0, 1, 2]
    assert subscription.callback_errors == 1
    assert isinstance(subscription.last_callback_error, asyncio.CancelledError)


async def test_stuck_callbacks_are_stopped_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "FINISH_BOUND_S", 0.2)
    stuck = [
        Subscription(EVERYTHING, _nothing, callback=lambda _: asyncio.sleep(100)) for _ in range(9)
    ]
    for subscription in stuck:
        subscription.arrive(_publication(1))
    began = time.monotonic()
    await finish(stuck)
    assert time.monotonic() - began < 1.0
    await asyncio.sleep(0.01)
    assert all(s.calling is not None and s.calling.cancelled() for s in stuck)
    assert all(s.callback_errors == 0 for s in stuck)


# ── pulse ────────────────────────────────────────────────────────────────────────────────


class _Socket:
    """A connection that gives its socket away."""

    def __init__(self, below: socket.socket) -> None:
        self.descriptor = below.fileno()
        self.backlog_bytes = 0
        self.sent: list[bytes] = []

    def send(self, bodies: Sequence[bytes]) -> None:
        self.sent.extend(bodies)


def _read(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except BlockingIOError:
        return b""


def test_the_pulse_beats_while_the_thread_of_the_loop_is_stuck() -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    line = Line(_Socket(near), 0.04)  # type: ignore[arg-type]
    time.sleep(0.3)
    beats = _read(far)
    assert len(beats) >= 3 * len(FRAMED_BEAT)
    assert beats == FRAMED_BEAT * (len(beats) // len(FRAMED_BEAT))
    line.end()
    line.end()
    time.sleep(0.05)
    _read(far)
    time.sleep(0.1)
    assert _read(far) == b""
    near.close()
    far.close()


def test_a_line_takes_the_pace_of_its_broker_at_once() -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    line = Line(_Socket(near), 60.0)  # type: ignore[arg-type]
    time.sleep(0.05)  # the pulse has gone to sleep for long
    line.keep_pace(0.04)
    time.sleep(0.3)
    assert len(_read(far)) >= 3 * len(FRAMED_BEAT)
    line.end()
    line.keep_pace(0.04)
    near.close()
    far.close()


def test_the_pulse_never_writes_into_an_unfinished_frame() -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    connection = _Socket(near)
    connection.backlog_bytes = 1
    line = Line(connection, 0.02)  # type: ignore[arg-type]
    time.sleep(0.1)
    assert _read(far) == b""
    line.end()
    near.close()
    far.close()


def test_a_beat_that_the_kernel_takes_in_part_is_finished() -> None:
    near, far = socket.socketpair()
    far.setblocking(False)

    class Reluctant:
        def __init__(self) -> None:
            self.taken = 0

        def fileno(self) -> int:
            return near.fileno()

        def send(self, data: bytes, flags: int) -> int:
            return near.send(data[:1], flags)

    line = Line(_Socket(near), 60.0)  # type: ignore[arg-type]
    line._write(Reluctant(), FRAMED_BEAT)  # type: ignore[arg-type]
    assert _read(far) == FRAMED_BEAT
    line.end()
    near.close()
    far.close()


def test_descriptors_are_given_back() -> None:
    near, far = socket.socketpair()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        Line(_Socket(near), 5.0).end()  # type: ignore[arg-type]
    after = len(os.listdir("/proc/self/fd")) if before else 0
    assert after == before
    near.close()
    far.close()


def _no_descriptor(_: int) -> int:
    raise OSError(errno.EMFILE, "too many open files")


def _no_thread(_: Line) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("lacking", ["descriptor", "thread"])
async def test_without_a_descriptor_or_a_thread_the_loop_beats(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = socket.socketpair()
    if lacking == "descriptor":
        monkeypatch.setattr(socket, "dup", _no_descriptor)
    else:
        monkeypatch.setattr(pulse_module._pulse, "add", _no_thread)
    connection = _Socket(near)
    line = Line(connection, 0.02)  # type: ignore[arg-type]
    await asyncio.sleep(0.2)
    line.keep_pace(0.01)
    assert BEAT in connection.sent
    assert line not in pulse_module._pulse._lines
    line.end()
    near.close()
    far.close()


def test_a_line_that_fails_does_not_stop_the_pulse_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "motet.client")
    near, far = socket.socketpair()
    far.setblocking(False)

    class Broken(_Socket):
        @property
        def backlog_bytes(self) -> int:
            raise AttributeError("half made")

        @backlog_bytes.setter
        def backlog_bytes(self, value: int) -> None: ...

    broken = Line(Broken(near), 0.02)  # type: ignore[arg-type]
    time.sleep(0.1)
    assert broken not in pulse_module._pulse._lines
    sound = Line(_Socket(near), 0.02)  # type: ignore[arg-type]
    time.sleep(0.2)
    assert _read(far)
    broken.end()
    sound.end()
    near.close()
    far.close()


async def test_a_listener_that_fails_leaves_no_line() -> None:
    near, far = socket.socketpair()
    ended: list[str] = []

    class Failing:
        def connected(self, _: Line) -> None:
            raise ValueError("not now")

        def disconnected(self, reason: str) -> None:
            ended.append(reason)

    before = set(pulse_module._pulse._lines)
    with pytest.raises(ValueError, match="not now"):
        Ear(Failing(), _Socket(near))  # type: ignore[arg-type]
    assert ended == ["not now"]
    assert pulse_module._pulse._lines == before
    near.close()
    far.close()
