"""The algorithm of paper 4 as it is published (section 3.4), as a model: no faults, FIFO links, an
event service that loses nothing. It is the baseline: without changes of subscriptions it keeps its
order; with them it inverts, and stalls.

A topic has a stage of the sequencer, the paper's topic manager. Topics are listed from the highest
rank to the lowest; timestamps go from a topic's stage to those of higher rank in its group.

Where the text leaves something open, `Reading` has both ways to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from motet.testing.clock import Agenda
from motet.testing.ordering.checkers import notification_order
from motet.testing.ordering.history import PAIRS, Given, OrderHistory

HOP_S: Final = 0.001
DUMMY: Final = 0
"""Instead of an event. Applications never see it."""
END_S: Final = 1e6

Clock = dict[str, int]
"""By topic: a number."""


class Reading(NamedTuple):
    """`literal`: entries of a timestamp are equal to the subscriber's clock; a subscriber takes
    over the whole timestamp of its change; dummy events set the clock at once. Otherwise each is
    read as favourably as we can: entries are at most the clock; the timestamp of a change counts
    for the new topic only; a dummy event waits for its place among the events of its topic."""

    literal: bool


LITERAL: Final = Reading(literal=True)
FAVOURABLE: Final = Reading(literal=False)
READINGS: Final = {"literal": LITERAL, "favourable": FAVOURABLE}


class Stamp(NamedTuple):
    """Of an event; `way`: the stages that still add to it."""

    topic: str
    numbers: Clock
    way: tuple[str, ...] = ()


class Message(NamedTuple):
    """What the event service carries. Event 0: a dummy."""

    event: int
    stamp: Stamp


@dataclass
class SequencerStage:
    """Of one topic: who has it, with all their topics; its number; numbers of lower topics."""

    topic: str
    number: int = 0
    lower: Clock = field(default_factory=dict)
    subscriptions: dict[str, frozenset[str]] = field(default_factory=dict)

    def group(self) -> set[str]:
        """Definition 1."""
        counts: dict[str, int] = {}
        for topics in self.subscriptions.values():
            for topic in topics:
                counts[topic] = counts.get(topic, 0) + 1
        return {topic for topic, count in counts.items() if count > 1} | {self.topic}

    def note(self, subscriber: str, topics: Iterable[str]) -> None:
        kept = frozenset(topics)
        if self.topic in kept:
            self.subscriptions[subscriber] = kept
        else:
            self.subscriptions.pop(subscriber, None)

    def learn(self, numbers: Mapping[str, int]) -> None:
        for topic, number in numbers.items():
            if topic != self.topic:
                self.lower[topic] = max(number, self.lower.get(topic, 0))


@dataclass
class PublishedSubscriber:
    name: str
    topics: dict[str, None] = field(default_factory=dict)
    clock: Clock = field(default_factory=dict)
    buffer: list[Message] = field(default_factory=list)
    joined: str = ""
    """The topic that is being added: what comes for it is buffered."""
    given: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, number and event, in order."""


class PublishedOutcome(NamedTuple):
    """`stalled`: events that reached a subscriber, which waits for ever; `inverted`: what the
    checker of the order has found."""

    stalled: tuple[str, ...]
    inverted: tuple[str, ...]


