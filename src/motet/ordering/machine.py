"""The pure machine of one client instance: its publisher, its streams, and what both share.

    step(input, now) -> Effects

It knows no clock, socket or service. The asyncio client and the simulator run the same one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Final

from motet.errors import (
    AnotherLine,
    ClosedError,
    FoundedAnew,
    MisuseError,
    MotetError,
    NotPublished,
    NotSubscribed,
    ProtocolError,
    StreamRefused,
    TopicElsewhere,
    TopicRefused,
)
from motet.ordering.contract import (
    ENTRY,
    SUBSCRIBE,
    UNSUBSCRIBE,
    ClientEffects,
    Input,
    MissingNumbers,
    Notified,
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
from motet.ordering.envelope import is_sound, opened, opened_header
from motet.ordering.events import OrderedEvent
from motet.ordering.publisher import Publisher
from motet.ordering.stream import ADD, CLOSE, DROP, JOIN, StreamChange, StreamLimits, StreamMachine
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.sequencing.messages import (
    MAX_STREAMS_OF_CLIENT,
    MAX_TOPIC_CHARS,
    MAX_TOPICS_OF_STREAM,
    AskNumbers,
    Changed,
    Far,
    HowFar,
    Keep,
    Numbers,
    OrderHello,
    OrderWelcome,
    RequestsSettled,
    SequencingFrame,
    StreamsKept,
    Told,
    TopicIds,
    TopicQuery,
)
from motet.protocol.sequencing.placement import site_of

MOST_BODY_BYTES = 256 * 1024
KEPT_PER_FRAME = 100
"""Streams whose names surely fit into a small frame."""
KEEPS = 4
"""Signs of life of a stream within the time that it is kept."""
WILDCARDS = "*>#+"

ANSWER_TO: Final[dict[type, type]] = {AskNumbers: Told, HowFar: Far}

TAGGED, COUNTED = "tagged", "counted"


class OrderingOptions:
    """`window`: publications that are not confirmed. `foreign`: whether events of publishers that
    do not take part are given, tagged, or only counted. `headers`: timestamps travel there. `key`:
    what all clients share that seal their events."""

    def __init__(
        self,
        window: int = 1024,
        foreign: str = TAGGED,
        lossless: bool = False,
        most_bytes: int = MOST_BODY_BYTES,
        limits: StreamLimits | None = None,
        credentials: bytes = b"",
        headers: bool = False,
        key: bytes = b"",
    ) -> None:
        self.window = window
        self.headers = headers
        self.key = key
        self.foreign = foreign
        self.lossless = lossless
        self.most_bytes = most_bytes
        self.limits = limits or StreamLimits()
        self.credentials = credentials


class Connected:
    """A connection to a site. `queries`: streams that wait for the answers to questions about
    topics, in their sequence; None for the publisher's."""

    def __init__(self) -> None:
        self.welcomed = False
        self.queries: list[tuple[tuple[str, ...], StreamMachine | None]] = []
        self._asked: dict[type, deque[tuple[int, int]]] = {}
        """By type of the answer, in their sequence: questions, and how much they ask."""

    def ask(self, answer: type, question: int, parts: int) -> None:
        self._asked.setdefault(answer, deque()).append((question, parts))

    def question_of(self, answer: SequencingFrame, parts: int = 1) -> int:
        """The number of the question that is answered; 0 if nobody has asked."""
        asked = self._asked.get(type(answer))
        if not asked:
            return 0
        question, left = asked.popleft()
        if left > parts:
            asked.appendleft((question, left - parts))
        return question


