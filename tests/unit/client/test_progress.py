"""What the application is done with, over all its subscriptions, and how the broker hears of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from motet.client import subscription as subscription_module
from motet.client.loop_guard import LoopGuard
from motet.client.registrations import Arrivals, check_callback
from motet.client.session.machine import ClientMachine
from motet.client.session.state import Arrived, Missed, StreamBatch
from motet.client.subscription import Callback, OnLoss, Progress, Registration, Subscription, finish
from motet.errors import EventsLost, MisuseError
from motet.model import EVERYTHING, Event, encode_event
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Processed, Welcome
from tests.waiting import PATIENCE_S


async def _nothing(entry: Registration, wait: str, timeout: float) -> None:
    del entry, wait, timeout


def publications(ticks: list[int]) -> list[Publication]:
    return [Publication("bob", tick, Raw(encode_event({"step": tick}, b""))) for tick in ticks]


class Scene:
    """A client's machine with what stands between it and the application. No broker."""

    def __init__(self, *, manual: bool = False) -> None:
        self.machine = ClientMachine("alice")
        self.machine.opened()
        self.machine.received(Welcome("B1", "B1-1", False, 0, 30.0))
        self.machine.take()
        self.sent: list[Frame] = []
        self.told = asyncio.Event()
        self.entries: dict[int, Registration] = {}
        self.progress = Progress(self.machine, self._carry_out, LoopGuard(), manual=manual)
        self.arrivals = Arrivals(self.entries, self.progress)

    def _carry_out(self) -> None:
        self.sent += self.machine.take().send
        self.told.set()

    def subscribe(
        self, callback: Callback | None = None, on_loss: OnLoss = "count", buffer: int = 100
    ) -> Subscription:
        entry = Subscription(
            EVERYTHING,
            _nothing,
            buffer=buffer,
            callback=callback,
            on_loss=on_loss,
            progress=self.progress,
        )
        handle = self.machine.request("subscribe", EVERYTHING)
        self.machine.take()
        self.entries[handle] = entry
        return entry

    def deliver(
        self,
        *ticks: int,
        pubend: str = "p",
        each: list[tuple[int, ...]] | None = None,
        lost: tuple[tuple[int, int], ...] = (),
        upto: int = 0,
    ) -> None:
        """To everybody, if nothing else is said."""
        every = () if each else tuple(self.entries)
        batch = publications(list(ticks))
        upto = upto or ticks[-1]
        self.machine.received(Delivered(pubend, upto, list(ticks), batch, every, each or [], lost))
        for happening in self.machine.take().happened:
            if isinstance(happening, StreamBatch):
                self.arrivals.brought(happening)
            elif isinstance(happening, Missed):
                self.arrivals.missed(happening)

    def processed(self) -> dict[str, int]:
        """What the broker would know, if it were told now."""
        self.progress.tell()
        return {frame.pubend: frame.upto for frame in self.sent if isinstance(frame, Processed)}


async def step(subscription: Subscription) -> int:
    value = (await anext(subscription))["step"]
    assert isinstance(value, int)
    return value


# ── positions ────────────────────────────────────────────────────────────────────────────


async def test_an_event_is_processed_when_the_next_one_is_requested() -> None:
    scene = Scene()
    subscription = scene.subscribe()
    scene.deliver(3, 5, 8, upto=9)
    assert scene.processed() == {"p": 2}
    assert await step(subscription) == 3
    assert scene.processed() == {"p": 2}
    assert await step(subscription) == 5
    assert scene.processed() == {"p": 4}
    assert await step(subscription) == 8
    assert scene.processed() == {"p": 7}
    waiting = asyncio.ensure_future(step(subscription))
    await asyncio.sleep(0)
    assert scene.processed() == {"p": 9}
    scene.deliver(12)
    assert await waiting == 12


async def test_the_slowest_subscription_counts() -> None:
    scene = Scene()
    slow, quick = scene.subscribe(), scene.subscribe()
    scene.deliver(1, 2, 3, 4, each=[(1, 2), (2,), (1,), (2,)])
    assert [await step(quick) for _ in range(3)] == [1, 2, 4]
    assert quick.get_nowait() is None
    assert scene.processed() == {}  # nothing before tick 1
    assert await step(slow) == 1
    assert await step(slow) == 3
    assert scene.processed() == {"p": 2}
    assert slow.get_nowait() is None
    assert scene.processed() == {"p": 4}


async def test_the_slowest_subscription_determines_progress() -> None:
    scene = Scene()
    first, second = scene.subscribe(), scene.subscribe()
    scene.deliver(1, 2, 3, 4)
    assert [await step(first) for _ in range(3)] == [1, 2, 3]
    assert [await step(second) for _ in range(2)] == [1, 2]
    assert scene.processed() == {"p": 1}
    assert [await step(second) for _ in range(2)] == [3, 4]
    assert scene.processed() == {"p": 2}


