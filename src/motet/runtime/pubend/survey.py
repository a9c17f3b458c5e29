"""The first reading of a segment that is to be sealed: which attributes are worth a column?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from motet.errors import EventError, FrameError
from motet.model import Value, check_attributes, decode_body
from motet.runtime.pubend.batches import unreadable_event
from motet.runtime.pubend.index import BOOL, FLOAT, INT, TEXT, TIME
from motet.runtime.pubend.records import Checkpoint, Run

MAX_COLUMNS: Final = 256
MAX_WORDS: Final = 1024
"""An attribute with more different texts than this is not written by numbers."""
MAX_LEFTOVERS: Final = 4096

KIND_OF: Final[dict[type, str]] = {bool: BOOL, int: INT, float: FLOAT, str: TEXT, datetime: TIME}
_WIDTHS: Final = {BOOL: 0.125, INT: 8.0, FLOAT: 8.0, TEXT: 4.0, TIME: 8.0}


class Survey:
    """How many values of which kind each attribute has, and what else must be known at once."""

    def __init__(self) -> None:
        self.rows = 0
        self.size_bytes = 0
        self.last_tick = 0
        self.last_sequence = 0
        self.events = 0
        self.checkpoint: Checkpoint
        self.values: Counter[tuple[str, str]] = Counter()
        self.names = {""}
        """Of publishers and epochs."""
        self.words: dict[str, set[str]] = {}
        self._text_bytes: Counter[str] = Counter()

    def take(self, run: Run) -> None:
        self.names |= {run.publisher, run.epoch}
        for attributes, _ in contents_of(run):
            try:
                check_attributes(attributes)
            except EventError as error:
                raise unreadable_event(run, error) from error
            for name, value in attributes.items():
                kind = KIND_OF[type(value)]
                self.values[name, kind] += 1
                if kind is TEXT:
                    self._word(name, value)  # type: ignore[arg-type]
        self.rows += run.count
        self.events += run.count
        self.size_bytes += run.size_bytes

    def _word(self, name: str, value: str) -> None:
        self._text_bytes[name] += len(value)
        words = self.words.setdefault(name, set())
        if len(words) <= MAX_WORDS:
            words.add(value)

    def is_numbered(self, name: str) -> bool:
        """Are its texts few enough, and repeated often enough?"""
        words = self.words.get(name, ())
        return 0 < len(words) <= min(MAX_WORDS, self.values[name, TEXT] // 2)

    def columns(self) -> dict[str, list[str]]:
        """The attributes that get columns, with their kinds. All kinds of one or none. Frequent
        ones come first, and all together take no more room than the events: an attribute that
        hardly any event has would cost as much as one that all have."""
        kinds: dict[str, list[str]] = {}
        counts: Counter[str] = Counter()
        for name, kind in sorted(self.values):
            kinds.setdefault(name, []).append(kind)
            counts[name] += self.values[name, kind]
        left = max(self.size_bytes, self.rows * 8)
        chosen: dict[str, list[str]] = {}
        for name, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
            cost = sum(self.rows * (_WIDTHS[kind] + 0.125) for kind in kinds[name])
            if not self.is_numbered(name):
                cost += self._text_bytes[name]
            if cost <= left and len(chosen) < MAX_COLUMNS:
                left -= int(cost)
                chosen[name] = kinds[name]
        return chosen

    def leftovers(self, columns: dict[str, list[str]]) -> list[str] | None:
        names = sorted({name for name, _ in self.values} - columns.keys())
        return names if len(names) <= MAX_LEFTOVERS else None


def contents_of(run: Run) -> Iterator[tuple[dict[str, Value], bytes]]:
    """The attributes and the payload of every event."""
    try:
        yield from map(decode_body, run.bodies)
    except FrameError as error:
        raise unreadable_event(run, error) from error
