"""The client against real sites and a service within this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from motet import ordering
from motet.errors import (
    AddressError,
    AnotherLine,
    ClosedError,
    MisuseError,
    NoAnswer,
    NotAuthorised,
    NotPublished,
    SlowConsumer,
    TopicRefused,
    VersionError,
    Voided,
    WindowFull,
)
from motet.ordering import OrderedEvent, OrderedStream, Topic
from motet.ordering.client import connect
from motet.ordering.services.memory import MemoryService
from motet.protocol.sequencing.messages import PAIRS
from motet.protocol.session.messages import Farewell
from motet.runtime.codec import encode
from motet.runtime.inproc import InprocTransport
from motet.runtime.transport import Connection
from tests.unit.ordering.line import RunningLine, running_line
from tests.waiting import PATIENCE_S, eventually

T = TypeVar("T")
CHAOTIC = "?delay=0.01&doubles=0.2"


async def soon(work: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wait_for(work, PATIENCE_S)


async def taken(stream: OrderedStream, count: int) -> list[OrderedEvent]:
    return [await stream.get(PATIENCE_S) for _ in range(count)]


def names(events: list[OrderedEvent], *topics: str) -> list[tuple[str, int | None]]:
    return [(each.topic, each.number) for each in events if not topics or each.topic in topics]


@pytest.fixture
async def line() -> AsyncIterator[RunningLine]:
    async with running_line("a", "b", "c") as made:
        yield made


@pytest.mark.parametrize("mode", ["causal", "pairs"])
async def test_two_streams_get_common_events_in_one_order(mode: str) -> None:
    async with (
        running_line("a", "b", "c", mode=mode) as line,
        await line.client("x", CHAOTIC) as x,
        await line.client("y", CHAOTIC) as y,
        x.subscribe("a.one", "b.two") as first,
        y.subscribe("a.one", "b.two", "c.three") as second,
    ):
        receipts = await soon(
            asyncio.gather(
                *(
                    client.publish(topic, f"{client.client_id}{number}".encode())
                    for number in range(20)
                    for client in (x, y)
                    for topic in ("a.one", "b.two", "c.three")
                )
            )
        )
        assert len({(each.topic, each.number) for each in receipts}) == 120
        got, other = await taken(first, 80), await taken(second, 120)
        assert names(got) == names(other, "a.one", "b.two")
        assert not any(each.late for each in got + other)
        mine = [each.payload for each in got if each.topic == "a.one" and each.payload[:1] == b"x"]
        assert mine == [f"x{number}".encode() for number in range(20)], "its own order holds"


async def test_effects_come_behind_their_causes(line: RunningLine) -> None:
    async with (
        await line.client("x", CHAOTIC) as x,
        await line.client("y", CHAOTIC) as y,
        await line.client("z", CHAOTIC) as z,
        y.subscribe("c.cause") as reader,
        z.subscribe("c.cause", "a.effect") as watcher,
    ):
        for _ in range(20):
            await soon(x.publish("c.cause", b"cause"))
            await reader.get(PATIENCE_S)
            await soon(y.publish("a.effect", b"effect"))
        got = [each.payload for each in await taken(watcher, 40)]
        for at in range(40):
            assert got[: at + 1].count(b"effect") <= got[: at + 1].count(b"cause")


async def test_topics_are_added_and_dropped_while_events_come(line: RunningLine) -> None:
    async with (
        await line.client("x", CHAOTIC) as x,
        await line.client("y", CHAOTIC) as y,
        x.subscribe("a.one", "b.two") as steady,
        y.subscribe("b.two") as moving,
    ):
        publishing = asyncio.gather(
            *(x.publish(topic, b"") for _ in range(50) for topic in ("a.one", "b.two"))
        )
        cut = await soon(moving.add("a.one"))
        await soon(moving.drop("b.two"))
        await soon(publishing)
        last = await soon(x.publish("a.one", b"last"))
        got = []
        while not got or (got[-1].topic, got[-1].number) != ("a.one", last.number):
            got.append(await moving.get(PATIENCE_S))
        all_of_them = await taken(steady, 101)
        order = names(all_of_them)
        assert names(got) == [each for each in order if each in set(names(got))]
        assert names(got, "a.one") == [("a.one", number) for number in range(cut + 1, 52)]
        assert moving.topics == ("a.one",)


async def test_a_site_that_restarts_is_waited_for(line: RunningLine) -> None:
    async with (
        await line.client("x") as x,
        await line.client("y", CHAOTIC) as y,
        y.subscribe("a.one", "b.two") as stream,
    ):
        await soon(x.publish("a.one", b"0"))
        await line.stop("b")
        publishing = asyncio.gather(
            *(x.publish(topic, b"") for _ in range(10) for topic in ("a.one", "b.two"))
        )
        await line.start("b")
        receipts = await soon(publishing)
        assert len({(each.topic, each.number) for each in receipts}) == 20
        got = await taken(stream, 21)
        assert [n for t, n in names(got) if t == "b.two"] == list(range(1, 11))
        assert not any(each.late for each in got)


async def test_the_entry_site_may_go_away_and_come_back(line: RunningLine) -> None:
    async with await line.client("x") as x, x.subscribe("c.three") as stream:
        await line.stop("a")
        assert (await soon(x.publish("c.three", b"1"))).number == 1
        assert (await stream.get(PATIENCE_S)).payload == b"1"
        await line.start("a")
        assert (await soon(x.publish("a.one", b"2"))).number == 1


class Slow(MemoryService):
    """A service whose calls take long, or fail, for once."""

    pause_s = 0.0
    refusal = ""

    async def publish(self, topic: str, body: bytes) -> None:
        pause_s, self.pause_s = self.pause_s, 0.0
        refusal, self.refusal = self.refusal, ""
        if refusal:
            raise MisuseError(refusal)
        await asyncio.sleep(pause_s)
        await super().publish(topic, body)


async def test_an_event_that_is_published_too_late_is_void_and_comes_tagged() -> None:
    async with running_line("a", lease_s=0.4) as line:
        slow = Slow(line.service)
        async with (
            connect(slow, sequencer=line.address, client_id="x") as x,
            await line.client("y", patience=0.05) as y,
            y.subscribe("a.one") as stream,
        ):
            slow.pause_s = 1.5
            with pytest.raises(Voided):
                await soon(x.publish("a.one", b"void", timeout=PATIENCE_S))
            assert (await soon(x.publish("a.one", b"next"))).number == 2
            got = await taken(stream, 2)
            assert {(each.payload, each.number, each.late) for each in got} in (
                {(b"next", 2, False), (b"void", 1, True)},
                {(b"next", 2, False), (b"void", 1, False)},  # it came before the question
            )


async def test_what_the_service_refuses_is_told_and_its_number_passed(line: RunningLine) -> None:
    slow = Slow(line.service)
    async with (
        connect(slow, sequencer=line.address, client_id="x") as x,
        x.subscribe("a.one") as stream,
    ):
        slow.refusal = "too hot"
        with pytest.raises(NotPublished, match="too hot"):
            await soon(x.publish("a.one", b"1"))
        assert (await soon(x.publish("a.one", b"2"))).number == 2
        got = await stream.get(PATIENCE_S)
        assert (got.number, got.late) == (2, False)
        assert stream.lost == 0


async def test_a_publisher_that_dies_stops_nobody_for_longer_than_its_lease() -> None:
    async with running_line("a", lease_s=0.3) as line:
        slow = Slow(line.service)
        async with (
            connect(slow, sequencer=line.address, client_id="x") as x,
            await line.client("y", patience=0.05) as y,
            y.subscribe("a.one") as stream,
        ):
            slow.pause_s = 1000.0
            sent = await x.send("a.one", b"never")
            await eventually(lambda: line.drivers["a"].core.site.far.get(0) == 1)
            await soon(y.publish("a.one", b"alive"))
            got = await stream.get(PATIENCE_S)
            assert (got.payload, got.number) == (b"alive", 2)
            assert not sent.settled


async def test_an_expired_stream_joins_anew_and_counts_a_gap() -> None:
    async with (
        running_line("a", keep_s=0.4) as line,
        await line.client("x") as x,
        x.subscribe("a.one") as stream,
    ):
        x.machine.keep_s = 1000.0  # it says nothing
        former = stream.id
        await eventually(lambda: not line.drivers["a"].core.site.homes)
        publishing = asyncio.ensure_future(x.publish("a.one", b"1"))
        await eventually(lambda: stream.id != former)
        await soon(publishing)
        assert stream.gaps == 1
        assert (await stream.get(PATIENCE_S)).payload == b"1"
        await soon(x.publish("a.one", b"2"))
        second = await stream.get(PATIENCE_S)
        assert (second.payload, second.late) == (b"2", False)


async def test_foreign_events_are_tagged(line: RunningLine) -> None:
    stranger = MemoryService(line.service)
    await stranger.open(lambda *_: None, lambda _: None)
    async with await line.client("x") as x, x.subscribe("a.one") as stream:
        await stranger.publish("a.one", b"plain")
        got = await stream.get(PATIENCE_S)
        assert got == OrderedEvent("a.one", b"plain", None)
        assert x.foreign_events == 1
    await stranger.close()


class Patterned(MemoryService):
    """Messages of every topic that begins as the pattern does."""

    def check_pattern(self, pattern: str) -> None:
        assert pattern.endswith(">")

    def matches(self, pattern: str, topic: str) -> bool:
        return topic.startswith(pattern[:-1])

    async def subscribe_pattern(self, pattern: str) -> None:
        self._topics.add(pattern)

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        assert not header
        for member in self._joined[self._key]:
            if any(each.endswith(">") and topic.startswith(each[:-1]) for each in member._topics):
                assert member._notify is not None
                member._notify(topic, body)


async def test_many_subjects_are_one_topic_with_one_count(line: RunningLine) -> None:
    service = Patterned(line.service)
    orders = Topic("a.orders", pattern="orders.>")
    async with (
        connect(service, sequencer=line.address) as x,
        x.subscribe(orders) as stream,
    ):
        for region in ("north", "south"):
            await soon(x.publish("a.orders", region.encode(), subject=f"orders.{region}"))
        await service.publish("orders.west", b"foreign")
        got = await taken(stream, 3)
        assert [(each.topic, each.payload, each.number) for each in got] == [
            ("a.orders", b"north", 1),
            ("a.orders", b"south", 2),
            ("a.orders", b"foreign", None),
        ]
        with pytest.raises(TopicRefused, match="has pattern"):
            await x.subscribe("a.orders")


async def test_sending_is_flushed_and_bounded(line: RunningLine) -> None:
    async with await line.client("x", window=8) as x, x.subscribe("a.one") as stream:
        for number in range(50):
            await soon(x.send("a.one", str(number).encode()))
            assert x.unconfirmed <= 8
        await x.flush(timeout=PATIENCE_S)
        assert x.unconfirmed == 0
        assert [int(each.payload) for each in await taken(stream, 50)] == list(range(50))
        for _ in range(8):
            x.send_nowait("a.one", b"")
        with pytest.raises(WindowFull):
            x.send_nowait("a.one", b"")


async def test_flush_raises_what_nobody_awaited_once(line: RunningLine) -> None:
    async with await line.client("x") as x:
        await x.send("a.*", b"")
        with pytest.raises(TopicRefused):
            await x.flush(timeout=PATIENCE_S)
        await x.flush(timeout=PATIENCE_S)


async def test_a_consumer_that_does_not_read_is_ended(line: RunningLine) -> None:
    async with await line.client("x", buffer=10) as x:
        stream = await x.subscribe("a.one")
        for _ in range(20):
            await soon(x.publish("a.one", b""))
        with pytest.raises(SlowConsumer):
            await taken(stream, 20)


async def test_a_closed_client_ends_its_streams(line: RunningLine) -> None:
    x = await line.client("x")
    stream = await x.subscribe("a.one")
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await x.close()
    with pytest.raises(StopAsyncIteration):
        await soon(reading)
    with pytest.raises(ClosedError):
        await x.publish("a.one", b"")
    with pytest.raises(ClosedError):
        await stream.add("b.two")
    await x.close()


async def test_a_closed_stream_leaves_its_sites(line: RunningLine) -> None:
    async with await line.client("x") as x:
        async with x.subscribe("a.one", "b.two"):
            assert line.drivers["b"].core.site.groups.noted
        await eventually(lambda: not line.drivers["b"].core.site.groups.noted)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"service": "carrier-pigeon://coop"}, MisuseError, "must begin with one of"),
        ({"sequencer": ""}, MisuseError, "address of a site"),
        ({"sequencer": "nowhere"}, AddressError, "is not an address"),
        ({"window": 0}, MisuseError, "window"),
        ({"buffer": 0}, MisuseError, "buffer"),
        ({"foreign": "eaten"}, MisuseError, "foreign"),
        ({"client_id": ""}, MisuseError, "client_id"),
        ({"patience": -1.0}, MisuseError, "patience"),
        ({"sequencer": "inproc://nobody", "timeout": 0.2}, NoAnswer, "motet sequencer"),
    ],
)
async def test_misuse_of_connect_is_named(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = {"service": "memory://misuse", "sequencer": "inproc://nobody", **options}
    with pytest.raises(error, match=words):
        await connect(given.pop("service"), **given)


class Refusing:
    """A process that says farewell to every frame."""

    def __init__(self, connection: Connection, error: str) -> None:
        self._connection = connection
        self._error = error

    def frames(self, bodies: Sequence[bytes]) -> None:
        del bodies
        self._connection.send([encode(Farewell(self._error, "not here"))])
        self._connection.close()

    def closed(self, reason: str) -> None:
        """It is stateless."""

    def writable(self) -> None:
        """It sends little."""


async def test_a_standby_refuses_and_the_next_address_is_tried(line: RunningLine) -> None:
    standby = await InprocTransport().listen(
        "inproc://standby", lambda connection: Refusing(connection, "NoClientsHere")
    )
    both = f"{standby.address}, {line.address}"
    async with connect(line.service, sequencer=both, timeout=PATIENCE_S) as client:
        assert (await soon(client.publish("a.one", b""))).number == 1
    await standby.close()


@pytest.mark.parametrize("error", [NotAuthorised, VersionError])
async def test_a_refusal_for_good_is_raised_at_once(error: type[Exception]) -> None:
    refusing = await InprocTransport().listen(
        "inproc://refusing", lambda connection: Refusing(connection, error.__name__)
    )
    with pytest.raises(error, match="not here"):
        await connect("memory://x", sequencer=refusing.address, timeout=PATIENCE_S)
    await refusing.close()


async def test_payloads_are_bytes(line: RunningLine) -> None:
    async with await line.client("x") as x:
        with pytest.raises(MisuseError, match="bytes"):
            await x.publish("a.one", "text")  # type: ignore[arg-type]
        assert (await x.publish("a.one", bytearray(b"x"))).number == 1  # type: ignore[arg-type]


async def test_a_site_of_another_line_ends_the_client(line: RunningLine) -> None:
    async with await line.client("x") as x, x.subscribe("a.one") as stream:
        await line.stop("a")
        del line.durables["a"]
        old = line.configs["a"]
        line.configs["a"] = type(old)("a", ("a",), mode=PAIRS)
        line.addresses = {"a": line.addresses["a"]}
        await line.start("a")
        await eventually(lambda: x.closed)
        with pytest.raises(AnotherLine):
            await stream.get(PATIENCE_S)


def test_the_client_without_await_does_the_same() -> None:
    """Sites run on the loop of another thread; only a socket reaches them."""
    ready, over = threading.Event(), threading.Event()
    found: dict[str, str] = {}

    async def serve() -> None:
        line = RunningLine("a")
        line.addresses["a"] = "motet://127.0.0.1:0"
        await line.start("a")
        found["address"] = line.drivers["a"].address
        ready.set()
        await asyncio.to_thread(over.wait, PATIENCE_S)
        await line.stop("a")

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        with (
            ordering.connect_sync("memory://sync", sequencer=found["address"]) as client,
            client.subscribe("one", "two") as stream,
        ):
            assert client.publish("one", b"1").number == 1
            sent = client.send("two", b"2")
            client.flush()
            assert sent.wait().number == 1
            assert [stream.get(PATIENCE_S).payload for _ in range(2)] == [b"1", b"2"]
            assert stream.add("three") == 0
            stream.drop("one")
            assert stream.topics == ("two", "three")
            assert list(stream.events(0.01)) == []
            with pytest.raises(TimeoutError):
                stream.get(0.01)
        assert client.closed
        with pytest.raises(ClosedError):
            client.publish("one", b"")
    finally:
        over.set()
        thread.join(PATIENCE_S)


class DeafService(MemoryService):
    """It never answers."""

    async def open(self, *_: object) -> None:
        await asyncio.Event().wait()


async def test_a_service_that_does_not_answer_is_named(line: RunningLine) -> None:
    service = DeafService("memory://deaf")
    with pytest.raises(NoAnswer, match=rf"{service.name} does not answer within 0\.2 s"):
        await connect(service, sequencer=line.addresses["a"], timeout=0.2)