class PublishedSequencer:
    """Stages, subscribers and an event service in virtual time."""

    def __init__(
        self,
        topics: Sequence[str],
        reading: Reading = LITERAL,
        hop_s: Callable[[], float] = lambda: HOP_S,
    ) -> None:
        self.agenda = Agenda()
        self.topics = tuple(topics)
        """The highest rank first."""
        self.stages = {topic: SequencerStage(topic) for topic in topics}
        self.subscribers: dict[str, PublishedSubscriber] = {}
        self.slow: dict[tuple[str, str], float] = {}
        """By link, sender first: how long its next message takes."""
        self.held: dict[tuple[str, str], list[Message]] = {}
        """By subscriber and topic: what the event service is late with."""
        self.sizes: list[int] = []
        """Of all timestamps of events."""
        self._reading = reading
        self._hop_s = hop_s
        self._last: dict[tuple[str, str], float] = {}
        self._events = 0

    def _send(self, one: str, other: str, action: Callable[..., None], *args: Any) -> None:
        """Over a FIFO link."""
        link = (one, other)
        hop_s = self.slow.pop(link, None) or self._hop_s()
        at = max(self._last.get(link, 0.0), self.agenda.now + hop_s)
        self._last[link] = at
        self.agenda.at(at, action, *args)

    def settle(self) -> None:
        """Until nothing is under way any more."""
        self.agenda.run(self.agenda.now + END_S)

    def _ranked(self, topics: Iterable[str]) -> list[str]:
        """The lowest rank first."""
        return sorted(topics, key=self.topics.index, reverse=True)

    # ── publications ─────────────────────────────────────────────────────────────────────

    def publish(self, topic: str, *, repeated: int = 0) -> int:
        """Returns the event. `repeated`: so often the answer is lost, and the publisher starts the
        procedure again, as section 4 says."""
        self._events += 1
        for turn in range(repeated + 1):
            self._send("publisher", topic, self._number, topic, self._events, turn == repeated)
        return self._events

    def _number(self, topic: str, event: int, arrives: bool) -> None:
        stage = self.stages[topic]
        group = stage.group()
        stage.number += 1
        numbers = {topic: stage.number}
        rank = self.topics.index(topic)
        for other in group:
            if self.topics.index(other) > rank:
                numbers[other] = stage.lower.get(other, 0)
        way = [other for other in self._ranked(group) if self.topics.index(other) < rank]
        self._onward(topic, Stamp(topic, numbers, tuple(way)), event, arrives)

    def _onward(self, here: str, stamp: Stamp, event: int, arrives: bool) -> None:
        if stamp.way:
            self._send(here, stamp.way[0], self._pass, stamp, event, arrives)
        elif arrives:
            self.sizes.append(len(stamp.numbers))
            self._send(here, "publisher", self._deliver, Message(event, stamp))

    def _pass(self, stamp: Stamp, event: int, arrives: bool) -> None:
        stage = self.stages[stamp.way[0]]
        stage.learn(stamp.numbers)
        numbers = stamp.numbers | {stage.topic: stage.number}
        self._onward(stage.topic, Stamp(stamp.topic, numbers, stamp.way[1:]), event, arrives)

    # ── the event service ────────────────────────────────────────────────────────────────

    def _deliver(self, message: Message) -> None:
        topic = message.stamp.topic
        for subscriber in list(self.subscribers.values()):
            if topic in subscriber.topics:
                late = self.held.get((subscriber.name, topic))
                if late is not None and message.event != DUMMY:
                    late.append(message)
                else:
                    self.agenda.after(self._hop_s(), self._notify, subscriber, message)

    def hold(self, name: str, topic: str) -> None:
        """The service is late with events of this topic."""
        self.held[name, topic] = []

    def release(self, name: str, topic: str) -> None:
        for message in self.held.pop((name, topic)):
            self._notify(self.subscribers[name], message)

    def _notify(self, subscriber: PublishedSubscriber, message: Message) -> None:
        topic = message.stamp.topic
        if topic not in subscriber.topics:
            return
        if message.event == DUMMY and self._reading.literal:
            for other, number in message.stamp.numbers.items():
                if other in subscriber.clock:
                    subscriber.clock[other] = max(number, subscriber.clock[other])
        else:
            subscriber.buffer.append(message)
        self._flush(subscriber)

    def _flush(self, subscriber: PublishedSubscriber) -> None:
        while True:
            ready = next((each for each in subscriber.buffer if self._due(subscriber, each)), None)
            if ready is None:
                return
            subscriber.buffer.remove(ready)
            topic = ready.stamp.topic
            number = subscriber.clock[topic] = ready.stamp.numbers[topic]
            if ready.event != DUMMY:
                subscriber.given.append((topic, number, ready.event))

    def _due(self, subscriber: PublishedSubscriber, message: Message) -> bool:
        topic, numbers, _ = message.stamp
        clock = subscriber.clock
        if topic == subscriber.joined or numbers[topic] != clock[topic] + 1:
            return False
        if message.event == DUMMY:
            return True
        others = [
            (clock[each], number)
            for each, number in numbers.items()
            if each != topic and each in clock
        ]
        if self._reading.literal:
            return all(own == number for own, number in others)
        return all(own >= number for own, number in others)

    # ── subscriptions ────────────────────────────────────────────────────────────────────

    def subscribe(self, name: str, *topics: str) -> None:
        """One after the other, and wait for each."""
        for topic in topics:
            self.join(name, topic)
            self.settle()

    def join(self, name: str, topic: str) -> None:
        """Not while another change of this subscriber is under way."""
        subscriber = self.subscribers.setdefault(name, PublishedSubscriber(name))
        assert not subscriber.joined
        subscriber.topics[topic] = None
        subscriber.joined = topic
        subscriber.clock[topic] = 0
        way = tuple(self._ranked(subscriber.topics))
        self._send(name, way[0], self._change, name, frozenset(way), Stamp(topic, {}, way))

    def _change(self, name: str, topics: frozenset[str], stamp: Stamp) -> None:
        stage = self.stages[stamp.way[0]]
        stage.note(name, topics)
        stage.number += 1
        stage.learn(stamp.numbers)
        numbers = stamp.numbers | {stage.topic: stage.number}
        onward = Stamp(stamp.topic, numbers, stamp.way[1:])
        if onward.way:
            self._send(stage.topic, onward.way[0], self._change, name, topics, onward)
        else:
            self._send(stage.topic, name, self._changed, self.subscribers[name], onward)

    def _changed(self, subscriber: PublishedSubscriber, stamp: Stamp) -> None:
        topic = subscriber.joined
        subscriber.joined = ""
        taken = stamp.numbers if self._reading.literal else {topic: stamp.numbers[topic]}
        for each, number in taken.items():
            if each in subscriber.topics:
                subscriber.clock[each] = max(number, subscriber.clock[each])
        old = stamp.numbers[topic]
        subscriber.buffer = [
            each
            for each in subscriber.buffer
            if each.stamp.topic != topic or each.stamp.numbers[topic] > old
        ]
        for each in stamp.numbers:
            dummy = Message(DUMMY, Stamp(each, stamp.numbers))
            self._send(subscriber.name, "service", self._deliver, dummy)
        self._flush(subscriber)

    def leave(self, name: str, topic: str) -> None:
        subscriber = self.subscribers[name]
        assert not subscriber.joined
        del subscriber.topics[topic], subscriber.clock[topic]
        subscriber.buffer = [each for each in subscriber.buffer if each.stamp.topic != topic]
        left = frozenset(subscriber.topics)
        for each in (*left, topic):
            self._send(name, each, self.stages[each].note, name, left)

    # ── what came of it ──────────────────────────────────────────────────────────────────

    def outcome(self) -> PublishedOutcome:
        """At the end of a run."""
        stalled = [
            f"{each.name} has event {message.event} of {message.stamp.topic}, and waits for ever"
            for each in self.subscribers.values()
            for message in each.buffer
            if message.event != DUMMY
        ]
        history = OrderHistory(PAIRS)
        for each in self.subscribers.values():
            history.session(each.name, each.name).steps = [Given(*row) for row in each.given]
        return PublishedOutcome(tuple(stalled), tuple(notification_order.check(history).violations))


