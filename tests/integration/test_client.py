"""The asyncio client against real brokers, over TCP and in process."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import motet
from motet.broker.driver import driver as broker_driver
from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.service import volatile_broker
from motet.broker.overlay.topology import Wiring
from motet.client import checks, registrations
from motet.client import driver as client_driver
from motet.client import subscription as subscription_module
from motet.client.line import line as client_line
from motet.client.line.transport import heartbeats
from motet.client.session.machine import MAX_REQUESTS
from motet.client.session.state import Notice, Resolved
from motet.client.subscription import Registration
from motet.errors import (
    AddressError,
    ClosedError,
    Disconnected,
    EventError,
    Fenced,
    FilterError,
    MisuseError,
    NoAnswer,
    NoSuchOperation,
    NotAdvertised,
    NotEffective,
    ProtocolError,
)
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Close, Input, Output, Received
from motet.protocol.session.messages import ClientHello, ProgressQuery
from motet.runtime.codec import encode
from tests.waiting import PATIENCE_S, eventually


@asynccontextmanager
async def broker(
    address: str = "motet://127.0.0.1:0",
    *,
    heartbeat_s: float = 2.0,
    lease_s: float = 30.0,
    neighbours: tuple[str, ...] = (),
    incarnation: int = 1,
    max_backlog_bytes: int = 64 * 1024 * 1024,
) -> AsyncIterator[BrokerDriver]:
    config = BrokerConfig(
        "B1", neighbours, incarnation=incarnation, lease_s=lease_s, heartbeat_s=heartbeat_s
    )
    wiring = Wiring(address, max_backlog_bytes=max_backlog_bytes)
    driver = volatile_broker(config, wiring)
    await driver.start()
    try:
        yield driver
    finally:
        await driver.stop()


def cut(driver: BrokerDriver, client: str | None = None) -> None:
    """Break the connections of one client, or of all, without a word."""
    for contact in list(driver.contacts.values()):
        if client is None or contact.describe()["name"] == client:
            contact.connection.abort("cut by the test")


async def steps(subscription: motet.Subscription, count: int) -> list[object]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(subscription))["step"] for _ in range(count)]


# ── the ordinary ─────────────────────────────────────────────────────────────────────────


async def test_publish_and_subscribe_over_tcp() -> None:
    async with (
        broker() as driver,
        motet.connect(driver.address, client_id="alice") as alice,
        motet.connect(driver.address, client_id="bob") as bob,
    ):
        assert (alice.client_id, alice.broker, alice.connected) == ("alice", "B1", True)
        await alice.advertise("process = 'p1'")
        async with bob.subscribe("step > 1") as subscription:
            receipt = await alice.send({"process": "p1", "step": 2}, payload=b"two")
            await receipt
            assert receipt.settled
            await alice.send({"process": "p1", "step": 1})
            await alice.send(motet.Event.of(process="p1", step=3))
            await alice.flush()
            event = await anext(subscription)
            assert (event["step"], event.payload) == (2, b"two")
            assert (event.publisher, event.sequence) == ("alice", 1)
            assert await steps(subscription, 1) == [3]


async def test_clients_without_an_id_get_one_each() -> None:
    async with broker() as driver:
        one, two = await motet.connect(driver.address), await motet.connect(driver.address)
        assert one.client_id != two.client_id
        await one.close()
        await two.close()
        await two.close()


async def test_union_filters_and_overlapping_subscriptions() -> None:
    async with motet.local(1) as overlay:
        alice, bob = await overlay.connect("alice"), await overlay.connect("bob")
        await alice.advertise("step > 0")
        union = await bob.subscribe("step = 1 or step >= 8")
        plain = await bob.subscribe(motet.attr("step") > 7)
        await alice.send_many({"step": step} for step in range(1, 11))
        await alice.flush()
        assert await steps(union, 4) == [1, 8, 9, 10]
        assert await steps(plain, 3) == [8, 9, 10]


async def test_callbacks_plain_and_async_survive_their_own_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "motet.client")
    plain: list[object] = []
    later: list[object] = []

    def on_event(event: motet.Event) -> None:
        plain.append(event["step"])
        if event["step"] == 2:
            raise ValueError("two")

    async def on_event_later(event: motet.Event) -> None:
        await asyncio.sleep(0)
        later.append(event["step"])

    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        await alice.advertise("step > 0")
        one = await alice.subscribe("step > 0", callback=on_event)
        await alice.subscribe("step > 0", callback=on_event_later)
        await alice.send_many({"step": step} for step in range(1, 4))
        await eventually(lambda: len(plain) == len(later) == 3)
        assert plain == later == [1, 2, 3]
        assert one.callback_errors == 1
        assert isinstance(one.last_callback_error, ValueError)
        with pytest.raises(MisuseError, match="callback"):
            one.__aiter__()


async def test_unsubscribe_stops_delivery_and_keeps_what_arrived() -> None:
    async with motet.local(2) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B2")
        await alice.advertise("step > 0")
        subscription = await bob.subscribe("step > 0")
        await alice.send({"step": 1})
        await alice.flush()
        await eventually(lambda: subscription.buffered == 1)
        await bob.unsubscribe(subscription)
        await alice.send({"step": 2})
        await alice.flush()
        await (await bob.advertise("x = 1")).unadvertise()  # a round trip through the overlay
        assert [event["step"] async for event in subscription] == [1]
        assert not subscription.active
        with pytest.raises(NoSuchOperation):
            await bob.unsubscribe(subscription)


async def test_a_report_acknowledges_no_event_that_came_behind_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question and events arrive in one piece, as they do on a busy machine."""
    heard = client_driver.SessionDriver.heard

    asked: list[bytes] = []

    def heard_behind_a_question(self: client_driver.SessionDriver, bodies: list[bytes]) -> None:
        heard(self, [*asked, *bodies] if self.machine.client == "bob" else bodies)

    monkeypatch.setattr(client_driver.SessionDriver, "heard", heard_behind_a_question)
    async with motet.local(1) as overlay:
        alice = await overlay.connect("alice")
        bob = await overlay.connect("bob", durable=True)
        await alice.advertise("step > 0")
        subscription = await bob.subscribe("step > 0")
        await alice.publish({"step": 1})
        first = await anext(subscription)
        first.ack()
        asked.append(encode(ProgressQuery()))
        await alice.publish({"step": 2})
        await eventually(lambda: subscription.buffered == 1)
        event_at = max(bob._driver.machine.streams.received.values())
        told = bob._driver.machine.streams._processed
        assert max(told.values(), default=0) < event_at
        assert (await anext(subscription))["step"] == 2


