"""Records in a history what a client publishes, what its streams are given, and what they are told
instead.

An event is recorded when the machine gives it: whatever the client publishes from then on may be
its effect. Tickets count what the application wants; so what was published with a higher ticket
came later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import inf
from typing import Any, Final

from motet.audit.recorder import Recording
from motet.errors import MotetError
from motet.ordering.contract import ClientEffects, Result
from motet.ordering.events import Gap, Joined, LostEvents, OrderedEvent, OrderReceipt
from motet.ordering.machine import OrderingMachine
from motet.protocol.sequencing.messages import LAST_NUMBER

PUBLISHED: Final = "published"


class StreamSteps:
    """A stream as it is recorded: under one name from when it joins until it has a gap or ends."""

    def __init__(self, id: str, former: str, began_at: float) -> None:
        self.id = id
        self.former = former
        self.began_at = began_at
        self.nth = 0
        self.topics: set[str] = set()
        self.version = 0
        self.in_gap = False
        """It has lost its place in the order, and joins anew under another name."""


class OrderingHistory:
    def __init__(self, machine: OrderingMachine, into: Recording) -> None:
        self._machine = machine
        self._into = into
        self._client: Final = machine.instance
        self._streams: dict[int, StreamSteps] = {}

    def close(self) -> None:
        self._into.close()

    # ── what a step has caused ───────────────────────────────────────────────────────────

    def carried(self, effects: ClientEffects, last: int, open: Iterable[int], place: str) -> None:
        """`last`: the last ticket so far. `open`: those of publications without a receipt. `place`:
        the site that this client has connected to first."""
        now = time.time()
        for call in effects.calls:
            if call.kind == "publish":
                self._sent(call.ticket, place, now)
        before, behind = _by_joining(effects)
        for key, event in before:
            self._given(key, event, last, now)
        for news in effects.told:
            if isinstance(news, Joined):
                self._joined(news, now)
            elif isinstance(news, LostEvents):
                self._lost(news, now)
            elif isinstance(news, Gap):
                self._gap(news, now)
        for key, event in behind:
            self._given(key, event, last, now)
        for ticket, result in effects.receipts:
            if ticket in open:
                self._answered(ticket, result, now)

    def ended(self, key: int, clocks: Mapping[str, int]) -> None:
        """The application wants no more of a stream, which has passed these numbers."""
        now = time.time()
        steps = self._streams.get(key)
        if steps is not None:
            for topic, number in clocks.items():
                if topic in steps.topics and not steps.in_gap:
                    self._cut(steps, topic, "reached", number, now)
            self._write(steps, now)
            del self._streams[key]

    # ── publications ─────────────────────────────────────────────────────────────────────

    def _sent(self, call: int, place: str, now: float) -> None:
        for wanted, stamp in self._machine.publisher.leaving(call):
            row: dict[str, Any] = {"client": self._client, "nth": wanted.ticket}
            row["topic"] = wanted.topic
            row |= {"number": stamp.number, "digest": digest(wanted.payload)}
            self._into.add("order_published", {**row, "place": place, "at": now})

    def _answered(self, ticket: int, result: Result | MotetError, now: float) -> None:
        row: dict[str, Any] = {"client": self._client, "nth": ticket, "at": now}
        if isinstance(result, OrderReceipt):
            row |= {"topic": result.topic, "number": result.number, "outcome": PUBLISHED}
        else:
            row["outcome"] = type(result).__name__
        self._into.add("order_receipts", row)

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def _joined(self, news: Joined, now: float) -> None:
        before = self._streams.get(news.stream)
        if before is None or before.id != news.id:
            former = "" if before is None else before.id
            steps = self._streams[news.stream] = StreamSteps(news.id, former, now)
            self._write(steps, inf)
        else:
            steps = before
        for topic, number in news.cut.items():
            if topic not in steps.topics:
                steps.topics.add(topic)
                self._cut(steps, topic, "cut", number, now)
        for topic in sorted(steps.topics - news.cut.keys()):
            steps.topics.discard(topic)
            self._cut(steps, topic, "dropped", 0, now)

    def _gap(self, news: Gap, now: float) -> None:
        steps = self._streams.get(news.stream)
        if steps is not None:
            steps.in_gap = True
            self._write(steps, now)

    def _given(self, key: int, event: OrderedEvent, known: int, now: float) -> None:
        steps = self._streams.get(key)
        if steps is None or event.number is None:
            return
        row = self._step(steps, event.topic, event.number, now)
        row |= {"client": self._client, "known": known, "digest": digest(event.payload)}
        self._into.add("order_given", {**row, "is_late": event.late})

    def _lost(self, news: LostEvents, now: float) -> None:
        steps = self._streams.get(news.stream)
        if steps is not None:
            for number in news.numbers:
                self._into.add("order_lost", self._step(steps, news.topic, number, now))

    def _cut(self, steps: StreamSteps, topic: str, what: str, number: int, now: float) -> None:
        self._into.add("order_cuts", {**self._step(steps, topic, number, now), "what": what})

    def _step(self, steps: StreamSteps, topic: str, number: int, now: float) -> dict[str, Any]:
        steps.nth += 1
        place = {"stream": steps.id, "nth": steps.nth, "topic": topic}
        return {**place, "number": number, "at": now}

    def _write(self, steps: StreamSteps, ended_at: float) -> None:
        steps.version += 1
        row = {
            "stream": steps.id,
            "client": self._client,
            "former": steps.former,
            "mode": self._machine.mode,
            "at": steps.began_at,
            "ended_at": ended_at,
            "version": steps.version,
        }
        self._into.add("order_streams", row)


Given = list[tuple[int, OrderedEvent]]


def _by_joining(effects: ClientEffects) -> tuple[Given, Given]:
    """Events from before streams have joined, and those behind their cuts."""
    cuts = {news.stream: news.cut for news in effects.told if isinstance(news, Joined)}
    before: Given = []
    behind: Given = []
    for key, event in effects.events:
        if key in cuts and (event.number or 0) <= cuts[key].get(event.topic, LAST_NUMBER):
            before.append((key, event))
        else:
            behind.append((key, event))
    return before, behind


def digest(payload: bytes) -> int:
    return int.from_bytes(blake2b(payload, digest_size=8).digest(), "big", signed=True)
