"""One real broker process over TCP, spoken to with raw frames: good ones, bad ones, none."""

from __future__ import annotations

import asyncio
import random
import signal
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from motet.broker.core.broker import BrokerCore
from motet.broker.driver import service
from motet.broker.driver.driver import BrokerDriver
from motet.broker.overlay.topology import Wiring
from motet.fleet.process import StartFailed
from motet.model import Filter
from motet.protocol.config import BrokerConfig
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import LinkHello, Publications
from motet.protocol.publication import Publication
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Deliver,
    Done,
    Farewell,
    Goodbye,
    Publish,
    Published,
    SubscribeRequest,
    Welcome,
)
from motet.runtime.codec import encode
from motet.runtime.tcp import host_and_port
from motet.runtime.transport import MAX_FRAME_BYTES
from tests.integration.raw_peer import RawBroker, Speaker, body
from tests.waiting import PATIENCE_S


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RawBroker]:
    async with RawBroker(tmp_path) as broker:
        yield broker
        assert broker.running


async def serves(broker: RawBroker, suffix: str = "") -> None:
    """The broker still does its work for others."""
    publisher = await broker.publisher(f"good-p{suffix}")
    subscriber = await broker.subscriber(f"good-s{suffix}", "x > 1")
    publisher.publish(body(x=1), body(x=2))
    assert (await publisher.hear(Published)).upto == 2
    (delivery,) = (await subscriber.hear(Deliver)).batch
    assert (delivery.publication.publisher, delivery.publication.sequence) == (f"good-p{suffix}", 2)
    assert bytes(delivery.publication.body) == bytes(body(x=2))
    for client in (publisher, subscriber):
        client.say(Goodbye())
        assert (await client.last_word()).error == ""


async def test_hello_advertise_subscribe_publish_deliver(broker: RawBroker) -> None:
    await serves(broker)
    asking = await broker.speaker()
    state = (await asking.status()).state
    assert state["broker"] == "B1"
    assert state["process"]["pid"] == broker.pid
    assert state["process"]["address"] == broker.address
    assert state["traffic"]["events_in"] == 2
    assert state["traffic"]["events_out"] == 1
    asking.close()


async def test_each_kind_of_bad_frame_is_refused_by_name_and_the_broker_keeps_serving(
    broker: RawBroker,
) -> None:
    hello = encode(ClientHello(PROTOCOL_VERSION, "bad"))
    version = encode(ClientHello(99, "bad"))
    link = encode(LinkHello(PROTOCOL_VERSION, "B9", 1, 0, 0))
    old_link = encode(LinkHello(0, "B2", 1, 0, 0))
    cases: list[tuple[list[bytes], str]] = [
        ([b""], "FrameError"),
        ([b"\xc1"], "FrameError"),
        ([hello[:-3]], "FrameError"),
        ([hello + b"?"], "FrameError"),
        ([b"\x92\xa6status\x81\xa1a" + b"\x91" * 100_000], "FrameError"),
        ([msgspec.msgpack.encode(["nonsense", 1])], "FrameError"),
        ([version], "VersionError"),
        ([msgspec.msgpack.encode(["client", 99, {"new": "shape"}])], "VersionError"),
        ([old_link], "VersionError"),
        ([link], "UnknownBroker"),
        ([encode(Goodbye())], "ProtocolError"),
        ([hello, hello], "ProtocolError"),
        ([hello, encode(Done(1))], "ProtocolError"),
        ([hello, encode(Publish(0, [body(x=1)]))], "ProtocolError"),
        ([hello, msgspec.msgpack.encode(["+sub", 1, [[["x", 77]]]])], "FrameError"),
    ]
    for bodies, error in cases:
        speaker = await broker.speaker()
        speaker.say_bytes(*bodies)
        farewell = await last_word(speaker)
        assert (farewell.error, bodies) == (error, bodies)
        assert farewell.text
    await serves(broker)


async def last_word(speaker: Speaker) -> Farewell:
    while isinstance(frame := await speaker.hear_any(), Welcome):
        pass
    assert isinstance(frame, Farewell), frame
    speaker.close()
    return frame


async def test_oversized_and_truncated_frames(broker: RawBroker) -> None:
    large = await broker.speaker()
    large.writer.write(struct.pack(">I", MAX_FRAME_BYTES + 1) + bytes(100_000))
    farewell = await large.last_word()
    assert farewell.error == "FrameError"
    assert "limit" in farewell.text
    short = await broker.speaker()
    short.writer.write(struct.pack(">I", 100) + b"half")
    short.writer.write_eof()
    farewell = await short.last_word()
    assert farewell.error == "FrameError"
    assert "middle of a frame" in farewell.text
    await serves(broker)


async def test_events_outside_the_advertised_space_are_refused_by_name(
    broker: RawBroker,
) -> None:
    publisher = await broker.publisher(space="x > 10")
    publisher.publish(body(x=11), body(x=1), body(y="no x"), msgspec.Raw(b"\xc0"))
    answer = await publisher.hear(Published)
    assert answer.upto == 4
    errors = {refusal.sequence: refusal.error for refusal in answer.refused}
    assert errors == {2: "NotAdvertised", 3: "NotAdvertised", 4: "FrameError"}
    publisher.close()


async def test_a_second_client_of_the_same_id_takes_over(broker: RawBroker) -> None:
    first = await broker.client("same")
    second = await broker.client("same")
    assert (await first.last_word()).error == "Fenced"
    second.close()
    await serves(broker)