class OrderingMachine:
    def __init__(self, instance: str, options: OrderingOptions | None = None) -> None:
        self.instance = instance
        self.options = options or OrderingOptions()
        self.out = ClientEffects()
        self.now = 0.0
        self.ids: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.line: tuple[str, ...] = ()
        self.addresses: dict[str, str] = {}
        self.mode = ""
        self.lease_s = self.keep_s = self.heartbeat_s = 0.0
        self.most_bytes = self.options.most_bytes
        self.lossless = self.options.lossless
        self.streams: dict[int, StreamMachine] = {}
        self.foreign_events = 0
        self.forged_events = 0
        """Messages of the service that no publisher can have made."""
        self.asked = 0
        """Questions to sites so far: the number of the last one."""
        self.publisher = Publisher(
            self, self.options.window, headers=self.options.headers, key=self.options.key
        )
        self._founding: dict[str, int] = {}
        """By site: which one it was. Another one has lost all numbers."""
        self._placement: tuple[tuple[str, str], ...] = ()
        self._elsewhere = ""
        self._links: dict[str, Connected] = {}
        self._asked: dict[str, list[tuple[tuple[str, ...], StreamMachine | None]]] = {}
        """Questions about topics to sites that are not connected."""
        self._dialled: set[str] = set()
        self._unplaced: set[str] = set()
        """Topics that their sites do not know."""
        self._before: list[Input] = []
        """Inputs from before the first welcome: nothing can be placed without the line."""
        self._readers: dict[str, list[StreamMachine]] = {}
        """By topic: the streams that get what the service notifies."""
        self._subscribed: dict[str, bool] = {}
        """By topic: whether the subscription at the service is effective."""
        self._calls: dict[int, tuple[str, str]] = {}
        self._last_call = 0
        self._keep_at = 0.0
        self._tick_at = inf

    # ── one step ─────────────────────────────────────────────────────────────────────────

    def step(self, happened: Input, now: float) -> ClientEffects:
        return self.steps((happened,), now)

    def steps(self, happened: Iterable[Input], now: float) -> ClientEffects:
        """Take several inputs at once: what they cause leaves together."""
        self.now = now
        for each in happened:
            TAKES[type(each)](self, each)
        self.publisher.work(now)
        self.out.wake_at = self._wake_at()
        out, self.out = self.out, ClientEffects()
        return out

    def _wake_at(self) -> float:
        if not self.streams:
            self._tick_at = inf
            return inf
        limits = self.options.limits
        pause_s = limits.idle_s / 2
        if any(stream.busy or stream.clocks.stands() for stream in self.streams.values()):
            pause_s = min(pause_s, limits.patience_s / 2)
        if not self.now < self._tick_at <= self.now + pause_s:
            self._tick_at = self.now + pause_s
        return self._tick_at

    def _ticked(self, _: Tick) -> None:
        for stream in list(self.streams.values()):
            stream.look(self.now)
        if self.line and self.now >= self._keep_at:
            self._keep_at = self.now + self.keep_s / KEEPS
            for site in self._links:
                self._keep(site)

    def _keep(self, site: str) -> None:
        kept = [each.id for each in self.streams.values() if each.known and each.home == site]
        if kept and self.up(site):
            for at in range(0, len(kept), KEPT_PER_FRAME):
                self.send(site, Keep(tuple(kept[at : at + KEPT_PER_FRAME])))

    # ── sites ────────────────────────────────────────────────────────────────────────────

    def up(self, site: str) -> bool:
        """Whether the site is connected. If it is not, it is dialled from self.now on."""
        link = self._links.get(site)
        if link is not None:
            return link.welcomed
        self._dial(site)
        return False

    def _dial(self, site: str) -> None:
        if site and site not in self._dialled:
            self._dialled.add(site)
            self.out.dials.append(site)

    def send(self, site: str, frame: SequencingFrame) -> None:
        self.out.sends.append((site, frame))

    def ask(self, site: str, frame: AskNumbers | HowFar) -> int:
        """Ask a site something that it answers at once. Returns the number of the question."""
        self.asked += 1
        parts = len(frame.numbers) if isinstance(frame, AskNumbers) else 1
        link = self._links.get(site)
        if link is not None:
            link.ask(ANSWER_TO[type(frame)], self.asked, parts)
        self.send(site, frame)
        return self.asked

    def site_of(self, topic: int) -> str:
        return self.line[topic % len(self.line)]

    def _connected(self, happened: SiteConnected) -> None:
        site = happened.site
        self._links[site] = Connected()
        hello = OrderHello(PROTOCOL_VERSION, self.instance, self.options.credentials)
        self.send(site, hello)

    def _closed(self, happened: SiteClosed) -> None:
        link = self._links.pop(happened.site, None)
        if link is None:
            return
        if happened.refusal and link.queries:
            names, stream = link.queries.pop(0)  # or it would refuse the same again
            if stream is None:
                self._unplaced.update(names)
            else:
                text = f"site {happened.site} refuses the topics: {happened.refusal}"
                stream.refused(TopicElsewhere(text), self.now)
        if link.queries:
            self._asked.setdefault(happened.site, []).extend(link.queries)

    def _framed(self, happened: SiteFrame) -> None:
        site, frame = happened
        link = self._links.get(site)
        if link is None:
            return
        if isinstance(frame, OrderWelcome):
            self._welcomed(site, frame)
            return
        if not link.welcomed:
            raise ProtocolError(f"a {type(frame).__name__} before the welcome")
        take = ANSWERS.get(type(frame))
        if take is None:
            raise ProtocolError(f"a {type(frame).__name__} is not for clients")
        take(self, site, frame)

    def _welcomed(self, site: str, welcome: OrderWelcome) -> None:
        self._check_line(site, welcome)
        link = self._links.pop(site)
        site = welcome.site
        self._links[site] = link
        self._dialled.add(site)
        link.welcomed = True
        self.line = tuple(name for name, _ in welcome.line)
        self.addresses = dict(welcome.line)
        self._placement, self._elsewhere = welcome.placement, welcome.elsewhere
        self.mode = welcome.mode
        self.lease_s, self.keep_s = welcome.lease_s, welcome.keep_s
        self.heartbeat_s = welcome.heartbeat_s
        for names, stream in self._asked.pop(site, ()):
            self._query(site, names, stream)
        self.publisher.connected(site, welcome.answered, self.now)
        for stream in list(self.streams.values()):
            if stream.home == site:
                stream.repeat()
        self._keep(site)
        before, self._before = self._before, []
        for each in before:
            TAKES[type(each)](self, each)

    def _check_line(self, site: str, welcome: OrderWelcome) -> None:
        line = tuple(name for name, _ in welcome.line)
        if welcome.site not in line or (site not in (ENTRY, welcome.site)):
            raise ProtocolError(f"site {welcome.site!r} answers at the address of {site!r}")
        if self.line and (line, welcome.mode) != (self.line, self.mode):
            raise AnotherLine(
                f"site {welcome.site} stands in the line {', '.join(line)} ({welcome.mode}); this "
                f"client is connected to {', '.join(self.line)} ({self.mode})"
            )
        known = self._founding.setdefault(welcome.site, welcome.founding)
        if known != welcome.founding:
            raise FoundedAnew(
                f"site {welcome.site} has lost its state and was founded anew: its numbers begin "
                "again, so what this client knows of its topics means nothing; connect again"
            )

    def _heard_numbers(self, site: str, frame: Numbers) -> None:
        self.publisher.numbered(site, frame)

    def _heard_settled(self, site: str, frame: RequestsSettled) -> None:
        self.publisher.settled(site, frame)

    def _heard_changed(self, frame: Changed) -> None:
        for stream in list(self.streams.values()):
            if stream.id == frame.stream:
                stream.changed(frame, self.now)

    def _heard_kept(self, frame: StreamsKept) -> None:
        expired = set(frame.expired)
        for stream in list(self.streams.values()):
            if stream.id in expired and stream.known:
                stream.renew("it has expired at its sequencer", self.now)

    def _heard_told(self, site: str, frame: Told) -> None:
        question = self._links[site].question_of(frame, len(frame.answers))
        self.publisher.told(site, frame)
        sound = tuple(each for each in frame.answers if each[2] is None or is_sound(each[2]))
        for stream in list(self.streams.values()):
            stream.told(frame.topic, sound, question, self.now)
            stream.deliver(self.now)

    def _heard_far(self, site: str, frame: Far) -> None:
        question = self._links[site].question_of(frame)
        for stream in list(self.streams.values()):
            stream.heard_how_far(frame.numbers, question, self.now)
            stream.deliver(self.now)

    # ── topics ───────────────────────────────────────────────────────────────────────────

    def resolve(self, name: str) -> bool:
        """Ask for the id of a topic, unless its site has said that there is none."""
        site = self._home_of(name)
        link = self._links.get(site)
        asked = [*(link.queries if link is not None else ()), *self._asked.get(site, ())]
        if not any(name in names for names, _ in asked):
            if name in self._unplaced:
                self._unplaced.discard(name)
                return False
            self._query(site, (name,), None)
        return True

    def _home_of(self, name: str) -> str:
        return site_of(name, self._placement, self._elsewhere)

    def _query(self, site: str, names: tuple[str, ...], stream: StreamMachine | None) -> None:
        if self.up(site):
            self._links[site].queries.append((names, stream))
            self.send(site, TopicQuery(names))
        else:
            self._asked.setdefault(site, []).append((names, stream))

    def probe(self, stream: StreamMachine, names: Iterable[str], along: Iterable[str]) -> set[str]:
        """Ask the sites of these topics for their ids, and all that a change passes whether they
        are there: those in between, too."""
        asked: dict[str, list[str]] = {}
        for name in names:
            asked.setdefault(self._home_of(name), []).append(name)
        places = [self.line.index(site) for site in (*asked, *along)]
        for site in self.line[min(places) : max(places) + 1]:
            self._query(site, tuple(asked.get(site, ())), stream)
            asked.setdefault(site, [])
        return set(asked)

    def _heard_ids(self, site: str, frame: TopicIds) -> None:
        link = self._links[site]
        if not link.queries:
            raise ProtocolError(f"site {site} answers a question about topics that nobody asked")
        names, stream = link.queries.pop(0)
        for name, topic in frame.ids.items():
            if topic < 0 or self.site_of(topic) != site:
                raise ProtocolError(f"site {site} gives topic {name!r} an id of another site")
            if self.ids.setdefault(name, topic) != topic:
                raise ProtocolError(f"site {site} gives topic {name!r} another id than before")
            self.names[topic] = name
        if stream is None:
            self._unplaced.update(name for name in names if name not in frame.ids)
        elif stream.key in self.streams:
            stream.probed(site, self.now)

    # ── the service ──────────────────────────────────────────────────────────────────────

    def next_call(self) -> int:
        self._last_call += 1
        return self._last_call

    def call(self, call: ServiceCall) -> None:
        self.out.calls.append(call)

    def subscribe(self, stream: StreamMachine, name: str) -> bool:
        """Returns whether the subscription is effective already."""
        readers = self._readers.setdefault(name, [])
        if stream not in readers:
            readers.append(stream)
        if name not in self._subscribed:
            self._subscribed[name] = False
            self._call(SUBSCRIBE, name)
        return self._subscribed[name]

    def unsubscribe(self, stream: StreamMachine, name: str) -> None:
        readers = self._readers.get(name, [])
        if stream in readers:
            readers.remove(stream)
        if not readers:
            self._readers.pop(name, None)
            if self._subscribed.get(name):
                del self._subscribed[name]
                self._call(UNSUBSCRIBE, name)

    def _call(self, kind: Any, name: str) -> None:
        ticket = self.next_call()
        self._calls[ticket] = (kind, name)
        self.call(ServiceCall(ticket, kind, name))

    def _done(self, happened: ServiceDone) -> None:
        if self.publisher.done(happened.ticket, happened.error):
            return
        kind, name = self._calls.pop(happened.ticket, ("", ""))
        if kind != SUBSCRIBE:
            return
        problem: MotetError | None = None
        if happened.error:
            self._subscribed.pop(name, None)
            problem = NotSubscribed(f"cannot subscribe to topic {name!r}: {happened.error}")
        else:
            self._subscribed[name] = True
        for stream in list(self._readers.get(name, ())):
            stream.subscribed(name, problem, self.now)
        if not self._readers.get(name) and self._subscribed.get(name):  # nobody waits any more
            del self._subscribed[name]
            self._call(UNSUBSCRIBE, name)

    def _interrupted(self, _: ServiceInterrupted) -> None:
        for stream in list(self.streams.values()):
            stream.interrupted(self.now)
            stream.look(self.now)

    def _notified(self, happened: Notified) -> None:
        name, body, header = happened
        streams = self._readers.get(name)
        if not streams:
            return
        key = self.options.key
        events = opened_header(header, body, key) if header else opened(body, key)
        if events is None:
            self._notified_by_foreigner(name, body, streams)
            return
        topic = self.ids.get(name)
        if not events or any(stamp.topic != topic for stamp, _ in events):
            if events and all(stamp.topic in self.names for stamp, _ in events):
                return  # of another topic, whose pattern has this subject, too
            self._notified_by_forger(streams)
            return
        for stream in list(streams):
            for stamp, payload in events:
                stream.arrived(stamp, payload, self.now)
            stream.deliver(self.now)

    def _notified_by_foreigner(self, name: str, body: bytes, streams: list[StreamMachine]) -> None:
        self.foreign_events += 1
        if self.options.foreign == TAGGED:
            event = OrderedEvent(name, body, None)
            self.out.events.extend((stream.key, event) for stream in streams)

    def _notified_by_forger(self, streams: list[StreamMachine]) -> None:
        self.forged_events += 1
        for stream in streams:
            stream.forged_messages += 1

    # ── what the application wants ───────────────────────────────────────────────────────

    def _want_publish(self, wanted: WantPublish) -> None:
        problem = None if wanted.topic in self.ids else checked_name(wanted.topic)
        if problem is not None:
            self.out.receipts.append((wanted.ticket, problem))
        elif len(wanted.payload) > self.most_bytes:
            size = len(wanted.payload)
            text = f"a payload of {size} bytes; the service takes at most {self.most_bytes}"
            self.out.receipts.append((wanted.ticket, NotPublished(text)))
        elif not self.line:
            self._before.append(wanted)
        else:
            self.publisher.want(wanted)

    def _want_stream(self, wanted: WantStream) -> None:
        problem = self._stream_problem(wanted)
        if problem is not None:
            if wanted.ticket:
                self.out.receipts.append((wanted.ticket, problem))
        elif not self.line:
            self._before.append(wanted)
        else:
            stream = StreamMachine(wanted.stream, self.instance, self, self.options.limits)
            self.streams[wanted.stream] = stream
            stream.want(StreamChange(JOIN, wanted.topics, wanted.ticket), self.now)

    def _stream_problem(self, wanted: WantStream) -> MotetError | None:
        topics = wanted.topics
        if not topics:
            return TopicRefused("a stream needs at least one topic")
        if len(topics) > MAX_TOPICS_OF_STREAM:
            most = f"a stream has at most {MAX_TOPICS_OF_STREAM}"
            return TopicRefused(f"{len(topics)} topics; {most}")
        if len(self.streams) >= MAX_STREAMS_OF_CLIENT:
            return StreamRefused(f"a client has at most {MAX_STREAMS_OF_CLIENT} streams at once")
        if len(set(topics)) < len(topics):
            return TopicRefused("a stream cannot have the same topic twice")
        if wanted.stream in self.streams:
            return MisuseError(f"there is a stream {wanted.stream} already")
        return next(filter(None, map(checked_name, topics)), None)

    def _want_change(self, kind: str, wanted: WantAdd | WantDrop) -> None:
        if not self.line:
            self._before.append(wanted)
            return
        stream = self.streams.get(wanted.stream)
        problem = checked_name(wanted.topic)
        if stream is None or stream.closing:
            problem = ClosedError("the stream is closed")
        if problem is not None or stream is None:
            if wanted.ticket:
                self.out.receipts.append((wanted.ticket, problem or ClosedError("")))
            return
        stream.want(StreamChange(kind, (wanted.topic,), wanted.ticket), self.now)

    def _want_close(self, wanted: WantClose) -> None:
        if not self.line:
            self._before.append(wanted)
            return
        stream = self.streams.get(wanted.stream)
        if stream is not None and not stream.closing:
            stream.want(StreamChange(CLOSE, (), wanted.ticket), self.now)
        elif wanted.ticket:
            self.out.receipts.append((wanted.ticket, {}))

    def ended(self, stream: StreamMachine) -> None:
        del self.streams[stream.key]
        for name, readers in list(self._readers.items()):
            if stream in readers:
                self.unsubscribe(stream, name)

    # ── what the application may see ─────────────────────────────────────────────────────

    def waiting(self, stream: int) -> list[MissingNumbers]:
        return self.streams[stream].waiting() if stream in self.streams else []

    def forged(self, stream: int) -> int:
        """Events that were made up, and dropped."""
        return self.streams[stream].forged if stream in self.streams else 0

    def clocks(self, stream: int) -> Mapping[str, int]:
        """By topic: the last number that was delivered or passed."""
        clock = self.streams[stream].clocks.clock
        return {self.names[topic]: number for topic, number in clock.items()}

    def validate(self) -> None:
        for stream in self.streams.values():
            stream.clocks.validate()