# ── random runs ──────────────────────────────────────────────────────────────────────────


class RandomEffort(NamedTuple):
    topics: int = 5
    subscribers: int = 4
    acts: int = 60
    changes: float = 0.15
    """The share of acts that are changes of subscriptions."""
    repeats: float = 0.0
    """The share of publications whose first answer is lost."""


def random_run(seed: int, reading: Reading, effort: RandomEffort) -> PublishedOutcome:
    dice = Random(f"as published {seed}")
    topics = [f"T{number}" for number in range(1, effort.topics + 1)]
    run = PublishedSequencer(topics, reading, lambda: 0.02 * dice.expovariate(1.0))
    for number in range(effort.subscribers):
        run.subscribe(f"s{number}", *dice.sample(topics, dice.randint(1, 3)))
    for _ in range(effort.acts):
        name = f"s{dice.randrange(effort.subscribers)}"
        if dice.random() >= effort.changes:
            repeated = int(dice.random() < effort.repeats)
            run.publish(dice.choice(topics), repeated=repeated)
        elif not run.subscribers[name].joined:
            topic = dice.choice(topics)
            if topic not in run.subscribers[name].topics:
                run.join(name, topic)
            else:
                run.leave(name, topic)
        run.agenda.run(run.agenda.now + 0.02 * dice.expovariate(1.0))
    run.settle()
    return run.outcome()


# ── schedules ────────────────────────────────────────────────────────────────────────────


def overtaken_number(reading: Reading) -> PublishedOutcome:
    """A number is on its way over a stage that leaves the group meanwhile; the next one takes the
    shorter way."""
    run = PublishedSequencer(("T", "V", "U"), reading)
    for name in ("i", "j"):
        run.subscribe(name, "T", "V", "U")
    run.slow["V", "T"] = 1.0
    run.publish("U")
    run.agenda.run(run.agenda.now + 0.1)
    run.leave("j", "V")
    run.agenda.run(run.agenda.now + 0.1)
    run.publish("U")
    run.agenda.run(run.agenda.now + 0.1)
    run.publish("T")
    run.settle()
    return run.outcome()


def repeated_request(reading: Reading) -> PublishedOutcome:
    """The answer to a request is lost, and the publisher starts again: it gets another number."""
    run = PublishedSequencer(("T",), reading)
    run.subscribe("i", "T")
    run.publish("T", repeated=1)
    run.settle()
    return run.outcome()


def changed_interest(reading: Reading) -> PublishedOutcome:
    """x gets f on U, leaves U and joins T; e on T. y has T and U, and f comes late. Nobody but y
    ever has both topics at the same time, so nothing orders e and f."""
    run = PublishedSequencer(("T", "U", "V"), reading)
    run.subscribe("y", "T", "U")
    run.subscribe("x", "U", "V")
    run.hold("y", "U")
    run.publish("U")
    run.settle()
    run.leave("x", "U")
    run.settle()
    run.subscribe("x", "T")
    run.publish("T")
    run.settle()
    run.release("y", "U")
    run.settle()
    return run.outcome()


SCHEDULES: Final[dict[str, Callable[[Reading], PublishedOutcome]]] = {
    "a number is overtaken after a change": overtaken_number,
    "a request is repeated": repeated_request,
    "a subscriber changes its interest": changed_interest,
}