async def test_pubends_and_best_effort_events_do_not_disturb_each_other() -> None:
    scene = Scene()
    subscription = scene.subscribe()
    best_effort = publications([100])[0]
    subscription._arrive(best_effort)
    scene.deliver(3, 4)
    subscription._arrive(best_effort)
    scene.deliver(1, pubend="q")
    scene.deliver(6)
    expected = [
        (100, {"p": 2}),
        (3, {"p": 2}),
        (4, {"p": 3}),
        (100, {"p": 5}),
        (1, {"p": 5}),
        (6, {"p": 5, "q": 1}),
    ]
    for value, processed in expected:
        assert (await step(subscription), scene.processed()) == (value, processed)


async def test_events_know_their_place() -> None:
    scene = Scene()
    subscription = scene.subscribe()
    scene.deliver(7)
    subscription._arrive(publications([1])[0])
    sure, best_effort = await anext(subscription), await anext(subscription)
    assert (sure.pubend, sure.tick, sure.sequence) == ("p", 7, 7)
    assert (best_effort.pubend, best_effort.tick) == (None, None)


async def test_a_subscription_that_is_over_holds_nothing_back() -> None:
    scene = Scene()
    subscription, other = scene.subscribe(), scene.subscribe()
    scene.deliver(3, 4)
    assert [await step(other), await step(other), other.get_nowait()] == [3, 4, None]
    assert scene.processed() == {"p": 2}
    subscription._end(None)
    assert scene.processed() == {"p": 4}
    assert await step(subscription) == 3  # what is buffered can still be read


async def test_events_without_a_subscription_are_processed_at_once() -> None:
    scene = Scene()
    scene.deliver(3, 4)
    await asyncio.wait_for(scene.told.wait(), PATIENCE_S)
    assert scene.sent == [Processed("p", 4)]


async def test_cursors_outlive_the_session_that_they_were_made_in() -> None:
    scene = Scene()
    subscription = scene.subscribe()
    scene.deliver(3, 4, 5)
    await step(subscription)
    await step(subscription)
    assert scene.progress.cursors() == {"p": 3}
    scene.machine.closed()
    scene.machine.opened()
    scene.machine.received(Welcome("B1", "B1-2", False, 0, 30.0))
    await step(subscription)
    assert scene.progress.cursors() == {"p": 4}
    scene.sent.clear()
    assert scene.processed() == {}  # the broker knows nothing of that stream


@given(st.lists(st.tuples(st.sampled_from("bpqtw"), st.integers(1, 2)), max_size=60))
def test_positions_equal_those_of_a_simple_model(moves: list[tuple[str, int]]) -> None:
    """b: a best-effort event, p and q: one of these pubends, for one subscription or both, t: the
    application takes one, w: it takes all and waits."""
    guard = SimpleNamespace(foreign=None)
    idle: Any = SimpleNamespace(
        armed=True, begun=True, manual=False, guard=guard
    )  # tells no broker
    entries = {n: Subscription(EVERYTHING, _nothing, progress=idle) for n in (1, 2)}
    waiting: dict[int, list[tuple[str, int]]] = {1: [], 2: []}
    in_hand: dict[int, list[tuple[str, int]]] = {1: [], 2: []}
    tick = 0
    for move, which in moves:
        tick += 1
        if move == "b":
            entries[which]._arrive(publications([tick])[0])
            waiting[which].append(("", tick))
        elif move in "pq":
            ticks = [tick, tick + 1]
            tick += 1
            for each in range(which, 3):
                entries[each]._bring(move, ticks, publications(ticks))
                waiting[each] += [(move, tick) for tick in ticks]
        else:
            count = 1 if move == "t" else len(waiting[which]) + 1
            for _ in range(count):
                event = entries[which].get_nowait()
                in_hand[which] = waiting[which][:1]
                assert (event is None) == (not in_hand[which])
                del waiting[which][:1]
        for each, entry in entries.items():
            first: dict[str, int] = defaultdict(int)
            for pubend, owed in reversed(in_hand[each] + waiting[each]):
                first[pubend] = owed - 1
            first.pop("", None)
            assert entry._owed() == first


# ── telling ──────────────────────────────────────────────────────────────────────────────


async def test_the_broker_is_told_without_being_asked() -> None:
    scene = Scene()
    subscription = scene.subscribe()
    scene.deliver(3, 4)
    assert [await step(subscription), await step(subscription)] == [3, 4]
    waiting = asyncio.ensure_future(step(subscription))
    async with asyncio.timeout(PATIENCE_S):
        while Processed("p", 4) not in scene.sent:
            scene.told.clear()
            await scene.told.wait()
    waiting.cancel()


async def test_progress_is_reported_in_few_frames() -> None:
    scene = Scene()
    subscription = scene.subscribe()
    for batch in range(100):
        scene.deliver(*range(100 * batch + 1, 100 * batch + 101))
    for _ in range(10_000):
        await anext(subscription)
    breaths = 10_000 // subscription_module.BREATH
    scene.progress.tell()
    assert 0 < len(scene.sent) <= 2 * breaths + 2
    assert scene.sent[-1] == Processed("p", 9_999)


