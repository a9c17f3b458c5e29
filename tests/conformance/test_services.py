"""Every adapter at a real server of its service."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from motet.errors import MisuseError, NotAuthorised, NotOffered
from motet.ordering.services import service_of
from tests.conformance.service_suite import (
    Member,
    ServerSuite,
    ServiceSuite,
    member,
    publish_all,
    topic_of,
)
from tests.servers import (
    Broker,
    JetStreamServer,
    Mosquitto,
    NatsServer,
    RabbitServer,
    RedisServer,
    Server,
)
from tests.waiting import eventually


class TestMemory(ServiceSuite):
    malformed = ("memory://", "memory://x?delay=soon", "memory://x?doubles=2", "memory://x?y=1")

    @pytest.fixture
    def url(self) -> str:
        return f"memory://{topic_of('memory')}"

    async def test_messages_come_late_and_twice(self) -> None:
        url = "memory://hard?delay=0.02&doubles=0.5&seed=1"
        async with member(url) as one:
            await one.service.subscribe("t")
            bodies = [b"%d" % number for number in range(100)]
            await publish_all(one.service, [("t", body) for body in bodies])
            await eventually(lambda: set(one.came["t"]) == set(bodies))
            await eventually(lambda: len(one.came["t"]) > len(bodies))
            assert list(dict.fromkeys(one.came["t"])) != bodies


class TestNats(ServerSuite):
    scheme = "nats"
    pattern = "NAME.>"
    matched = ("NAME.north", "NAME.south.east")
    unmatched = ("NAME", "NAMEs.north", "other.NAME.north")
    no_patterns = ("", "a b", "a.\n")
    refused = ("a.*", ">", "a b", ".a", "a.", "a..b", "$SYS.x")
    malformed = ("nats://", "nats://127.0.0.1:x", "nats://127.0.0.1:1/x", "nats://h:1?jetstream=x")

    @staticmethod
    def server(folder: Path) -> Server:
        return NatsServer(folder)


class TestJetStream(ServerSuite):
    scheme = "jetstream"
    pattern = "NAME.>"
    matched = ("NAME.north", "NAME.south.east")
    unmatched = ("NAME", "NAMEs.north", "other.NAME.north")
    no_patterns = ("", "a b", "a.\n")
    refused = ("a.*", ">", "a b", ".a", "a.", "a..b", "$SYS.x")
    malformed = ("jetstream://", "jetstream://127.0.0.1:1", "jetstream://127.0.0.1:1/a.b")

    @staticmethod
    def server(folder: Path) -> Server:
        return JetStreamServer(folder)

    def url_at(self, port: int) -> str:
        return f"jetstream://127.0.0.1:{port}/EVENTS"

    async def test_a_stream_of_others_has_to_exist(self, running: Server) -> None:
        service = service_of(running.url.replace("EVENTS", "OTHERS?prefix="))
        with pytest.raises(MisuseError, match="no stream OTHERS"):
            await Member(service).open()
        await service.close()

    async def test_topics_may_be_the_subjects_of_a_stream(self, running: Server) -> None:
        topic = topic_of("plain")
        url = running.url.replace("EVENTS", "EVENTS?prefix=")
        async with member(running.url) as one, member(url) as two:
            await two.service.subscribe(f"EVENTS.{topic}")
            await one.service.publish(topic, b"1")
            await eventually(lambda: two.came)
            assert two.came == {f"EVENTS.{topic}": [b"1"]}

    async def test_nats_without_it_is_named(self, tmp_path: Path) -> None:
        server = NatsServer(tmp_path)
        server.start()
        service = service_of(f"jetstream://127.0.0.1:{server.port}/EVENTS")
        with pytest.raises(NotOffered, match="-js"):
            await Member(service).open()
        await service.close()
        server.stop()


class TestMqtt(ServerSuite):
    scheme = "mqtt"
    pattern = "NAME/#"
    matched = ("NAME/north", "NAME/south/east", "NAME")
    unmatched = ("NAMEs/north", "other/NAME/north")
    no_patterns = ("", "a/#/b", "a#", "a/+b")
    refused = ("a/+", "#")
    malformed = ("mqtt://", "mqtt://127.0.0.1:x", "mqtt://127.0.0.1:1?x=1")

    @staticmethod
    def server(folder: Path) -> Server:
        return Mosquitto(folder)


class TestRedis(ServerSuite):
    scheme = "redis"
    has_headers = False
    pattern = "NAME.[a-z]*th?x\\*"
    matched = ("NAME.north.x*", "NAME.south.east.beth-x*")
    unmatched = ("NAME", "NAME.North.x*", "NAME.north.xy", "other.NAME.north.x*")
    no_patterns = ("", "orders", "a*\n")
    malformed = ("redis://", "redis://127.0.0.1:x", "redis://127.0.0.1:1/x")

    @staticmethod
    def server(folder: Path) -> Server:
        return RedisServer(folder)


class TestRabbitMq(ServerSuite):
    scheme = "amqp"
    refused = ("a.*", "#", "x" * 256)
    malformed = ("amqp://", "amqp://127.0.0.1:x", "amqp://127.0.0.1:1?x=1")
    pattern = "NAME.#"
    matched = ("NAME.north", "NAME.south.east", "NAME")
    unmatched = ("NAMEs.north", "other.NAME.north")
    no_patterns = ("", "a#", "a.*b", "a" * 256)
    kills = 1  # it takes seconds to start
    many_events = 2000

    @staticmethod
    def server(folder: Path) -> Server:
        return RabbitServer(folder)

    async def test_an_exchange_has_to_exist(self, running: Server) -> None:
        service = service_of(f"{running.url}?exchange=nothing")
        with pytest.raises(MisuseError, match="no exchange nothing"):
            await Member(service).open()
        await service.close()

    async def test_an_exchange_has_to_be_one_of_topics(self, running: Server) -> None:
        service = service_of(f"{running.url}?exchange=amq.fanout")
        with pytest.raises(MisuseError, match="type topic"):
            await Member(service).open()
        await service.close()

    async def test_another_user_is_refused(self, running: Server) -> None:
        service = service_of(running.url.replace("://", "://nobody:secret@"))
        with pytest.raises(NotAuthorised, match="refuses this user"):
            await Member(service).open()
        await service.close()


class TestMotet(ServerSuite):
    scheme = "motet"
    advice = "check that the broker runs"
    malformed = ("motet://", "motet://127.0.0.1", "motet://127.0.0.1:x")

    @staticmethod
    def server(folder: Path) -> Server:
        return Broker(folder)


@pytest.mark.parametrize("url", ["kafka://127.0.0.1:1", "nats", "", "://", "127.0.0.1:4222"])
def test_unknown_schemes_are_refused(url: str) -> None:
    with pytest.raises(MisuseError, match="nats://"):
        service_of(url)


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [
        ("nats://127.0.0.1", "nats", "nats"),
        ("jetstream://127.0.0.1/EVENTS", "nats", "nats"),
        ("mqtt://127.0.0.1", "aiomqtt", "mqtt"),
        ("redis://127.0.0.1", "redis", "redis"),
        ("amqp://127.0.0.1", "aio_pika", "rabbitmq"),
    ],
)
def test_a_missing_library_is_named(
    url: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in list(sys.modules):
        if module.startswith((f"{library}.", "motet.ordering.services.")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(NotOffered) as raised:
        service_of(url)
    assert f"pip install 'motet[{extra}]'" in str(raised.value)


class GuardedNats(NatsServer):
    def command(self) -> list[str]:
        return [*super().command(), "--user", "alice", "--pass", "secret"]


class GuardedRedis(RedisServer):
    def command(self) -> list[str]:
        return [*super().command(), "--requirepass", "secret"]


@pytest.mark.parametrize(("kind", "user"), [(GuardedNats, "alice"), (GuardedRedis, "default")])
async def test_a_service_that_refuses_is_named(
    kind: type[Server], user: str, tmp_path: Path
) -> None:
    server = kind(tmp_path)
    server.start()
    try:
        wrong = service_of(server.url.replace("://", f"://{user}:wrong@"))
        with pytest.raises(NotAuthorised, match="refuses"):
            await Member(wrong).open()
        await wrong.close()
        with pytest.raises(NotAuthorised, match="refuses"):
            async with member(server.url) as nobody:
                await nobody.service.subscribe("t")
        async with member(server.url.replace("://", f"://{user}:secret@")) as one:
            await one.service.subscribe("t")
            await one.service.publish("t", b"1")
            await eventually(lambda: one.came)
    finally:
        server.stop()


async def test_what_is_handed_over_in_one_iteration_keeps_its_sequence(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    async with member(server.url) as one:
        await one.service.subscribe("t")
        await asyncio.gather(*[one.service.publish("t", b"%d" % n) for n in range(1000)])
        await eventually(lambda: len(one.came["t"]) == 1000)
        assert one.came["t"] == [b"%d" % n for n in range(1000)]
    server.stop()
