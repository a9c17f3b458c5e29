"""What a pubend knows of its stream without reading it: built by its records, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from motet.runtime.pubend.records import (
    CHECKPOINT,
    CURSOR,
    CUT,
    ENDED,
    LOSS,
    RUN,
    START,
    Checkpoint,
    Cursor,
    Cut,
    Ended,
    Loss,
    Run,
    Start,
)

MOST_SKIPPED = 64
"""Of one session. Whoever has more refusals unanswered misuses the broker."""


class Standing:
    """Changes only by `apply`. A checkpoint says all of it, so reading may begin at any."""

    def __init__(self, pubend: str) -> None:
        self.pubend = pubend
        self.last_tick = 0
        self.acknowledged = 0
        """Everybody has what came up to this tick. Soft: the last checkpoint's is a lower bound."""
        self.lost_upto = 0
        self.lost_events = 0
        self.destroyed_upto = 0
        """The log of the stream up to here was destroyed: nobody knows what was in it."""
        self.last_cut = 0
        """The number of the last cut."""
        self.block = (0, 0)
        """The tick of the last cut, and the last tick of its events."""
        self.events = 0
        self.size_bytes = 0
        """Of the whole stream so far, kept or not."""
        self.published: dict[str, dict[str, int]] = {}
        self.cursors: dict[str, Cursor] = {}
        self.skipped: dict[str, dict[str, list[int]]] = {}
        """Sequences below the last one that are not in the log: they were refused, or needed none.
        A publisher that never heard the answer asks for it after a restart."""

    def apply(self, kind: int, record: Any) -> None:
        _APPLY[kind](self, record)

    def checkpoint(self, now_s: float) -> Checkpoint:
        return Checkpoint(
            self.pubend,
            self.last_tick,
            now_s,
            self.acknowledged,
            self.lost_upto,
            self.lost_events,
            self.events,
            self.size_bytes,
            self.published,
            self.cursors,
            self.skipped,
            self.destroyed_upto,
            self.last_cut,
            self.block,
        )

    def last_published(self, publisher: str, epoch: str) -> int:
        sessions = self.published.get(publisher)
        return sessions.get(epoch, 0) if sessions else 0

    def _run(self, run: Run) -> None:
        self.last_tick = run.last_tick
        self.events += run.count
        if not run.epoch:
            return  # of a transaction, which is there once anyway
        sessions = self.published.get(run.publisher)
        if sessions is None:
            sessions = self.published[run.publisher] = {}
        before = sessions.get(run.epoch, 0)
        if run.first_sequence > before + 1:
            self._skip(run, before)
        sessions[run.epoch] = run.last_sequence

    def _skip(self, run: Run, before: int) -> None:
        known = self.skipped.setdefault(run.publisher, {}).setdefault(run.epoch, [])
        first = max(before + 1, run.first_sequence - MOST_SKIPPED)
        known.extend(range(first, run.first_sequence))
        del known[:-MOST_SKIPPED]

    def _start(self, start: Start) -> None:
        self.last_tick = start.tick

    def _cut(self, cut: Cut) -> None:
        self.last_tick = cut.tick
        self.last_cut = max(self.last_cut, cut.number)
        self.block = (cut.tick, cut.last)

    def _cursor(self, cursor: Cursor) -> None:
        if cursor.tick is None:
            self.cursors.pop(cursor.name, None)
        else:
            self.cursors[cursor.name] = cursor

    def _ended(self, ended: Ended) -> None:
        for publisher, epoch in ended.sessions:
            for table in (self.published, self.skipped):
                sessions = table.get(publisher, {})
                sessions.pop(epoch, None)
                if not sessions:
                    table.pop(publisher, None)

    def _loss(self, loss: Loss) -> None:
        self.lost_upto = loss.upto
        self.lost_events += loss.events

    def _checkpoint(self, found: Checkpoint) -> None:
        self.last_tick = found.last_tick
        self.acknowledged = max(self.acknowledged, found.acknowledged)
        self.lost_upto = found.lost_upto
        self.lost_events = found.lost_events
        self.events = found.events
        self.size_bytes = found.size_bytes
        self.published = found.published
        self.cursors = found.cursors
        self.skipped = found.skipped
        self.destroyed_upto = found.destroyed_upto
        self.last_cut = found.last_cut
        self.block = found.block


_APPLY: Final[dict[int, Callable[[Standing, Any], None]]] = {
    RUN: Standing._run,
    START: Standing._start,
    CUT: Standing._cut,
    CURSOR: Standing._cursor,
    ENDED: Standing._ended,
    LOSS: Standing._loss,
    CHECKPOINT: Standing._checkpoint,
}
