"""What every event service must do under ordering. Subclass `ServiceSuite`, or `ServerSuite` if the
service is a process, which can be killed."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from motet.errors import ClosedError, Disconnected, MisuseError, NotOffered, UnavailableError
from motet.ordering import Topic, connect
from motet.ordering.services import Service, service_of
from tests.servers import Server, free_port
from tests.unit.ordering.line import running_line
from tests.waiting import PATIENCE_S, eventually

LARGE_BYTES = 100 * 1024
MANY_TOPICS = 300
MANY_EVENTS = 10_000
UNDER_WAY = 500

_numbers = count()


def topic_of(text: str) -> str:
    """A topic that no other test has, on servers that live for several tests."""
    return f"{text}{next(_numbers)}"


class Member:
    """A service, and what comes from it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.came: dict[str, list[bytes]] = defaultdict(list)
        self.headers: dict[str, list[str]] = defaultdict(list)
        self.interruptions: list[str] = []

    async def open(self) -> Member:
        await self.service.open(self.notified, self.interrupted)
        return self

    def notified(self, topic: str, body: bytes, header: str = "", /) -> None:
        self.came[topic].append(body)
        self.headers[topic].append(header)

    def interrupted(self, why: str) -> None:
        self.interruptions.append(why)


@asynccontextmanager
async def member(url: str) -> AsyncIterator[Member]:
    service = service_of(url)
    try:
        yield await Member(service).open()
    finally:
        await service.close()


async def publish_all(service: Service, messages: list[tuple[str, bytes]]) -> None:
    """Hand them over in sequence, with many under way."""
    room = asyncio.Semaphore(UNDER_WAY)

    async def publish(topic: str, body: bytes) -> None:
        try:
            await service.publish(topic, body)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for topic, body in messages:
            await room.acquire()
            group.create_task(publish(topic, body))


