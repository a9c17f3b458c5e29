"""One stream: what it waits for, whom it asks, and how its topics change."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from motet.errors import (
    ClosedError,
    MotetError,
    NotOffered,
    SitesAway,
    TopicElsewhere,
    TopicRefused,
)
from motet.ordering.contract import ClientEffects, MissingNumbers, Result
from motet.ordering.delivery import EVENT, GIVEN_UP, LATE, VOIDED, Clocks, PassedNumber
from motet.ordering.events import Gap, Joined, LostEvents, OrderedEvent
from motet.protocol.sequencing.messages import (
    FORGOTTEN,
    MAX_ASKED,
    MAX_TOPICS_OF_STREAM,
    PUBLISHED,
    UNGIVEN,
    VOID,
    AskNumbers,
    Changed,
    ChangeRequest,
    HowFar,
    SequencingFrame,
    Timestamp,
)

LONGEST_PAUSE_S: Final = 1.0
"""Between two questions about the same number."""
LONGEST_IDLE_S: Final = 8.0
"""Between two questions how far a silent topic is."""
DOUBT: Final = 4
"""Times its patience: how long a stream leaves an event alone that waits, and that nobody has
confirmed."""
CHECK_S: Final = 5.0
"""Between two questions whether clocks are where their sites are."""
EXPIRED: Final = "Expired"


class StreamWorld(Protocol):
    """What the stream needs of its machine."""

    out: ClientEffects
    now: float
    ids: dict[str, int]
    names: dict[int, str]
    lossless: bool
    asked: int

    def site_of(self, topic: int) -> str: ...
    def up(self, site: str) -> bool: ...
    def send(self, site: str, frame: SequencingFrame) -> None: ...
    def ask(self, site: str, frame: AskNumbers | HowFar) -> int: ...
    def probe(
        self, stream: StreamMachine, names: Iterable[str], along: Iterable[str]
    ) -> set[str]: ...
    def subscribe(self, stream: StreamMachine, name: str) -> bool: ...
    def unsubscribe(self, stream: StreamMachine, name: str) -> None: ...
    def ended(self, stream: StreamMachine) -> None: ...


class StreamLimits:
    """`patience_s`: how long a stream waits before it asks. `limit_s`: how long it waits for an
    event that was published, if the service may lose it. `buffer`: events that may wait."""

    def __init__(
        self,
        patience_s: float = 0.25,
        limit_s: float = 5.0,
        buffer: int = 100_000,
        idle_s: float = 1.0,
        probe_s: float = 5.0,
    ) -> None:
        self.patience_s = patience_s
        self.limit_s = limit_s
        self.buffer = buffer
        self.idle_s = idle_s
        self.probe_s = probe_s


class Stall:
    """A topic whose next number is missing."""

    __slots__ = ("ask_at", "is_urgent", "number", "pause_s", "since")

    def __init__(self, number: int, now: float, patience_s: float, is_urgent: bool = False) -> None:
        self.number = number
        self.is_urgent = is_urgent
        self.since = now
        self.ask_at = now + patience_s
        self.pause_s = patience_s


class Quiet:
    """When a topic was heard of last, and when its site is asked how far it is."""

    __slots__ = ("ask_at", "pause_s")

    def __init__(self, now: float, pause_s: float) -> None:
        self.ask_at = now + pause_s
        self.pause_s = pause_s


PROBING, SUBSCRIBING, CHANGING = "probing", "subscribing", "changing"


class StreamChange:
    """A change of topics that is wanted or under way. `topics`: ids that the stream has after it,
    known from when it is sent."""

    def __init__(self, kind: str, names: tuple[str, ...], ticket: int) -> None:
        self.kind = kind
        self.names = names
        self.ticket = ticket
        self.phase = ""
        self.until = 0.0
        self.unanswered: set[str] = set()
        """Sites that have not answered the probe."""
        self.awaited: set[str] = set()
        """Topics whose subscription at the service is not effective."""
        self.topics: tuple[int, ...] = ()
        self.has_left = False
        """Its topics are dropped here; the sites need to know."""


JOIN, ADD, DROP, CLOSE, ANEW = "join", "add", "drop", "close", "join anew"


class StreamMachine:
    def __init__(self, key: int, instance: str, world: StreamWorld, limits: StreamLimits) -> None:
        self.key = key
        self.clocks = Clocks()
        self.home = ""
        self.changes: deque[StreamChange] = deque()
        self.current: StreamChange | None = None
        self.closing = False
        self.known = False
        """Its home knows it by its id, and waits for signs of life."""
        self.lost = 0
        self.forged_messages = 0
        """That were refused before anything in them was held."""
        self._instance = instance
        self._world = world
        self._limits = limits
        self._number = 0
        """Of the last change that was sent."""
        self._renewals = 0
        self._stalls: dict[int, Stall] = {}
        self._published: dict[int, dict[int, tuple[float, Timestamp]]] = {}
        """Numbers that are missing and were published: since when we know it."""
        self._quiet: dict[int, Quiet] = {}
        self._doubts: dict[int, Stall] = {}
        """By topic: the next event, which waits."""
        self._check_at = 0.0
        self._checks: dict[int, dict[int, int]] = {}
        """By question: clocks that no site has confirmed."""
        self._overflow: set[int] = set()
        """Questions whose answers say what of too many events is forged."""
        self._lost_place_at = 0.0
        self.clocks.id = self._new_id()

    def _new_id(self) -> str:
        self._renewals += 1
        return f"{self._instance}.{self.key}.{self._renewals}"

    @property
    def id(self) -> str:
        return self.clocks.id

    @property
    def busy(self) -> bool:
        return bool(self.current or self.changes)

    @property
    def forged(self) -> int:
        """Events that were made up, and dropped."""
        return self.clocks.forged + self.forged_messages

    # ── events ───────────────────────────────────────────────────────────────────────────

    def arrived(self, stamp: Timestamp, payload: bytes, now: float) -> None:
        quiet = self._quiet.get(stamp.topic)
        if quiet is not None:
            quiet.pause_s = self._limits.idle_s
            quiet.ask_at = now + quiet.pause_s
        clocks = self.clocks
        late = clocks.take(stamp, payload, EVENT, self._world.asked)
        if late is not None:
            self._give(late)
        elif clocks.held > 2 * self._limits.buffer:
            if stamp.topic in clocks.clock:
                self._overflowed(now)
            else:
                clocks.shed(stamp.topic, stamp.number)

    def _overflowed(self, now: float) -> None:
        self._overflow.clear()
        self.lose_place(f"more than {self._limits.buffer} events wait", now)

    def deliver(self, now: float) -> None:
        """Give the application everything whose turn has come."""
        clocks = self.clocks
        for passed in clocks.deliver():
            self._give(passed)
        if clocks.expired and not self._is_renewing():
            self.renew("it has expired at its sequencer", now)
        if clocks.urgent:
            clocks.urgent = False
            self._look_for_doubtful(now)
        if clocks.held > self._limits.buffer and clocks.clock and not self._overflow:
            if not self._is_renewing():  # some of them may be forged: their sites know
                self._overflow.update(self._ask_how_far(clocks.clock))
            if not self._overflow:
                self._overflowed(now)

    def _give(self, passed: PassedNumber) -> None:
        topic, number, kind, payload = passed
        known = self._published.get(topic)
        if known:
            known.pop(number, None)
        if kind in (EVENT, LATE):
            name = self._world.names[topic]
            event = OrderedEvent(name, payload, number, kind == LATE)
            self._world.out.events.append((self.key, event))
        elif kind == GIVEN_UP:
            self._tell_lost(topic, number)

    def _tell_lost(self, topic: int, number: int) -> None:
        """Neighbours are told together."""
        self.lost += 1
        told, name = self._world.out.told, self._world.names[topic]
        last = told[-1] if told else None
        if isinstance(last, LostEvents) and last.stream == self.key and last.topic == name:
            told[-1] = last._replace(numbers=(*last.numbers, number))
        else:
            told.append(LostEvents(self.key, name, (number,)))

    # ── waiting and asking ───────────────────────────────────────────────────────────────

    def waiting(self) -> list[MissingNumbers]:
        return [
            MissingNumbers(
                self._world.names[topic],
                tuple(self.clocks.missing(topic, MAX_ASKED)),
                self._stalls[topic].since,
            )
            for topic in self.clocks.behind()
            if topic in self._stalls
        ]

    def look(self, now: float) -> None:
        """Time has passed."""
        self._continue_change(now)
        if self._is_renewing():
            if not self.clocks.adrift and now >= self._lost_place_at + self._limits.limit_s:
                self._drift()
            return
        if self.clocks.stopped:
            return
        self._look_for_missing(now)
        self._look_for_doubtful(now)
        self._look_for_tails(now)
        self._look_for_overruns(now)
        self.deliver(now)

    def _look_for_missing(self, now: float) -> None:
        behind = self.clocks.behind()
        if self._stalls:
            for topic in self._stalls.keys() - set(behind):
                del self._stalls[topic]
        for topic in behind:
            number = self.clocks.clock[topic] + 1
            stall = self._stalls.get(topic)
            if stall is None or stall.number != number:
                stall = self._stalls[topic] = Stall(number, now, self._limits.patience_s)
            if not self._world.lossless or topic in self.clocks.tainted:
                self._give_up(topic, now)
            if now >= stall.ask_at:
                self._ask(topic, stall, now)

    def _ask(self, topic: int, stall: Stall, now: float) -> None:
        site = self._world.site_of(topic)
        self._pause(stall, now)
        if self._world.up(site):
            numbers = tuple(self.clocks.missing(topic, MAX_ASKED))
            self._world.ask(site, AskNumbers(topic, numbers))
        elif not self._world.lossless and now >= stall.since + self._limits.limit_s:
            self.lose_place(f"site {site}, which knows what is missing, is away", now)

    def _pause(self, stall: Stall, now: float) -> None:
        most_s = max(LONGEST_PAUSE_S, self._limits.patience_s)
        stall.pause_s = min(max(2 * stall.pause_s, self._limits.patience_s), most_s)
        stall.ask_at = now + stall.pause_s

    def _look_for_doubtful(self, now: float) -> None:
        """Anybody can publish on the same subjects: an event that waits may have made up what it
        waits for, and of two events with one number only one is true."""
        doubts, self._doubts = self._doubts, {}
        for topic, is_urgent in self.clocks.doubtful():
            number = self.clocks.clock[topic] + 1
            doubt = doubts.get(topic)
            if doubt is None or doubt.number != number or doubt.is_urgent < is_urgent:
                pause_s = 0.0 if is_urgent else DOUBT * self._limits.patience_s
                doubt = Stall(number, now, pause_s, is_urgent)
            self._doubts[topic] = doubt
            site = self._world.site_of(topic)
            if now >= doubt.ask_at and self._world.up(site):
                self._pause(doubt, now)
                self._world.ask(site, AskNumbers(topic, (number,)))

    def _look_for_overruns(self, now: float) -> None:
        """Events that do not have to wait are delivered before anybody has confirmed them."""
        first = not self._check_at
        if now < self._check_at:
            return
        self._check_at = now + CHECK_S
        if first:
            return
        self._checks.clear()
        ahead = self.clocks.ahead()
        for question, topics in self._ask_how_far(ahead).items():
            self._checks[question] = {topic: ahead[topic] for topic in topics}

    def told(
        self,
        topic: int,
        answers: tuple[tuple[int, int, Timestamp | None], ...],
        question: int,
        now: float,
    ) -> None:
        """Void numbers are passed in their turn, with what their timestamps demand. `question`: its
        number; 0 if nobody has asked."""
        held = self.clocks.held
        if topic in self.clocks.clock and not self._is_renewing():
            self._learn_of(topic, answers, question, now)
        self._settle_overflow(question, held, now)

    def _learn_of(
        self,
        topic: int,
        answers: tuple[tuple[int, int, Timestamp | None], ...],
        question: int,
        now: float,
    ) -> None:
        for number, state, stamp in answers:
            if number > self.clocks.clock[topic]:
                if state == UNGIVEN:
                    self.clocks.refute(topic, number, question)
                    return  # the numbers behind are not given, either
                if stamp is not None:
                    self.clocks.confirm(stamp)
            elif state == UNGIVEN and self._checks.get(question, {}).get(topic, 0) >= number:
                name = self._world.names[topic]
                self.renew(f"events of {name!r} from number {number} on were forged", now)
                return
            if number <= self.clocks.clock[topic] or number > self.clocks.wanted.get(topic, 0):
                continue
            if state == VOID and stamp is not None:
                self.clocks.take(stamp, b"", VOIDED)
            elif state == PUBLISHED and stamp is not None:
                self._published.setdefault(topic, {}).setdefault(number, (now, stamp))
            elif state == FORGOTTEN:
                name = self._world.names[topic]
                self.renew(f"its sequencer has forgotten number {number} of {name!r}", now)
                return

    def _give_up(self, topic: int, now: float) -> None:
        known = self._published.get(topic)
        if not known:
            return
        late = [
            number for number, (since, _) in known.items() if now >= since + self._limits.limit_s
        ]
        for number in late:
            stamp = known.pop(number)[1]
            self.clocks.take(stamp, b"", GIVEN_UP)

    def _look_for_tails(self, now: float) -> None:
        asked: list[int] = []
        for topic, quiet in self._quiet.items():
            if now >= quiet.ask_at:
                quiet.pause_s = min(2 * quiet.pause_s, LONGEST_IDLE_S)
                quiet.ask_at = now + quiet.pause_s
                asked.append(topic)
        self._ask_how_far(asked)

    def _ask_how_far(self, topics: Iterable[int]) -> dict[int, tuple[int, ...]]:
        """Returns the topics by question; sites that are away are not asked."""
        by_site: dict[str, list[int]] = {}
        for topic in topics:
            site = self._world.site_of(topic)
            if site in by_site or self._world.up(site):
                by_site.setdefault(site, []).append(topic)
        return {
            self._world.ask(site, HowFar(tuple(found))): tuple(found)
            for site, found in by_site.items()
        }

    def interrupted(self, now: float) -> None:
        """The service may have lost the last events of any topic."""
        for topic in self.clocks.clock:
            self._quiet[topic] = quiet = Quiet(now, self._limits.idle_s)
            quiet.ask_at = now

    def heard_how_far(self, numbers: Mapping[int, int], question: int, now: float) -> None:
        """`question`: its number; 0 if nobody has asked."""
        checked = self._checks.pop(question, {})
        is_over = question in self._overflow
        for topic, number in numbers.items():
            self.clocks.hear(topic, number)
            ahead = checked.get(topic, 0)
            if ahead > number or (is_over and self.clocks.wanted.get(topic, 0) > number):
                found = self._ask_for_more(topic, number)
                if found and ahead > number:
                    self._checks[found] = {topic: ahead}
                if found and is_over:
                    self._overflow.add(found)
            if self._world.lossless:
                self._quiet.pop(topic, None)
        self._settle_overflow(question, self.clocks.held, now)

    def _ask_for_more(self, topic: int, number: int) -> int:
        """Is there a higher number? A site without its standby may not know the last ones, but it
        does not answer this question then. Returns its number."""
        site = self._world.site_of(topic)
        return (
            self._world.ask(site, AskNumbers(topic, (number + 1,))) if self._world.up(site) else 0
        )

    def _settle_overflow(self, question: int, held: int, now: float) -> None:
        """`held`: how many events waited before the answer."""
        if question in self._overflow:
            self._overflow.discard(question)
            if not self._overflow and self.clocks.held == held > self._limits.buffer:
                self._overflowed(now)

    # ── a place in the order that is lost ────────────────────────────────────────────────

    def lose_place(self, reason: str, now: float) -> None:
        """Give events tagged, from now on, until the stream has joined anew."""
        if self._is_renewing():
            self._drift()
        else:
            self.renew(reason, now)
            self._drift()

    def _drift(self) -> None:
        for late in self.clocks.drift():
            self._give(late)

    def _is_renewing(self) -> bool:
        return self.current is not None and self.current.kind == ANEW

    def renew(self, reason: str, now: float) -> None:
        """Join anew, under another name."""
        if self._is_renewing():
            return
        if self.closing:  # it needs no place in the order any more
            if self.changes:
                self._abandon()
            return
        names = self._world.names
        clock = {names[topic]: number for topic, number in self.clocks.clock.items()}
        self._world.out.told.append(Gap(self.key, reason, clock))
        self.clocks.expired = True
        self.clocks.id = self._new_id()
        self._number = 0
        self.known = False
        self._lost_place_at = now
        for table in (self._stalls, self._doubts, self._published, self._checks):
            table.clear()
        self._overflow.clear()
        change, self.current = self.current, None
        if change is not None:
            change.phase = ""
            self.changes.appendleft(change)  # it is made after the other one
        if not self.clocks.clock:
            self._next_change(now)
            return
        self.current = anew = StreamChange(ANEW, (), 0)
        self._send_change(anew, tuple(self.clocks.clock))

    # ── changes ──────────────────────────────────────────────────────────────────────────

    def want(self, change: StreamChange, now: float) -> None:
        self.closing = self.closing or change.kind == CLOSE
        self.changes.append(change)
        if self.current is None:
            self._next_change(now)

    def _next_change(self, now: float) -> None:
        while self.current is None and self.changes:
            change = self.current = self.changes.popleft()
            problem = self._objection(change)
            if problem is not None:
                self._finish(problem)
            elif change.kind == CLOSE:
                self._begin_close(change)
            else:
                self._probe(change, now)

    def _objection(self, change: StreamChange) -> MotetError | None:
        mine = {self._world.names[topic] for topic in self.clocks.clock}
        for name in change.names:
            if change.kind in (JOIN, ADD) and name in mine:
                return TopicRefused(f"the stream has topic {name!r} already")
            if change.kind == DROP and name not in mine and not change.has_left:
                return TopicRefused(f"the stream does not have topic {name!r}")
        if change.kind == ADD and len(mine) >= MAX_TOPICS_OF_STREAM:
            return TopicRefused(f"a stream has at most {MAX_TOPICS_OF_STREAM} topics")
        if change.kind == DROP and not change.has_left and len(mine) == len(change.names):
            return TopicRefused("a stream cannot drop its last topic; close it instead")
        return None

    def _probe(self, change: StreamChange, now: float) -> None:
        """A change that has begun is finished: first see whether its sites are there."""
        change.phase = PROBING
        change.until = now + self._limits.probe_s
        along = [self._world.site_of(topic) for topic in self.clocks.clock]
        change.unanswered = self._world.probe(self, change.names, along)

    def probed(self, site: str, now: float) -> None:
        change = self.current
        if change is None or change.phase != PROBING:
            return
        change.unanswered.discard(site)
        if not change.unanswered:
            self._subscribe(change, now)

    def refused(self, problem: MotetError, now: float) -> None:
        """A site does not take the topics of a change."""
        if self.current is not None and self.current.phase == PROBING:
            self._finish(problem)
            self._next_change(now)

    def _subscribe(self, change: StreamChange, now: float) -> None:
        unknown = [name for name in change.names if name not in self._world.ids]
        if unknown:
            self._finish(TopicElsewhere(f"topic {unknown[0]!r} does not live where it should"))
            self._next_change(now)
            return
        change.phase = SUBSCRIBING
        change.awaited.clear()  # of an earlier try
        if change.kind != DROP:
            for name in change.names:
                self.clocks.expect(self._world.ids[name])
                if not self._world.subscribe(self, name):
                    change.awaited.add(name)
        self._send_if_subscribed(change)

    def subscribed(self, name: str, problem: MotetError | None, now: float) -> None:
        change = self.current
        if change is None or change.phase != SUBSCRIBING or name not in change.awaited:
            return
        if problem is not None:
            self._undo(change)
            self._finish(problem)
            self._next_change(now)
            return
        change.awaited.discard(name)
        self._send_if_subscribed(change)

    def _undo(self, change: StreamChange) -> None:
        if change.kind in (JOIN, ADD):
            for name in change.names:
                self._world.unsubscribe(self, name)
                topic = self._world.ids.get(name)
                if topic is not None and topic not in self.clocks.clock:
                    self.clocks.forget(topic)

    def _send_if_subscribed(self, change: StreamChange) -> None:
        if change.awaited:
            return
        ids = [self._world.ids[name] for name in change.names]
        kept = [topic for topic in self.clocks.clock if topic not in ids]
        self._send_change(change, (*kept, *(() if change.kind == DROP else ids)))

    def _begin_close(self, change: StreamChange) -> None:
        for name in [self._world.names[topic] for topic in self.clocks.clock]:
            self._world.unsubscribe(self, name)
        self.clocks.stopped = True
        if not self._number:  # the sites have not heard of it
            self._finish({})
            return
        self._send_change(change, ())

    def _send_change(self, change: StreamChange, topics: tuple[int, ...]) -> None:
        if not self._number and topics:
            self.home = self._world.site_of(topics[0])
        self._number += 1
        change.phase = CHANGING
        change.topics = topics
        if change.kind == DROP:
            self._leave(change)
        else:
            self.clocks.stopped = True
        self.repeat()
        if change.kind == DROP:
            self.deliver(self._world.now)  # what waited for the topics that are dropped

    def _leave(self, change: StreamChange) -> None:
        """Deliver nothing more of the topics that are dropped: as soon as a site knows of it, it
        does not order the other topics against them any more."""
        change.has_left = True
        for name in change.names:
            topic = self._world.ids[name]
            self.clocks.forget(topic)
            for table in (self._stalls, self._doubts, self._published, self._quiet):
                table.pop(topic, None)

    def repeat(self) -> None:
        """Send the change that is under way to its home, if that is connected."""
        change = self.current
        if change is not None and change.phase == CHANGING and self._world.up(self.home):
            self._world.send(self.home, ChangeRequest(self.id, self._number, change.topics))

    def _continue_change(self, now: float) -> None:
        change = self.current
        if change is not None and change.phase == PROBING and now >= change.until:
            away = ", ".join(sorted(change.unanswered))
            text = f"no answer from sites {away} within {self._limits.probe_s:g} s"
            self._finish(SitesAway(f"{text}; nothing has changed"))
            self._next_change(now)

    def changed(self, answer: Changed, now: float) -> None:
        change = self.current
        is_asked = answer.stream == self.id and answer.number == self._number
        if change is None or change.phase != CHANGING or not is_asked:
            return
        if answer.error == EXPIRED and change.kind != CLOSE:
            self._expired_under_way(change, now)
            return
        if answer.error and change.kind == ANEW:  # nothing else would give it a place
            self.current = None
            self._lost_place_at = now
            self.renew(f"{answer.error}: {answer.text}", now)
            return
        if answer.error and change.kind != CLOSE:
            self._number -= 1  # the next change has its number
            self._undo(change)
            self.clocks.resume()
            self._finish(NotOffered(answer.text or answer.error))
        else:
            self._finish(self._apply(change, answer.cut, now))
        self._next_change(now)
        self.deliver(now)

    def _expired_under_way(self, change: StreamChange, now: float) -> None:
        if change.kind == ANEW:
            self.current = None
        self.renew("it has expired at its sequencer", now)

    def _apply(self, change: StreamChange, cut: Mapping[int, int], now: float) -> Mapping[str, int]:
        names, clocks = self._world.names, self.clocks
        self.known = change.kind != CLOSE
        if change.kind == CLOSE:
            return {}
        if change.kind == DROP:
            for name in change.names:
                self._world.unsubscribe(self, name)
        elif change.kind == ANEW:
            for late in clocks.anew({topic: cut.get(topic, 0) for topic in change.topics}):
                self._give(late)
        else:
            former = {topic: cut.get(topic, 0) for topic in clocks.clock}
            added = {topic: cut.get(topic, 0) for topic in change.topics if topic not in former}
            clocks.cut(added, former)
        if not self._world.lossless:
            for topic in clocks.clock:
                self._quiet.setdefault(topic, Quiet(now, self._limits.idle_s))
        named = {names[topic]: cut.get(topic, 0) for topic in change.topics}
        self._world.out.told.append(Joined(self.key, self.id, self._number, named))
        return named

    def _finish(self, result: Result | MotetError) -> None:
        change, self.current = self.current, None
        assert change is not None
        if change.ticket:
            self._world.out.receipts.append((change.ticket, result))
        if change.kind == CLOSE or (change.kind == JOIN and isinstance(result, MotetError)):
            self._end()

    def _abandon(self) -> None:
        """The sites do not know the stream any more, and it was about to be closed."""
        change, self.current = self.current, None
        if change is not None and change.ticket:
            problem = ClosedError("the stream is closed")
            self._world.out.receipts.append((change.ticket, problem))
        self._end()

    def _end(self) -> None:
        """It is closed, or there never was one: what else was wanted of it has no meaning."""
        self.closing = self.clocks.stopped = True
        for other in self.changes:
            if other.ticket:
                ended: Result | MotetError = ClosedError("the stream is closed")
                self._world.out.receipts.append(
                    (other.ticket, {} if other.kind == CLOSE else ended)
                )
        self.changes.clear()
        self._world.ended(self)
