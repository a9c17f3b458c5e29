"""A small world of sites, publishers and streams, for random and for written schedules.

Sites are the real durable machines; links between them are FIFO and keep what a dead site has not
taken. Publishers and streams are models that follow the rules of the design, nothing more.
`removed` names rules that are left out, to show that the checks notice it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import combinations, islice, pairwise
from random import Random
from typing import Any

from motet.protocol.contract import Fact
from motet.protocol.link.facts import ControlReceived
from motet.protocol.link.messages import Control
from motet.protocol.sequencing.facts import (
    ChangeRequested,
    GivenBack,
    LeasePassed,
    NumbersConfirmed,
    NumbersRequested,
    StreamsExpired,
    TopicsNamed,
)
from motet.protocol.sequencing.messages import (
    CAUSAL,
    OPEN,
    PUBLISHED,
    VOID,
    Changed,
    Numbers,
    RequestsSettled,
    Timestamp,
)
from motet.protocol.sequencing.state import ON_ITS_WAY
from motet.sequencer.config import SiteConfig
from motet.sequencer.durable import DurableSite
from motet.sequencer.records import MACHINE_VERSION, decode_fact, decode_parts, encode

Event = tuple[int, int]
"""Topic and number."""
ROUNDS = 60


class Stalled(Exception):
    """Not everything is delivered, although nothing else will happen."""


class Inverted(Exception):
    """Two streams, or a stream and causality, disagree about an order."""


class World:
    def __init__(
        self,
        seed: int = 0,
        mode: str = CAUSAL,
        sites: int = 2,
        topics: int = 2,
        removed: Collection[str] = (),
        site_type: type[DurableSite] = DurableSite,
    ) -> None:
        self.random = Random(seed)
        self.mode = mode
        self.removed = frozenset(removed)
        self.now = 0.0
        names = tuple(f"s{at}" for at in range(sites))
        self._type = site_type
        self._configs = [SiteConfig(name, names, mode=mode) for name in names]
        self.sites = [site_type(config) for config in self._configs]
        self.facts: list[list[Fact]] = [[] for _ in names]
        for at in range(sites):
            self.apply(at, TopicsNamed(tuple(f"t{at}.{each}" for each in range(topics))))
        self.topics = sorted(topic for each in self.sites for topic in each.site.names)
        self.publishers: dict[str, Publisher] = {}
        self.streams: list[Stream] = []
        self.homes: dict[str, Stream] = {}
        """Streams by id."""
        self.after: list[tuple[Any, Token]] = []
        """Causality: an event, or a token of one, and one that was requested after it."""

    # ── sites ────────────────────────────────────────────────────────────────────────────

    def site_of(self, topic: int) -> int:
        return topic % len(self.sites)

    def apply(self, at: int, body: Any) -> None:
        self.now += 0.001
        fact = Fact(self.now, body)
        self.facts[at].append(fact)
        for client, frame in self.sites[at].apply(fact).answers:
            if isinstance(frame, Changed):
                if frame.stream in self.homes:
                    self.homes[frame.stream].inbox.append(frame)
            elif client in self.publishers:
                self.publishers[client].inbox[at].append(frame)

    def links(self) -> list[tuple[int, int]]:
        """Those with messages under way."""
        count = range(len(self.sites))
        names = [config.name for config in self._configs]
        return [
            (one, other)
            for one in count
            for other in count
            if one != other and self.sites[one].ledgers[names[other]].outbox
        ]

    def carry(self, one: int, other: int, most: int = 2) -> None:
        """The next messages of a link arrive."""
        ledger = self.sites[one].ledgers[self._configs[other].name]
        rows = list(islice(ledger.outbox, most))
        control = Control(rows[0][0], tuple(message for _, message in rows))
        self.apply(other, ControlReceived(self._configs[one].name, control))
        ledger.trim(rows[-1][0])

    def crash(self, at: int) -> None:
        """Replay all facts, or restore an image of half of them and replay the rest. Answers that
        have not arrived are lost."""
        before = self.sites[at]
        half = self.random.randrange(len(self.facts[at]) + 1)
        first = self._type(self._configs[at])
        first.replay(self.facts[at][:half])
        again = self._type(self._configs[at])
        again.restore(decode_parts(MACHINE_VERSION, map(encode, first.parts())))
        assert again.digest() == first.digest()
        again.replay(decode_fact(encode(fact)) for fact in self.facts[at][half:])
        assert again.digest() == before.digest()
        again.validate()
        for name, ledger in before.ledgers.items():
            assert ledger.is_kept_by(again.ledgers[name])
            again.ledgers[name].trim(ledger.confirmed)
        self.sites[at] = again
        for publisher in self.publishers.values():
            publisher.inbox[at].clear()
        for stream in self.streams:
            if stream.home == at:
                stream.inbox.clear()

    # ── the service ──────────────────────────────────────────────────────────────────────

    def publish(self, stamp: Timestamp) -> None:
        for stream in self.streams:
            if stamp.topic in stream.subscribed:
                stream.bag.append(stamp)
                if self.random.random() < 0.1:
                    stream.bag.append(stamp)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Let everything finish. Raises `Stalled` if that never happens."""
        for _ in range(ROUNDS):
            for link in self.links():
                self.carry(*link, most=100)
            for publisher in self.publishers.values():
                publisher.finish()
            for stream in self.streams:
                stream.finish()
            if not self.links() and self._complete():
                return
        raise Stalled(", ".join(stream.state() for stream in self.streams if not stream.complete()))

    def _complete(self) -> bool:
        return all(stream.complete() for stream in self.streams)

    def check(self) -> None:
        """Raise `Inverted` if an order is not kept."""
        told = [session for stream in self.streams for session in stream.sessions]
        for one, other in combinations(told, 2):
            places = {event: place for place, event in enumerate(one)}
            common = [places[event] for event in other if event in places]
            if common != sorted(common):
                raise Inverted(f"{one} and {other}")
        if self.mode == CAUSAL:
            edges = [pair for session in told for pair in pairwise(session)]
            for cause, token in self.after:
                first = cause.event if isinstance(cause, Token) else cause
                if first is not None and token.event is not None:
                    edges.append((first, token.event))
            _no_circle(edges)