async def test_unadvertise_takes_the_right_away() -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        async with alice.advertise("step > 0") as advertisement:
            await alice.publish({"step": 1})
        assert not advertisement.active
        with pytest.raises(NotAdvertised, match="alice has not advertised the event"):
            await alice.publish({"step": 1})


async def test_flush_tells_how_many_were_refused() -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        await alice.advertise("step > 0")
        await alice.send_many({"step": step} for step in range(-3, 4))
        with pytest.raises(NotAdvertised, match=r"4 of 7 publications failed.*step=-3"):
            await alice.flush()
        await alice.flush()


async def test_the_window_holds_publishers_back() -> None:
    async with motet.local(1) as overlay, overlay.connect("alice", window=10) as alice:
        await alice.advertise("step > 0")
        for step in range(1, 11):
            assert alice.send_nowait({"step": step}) is not None
        assert alice.send_nowait({"step": 11}) is None
        await alice.send({"step": 11})
        assert 0 < alice.session.unsettled < 10
        await alice.send_many({"step": step} for step in range(1, 500))
        await alice.flush()
        assert alice.session.unsettled == 0


async def test_publish_waits_no_longer_than_its_timeout(tmp_path: Path) -> None:
    async with (
        motet.local(1, data=tmp_path) as overlay,
        overlay.connect("alice", window=2) as alice,
    ):
        await alice.advertise("step > 0")
        await alice.publish({"step": 1}, timeout=PATIENCE_S)
        with pytest.raises(NotAdvertised):
            await alice.publish({"step": 0}, timeout=PATIENCE_S)
        with pytest.raises(MisuseError, match="number of seconds"):
            await alice.publish({"step": 1}, timeout=-1)
        await overlay.stop_broker("B1")
        for step in (2, 3):
            with pytest.raises(NoAnswer, match=r"not accepted within 0.01 s; it may still"):
                await alice.publish({"step": step}, timeout=0.01)
        with pytest.raises(TimeoutError, match=r"not sent within 0.01 s"):
            await alice.publish({"step": 4}, timeout=0.01)
        await overlay.start_broker("B1")
        async with asyncio.timeout(PATIENCE_S):
            await alice.publish({"step": 5}, timeout=PATIENCE_S)
        steps = [row["step"] async for row in logged(overlay.address("B1"))]
        assert steps == [1, 2, 3, 5]


async def logged(url: str) -> AsyncIterator[dict[str, Any]]:
    async for batch in motet.read(url, columns=["step"]):
        for row in batch.rows():
            yield row


