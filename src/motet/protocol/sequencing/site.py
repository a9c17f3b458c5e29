"""The machine of a site: deterministic, changed only by facts.

`apply` takes a fact, `take` a message from another site. Both collect what is to be sent in
`SiteEffects`. A site counts moments; `changed` and `passed` say at which moment a topic got its
present number here, and at which it last passed with a timestamp of its own. Therefore the entries
of a timestamp are the partners of its topic that have changed since the topic last passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from motet.errors import InvariantError
from motet.protocol.frames import Frame
from motet.protocol.image import chunked
from motet.protocol.sequencing.facts import (
    ChangeRequested,
    GivenBack,
    InstancesForgotten,
    LeasePassed,
    NumbersConfirmed,
    NumbersRequested,
    StreamsExpired,
    TopicsNamed,
)
from motet.protocol.sequencing.groups import Groups
from motet.protocol.sequencing.messages import (
    FORGOTTEN,
    OPEN,
    PAIRS,
    PUBLISHED,
    UNGIVEN,
    VOID,
    Changed,
    ChangeMade,
    ChangePassage,
    Numbers,
    RequestsSettled,
    SequencingMessage,
    Stamped,
    StampPassage,
    Timestamp,
)
from motet.protocol.sequencing.state import (
    ON_ITS_WAY,
    GivenNumber,
    GoneImage,
    HistoryImage,
    Home,
    Instance,
    InstancesImage,
    OpenImage,
    PartnersImage,
    SiteImage,
    StreamHomesImage,
    StreamsImage,
    TopicsImage,
    VoidedImage,
)

REMEMBERED: Final = 200_000
"""Void and published timestamps that a site keeps for streams that ask."""
REMEMBERED_ENTRIES: Final = 8_000_000
"""The most topics and numbers in their entries together."""
WALK: Final = 1024
"""The most changes that are walked back; for more, all partners of a topic are visited."""
LOG: Final = 16 * WALK
"""The log of changes is cut when it is so long."""
FRAME_STAMPS: Final = 2048
FRAME_ENTRIES: Final = 100_000
"""Timestamps that travel together are split beyond this, so that they fit into a frame."""


UNKNOWN: Final = -1


class SiteEffects(NamedTuple):
    """What a fact has caused, in order."""

    sends: list[tuple[int, SequencingMessage]]
    """Messages to other sites, by their position in the line."""
    answers: list[tuple[str, Frame]]
    """Frames to instances of clients. Lost if they are not connected: they ask again."""


class Nobody(list[tuple[str, Frame]]):
    """Answers that nobody gets are not even made."""

    def append(self, answer: tuple[str, Frame]) -> None:
        """Dropped."""

    def extend(self, answers: Iterable[tuple[str, Frame]]) -> None:
        """Dropped; a generator does not run."""


def effects(*, answers: bool = True) -> SiteEffects:
    return SiteEffects([], [] if answers else Nobody())


class Site:
    def __init__(
        self,
        position: int,
        count: int,
        mode: str,
        *,
        remembered: int = REMEMBERED,
        remembered_entries: int = REMEMBERED_ENTRIES,
    ) -> None:
        self.position = position
        self.count = count
        self.mode = mode
        self.now = 0.0
        self.moment = 0
        self.ids: dict[str, int] = {}
        """Topics that live here, by name."""
        self.names: dict[int, str] = {}
        self.number: list[int] = []
        """By topic: its last number, as far as it is known here; `UNKNOWN` if it was never heard
        of, as those of higher sites. Ids are dense, and lists are faster than tables."""
        self.changed: list[int] = []
        self.passed: list[int] = []
        self.far: dict[int, int] = {}
        """By topic that lives here: its last number with a complete timestamp."""
        self.groups = Groups(position, count, mode)
        self.gone: dict[int, list[str]] = {}
        """By topic that lives here: expired streams that its next timestamp names."""
        self.instances: dict[str, Instance] = {}
        self.homes: dict[str, Home] = {}
        """Streams whose home this is."""
        self.given: dict[int, dict[int, GivenNumber]] = {}
        """By topic that lives here: what became of its numbers, unless it is forgotten."""
        self.history: deque[GivenNumber] = deque()
        """Void and published numbers, in the order in which they became that."""
        self.history_entries = 0
        self._most_history = remembered
        self._most_entries = remembered_entries
        self._log: list[int] = []
        """The topics of the last changes: at least of the last `WALK`, one at each moment."""
        self._facts: dict[type, Callable[[Any, SiteEffects], None]] = {
            NumbersRequested: self._numbers_requested,
            NumbersConfirmed: self._confirmed,
            GivenBack: self._given_back,
            LeasePassed: self._lease_passed,
            TopicsNamed: self._topics_named,
            ChangeRequested: self._change_requested,
            StreamsExpired: self._streams_expired,
            InstancesForgotten: self._instances_forgotten,
        }
        self._messages: dict[type, Callable[[Any, SiteEffects], None]] = {
            StampPassage: self._passage,
            Stamped: self._stamped,
            ChangePassage: self._change,
            ChangeMade: self._change_made,
        }

    # ── the door ─────────────────────────────────────────────────────────────────────────

    def apply(self, fact: Struct, now: float, out: SiteEffects) -> None:
        self.now = now
        self._facts[type(fact)](fact, out)

    def take(self, message: SequencingMessage, now: float, out: SiteEffects) -> None:
        """A message from another site; a part of the fact of its frame."""
        self.now = now
        self._messages[type(message)](message, out)

    # ── numbers ──────────────────────────────────────────────────────────────────────────

    def _topics_named(self, fact: TopicsNamed, out: SiteEffects) -> None:
        del out
        for name in fact.names:
            if name not in self.ids:
                topic = self.position + self.count * len(self.ids)
                self.ids[name] = topic
                self.names[topic] = name
                self._learn(topic, 0)
                self.far[topic] = 0
                self.given[topic] = {}

    def _learn(self, topic: int, number: int) -> None:
        """A topic is heard of for the first time."""
        more = topic + 1 - len(self.number)
        if more > 0:
            self.number += [UNKNOWN] * more
            self.changed += [0] * more
            self.passed += [0] * more
        self.number[topic] = number

    def last(self, topic: int) -> int:
        """The last number of a topic, or `UNKNOWN`."""
        return self.number[topic] if topic < len(self.number) else UNKNOWN

    def _numbers_requested(self, fact: NumbersRequested, out: SiteEffects) -> None:
        client = fact.client
        instance = self.instances.get(client)
        if instance is None:
            # New, or forgotten after all its numbers were void or published.
            before = fact.first - 1
            instance = self.instances[client] = Instance(before, before)
        if fact.confirmed > instance.settled:
            self._settle(client, instance, fact.confirmed, out)
        again = instance.taken + 1 - fact.first
        out.answers.extend(self.answers_again(client, fact.first, min(again, len(fact.topics))))
        request, here, now = instance.taken, self.position, self.now
        unsettled, top, gone = instance.unsettled, self.groups.top, self.gone
        number, changed, passed, given = self.number, self.changed, self.passed, self.given
        far, log, moment = self.far, self._log, self.moment
        complete: list[tuple[int, Timestamp]] = []
        upward: list[tuple[int, Timestamp]] = []
        for topic in fact.topics[again:]:
            request += 1
            count = number[topic] + 1
            entries = self._entries(topic)
            self.moment = moment = moment + 1
            log.append(topic)
            number[topic] = count
            changed[topic] = passed[topic] = moment
            expired = tuple(gone.pop(topic)) if topic in gone else ()
            stamp = Timestamp(topic, count, entries, expired)
            last = top.get(topic, here)
            if last == here:
                record = GivenNumber(client, request, stamp, now)
                far[topic] = count
                complete.append((request, stamp))
            else:
                record = GivenNumber(client, request, stamp, ON_ITS_WAY)
                instance.on_the_way[request] = None
                upward.append((last, stamp))
            unsettled[request] = given[topic][count] = record
        instance.taken = request
        if len(log) > LOG:
            del log[:-WALK]
        out.answers.extend((client, frame) for frame in _numbers(complete))
        self._send_up(here, upward, out)

    def _entries(self, topic: int) -> tuple[int, ...]:
        """The partners of a topic that changed, or became partners, since it last passed."""
        groups = self.groups
        partners = groups.partners.get(topic)
        if partners is None:
            return ()
        number, passed = self.number, self.passed[topic]
        since = self.moment - passed
        if since <= WALK and 3 * since < len(partners):  # a step of it takes longer
            recent = self._log[len(self._log) - since :]
            found = list(filter(partners.__contains__, dict.fromkeys(recent)))
        else:
            changed = self.changed
            found = [other for other in partners if changed[other] > passed]
        if topic in groups.fresh:
            known = set(found)
            fresh = groups.fresh.pop(topic)
            found += [other for other in fresh if other not in known and number[other]]
        flat = [0] * (2 * len(found))  # faster than a comprehension of pairs
        flat[::2] = found
        flat[1::2] = [number[other] for other in found]
        return tuple(flat)

    def _send_up(self, first: int, rows: Sequence[tuple[int, Timestamp]], out: SiteEffects) -> None:
        for part in _split(rows):
            lasts, stamps = zip(*part, strict=True)
            out.sends.append((self.position + 1, StampPassage(first, lasts, stamps)))

    def _passage(self, passage: StampPassage, out: SiteEffects) -> None:
        """Timestamps from a lower site pass: add what is ordered here."""
        here, number, changed, passed = self.position, self.number, self.changed, self.passed
        complete: list[tuple[int, Timestamp]] = []
        upward: list[tuple[int, Timestamp]] = []
        for last, stamp in zip(passage.lasts, passage.stamps, strict=True):
            topic = stamp.topic
            if self.last(topic) == UNKNOWN:
                self._learn(topic, 0)
            entries = self._entries(topic)
            self.moment += 1
            self._log.append(topic)
            number[topic] = stamp.number
            changed[topic] = passed[topic] = self.moment
            if entries:
                stamp = Timestamp(topic, stamp.number, stamp.entries + entries, stamp.gone)
            (complete if last == here else upward).append((last, stamp))
        if len(self._log) > LOG:
            del self._log[:-WALK]
        for part in _split(complete):
            out.sends.append((passage.first, Stamped(tuple(stamp for _, stamp in part))))
        self._send_up(passage.first, upward, out)

    def _stamped(self, message: Stamped, out: SiteEffects) -> None:
        """Timestamps that began here are complete."""
        answers: dict[str, list[tuple[int, Timestamp]]] = {}
        for stamp in message.stamps:
            record = self.given[stamp.topic].get(stamp.number)
            if record is None or record.answered != ON_ITS_WAY:
                continue
            record.stamp = stamp
            record.answered = self.now
            self.far[stamp.topic] = max(self.far[stamp.topic], stamp.number)
            instance = self.instances.get(record.client)
            if instance is not None:  # it may be forgotten after it gave the number back
                instance.on_the_way.pop(record.request, None)
            if record.state == VOID:
                self._remember(record)
            else:
                answers.setdefault(record.client, []).append((record.request, stamp))
        for client, rows in answers.items():
            rows.sort(key=_request)
            out.answers.extend((client, frame) for frame in _numbers(rows))

    def answers_again(self, client: str, first: int, count: int) -> Iterator[tuple[str, Frame]]:
        """The answers to requests that were made before, as far as they are complete."""
        instance = self.instances.get(client)
        if instance is None or count <= 0:
            return
        rows: list[tuple[int, Timestamp | None]] = []
        for request in range(first, first + count):
            record = instance.unsettled.get(request)
            if record is not None and record.state == VOID:
                rows.append((request, None))
            elif record is not None and record.answered != ON_ITS_WAY:
                rows.append((request, record.stamp))
        for frame in _numbers(rows):
            yield client, frame

    # ── what becomes of numbers ──────────────────────────────────────────────────────────

    def _confirmed(self, fact: NumbersConfirmed, out: SiteEffects) -> None:
        instance = self.instances[fact.client]
        self._settle(fact.client, instance, fact.upto, out)

    def _settle(self, client: str, instance: Instance, upto: int, out: SiteEffects) -> None:
        voided = []
        unsettled = instance.unsettled
        for request in range(instance.settled + 1, upto + 1):
            record = unsettled.pop(request)
            if record.state == OPEN:
                record.state = PUBLISHED
                self._remember(record)
            else:
                instance.on_the_way.pop(request, None)
                if not record.back:
                    voided.append(request)
        instance.settled = max(instance.settled, upto)
        out.answers.append((client, RequestsSettled(instance.settled, tuple(voided))))

    def _given_back(self, fact: GivenBack, out: SiteEffects) -> None:
        instance = self.instances[fact.client]
        void = []
        for request in fact.requests:
            record = instance.unsettled.get(request)
            if record is not None:
                record.back = True
                self._make_void(record)
                void.append(request)
        out.answers.append((fact.client, RequestsSettled(instance.settled, tuple(void))))

    def _lease_passed(self, fact: LeasePassed, out: SiteEffects) -> None:
        del out
        for client, requests in fact.requests:
            for request in requests:
                record = self.instances[client].unsettled.get(request)
                if record is not None and record.answered != ON_ITS_WAY:
                    self._make_void(record)

    def _make_void(self, record: GivenNumber) -> None:
        if record.state == OPEN:
            record.state = VOID
            if record.answered != ON_ITS_WAY:
                self._remember(record)

    def _remember(self, record: GivenNumber) -> None:
        """It is void or published, and its timestamp is complete: it may be forgotten one day."""
        history = self.history
        history.append(record)
        self.history_entries += len(record.stamp.entries)
        while len(history) > self._most_history or self.history_entries > self._most_entries:
            oldest = history.popleft().stamp
            self.history_entries -= len(oldest.entries)
            del self.given[oldest.topic][oldest.number]

    def overdue(self, lease_s: float, since: float, now: float) -> LeasePassed | None:
        """The requests that were answered longer than a lease ago, and are open. Leases count
        from `since` at the earliest."""
        if since + lease_s > now:
            return None
        rows = []
        for client, instance in self.instances.items():
            due = []
            for request, record in instance.unsettled.items():
                if record.state == OPEN and record.answered != ON_ITS_WAY:
                    if record.answered + lease_s > now:
                        break  # later requests may be due as well: the next time
                    due.append(request)
            if due:
                rows.append((client, tuple(due)))
        return LeasePassed(tuple(rows)) if rows else None

    def idle(self, client: str) -> bool:
        """No number of this instance is open: it may be forgotten."""
        return all(
            record.state == VOID and record.answered != ON_ITS_WAY
            for record in self.instances[client].unsettled.values()
        )

    def _instances_forgotten(self, fact: InstancesForgotten, out: SiteEffects) -> None:
        del out
        for client in fact.clients:
            if client in self.instances and self.idle(client):
                del self.instances[client]

    def became(self, topic: int, number: int) -> tuple[int, Timestamp | None]:
        """The state of a number, and its timestamp if it is complete."""
        if number > self.number[topic]:
            return UNGIVEN, None
        record = self.given[topic].get(number)
        if record is None:
            return FORGOTTEN, None
        if record.answered == ON_ITS_WAY:
            return OPEN, None
        return record.state, record.stamp

    # ── changes of streams ───────────────────────────────────────────────────────────────

    def _change_requested(self, fact: ChangeRequested, out: SiteEffects) -> None:
        home = self.homes.get(fact.stream)
        if home is None:
            home = self.homes[fact.stream] = Home(fact.client)
        home.pending = fact.number
        home.wanted = fact.topics
        self._begin(fact.stream, home, out)

    def named(self, home: Home, topics: Iterable[int]) -> tuple[int, ...]:
        """The topics that a change to these topics concerns."""
        return tuple(dict.fromkeys((*home.ever, *topics)))

    def _begin(self, stream: str, home: Home, out: SiteEffects) -> None:
        named = self.named(home, home.wanted)
        passage = ChangePassage(
            stream, self.position, home.pending, home.wanted, named, {}, home.ending
        )
        lowest = min((topic % self.count for topic in named), default=self.position)
        if lowest == self.position:
            self._change(passage, out)
        else:
            out.sends.append((lowest, passage))

    def _streams_expired(self, fact: StreamsExpired, out: SiteEffects) -> None:
        for stream in fact.streams:
            home = self.homes.get(stream)
            if home is None or home.pending:
                continue
            if not home.topics:
                del self.homes[stream]
                continue
            home.pending = home.done + 1
            home.wanted = ()
            home.ending = True
            self._begin(stream, home, out)

    def _change(self, passage: ChangePassage, out: SiteEffects) -> None:
        here, count, named = self.position, self.count, passage.named
        numbers = dict(passage.numbers)
        for topic in named:
            site = topic % count
            if site == here and topic in self.names:
                numbers[topic] = self.number[topic]
            elif site < here and (number := numbers.get(topic, UNKNOWN)) > self.last(topic):
                self._learn(topic, number)
                if number:
                    self.moment += 1
                    self._log.append(topic)
                    self.changed[topic] = self.moment
        if passage.expired:
            for topic in self.groups.own_topics(passage.stream):
                self.gone.setdefault(topic, []).append(passage.stream)
        ends = passage.expired or not passage.topics
        noted = named if self.mode == PAIRS else passage.topics
        known = [topic for topic in noted if topic % count > here or self.last(topic) >= 0]
        self.groups.note(passage.stream, () if ends else known)
        if any(topic % count > here for topic in named):
            onward = ChangePassage(
                passage.stream,
                passage.home,
                passage.number,
                passage.topics,
                named,
                numbers,
                passage.expired,
            )
            out.sends.append((here + 1, onward))
            return
        cut = {topic: numbers.get(topic, 0) for topic in passage.topics}
        made = ChangeMade(passage.stream, passage.number, cut)
        if passage.home == here:
            self._change_made(made, out)
        else:
            out.sends.append((passage.home, made))

    def _change_made(self, made: ChangeMade, out: SiteEffects) -> None:
        home = self.homes.get(made.stream)
        if home is None or home.pending != made.number:
            return
        if home.ending:
            del self.homes[made.stream]
            return
        home.ever = self.named(home, home.wanted) if self.mode == PAIRS else home.wanted
        home.topics, home.wanted = home.wanted, ()
        home.done, home.pending = home.pending, 0
        home.cut = made.cut
        if not home.topics:
            home.ever = ()
        out.answers.append((home.client, Changed(made.stream, made.number, made.cut)))

    # ── image ────────────────────────────────────────────────────────────────────────────

    def parts(self) -> Iterator[Struct]:
        """All state, in parts that `restore` takes, in this order."""
        yield SiteImage(self.now, self.moment, tuple(self._log[-WALK:]))
        number, names = self.number, self.names
        yield from chunked(
            TopicsImage,
            (
                (
                    topic,
                    names.get(topic, ""),
                    number[topic],
                    self.changed[topic],
                    self.passed[topic],
                    self.far.get(topic, 0),
                )
                for topic, known in enumerate(number)
                if known != UNKNOWN
            ),
        )
        groups = self.groups
        yield from chunked(StreamsImage, groups.noted.items())
        yield from chunked(
            PartnersImage,
            (
                (topic, tuple(groups.partners[topic]), tuple(groups.fresh.get(topic, ())))
                for topic in sorted(groups.partners)
            ),
        )
        gone = ((topic, tuple(self.gone[topic])) for topic in sorted(self.gone))
        yield from chunked(GoneImage, gone)
        rows = ((client, each.taken, each.settled) for client, each in self.instances.items())
        yield from chunked(InstancesImage, rows)
        yield from chunked(HistoryImage, self.history)
        yield from chunked(OpenImage, self._open())
        yield from chunked(VoidedImage, self._voided())
        yield from chunked(StreamHomesImage, self.homes.items())

    def _open(self) -> Iterator[GivenNumber]:
        """The numbers in `given` that are not in the history."""
        for topic in sorted(self.given):
            numbers = self.given[topic]
            for number in sorted(numbers):
                record = numbers[number]
                if record.state == OPEN or record.answered == ON_ITS_WAY:
                    yield record

    def _voided(self) -> Iterator[GivenNumber]:
        for instance in self.instances.values():
            for record in instance.unsettled.values():
                stamp = record.stamp
                if self.given[stamp.topic].get(stamp.number) is not record:
                    yield record

    def restore(self, parts: Iterable[Struct]) -> None:
        """Into an empty site."""
        takers: dict[type, Callable[[Any], None]] = {
            SiteImage: self._take_site,
            TopicsImage: self._take_topics,
            StreamsImage: lambda part: self.groups.restore_streams(part.rows),
            PartnersImage: lambda part: self.groups.restore_partners(part.rows),
            GoneImage: lambda part: self.gone.update((row[0], list(row[1])) for row in part.rows),
            InstancesImage: self._take_instances,
            HistoryImage: self._take_history,
            OpenImage: self._take_open,
            VoidedImage: self._take_voided,
            StreamHomesImage: lambda part: self.homes.update(part.rows),
        }
        for part in parts:
            takers[type(part)](part)
        for instance in self.instances.values():
            unsettled = sorted(instance.unsettled.items())
            instance.unsettled = dict(unsettled)
            instance.on_the_way = {
                request: None for request, record in unsettled if record.answered == ON_ITS_WAY
            }

    def _take_site(self, part: SiteImage) -> None:
        self.now, self.moment, self._log = part.now, part.moment, list(part.log)

    def _take_topics(self, part: TopicsImage) -> None:
        for topic, name, number, changed, passed, far in part.rows:
            self._learn(topic, number)
            self.changed[topic] = changed
            self.passed[topic] = passed
            if name:
                self.ids[name] = topic
                self.names[topic] = name
                self.far[topic] = far
                self.given[topic] = {}

    def _take_instances(self, part: InstancesImage) -> None:
        for client, taken, settled in part.rows:
            self.instances[client] = Instance(taken, settled)

    def _take_history(self, part: HistoryImage) -> None:
        for record in part.rows:
            self.history.append(record)
            self.history_entries += len(record.stamp.entries)
            self._take_given(record)

    def _take_open(self, part: OpenImage) -> None:
        for record in part.rows:
            self._take_given(record)

    def _take_given(self, record: GivenNumber) -> None:
        self.given[record.stamp.topic][record.stamp.number] = record
        self._take_unsettled(record)

    def _take_voided(self, part: VoidedImage) -> None:
        for record in part.rows:
            self._take_unsettled(record)

    def _take_unsettled(self, record: GivenNumber) -> None:
        instance = self.instances.get(record.client)
        if instance is not None and record.request > instance.settled:
            instance.unsettled[record.request] = record

    # ── looking in ───────────────────────────────────────────────────────────────────────

    @property
    def streams(self) -> int:
        """The streams that live here. Ended ones are remembered for a while, for their answers."""
        return sum(bool(home.topics) for home in self.homes.values())

    def validate(self) -> None:
        """Raise `InvariantError` if the state contradicts itself."""
        self.groups.validate()
        for topic, changed in enumerate(self.changed):
            if not self.passed[topic] <= changed <= self.moment:
                raise InvariantError(f"topic {topic} changed at {changed} of {self.moment}")
        if len(self._log) < min(self.moment, WALK):
            raise InvariantError("the log of changes is too short")
        for client, instance in self.instances.items():
            if list(instance.unsettled) != list(range(instance.settled + 1, instance.taken + 1)):
                raise InvariantError(f"{client} has other unsettled requests than it has made")
            waiting = [r for r, each in instance.unsettled.items() if each.answered == ON_ITS_WAY]
            if sorted(instance.on_the_way) != waiting:
                raise InvariantError(f"{client} waits for other timestamps than are on their way")
        entries = sum(len(record.stamp.entries) for record in self.history)
        if entries != self.history_entries:
            raise InvariantError("the entries of the history are counted wrongly")
        for record in self.history:
            stamp = record.stamp
            if record.state == OPEN or self.given[stamp.topic].get(stamp.number) is not record:
                raise InvariantError(f"number {stamp.number} of {stamp.topic} is no history")
        for topic, far in self.far.items():
            if far > self.number[topic]:
                raise InvariantError(f"topic {topic} is at {far}, beyond its last number")


def _request(row: tuple[int, Any]) -> int:
    return row[0]


def _split(
    rows: Sequence[tuple[int, Timestamp | None]],
) -> Iterator[Sequence[tuple[int, Any]]]:
    """The same rows in parts that fit into a frame."""
    start = entries = 0
    for at, (_, stamp) in enumerate(rows):
        more = 0 if stamp is None else len(stamp.entries) + 8 * len(stamp.gone)
        if at > start and (entries + more > FRAME_ENTRIES or at - start >= FRAME_STAMPS):
            yield rows[start:at]
            start, entries = at, 0
        entries += more
    if start < len(rows):
        yield rows[start:]


def _numbers(rows: Sequence[tuple[int, Timestamp | None]]) -> Iterator[Numbers]:
    """Answers to these requests, in frames with consecutive ones."""
    for part in _split(rows):
        start = 0
        for at in range(1, len(part) + 1):
            if at == len(part) or part[at][0] != part[at - 1][0] + 1:
                yield Numbers(part[start][0], tuple([stamp for _, stamp in part[start:at]]))
                start = at
