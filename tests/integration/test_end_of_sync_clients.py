"""Synchronous clients that are closed while threads use them, and closes that fail."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import motet
from motet.client.sync import SyncClient, SyncOverlay
from motet.client.sync.facade import LoopThread
from motet.errors import ClosedError, MisuseError
from motet.fleet.process import running
from tests.integration.durable_broker import DurableBroker
from tests.waiting import PATIENCE_S, wait_until


class Caller(threading.Thread):
    """A thread that makes one call, and remembers how it ended."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.outcome: object = "none"
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._call()
        except BaseException as problem:
            self.outcome = problem

    def ended_with(self) -> object:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the call hangs"
        return self.outcome


@contextmanager
def interrupted_when(condition: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C as soon as the condition is true; the block is expected to end with it."""

    def interrupt() -> None:
        wait_until(condition)
        os.kill(os.getpid(), signal.SIGINT)

    # Whoever runs the tests in the background may have taught them to ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    caller = Caller(interrupt)
    try:
        yield
        pytest.fail("not interrupted")
    except KeyboardInterrupt:
        pass
    finally:
        caller.ended_with()
        signal.signal(signal.SIGINT, before)


async def forever() -> None:
    await asyncio.Event().wait()


# ── the thread of the loop ───────────────────────────────────────────────────────────────


def test_a_call_in_progress_is_told_that_the_loop_stops() -> None:
    thread = LoopThread()
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        await forever()

    caller = Caller(lambda: thread.call(work()))
    assert begun.wait(PATIENCE_S)
    thread.stop()
    assert isinstance(caller.ended_with(), ClosedError)


def test_no_call_is_left_behind_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread()
    schedule, scheduled = thread.loop.call_soon_threadsafe, []

    def note(callback: Callable[..., object], *arguments: Any, **options: Any) -> asyncio.Handle:
        scheduled.append(callback)
        return schedule(callback, *arguments, **options)

    monkeypatch.setattr(thread.loop, "call_soon_threadsafe", note)
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(PATIENCE_S)

    thread.loop.call_soon_threadsafe(hold)
    assert held.wait(PATIENCE_S)
    earlier = forever()
    first = Caller(lambda: thread.call(earlier))
    wait_until(lambda: len(scheduled) == 2)
    stopping = Caller(thread.stop)
    wait_until(lambda: len(scheduled) == 3)
    later = forever()
    assert isinstance(Caller(lambda: thread.call(later)).ended_with(), ClosedError)
    assert inspect.getcoroutinestate(later) == inspect.CORO_CLOSED
    go_on.set()
    assert stopping.ended_with() is None
    assert isinstance(first.ended_with(), ClosedError)
    assert inspect.getcoroutinestate(earlier) == inspect.CORO_CLOSED
    thread.stop()


def test_a_call_that_waits_for_publications_never_runs_after_the_stop() -> None:
    thread = LoopThread()
    work = forever()
    begun = threading.Event()

    async def publications() -> None:
        begun.set()
        await forever()

    caller = Caller(lambda: thread.call(work, publications))
    assert begun.wait(PATIENCE_S)
    thread.stop()
    assert isinstance(caller.ended_with(), ClosedError)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


def test_what_a_stop_interrupts_may_begin_something_else() -> None:
    thread = LoopThread()
    begun, ended = threading.Event(), threading.Event()

    async def stubborn() -> None:
        try:
            begun.set()
            await forever()
        finally:
            asyncio.get_running_loop().create_task(successor())

    async def successor() -> None:
        try:
            await forever()
        finally:
            ended.set()

    caller = Caller(lambda: thread.call(stubborn()))
    assert begun.wait(PATIENCE_S)
    thread.stop()
    assert ended.is_set()
    assert isinstance(caller.ended_with(), ClosedError)


# ── threads that use a client while it is closed ─────────────────────────────────────────


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableBroker]:
    with running(DurableBroker(tmp_path_factory.mktemp("broker"))) as broker:
        assert isinstance(broker, DurableBroker)
        yield broker


CALLS: dict[str, Callable[[SyncClient], object]] = {
    "publish": lambda client: client.publish({"a": 1}),
    "send": lambda client: client.send({"a": 1}),
    "flush": lambda client: client.flush(),
    "registrations": lambda client: client.registrations,
    "subscribe": lambda client: client.subscribe("b = 1").unsubscribe(),
    "status": lambda client: client.status(timeout=PATIENCE_S),
    "transaction": lambda client: client.transaction().abort(),
    "acknowledge": lambda client: client.acknowledge(),
}


@pytest.mark.parametrize("round", range(5))
def test_every_call_during_and_after_the_close_ends_with_closed(
    broker: DurableBroker, round: int
) -> None:
    client = motet.connect_sync(broker.address, client_id=f"busy{round}")
    client.advertise("a >= 0")
    calls = {**CALLS, "get": lambda _: subscription.get()}
    subscription = client.subscribe("a >= 0")
    closing = threading.Event()
    made = dict.fromkeys(calls, 0)

    def repeat(name: str) -> None:
        while True:
            calls[name](client)
            made[name] += 1

    def read_cursors() -> None:  # they can be read after the end
        while not closing.is_set():
            assert client.session.cursors is not None
        assert client.session.cursors is not None

    callers = {name: Caller(lambda name=name: repeat(name)) for name in calls}
    reader = Caller(read_cursors)
    wait_until(lambda: all(made.values()))
    client.close()
    closing.set()
    for name, caller in callers.items():
        outcome = caller.ended_with()
        assert isinstance(outcome, ClosedError), (name, outcome)
    assert reader.ended_with() is None
    for call in calls.values():
        with pytest.raises(ClosedError):
            call(client)


def test_two_threads_close_at_once(broker: DurableBroker) -> None:
    for _ in range(5):
        client = motet.connect_sync(broker.address)
        callers = [Caller(client.close) for _ in range(3)]
        assert [caller.ended_with() for caller in callers] == [None] * 3
        assert client.closed


# ── a close that fails ───────────────────────────────────────────────────────────────────


@pytest.fixture(params=["connect_sync", "local_sync"])
def opened(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[SyncClient, Callable[[], int]]]:
    """A client that owns its thread, or not; and how many sessions its broker has."""
    if request.param == "local_sync":
        with motet.local_sync(1) as overlay, overlay.connect("alice") as client:
            yield client, lambda: overlay.status()["B1"]["session_count"]
        return
    broker = request.getfixturevalue("broker")
    with motet.connect_sync(broker.address, client_id="alice") as client:
        yield client, lambda: asyncio.run(broker.status())["session_count"]


def reading(client: SyncClient) -> Caller:
    """A thread that waits for an event."""
    subscription = client.subscribe("a >= 0")
    caller = Caller(subscription.get)
    wait_until(lambda: subscription._waiting)
    return caller


@pytest.mark.parametrize("timeout", ["x", -1, float("nan"), None])
def test_a_close_with_a_bad_timeout_does_nothing(
    opened: tuple[SyncClient, Callable[[], int]], timeout: Any
) -> None:
    client, _ = opened
    client.advertise("a >= 0")
    caller = reading(client)
    client.publish({"b": 1, "a": 1})
    caller.ended_with()
    with pytest.raises(MisuseError, match="timeout is a number of seconds, 0 or more"):
        client.close(timeout=timeout)
    assert not client.closed
    client.publish({"a": 2})
    caller = reading(client)
    client.close()
    assert isinstance(caller.ended_with(), ClosedError)


def check_closed(client: SyncClient, caller: Caller, sessions: Callable[[], int]) -> None:
    assert isinstance(caller.ended_with(), ClosedError)
    assert client.closed
    assert not client.connected
    wait_until(lambda: sessions() == 0)
    for call in (client.status, client.transaction, lambda: client.send({"a": 1})):
        with pytest.raises(ClosedError):
            call()
    client.close()


def test_a_close_that_fails_ends_the_client(
    opened: tuple[SyncClient, Callable[[], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, sessions = opened
    caller = reading(client)

    async def fail(**_: Any) -> None:
        raise OSError("told to fail")

    with monkeypatch.context() as during:
        during.setattr(client._wrapped, "close", fail)
        with pytest.raises(OSError, match="told to fail"):
            client.close()
    check_closed(client, caller, sessions)


def test_a_close_that_is_interrupted_ends_the_client(
    opened: tuple[SyncClient, Callable[[], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, sessions = opened
    caller = reading(client)
    hanging = threading.Event()

    async def hang(**_: Any) -> None:
        hanging.set()
        await forever()

    with monkeypatch.context() as during:
        during.setattr(client._wrapped, "close", hang)
        with interrupted_when(hanging.is_set):
            client.close()
    check_closed(client, caller, sessions)


def test_an_overlay_whose_close_is_interrupted_ends_its_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overlay: SyncOverlay = motet.local_sync(1)
    client = overlay.connect("alice")
    caller = reading(client)
    hanging = threading.Event()

    async def hang() -> None:
        hanging.set()
        await forever()

    monkeypatch.setattr(overlay._wrapped, "close", hang)
    with interrupted_when(hanging.is_set):
        overlay.close()
    assert isinstance(caller.ended_with(), ClosedError)
    assert client.closed
    client.close()
    overlay.close()
    with pytest.raises(ClosedError):
        overlay.connect("bob")


def test_an_interrupted_call_ends_on_the_thread_of_its_loop() -> None:
    ended: list[str] = []
    begun = threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await forever()
        finally:
            ended.append(threading.current_thread().name)

    with motet.local_sync(1) as overlay, overlay.connect("alice") as client:
        with interrupted_when(begun.is_set):
            client._run(work())
        wait_until(lambda: ended)
        assert ended == ["motet-loop"]


# ── timeouts ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("timeout", ["x", -1, -0.5, True, float("nan"), 10**400])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with motet.local_sync(1) as overlay, overlay.connect("alice") as client:
        client.advertise("a >= 0")
        subscription = client.subscribe("a >= 0")
        receipt = client.send({"a": 1})
        receipt.wait(timeout=PATIENCE_S)
        wait_until(lambda: subscription.buffered)
        for call in (subscription.get, subscription.events, receipt.wait, client.flush):
            with pytest.raises(MisuseError, match="timeout is a number of seconds"):
                call(timeout=timeout)
        with pytest.raises(MisuseError, match="timeout is a number of seconds"):
            client.close(timeout=timeout)
        receipt.wait(timeout=float("inf"))
        client.flush(timeout=float("inf"))
        assert subscription.get(timeout=0)["a"] == 1, "a refused call takes no event"