async def test_publishers_from_many_tasks() -> None:
    async with motet.local(1) as overlay, overlay.connect("alice", window=7) as alice:
        await alice.advertise("step > 0")
        subscription = await alice.subscribe("step > 0")

        async def publish(base: int) -> None:
            for step in range(base, base + 100):
                await alice.send({"step": step})

        await asyncio.gather(*(publish(1000 * i) for i in range(1, 5)))
        await alice.flush()
        got = await steps(subscription, 400)
        for i in range(1, 5):
            assert [s for s in got if s // 1000 == i] == list(range(1000 * i, 1000 * i + 100))


async def test_status_comes_from_the_broker() -> None:
    async with broker() as driver, motet.connect(driver.address, client_id="alice") as alice:
        status = await alice.status()
        assert status["broker"] == "B1"
        assert status["sessions"]["alice"]["epoch"] == alice.session.epoch


# ── bad use ──────────────────────────────────────────────────────────────────────────────


async def test_no_broker_answers() -> None:
    started = time.monotonic()
    with pytest.raises(Disconnected, match=r"motet://127.0.0.1:1\b.*motet up"):
        await motet.connect("motet://127.0.0.1:1", connect_timeout=4 * PATIENCE_S)
    assert time.monotonic() - started < PATIENCE_S


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "http://127.0.0.1:80", "motet://", "motet://host", "motet://h:x", ""),
        *("motet://h:0", "motet://a..b:1", "inproc://", "inproc://a/b"),
    ],
)
async def test_bad_addresses(address: str) -> None:
    with pytest.raises(AddressError):
        await motet.connect(address)
    async with motet.local(1) as overlay:
        with pytest.raises(AddressError):
            await motet.connect(overlay.address("B1"), address)


@pytest.mark.parametrize(
    "options",
    [
        {"client_id": ""},
        {"client_id": 7},
        {"client_id": "x" * 129},
        {"client_id": "new\nline"},
        {"window": 0},
        {"connect_timeout": 0},
        {"connect_timeout": float("nan")},
        {"connect_timeout": "5"},
        {"credentials": "secret"},
        {"history": 5},
        {"durable": "yes", "client_id": "x"},
        {"best_effort": 1},
    ],
)
async def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(MisuseError):
        await motet.connect("motet://127.0.0.1:1", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        *({"data": 5}, {"name": 5}, {"root": {}}, {"covering": "no"}, {"retention": 5}),
        {"durability": 5},
    ],
)
async def test_bad_options_of_an_overlay(options: dict[str, Any]) -> None:
    (name,) = options
    says = "`data` is" if name == "data" else rf"overlay\.{name}: is .*; give (a|t)"
    with pytest.raises(MisuseError, match=says):
        await motet.local(1, **options)
    if name != "data":
        with pytest.raises(MisuseError, match=says):
            motet.Topology.line(1, **options)


async def test_arguments_of_wrong_types() -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        await alice.advertise("step > 0")
        wrong: Any
        for wrong in (0, []):
            for call in (overlay.start_broker, overlay.stop_broker):
                with pytest.raises(MisuseError, match="a broker is given by its name"):
                    await call(wrong)
            with pytest.raises(MisuseError, match="a broker is given by its name"):
                await overlay.connect(broker=wrong)
        for wrong in (5, None):
            for many in (alice.send_many, alice.publish_many):
                with pytest.raises(MisuseError, match="takes an iterable of events"):
                    await many(wrong)
        wrong = "no"
        for verb in (alice.send, alice.publish):
            with pytest.raises(MisuseError, match="`best_effort` is True or False"):
                await verb({"step": 1}, best_effort=wrong)
        with pytest.raises(MisuseError, match="`best_effort` is True or False"):
            alice.send_nowait({"step": 1}, best_effort=wrong)
        with pytest.raises(MisuseError, match="`discard_session` is True or False"):
            await alice.close(discard_session=wrong)
        with pytest.raises(MisuseError, match="`acknowledge` is True or False"):
            await alice.close(acknowledge=wrong)
        with pytest.raises(MisuseError, match="takes steps of this plan"):
            motet.Plan().subscribe("alice", "step > 0", after=wrong[:0])
        assert alice.connected


async def test_a_listener_that_never_welcomes() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Disconnected, match=r"sent no welcome within 0\.2 s"):
        await motet.connect(f"motet://127.0.0.1:{port}", connect_timeout=0.2)
    server.close()
    await asyncio.sleep(0.01)


async def test_a_listener_that_speaks_another_language() -> None:
    async def talker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Disconnected):
        await motet.connect(f"motet://127.0.0.1:{port}", connect_timeout=PATIENCE_S)
    server.close()


