"""JetStream, the streams of NATS that keep messages: `jetstream://host:port/STREAM`."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from motet.errors import Disconnected, MisuseError, NoAnswer, NotOffered, UnavailableError
from motet.ordering.services.base import CALL_TIMEOUT_S, Notify, Service, Url
from motet.ordering.services.nats import (
    ADVICE,
    PATTERNS,
    PORT,
    NatsLink,
    check_topic,
    header_in,
    headers_of,
)
from motet.ordering.services.reconnection import Reconnecting, ServiceConnection

KEEP_S = 24 * 3600.0
"""How long a stream that we make keeps messages: longer than any interruption."""
HEARTBEAT_S = 2.0
SILENCE_S = 7.0
ABANDONED_S = 30.0
REQUEST_S = 3.0
AT_ONCE = 64
"""Consumers that are made at the same time."""
CONTROL = "100"
MOST_HEADER_BYTES = 60_000
"""JetStream takes 64 KiB of headers, with their names."""


def jetstream(url: str) -> Service:
    """The subject of a topic is `STREAM.topic`, and the stream is made if there is none. With
    `?prefix=p.` it is `p.topic`; `?prefix=` leaves topics as they are, for a stream that exists.

    Each topic has a consumer that starts again, after any gap, behind the last message that came.
    So nothing is lost that the stream still has.
    """
    at = Url(url, PORT, options=("prefix",))
    stream, prefix = at.path, at.option("prefix")
    if not stream or any(char in stream for char in " .*>/\\\t"):
        raise MisuseError(f"{url!r} must name a stream: jetstream://{at.server}/EVENTS")
    if prefix is None:
        prefix = f"{stream}."
    name = f"JetStream at {at.server}"
    positions = Positions()

    def connect(notify: Notify) -> ServiceConnection:
        link = NatsLink(at, name)
        return JetStreamConnection(link, name, stream, prefix, positions, notify)

    return Reconnecting(
        name,
        f"{ADVICE.format(port=at.port)} -js",
        connect,
        check_topic,
        patterns=PATTERNS,
        most_header_bytes=MOST_HEADER_BYTES,
        lossless=True,
        forget=positions.forget,
    )


class Positions:
    """What outlives a connection: how far each topic has come in the stream."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.created: datetime.datetime | None = None

    def forget(self, topic: str) -> None:
        self.last.pop(topic, None)

    def of_stream(self, created: datetime.datetime | None) -> None:
        """A stream that was made anew has only messages that have not come yet."""
        if self.created is not None and created != self.created:
            self.last = dict.fromkeys(self.last, 0)
        self.created = created


