"""Durable clients as applications see them: claimed subscriptions, kept events, refusals."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import motet
from motet import Client, Subscription
from motet.client import LocalOverlay
from motet.client.session.state import Missed
from motet.protocol.delivery.stream import Limits
from tests.integration.durable_broker import DurableBroker
from tests.waiting import PATIENCE_S, eventually

SPACE = "step > 0"


async def steps(subscription: Subscription, count: int) -> list[object]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(subscription))["step"] for _ in range(count)]


async def publish(client: Client, first: int, last: int) -> None:
    for step in range(first, last + 1):
        await client.send({"step": step})
    await client.flush(timeout=PATIENCE_S)


async def publisher(overlay: LocalOverlay, broker: str = "B1") -> Client:
    alice = await overlay.connect("alice", broker=broker)
    await alice.advertise(SPACE)
    return alice


def crash(client: Client) -> None:
    """Its process is gone, without a word."""
    talk = client._driver
    talk.dialer.stop()
    assert talk._line is not None
    talk._line.connection.abort("killed by the test")


# ── what stands ──────────────────────────────────────────────────────────────────────────


async def test_the_next_process_goes_on_where_the_last_one_stopped() -> None:
    async with motet.local(2) as overlay:
        alice = await publisher(overlay)
        async with overlay.connect("billing", broker="B2", durable=True) as billing:
            assert not billing.session.resumed
            orders = await billing.subscribe(SPACE, name="orders")
            epoch = billing.session.epoch
            await publish(alice, 1, 10)
            assert await steps(orders, 4) == [1, 2, 3, 4]
        await publish(alice, 11, 20)
        async with overlay.connect("billing", broker="B2", durable=True) as billing:
            assert billing.session.resumed
            assert billing.session.epoch == epoch
            assert [(e.kind, e.name, e.claimed) for e in billing.registrations] == [
                ("subscribe", "orders", False)
            ]
            orders = await billing.subscribe(SPACE, name="orders")
            assert [e.claimed for e in billing.registrations] == [True]
            assert await steps(orders, 16) == list(range(5, 21))


async def test_a_name_belongs_to_one_filter() -> None:
    async with motet.local(1) as overlay:
        async with overlay.connect("c", durable=True) as client:
            await client.subscribe(SPACE, name="orders")
            await client.advertise("step > 5")
            with pytest.raises(motet.errors.NameTaken, match="this process already"):
                await client.subscribe(SPACE, name="orders")
        async with overlay.connect("c", durable=True) as client:
            with pytest.raises(motet.errors.NameTaken, match="in effect with the filter"):
                await client.subscribe("step > 1", name="orders")
            await client.advertise("step > 5")
            with pytest.raises(motet.errors.NoSuchOperation, match="'orders'"):
                await client.unsubscribe("others")
            await client.unsubscribe("orders")
            await client.subscribe("step > 1", name="orders")
            assert {(e.kind, str(e.filter)) for e in client.registrations} == {
                ("advertise", "step > 5"),
                ("subscribe", "step > 1"),
            }


async def test_an_unclaimed_subscription_keeps_its_events_and_holds_the_stream() -> None:
    window = Limits().window_events
    async with motet.local(1) as overlay:
        alice = await publisher(overlay)
        async with overlay.connect("c", durable=True) as client:
            await client.subscribe(SPACE, name="one")
            await client.subscribe("step > 1", name="two")
        async with overlay.connect("c", durable=True) as client:
            one = await client.subscribe(SPACE, name="one")
            await publish(alice, 1, 3 * window)
            taken = len(await steps(one, window))
            two = await client.subscribe("step > 1", name="two")
            rest = asyncio.ensure_future(steps(one, 3 * window - taken))
            assert await steps(two, 3 * window - 1) == list(range(2, 3 * window + 1))
            assert await rest == list(range(window + 1, 3 * window + 1))


async def test_a_clean_exit_acknowledges_the_last_event_and_an_error_does_not() -> None:
    async with motet.local(1) as overlay:
        alice = await publisher(overlay)
        async with overlay.connect("c", durable=True) as client:
            await client.subscribe(SPACE)
        await publish(alice, 1, 10)
        with suppress(RuntimeError):
            async with overlay.connect("c", durable=True) as client:
                assert await steps(await client.subscribe(SPACE), 3) == [1, 2, 3]
                raise RuntimeError
        async with overlay.connect("c", durable=True) as client:
            assert await steps(await client.subscribe(SPACE), 2) == [3, 4]
        async with overlay.connect("c", durable=True, acknowledge="manual") as client:
            subscription = await client.subscribe(SPACE)
            assert await steps(subscription, 2) == [5, 6]
            client.acknowledge()
            assert await steps(subscription, 2) == [7, 8]
        async with overlay.connect("c", durable=True) as client:
            assert await steps(await client.subscribe(SPACE), 2) == [7, 8]


async def test_events_are_acknowledged_one_by_one_in_any_order() -> None:
    async with motet.local(1) as overlay:
        alice = await publisher(overlay)
        async with overlay.connect("c", durable=True, acknowledge="manual") as client:
            subscription = await client.subscribe(SPACE)
            await publish(alice, 1, 6)
            events = {
                event["step"]: event for event in [await anext(subscription) for _ in "12345"]
            }
            for step in (5, 1, 3):
                events[step].ack()
            assert client.session.cursors[str(events[1].pubend)] == int(events[2].tick or 0) - 1
            events[2].ack()
            events[1].ack()  # twice is harmless
            assert client.session.cursors[str(events[1].pubend)] == int(events[4].tick or 0) - 1
        async with overlay.connect("c", durable=True) as client:
            # What was acknowledged beyond the first that was not comes again.
            assert await steps(await client.subscribe(SPACE), 3) == [4, 5, 6]


async def test_an_event_is_acknowledged_before_the_next_one_is_asked_for() -> None:
    async with motet.local(1) as overlay:
        alice = await publisher(overlay)
        client = await overlay.connect("c", durable=True)
        subscription = await client.subscribe(SPACE)
        await publish(alice, 1, 3)
        event = await anext(subscription)
        assert client.session.cursors[str(event.pubend)] < int(event.tick or 0)
        event.ack()
        assert client.session.cursors[str(event.pubend)] >= int(event.tick or 0)
        motet.Event({"step": 1}).ack()  # of no subscription: harmless
        await client.close(acknowledge=False)
        async with overlay.connect("c", durable=True) as client:
            assert await steps(await client.subscribe(SPACE), 2) == [2, 3]


# ── who may have it ──────────────────────────────────────────────────────────────────────


async def test_a_new_process_fences_the_old_one_and_keeps_the_session() -> None:
    async with motet.local(1) as overlay:
        alice = await publisher(overlay)
        old = await overlay.connect("c", durable=True)
        subscription = await old.subscribe(SPACE)
        await publish(alice, 1, 3)
        assert await steps(subscription, 2) == [1, 2]
        old.acknowledge()
        async with overlay.connect("c", durable=True) as new:
            assert new.session.epoch == old.session.epoch
            await eventually(lambda: old.closed)
            with pytest.raises(motet.errors.Fenced):
                await old.subscribe("step > 7")
            assert await steps(await new.subscribe(SPACE), 1) == [3]


async def test_a_durable_session_cannot_be_ended_by_accident() -> None:
    async with motet.local(2) as overlay:
        async with overlay.connect("c", broker="B1", durable=True) as client:
            await client.subscribe(SPACE)
            with pytest.raises(motet.errors.SessionIsDurable, match="durable=True"):
                await overlay.connect("c", broker="B1")
            assert client.connected
        for durable in (False, True):
            with pytest.raises(motet.errors.ClientElsewhere, match="is at B1"):
                await overlay.connect("c", broker="B2", durable=durable)
        async with overlay.connect("c", broker="B1", durable=True) as client:
            assert client.session.resumed
            await client.close(discard_session=True)
        async with overlay.connect("c", broker="B2", durable=True) as client:
            assert not client.session.resumed
            assert client.registrations == ()


async def test_a_session_without_a_process_expires() -> None:
    async with motet.local(1) as overlay:
        driver = overlay.drivers["B1"]
        async with overlay.connect("c", durable=True, keep=0.05) as client:
            await client.subscribe(SPACE)
        await eventually(lambda: driver.core.status()["session_count"] == 0)
        assert driver.core.status()["tables"]["subscriptions"] == 0
        async with overlay.connect("c", durable=True) as client:
            assert not client.session.resumed
            assert client.registrations == ()


async def test_mistakes_are_named_where_they_are_made() -> None:
    async with motet.local(1) as overlay:
        for wrong, complaint in (
            ({"durable": True, "keep": 0}, "keep"),
            ({"keep": 60}, "add `durable=True`, or omit `keep`"),
            ({"durable": False, "keep": 7 * 86_400.0}, "add `durable=True`"),
            ({"cursors": {"B1.1": "7"}}, "cursor of B1.1"),
            ({"cursors": 7}, "cursors map"),
            ({"acknowledge": "never"}, "acknowledge"),
        ):
            with pytest.raises(motet.errors.MisuseError, match=complaint):
                await overlay.connect("c", **wrong)
        with pytest.raises(motet.errors.MisuseError, match="client_id"):
            await motet.connect(overlay.address("B1"), durable=True)
        async with overlay.connect("c") as client:
            for since, complaint in (
                ("yesterday", "beginning"),
                (datetime(2020, 1, 1), "time zone"),
            ):
                with pytest.raises(motet.errors.MisuseError, match=complaint):
                    await client.subscribe(SPACE, since=since)  # type: ignore[arg-type]
            with pytest.raises(motet.errors.MisuseError, match="a name"):
                await client.subscribe(SPACE, name="")


# ── publishing ───────────────────────────────────────────────────────────────────────────


async def test_a_publisher_finds_out_what_is_durable_and_publishes_nothing_twice() -> None:
    async with motet.local(2) as overlay:
        bob = await overlay.connect("bob", broker="B2")
        subscription = await bob.subscribe(SPACE)
        source = range(1, 501)
        for part in (100, 250, 400, 500):
            feed = await overlay.connect("feed", durable=True)
            await feed.advertise(SPACE)
            for step in source[feed.session.published : part]:
                await feed.send({"step": step})
            crash(feed)  # nobody has waited for receipts
        async with overlay.connect("feed", durable=True) as feed:
            for step in source[feed.session.published :]:
                await feed.send({"step": step})
        assert await steps(subscription, 500) == list(source)
        await asyncio.sleep(0.05)
        assert subscription.buffered == 0


# ── the past ─────────────────────────────────────────────────────────────────────────────


async def test_a_subscription_with_since_reads_past_events_and_then_live_ones(
    tmp_path: Path,
) -> None:
    async with motet.local(3, data=tmp_path) as overlay:
        alice = await publisher(overlay)
        await publish(alice, 1, 50)
        between = datetime.now(UTC)
        await asyncio.sleep(0.01)
        await publish(alice, 51, 100)
        reader = await overlay.connect("reader", broker="B3")
        everything = await reader.subscribe(SPACE, since="beginning")
        late = await overlay.connect("late", broker="B2")
        half = await late.subscribe("step > 0 and step < 1000", since=between)
        local = await overlay.connect("local", broker="B1")
        with pytest.raises(motet.errors.MisuseError, match="lies in the future"):
            await local.subscribe(SPACE, since=between + timedelta(hours=1))
        west = timezone(timedelta(hours=-12))
        with pytest.raises(motet.errors.MisuseError, match="future: 9999-12-31"):
            await local.subscribe(SPACE, since=datetime.max.replace(tzinfo=west))
        ahead = datetime.now(UTC) + timedelta(seconds=0.5)  # clocks may differ a little
        latest = await local.subscribe(SPACE, since=ahead)
        await publish(alice, 101, 150)
        assert await steps(everything, 150) == list(range(1, 151))
        assert await steps(half, 100) == list(range(51, 151))
        assert await steps(latest, 50) == list(range(101, 151))
        assert (everything.lost, half.lost, latest.lost) == (0, 0, 0)


async def test_since_is_refused_after_a_client_has_received_events(tmp_path: Path) -> None:
    async with motet.local(1, data=tmp_path) as overlay:
        alice = await publisher(overlay)
        await publish(alice, 1, 10)
        reader = await overlay.connect("reader")
        subscription = await reader.subscribe(SPACE)
        await publish(alice, 11, 11)
        assert await steps(subscription, 1) == [11]
        with pytest.raises(motet.errors.TooLate, match="or use another client"):
            await reader.subscribe("step > 1", since="beginning")
        careful = await overlay.connect("careful", cursors={})
        one = await careful.subscribe(SPACE, since="beginning")
        two = await careful.subscribe("step > 5", since="beginning")
        assert await steps(two, 6) == list(range(6, 12))
        assert await steps(one, 11) == list(range(1, 12))


async def test_own_cursors_bridge_the_end_of_a_session(tmp_path: Path) -> None:
    async with motet.local(2, data=tmp_path) as overlay:
        alice = await publisher(overlay)
        keeper = await overlay.connect("keeper", broker="B2", durable=True)
        await keeper.subscribe(SPACE)  # reads nothing, so that the log is kept
        async with overlay.connect("c", broker="B2", durable=True, keep=0.05) as client:
            subscription = await client.subscribe(SPACE)
            await publish(alice, 1, 10)
            assert await steps(subscription, 7) == list(range(1, 8))
            cursors = dict(subscription.cursors)
        await eventually(lambda: overlay.drivers["B2"].core.clients.keys() == {"keeper"})
        await publish(alice, 11, 15)
        async with overlay.connect("c", broker="B2", durable=True, cursors=cursors) as client:
            assert not client.session.resumed
            subscription = await client.subscribe(SPACE)
            second = await client.subscribe("step > 8")
            await publish(alice, 16, 20)
            assert await steps(subscription, 14) == list(range(7, 21))
            assert await steps(second, 12) == list(range(9, 21))
            assert subscription.lost == 0


async def test_a_cursor_older_than_the_log_is_a_loss() -> None:
    """A broker without a folder lets go of what everybody has, but for what it remembers."""
    count = Limits().memory_events + 1000
    async with motet.local(2) as overlay:
        alice = await publisher(overlay)
        async with overlay.connect("c", broker="B2") as client:
            subscription = await client.subscribe(SPACE)
            reading = asyncio.ensure_future(steps(subscription, count))
            await publish(alice, 1, count)
            assert await reading == list(range(1, count + 1))
            (pubend,) = client.session.cursors
        core = overlay.drivers["B1"].core
        await eventually(lambda: core.done_with() >= core.streams.last_tick)
        log = overlay.drivers["B1"]._pubend
        assert log is not None
        log.acknowledged(core.done_with())
        async with overlay.connect("c", broker="B2", cursors={pubend: 1}) as client:
            subscription = await client.subscribe(SPACE, on_loss="raise")
            with pytest.raises(motet.errors.EventsLost):
                await steps(subscription, 1)
            (first,) = await steps(subscription, 1)
            assert isinstance(first, int)
            assert first > 1
            assert await steps(subscription, count - first) == list(range(first + 1, count + 1))


async def test_a_loss_before_a_subscription_is_taken_up_is_told_in_its_place() -> None:
    async with motet.local(1) as overlay:
        alice = await publisher(overlay)
        async with overlay.connect("c", durable=True) as client:
            await client.subscribe(SPACE, name="raised")
            await client.subscribe(SPACE, name="counted")
        await publish(alice, 1, 1)
        async with overlay.connect("c", durable=True) as client:
            client._driver.arrivals.missed(Missed("B1.1", 7, 9))
            raised = await client.subscribe(SPACE, name="raised", on_loss="raise")
            counted = await client.subscribe(SPACE, name="counted")
            with pytest.raises(motet.errors.EventsLost, match="from tick 7 to 9"):
                await steps(raised, 1)
            assert await steps(raised, 1) == [1]
            assert await steps(counted, 1) == [1]
            assert (raised.lost, counted.lost) == (1, 1)


# ── brokers that die ─────────────────────────────────────────────────────────────────────


async def test_the_broker_remembers_all_of_it(tmp_path: Path) -> None:
    async with DurableBroker(tmp_path) as broker:
        async with motet.connect(broker.address, client_id="alice", durable=True) as alice:
            await alice.advertise(SPACE)
            async with motet.connect(broker.address, client_id="c", durable=True) as client:
                subscription = await client.subscribe(SPACE, name="s")
                await client.subscribe("step > 3", name="unused", since="beginning")
                await publish(alice, 1, 10)
                assert await steps(subscription, 4) == [1, 2, 3, 4]
            await publish(alice, 11, 20)
        broker.kill()
        await broker.start()
        async with motet.connect(broker.address, client_id="alice", durable=True) as alice:
            assert (alice.session.resumed, alice.session.published) == (True, 20)
            assert [e.name for e in alice.registrations] == [SPACE]
            await publish(alice, 21, 25)
        async with motet.connect(broker.address, client_id="c", durable=True) as client:
            assert client.session.resumed
            await client.unsubscribe("unused")
            subscription = await client.subscribe(SPACE, name="s")
            assert await steps(subscription, 21) == list(range(5, 26))


def test_the_same_without_await() -> None:
    with motet.local_sync(1) as overlay:
        alice = overlay.connect("alice")
        alice.advertise(SPACE)
        with overlay.connect("c", durable=True) as client:
            subscription = client.subscribe(SPACE, name="s")
            alice.send({"step": 1})
            alice.send({"step": 2})
            assert subscription.get(timeout=PATIENCE_S)["step"] == 1
        with overlay.connect("c", durable=True) as client:
            assert client.session.resumed
            assert [e.name for e in client.registrations] == ["s"]
            subscription = client.subscribe(SPACE, name="s")
            assert subscription.get(timeout=PATIENCE_S)["step"] == 2
            assert set(subscription.cursors) == set(client.session.cursors)
            client.unsubscribe("s")
            assert client.registrations == ()
            client.close(discard_session=True)
        with overlay.connect("c") as client:
            assert not client.session.resumed