async def test_bad_calls() -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        with pytest.raises(FilterError, match="column"):
            await alice.subscribe("step >")
        with pytest.raises(FilterError):
            await alice.advertise(7)  # type: ignore[arg-type]
        with pytest.raises(MisuseError):
            await alice.subscribe("step > 1", callback="no")  # type: ignore[arg-type]
        with pytest.raises(MisuseError):
            await alice.subscribe("step > 1", buffer=0)
        with pytest.raises(MisuseError):
            await alice.subscribe("step > 1", wait="everywhere")  # type: ignore[arg-type]
        with pytest.raises(MisuseError):
            await alice.subscribe("step > 1", timeout=-1)
        with pytest.raises(MisuseError):
            await alice.subscribe("step > 1", timeout=10**400)
        with pytest.raises(EventError):
            await alice.send({"step": None})  # type: ignore[dict-item]
        with pytest.raises(MisuseError):
            await alice.send("step")  # type: ignore[arg-type]
        with pytest.raises(MisuseError):
            await alice.unsubscribe("step")  # type: ignore[arg-type]
        with pytest.raises(MisuseError):
            await alice.unadvertise(await alice.subscribe("step > 1"))


@pytest.mark.parametrize("timeout", ["x", -1, True, float("nan")])
async def test_a_wrong_timeout_is_refused_by_flush_and_close(timeout: Any) -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        for call in (alice.flush, alice.close):
            with pytest.raises(MisuseError, match="timeout is a number of seconds"):
                await call(timeout=timeout)
        assert not alice.closed


@pytest.mark.parametrize("options", [{"wait": "bogus"}, {"timeout": -1}, {"timeout": "soon"}])
async def test_a_removal_with_invalid_options_changes_nothing(options: dict[str, object]) -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        advertisement = await alice.advertise("step > 0")
        subscription = await alice.subscribe("step > 0")
        with pytest.raises(MisuseError):
            await subscription.unsubscribe(**options)  # type: ignore[arg-type]
        with pytest.raises(MisuseError):
            await alice.unadvertise(advertisement, **options)  # type: ignore[arg-type]
        await alice.publish({"step": 1})
        assert await steps(subscription, 1) == [1]
        await subscription.unsubscribe()
        await alice.unadvertise(advertisement)
        tables = (await alice.status())["tables"]
        assert (tables["subscriptions"], tables["advertisements"]) == (0, 0)


async def test_a_call_cancelled_before_its_turn_may_unsubscribe_again() -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        subscription = await alice.subscribe("step > 0")
        slots = alice._driver.answers.slots
        for _ in range(MAX_REQUESTS):
            await slots.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await subscription.unsubscribe()
        assert subscription.active
        twice = [asyncio.ensure_future(subscription.unsubscribe()) for _ in range(2)]
        await asyncio.sleep(0)
        for _ in range(MAX_REQUESTS):
            slots.release()
        await asyncio.gather(*twice)
        assert not subscription.active
        assert (await alice.status())["tables"]["subscriptions"] == 0


async def test_a_broker_that_tells_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    async with motet.local(1) as overlay, overlay.connect("alice") as alice:
        with pytest.raises(MisuseError):
            await alice.status(timeout=-1)
        driver = overlay.drivers["B1"]
        monkeypatch.setattr(driver, "_tell_status", lambda *_: None)
        with pytest.raises(NoAnswer, match=r"did not answer within 0\.05 s"):
            await alice.status(timeout=0.05)
        monkeypatch.undo()
        assert (await alice.status())["broker"] == "B1"


async def test_after_close_everything_says_so() -> None:
    async with motet.local(1) as overlay:
        alice = await overlay.connect("alice")
        await alice.advertise("step > 0")
        subscription = await alice.subscribe("step > 0")
        waiting = asyncio.ensure_future(anext(subscription, None))
        await asyncio.sleep(0)
        await alice.close()
        assert await waiting is None
        assert alice.closed
        for call in (
            lambda: alice.send({"step": 1}),
            lambda: alice.advertise("step > 0"),
            lambda: alice.subscribe("step > 0"),
            lambda: alice.status(),
        ):
            with pytest.raises(ClosedError):
                await call()
        with pytest.raises(ClosedError):
            alice.send_nowait({"step": 1})
        await subscription.unsubscribe()


async def test_events_published_before_close_are_delivered() -> None:
    async with motet.local(1) as overlay:
        bob = await overlay.connect("bob")
        subscription = await bob.subscribe("step > 0")
        async with overlay.connect("alice") as alice:
            await alice.advertise("step > 0")
            await alice.send_many({"step": step} for step in range(1, 1001))
        assert await steps(subscription, 1000) == list(range(1, 1001))


# ── patience ─────────────────────────────────────────────────────────────────────────────


async def test_not_effective_names_the_broker_that_is_missing() -> None:
    async with (
        broker(neighbours=("B2",)) as driver,
        motet.connect(driver.address, client_id="alice") as alice,
    ):
        with pytest.raises(NotEffective, match=r"advertise.*0\.1 s.*B2") as caught:
            await alice.advertise("step > 0", timeout=0.1)
        assert caught.value.missing == ("B2",)
        await alice.advertise("step > 0", wait="local")
        await alice.publish({"step": 1})