def _no_circle(edges: Iterable[tuple[Event, Event]]) -> None:
    behind: dict[Event, set[Event]] = defaultdict(set)
    before: dict[Event, int] = defaultdict(int)
    for one, other in edges:
        if other not in behind[one]:
            behind[one].add(other)
            before[other] += 1
    free = [event for event in behind if not before[event]]
    while free:
        for event in behind.get(free.pop(), ()):
            before[event] -= 1
            if not before[event]:
                free.append(event)
    left = [event for event, count in before.items() if count]
    if left:
        raise Inverted(f"a circle through some of {left}")


class Token:
    """An event from its request on; it gets its number later."""

    def __init__(self, topic: int, request: int) -> None:
        self.topic = topic
        self.request = request
        self.stamp: Timestamp | None = None
        self.answered = self.done = False

    @property
    def event(self) -> Event | None:
        return None if self.stamp is None else (self.topic, self.stamp.number)


class Publisher:
    def __init__(self, world: World, name: str, stream: Stream | None = None) -> None:
        self.world = world
        self.name = name
        self.stream = stream
        self.alive = True
        self.inbox: dict[int, deque[Any]] = defaultdict(deque)
        self.tokens: dict[int, dict[int, Token]] = defaultdict(dict)
        """By site and request."""
        self.taken: dict[int, int] = defaultdict(int)
        self.settled: dict[int, int] = defaultdict(int)
        self.last: Token | None = None
        self.voided: list[Event] = []
        world.publishers[name] = self

    def unanswered(self, site: int | None = None) -> list[Token]:
        return [
            token
            for at, tokens in self.tokens.items()
            if site is None or at == site
            for token in tokens.values()
            if not token.answered
        ]

    def may_turn_to(self, site: int) -> bool:
        if "waiting between sites" in self.world.removed:
            return True
        return not any(self.unanswered(at) for at in self.tokens if at != site)

    def request(self, *topics: int, lost: bool = False) -> list[Token]:
        world = self.world
        site = world.site_of(topics[0])
        first = self.taken[site] + 1
        tokens = []
        for topic in topics:
            self.taken[site] += 1
            token = Token(topic, self.taken[site])
            self.tokens[site][token.request] = token
            tokens.append(token)
            if self.last is not None:
                world.after.append((self.last, token))
            if self.stream is not None and self.stream.sessions[-1]:
                world.after.append((self.stream.sessions[-1][-1], token))
            self.last = token
        if not lost:
            self._send(site, first, topics)
        return tokens

    def _send(self, site: int, first: int, topics: tuple[int, ...]) -> None:
        instance = self.world.sites[site].site.instances.get(self.name)
        if first <= (0 if instance is None else instance.taken) + 1:  # else there is a gap
            self.world.apply(site, NumbersRequested(self.name, first, topics))

    def repeat(self, site: int) -> None:
        waiting = self.unanswered(site)
        if waiting:
            first = waiting[0].request
            topics = tuple(t.topic for t in self.tokens[site].values() if t.request >= first)
            self._send(site, first, topics)

    def hear(self, site: int) -> None:
        frame = self.inbox[site].popleft()
        if isinstance(frame, RequestsSettled):
            for request in frame.voided:
                token = self.tokens[site][request]
                if token.event is not None:
                    self.voided.append(token.event)
        if isinstance(frame, Numbers):
            for request, stamp in enumerate(frame.stamps, frame.first):
                token = self.tokens[site][request]
                if not token.answered:
                    token.answered, token.stamp, token.done = True, stamp, stamp is None

    def ready(self) -> list[tuple[int, Token]]:
        return [
            (site, token)
            for site, tokens in self.tokens.items()
            for token in tokens.values()
            if token.stamp is not None and not token.done
        ]

    def publish(self, token: Token) -> None:
        assert token.stamp is not None
        token.done = True
        self.world.publish(token.stamp)

    def give_back(self, site: int, token: Token) -> None:
        token.answered = token.done = True
        self.world.apply(site, GivenBack(self.name, (token.request,)))

    def confirm(self, site: int) -> None:
        upto = self.settled[site]
        while (token := self.tokens[site].get(upto + 1)) is not None and token.done:
            upto += 1
        if upto > self.settled[site]:
            self.settled[site] = upto
            self.world.apply(site, NumbersConfirmed(self.name, upto))

    def lease_passes(self, site: int) -> None:
        """The clock of the site says so; the publisher may live."""
        instance = self.world.sites[site].site.instances.get(self.name)
        due = tuple(
            request
            for request, record in (instance.unsettled if instance is not None else {}).items()
            if record.state == OPEN and record.answered != ON_ITS_WAY
        )
        if due and "void" not in self.world.removed:
            self.world.apply(site, LeasePassed(((self.name, due),)))

    def finish(self) -> None:
        for site in list(self.tokens):
            if self.alive:
                self.repeat(site)
            while self.inbox[site]:
                self.hear(site)
            if not self.alive:
                self.lease_passes(site)
        if self.alive:
            for _, token in self.ready():
                self.publish(token)
            for site in list(self.tokens):
                self.confirm(site)