async def test_an_event_is_processed_when_its_callback_returns() -> None:
    scene = Scene()
    seen: list[object] = []
    go_on = asyncio.Event()

    async def on_event(event: Event) -> None:
        seen.append(event["step"])
        if event["step"] == 4:
            await go_on.wait()

    subscription = scene.subscribe(on_event)
    scene.deliver(3, 4, 5)
    while 4 not in seen:
        await asyncio.sleep(0)
    assert scene.processed() == {"p": 3}
    go_on.set()
    while subscription.buffered:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert scene.processed() == {"p": 5}
    subscription._end(None)
    await finish([subscription])


async def test_an_event_held_by_a_thread_is_not_counted_as_processed() -> None:
    """While a thread holds an event, it does not count as processed."""
    scene = Scene()
    subscription = scene.subscribe()
    scene.deliver(*range(1, 2001))
    assert scene.processed() == {}  # and from now on nobody but the thread asks for it
    early: list[int] = []
    in_hand = 0
    over = threading.Event()

    def read() -> None:
        nonlocal in_hand
        while (event := subscription.get_nowait()) is not None:
            assert event.tick is not None
            in_hand = event.tick
        over.set()

    thread = threading.Thread(target=read)
    thread.start()
    while not over.is_set():
        owed = subscription._owed().get("p")
        if owed is not None and owed > in_hand:
            early.append(owed)
        await asyncio.sleep(0)
    thread.join()
    assert early == []
    async with asyncio.timeout(PATIENCE_S):  # the thread has asked for it
        while Processed("p", 2000) not in scene.sent:
            scene.told.clear()
            await scene.told.wait()


async def test_a_closed_client_reports_no_progress() -> None:
    scene = Scene()
    subscription = scene.subscribe()
    scene.deliver(3, 4)
    scene.progress.close()
    assert subscription.get_nowait() is not None
    assert scene.progress.armed  # so nobody arms it again
    await asyncio.sleep(0)
    assert scene.sent == []


# ── losses ───────────────────────────────────────────────────────────────────────────────


async def test_losses_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    subscription = scene.subscribe()
    with caplog.at_level(logging.WARNING, "motet.client"):
        scene.deliver(3, 9, lost=((1, 2), (4, 7)))
    assert (subscription.lost, scene.arrivals.lost_events) == (2, 2)
    assert ["from tick 1 to 2" in caplog.text, "from tick 4 to 7" in caplog.text] == [True] * 2
    assert [await step(subscription), await step(subscription)] == [3, 9]


async def test_losses_are_raised_in_order_if_on_loss_is_raise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "motet.client")
    scene = Scene()
    subscription = scene.subscribe(on_loss="raise")
    scene.deliver(3, 9, lost=((4, 7),))
    scene.deliver(upto=12, lost=((10, 12),))
    assert await step(subscription) == 3
    with pytest.raises(EventsLost) as caught:
        await step(subscription)
    assert (caught.value.pubend, caught.value.first, caught.value.last) == ("p", 4, 7)
    assert scene.processed() == {"p": 3}
    assert await step(subscription) == 9
    assert scene.processed() == {"p": 8}
    with pytest.raises(EventsLost, match="from tick 10 to 12"):
        subscription.get_nowait()
    assert subscription.get_nowait() is None
    assert scene.processed() == {"p": 12}
    assert subscription.lost == 2


@pytest.mark.parametrize("taken_by", ["anext", "get_nowait"])
async def test_a_loss_that_was_raised_needs_no_manual_acknowledgement(
    caplog: pytest.LogCaptureFixture, taken_by: str
) -> None:
    caplog.set_level(logging.CRITICAL, "motet.client")
    scene = Scene(manual=True)
    subscription = scene.subscribe(on_loss="raise")

    async def take() -> Event | None:
        return await anext(subscription) if taken_by == "anext" else subscription.get_nowait()

    scene.deliver(3, lost=((1, 2),))
    scene.deliver(9, upto=10, lost=((4, 7),))
    assert scene.processed() == {}
    with pytest.raises(EventsLost):
        await take()
    assert scene.processed() == {"p": 2}
    event = await take()
    with pytest.raises(EventsLost):
        await take()
    assert scene.processed() == {"p": 2}  # event 3, before the loss, is not acknowledged
    assert event is not None
    event.ack()
    assert scene.processed() == {"p": 8}
    event = await take()
    assert event is not None
    event.ack()
    assert scene.processed() == {"p": 10}


@pytest.mark.parametrize(("on_loss", "callback"), [("ignore", None), ("raise", print)])
def test_on_loss_accepts_two_values(on_loss: str, callback: Callback | None) -> None:
    check_callback(callback, "count")
    with pytest.raises(MisuseError):
        check_callback(callback, on_loss)


# ── the buffer ───────────────────────────────────────────────────────────────────────────


async def test_a_full_buffer_drops_best_effort_events_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "motet.client")
    scene = Scene()
    subscription = scene.subscribe(buffer=2)
    best_effort = publications([100, 101, 102])
    scene.arrivals.arrived(Arrived([((1,), each) for each in best_effort], 0))
    scene.deliver(3, 4)
    scene.arrivals.arrived(Arrived([((1,), best_effort[0])], 5))
    assert (subscription.dropped, scene.arrivals.dropped_by_broker) == (2, 5)
    assert [await step(subscription) for _ in range(4)] == [100, 101, 3, 4]