class ServiceSuite:
    refused: ClassVar[tuple[str, ...]] = ()
    """Topics that the service cannot have."""
    malformed: ClassVar[tuple[str, ...]] = ()
    """URLs of its scheme that are none."""
    has_headers: ClassVar[bool] = True
    pattern: ClassVar[str] = ""
    """One that the service has, with `NAME` in it; empty: it has none."""
    matched: ClassVar[tuple[str, ...]] = ()
    """Topics that fit."""
    unmatched: ClassVar[tuple[str, ...]] = ()
    no_patterns: ClassVar[tuple[str, ...]] = ()
    """What the service does not take for a pattern."""
    many_events: ClassVar[int] = MANY_EVENTS

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    async def test_a_message_comes_to_every_subscriber_and_to_nobody_else(self, url: str) -> None:
        topic = topic_of("orders")
        async with member(url) as one, member(url) as two, member(url) as three:
            await one.service.subscribe(topic)
            await two.service.subscribe(topic)
            await three.service.subscribe(topic_of("others"))
            await one.service.publish(topic, b"hello")
            await eventually(lambda: one.came and two.came)
            assert one.came == two.came == {topic: [b"hello"]}
            assert not three.came

    async def test_a_subscription_is_effective_when_subscribe_returns(self, url: str) -> None:
        async with member(url) as subscriber, member(url) as publisher:
            topics = [topic_of("effective") for _ in range(50)]
            for topic in topics:
                await subscriber.service.subscribe(topic)
                await publisher.service.publish(topic, b"at once")
            await eventually(lambda: len(subscriber.came) == len(topics))
            assert subscriber.came == {topic: [b"at once"] for topic in topics}

    async def test_nothing_comes_after_an_unsubscription(self, url: str) -> None:
        kept, dropped = topic_of("kept"), topic_of("dropped")
        async with member(url) as subscriber, member(url) as publisher:
            for topic in (kept, dropped):
                await subscriber.service.subscribe(topic)
                await publisher.service.publish(topic, b"1")
            await eventually(lambda: len(subscriber.came) == 2)
            await subscriber.service.unsubscribe(dropped)
            await subscriber.service.unsubscribe(topic_of("never subscribed"))
            await publisher.service.publish(dropped, b"2")
            await publisher.service.publish(kept, b"2")
            await eventually(lambda: len(subscriber.came[kept]) == 2)
            await subscriber.service.subscribe(dropped)
            await publisher.service.publish(dropped, b"3")
            await eventually(lambda: len(subscriber.came[dropped]) == 2)
            assert subscriber.came[dropped] == [b"1", b"3"]

    async def test_a_topic_may_be_subscribed_twice(self, url: str) -> None:
        topic = topic_of("twice")
        async with member(url) as one:
            await one.service.subscribe(topic)
            await one.service.subscribe(topic)
            await one.service.publish(topic, b"1")
            await eventually(lambda: one.came)
            assert set(one.came[topic]) == {b"1"}

    async def test_many_topics(self, url: str) -> None:
        topics = [topic_of("many") for _ in range(MANY_TOPICS)]
        async with member(url) as subscriber, member(url) as publisher:
            await asyncio.gather(*[subscriber.service.subscribe(topic) for topic in topics])
            await publish_all(publisher.service, [(topic, topic.encode()) for topic in topics])
            await eventually(lambda: len(subscriber.came) == MANY_TOPICS)
            assert subscriber.came == {topic: [topic.encode()] for topic in topics}

    async def test_events_of_a_topic_come_in_order(self, url: str) -> None:
        topics = [topic_of("order") for _ in range(4)]
        bodies = [b"%d" % number for number in range(self.many_events // len(topics))]
        async with member(url) as subscriber, member(url) as publisher:
            for topic in topics:
                await subscriber.service.subscribe(topic)
            messages = [(topic, body) for body in bodies for topic in topics]
            await publish_all(publisher.service, messages)
            await eventually(lambda: sum(map(len, subscriber.came.values())) >= self.many_events)
            assert subscriber.came == dict.fromkeys(topics, bodies)

    async def test_bodies_are_any_bytes(self, url: str) -> None:
        topic = topic_of("bytes")
        bodies = [bytes(range(256)), b"", b"\r\n", b"\0" * 1000, "Zürich".encode(), b"0" * 65_536]
        async with member(url) as one:
            await one.service.subscribe(topic)
            for body in bodies:
                await one.service.publish(topic, body)
            await eventually(lambda: len(one.came[topic]) == len(bodies))
            assert one.came[topic] == bodies

    async def test_large_bodies(self, url: str) -> None:
        topic = topic_of("large")
        bodies = [bytes([number]) * LARGE_BYTES for number in range(20)]
        async with member(url) as subscriber, member(url) as publisher:
            await subscriber.service.subscribe(topic)
            await publish_all(publisher.service, [(topic, body) for body in bodies])
            await eventually(lambda: len(subscriber.came[topic]) == len(bodies))
            assert subscriber.came[topic] == bodies
            with pytest.raises(MisuseError, match="at most"):
                await publisher.service.publish(topic, b"0" * (publisher.service.most_bytes + 1))
            await publisher.service.publish(topic, b"0" * LARGE_BYTES)

    async def test_a_header_travels_beside_the_body(self, url: str) -> None:
        topic, header = topic_of("headers"), '[3,17,[5,9],["größe \\"1\\""]];0a'
        async with member(url) as one:
            await one.service.subscribe(topic)
            await one.service.publish(topic, b"without")
            if not self.has_headers:
                with pytest.raises(NotOffered, match="no headers"):
                    await one.service.publish(topic, b"with", header)
                return
            await one.service.publish(topic, b"with", header)
            await one.service.publish(topic, b"", "[1,1]")
            await eventually(lambda: len(one.came[topic]) == 3)
            assert one.came[topic] == [b"without", b"with", b""]
            assert one.headers[topic] == ["", header, "[1,1]"]
            longest = one.service.most_header_bytes
            with pytest.raises(MisuseError, match="at most"):
                await one.service.publish(topic, b"", "[" * (longest + 1))
            if longest + 1000 < one.service.most_bytes:
                await one.service.publish(topic, b"long", "[" * longest)
                await eventually(lambda: one.came[topic][-1] == b"long")
                assert one.headers[topic][-1] == "[" * longest

    async def test_readers_understand_headers_and_envelopes(self, url: str) -> None:
        """Two publishers, one of which leaves payloads alone for others."""
        topics = [topic_of("mixed"), topic_of("mixed")]
        async with running_line("a") as line:
            where = {"sequencer": line.address}
            if not self.has_headers:
                with pytest.raises(NotOffered, match="no headers"):
                    await connect(url, headers=True, **where)
                return
            async with (
                member(url) as other,
                connect(url, headers=True, **where) as one,
                connect(url, **where) as two,
                one.subscribe(*topics) as first,
                two.subscribe(*topics) as second,
            ):
                await other.service.subscribe(topics[0])
                await asyncio.gather(
                    *(
                        client.publish(topics[number % 2], b"%s %d" % (name, number))
                        for number in range(40)
                        for client, name in ((one, b"one"), (two, b"two"))
                    )
                )
                seen = [
                    [await stream.get(PATIENCE_S) for _ in range(80)] for stream in (first, second)
                ]
                assert seen[0] == seen[1]
                assert not any(event.late or event.number is None for event in seen[0])
                plain = {b"one %d" % number for number in range(0, 40, 2)}
                await eventually(lambda: plain <= set(other.came[topics[0]]))
                headers = dict(zip(other.came[topics[0]], other.headers[topics[0]], strict=True))
                assert all(headers[body].startswith("[") for body in plain)
                assert one.forged_events == two.forged_events == one.foreign_events == 0

    async def test_a_pattern_is_many_topics(self, url: str) -> None:
        name = topic_of("many")
        pattern = (self.pattern or "NAME.>").replace("NAME", name)
        async with member(url) as one:
            if not self.pattern:
                with pytest.raises(NotOffered, match="no patterns"):
                    await one.service.subscribe_pattern(pattern)
                return
            for wrong in self.no_patterns:
                with pytest.raises(MisuseError, match="pattern"):
                    await one.service.subscribe_pattern(wrong)
            await one.service.subscribe_pattern(pattern)
            matched = [each.replace("NAME", name) for each in self.matched]
            unmatched = [each.replace("NAME", name) for each in self.unmatched]
            for topic in (*unmatched, *matched):
                await one.service.publish(topic, topic.encode())
            await eventually(lambda: len(one.came) == len(matched))
            assert one.came == {topic: [topic.encode()] for topic in matched}
            for topic in (*matched, *unmatched):
                assert one.service.matches(pattern, topic) == (topic in matched)
            await one.service.unsubscribe(pattern)
            await one.service.subscribe(matched[0])
            await one.service.publish(matched[-1], b"nobody")
            await one.service.publish(matched[0], b"last")
            await eventually(lambda: one.came[matched[0]][-1] == b"last")
            assert one.came[matched[-1]][-1] != b"nobody"

    async def test_subjects_of_a_pattern_are_one_topic_with_one_count(self, url: str) -> None:
        name = topic_of("orders")
        pattern = (self.pattern or "NAME.>").replace("NAME", name)
        async with running_line("a") as line, connect(url, sequencer=line.address) as one:
            topic = Topic(name, pattern=pattern)
            if not self.pattern:
                with pytest.raises(NotOffered, match="no patterns"):
                    await one.subscribe(topic)
                return
            async with (
                connect(url, sequencer=line.address) as two,
                one.subscribe(topic) as first,
                two.subscribe(topic) as second,
            ):
                subjects = [each.replace("NAME", name) for each in self.matched]
                for at in range(10):
                    subject = subjects[at % len(subjects)]
                    await (one, two)[at % 2].publish(name, subject.encode(), subject=subject)
                for stream in (first, second):
                    seen = [await stream.get(PATIENCE_S) for _ in range(10)]
                    assert [(each.topic, each.number) for each in seen] == [
                        (name, number) for number in range(1, 11)
                    ]
                assert one.foreign_events == one.forged_events == 0

    async def test_topics_have_any_usual_name(self, url: str) -> None:
        topics = [topic_of(text) for text in ("a.b.c", "a/b/c", "Größe-1", "a_b:c@d", "T")]
        async with member(url) as one:
            for topic in topics:
                await one.service.subscribe(topic)
                await one.service.publish(topic, b"1")
            await eventually(lambda: len(one.came) == len(topics))
            assert one.came == {topic: [b"1"] for topic in topics}

    async def test_topics_that_the_service_cannot_have_are_refused(self, url: str) -> None:
        async with member(url) as one:
            for topic in ("", "x" * 2000, *self.refused):
                with pytest.raises(MisuseError, match="topic"):
                    await one.service.subscribe(topic)
                with pytest.raises(MisuseError, match="topic"):
                    await one.service.publish(topic, b"1")

    async def test_a_publication_that_is_cancelled_disturbs_no_other(self, url: str) -> None:
        topic = topic_of("cancelled")
        async with member(url) as one:
            await one.service.subscribe(topic)
            calls = [
                asyncio.create_task(one.service.publish(topic, b"%d" % number))
                for number in range(20)
            ]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            await asyncio.wait(calls)
            assert not [call for call in calls[1::2] if call.exception() is not None]
            await eventually(lambda: {b"%d" % n for n in range(1, 20, 2)} <= set(one.came[topic]))

    async def test_nothing_runs_after_close(self, url: str) -> None:
        before = asyncio.all_tasks()
        topic = topic_of("end")
        service = service_of(url)
        one = await Member(service).open()
        await service.subscribe(topic)
        await service.publish(topic, b"1")
        await eventually(lambda: one.came)
        await service.close()
        await service.close()
        await eventually(lambda: asyncio.all_tasks() == before)
        for call in (service.subscribe(topic), service.publish(topic, b""), one.open()):
            with pytest.raises((ClosedError, MisuseError)):
                await call
        assert not one.interruptions

    async def test_before_open_nothing_works(self, url: str) -> None:
        service = service_of(url)
        for call in (service.subscribe("t"), service.unsubscribe("t"), service.publish("t", b"")):
            with pytest.raises(ClosedError, match="not open"):
                await call
        await service.close()

    def test_malformed_urls_are_refused(self) -> None:
        assert self.malformed
        for url in self.malformed:
            with pytest.raises(MisuseError) as raised:
                service_of(url)
            assert url in str(raised.value)


class ServerSuite(ServiceSuite):
    scheme: ClassVar[str]
    advice = "start one with"
    kills: ClassVar[int] = 2

    @staticmethod
    def server(folder: Path) -> Server:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def running(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        server = cls.server(tmp_path_factory.mktemp("server"))
        server.start()
        yield server
        server.stop()

    @pytest.fixture(autouse=True)
    def there_again(self, running: Server) -> None:
        """Also after a test that has failed while it was killed."""
        try:
            socket.create_connection(("127.0.0.1", running.port)).close()
        except OSError:
            running.kill()
            running.start()

    @pytest.fixture
    def url(self, running: Server) -> str:
        return running.url

    async def test_a_server_that_is_killed_and_comes_back(self, running: Server) -> None:
        topic = topic_of("killed")
        before = asyncio.all_tasks()
        async with member(running.url) as subscriber, member(running.url) as publisher:
            await subscriber.service.subscribe(topic)
            await publisher.service.publish(topic, b"before")
            await eventually(lambda: subscriber.came)
            running.kill()

            calls: list[asyncio.Task[None]] = []

            async def refuses() -> bool:
                calls.append(asyncio.create_task(publisher.service.publish(topic, b"meanwhile")))
                await asyncio.wait(calls[-1:], timeout=0.2)
                return calls[-1].done() and isinstance(calls[-1].exception(), Disconnected)

            await eventually(refuses)
            later = topic_of("later")
            waiting = asyncio.create_task(subscriber.service.subscribe(later))
            assert not subscriber.interruptions
            await asyncio.to_thread(running.start)
            await waiting
            await eventually(lambda: subscriber.interruptions and publisher.interruptions)
            for each in (topic, later):
                await publisher.service.publish(each, b"after")
            await eventually(lambda: subscriber.came[later] and b"after" in subscriber.came[topic])
            assert subscriber.came[topic][0] == b"before"
            assert all(subscriber.interruptions)
            await asyncio.gather(*calls, return_exceptions=True)
        await eventually(lambda: asyncio.all_tasks() == before)

    async def test_what_a_lossless_service_has_taken_comes(self, running: Server) -> None:
        topic = topic_of("taken")
        taken: list[bytes] = []
        async with member(running.url) as subscriber, member(running.url) as publisher:
            await subscriber.service.subscribe(topic)

            async def publish() -> None:
                for number in count():
                    body = b"%d" % number
                    try:
                        await publisher.service.publish(topic, body)
                    except UnavailableError:
                        await asyncio.sleep(0.01)
                    else:
                        taken.append(body)

            publishing = asyncio.create_task(publish())
            for _ in range(self.kills):
                before = len(taken)
                await eventually(lambda before=before: len(taken) >= before + 100)
                told = len(publisher.interruptions), len(subscriber.interruptions)
                running.kill()
                await asyncio.to_thread(running.start)
                await eventually(
                    lambda told=told: (
                        len(publisher.interruptions) > told[0]
                        and len(subscriber.interruptions) > told[1]
                    )
                )
            before = len(taken)
            await eventually(lambda: len(taken) >= before + 100)
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
            await eventually(lambda: taken[-1] in subscriber.came[topic])
            if publisher.service.lossless:
                await eventually(lambda: set(taken) <= set(subscriber.came[topic]))
            firsts = list(dict.fromkeys(subscriber.came[topic]))
            assert firsts == sorted(firsts, key=int)

    async def test_nobody_is_there(self) -> None:
        service = service_of(self.url_at(free_port()))
        began_s = time.monotonic()
        with pytest.raises(Disconnected, match="does not answer") as raised:
            await Member(service).open()
        assert service.name in str(raised.value)
        assert self.advice in str(raised.value)
        assert time.monotonic() - began_s < PATIENCE_S
        await service.close()

    async def test_who_is_there_says_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("reconnection", "motet"):
            monkeypatch.setattr(f"motet.ordering.services.{module}.OPEN_TIMEOUT_S", 0.3)
        before = asyncio.all_tasks()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            service = service_of(self.url_at(silent.getsockname()[1]))
            with pytest.raises(Disconnected, match="answer"):
                await Member(service).open()
            await service.close()
        await eventually(lambda: asyncio.all_tasks() == before)

    def url_at(self, port: int) -> str:
        return f"{self.scheme}://127.0.0.1:{port}"