class Stream:
    """A model of a stream: the rule of delivery, and nothing else."""

    def __init__(self, world: World, name: str, *topics: int, home: int | None = None) -> None:
        self.world = world
        self.name = name
        self.home = world.site_of(topics[0]) if home is None else home
        self.subscribed: dict[int, None] = {}
        self.bag: list[Timestamp] = []
        self.inbox: deque[Changed] = deque()
        self.held: dict[Event, tuple[Timestamp, bool]] = {}
        """Timestamps above the clock, and whether there is an event."""
        self.passed: set[Event] = set()
        """Numbers that were passed without their events."""
        self.late: list[Event] = []
        self.sessions: list[list[Event]] = []
        self.lives = 0
        world.streams.append(self)
        for topic in topics:
            self.subscribed[topic] = None
        self._begin()

    def _begin(self) -> None:
        """A new session with all topics that it wants."""
        self.lives += 1
        self.id = f"{self.name}.{self.lives}"
        self.world.homes[self.id] = self
        self.clock: dict[int, int] = {}
        self.gates: list[tuple[set[int], dict[int, int]]] = []
        """New topics, and the cuts of the former ones that their events wait for. A stream may add
        another topic while it waits."""
        self.number = 0
        self.stopped = False
        self.wanted: tuple[int, ...] | None = None
        self.sessions.append([])
        self.inbox.clear()
        self.change(tuple(self.subscribed))

    # ── changes ──────────────────────────────────────────────────────────────────────────

    def add(self, topic: int) -> None:
        self.subscribed[topic] = None
        self.change((*self.clock, topic))

    def drop(self, topic: int) -> None:
        """Nothing of it is delivered from now on: its site may order it with nothing of ours."""
        if "dropping begins at once" not in self.world.removed:
            del self.clock[topic]
        self.change(tuple(each for each in self.clock if each != topic))

    def change(self, topics: tuple[int, ...]) -> None:
        self.number += 1
        self.wanted = topics
        adds = any(topic not in self.clock for topic in topics)
        self.stopped = adds and "the joiner stops" not in self.world.removed
        self.ask_for_change()

    def ask_for_change(self) -> None:
        """As the core of its home does it."""
        if self.wanted is None:
            return
        home = self.world.sites[self.home].site.homes.get(self.id)
        if (home is None and self.number > 1) or (home is not None and home.ending):
            self.inbox.append(Changed(self.id, self.number, {}, "Expired"))
        elif home is not None and home.done == self.number:
            self.inbox.append(Changed(self.id, self.number, home.cut))
        elif home is None or not home.pending:
            fact = ChangeRequested(self.name, self.id, self.number, self.wanted)
            self.world.apply(self.home, fact)

    def hear(self) -> None:
        answer = self.inbox.popleft()
        if answer.stream != self.id or answer.number != self.number or self.wanted is None:
            return
        if answer.error:
            self._begin()
            return
        new = {topic for topic in answer.cut if topic not in self.clock}
        former = {topic: cut for topic, cut in answer.cut.items() if topic not in new}
        if new and former and "waiting for the cut" not in self.world.removed:
            self.gates.append((new, former))
        for topic in new:
            self.clock[topic] = answer.cut[topic]
        self.clock = {topic: upto for topic, upto in self.clock.items() if topic in answer.cut}
        self.subscribed = dict.fromkeys(self.clock)
        self.bag = [stamp for stamp in self.bag if stamp.topic in self.subscribed]
        self.held = {
            (topic, number): row
            for (topic, number), row in self.held.items()
            if topic in self.clock and number > self.clock[topic]
        }
        self.wanted = None
        self.stopped = False
        self.deliver()

    # ── delivery ─────────────────────────────────────────────────────────────────────────

    def receive(self, at: int) -> None:
        """An event arrives from the service, in any order."""
        stamp = self.bag.pop(at)
        event = stamp.topic, stamp.number
        if event in self.passed and stamp.number <= self.clock.get(stamp.topic, 0):
            self.passed.discard(event)
            if "late ones are tagged" in self.world.removed:
                self.sessions[-1].append(event)
            else:
                self.late.append(event)
        elif stamp.number > self.clock.get(stamp.topic, 0):
            self.held[event] = stamp, True
        self.deliver()

    def deliver(self) -> None:
        while not self.stopped:
            for topic, upto in self.clock.items():
                row = self.held.get((topic, upto + 1))
                if row is not None and self._may(topic, row[0]):
                    break
            else:
                return
            del self.held[topic, upto + 1]
            self.clock[topic] = upto + 1
            if self.id in row[0].gone and "the expired are told" not in self.world.removed:
                self._begin()
            elif row[1]:
                self.sessions[-1].append((topic, upto + 1))
            else:
                self.passed.add((topic, upto + 1))

    def _may(self, topic: int, stamp: Timestamp) -> bool:
        clock = self.clock
        for new, former in self.gates:
            if topic in new and any(clock.get(other, cut) < cut for other, cut in former.items()):
                return False
        entries = iter(stamp.entries)
        return all(
            clock.get(other, number) >= number
            for other, number in zip(entries, entries, strict=True)
        )

    def missing(self) -> Iterator[Event]:
        """The next number of each topic, if its site has given it and it is not here."""
        for topic, upto in self.clock.items():
            last = self.world.sites[self.world.site_of(topic)].site.number[topic]
            if upto < last and (topic, upto + 1) not in self.held:
                yield topic, upto + 1

    def ask(self, *, impatient: bool = False) -> None:
        for topic, number in list(self.missing()):
            site = self.world.sites[self.world.site_of(topic)].site
            state, stamp = site.became(topic, number)
            if state == VOID or (impatient and state == PUBLISHED):
                assert stamp is not None
                if "a void number keeps its timestamp" in self.world.removed and state == VOID:
                    stamp = Timestamp(topic, number)
                self.held[topic, number] = stamp, False
        self.deliver()

    def keep(self) -> None:
        home = self.world.sites[self.home].site.homes.get(self.id)
        if (
            (home is None and self.number > 1)
            or (home is not None and home.ending)
            or (home is None and self.wanted is None)
        ):
            self._begin()

    def finish(self) -> None:
        while self.inbox:
            self.hear()
        self.ask_for_change()
        self.keep()
        while self.bag:
            self.receive(self.world.random.randrange(len(self.bag)))
        if "asking" not in self.world.removed:
            self.ask()

    def complete(self) -> bool:
        if self.wanted is not None or self.bag or self.inbox:
            return False
        sites = self.world.sites
        return all(
            sites[self.world.site_of(topic)].site.number[topic] == upto
            for topic, upto in self.clock.items()
        )

    def state(self) -> str:
        return f"{self.id} at {self.clock} holds {sorted(self.held)}, wants {self.wanted}"