async def test_a_broker_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_driver, "ANSWER_GRACE_S", 0.1)
    async with broker() as driver, motet.connect(driver.address, client_id="alice") as alice:
        monkeypatch.setattr(driver, "_receive", lambda *_: None)
        with pytest.raises(NotEffective) as caught:
            await alice.subscribe("step > 0", timeout=0.1)
        assert caught.value.missing == ("B1",)
        monkeypatch.undo()
        cut(driver)
        await eventually(lambda: alice.connected)
        await alice.subscribe("step > 0")
        assert (await alice.status())["tables"]["subscriptions"] == 1


async def test_a_cancelled_subscribe_leaves_nothing_behind() -> None:
    async with (
        broker(neighbours=("B2",)) as driver,
        motet.connect(driver.address, client_id="alice") as alice,
    ):
        asking = alice.subscribe("step > 0", timeout=10 * PATIENCE_S)
        opening = asyncio.ensure_future(asking)
        await eventually(lambda: driver.core.status()["tables"]["subscriptions"] == 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await eventually(lambda: driver.core.status()["tables"]["subscriptions"] == 0)
        assert alice.registrations == ()


@pytest.mark.parametrize("verb", ["subscribe", "advertise"])
async def test_a_call_cancelled_at_any_moment_leaves_nothing_behind(verb: str) -> None:
    async with broker() as driver, motet.connect(driver.address, client_id="alice") as alice:
        cancelled = 0
        for turns in range(200):
            opening = asyncio.ensure_future(_open(alice, verb, turns))
            for _ in range(turns % 40):
                await asyncio.sleep(0)
            opening.cancel()
            try:
                entry = await opening
            except asyncio.CancelledError:
                cancelled += 1
            else:
                await entry._take_back("local", 5.0)
        assert cancelled
        await eventually(lambda: not driver.core.status()["tables"]["subscriptions"])
        await eventually(lambda: not driver.core.status()["tables"]["advertisements"])
        assert list(alice._driver.machine.requests.standing) == []
        assert alice._driver.registrations.entries == {}


@pytest.mark.parametrize("verb", ["subscribe", "advertise"])
async def test_a_call_cancelled_while_its_answer_is_ready_leaves_nothing_behind(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker() as driver, motet.connect(driver.address, client_id="alice") as alice:
        talker = alice._driver
        opening = asyncio.ensure_future(_open(alice, verb, 1))
        tell = talker._tell

        def tell_and_cancel(happening: Notice) -> None:
            tell(happening)
            if isinstance(happening, Resolved):
                opening.cancel()

        monkeypatch.setattr(talker, "_tell", tell_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await opening
        monkeypatch.undo()
        assert list(talker.machine.requests.standing) == []
        tables = (await alice.status())["tables"]
        assert (tables["subscriptions"], tables["advertisements"]) == (0, 0)


async def _open(client: motet.Client, verb: str, value: int) -> Registration:
    if verb == "subscribe":
        return await client.subscribe(f"step = {value}")
    return await client.advertise(f"step = {value}")


async def test_a_request_that_cannot_be_encoded_harms_no_other_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker() as driver, motet.connect(driver.address, client_id="alice") as alice:
        with monkeypatch.context() as patch:
            patch.setattr(registrations, "MAX_FILTER_BYTES", 5)
            with pytest.raises(MisuseError, match="limit of 5"):
                await alice.subscribe("step > 0")
            patch.setattr(checks, "encode", lambda _: 1 / 0)
            with pytest.raises(MisuseError, match="cannot be sent"):
                await alice.subscribe("step > 0")
        await alice.advertise("step > 0")
        subscription = await alice.subscribe("step > 0")
        await alice.send({"step": 1})
        assert await steps(subscription, 1) == [1]


async def test_a_call_cancelled_offline_makes_room_for_others() -> None:
    async with broker() as driver:
        alice = await motet.connect(driver.address, client_id="alice")
    await eventually(lambda: not alice.connected)
    for value in range(MAX_REQUESTS + 10):
        opening = asyncio.ensure_future(_open(alice, "subscribe", value))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening})
        assert opening.cancelled()
    late = asyncio.ensure_future(_open(alice, "subscribe", 0))
    async with broker(driver.address, incarnation=2) as again:
        await asyncio.wait_for(late, PATIENCE_S)
        assert again.core.status()["tables"]["subscriptions"] == 1
        await alice.close()


async def test_a_callback_may_close_its_client_while_others_are_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck = 60
    monkeypatch.setattr(subscription_module, "FINISH_BOUND_S", 2 * PATIENCE_S / stuck)
    async with motet.local(1) as overlay:
        alice, bob = await overlay.connect("alice"), await overlay.connect("bob")
        await alice.advertise("step > 0")
        closed = asyncio.Event()

        async def close(_: motet.Event) -> None:
            await bob.close()
            closed.set()

        for _ in range(stuck):
            await bob.subscribe("step > 0", callback=lambda _: asyncio.sleep(1000))
        await bob.subscribe("step > 0", callback=close)
        await alice.send({"step": 1})
        await asyncio.wait_for(closed.wait(), PATIENCE_S)  # one after another takes twice as long
        assert bob.closed
        assert (await alice.status())["tables"]["subscriptions"] == 0


# ── connections that break ───────────────────────────────────────────────────────────────


async def test_a_cut_connection_is_resumed_and_nothing_published_is_lost() -> None:
    async with (
        broker() as driver,
        motet.connect(driver.address, client_id="alice") as alice,
        motet.connect(driver.address, client_id="bob") as bob,
    ):
        await alice.advertise("step > 0")
        subscription = await bob.subscribe("step > 0")
        epoch = alice.session.epoch
        for step in range(1, 201):
            await alice.send({"step": step})
            if step % 50 == 0:
                cut(driver, "alice")
                await asyncio.sleep(0.01)
        await alice.flush(timeout=PATIENCE_S)
        assert (alice.session.epoch, alice.session.lost_sessions) == (epoch, 0)
        assert await steps(subscription, 200) == list(range(1, 201))


async def test_requests_survive_a_cut() -> None:
    async with broker() as driver, motet.connect(driver.address, client_id="alice") as alice:
        asking = [asyncio.ensure_future(_subscribe(alice, f"step > {i}")) for i in range(20)]
        await asyncio.sleep(0)
        cut(driver)
        subscriptions = await asyncio.gather(*asking)
        assert len({subscription.handle for subscription in subscriptions}) == 20
        assert (await alice.status())["tables"]["subscriptions"] == 20


async def _subscribe(client: motet.Client, wanted: str) -> motet.Subscription:
    return await client.subscribe(wanted)


async def test_a_broker_that_forgot_us_gets_everything_again() -> None:
    async with broker() as first:
        address = first.address
        alice = await motet.connect(address, client_id="alice")
        bob = await motet.connect(address, client_id="bob")
        await alice.advertise("step > 0")
        subscription = await bob.subscribe("step > 1")
        epoch = bob.session.epoch
    with pytest.raises(Disconnected):
        await alice.status()
    pending = await alice.send({"step": 5})  # while nobody is there: it waits
    async with broker(address, incarnation=1000) as second:
        await eventually(lambda: alice.session.lost_sessions == bob.session.lost_sessions == 1)
        assert bob.session.epoch != epoch
        await eventually(lambda: second.core.status()["tables"]["subscriptions"] == 1)
        await asyncio.wait_for(_settle(pending), PATIENCE_S)
        await alice.send({"step": 2})
        # The event that waited is for bob only if he was back before it.
        first = await steps(subscription, 1)
        assert first == [2] or (first == [5] and await steps(subscription, 1) == [2])
        await subscription.unsubscribe()
        await eventually(lambda: second.core.status()["tables"]["subscriptions"] == 0)
        await alice.close()
        await bob.close()


async def _settle(receipt: motet.client.Receipt) -> None:
    await receipt


async def test_an_expired_lease_is_a_lost_session() -> None:
    async with broker(lease_s=0.02) as driver:
        alice = await motet.connect(driver.address, client_id="alice")
        await alice.advertise("step > 0")
        cut(driver)
        await eventually(lambda: alice.session.lost_sessions == 1 or alice.connected)
        for _ in range(20):
            if alice.session.lost_sessions:
                break
            cut(driver)
            await asyncio.sleep(0.1)
        assert alice.session.lost_sessions >= 1
        await eventually(lambda: alice.connected)
        await alice.flush()
        await alice.publish({"step": 1})
        await alice.close()


async def test_the_second_client_with_one_id_fences_the_first() -> None:
    async with broker() as driver:
        first = await motet.connect(driver.address, client_id="alice")
        subscription = await first.subscribe("step > 0")
        waiting = asyncio.ensure_future(anext(subscription))
        async with motet.connect(driver.address, client_id="alice") as second:
            with pytest.raises(Fenced, match="alice"):
                await asyncio.wait_for(waiting, PATIENCE_S)
            with pytest.raises(Fenced):
                await first.send({"step": 1})
            with pytest.raises(Fenced):
                await first.subscribe("step > 0")
            await asyncio.sleep(0.1)
            assert second.connected
            assert first.closed
        await first.close()


async def test_a_blocking_handler_does_not_cost_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker runs in a thread of its own: it must hear us while our loop is stuck."""
    silence_s = 3.0
    monkeypatch.setattr(broker_driver, "SHORTEST_SILENCE_S", silence_s)
    loop = asyncio.new_event_loop()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    here = asyncio.get_running_loop()
    stop = asyncio.Event()
    closings: list[str] = []

    async def serve() -> None:
        async with broker(heartbeat_s=0.1, lease_s=0.1) as driver:
            refuse = driver.expel
            driver.expel = lambda contact, error: (  # type: ignore[method-assign]
                closings.append(str(error)),
                refuse(contact, error),
            )[1]
            here.call_soon_threadsafe(ready.set_result, driver.address)
            await stop.wait()

    serving = asyncio.create_task(asyncio.to_thread(loop.run_until_complete, serve()))
    address = await ready
    async with motet.connect(address, client_id="alice") as alice:
        await alice.advertise("step > 0")
        done = asyncio.Event()

        def block(event: motet.Event) -> None:
            del event
            time.sleep(1.5 * silence_s)
            done.set()

        await alice.subscribe("step > 0", callback=block)
        epoch = alice.session.epoch
        await alice.send({"step": 1})
        await done.wait()
        assert (alice.session.epoch, alice.session.lost_sessions, closings) == (epoch, 0, [])
        assert alice.connected
    loop.call_soon_threadsafe(stop.set)
    await serving
    loop.close()


@pytest.mark.parametrize(("heartbeat_s", "first_s"), [(1.0, 60.0), (60.0, 0.05)])
async def test_idle_clients_stay_connected(
    heartbeat_s: float, first_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides go by the broker's heartbeat. What a client assumes before it knows better
    would cost the connection here: too slow for the one broker, too impatient for the other."""
    monkeypatch.setattr(client_line, "FIRST_HEARTBEAT_S", first_s)
    monkeypatch.setattr(client_line, "SHORTEST_SILENCE_S", PATIENCE_S)
    async with (
        motet.local(2, heartbeat=heartbeat_s) as overlay,
        broker(heartbeat_s=heartbeat_s) as driver,
        motet.connect(driver.address, client_id="bob") as tcp,
    ):
        inproc = await overlay.connect("alice")
        monkeypatch.setattr(client_line, "SHORTEST_SILENCE_S", 1.0)  # they know better by now
        local = overlay.drivers["B1"]
        before = set(driver.contacts), set(local.contacts), inproc.session.epoch, tcp.session.epoch
        await asyncio.sleep(4.0)  # longer than three heartbeats of one second
        assert before == (
            set(driver.contacts),
            set(local.contacts),
            inproc.session.epoch,
            tcp.session.epoch,
        )


async def test_a_silent_broker_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker(heartbeat_s=0.05) as driver:
        monkeypatch.setattr(driver, "_tick", lambda _: None)  # neither beats nor judges
        async with motet.connect(driver.address, client_id="alice") as alice:
            contacts = set(driver.contacts)
            await eventually(lambda: driver.contacts and not contacts & set(driver.contacts))
            assert alice.session.lost_sessions == 0


@pytest.mark.parametrize("lacking", ["descriptor", "memory"])
async def test_a_client_reconnects_after_a_temporary_lack_of_descriptors(
    lacking: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with broker() as driver, motet.connect(driver.address, client_id="alice") as alice:
        tries = 0

        def fail(*_: object) -> object:
            nonlocal tries
            tries += 1
            raise OSError(errno.EMFILE, "too many open files")

        with monkeypatch.context() as patch:
            if lacking == "descriptor":
                patch.setattr(socket, "socket", fail)
            else:
                patch.setattr(client_line, "Line", fail)
            cut(driver, "alice")
            await eventually(lambda: tries >= 2)
        await eventually(lambda: alice.connected)
        assert alice._driver._line in heartbeats
        await alice.advertise("step > 0")
        await alice.publish({"step": 1})


async def test_the_first_address_that_answers_is_taken() -> None:
    async with (
        broker() as driver,
        motet.connect("motet://127.0.0.1:1", driver.address) as alice,
    ):
        assert alice.connected
        assert alice.session.address == driver.address
    with pytest.raises(Disconnected, match=r"127\.0\.0\.1:1\b.*127\.0\.0\.1:2\b"):
        await motet.connect("motet://127.0.0.1:1", "motet://127.0.0.1:2")
    with pytest.raises(MisuseError, match="needs the address"):
        await motet.connect()


async def test_one_error_names_all_addresses_that_do_not_answer() -> None:
    addresses = ("motet://127.0.0.1:1", "motet://127.0.0.1:2")
    with pytest.raises(Disconnected) as raised:
        await motet.connect(*addresses)
    text = str(raised.value)
    assert all(address in text for address in addresses)
    assert text.count("check that the broker runs") == 1


@pytest.mark.parametrize("times", [1, 2])
async def test_a_client_whose_broker_is_gone_goes_to_another_one(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(client_line, "FAILOVER_S", 0.2)
    lost: list[motet.Client] = []
    async with motet.local(2) as overlay:
        addresses = (overlay.address("B1"), overlay.address("B2"))
        given = (*(addresses[:1] * times), addresses[1])  # the first one perhaps twice
        alice = await motet.connect(*given, client_id="alice", on_session_lost=lost.append)
        await alice.advertise("step > 0")
        subscription = await alice.subscribe("step > 0")
        assert (alice.broker, alice.session.address) == ("B1", addresses[0])
        await overlay.stop_broker("B1")
        await eventually(lambda: alice.connected and alice.session.address == addresses[1])
        assert alice.broker == "B2"
        await alice.publish({"step": 1})
        assert (await anext(subscription))["step"] == 1
        await eventually(lambda: lost == [alice])
        assert alice.session.lost_sessions == 1
        await alice.close()


async def test_a_durable_client_waits_for_the_broker_that_has_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_line, "FAILOVER_S", 0.0)
    async with motet.local(2) as overlay:
        addresses = (overlay.address("B1"), overlay.address("B2"))
        async with motet.connect(*addresses, client_id="d", durable=True) as first:
            assert first.broker == "B1"
        # The order of the addresses does not matter.
        async with motet.connect(*reversed(addresses), client_id="d", durable=True) as second:
            assert (second.broker, second.session.resumed) == ("B1", True)
            cut(overlay.drivers["B1"], "d")
            await eventually(lambda: not second.connected)
            await eventually(lambda: second.connected)
            assert (second.broker, second.session.lost_sessions) == ("B1", 0)


async def test_the_application_hears_that_its_session_was_resumed() -> None:
    heard: list[str] = []

    async def resumed(client: motet.Client) -> None:
        await asyncio.sleep(0)
        heard.append(client.client_id)

    def lost(client: motet.Client) -> None:
        raise ValueError(f"{client} was not lost")

    async with (
        broker() as driver,
        motet.connect(
            driver.address, client_id="alice", on_resumed=resumed, on_session_lost=lost
        ) as alice,
    ):
        epoch = alice.session.epoch
        cut(driver, "alice")
        await eventually(lambda: heard == ["alice"])
        assert alice.session.epoch == epoch
    for wrong in ({"on_resumed": 1}, {"on_session_lost": "x"}):
        with pytest.raises(MisuseError, match="must be callable"):
            await motet.connect(driver.address, **wrong)  # type: ignore[arg-type]


async def test_a_broker_that_refuses_every_reconnect_ends_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker() as driver, motet.connect(driver.address, client_id="alice") as alice:
        step = driver.core.step

        def refuse(given: Input, now: float) -> Output:
            if isinstance(given, Received) and isinstance(given.frame, ClientHello):
                return Output(close=[Close(given.connection, "ProtocolError", "not like this")])
            return step(given, now)

        monkeypatch.setattr(driver.core, "step", refuse)
        subscription = await alice.subscribe("step > 0")
        cut(driver)
        with pytest.raises(ProtocolError, match="not like this"):
            await asyncio.wait_for(anext(subscription), PATIENCE_S)
        assert alice.closed
        with pytest.raises(ProtocolError):
            await alice.send({"step": 1})


# ── consumers that do not read ───────────────────────────────────────────────────────────


async def test_a_slow_iterator_loses_the_newest_and_counts() -> None:
    async with motet.local(1) as overlay:
        alice, bob = await overlay.connect("alice"), await overlay.connect("bob")
        await alice.advertise("step > 0")
        slow = await bob.subscribe("step > 0", buffer=100)
        quick = await bob.subscribe("step > 0")
        events = ({"step": step} for step in range(1, 1001))
        await alice.send_many(events, best_effort=True)
        await alice.flush()
        assert await steps(quick, 1000) == list(range(1, 1001))
        assert (slow.buffered, slow.dropped) == (100, 900)
        assert await steps(slow, 100) == list(range(1, 101))


async def test_large_payloads_pass_and_stall_no_other_client() -> None:
    async with (
        broker() as driver,
        motet.connect(driver.address, client_id="alice") as alice,
        motet.connect(driver.address, client_id="bob") as bob,
    ):
        await alice.advertise("step > 0")
        subscription = await bob.subscribe("step > 0")
        payload = b"x" * 1_000_000
        for step in range(1, 31):
            await alice.send({"step": step}, payload)
        await alice.flush(timeout=PATIENCE_S)
        assert await steps(subscription, 30) == list(range(1, 31))
