"""The rule of delivery: clocks of a stream, and what they hold back.

Event n of a topic is delivered when the clock of the topic is n-1 and, for each entry (topic,
number) of its timestamp, the clock of that topic has reached the number. Entries of topics that the
stream does not have count for nothing. A number without an event, void or lost, is passed under the
same conditions, because what comes before it comes before what comes behind it, too.

Others can publish on the same subjects. So the number and the entries of an event are claims until
its site has confirmed them: the machine asks about claims that hold something back, and what the
site refutes is dropped. A question has a number, and an event that came before it was asked cannot
have been given later: `HeldEvent.asked` says how many questions were asked before it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from motet.ordering.spans import NumberSpans
from motet.protocol.sequencing.messages import Timestamp

EVENT: Final = 0
LATE: Final = 1
"""Its place was passed before, or the stream has no place in the order now."""
VOIDED: Final = 2
GIVEN_UP: Final = 3
"""The service has lost it."""
GIVEN: Final = 4
"""It was given tagged when the stream had no place in the order."""
CLAIMED: Final = (EVENT, GIVEN)
"""Kinds that come from the service, so that anybody may have made them up."""
MOST_RIVALS: Final = 8
"""Events with one number of which only one can be true, while the site is asked which."""


class PassedNumber(NamedTuple):
    """The clock of a topic has reached this number; or, if late, an event that comes without."""

    topic: int
    number: int
    kind: int
    payload: bytes


class HeldEvent:
    """An event, or a number without one, whose turn has not come."""

    __slots__ = ("asked", "at", "kind", "payload", "rivals", "stamp", "sure")

    def __init__(self, stamp: Timestamp, payload: bytes, kind: int, asked: int = 0) -> None:
        self.stamp = stamp
        self.payload = payload
        self.kind = kind
        self.asked = asked
        self.at = 0
        """Entries before this position are reached: clocks do not go back."""
        self.sure = kind != EVENT and kind != GIVEN
        """The site has confirmed its timestamp."""
        self.rivals: tuple[HeldEvent, ...] = ()
        """Others with its number and another timestamp."""

    def claims(self, topic: int, number: int) -> bool:
        """Whether it says, and nobody else does, that the topic has this number or a higher one."""
        if self.sure:
            return False
        stamp, entries = self.stamp, self.stamp.entries
        return (stamp.topic == topic and stamp.number >= number) or any(
            entries[at] == topic and entries[at + 1] >= number for at in range(0, len(entries), 2)
        )


class Clocks:
    """Topics are ids. `clock` has the topics of the stream."""

    def __init__(self) -> None:
        self.id = ""
        """The stream's name at the sites: in the `gone` of a timestamp it says that it expired."""
        self.clock: dict[int, int] = {}
        self.wanted: dict[int, int] = {}
        """The highest number of each topic that is said to exist."""
        self.confirmed: dict[int, int] = {}
        """The highest one that its site has said to exist."""
        self.stopped = False
        """Nothing is delivered while a change that adds topics is under way."""
        self.expired = False
        self.adrift = False
        """Events are given at once, and tagged: the stream has no place in the order."""
        self.held = 0
        """Events that wait."""
        self.doubles = 0
        self.forged = 0
        """Events that were dropped because a site has refuted them."""
        self.tainted: set[int] = set()
        """Topics with forged events: true ones may have been dropped for them."""
        self.urgent = False
        """A topic stops at an event that its site has to confirm first."""
        self._pending: dict[int, dict[int, HeldEvent]] = {}
        self._passed: dict[int, NumberSpans] = {}
        self._gates: dict[int, dict[int, int]] = {}
        self._waiters: dict[int, set[int]] = {}
        self._ready: list[int] = []

    # ── topics ───────────────────────────────────────────────────────────────────────────

    def expect(self, topic: int) -> None:
        """Keep events of a topic that a change is going to add."""
        self._pending.setdefault(topic, {})

    def forget(self, topic: int) -> None:
        """The stream does not have the topic any more."""
        pending = self._pending.pop(topic, {})
        for number in list(pending):
            self._pop(pending, number)
        for table in (self.clock, self.wanted, self.confirmed, self._passed, self._gates):
            table.pop(topic, None)
        self.tainted.discard(topic)
        for gate in self._gates.values():
            gate.pop(topic, None)
        self._wake(topic)

    def cut(self, added: Mapping[int, int], former: Mapping[int, int]) -> None:
        """A change is made: added topics begin behind it, and wait until the clocks of the former
        ones have reached it."""
        for topic, number in added.items():
            pending = self._pending.setdefault(topic, {})
            for old in [each for each in pending if each <= number]:
                self._pop(pending, old)
            self.clock[topic] = self.confirmed[topic] = number
            self._passed[topic] = NumberSpans()
            if former:
                self._gates[topic] = dict(former)
        for topic, number in former.items():
            self.hear(topic, number)
        self.resume()

    def anew(self, cut: Mapping[int, int]) -> Iterator[PassedNumber]:
        """The stream has joined anew. What it holds from before the cut comes tagged, and so does
        what comes later. A clock that is beyond the cut was brought there by forged events."""
        self.adrift = self.expired = False
        self._gates.clear()
        for topic, number in cut.items():
            before = self.clock.get(topic, number)
            pending = self._pending.setdefault(topic, {})
            passed = self._passed.setdefault(topic, NumberSpans())
            if before > number:
                passed = self._passed[topic] = NumberSpans()
                self.forged += before - number
                self.tainted.add(topic)
            start = before + 1
            for old in sorted(each for each in pending if each <= number):
                held = pending.pop(old)
                self.held -= len(held.rivals)
                passed.add(start, old - 1)
                start = old + 1
                if held.kind == EVENT:
                    self.held -= 1
                    yield PassedNumber(topic, old, LATE, held.payload)
                elif held.kind != GIVEN:
                    passed.add(old, old)
            passed.add(start, number)
            self.clock[topic] = self.confirmed[topic] = number
            # What was wanted of others may have been in timestamps that are passed now.
            self.wanted[topic] = self.clock[topic]
        self.resume()

    def resume(self) -> None:
        self.stopped = False
        for topic in self.clock:
            for number, held in self._pending[topic].items():
                self._want(topic, number)
                self._want_entries(held.stamp.entries)
                held.at = 0  # entries of topics that are new now count
        self._waiters.clear()
        self._ready = list(self.clock)

    def _want(self, topic: int, number: int) -> None:
        if number > self.wanted.get(topic, 0):
            self.wanted[topic] = number

    def _want_entries(self, entries: tuple[int, ...]) -> None:
        clock = self.clock
        for at in range(0, len(entries), 2):
            if entries[at] in clock and entries[at + 1] > self.wanted.get(entries[at], 0):
                self.wanted[entries[at]] = entries[at + 1]

    # ── what arrives ─────────────────────────────────────────────────────────────────────

    def take(
        self, stamp: Timestamp, payload: bytes, kind: int = EVENT, asked: int = 0
    ) -> PassedNumber | None:
        """Hold an event, or a number without one, until its turn; returns an event that has none.
        Call `deliver` afterwards. `asked`: how many questions were asked before it came."""
        topic, number = stamp.topic, stamp.number
        pending = self._pending.get(topic)
        if pending is None:
            return None
        clock = self.clock.get(topic, 0)
        if number <= clock:
            if kind == EVENT and self._passed[topic].remove(number):
                return PassedNumber(topic, number, LATE, payload)
            self.doubles += 1
            return None
        former = pending.get(number)
        if former is not None:
            if kind == EVENT and former.stamp != stamp:
                return self._rival(former, HeldEvent(stamp, payload, kind, asked))
            if kind != EVENT or former.kind in CLAIMED:
                self.doubles += 1
                if kind == former.kind == EVENT and former.payload != payload:
                    self._forge(topic)
                return None
        self._want(topic, number)
        if stamp.entries:
            self._want_entries(stamp.entries)
        if kind == EVENT and self.adrift and topic in self.clock:
            pending[number] = HeldEvent(stamp, b"", GIVEN, asked)
            return PassedNumber(topic, number, LATE, payload)
        pending[number] = HeldEvent(stamp, payload, kind, asked)
        if kind == EVENT:
            self.held += 1
        if number == clock + 1:
            self._ready.append(topic)
        return None

    def _rival(self, former: HeldEvent, rival: HeldEvent) -> PassedNumber | None:
        """Two events have one number, so at least one is forged."""
        stamp = rival.stamp
        if former.kind == GIVEN:
            return PassedNumber(stamp.topic, stamp.number, LATE, rival.payload)
        if former.sure or len(former.rivals) == MOST_RIVALS:
            self._forge(stamp.topic)
        elif any(other.stamp == stamp for other in former.rivals):
            self.doubles += 1
        else:
            former.rivals = (*former.rivals, rival)
            self.held += 1
        return None

    def shed(self, topic: int, number: int) -> None:
        """Too many events wait for a topic that is being added. This one is given up: if it is
        owed, it will be missing."""
        self._pop(self._pending[topic], number)
        self.tainted.add(topic)

    def _forge(self, topic: int) -> None:
        self.forged += 1
        self.tainted.add(topic)

    def hear(self, topic: int, number: int) -> None:
        """A site says how far the topic is."""
        if topic in self.clock:
            self._want(topic, number)
            if number > self.confirmed.get(topic, 0):
                self.confirmed[topic] = number

    # ── what sites confirm and refute ────────────────────────────────────────────────────

    def confirm(self, stamp: Timestamp) -> None:
        """A site says which timestamp a number has."""
        topic, number = stamp.topic, stamp.number
        self.hear(topic, number)
        pending = self._pending.get(topic, {})
        held = pending.get(number)
        if held is not None and not held.sure:
            self._sift(pending, number, lambda each: each.stamp != stamp)
            if number in pending:
                pending[number].sure = True
            self._measure()

    def refute(self, topic: int, number: int, question: int) -> None:
        """A site had not given this number of a topic, nor any above it, when it answered."""
        for pending in self._pending.values():
            for each, held in list(pending.items()):
                if held.asked < question and (held.rivals or held.claims(topic, number)):
                    self._sift(
                        pending,
                        each,
                        lambda it: it.asked < question and it.claims(topic, number),
                    )
        self._measure()

    def _sift(
        self, pending: dict[int, HeldEvent], number: int, wrong: Callable[[HeldEvent], bool]
    ) -> None:
        """Drop what is wrong of the events with one number."""
        held = pending[number]
        all_of_them = (held, *held.rivals)
        left = [each for each in all_of_them if not wrong(each)]
        if len(left) == len(all_of_them):
            return
        for each in all_of_them:
            if each not in left:
                self._forge(each.stamp.topic)
                self.held -= each.kind == EVENT
        if left:
            pending[number] = left[0]
            left[0].rivals = tuple(left[1:])
        else:
            del pending[number]

    def _measure(self) -> None:
        """Forget what only forged events have wanted."""
        self.wanted = {
            topic: max(clock, self.confirmed.get(topic, 0)) for topic, clock in self.clock.items()
        }
        for topic in self.clock:
            for number, held in self._pending[topic].items():
                self._want(topic, number)
                self._want_entries(held.stamp.entries)
        self._waiters.clear()
        self._ready = list(self.clock)

    def _pop(self, pending: dict[int, HeldEvent], number: int) -> None:
        held = pending.pop(number)
        self.held -= (held.kind == EVENT) + len(held.rivals)

    def drift(self) -> Iterator[PassedNumber]:
        """Give all events that wait, tagged, and from now on each one as it comes."""
        self.adrift = True
        for topic in self.clock:
            for number, held in sorted(self._pending[topic].items()):
                if held.kind == EVENT:
                    for rival in held.rivals:
                        self.held -= 1
                        yield PassedNumber(topic, number, LATE, rival.payload)
                    held.rivals = ()
                    self.held -= 1
                    payload, held.payload, held.kind = held.payload, b"", GIVEN
                    yield PassedNumber(topic, number, LATE, payload)

    # ── what is delivered ────────────────────────────────────────────────────────────────

    def deliver(self) -> list[PassedNumber]:
        """Everything whose turn has come, in order. Sets `expired` at a timestamp that says so, if
        its site has confirmed it. Sets `urgent` if it has not, and at an event that has rivals."""
        done: list[PassedNumber] = []
        ready, clocks = self._ready, self.clock
        while ready and not (self.stopped or self.expired or self.adrift):
            topic = ready.pop()
            clock = clocks.get(topic)
            if clock is None:
                continue
            pending = self._pending[topic]
            while (held := pending.get(clock + 1)) is not None:
                blocking = self._blocking(topic, held)
                if blocking is not None:
                    self._waiters.setdefault(blocking, set()).add(topic)
                    break
                if (held.rivals or held.stamp.gone) and self._stops_at(held):
                    break
                clock += 1
                del pending[clock]
                clocks[topic] = clock
                if held.kind == EVENT:
                    self.held -= 1
                elif held.kind != GIVEN:
                    self._passed[topic].add(clock, clock)
                done.append(PassedNumber(topic, clock, held.kind, held.payload))
                if topic in self._waiters:
                    self._wake(topic)
        return done

    def _stops_at(self, held: HeldEvent) -> bool:
        """Whether it may not be delivered yet, or never."""
        is_over = self.id in held.stamp.gone
        if is_over and held.sure:
            self.expired = True
        elif is_over or held.rivals:
            self.urgent = True
        else:
            return False
        return True

    def _blocking(self, topic: int, held: HeldEvent) -> int | None:
        """A topic whose clock has not reached what comes before it."""
        clocks, entries = self.clock, held.stamp.entries
        for at in range(held.at, len(entries), 2):
            if clocks.get(entries[at], entries[at + 1]) < entries[at + 1]:
                held.at = at
                return entries[at]
        held.at = len(entries)
        gate = self._gates.get(topic)
        if gate is not None:
            for other, number in gate.items():
                if clocks.get(other, number) < number:
                    return other
            del self._gates[topic]
        return None

    def _wake(self, topic: int) -> None:
        self._ready.extend(sorted(self._waiters.pop(topic, ())))

    # ── what is missing ──────────────────────────────────────────────────────────────────

    def missing(self, topic: int, most: int) -> list[int]:
        """The lowest numbers of a topic that exist and are not here."""
        clock, wanted = self.clock[topic], self.wanted.get(topic, 0)
        if wanted <= clock:
            return []
        pending = self._pending[topic]
        found: list[int] = []
        for number in range(clock + 1, wanted + 1):
            if number not in pending:
                found.append(number)
                if len(found) == most:
                    break
        return found

    def behind(self) -> list[int]:
        """Topics of which the next number exists, and is not here."""
        return [
            topic
            for topic, clock in self.clock.items()
            if self.wanted.get(topic, 0) > clock and clock + 1 not in self._pending[topic]
        ]

    def doubtful(self) -> list[tuple[int, bool]]:
        """Topics of which the next event is here, waits, and is not confirmed; and whether it has
        rivals, or says that the stream has expired."""
        found = []
        for topic, clock in self.clock.items():
            held = self._pending[topic].get(clock + 1)
            if held is not None and not held.sure:
                found.append((topic, bool(held.rivals) or self.id in held.stamp.gone))
        return found

    def ahead(self) -> dict[int, int]:
        """Topics whose clocks are where their sites have not said to be, and these clocks."""
        confirmed = self.confirmed
        return {
            topic: clock for topic, clock in self.clock.items() if clock > confirmed.get(topic, 0)
        }

    def stands(self) -> bool:
        """Whether anything waits for something."""
        return any(self.wanted.get(topic, 0) > clock for topic, clock in self.clock.items())

    def validate(self) -> None:
        events = sum(
            (held.kind == EVENT) + len(held.rivals)
            for pending in self._pending.values()
            for held in pending.values()
        )
        assert events == self.held
        for topic, clock in self.clock.items():
            assert all(number > clock for number in self._pending[topic])