# ── random schedules ─────────────────────────────────────────────────────────────────────


def run(
    seed: int,
    mode: str = CAUSAL,
    *,
    removed: Collection[str] = (),
    faults: bool = True,
    steps: int = 70,
    site_type: type[DurableSite] = DurableSite,
) -> World:
    """A random schedule, to its end. Raises `Stalled` or `Inverted` if the rule does not hold."""
    random = Random(seed)
    world = World(
        seed, mode, random.randint(1, 3), random.randint(1, 2), removed, site_type=site_type
    )
    for at in range(random.randint(2, 3)):
        topics = random.sample(world.topics, random.randint(1, min(3, len(world.topics))))
        home = random.randrange(len(world.sites))
        stream = Stream(world, f"x{at}", *topics, home=home)
        Publisher(world, f"p{at}", stream)
    Publisher(world, "q")
    for _ in range(steps):
        _step(world, random, faults)
    for publisher in world.publishers.values():
        if faults and random.random() < 0.2:
            publisher.alive = False
    world.settle()
    for each in world.sites:
        each.validate()
    world.check()
    return world


def _step(world: World, random: Random, faults: bool) -> None:
    publisher = random.choice(list(world.publishers.values()))
    stream = random.choice(world.streams)
    chance = random.random()
    if chance < 0.2:
        topic = random.choice(world.topics)
        site = world.site_of(topic)
        if publisher.may_turn_to(site):
            same = [each for each in world.topics if world.site_of(each) == site]
            more = [random.choice(same) for _ in range(random.randint(0, 2))]
            publisher.request(topic, *more, lost=faults and random.random() < 0.1)
    elif chance < 0.42:
        links = world.links()
        if links:
            world.carry(*random.choice(links))
    elif chance < 0.55:
        for site in list(publisher.inbox):
            if publisher.inbox[site]:
                publisher.hear(site)
        if stream.inbox:
            stream.hear()
    elif chance < 0.7:
        ready = publisher.ready()
        if ready:
            site, token = random.choice(ready)
            publisher.publish(token)
            if random.random() < 0.5:
                publisher.confirm(site)
    elif chance < 0.85:
        if stream.bag:
            stream.receive(random.randrange(len(stream.bag)))
    elif chance < 0.93:
        if stream.wanted is None:
            _change(world, stream, random)
    elif faults:
        _mishap(world, publisher, stream, random)


def _change(world: World, stream: Stream, random: Random) -> None:
    others = [topic for topic in world.topics if topic not in stream.clock]
    if others and random.random() < 0.6:
        stream.add(random.choice(others))
    elif len(stream.clock) > 1:
        stream.drop(random.choice(list(stream.clock)))


def _mishap(world: World, publisher: Publisher, stream: Stream, random: Random) -> None:
    what = random.randrange(8)
    if what == 0:
        world.crash(random.randrange(len(world.sites)))
    elif what == 1:
        for site in list(publisher.tokens):
            publisher.repeat(site)
    elif what == 2 and publisher.ready():
        publisher.give_back(*random.choice(publisher.ready()))
    elif what == 3:
        publisher.lease_passes(random.randrange(len(world.sites)))
    elif what == 4:
        world.apply(stream.home, StreamsExpired((stream.id,)))
    elif what == 5:
        stream.ask(impatient=random.random() < 0.6)
    elif what == 6:
        stream.ask_for_change()
    else:
        for site in list(publisher.tokens):
            publisher.confirm(site)
