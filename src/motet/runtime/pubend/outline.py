"""The outline of a range of ticks: how much is in it, where it may be divided, and which
transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from motet.errors import LogTrimmed
from motet.protocol.reading.messages import REST, LogStep
from motet.runtime.pubend.batches import Lost, Sieve
from motet.runtime.pubend.entries import Entry, Grain, entry_of
from motet.runtime.pubend.parts import Live, Part, part_with
from motet.runtime.pubend.reading import Reading
from motet.runtime.pubend.records import Cut
from motet.runtime.pubend.shelf import Shelf

OUTLINE_S: Final = 0.1
"""Whoever waits for an outline hears something after this time."""
MOST_STEPS: Final = 4096
GRAINS: Final = 16
"""A step may be larger than it should be by one part in so many."""


class Measure(Struct, frozen=True):
    """What somebody wants to know: steps of about so many events or bytes, until there are so
    many in all. With `every_block`, transactions of one pubend are steps of their own, too."""

    step_events: int
    step_bytes: int
    most_events: int
    most_bytes: int
    every_block: bool = False

    @property
    def grain(self) -> Grain:
        return Grain(self.step_events // GRAINS, self.step_bytes // GRAINS)


class Outlined(Struct, frozen=True):
    """The steps of the stream from tick `since` to tick `upto`. If `lost`, it is not kept."""

    since: int
    upto: int
    lost: bool
    steps: list[LogStep]


class OutlineReading:
    def __init__(
        self, reading: Callable[[Sieve], Reading], shelf: Shelf, parts: Callable[[], Sequence[Part]]
    ) -> None:
        self._reading = reading
        self._shelf = shelf
        self._parts = parts

    @property
    def gone_cut(self) -> int:
        """The number of the last cut that is not kept any more; 0 if all are."""
        return self._parts()[0].cut_before

    def piece(self, since: int, last: int, measure: Measure) -> Outlined:
        """The first piece of the ticks from `since` to `last`, which are durable. It ends before
        a transaction whose events are not all there."""
        steps = Steps(since, last, measure)
        until_s = time.monotonic() + OUTLINE_S
        at = since
        while at <= last:
            parts = tuple(self._parts())
            number = part_with(parts, at)
            if number < 0 or parts[number].is_lost:
                if at > since:
                    return steps.outlined(at - 1)
                return Outlined(since, min(last, parts[number + 1].floor), True, [])
            upto = min(last, parts[number + 1].floor) if number + 1 < len(parts) else last
            try:
                for entry in self._entries(parts[number], at, upto, measure.grain):
                    at = entry.last_tick + 1
                    steps.take(entry)
                    if steps.is_full or (steps.steps and time.monotonic() > until_s):
                        return steps.outlined(entry.last_tick)
            except (LogTrimmed, FileNotFoundError):
                # It was sealed or trimmed meanwhile: look again, from here.
                if parts[number] in self._parts():
                    raise
                continue
            at = upto + 1
        return steps.outlined(last)

    def _entries(self, part: Part, since: int, upto: int, grain: Grain) -> Iterator[Entry]:
        if not isinstance(part, Live):
            yield from self._shelf.entries(part, since, upto, grain)
            return
        for batch in self._reading(Sieve()).batches(since, upto, None, None):
            if isinstance(batch, Lost):
                raise LogTrimmed("it was trimmed meanwhile")
            yield from map(entry_of, batch.records)


class Steps:
    """Entries on their way into steps. No step ends within a transaction's events."""

    def __init__(self, since: int, last: int, measure: Measure) -> None:
        self.steps: list[LogStep] = []
        self._since = since
        self._last = last
        self._measure = measure
        self._closed = since - 1
        """The last step ends here."""
        self._passed = since - 1
        """The step that is under way has come so far."""
        self._events = self._bytes = 0
        self._all_events = self._all_bytes = 0
        self._cut: Cut | None = None
        self._block_events = self._block_bytes = 0
        self._is_cut_off = False
        """There is more that is not taken."""

    @property
    def is_full(self) -> bool:
        measure = self._measure
        return (
            self._is_cut_off
            or len(self.steps) >= MOST_STEPS
            or self._all_events >= measure.most_events
            or self._all_bytes >= measure.most_bytes
        )

    def take(self, entry: Entry) -> None:
        cut = entry.cut
        if cut is not None and cut.last > cut.tick:
            if cut.last > self._last:
                self._is_cut_off = True
            else:
                self._cut, self._block_events, self._block_bytes = cut, 0, 0
        elif self._cut is not None:
            self._block_events += entry.events
            self._block_bytes += entry.size_bytes
            if entry.last_tick >= self._cut.last:
                self._block(self._cut)
        elif entry.is_block:
            self._step_before(entry.first_tick)
            self._count(entry.last_tick, entry.events, entry.size_bytes)
            self._step(entry.last_tick, REST)
        elif entry.events and not entry.is_solid:
            self._count(entry.last_tick, entry.events, entry.size_bytes)
            self._look()
        else:
            self._run(entry)

    def _block(self, cut: Cut) -> None:
        """All events of a transaction are in."""
        self._cut = None
        is_own = self._measure.every_block or len(cut.pubends) > 1
        if is_own:
            self._step_before(cut.tick)
        self._count(cut.last, self._block_events, self._block_bytes)
        if is_own:
            self._step(cut.last, cut.number, cut.tx, cut.pubends)
        else:
            self._look()

    def _run(self, entry: Entry) -> None:
        first, left, size = entry.first_tick, entry.events, entry.size_bytes
        if not left:
            self._passed = entry.last_tick
        while left and not self.is_full:
            each = max(size // left, 1)
            room = self._measure.step_events - self._events
            room = min(room, max((self._measure.step_bytes - self._bytes) // each, 1))
            taken = min(left, room)
            taken_bytes = size * taken // left
            self._count(first + taken - 1, taken, taken_bytes)
            self._look()
            first, left, size = first + taken, left - taken, size - taken_bytes
        self._is_cut_off = left > 0

    def _count(self, upto: int, events: int, size_bytes: int) -> None:
        self._passed = upto
        self._events += events
        self._bytes += size_bytes
        self._all_events += events
        self._all_bytes += size_bytes

    def _look(self) -> None:
        measure = self._measure
        if self._events >= measure.step_events or self._bytes >= measure.step_bytes:
            self._step(self._passed)

    def _step_before(self, tick: int) -> None:
        if self._events:
            self._step(tick - 1)

    def _step(
        self, upto: int, number: int = 0, tx: str = "", pubends: tuple[str, ...] = ()
    ) -> None:
        if upto > self._closed:
            self.steps.append(LogStep(upto, self._events, self._bytes, number, tx, pubends))
            self._closed = self._passed = upto
            self._events = self._bytes = 0

    def outlined(self, upto: int) -> Outlined:
        """Everything up to this tick was taken, or lies behind what cannot be."""
        if self._is_cut_off or self._cut is not None:
            upto = self._passed
        self._step(max(upto, self._passed))
        return Outlined(self._since, self._closed, False, self.steps)
