"""What a process does: draws its acts, and keeps the books for the checkers.

Applications publish on several topics, answer events with events, open, change and close streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.errors import MotetError
from motet.ordering.contract import (
    ClientEffects,
    Result,
    WantAdd,
    WantClose,
    WantDrop,
    WantPublish,
    WantStream,
)
from motet.ordering.events import Gap, Joined, OrderedEvent, OrderReceipt
from motet.ordering.events import LostEvents as LostNews
from motet.testing.ordering.history import (
    PUBLISHED,
    Given,
    NumbersLost,
    OrderedPublication,
    StreamSession,
    UnmetWait,
)
from motet.testing.ordering.plan import ACTS

if TYPE_CHECKING:
    from motet.testing.ordering.clients import OrderClient

BURST = 5
MOST_OPEN = 10
"""Publications without a receipt of one client: where sites are far apart, each takes long."""
DEEPEST = 4
"""Answers to answers to …"""


def event_in(payload: bytes) -> int:
    return int(payload)


class Application:
    def __init__(self, client: OrderClient) -> None:
        self._client = client
        self._world = client.world
        self.streams: dict[int, list[str]] = {}
        """Open ones, with the topics that they should have."""
        self.sessions: dict[int, StreamSession] = {}
        self.asked: dict[int, str] = {}
        """What was asked of the machine and not answered, by ticket."""
        self._opening: dict[int, int] = {}
        """Streams that are opened, by ticket."""
        self._publications: dict[int, OrderedPublication] = {}
        """Without an outcome, by ticket."""
        self._closed: dict[int, int] = {}
        """Streams that were asked to end, with their tickets."""
        self._gaps: set[int] = set()
        """Streams that were told of a gap and have not joined anew."""
        self._causes: dict[int, None] = {}
        """What it was given since its last publication, and that one."""
        self._count = 0

    # ── acts ─────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        self.open()
        self._act_later()

    def _act_later(self) -> None:
        mean_s = self._world.plan.act_s
        self._world.agenda.after(self._world.random.expovariate(1.0 / mean_s), self._act)

    def _act(self) -> None:
        client, world = self._client, self._world
        if client.over or not world.acting:
            return
        self._act_later()
        if not client.paused:
            getattr(self, world.random.choices(ACTS, world.plan.weights)[0])()

    def publish(self, topic: str = "", depth: int = 0) -> None:
        topic = topic or self._world.random.choice(self._world.topics)
        if len(self._publications) >= MOST_OPEN:
            return
        ticket = self._ask(f"a receipt for {topic}")
        event = self._world.new_event()
        publication = OrderedPublication(event, self._client.name, topic, tuple(self._causes))
        self._world.history.publications[event] = publication
        self._publications[ticket] = publication
        self._world.depths[event] = depth
        self._causes = {event: None}
        self._client.step(WantPublish(ticket, topic, str(event).encode()))

    def burst(self) -> None:
        for _ in range(BURST):
            self.publish()

    def open(self) -> None:
        if len(self.streams) >= self._world.plan.most_streams:
            return
        random, topics = self._world.random, self._world.topics
        self.join(random.sample(topics, random.randint(1, min(4, len(topics)))))

    def join(self, chosen: list[str]) -> int:
        """Open a stream with these topics."""
        stream = self._count = self._count + 1
        self.streams[stream] = chosen
        ticket = self._ask(f"stream {stream}")
        self._opening[ticket] = stream
        self._client.step(WantStream(stream, tuple(chosen), ticket))
        return stream

    def close(self) -> None:
        if len(self.streams) > 1:
            stream = self._world.random.choice(list(self.streams))
            del self.streams[stream]
            ticket = self._closed[stream] = self._ask(f"the end of stream {stream}")
            if stream in self.sessions:
                self.sessions[stream].ended = True
            self._client.step(WantClose(stream, ticket))

    def add(self) -> None:
        if not self.streams:
            return
        random = self._world.random
        stream = random.choice(list(self.streams))
        others = [topic for topic in self._world.topics if topic not in self.streams[stream]]
        if others:
            self.add_to(stream, random.choice(others))

    def add_to(self, stream: int, topic: str) -> None:
        self.streams[stream].append(topic)
        ticket = self._ask(f"{topic} in stream {stream}")
        self._client.step(WantAdd(stream, ticket, topic))

    def drop(self) -> None:
        wide = [stream for stream, topics in self.streams.items() if len(topics) > 1]
        if wide:
            stream = self._world.random.choice(wide)
            self.drop_from(stream, self._world.random.choice(self.streams[stream]))

    def drop_from(self, stream: int, topic: str) -> None:
        self.streams[stream].remove(topic)
        ticket = self._ask(f"stream {stream} without {topic}")
        self._client.step(WantDrop(stream, ticket, topic))

    def ask_again(self) -> None:
        """Drop a topic and add it at once."""
        if self.streams:
            stream = self._world.random.choice(list(self.streams))
            topic = self._world.random.choice(self.streams[stream])
            if len(self.streams[stream]) > 1:
                ticket = self._ask(f"stream {stream} without {topic}")
                self._client.step(WantDrop(stream, ticket, topic))
                ticket = self._ask(f"{topic} in stream {stream} again")
                self._client.step(WantAdd(stream, ticket, topic))

    def _ask(self, what: str) -> int:
        ticket = self._world.new_ticket()
        self.asked[ticket] = what
        return ticket

    def excuse(self) -> None:
        """The process has died: nothing is owed to it."""
        self.asked.clear()
        for publication in self._publications.values():
            publication.excused = True
        for session in self.sessions.values():
            session.ended = True

    # ── what it is given ─────────────────────────────────────────────────────────────────

    def take(self, effects: ClientEffects) -> None:
        for news in effects.told:
            match news:
                case Joined():
                    before = self.sessions.get(news.stream)
                    joined = self._world.recorder.joined(self._client.name, news, before)
                    if joined is not before and before is not None:
                        self._was_told(news.stream)
                    joined.ended = joined.ended or news.stream in self._closed
                    self.sessions[news.stream] = joined
                case Gap():
                    self._gaps.add(news.stream)
                    self._world.counts["gaps"] += 1
                case LostNews():
                    lost = NumbersLost(news.topic, news.numbers)
                    self.sessions[news.stream].steps.append(lost)
                    self._world.counts["lost"] += len(news.numbers)
        for stream, event in effects.events:
            self._given(stream, event)
        for ticket, result in effects.receipts:
            self._answered(ticket, result)

    def _was_told(self, stream: int) -> None:
        """A stream joins anew only with notice."""
        if stream not in self._gaps:
            name = self._client.name
            self._world.odd("completeness", f"stream {stream} of {name} has a gap without notice")
        self._gaps.discard(stream)

    def _given(self, stream: int, event: OrderedEvent) -> None:
        if event.number is None:
            self._world.counts["foreign"] += 1
            return
        found = event_in(event.payload)
        session = self.sessions.get(stream)
        if session is None or self._closed.get(stream, 0) not in (0, *self.asked):
            text = f"{self._client.name} got event {found} in stream {stream}, which is not open"
            self._world.odd("completeness", text)
            return
        session.steps.append(Given(event.topic, event.number, found, event.late))
        self._world.counts["late" if event.late else "delivered"] += 1
        self._causes[found] = None
        depth = self._world.depths.get(found, 0)
        random, plan = self._world.random, self._world.plan
        if self._world.acting and depth < DEEPEST and random.random() < plan.reply:
            topic = random.choice(self._world.topics)
            self._world.agenda.after(0.0, self._reply, topic, depth + 1)

    def _reply(self, topic: str, depth: int) -> None:
        if not self._client.over and not self._client.paused:
            self._world.counts["replies"] += 1
            self.publish(topic, depth)

    def _answered(self, ticket: int, result: Result | MotetError) -> None:
        what = self.asked.pop(ticket, None)
        if what is None:
            text = f"{self._client.name} answers ticket {ticket} that nobody waits for: {result!r}"
            self._world.odd("settles", text)
            return
        publication = self._publications.pop(ticket, None)
        opened = self._opening.pop(ticket, 0)
        if opened and isinstance(result, MotetError):
            self.streams.pop(opened, None)
        if publication is None:
            if isinstance(result, MotetError):
                self._world.counts[f"refused: {type(result).__name__}"] += 1
        elif isinstance(result, OrderReceipt):
            publication.outcome, publication.number = PUBLISHED, result.number
            self._world.counts["receipts"] += 1
        else:
            publication.outcome = type(result).__name__
            self._world.counts[f"publication: {publication.outcome}"] += 1

    def waits(self) -> list[UnmetWait]:
        return [UnmetWait(self._client.name, what) for what in self.asked.values()]
