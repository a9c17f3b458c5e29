"""The asyncio client: one `OrderingMachine`, the service below it, and connections to sites.

    async with motet.ordering.connect("nats://127.0.0.1:4222", sequencer="motet://…") as client:
        async with client.subscribe("orders", "prices") as stream:
            await client.publish("orders", b"...")
            async for event in stream: ...

Publications and service calls of one iteration of the loop leave together.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, cast

from motet.audit.recorder import Recording, folder_of
from motet.client.checks import checked_time, checked_wait
from motet.client.client import AwaitableContext, opens
from motet.client.loop_guard import LoopGuard
from motet.errors import (
    ClosedError,
    MisuseError,
    MotetError,
    NoAnswer,
    NotOffered,
    PeerError,
    SlowConsumer,
    TopicRefused,
    WindowFull,
)
from motet.ordering.contract import (
    ENTRY,
    PUBLISH,
    SUBSCRIBE,
    ClientEffects,
    Input,
    MissingNumbers,
    Notified,
    Result,
    ServiceCall,
    ServiceDone,
    ServiceInterrupted,
    SiteClosed,
    SiteConnected,
    SiteFrame,
    Tick,
    WantAdd,
    WantClose,
    WantDrop,
    WantPublish,
    WantStream,
)
from motet.ordering.envelope import LONGEST_KEY, SHORTEST_KEY
from motet.ordering.events import Gap, Joined, LostEvents, OrderedEvent, OrderReceipt
from motet.ordering.history import OrderingHistory
from motet.ordering.machine import COUNTED, TAGGED, OrderingMachine, OrderingOptions
from motet.ordering.services import Service, service_of
from motet.ordering.sites import SiteConnection, addresses_of
from motet.ordering.stream import StreamLimits
from motet.ordering.topics import Topic, as_topic
from motet.protocol.frames import Frame
from motet.protocol.sequencing.messages import MAX_UNSETTLED, OrderWelcome
from motet.runtime.addresses import check_address

log = logging.getLogger("motet.ordering")

CONNECT_S: Final = 10.0
CHANGE_S: Final = 30.0
PUBLISH_S: Final = 60.0
LEAVE_S: Final = 2.0
DEFAULT_WINDOW: Final = 1024
DEFAULT_BUFFER: Final = 100_000
MOST_BUFFER: Final = 10_000_000
MOST_TOPICS: Final = 10_000
"""In all streams of a client together."""
LISTED_LOSSES: Final = 1000
MAX_CLIENT_CHARS: Final = 64
CHECK: Final = "check that `motet sequencer` runs there"
CHECK_SERVICE: Final = "check that such a service runs there"


class SentEvent:
    """An event that `send` has handed over. `await` it for its receipt."""

    __slots__ = ("_done", "awaited")

    def __init__(self, done: asyncio.Future[OrderReceipt]) -> None:
        self._done = done
        self.awaited = False
        """Its caller gets the error; otherwise `flush` raises it."""

    @property
    def settled(self) -> bool:
        return self._done.done()

    def __await__(self) -> Any:
        self.awaited = True
        return asyncio.shield(self._done).__await__()


class OrderedStream(AsyncIterator[OrderedEvent]):
    """Events of its topics, in the one order that all streams share. Made by `subscribe`."""

    def __init__(self, client: OrderingClient, key: int) -> None:
        self._client = client
        self._key = key
        self._ready: deque[OrderedEvent] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._bell: Callable[[], None] | None = None
        self._cut: Mapping[str, int] = {}
        self.error: MotetError | None = None
        """Why it has ended; None while it has not."""
        self.id = ""
        """Its name at the sites. It changes when the stream joins anew."""
        self.lost = 0
        """How many events the service has lost: the stream went on without them."""
        self.gaps = 0
        """How often the stream has lost its place in the order, and joined anew."""
        self.losses: deque[LostEvents | Gap] = deque(maxlen=LISTED_LOSSES)
        """The last losses and gaps."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._cut)

    @property
    def cut(self) -> Mapping[str, int]:
        """By topic: the last number before this stream's last change."""
        return dict(self._cut)

    @property
    def clocks(self) -> Mapping[str, int]:
        """By topic: the last number that was delivered, or passed as void or lost."""
        return self._client.machine.clocks(self._key)

    @property
    def waiting(self) -> list[MissingNumbers]:
        """Numbers that are missing, so that events behind them wait, and since when, on the loop's
        clock."""
        return self._client.machine.waiting(self._key)

    @property
    def forged(self) -> int:
        """Events that somebody has made up: they were dropped. Messages that were refused as they
        came, and claims that a site has refuted."""
        return self._client.machine.forged(self._key)

    @property
    def buffered(self) -> int:
        """Events that the application can take at once."""
        return len(self._ready)

    # ── events ───────────────────────────────────────────────────────────────────────────

    async def get(self, timeout: float | None = None) -> OrderedEvent:
        """The next event; `TimeoutError` if none comes in time, `ClosedError` after the end."""
        timeout = checked_wait(timeout)
        self._client.guard.check()
        while not self._ready:
            if self.error is not None:
                raise self.error
            if self._arrival is None or self._arrival.done():
                self._arrival = asyncio.get_running_loop().create_future()
            arrival = self._arrival
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.shield(arrival)
            except TimeoutError:
                raise TimeoutError(f"no event within {timeout:g} s") from None
        return self._ready.popleft()

    def get_nowait(self) -> OrderedEvent | None:
        return self._ready.popleft() if self._ready else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OrderedEvent:
        if self._ready:
            return self._ready.popleft()
        try:
            return await self.get()
        except ClosedError:
            raise StopAsyncIteration from None

    def _give(self, events: Iterable[OrderedEvent]) -> None:
        self._ready.extend(events)
        self._ring()
        if len(self._ready) > self._client.buffer and self.error is None:
            text = f"{len(self._ready)} events wait; the application did not take them"
            self._client.drop_stream(self, SlowConsumer(text))

    def _ring(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        if self._bell is not None:
            self._bell()

    def _end(self, error: MotetError) -> None:
        self.error = self.error or error
        self._ring()

    def _learn(self, news: LostEvents | Gap | Joined) -> None:
        if isinstance(news, Joined):
            self._cut, self.id = news.cut, news.id
            return
        self.losses.append(news)
        if isinstance(news, LostEvents):
            self.lost += len(news.numbers)
            log.warning("the service has lost %s of %r", news.numbers, news.topic)
        else:
            self.gaps += 1
            log.warning("stream %s joins anew: %s", self.id, news.reason)

    # ── changes ──────────────────────────────────────────────────────────────────────────

    async def add(self, topic: str | Topic, *, timeout: float = CHANGE_S) -> int:
        """Get events of another topic, too. Returns the number behind which they begin. Events of
        other topics wait until all sites know of the change."""
        name = self._client.learn_topic(topic)
        cut = await self._change(lambda ticket: WantAdd(self._key, ticket, name), timeout, "add")
        return cut[name]

    async def drop(self, topic: str | Topic, *, timeout: float = CHANGE_S) -> None:
        """Get no more events of a topic."""
        name = as_topic(topic).name
        await self._change(lambda ticket: WantDrop(self._key, ticket, name), timeout, "drop")

    async def _change(
        self, want: Callable[[int], Input], timeout: float, verb: str
    ) -> Mapping[str, int]:
        if self.error is not None:
            raise self.error
        what = f"cannot {verb} a topic"
        result = await self._client.answer(want, checked_time(timeout), what)
        return cast(Mapping[str, int], result)

    async def close(self) -> None:
        """End the stream. Idempotent. Events that are buffered can still be taken."""
        self._client.guard.check()
        await self._client.close_stream(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<OrderedStream {self.id} of {', '.join(self.topics)}>"


class OrderingClient:
    """Made by `connect`. It belongs to one event loop."""

    machine_type: ClassVar[type[OrderingMachine]] = OrderingMachine

    def __init__(
        self, client_id: str, service: Service, addresses: list[str], options: OrderingOptions
    ) -> None:
        self.client_id = client_id
        self.service = service
        self.machine = self.machine_type(f"{client_id}-{secrets.token_hex(6)}", options)
        self.buffer = options.limits.buffer
        self.guard = LoopGuard()
        self.history: OrderingHistory | None = None
        """Records what happens, if a history is wanted."""
        self.error: MotetError | None = None
        """Why it has ended; None while it has not."""
        self._window = options.window
        self._loop = asyncio.get_running_loop()
        self._inputs: list[Input] = []
        self._scheduled = False
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._publishing: dict[int, SentEvent] = {}
        self._failure: MotetError | None = None
        """The first error of a publication that nobody awaits."""
        self._room: asyncio.Event = asyncio.Event()
        self._last = 0
        self._streams: dict[int, OrderedStream] = {}
        self._topics: dict[str, Topic] = {}
        self._has_patterns = False
        self._calls: set[asyncio.Task[None]] = set()
        self._waking: asyncio.TimerHandle | None = None
        self._waking_at = 0.0
        """uvloop does not tell it of a timer that is due already."""
        self._welcomed: asyncio.Future[None] = self._loop.create_future()
        self._entry = SiteConnection(ENTRY, addresses, self)
        self._sites: list[SiteConnection] = [self._entry]

    async def begin(self, timeout_s: float) -> None:
        has_service = False
        try:
            async with asyncio.timeout(timeout_s):
                await self.service.open(self._notified, self._interrupted)
                has_service = True
                await self._welcomed
        except TimeoutError:
            refusal = self._entry.refusal
            await self.close()
            if not has_service:
                text = f"{self.service.name} does not answer within {timeout_s:g} s"
                raise NoAnswer(f"{text}; {CHECK_SERVICE}") from None
            if refusal is not None:
                raise refusal from None
            text = f"no sequencer answers at {self._entry.address} within {timeout_s:g} s"
            raise NoAnswer(f"{text}; {CHECK}") from None
        except BaseException:
            await self.close()
            raise

    # ── publishing ───────────────────────────────────────────────────────────────────────

    async def publish(
        self, topic: str, payload: bytes, *, subject: str = "", timeout: float = PUBLISH_S
    ) -> OrderReceipt:
        """Publish an event; returns when its site has confirmed that no stream will pass it.

        `Voided` if it came too late for that; `NotPublished` if the service did not take it;
        `NoAnswer` if neither is known in time: then it may be published or not.
        """
        publication = await self.send(topic, payload, subject=subject)
        try:
            async with asyncio.timeout(checked_time(timeout)):
                return cast(OrderReceipt, await publication)
        except TimeoutError:
            text = f"no confirmation of the event of {topic!r} within {timeout:g} s"
            raise NoAnswer(f"{text}; it may be published or not") from None

    async def send(self, topic: str, payload: bytes, *, subject: str = "") -> SentEvent:
        """Hand over an event; waits only while the window is full. `flush`, or await the result."""
        self.guard.check()
        while len(self._publishing) >= self._window and self.error is None:
            self._room.clear()
            await self._room.wait()
        return self.send_nowait(topic, payload, subject=subject)

    def send_nowait(self, topic: str, payload: bytes, *, subject: str = "") -> SentEvent:
        """As `send`; `WindowFull` instead of waiting."""
        if self.error is not None:
            raise self.error
        if type(payload) is not bytes:
            payload = _bytes_of(payload)
        if len(self._publishing) >= self._window:
            text = f"{self._window} publications are not confirmed yet; await some of them"
            raise WindowFull(text)
        ticket, done = self._ticket()
        publication = self._publishing[ticket] = SentEvent(done)
        self._feed(WantPublish(ticket, topic, payload, subject))
        return publication

    async def flush(self, *, timeout: float = PUBLISH_S) -> None:
        """Wait until all events that were sent before are confirmed. Raises the first error since
        the last call of those whose `SentEvent` nobody has awaited."""
        self.guard.check()
        waiting = [self._answers[ticket] for ticket in self._publishing]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=checked_time(timeout))
            if late:
                text = f"{len(late)} publications are not confirmed within {timeout:g} s"
                raise NoAnswer(f"{text}; check that `motet order status` shows who leads")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def subscribe(
        self, *topics: str | Topic, timeout: float = CHANGE_S
    ) -> AwaitableContext[OrderedStream]:
        """One stream of these topics, and so one order. Events begin behind its `cut`."""
        return AwaitableContext(self._subscribe(topics, checked_time(timeout)))

    async def _subscribe(self, topics: tuple[str | Topic, ...], timeout_s: float) -> OrderedStream:
        self.guard.check()
        names = tuple(self.learn_topic(topic) for topic in topics)
        key = self._next()
        stream = self._streams[key] = OrderedStream(self, key)
        try:
            await self.answer(
                lambda ticket: WantStream(key, names, ticket), timeout_s, "cannot subscribe"
            )
        except BaseException:
            self.drop_stream(stream, ClosedError("the stream was never open"))
            raise
        return stream

    def learn_topic(self, given: str | Topic) -> str:
        topic = as_topic(given)
        if topic.pattern:
            self.service.check_pattern(topic.pattern)
        if topic.name not in self._topics and len(self._topics) >= MOST_TOPICS:
            raise TopicRefused(f"a client may have at most {MOST_TOPICS} topics in its streams")
        known = self._topics.setdefault(topic.name, topic)
        if known != topic:
            text = f"topic {topic.name!r} has pattern {known.pattern!r} in this client"
            raise TopicRefused(f"{text}, not {topic.pattern!r}")
        self._has_patterns = self._has_patterns or bool(topic.pattern)
        return topic.name

    def drop_stream(self, stream: OrderedStream, error: MotetError) -> None:
        if self._streams.pop(stream._key, None) is not None:
            self._record_end(stream)
            self._feed(WantClose(stream._key))
        stream._end(error)

    async def close_stream(self, stream: OrderedStream) -> None:
        if self._streams.pop(stream._key, None) is None:
            return
        self._record_end(stream)
        stream._end(ClosedError("the stream is closed"))
        with suppress(MotetError):  # its site forgets it by itself
            await self.answer(lambda ticket: WantClose(stream._key, ticket), LEAVE_S, "close")

    def _record_end(self, stream: OrderedStream) -> None:
        if self.history is not None:
            self.history.ended(stream._key, self.machine.clocks(stream._key))

    # ── answers ──────────────────────────────────────────────────────────────────────────

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _ticket(self) -> tuple[int, asyncio.Future[Any]]:
        ticket = self._next()
        done = self._answers[ticket] = self._loop.create_future()
        return ticket, done

    async def answer(self, want: Callable[[int], Input], timeout_s: float, what: str) -> Result:
        self.guard.check()
        if self.error is not None:
            raise self.error
        ticket, done = self._ticket()
        self._feed(want(ticket))
        try:
            async with asyncio.timeout(timeout_s):
                return cast(Result, await done)
        except TimeoutError:
            text = f"{what}: no answer within {timeout_s:g} s; it may take effect later"
            raise NoAnswer(text) from None
        finally:
            self._answers.pop(ticket, None)

    # ── the machine ──────────────────────────────────────────────────────────────────────

    def _feed(self, happened: Input) -> None:
        self._inputs.append(happened)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        inputs, self._inputs = self._inputs, []
        if self.error is None:
            self._carry_out(self.machine.steps(inputs, self._loop.time()))

    def _carry_out(self, effects: ClientEffects) -> None:
        if self.history is not None:
            self.history.carried(effects, self._last, self._publishing, self._entry.name)
        for name in effects.dials:
            self._dial(name)
        if effects.sends:
            self._send(effects.sends)
        for call in effects.calls:
            task = self._loop.create_task(self._call(call))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        for news in effects.told:
            if (stream := self._streams.get(news.stream)) is not None:
                stream._learn(news)
        if effects.events:
            self._give(effects.events)
        for ticket, result in effects.receipts:
            self._resolve(ticket, result)
        self._wake_at(effects.wake_at)

    def _send(self, sends: list[tuple[str, Any]]) -> None:
        by_site: dict[str, list[Any]] = {}
        for name, frame in sends:
            by_site.setdefault(name, []).append(frame)
        for site in self._sites:
            if site.name in by_site:
                site.send(by_site[site.name])

    def _give(self, events: list[tuple[int, OrderedEvent]]) -> None:
        by_stream: dict[int, list[OrderedEvent]] = {}
        for key, event in events:
            by_stream.setdefault(key, []).append(event)
        for key, given in by_stream.items():
            if (stream := self._streams.get(key)) is not None:
                stream._give(given)

    def _resolve(self, ticket: int, result: Result | MotetError) -> None:
        done = self._answers.get(ticket)
        publication = self._publishing.pop(ticket, None)
        if publication is not None:
            self._answers.pop(ticket, None)
            self._room.set()
            if isinstance(result, MotetError) and not publication.awaited:
                self._failure = self._failure or result
        if done is None or done.done():
            return
        if isinstance(result, MotetError):
            done.set_exception(result)
            done.exception()  # marks it as retrieved: `flush` raises it if nobody awaits it
        else:
            done.set_result(result)

    def _wake_at(self, at: float) -> None:
        if self._waking is not None:
            if self._waking_at == at:
                return
            self._waking.cancel()
            self._waking = None
        if at < float("inf"):
            self._waking, self._waking_at = self._loop.call_at(at, self._woken), at

    def _woken(self) -> None:
        self._waking = None
        self._feed(Tick())

    # ── the service ──────────────────────────────────────────────────────────────────────

    async def _call(self, call: ServiceCall) -> None:
        ticket, kind, name, body, header = call
        error = ""
        try:
            if kind == PUBLISH:
                with_it = (header,) if header else ()  # others may take none
                await self.service.publish(name, body, *with_it)
            else:
                pattern = self._topics[name].pattern if name in self._topics else ""
                await self._call_about(kind, name, pattern)
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            error = str(problem) or type(problem).__name__
            if not isinstance(problem, MotetError):
                log.exception("the service failed")
        self._feed(ServiceDone(ticket, error))

    async def _call_about(self, kind: str, name: str, pattern: str) -> None:
        if kind == SUBSCRIBE:
            await (self.service.subscribe_pattern if pattern else self.service.subscribe)(
                pattern or name
            )
        else:
            await self.service.unsubscribe(pattern or name)

    def _notified(self, subject: str, body: bytes, header: str = "") -> None:
        if not self._has_patterns:
            self._feed(Notified(subject, body, header))
            return
        for name, topic in self._topics.items():
            if topic.pattern:
                is_it = self.service.matches(topic.pattern, subject)
            else:
                is_it = subject == name
            if is_it:
                self._feed(Notified(name, body, header))

    def _interrupted(self, reason: str) -> None:
        log.info("the service was interrupted: %s", reason)
        self._feed(ServiceInterrupted())

    # ── sites ────────────────────────────────────────────────────────────────────────────

    def _dial(self, name: str) -> None:
        addresses = addresses_of(self.machine.addresses.get(name, ""))
        if addresses and not any(site.name == name for site in self._sites):
            self._sites.append(SiteConnection(name, addresses, self))

    def site_connected(self, site: SiteConnection) -> None:
        self._step()
        self._carry_out(self.machine.step(SiteConnected(site.name), self._loop.time()))

    def site_heard(self, site: SiteConnection, frames: list[Frame]) -> None:
        if self.error is not None:
            return
        now = self._loop.time()
        inputs: list[Input] = [*self._inputs]
        self._inputs = []
        name = site.name
        for frame in frames:
            inputs.append(SiteFrame(name, cast(Any, frame)))
            if isinstance(frame, OrderWelcome) and name == ENTRY:
                name = frame.site
        try:
            effects = self.machine.steps(inputs, now)
        except PeerError as problem:
            site.abort(str(problem))
            effects = self.machine.steps((), now)
        except MisuseError as problem:  # another line: nothing that we know fits it
            self._end(problem)
            return
        site.name = name
        self._carry_out(effects)
        if not self._welcomed.done() and self.machine.line:
            self._welcomed.set_result(None)

    def site_closed(self, site: SiteConnection, refusal: str) -> None:
        if self.error is None:
            self._feed(SiteClosed(site.name, refusal))
        if not self._welcomed.done() and site.is_refused and site.refusal is not None:
            self._welcomed.set_exception(site.refusal)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def _end(self, error: MotetError) -> None:
        if self.error is not None:
            return
        self.error = error
        for stream in self._streams.values():
            self._record_end(stream)
            stream._end(error)
        self._streams.clear()
        for done in self._answers.values():
            if not done.done():
                done.set_exception(error)
                done.exception()
        self._room.set()
        if self._waking is not None:
            self._waking.cancel()
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            self._welcomed.exception()

    async def close(self) -> None:
        """Confirm what is published, end all streams, and disconnect, within a time limit.
        Idempotent."""
        if self.error is None and self._welcomed.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._leave()
        self._end(ClosedError(f"client {self.client_id!r} was closed"))
        calls = list(self._calls)
        for task in calls:
            task.cancel()
        await asyncio.gather(*(site.close() for site in self._sites))
        await asyncio.gather(*calls, return_exceptions=True)
        await self.service.close()
        if self.history is not None:
            self.history.close()

    async def _leave(self) -> None:
        with suppress(MotetError):
            await self.flush(timeout=LEAVE_S)
        streams = list(self._streams.values())
        await asyncio.gather(*(self.close_stream(stream) for stream in streams))

    @property
    def closed(self) -> bool:
        return self.error is not None

    @property
    def unconfirmed(self) -> int:
        """Events that were sent, and are not confirmed."""
        return len(self._publishing)

    @property
    def foreign_events(self) -> int:
        """Events of publishers that do not take part."""
        return self.machine.foreign_events

    @property
    def forged_events(self) -> int:
        """Messages of the service that were refused as they came, because no publisher that takes
        part can have made them."""
        return self.machine.forged_events

    @property
    def line(self) -> Mapping[str, str]:
        """The sites, lowest first, and their addresses."""
        return dict(self.machine.addresses)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<OrderingClient {self.client_id} over {self.service.name}>"


def _bytes_of(payload: object) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise MisuseError(f"a payload is bytes, not {payload!r:.60}")


Foreign = Literal["tagged", "counted"]


@opens
async def connect(
    service: str | Service,
    *,
    sequencer: str,
    client_id: str | None = None,
    window: int = DEFAULT_WINDOW,
    patience: float = 0.25,
    limit: float = 5.0,
    buffer: int = DEFAULT_BUFFER,
    foreign: Foreign = "tagged",
    headers: bool = False,
    key: bytes = b"",
    credentials: bytes = b"",
    history: str | Path | None = None,
    timeout: float = CONNECT_S,
) -> OrderingClient:
    """Order the events of a service, given by its URL.

    `sequencer`: the address of any site; with a comma, also that of its standby.
    `window`: events that may be sent and not confirmed. `patience`: how long a stream waits for a
    missing number before it asks what became of it. `limit`: how long it then waits for an event
    that was published, if the service may lose events. `buffer`: events that a stream holds, for
    the order or for the application. `foreign`: events of publishers that do not take part are
    given, without a number, or only counted. `headers`: numbers travel in headers of the service,
    each event is one message, and its body is the payload. `key`: 16 to 64 secret bytes that all
    clients share, so that nobody else can forge events; events without its seal are dropped.
    `history`: a folder in which the client records what it publishes and is given, for
    `motet pipeline audit`; by default that of MOTET_HISTORY, if set.
    """
    if not isinstance(window, int) or not 0 < window <= MAX_UNSETTLED // 2:
        raise MisuseError(f"window is 1 to {MAX_UNSETTLED // 2}, not {window!r}")
    if not isinstance(buffer, int) or not 0 < buffer <= MOST_BUFFER:
        raise MisuseError(f"buffer is a number of events, 1 to {MOST_BUFFER}, not {buffer!r}")
    if not isinstance(key, bytes) or (key and not SHORTEST_KEY <= len(key) <= LONGEST_KEY):
        raise MisuseError(f"key has {SHORTEST_KEY} to {LONGEST_KEY} bytes")
    if foreign not in (TAGGED, COUNTED):
        raise MisuseError(f"foreign is {TAGGED!r} or {COUNTED!r}, not {foreign!r}")
    name = client_id if client_id is not None else f"client-{secrets.token_hex(4)}"
    if not 0 < len(name) <= MAX_CLIENT_CHARS or not name.isprintable():
        raise MisuseError(f"client_id has 1 to {MAX_CLIENT_CHARS} printable characters")
    addresses = addresses_of(sequencer)
    if not addresses:
        raise MisuseError("sequencer is the address of a site, like motet://127.0.0.1:7720")
    for address in addresses:
        check_address(address)
    below = service_of(service) if isinstance(service, str) else service
    if headers and not below.most_header_bytes:
        raise NotOffered(f"{below.name} has no headers; connect without headers=True")
    limits = StreamLimits(checked_time(patience, "patience"), checked_time(limit, "limit"), buffer)
    options = OrderingOptions(
        window,
        foreign,
        below.lossless,
        limits=limits,
        credentials=credentials,
        headers=headers,
        key=key,
    )
    client = OrderingClient(name, below, addresses, options)
    folder = folder_of(history)
    if folder is not None:
        into = Recording(folder, f"ordering-{secrets.token_hex(8)}")
        client.history = OrderingHistory(client.machine, into)
    await client.begin(checked_time(timeout))
    client.machine.most_bytes = below.most_bytes - RESERVED_BYTES
    return client


RESERVED_BYTES: Final = 16 * 1024
"""Of the largest message that a service takes: for an envelope."""
