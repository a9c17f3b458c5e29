"""The first reading of a segment that is to be sealed: which attributes are worth a column?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from motet.errors import EventError
from motet.model import Value, check_attributes
from motet.runtime.pubend.batches import unreadable_event
from motet.runtime.pubend.index import BOOL, FLOAT, INT, TEXT, TIME
from motet.runtime.pubend.records import Checkpoint, Run

MAX_COLUMNS: Final = 256
MAX_WORDS: Final = 1024
"""An attribute with more different texts than this is not written by numbers."""
MAX_LEFTOVERS: Final = 4096

LEAST_ROW_BYTES: Final = 64
"""Columns may take so much per event, however small the events are."""

GATHERED_EVENTS: Final = 2048
"""Events are looked at so many at a time, attribute by attribute."""
DENSE_NAMES: Final = 512
"""With more attributes among them, they are looked at one by one: most have hardly any value."""

KIND_OF: Final[dict[type, str]] = {bool: BOOL, int: INT, float: FLOAT, str: TEXT, datetime: TIME}
_WIDTHS: Final = {BOOL: 0.125, INT: 8.0, FLOAT: 8.0, TEXT: 4.0, TIME: 8.0}

_decode_contents: Final = msgspec.msgpack.Decoder(list[tuple[dict[str, Any], bytes]]).decode
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


def contents_of(run: Run) -> list[tuple[dict[str, Value], bytes]]:
    """The attributes and the payload of every event."""
    try:
        return _decode_contents(run.packed)
    except _MALFORMED as error:
        raise unreadable_event(run, error) from error


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
        self.ranges: dict[str, tuple[int, int]] = {}
        """The least and the greatest int of an attribute."""
        self._text_bytes: Counter[str] = Counter()
        self._gathered: list[dict[str, Value]] = []

    # ── taking events ────────────────────────────────────────────────────────────────────

    def take(self, run: Run) -> None:
        self.names |= {run.publisher, run.epoch}
        self.rows += run.count
        self.events += run.count
        self.size_bytes += run.size_bytes
        self._gathered += [attributes for attributes, _ in contents_of(run)]
        if len(self._gathered) >= GATHERED_EVENTS:
            try:
                self.finish()
            except EventError as error:
                raise unreadable_event(run, error) from error

    def finish(self) -> None:
        """Look at what was gathered. `EventError` if it is not what an event may have."""
        gathered, self._gathered = self._gathered, []
        names: set[str] = set().union(*gathered)
        if len(names) > DENSE_NAMES:
            for attributes in gathered:
                check_attributes(attributes)
                for name, value in attributes.items():
                    self._look(name, [value])
            return
        for name in names:
            self._look(name, [each[name] for each in gathered if name in each])

    def _look(self, name: str, values: Sequence[Value]) -> None:
        types = Counter(map(type, values))
        for kind, count in types.items():
            known = KIND_OF.get(kind)
            if known is None:
                check_attributes({name: next(each for each in values if type(each) is kind)})
            assert known is not None, kind
            self.values[name, known] += count
            of_kind = values if len(types) == 1 else [each for each in values if type(each) is kind]
            if known is TEXT:
                self._texts(name, of_kind)  # type: ignore[arg-type]
            elif known is INT:
                self._ints(name, of_kind)  # type: ignore[arg-type]

    def _texts(self, name: str, values: Sequence[str]) -> None:
        self._text_bytes[name] += sum(map(len, values))
        words = self.words.setdefault(name, set())
        if len(words) <= MAX_WORDS:
            words.update(values)

    def _ints(self, name: str, values: Sequence[int]) -> None:
        least, greatest = min(values), max(values)
        check_attributes({name: least})
        check_attributes({name: greatest})
        known = self.ranges.get(name)
        if known is not None:
            least, greatest = min(least, known[0]), max(greatest, known[1])
        self.ranges[name] = least, greatest

    # ── what comes of it ─────────────────────────────────────────────────────────────────

    def int_bits(self, name: str) -> int:
        """How wide a column must be to hold every int of an attribute."""
        least, greatest = self.ranges[name]
        for bits in (8, 16, 32):
            if -(1 << (bits - 1)) <= least and greatest < 1 << (bits - 1):
                return bits
        return 64

    def is_numbered(self, name: str) -> bool:
        """Are its texts few enough, and repeated often enough?"""
        words = self.words.get(name, ())
        return 0 < len(words) <= min(MAX_WORDS, self.values[name, TEXT] // 2)

    def columns(self) -> dict[str, list[str]]:
        """The attributes that get columns, with their kinds. All kinds of one or none. Frequent
        ones come first, and all together take no more room than events that are not tiny: an
        attribute that hardly any event has would cost as much as one that all have."""
        kinds: dict[str, list[str]] = {}
        counts: Counter[str] = Counter()
        for name, kind in sorted(self.values):
            kinds.setdefault(name, []).append(kind)
            counts[name] += self.values[name, kind]
        left = max(self.size_bytes, self.rows * LEAST_ROW_BYTES)
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
