"""The history of a run of the profile `ordering`, from the diaries of its clients.

Diaries name topics by integer, and times by the machine's monotonic clock, which all share. The
last line of a process that was killed may be torn; nothing of it was seen outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from motet.testing.ordering.history import (
    PUBLISHED,
    Cut,
    EventSent,
    Given,
    Numbered,
    NumbersLost,
    OrderedPublication,
    OrderHistory,
    RequestId,
    StreamSession,
    TopicDropped,
    TopicsHeld,
)

Line = list[Any]


def lines_of(path: Path) -> Iterator[Line]:
    decode = msgspec.json.Decoder(list[Any]).decode
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        yield decode(line)


class Memoirs:
    """Reads one diary after the other into one history."""

    def __init__(self, mode: str) -> None:
        self.history = OrderHistory(mode=mode)
        self.counts: Counter[str] = Counter()
        self.longest_silence_s = 0.0
        self._names: dict[int, str] = {}

    def read(self, diaries: Iterable[tuple[str, Path, bool]]) -> None:
        """Of each process its name, its diary, and whether it has died."""
        read = [(name, list(lines_of(path)), died) for name, path, died in diaries]
        for _, lines, _ in read:
            for line in lines:
                if line[0] == "ids":
                    self._learn(line[1])
        for name, lines, died in read:
            DiaryReader(self, name).read(lines, died)
        self.history.publications = dict(_by_cause(self.history.publications))

    def _learn(self, ids: dict[str, int]) -> None:
        for name, number in ids.items():
            self._names.setdefault(number, name)
            self.history.names.append((name, number))

    def name(self, topic: int) -> str:
        return self._names.get(topic, f"topic {topic}")


class DiaryReader:
    """What one process did."""

    def __init__(self, memoirs: Memoirs, process: str) -> None:
        self._memoirs = memoirs
        self._history = memoirs.history
        self._process = process
        self._publications: dict[int, OrderedPublication] = {}
        self._sessions: dict[int, StreamSession] = {}
        self._by_id: dict[str, StreamSession] = {}
        self._topics: dict[str, set[str]] = {}
        self._gaps: set[int] = set()
        self._lives: Counter[tuple[str, str]] = Counter()
        self._highest: Counter[tuple[str, str]] = Counter()
        self._asked_at: dict[RequestId, float] = {}
        self._held: dict[tuple[str, int], TopicsHeld] = {}
        self._last_held: dict[str, TopicsHeld] = {}
        self._steady = 0
        self._given_at = 0.0

    def read(self, lines: Iterable[Line], died: bool) -> None:
        takes: dict[str, Callable[..., None]] = {
            "asked": self._asked,
            "outcome": self._outcome,
            "sent": self._sent,
            "welcome": self._welcome,
            "request": self._request,
            "numbers": self._numbers,
            "change": self._change,
            "changed": self._changed,
            "joined": self._joined,
            "given": self._given,
            "lost": self._lost,
            "gap": self._gap,
            "closed": self._closed,
            "steady": self._is_steady,
        }
        for kind, *rest in lines:
            if kind in takes:
                takes[kind](*rest)
        if died:
            for publication in self._publications.values():
                publication.excused = True
            for session in self._sessions.values():
                session.ended = True

    # ── publications ─────────────────────────────────────────────────────────────────────

    def _asked(self, event: int, topic: str, causes: list[int]) -> None:
        made = OrderedPublication(event, self._process, topic, tuple(causes))
        self._publications[event] = self._history.publications[event] = made
        self._memoirs.counts["asked"] += 1

    def _outcome(self, event: int, error: str, number: int) -> None:
        made = self._publications[event]
        made.outcome, made.number = error or PUBLISHED, number
        self._memoirs.counts[made.outcome] += 1

    def _sent(self, topic: int, number: int, event: int) -> None:
        self._history.sent.append(EventSent(self._memoirs.name(topic), number, event))

    # ── sites ────────────────────────────────────────────────────────────────────────────

    def _id(self, instance: str, site: str, number: int) -> RequestId:
        return RequestId(instance, site, number, self._lives[instance, site])

    def _welcome(self, instance: str, site: str, answered: int, mode: str) -> None:
        del mode
        if answered < self._highest[instance, site]:
            self._lives[instance, site] += 1
            self._highest[instance, site] = 0

    def _request(self, at: float, instance: str, site: str, first: int, count: int) -> None:
        for number in range(first, first + count):
            self._asked_at.setdefault(self._id(instance, site, number), at)

    def _numbers(self, at: float, instance: str, site: str, first: int, stamps: list[Any]) -> None:
        name = self._memoirs.name
        for number, stamp in enumerate(stamps, first):
            if stamp is None:
                continue
            request = self._id(instance, site, number)
            self._highest[instance, site] = max(self._highest[instance, site], number)
            topic, count, flat = stamp
            entries = tuple(
                (name(each), upto) for each, upto in zip(flat[::2], flat[1::2], strict=True)
            )
            asked_at = self._asked_at.get(request, at)
            self._history.numbered.append(
                Numbered(request, name(topic), count, entries, asked_at, at)
            )

    # ── streams ──────────────────────────────────────────────────────────────────────────

    def _change(self, at: float, stream: str, number: int, topics: list[int]) -> None:
        if (stream, number) not in self._held:
            names = frozenset(self._memoirs.name(topic) for topic in topics)
            held = self._held[stream, number] = TopicsHeld(stream, names, at)
            self._history.memberships.append(held)

    def _changed(self, at: float, stream: str, number: int) -> None:
        made, last = self._held[stream, number], self._last_held.get(stream)
        if last is not made:
            self._memoirs.counts["changes"] += 1
            if last is not None:
                last.until = at
            self._last_held[stream] = made

    def _joined(self, key: int, stream: str, cut: dict[str, int]) -> None:
        before, session = self._sessions.get(key), self._by_id.get(stream)
        if session is None:
            session = self._by_id[stream] = self._history.session(stream, self._process)
            session.former = before
            self._topics[stream] = set()
            if before is not None:
                before.ended = True
                if key not in self._gaps:
                    text = f"{stream} begins after a gap of which nobody was told"
                    self._history.oddities.append(("completeness", text))
                self._gaps.discard(key)
        having = self._topics[stream]
        session.steps += [TopicDropped(topic) for topic in sorted(having - cut.keys())]
        session.steps += [Cut(topic, at) for topic, at in cut.items() if topic not in having]
        self._topics[stream] = set(cut)
        self._sessions[key] = session

    def _given(
        self, at: float, key: int, topic: str, number: int | None, event: int, late: bool
    ) -> None:
        session = self._sessions.get(key)
        if session is None or number is None:
            text = f"{self._process} got event {event} without number, or outside of a stream"
            self._history.oddities.append(("completeness", text))
            return
        session.steps.append(Given(topic, number, event, late))
        self._memoirs.counts["late" if late else "delivered"] += 1
        if key == self._steady:
            if self._given_at:
                silence_s = at - self._given_at
                self._memoirs.longest_silence_s = max(self._memoirs.longest_silence_s, silence_s)
            self._given_at = at

    def _lost(self, key: int, topic: str, numbers: list[int]) -> None:
        self._sessions[key].steps.append(NumbersLost(topic, tuple(numbers)))
        self._memoirs.counts["lost"] += len(numbers)

    def _gap(self, key: int, reason: str) -> None:
        del reason
        self._gaps.add(key)
        self._memoirs.counts["gaps"] += 1

    def _closed(self, key: int) -> None:
        if key in self._sessions:
            self._sessions[key].ended = True

    def _is_steady(self, key: int) -> None:
        self._steady = key


def _by_cause(
    publications: dict[int, OrderedPublication],
) -> Iterator[tuple[int, OrderedPublication]]:
    """Causes first, as the checker of causality wants them."""
    done: set[int] = set()
    for first in publications:
        waiting = [first]
        while waiting:
            event = waiting[-1]
            publication = publications[event]
            before = [
                cause
                for cause in publication.causes
                if cause in publications and cause not in done and cause != event
            ]
            if event in done or not before:
                waiting.pop()
                if event not in done:
                    done.add(event)
                    yield event, publication
            else:
                waiting.extend(before)