class JetStreamConnection(ServiceConnection):
    def __init__(
        self,
        link: NatsLink,
        name: str,
        stream: str,
        prefix: str,
        positions: Positions,
        notify: Notify,
    ) -> None:
        self.link = link
        self.stream = stream
        self.prefix = prefix
        self.positions = positions
        self.notify = notify
        self._name = name
        self._js: JetStreamContext
        self._consumers: dict[str, Consumer] = {}
        self._inbox = ""
        self._sent = 0
        self._open: dict[str, tuple[float, asyncio.Future[None]]] = {}
        self._accepted = b'{"stream":"%s"' % stream.encode()
        self._watch: asyncio.Task[None] | None = None

    @property
    def js(self) -> JetStreamContext:
        return self._js

    async def open(self) -> None:
        await self.link.open()
        self.most_bytes = self.link.nc.max_payload
        self._js = self.link.nc.jetstream(timeout=REQUEST_S)
        try:
            self.positions.of_stream(await self._created())
        except (nats.js.errors.ServiceUnavailableError, nats.errors.NoRespondersError) as error:
            raise NotOffered(
                f"{self._name}: the server runs without it; start it with -js"
            ) from error
        except (nats.js.errors.APIError, nats.errors.Error) as error:
            raise Disconnected(f"{self._name} does not answer: {error}") from error
        self._inbox = self.link.nc.new_inbox()
        await self.link.subscribe(f"{self._inbox}.*", self._acknowledged)
        self._watch = asyncio.create_task(self._look())

    async def _created(self) -> datetime.datetime | None:
        try:
            return (await self._js.stream_info(self.stream)).created
        except nats.js.errors.NotFoundError:
            if not self.prefix:
                raise MisuseError(
                    f"{self._name} has no stream {self.stream}; make it with the subjects "
                    "that you need, or leave out `prefix`"
                ) from None
        with suppress(nats.js.errors.BadRequestError):  # another one has just made it
            await self._js.add_stream(
                name=self.stream, subjects=[f"{self.prefix}>"], max_age=KEEP_S
            )
        return (await self._js.stream_info(self.stream)).created

    async def subscribe(self, topics: Sequence[str]) -> None:
        new = [topic for topic in topics if topic not in self._consumers]
        for at in range(0, len(new), AT_ONCE):
            await asyncio.gather(*[self._consume(topic) for topic in new[at : at + AT_ONCE]])

    async def _consume(self, topic: str) -> None:
        consumer = Consumer(self, topic)
        try:
            await consumer.start()
        except nats.js.errors.APIError as error:
            raise UnavailableError(
                f"{self._name} makes no consumer of {topic!r}: {error.description}"
            ) from error
        except nats.errors.Error as error:
            raise self.link.failure(error) from error
        self._consumers[topic] = consumer

    async def unsubscribe(self, topic: str) -> None:
        consumer = self._consumers.pop(topic, None)
        if consumer is not None:
            await consumer.end()

    async def publish(self, topic: str, body: bytes, header: str = "") -> None:
        future = self.link.answers.expect()
        self._sent += 1
        token = str(self._sent)
        self._open[token] = (asyncio.get_running_loop().time() + CALL_TIMEOUT_S, future)
        try:
            reply, headers = f"{self._inbox}.{token}", headers_of(header)
            await self.link.nc.publish(self.prefix + topic, body, reply=reply, headers=headers)
            await future
        except nats.errors.Error as error:
            raise self.link.failure(error) from error
        finally:
            self._open.pop(token, None)

    async def _acknowledged(self, message: Msg) -> None:
        _, _, token = message.subject.rpartition(".")
        _, future = self._open.get(token, (0.0, None))
        if future is None or future.done():
            return
        if message.data.startswith(self._accepted):
            future.set_result(None)
        else:
            future.set_exception(self._refusal(message))

    def _refusal(self, message: Msg) -> MisuseError | UnavailableError:
        if not message.data:
            return UnavailableError(f"{self._name}: no stream takes it now")
        answer = msgspec.json.decode(message.data)
        if "error" in answer:
            return UnavailableError(
                f"{self._name} refuses it: {answer['error'].get('description')}"
            )
        return MisuseError(
            f"{self._name}: stream {answer.get('stream')} takes it, not {self.stream}"
        )

    async def broken(self) -> str:
        return await asyncio.shield(self.link.answers.broken)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self.link.close()

    async def _look(self) -> None:
        """Give up answers and heartbeats that do not come."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEARTBEAT_S / 2)
            now = loop.time()
            for until_s, future in list(self._open.values()):
                if until_s > now:
                    break
                if not future.done():
                    future.set_exception(
                        NoAnswer(f"{self._name} did not answer in {CALL_TIMEOUT_S:g} s")
                    )
            for consumer in self._consumers.values():
                if now - consumer.heard_s > SILENCE_S:
                    self.link.answers.fail(f"nothing comes for topic {consumer.topic!r}")


class Consumer:
    """An ephemeral consumer that pushes the messages of one topic or pattern, numbered without a
    gap."""

    def __init__(self, connection: JetStreamConnection, topic: str) -> None:
        self.topic = topic
        self.heard_s = 0.0
        self._at = connection
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._name = ""
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        at, last = self._at, self._at.positions.last
        inbox = at.link.nc.new_inbox()
        self._subscription = await at.link.subscribe(inbox, self._take)
        config = ConsumerConfig(
            deliver_subject=inbox,
            filter_subject=at.prefix + self.topic,
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.NEW,
            idle_heartbeat=HEARTBEAT_S,
            flow_control=True,
            inactive_threshold=ABANDONED_S,
            mem_storage=True,
            num_replicas=1,
            max_deliver=1,
        )
        if self.topic in last:
            config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = last[self.topic] + 1
        self.heard_s = self._loop.time()
        info = await at.js.add_consumer(at.stream, config)
        self._name = info.name
        if info.delivered is not None:
            # what has come meanwhile is beyond
            last.setdefault(self.topic, info.delivered.stream_seq)

    async def end(self) -> None:
        with suppress(nats.errors.Error, nats.js.errors.APIError):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            await self._at.js.delete_consumer(self._at.stream, self._name)

    async def _take(self, message: Msg) -> None:
        self.heard_s = self._loop.time()
        if message.headers and message.headers.get("Status") == CONTROL:
            await self._control(message, message.headers)
            return
        # $JS.ACK.stream.consumer.deliveries.position.number.time.left; newer servers may put
        # domain and account before the stream
        tokens = message.reply.split(".")
        at = 5 if len(tokens) == 9 else 7
        self._number += 1
        if int(tokens[at + 1]) != self._number:
            self._at.link.answers.fail(f"messages of topic {self.topic!r} are missing")
        if not self._at.link.answers.broken.done():
            self._at.positions.last[self.topic] = int(tokens[at])
            topic = message.subject.removeprefix(self._at.prefix)
            self._at.notify(topic, message.data, header_in(message))

    async def _control(self, message: Msg, headers: dict[str, str]) -> None:
        answer_to = message.reply or headers.get("Nats-Consumer-Stalled")
        with suppress(nats.errors.Error):
            if answer_to:
                await self._at.link.nc.publish(answer_to)
        sent = headers.get("Nats-Last-Consumer")
        if sent is not None and int(sent) != self._number:
            self._at.link.answers.fail(f"messages of topic {self.topic!r} are missing")
