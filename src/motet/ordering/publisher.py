"""Publications of one client instance: a number first, then the service, then the confirmation.

All publications go one way, in the sequence in which they were wanted. Requests of one site leave
together. Turning to another site, it waits until all its timestamps are answered. Publishing begins
in the same sequence, so what the application has published first has its place first.

A number is open only for a lease. One that is not with the service after half of it is given back,
with all behind it, and they are asked for anew, in their sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from motet.errors import MotetError, NotPublished, TopicElsewhere, Voided, WindowFull
from motet.ordering.contract import PUBLISH, ClientEffects, ServiceCall, WantPublish
from motet.ordering.envelope import header_of, seal
from motet.ordering.events import OrderReceipt
from motet.protocol.sequencing.messages import (
    MAX_ASKED,
    MAX_REQUESTS_PER_FRAME,
    OPEN,
    AskNumbers,
    Confirm,
    GiveBack,
    NumberRequest,
    Numbers,
    RequestsSettled,
    SequencingFrame,
    Timestamp,
    Told,
)
from motet.protocol.sequencing.messages import PUBLISHED as WAS_PUBLISHED

CALLS_AT_ONCE: Final = 4
"""Publications under way at the service for one subject; what waits meanwhile travels together."""
SINGLE_CALLS_AT_ONCE: Final = 256
"""The same if each event is a message of its own."""
ENVELOPE_BYTES: Final = 64
"""Of one event, beside its payload and its entries."""
ENTRY_BYTES: Final = 5

ASKED, NUMBERED, LEAVING, PUBLISHED, RETURNED = range(5)


class OutgoingEvent:
    """A publication from when its number is requested. `RETURNED`: its number is given back, or
    was void; the event itself may be in another item."""

    __slots__ = ("answered", "asked_at", "desk", "request", "stamp", "state", "wanted")

    def __init__(self, wanted: WantPublish, desk: Desk, request: int, now: float) -> None:
        self.wanted = wanted
        self.desk = desk
        self.request = request
        self.asked_at = now
        self.state = ASKED
        self.answered = False
        self.stamp: Timestamp | None = None


class Desk:
    """The requests of this instance at one site."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.next = 1
        self.items: dict[int, OutgoingEvent] = {}
        """Requests that are not settled, in their sequence."""
        self.unanswered = 0
        self.answered = 0
        """The highest request that was answered."""
        self.finished = 0
        """Requests up to this one are published or given back."""
        self.confirming = 0
        """The site was asked, on this connection, to settle requests up to this one."""
        self.doubtful = 0
        """The same on any connection. The answer may be lost, and with it what was void."""
        self.judged: dict[tuple[int, int], OutgoingEvent] = {}
        """By topic and number: settled, but the answer was lost, so the site is asked for each."""

    def advance(self) -> None:
        while (item := self.items.get(self.finished + 1)) is not None and item.state >= PUBLISHED:
            self.finished += 1


class PublisherWorld(Protocol):
    out: ClientEffects
    ids: dict[str, int]
    lease_s: float
    most_bytes: int

    def site_of(self, topic: int) -> str: ...
    def up(self, site: str) -> bool: ...
    def send(self, site: str, frame: SequencingFrame) -> None: ...
    def ask(self, site: str, frame: AskNumbers) -> int: ...
    def call(self, call: ServiceCall) -> None: ...
    def next_call(self) -> int: ...
    def resolve(self, name: str) -> bool: ...


