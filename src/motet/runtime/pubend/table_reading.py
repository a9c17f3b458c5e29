"""Reading a range of ticks as tables: the next piece, which is bounded in size and time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from motet.errors import LogTrimmed, MisuseError
from motet.model import Filter
from motet.protocol.reading.messages import Wanted
from motet.runtime.pubend.batches import Batch, Lost, Sieve
from motet.runtime.pubend.block_tables import Room
from motet.runtime.pubend.index import FLOAT, INT, KINDS, TEXT
from motet.runtime.pubend.outline import OutlineReading
from motet.runtime.pubend.parts import Live, Part, part_with
from motet.runtime.pubend.reading import Reading
from motet.runtime.pubend.records import Run
from motet.runtime.pubend.shelf import Shelf
from motet.runtime.pubend.survey import KIND_OF, contents_of
from motet.runtime.pubend.tables import Tabled, Wishes, table_of_rows

PIECE_BYTES: Final = 4 << 20
"""Of bodies, about. Attributes that are wanted for themselves come on top of it."""
PIECE_S: Final = 0.05
"""Whoever waits for a piece hears something after this time, even if nothing was found."""
SAMPLE_EVENTS: Final = 4096
"""So many events in rows are looked at to find out what an attribute is."""


class Piece(Struct, frozen=True):
    """The stream from tick `since` to tick `upto`. If `lost`, it is not kept any more."""

    since: int
    upto: int
    lost: bool
    rows: int
    scanned: int
    misfits: dict[str, int]
    batches: list[Any]


class TableReading:
    def __init__(
        self, reading: Callable[[Sieve], Reading], shelf: Shelf, parts: Callable[[], Sequence[Part]]
    ) -> None:
        self._reading = reading
        self._shelf = shelf
        self._parts = parts

    @property
    def outlines(self) -> OutlineReading:
        """How much there is, and which transactions, instead of tables."""
        return OutlineReading(self._reading, self._shelf, self._parts)

    def piece(
        self,
        since: int,
        last: int,
        filter: Filter | None,
        wishes: Wishes,
        most_rows: int,
        most_bytes: int,
    ) -> Piece:
        """The first piece of the ticks from `since` to `last`, which are durable."""
        room = Room(most_rows, most_bytes)
        until_s = time.monotonic() + PIECE_S
        at, scanned, rows = since, 0, 0
        batches: list[Any] = []
        misfits: Counter[str] = Counter()
        while at <= last and not room.is_full:
            parts = tuple(self._parts())
            number = part_with(parts, at)
            if number < 0 or parts[number].is_lost:
                if at > since:
                    break  # what is lost is said by itself
                upto = min(last, parts[number + 1].floor)
                return Piece(since, upto, True, 0, 0, {}, [])
            upto = min(last, parts[number + 1].floor) if number + 1 < len(parts) else last
            try:
                for tabled in self._tables(parts[number], at, upto, filter, wishes, room):
                    at = tabled.upto + 1
                    rows += tabled.rows
                    scanned += tabled.scanned
                    misfits.update(tabled.misfits)
                    if tabled.batch is not None:
                        batches.append(tabled.batch)
                    if time.monotonic() > until_s:
                        room.close()
                        break
            except (LogTrimmed, FileNotFoundError):
                # It was sealed or trimmed meanwhile: look again, from here.
                if parts[number] in self._parts():
                    raise
                continue
            if not room.is_full:
                at = upto + 1
        return Piece(since, at - 1, False, rows, scanned, dict(misfits), batches)

    def _tables(
        self, part: Part, since: int, upto: int, filter: Filter | None, wishes: Wishes, room: Room
    ) -> Iterator[Tabled]:
        if not isinstance(part, Live):
            yield from self._shelf.tables(part, since, upto, filter, wishes, room)
            return
        events, size = room.rows, room.size_bytes
        for batch in self._reading(Sieve(filter)).batches(since, upto, events, size):
            if isinstance(batch, Lost):
                raise LogTrimmed("it was trimmed meanwhile")
            tabled = table_of_rows(batch.records, wishes, batch.upto, batch.scanned, room.rows)
            room.take(tabled.rows, batch.size_bytes)
            yield tabled
            if room.is_full:
                return
        if batch.upto < upto:
            room.close()

    # ── what an attribute is ─────────────────────────────────────────────────────────────

    def resolved(self, wanted: Sequence[Wanted], since: int, last: int) -> tuple[Wanted, ...]:
        """The same with the kind of every attribute, as it is between two ticks."""
        names = [each.attribute for each in wanted if each.attribute and not each.kind]
        if not names:
            return tuple(wanted)
        found = self._kinds(names, since, last)
        return tuple(
            Wanted(each.name, each.attribute, _kind(each.attribute, found[each.attribute]))
            if each.attribute in found and not each.kind
            else each
            for each in wanted
        )

    def _kinds(self, names: Sequence[str], since: int, last: int) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in names}
        parts = tuple(self._parts())
        for number, part in enumerate(parts):
            upto = min(last, parts[number + 1].floor) if number + 1 < len(parts) else last
            first = max(since, part.floor + 1)
            if first > upto or part.is_lost:
                continue
            known = None
            try:
                if not isinstance(part, Live):
                    known = self._shelf.kinds(part, names)
                if known is None:
                    known = self._sampled(names, first, upto)
            except (LogTrimmed, FileNotFoundError):
                if part in self._parts():
                    raise
                continue  # it has gone, or is found elsewhere: what it had is a guess anyway
            for name in names:
                found[name] |= known[name]
        return found

    def _sampled(self, names: Sequence[str], since: int, upto: int) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in names}
        for batch in self._reading(Sieve()).batches(since, upto, SAMPLE_EVENTS, None):
            assert isinstance(batch, Batch | Lost)
            for record in batch.records if isinstance(batch, Batch) else ():
                for attributes, _ in contents_of(record) if isinstance(record, Run) else ():
                    for name in names:
                        if name in attributes:
                            found[name].add(KIND_OF[type(attributes[name])])
        return found


def _kind(name: str, found: set[str]) -> str:
    if found == {INT, FLOAT}:
        return FLOAT
    if len(found) > 1:
        kinds = [kind for kind in KINDS if kind in found]
        ways = " or ".join(f"{name}:{kind}" for kind in kinds)
        raise MisuseError(
            f"the values of {name} are of several kinds here ({', '.join(kinds)}), and a column "
            f"has one; ask for {ways}"
        )
    return next(iter(found), TEXT)