async def test_a_hostile_client_does_not_end_the_broker(broker: RawBroker) -> None:
    """Valid hellos, then frames with every kind of damage."""
    chance = random.Random(7)
    odd = [
        msgspec.Raw(msgspec.msgpack.encode([{"x": value}, b""]))
        for value in ([1], {"a": 1}, None, 2**64 - 1, b"bytes", "\x00", float("nan"), -(2**63))
    ]
    good = [
        encode(AdvertiseRequest(1, Filter.parse("x >= 0 or x < 0 or x is not null"))),
        encode(SubscribeRequest(2, Filter.parse("x = 1 or name like 'a%'"))),
        encode(Publish(1, [body(x=1), *odd])),
        encode(Publish(-5, [body(x=1)])),
        encode(Publish(2**62, [body(x=1)])),
    ]
    endings = set()
    for round_ in range(60):
        speaker = await broker.speaker()
        speaker.say(ClientHello(PROTOCOL_VERSION, f"h{round_ % 7}"))
        for each in good:
            damaged = bytearray(each)
            for _ in range(chance.randrange(3)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            speaker.say_bytes(bytes(damaged))
        speaker.writer.write_eof()
        endings.add((await speaker.last_word()).error)
    assert endings == {"FrameError", "ProtocolError"}
    await serves(broker)


async def test_a_hostile_neighbour_does_not_end_the_broker(tmp_path: Path) -> None:
    async with RawBroker(tmp_path, neighbour="B2") as broker:
        subscriber = await broker.subscriber("s", "x > 1 or name = 'a' or x is null")
        for value in ([1], {"a": 1}, None, 2**64 - 1, b"bytes", float("nan")):
            neighbour = await broker.speaker()
            neighbour.say(LinkHello(PROTOCOL_VERSION, "B2", 1, 0, 0))
            await neighbour.hear(LinkHello)
            odd = msgspec.Raw(msgspec.msgpack.encode([{"x": value, "name": value}, b""]))
            neighbour.say(Publications(1, 0, [Publication("p", 1, odd)]))
            neighbour.say_bytes(b"\xc1")
            assert (await neighbour.last_word()).error == "FrameError"
        subscriber.close()
        await serves(broker)


async def test_a_consumer_that_stops_reading_is_visible_and_harms_no_other_client(
    tmp_path: Path,
) -> None:
    async with RawBroker(tmp_path, backlog_bytes=1024 * 1024) as broker:
        publisher = await broker.publisher()
        slow = await broker.subscriber("slow")
        fast = await broker.subscriber("fast")
        # The stream's own buffer takes 128 KiB, the kernel's a few MiB; then the broker's fills.
        batch = [msgspec.Raw(msgspec.msgpack.encode([{"x": 1}, bytes(20_000)]))] * 20
        got = 0
        for _ in range(60):
            publisher.publish(*batch)
            await publisher.hear(Published)
            while got < publisher.published:
                got += len((await fast.hear(Deliver)).batch)
        assert got == 1200
        state = (await publisher.status()).state
        by_name = {each["name"]: each for each in state["connections"]}
        assert by_name["slow"]["dropped_events"] > 0
        assert by_name["slow"]["slow"]
        assert 1024 * 1024 < by_name["slow"]["backlog_bytes"] < 4 * 1024 * 1024
        assert by_name["fast"]["dropped_events"] == 0
        taken = dropped = 0
        while taken + dropped < 1200:
            deliver = await slow.hear(Deliver)
            taken, dropped = taken + len(deliver.batch), deliver.dropped
        assert dropped == by_name["slow"]["dropped_events"]
        for client in (publisher, slow, fast):
            client.close()


async def test_a_port_in_use_is_a_named_error(broker: RawBroker, tmp_path: Path) -> None:
    second = RawBroker(tmp_path / "second", listen=broker.address)
    second.log.parent.mkdir()
    with pytest.raises(StartFailed, match="in use") as failed:
        await second.start()
    second.end()
    assert "addresses look like" in failed.value.hint
    assert failed.value.is_misuse
    assert "Traceback" not in second.said


async def test_a_signal_stops_the_broker_in_an_orderly_way(tmp_path: Path) -> None:
    async with RawBroker(tmp_path) as broker:
        client = await broker.client("c")
        broker.signal(signal.SIGTERM)
        assert (await client.last_word()).error == "Disconnected"
        async with asyncio.timeout(PATIENCE_S):
            await broker.ended()
        assert (broker.exit_status, broker.complaint) == (0, "")
        assert "Traceback" not in broker.said


async def test_a_broken_core_ends_serve_with_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(BrokerCore):
        def step(self, *_: object) -> object:  # type: ignore[override]
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(service, "settle_memory", lambda: None)
    began: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    core = Broken(BrokerConfig("B1"))
    serving = asyncio.create_task(
        service.serve(
            BrokerDriver(core, Wiring("motet://127.0.0.1:0")),
            ready=lambda made: began.set_result(made.address),
        )
    )
    speaker = Speaker(*await asyncio.open_connection(*host_and_port(await began)))
    speaker.say(ClientHello(PROTOCOL_VERSION, "c"))
    assert (await speaker.last_word()).error == "InvariantError"
    assert await asyncio.wait_for(serving, PATIENCE_S) == 1