class Publisher:
    def __init__(
        self, world: PublisherWorld, window: int, *, headers: bool = False, key: bytes = b""
    ) -> None:
        """`headers`: timestamps travel there, and each event is a message. `key`: of seals."""
        self.window = window
        self._headers = headers
        self._key = key
        self.queue: deque[WantPublish] = deque()
        self.desks: dict[str, Desk] = {}
        self._world = world
        self._site = ""
        """Where requests go; another one is chosen when all are answered."""
        self._leaving: deque[OutgoingEvent] = deque()
        """Items whose events are not with the service, in the sequence of publishing."""
        self._calls: dict[int, list[OutgoingEvent]] = {}
        self._at_once: dict[str, int] = {}
        self._forgotten = False
        """Numbers of what is leaving are void, because a site has forgotten this instance."""

    @property
    def unsettled(self) -> int:
        """Publications without an outcome. Items whose numbers were given back are not counted:
        their events are in the queue again."""
        return len(self.queue) + sum(
            sum(item.state != RETURNED for item in desk.items.values()) + len(desk.judged)
            for desk in self.desks.values()
        )

    def leaving(self, ticket: int) -> list[tuple[WantPublish, Timestamp]]:
        """What is under way at the service with this call."""
        items = self._calls.get(ticket, ())
        return [(item.wanted, item.stamp) for item in items if item.stamp is not None]

    @property
    def _most_calls(self) -> int:
        return SINGLE_CALLS_AT_ONCE if self._headers else CALLS_AT_ONCE

    @property
    def is_full(self) -> bool:
        most = len(self.queue)
        for desk in self.desks.values():
            most += len(desk.items) + len(desk.judged)
        return most >= self.window and self.unsettled >= self.window

    # ── inputs ───────────────────────────────────────────────────────────────────────────

    def want(self, wanted: WantPublish) -> None:
        if self.is_full:
            text = f"{self.window} publications are not confirmed yet; await some of them"
            self._answer(wanted, WindowFull(text))
        else:
            self.queue.append(wanted)

    def connected(self, site: str, answered: int, now: float) -> None:
        """Repeat what is not answered. Requests that the site has not answered yet begin now."""
        desk = self.desks.get(site)
        if desk is None:
            return
        if answered < desk.answered:
            self._begin_anew(desk)
            return
        desk.doubtful = max(desk.doubtful, desk.confirming)
        desk.confirming = 0
        self._judge(desk, desk.judged)
        items = list(desk.items.values())
        for item in items:
            if item.request > answered and not item.answered:
                item.asked_at = now
        first = next((item.request for item in items if not item.answered), 0)
        if first:
            self._request(desk, [item for item in items if item.request >= first], 0)
        back = [item.request for item in items if item.state == RETURNED]
        if back:
            self._world.send(site, GiveBack(tuple(back)))
        if items:
            desk.advance()
            self._confirm(desk)  # a request with the same confirmation would not be answered

    def _begin_anew(self, former: Desk) -> None:
        """The site has forgotten this instance, which was away for long: none of its numbers there
        is open. It goes on with its next request."""
        desk = self.desks[former.name] = Desk(former.name)
        desk.next = former.next
        desk.finished = former.next - 1
        desk.judged = former.judged
        for item in former.items.values():
            if item.state == PUBLISHED:
                self._judge_later(desk, item)
        self._forgotten = bool(self._leaving)
        self._judge(desk, desk.judged)

    def _judge_later(self, desk: Desk, item: OutgoingEvent) -> None:
        assert item.stamp is not None
        desk.judged[item.stamp.topic, item.stamp.number] = item

    def numbered(self, site: str, answer: Numbers) -> None:
        desk = self.desks.get(site)
        if desk is None:
            return
        for at, stamp in enumerate(answer.stamps):
            item = desk.items.get(answer.first + at)
            if item is None or item.answered:
                continue
            item.answered = True
            desk.unanswered -= 1
            desk.answered = max(desk.answered, item.request)
            if item.state == RETURNED:
                continue
            if stamp is None:  # void already
                item.state = RETURNED
            else:
                item.stamp = stamp
                item.state = NUMBERED

    def settled(self, site: str, answer: RequestsSettled) -> None:
        desk = self.desks.get(site)
        if desk is None:
            return
        voided = set(answer.voided)
        judged: dict[tuple[int, int], OutgoingEvent] = {}
        for request in list(desk.items):
            if request > answer.upto:
                break
            item = desk.items[request]
            if item.state < PUBLISHED:
                break  # nobody has confirmed it
            del desk.items[request]
            desk.unanswered -= not item.answered
            if item.state == PUBLISHED:
                assert item.stamp is not None
                if request <= desk.doubtful and request not in voided:
                    judged[item.stamp.topic, item.stamp.number] = item
                else:
                    self._conclude(item, request in voided)
        desk.judged |= judged
        self._judge(desk, judged)

    def _judge(self, desk: Desk, items: Iterable[tuple[int, int]]) -> None:
        asked: dict[int, list[int]] = {}
        for topic, number in items:
            asked.setdefault(topic, []).append(number)
        for topic, numbers in asked.items():
            for at in range(0, len(numbers), MAX_ASKED):
                self._world.ask(desk.name, AskNumbers(topic, tuple(numbers[at : at + MAX_ASKED])))

    def told(self, site: str, answer: Told) -> None:
        desk = self.desks.get(site)
        if desk is None or not desk.judged:
            return
        for number, state, _ in answer.answers:
            item = desk.judged.pop((answer.topic, number), None)
            if item is not None:
                self._conclude(item, state not in (WAS_PUBLISHED, OPEN))

    def _conclude(self, item: OutgoingEvent, is_void: bool) -> None:
        assert item.stamp is not None
        number, topic = item.stamp.number, item.wanted.topic
        if is_void:
            text = f"number {number} of {topic!r} was void before the event was published"
            self._answer(item.wanted, Voided(text))
        else:
            self._answer(item.wanted, OrderReceipt(topic, number))

    def done(self, ticket: int, error: str) -> bool:
        """A service call has returned."""
        items = self._calls.pop(ticket, None)
        if items is None:
            return False
        subject = _subject(items[0].wanted)
        self._at_once[subject] -= 1
        if not self._at_once[subject]:
            del self._at_once[subject]
        if error:
            self._give_back(items)
            for item in items:
                text = f"the service did not take the event of {item.wanted.topic!r}: {error}"
                self._answer(item.wanted, NotPublished(text))
        for item in items:
            item.state = RETURNED if error else PUBLISHED
            desk = self.desks[item.desk.name]
            if desk is not item.desk and not error:
                self._judge_later(desk, item)
                if self._world.up(desk.name):
                    self._judge(desk, [(item.stamp.topic, item.stamp.number)] if item.stamp else [])
        return True

    def _answer(self, wanted: WantPublish, result: OrderReceipt | MotetError) -> None:
        if wanted.ticket:
            self._world.out.receipts.append((wanted.ticket, result))

    # ── what follows from them ───────────────────────────────────────────────────────────

    def work(self, now: float) -> None:
        """Publish what has a number, ask for more, confirm."""
        if self._leaving:
            self._publish(now)
        if self.queue:
            self._ask(now)
        for desk in self.desks.values():
            desk.advance()
            if desk.finished > desk.confirming and desk.items and self._world.up(desk.name):
                self._confirm(desk)

    def _confirm(self, desk: Desk) -> None:
        first = next(iter(desk.items))
        if desk.finished >= first and desk.confirming < first:  # none is under way
            desk.confirming = desk.finished
            self._world.send(desk.name, Confirm(desk.finished))

    def _publish(self, now: float) -> None:
        """Begin with all whose turn it is; what has one subject travels together."""
        leaving, latest = self._leaving, self._world.lease_s / 2
        ready: dict[str, list[OutgoingEvent]] = {}
        sizes: dict[str, int] = {}
        too_late, self._forgotten = self._forgotten, False
        while leaving and not too_late:
            item = leaving[0]
            if item.state == ASKED:
                break
            if item.state == RETURNED or now - item.asked_at > latest:
                too_late = True
                break
            subject = item.wanted.subject or item.wanted.topic
            if subject not in ready:
                if self._at_once.get(subject, 0) >= self._most_calls:
                    break
                ready[subject], sizes[subject] = [], 0
            assert item.stamp is not None
            size = len(item.wanted.payload) + len(item.stamp.entries) * ENTRY_BYTES + ENVELOPE_BYTES
            if sizes[subject] and (self._headers or sizes[subject] + size > self._world.most_bytes):
                self._call(ready.pop(subject))
                continue
            leaving.popleft()
            ready[subject].append(item)
            sizes[subject] += size
        for items in ready.values():
            self._call(items)
        if too_late:
            self._ask_anew()

    def _call(self, items: list[OutgoingEvent]) -> None:
        stamps: list[Timestamp] = []
        for item in items:
            assert item.stamp is not None
            stamps.append(item.stamp)
            item.state = LEAVING
        subject = _subject(items[0].wanted)
        ticket = self._world.next_call()
        self._calls[ticket] = list(items)
        self._at_once[subject] = self._at_once.get(subject, 0) + 1
        if self._headers:
            body = items[0].wanted.payload
            header = header_of(stamps[0], body, self._key)
        else:
            body, header = seal(stamps, [item.wanted.payload for item in items], self._key), ""
        self._world.call(ServiceCall(ticket, PUBLISH, subject, body, header))

    def _ask_anew(self) -> None:
        """The first one is too late: it and all behind it get other numbers, in their sequence."""
        items = list(self._leaving)
        self._leaving.clear()
        self._give_back([item for item in items if item.state != RETURNED])
        for item in items:
            item.state = RETURNED
        self.queue.extendleft(reversed([item.wanted for item in items]))

    def _give_back(self, items: Iterable[OutgoingEvent]) -> None:
        by_desk: dict[Desk, list[int]] = {}
        for item in items:
            by_desk.setdefault(item.desk, []).append(item.request)
        for desk, requests in by_desk.items():
            if self.desks.get(desk.name) is desk and self._world.up(desk.name):
                self._world.send(desk.name, GiveBack(tuple(requests)))

    def _ask(self, now: float) -> None:
        """Request numbers for as many as the site, and the frame, allow."""
        queue, world = self.queue, self._world
        asked: list[OutgoingEvent] = []
        desk: Desk | None = None
        while queue:
            name = queue[0].topic
            topic = world.ids.get(name)
            if topic is None:
                if world.resolve(name):
                    break
                text = f"topic {name!r} does not live where it should"
                self._answer(queue.popleft(), TopicElsewhere(text))
                continue
            site = world.site_of(topic)
            if site != self._site:
                if self._site and self.desks[self._site].unanswered:
                    break
                if asked:
                    break
                self._site = site
            if desk is None:
                desk = self.desks.setdefault(site, Desk(site))
            if len(asked) == MAX_REQUESTS_PER_FRAME or not world.up(site):
                break
            item = OutgoingEvent(queue.popleft(), desk, desk.next, now)
            desk.items[desk.next] = item
            desk.next += 1
            desk.unanswered += 1
            asked.append(item)
        if desk is not None and asked:
            self._leaving.extend(asked)
            desk.advance()
            self._request(desk, asked, desk.finished)
            desk.confirming = desk.finished

    def _request(self, desk: Desk, items: list[OutgoingEvent], confirmed: int) -> None:
        for at in range(0, len(items), MAX_REQUESTS_PER_FRAME):
            some = items[at : at + MAX_REQUESTS_PER_FRAME]
            topics = tuple(self._world.ids[item.wanted.topic] for item in some)
            self._world.send(desk.name, NumberRequest(some[0].request, topics, confirmed))


def _subject(wanted: WantPublish) -> str:
    return wanted.subject or wanted.topic