def checked_name(name: str) -> MotetError | None:
    """What is wrong with the name of a topic."""
    if not 0 < len(name) <= MAX_TOPIC_CHARS or not name.isprintable():
        return TopicRefused(f"the name of a topic has 1 to {MAX_TOPIC_CHARS} printable characters")
    if any(char in WILDCARDS for char in name):
        return TopicRefused(
            f"topic {name!r} has a wildcard; its events would have no one number. "
            f"`Topic(name, pattern={name!r})` puts all its subjects under one topic"
        )
    return None


_Machine = OrderingMachine
TAKES: Final[dict[type, Callable[[OrderingMachine, Any], None]]] = {
    SiteConnected: _Machine._connected,
    SiteFrame: _Machine._framed,
    SiteClosed: _Machine._closed,
    Notified: _Machine._notified,
    ServiceDone: _Machine._done,
    ServiceInterrupted: _Machine._interrupted,
    Tick: _Machine._ticked,
    WantPublish: _Machine._want_publish,
    WantStream: _Machine._want_stream,
    WantAdd: lambda machine, wanted: machine._want_change(ADD, wanted),
    WantDrop: lambda machine, wanted: machine._want_change(DROP, wanted),
    WantClose: _Machine._want_close,
}
ANSWERS: Final[dict[type, Callable[[OrderingMachine, str, Any], None]]] = {
    TopicIds: _Machine._heard_ids,
    Numbers: _Machine._heard_numbers,
    RequestsSettled: _Machine._heard_settled,
    Changed: lambda machine, _, frame: machine._heard_changed(frame),
    StreamsKept: lambda machine, _, frame: machine._heard_kept(frame),
    Told: _Machine._heard_told,
    Far: _Machine._heard_far,
}
