"""Tables from sealed files: what a filter keeps of a block, in the columns that are wanted."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from motet.model import Filter
from motet.protocol.reading.messages import Wanted
from motet.runtime.pubend.batches import Sieve
from motet.runtime.pubend.columns import (
    GATHER_SHARE,
    BlockReader,
    Piece,
    attributes_of,
    blocks_between,
)
from motet.runtime.pubend.index import FLOAT, INT, STREAM, TEXT, Index, Runs, stream_columns
from motet.runtime.pubend.records import RUN
from motet.runtime.pubend.selection import Selector
from motet.runtime.pubend.tables import (
    SPLIT,
    Tabled,
    Wishes,
    as_batch,
    field_type,
    kind_column,
    split_bodies,
    table_of_rows,
)

FLOATS: Final = (FLOAT, INT)
"""A column of floats takes ints, too."""


class Room:
    """How much more there is room for. The first row always comes, whatever its size."""

    def __init__(self, rows: int, size_bytes: int) -> None:
        self.rows = rows
        self.size_bytes = size_bytes
        self.is_first = True
        self._is_closed = False

    def take(self, rows: int, size_bytes: int) -> None:
        self.rows -= rows
        self.size_bytes -= size_bytes
        self.is_first = self.is_first and not rows

    def close(self) -> None:
        """What comes next does not fit."""
        self._is_closed = True

    @property
    def is_full(self) -> bool:
        return self._is_closed or self.rows <= 0 or self.size_bytes <= 0


def read_tables(
    path: Path,
    index: Index,
    since: int,
    upto: int,
    filter: Filter | None,
    wishes: Wishes,
    room: Room,
) -> Iterator[Tabled]:
    """Block by block, until there is no room."""
    asked = {*wishes.attributes, *(attributes_of(filter) if filter is not None else ())}
    by_rows = any(map(index.may_have, sorted(asked)))
    for reader in blocks_between(path, index, since, upto):
        block = reader.block
        others = any(kind != RUN for kind in reader.runs.kinds)
        decodes = wishes.splits and block.payload_sizes is None
        if by_rows or decodes or (others and wishes.others):
            found = _by_rows(reader, filter, wishes, room)
        else:
            found = _BlockTable(reader, filter, wishes).tabled(room)
        yield from found
        if room.is_full:
            return


def _by_rows(
    reader: BlockReader, filter: Filter | None, wishes: Wishes, room: Room
) -> Iterator[Tabled]:
    """Run by run, event by event: where the columns do not say everything."""
    for sifted in reader.all(Sieve(filter)):
        if room.is_full:
            return
        if sifted.size_bytes > room.size_bytes and not room.is_first:
            room.close()
            return
        tabled = table_of_rows(sifted.records, wishes, sifted.upto, sifted.scanned, room.rows)
        room.take(tabled.rows, sifted.size_bytes)
        yield tabled


class _BlockTable:
    """One block, whose columns say everything that is asked for."""

    def __init__(self, reader: BlockReader, filter: Filter | None, wishes: Wishes) -> None:
        import pyarrow.compute  # only where columns are needed: it is large

        self._arrow: Any = pyarrow
        self._reader = reader
        self._filter = filter
        self._wishes = wishes
        self._first = reader.row_of(reader.since)
        self._end = reader.row_of(reader.upto + 1)
        self._others = [
            row
            for kind, row in zip(reader.runs.kinds, reader.runs.first_rows, strict=False)
            if kind != RUN and self._first <= row < self._end
        ]
        """Rows that are no events."""

    def tabled(self, room: Room) -> Iterator[Tabled]:
        reader = self._reader
        upto = min(reader.upto, reader.block.last_tick)
        rows = self._rows()
        scanned = self._scanned(self._end)
        if not len(rows):
            yield Tabled(None, 0, upto, scanned, {})
            return
        fitting, size = self._fitting(rows, room)
        room.take(fitting, size)
        if fitting < len(rows):
            room.close()
            if not fitting:
                return
            rows = rows[:fitting]
            upto = self._tick_of(_last(rows))
            scanned = self._scanned(_last(rows) + 1)
        misfits: Counter[str] = Counter()
        batch = self._batch(rows, misfits)
        yield Tabled(batch, fitting, upto, scanned, dict(+misfits))

    # ── which rows ───────────────────────────────────────────────────────────────────────

    def _rows(self) -> Any:
        """Those that are wanted: a range, or an array of Arrow."""
        first, end, compute = self._first, self._end, self._arrow.compute
        if self._filter is None:
            rows: Any = range(first, end)
        else:
            block = self._reader.block
            columns = self._reader.columns_of
            mask = Selector(block.rows, columns, self._reader.index.words).mask(self._filter)
            if mask is False:
                return ()
            if mask is True:
                rows = range(first, end)
            else:
                rows = compute.indices_nonzero(mask.slice(first, end - first))
                rows = compute.add(rows, self._arrow.scalar(first, rows.type))
        if self._others:
            if isinstance(rows, range):
                rows = self._arrow.array(rows, self._arrow.uint64())
            among = self._arrow.array(self._others, rows.type)
            rows = rows.filter(compute.invert(compute.is_in(rows, value_set=among)))
        return rows

    def _scanned(self, end: int) -> int:
        return end - self._first - bisect_left(self._others, end)

    def _tick_of(self, row: int) -> int:
        runs = self._reader.runs
        at = bisect_right(runs.first_rows, row) - 1
        return runs.first_ticks[at] + row - runs.first_rows[at]

    def _fitting(self, rows: Any, room: Room) -> tuple[int, int]:
        """How many of these rows there is room for, and how large their bodies are, about. Cut
        is only what would not fit alone."""
        most, left = min(len(rows), room.rows), room.size_bytes
        block = self._reader.block
        if most < len(rows) and not room.is_first:
            return 0, 0
        if block.bodies.size <= left:
            return most, block.bodies.size * most // block.rows
        offsets = memoryview(self._reader.fetcher.chunk(block.offsets)).cast("i")
        ends: Sequence[int]
        if isinstance(rows, range):
            ends, before = offsets[rows.start + 1 : rows.start + most + 1], offsets[rows.start]
        else:
            taken = _listed(rows[:most])
            ends, before = [*accumulate(offsets[row + 1] - offsets[row] for row in taken)], 0
        if ends[-1] - before <= left:
            return most, ends[-1] - before
        if not room.is_first:
            return 0, 0
        most = max(bisect_right(ends, left + before), 1)
        return most, ends[most - 1] - before

    # ── columns ──────────────────────────────────────────────────────────────────────────

    def _batch(self, rows: Any, misfits: Counter[str]) -> Any:
        are_few = len(rows) * GATHER_SHARE <= self._reader.block.rows
        pieces = self._reader.pieces(_listed(rows)) if are_few else None
        names = {each.name for each in self._wishes.columns if not each.attribute}
        found = self._stream(names, rows, pieces)
        wanted = [name for name in SPLIT if name in names]
        if wanted:
            bodies, sizes = self._bodies(rows) if pieces is None else self._few_bodies(pieces, rows)
            found |= split_bodies(self._arrow, bodies, sizes, wanted)
        for each in self._wishes.columns:
            if each.attribute:
                found[each.name] = self._attribute(each, rows, misfits)
        return as_batch(self._arrow, self._wishes.columns, found)

    def _taken(self, column: Any, rows: Any) -> Any:
        if isinstance(rows, range):
            return column.slice(rows.start, len(rows))
        return column.take(rows)

    def _stream(self, names: set[str], rows: Any, pieces: list[Piece] | None) -> dict[str, Any]:
        arrow, runs, words = self._arrow, self._reader.runs, self._reader.index.names
        told = names | {"tick"} if "time" in names else names
        wanted = [name for name in STREAM if name in told]
        if pieces is not None:
            found = dict(stream_columns(arrow, _runs_of(runs, pieces), words, wanted))
        else:
            columns = stream_columns(arrow, runs, words, wanted)
            found = {name: self._taken(column, rows) for name, column in columns}
        if "kind" in names:
            found["kind"] = kind_column(arrow, found["kind"])
        if "time" in names:
            found["time"] = found["tick"].cast(arrow.timestamp("us", tz="UTC"))
        return found

    def _bodies(self, rows: Any) -> tuple[Any, Any]:
        """Bodies, and the sizes of their payloads."""
        arrow, block, fetch = self._arrow, self._reader.block, self._reader.fetcher.chunk
        buffers = [None, *(arrow.py_buffer(fetch(each)) for each in (block.offsets, block.bodies))]
        bodies = arrow.Array.from_buffers(arrow.binary(), block.rows, buffers)
        return self._taken(bodies, rows), self._taken(self._payload_sizes(), rows)

    def _few_bodies(self, pieces: list[Piece], rows: Any) -> tuple[Any, Any]:
        """The same, but nothing is read besides."""
        arrow, block, reader = self._arrow, self._reader.block, self._reader
        offsets = memoryview(reader.fetcher.chunk(block.offsets)).cast("i")
        places = [row for _, first, end in pieces for row in range(first, end)]
        sizes = (offsets[row + 1] - offsets[row] for row in places)
        bounds = arrow.py_buffer(array("i", accumulate(sizes, initial=0)))
        data = arrow.py_buffer(b"".join(reader.gather(pieces)))
        bodies = arrow.Array.from_buffers(arrow.binary(), len(rows), [None, bounds, data])
        return bodies, self._taken(self._payload_sizes(), rows)

    def _payload_sizes(self) -> Any:
        arrow, block = self._arrow, self._reader.block
        assert block.payload_sizes is not None
        data = arrow.py_buffer(self._reader.fetcher.chunk(block.payload_sizes))
        return arrow.Array.from_buffers(arrow.uint32(), block.rows, [None, data])

    def _attribute(self, wanted: Wanted, rows: Any, misfits: Counter[str]) -> Any:
        arrow, compute = self._arrow, self._arrow.compute
        type_ = field_type(arrow, wanted)
        fitting = FLOATS if wanted.kind == FLOAT else (wanted.kind,)
        made = None
        for kind, column in sorted(self._reader.columns_of(wanted.attribute).items()):
            taken = self._taken(column, rows)
            if kind not in fitting:
                misfits[wanted.name] += len(taken) - taken.null_count
                continue
            if kind == TEXT and wanted.attribute in self._reader.index.words:
                words = arrow.array(self._reader.index.words[wanted.attribute], arrow.string())
                taken = words.take(taken)
            elif taken.type != type_:
                taken = compute.cast(taken, type_, safe=False)
            made = taken if made is None else compute.coalesce(made, taken)
        return arrow.nulls(len(rows), type_) if made is None else made


def _listed(rows: Any) -> Sequence[int]:
    return rows if isinstance(rows, range) else rows.to_pylist()


def _last(rows: Any) -> int:
    return rows[-1] if isinstance(rows, range) else rows[-1].as_py()


def _runs_of(runs: Runs, pieces: list[Piece]) -> Runs:
    """The same for some rows only: each piece as a run of its own."""
    skipped = [(at, first - runs.first_rows[at]) for at, first, _ in pieces]
    counts = [stop - first for _, first, stop in pieces]
    return Runs(
        [runs.kinds[at] for at, _ in skipped],
        [runs.first_ticks[at] + skip for at, skip in skipped],
        [runs.publishers[at] for at, _ in skipped],
        [runs.epochs[at] for at, _ in skipped],
        [runs.first_sequences[at] + skip for at, skip in skipped],
        list(accumulate(counts, initial=0)),
        [],
    )
