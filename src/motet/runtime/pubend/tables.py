"""Tables: the columns that a late reader gets, from rows or from sealed columns.

Rows are decoded one by one. Blocks of sealed files are not: Arrow processes thousands of their
events at a time. Both must give the same result.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from motet.errors import LogTrimmed, MisuseError
from motet.model import Filter, Value
from motet.protocol.reading.messages import CUT, EVENT, START, Wanted
from motet.runtime.pubend.columns import (
    GATHER_SHARE,
    STREAM,
    BlockReader,
    Index,
    Piece,
    Runs,
    arrow_type,
    attributes_of,
    blocks_between,
    stream_columns,
)
from motet.runtime.pubend.outline import OutlineReading
from motet.runtime.pubend.reading import EventBatch, Lost, StreamReading, contents_of
from motet.runtime.pubend.records import RUN, EventRun, Start, StoredCut, Ticked, last_tick_of
from motet.runtime.pubend.selection import BOOL, FLOAT, INT, KIND_OF, KINDS, TEXT, TIME, Selector
from motet.runtime.pubend.state import LivePart, Part, SealedPart

KIND_NAMES: Final = ("", EVENT, START, CUT)
"""By the number that a record has in the log."""
FITTING: Final = {
    BOOL: (bool,),
    INT: (int,),
    FLOAT: (float, int),
    TEXT: (str,),
    TIME: (datetime,),
}
"""The Python types of values that a column may hold, by its kind."""
SPLIT: Final = ("attributes", "payload")

_encode: Final = msgspec.msgpack.Encoder().encode


class TableSlice(NamedTuple):
    """A piece of the stream that ends with tick `upto`."""

    batch: Any
    """A record batch with the wanted columns; None if it would be empty."""
    rows: int
    upto: int
    scanned: int
    misfits: dict[str, int]


class Wishes(NamedTuple):
    """The wanted columns of every event. The kinds of the columns are resolved."""

    columns: tuple[Wanted, ...]
    others: frozenset[str]
    """Wanted records besides events: starts of subscriptions, cuts of transactions."""

    @property
    def attributes(self) -> list[str]:
        return [each.attribute for each in self.columns if each.attribute]

    @property
    def splits(self) -> bool:
        """Whether attributes and payload must be separated."""
        return any(not each.attribute and each.name in SPLIT for each in self.columns)


def field_type(arrow: Any, wanted: Wanted) -> Any:
    """The type of a column in the answer."""
    if wanted.attribute:
        return arrow_type(arrow, wanted.kind)
    if wanted.name in ("kind", "publisher", "epoch"):
        return arrow.dictionary(arrow.int32(), arrow.string())
    if wanted.name == "time":
        return arrow.timestamp("us", tz="UTC")
    return arrow.binary() if wanted.name in SPLIT else arrow.int64()


def as_batch(arrow: Any, columns: Sequence[Wanted], found: dict[str, Any]) -> Any:
    names = [each.name for each in columns]
    types = [field_type(arrow, each) for each in columns]
    schema = arrow.schema(list(zip(names, types, strict=True)))
    return arrow.RecordBatch.from_arrays([found[name] for name in names], schema=schema)


# ── rows ─────────────────────────────────────────────────────────────────────────────────


class _Rows:
    """Collects the columns of records."""

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._decodes = wishes.splits or bool(wishes.attributes)
        self.ticks = array("q")
        self.sequences = array("q")
        self.kinds = array("i")
        self.publishers: list[str] = []
        self.epochs: list[str] = []
        self.contents: list[tuple[dict[str, Value] | None, bytes | None]] = []

    def take_run(self, run: EventRun) -> None:
        self.ticks.extend(range(run.first_tick, run.last_tick + 1))
        self.sequences.extend(range(run.first_sequence, run.last_sequence + 1))
        self.kinds.extend([RUN] * run.count)
        self.publishers += [run.publisher] * run.count
        self.epochs += [run.epoch] * run.count
        if self._decodes:
            self.contents += contents_of(run)

    def take_other(self, kind: int, tick: int, who: str, what: str, sequence: int) -> None:
        """A record without a body, in the columns of events."""
        self.ticks.append(tick)
        self.sequences.append(sequence)
        self.kinds.append(kind)
        self.publishers.append(who)
        self.epochs.append(what)
        self.contents.append((None, None))

    def column(self, arrow: Any, wanted: Wanted, misfits: Counter[str]) -> Any:
        type_ = field_type(arrow, wanted)
        if wanted.attribute:
            return self._attribute(arrow, wanted, type_, misfits)
        match wanted.name:
            case "tick":
                return arrow.array(self.ticks, arrow.int64())
            case "time":
                return arrow.array(self.ticks, arrow.int64()).cast(type_)
            case "sequence":
                return arrow.array(self.sequences, arrow.int64())
            case "kind":
                return kind_column(arrow, arrow.array(self.kinds, arrow.int32()))
            case "publisher":
                return arrow.array(self.publishers, arrow.string()).dictionary_encode()
            case "epoch":
                return arrow.array(self.epochs, arrow.string()).dictionary_encode()
            case "attributes":
                made = [_encode(each) if each is not None else None for each, _ in self.contents]
                return arrow.array(made, type_)
        return arrow.array([payload for _, payload in self.contents], type_)

    def _attribute(self, arrow: Any, wanted: Wanted, type_: Any, misfits: Counter[str]) -> Any:
        name, fitting = wanted.attribute, FITTING[wanted.kind]
        values = [each.get(name) if each is not None else None for each, _ in self.contents]
        fit = [value if type(value) in fitting else None for value in values]
        misfits[wanted.name] += values.count(None) * -1 + fit.count(None)
        if wanted.kind == FLOAT:
            fit = [float(value) if value is not None else None for value in fit]  # type: ignore[arg-type]
        return arrow.array(fit, type_)


def table_of_rows(
    records: Sequence[Ticked], wishes: Wishes, upto: int, scanned: int, most_rows: int
) -> TableSlice:
    """The table of these records, which were found up to a tick."""
    import pyarrow as arrow  # imported only where columns are needed: it is large

    rows = _Rows(wishes)
    for record in records:
        if len(rows.ticks) >= most_rows:
            upto = rows.ticks[-1]
            break
        if isinstance(record, EventRun):
            left = most_rows - len(rows.ticks)
            if record.count > left:
                record = record.part(record.first_tick, record.first_tick + left - 1)
                upto = last_tick_of(record)
            rows.take_run(record)
        elif isinstance(record, Start) and START in wishes.others:
            op = record.op
            rows.take_other(2, record.tick, op.client, op.epoch, op.sequence)
        elif isinstance(record, StoredCut) and CUT in wishes.others:
            rows.take_other(3, record.tick, "", record.tx, record.number)
    if not rows.ticks:
        return TableSlice(None, 0, upto, scanned, {})
    misfits: Counter[str] = Counter()
    found = {each.name: rows.column(arrow, each, misfits) for each in wishes.columns}
    return TableSlice(
        as_batch(arrow, wishes.columns, found), len(rows.ticks), upto, scanned, dict(+misfits)
    )


# ── columns ──────────────────────────────────────────────────────────────────────────────


def kind_column(arrow: Any, kinds: Any) -> Any:
    words = arrow.array(KIND_NAMES, arrow.string())
    return arrow.DictionaryArray.from_arrays(kinds.cast(arrow.int32()), words)


def split_bodies(
    arrow: Any, bodies: Any, payload_sizes: Any, wanted: Iterable[str] = SPLIT
) -> dict[str, Any]:
    """The wanted ones of attributes and payloads of plain bodies (see `BlockRows.are_plain`), by
    splitting each into four: its first byte, attributes, head of the payload, payload."""
    compute = arrow.compute
    count = len(bodies)
    offsets = arrow.Array.from_buffers(
        arrow.int32(), count + 1, [None, bodies.buffers()[1]], offset=bodies.offset
    )
    begin, end = offsets.slice(0, count), offsets.slice(1)
    sizes = payload_sizes.cast(arrow.int32())
    payload = compute.subtract(end, sizes)
    heads = compute.if_else(
        compute.less(sizes, 1 << 8), 2, compute.if_else(compute.less(sizes, 1 << 16), 3, 5)
    )
    head = compute.subtract(payload, heads.cast(arrow.int32()))
    attributes = compute.add(begin, arrow.scalar(1, arrow.int32()))
    cuts = array("i", bytes(4 * (4 * count + 1)))
    for at, column in enumerate((begin, attributes, head, payload)):
        cuts[at:-1:4] = _numbers_in(column)
    cuts[-1] = end[-1].as_py() if count else 0
    quarters = arrow.Array.from_buffers(
        arrow.binary(), 4 * count, [None, arrow.py_buffer(cuts), bodies.buffers()[2]]
    )
    places = {"attributes": 1, "payload": 3}
    return {name: quarters.take(_every_fourth(arrow, places[name], count)) for name in wanted}


def _numbers_in(column: Any) -> array[int]:
    """The numbers in an array of int32 without nulls."""
    first = 4 * column.offset
    numbers = array("i")
    numbers.frombytes(memoryview(column.buffers()[1])[first : first + 4 * len(column)])
    return numbers


def _every_fourth(arrow: Any, first: int, count: int) -> Any:
    """`first`, `first` + 4, …: `count` numbers."""
    size = max(1 << (count - 1).bit_length(), 1 << 14) if count else 1
    return _fourths(arrow, first, size).slice(0, count)


@lru_cache(8)
def _fourths(arrow: Any, first: int, count: int) -> Any:
    numbers = arrow.py_buffer(array("i", range(first, first + 4 * count, 4)))
    return arrow.Array.from_buffers(arrow.int32(), count, [None, numbers])


# ── blocks of sealed files ───────────────────────────────────────────────────────────────

FLOATS: Final = (FLOAT, INT)
"""A column of floats takes ints, too."""


class Room:
    """How much more fits. The first row always fits, whatever its size."""

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
        """The next rows do not fit."""
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
) -> Iterator[TableSlice]:
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
) -> Iterator[TableSlice]:
    """Run by run, event by event: where the columns do not suffice."""
    for sifted in reader.all(filter):
        if room.is_full:
            return
        if sifted.size_bytes > room.size_bytes and not room.is_first:
            room.close()
            return
        tabled = table_of_rows(sifted.records, wishes, sifted.upto, sifted.scanned, room.rows)
        room.take(tabled.rows, sifted.size_bytes)
        yield tabled


class _BlockTable:
    """One block whose columns suffice for the request."""

    def __init__(self, reader: BlockReader, filter: Filter | None, wishes: Wishes) -> None:
        import pyarrow.compute  # imported only where columns are needed: it is large

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

    def tabled(self, room: Room) -> Iterator[TableSlice]:
        reader = self._reader
        upto = min(reader.upto, reader.block.last_tick)
        rows = self._rows()
        scanned = self._scanned(self._end)
        if not len(rows):
            yield TableSlice(None, 0, upto, scanned, {})
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
        yield TableSlice(batch, fitting, upto, scanned, dict(+misfits))

    # ── which rows ───────────────────────────────────────────────────────────────────────

    def _rows(self) -> Any:
        """The wanted rows: a range, or an array of Arrow."""
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
        """How many of these rows fit, and the approximate size of their bodies. A block is split
        only if it would not fit even alone."""
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
        """The same, but only these bodies are read."""
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
    """The runs of some rows only: each piece becomes a run."""
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


# ── the next piece ───────────────────────────────────────────────────────────────────────

PIECE_BYTES: Final = 4 << 20
"""The approximate size of bodies. Attributes that are wanted as columns come on top of it."""
PIECE_S: Final = 0.05
"""An answer is sent after this time, even if nothing was found."""
SAMPLE_EVENTS: Final = 4096
"""The number of events in rows that are read to find the kind of an attribute."""


class TablePiece(Struct, frozen=True):
    """The stream from tick `since` to tick `upto`. If `lost`, it is no longer kept."""

    since: int
    upto: int
    lost: bool
    rows: int
    scanned: int
    misfits: dict[str, int]
    batches: list[Any]


class TableReading:
    def __init__(self, stream: StreamReading) -> None:
        self._stream = stream
        self.outlines = OutlineReading(stream)
        """Sizes and transactions instead of tables."""

    def piece(
        self,
        since: int,
        last: int,
        filter: Filter | None,
        wishes: Wishes,
        most_rows: int,
        most_bytes: int,
    ) -> TablePiece:
        """The first piece of the ticks from `since` to `last`, which are durable."""
        room = Room(most_rows, most_bytes)

        def read(part: Part, first: int, upto: int) -> Iterator[TableSlice]:
            if isinstance(part, SealedPart):
                return self._stream.shelf.tables(part, first, upto, filter, wishes, room)
            return self._of_rows(first, upto, filter, wishes, room)

        until_s = time.monotonic() + PIECE_S
        upto, scanned, rows = since - 1, 0, 0
        batches: list[Any] = []
        misfits: Counter[str] = Counter()
        for found in self._stream.along(since, last, read, lambda: room.is_full):
            if isinstance(found, Lost):
                if found.since == since:
                    return TablePiece(since, found.upto, True, 0, 0, {}, [])
                last = found.since - 1  # a loss is a piece of its own
                break
            upto = found.upto
            rows += found.rows
            scanned += found.scanned
            misfits.update(found.misfits)
            if found.batch is not None:
                batches.append(found.batch)
            if time.monotonic() > until_s:
                room.close()
                break
        upto = upto if room.is_full else last
        return TablePiece(since, upto, False, rows, scanned, dict(misfits), batches)

    def _of_rows(
        self, since: int, upto: int, filter: Filter | None, wishes: Wishes, room: Room
    ) -> Iterator[TableSlice]:
        limits = room.rows, room.size_bytes
        for batch in self._stream.batches_of_rows(since, upto, filter, *limits):
            tabled = table_of_rows(batch.records, wishes, batch.upto, batch.scanned, room.rows)
            room.take(tabled.rows, batch.size_bytes)
            yield tabled
            if room.is_full:
                return
        if batch.upto < upto:
            room.close()

    # ── kinds of attributes ──────────────────────────────────────────────────────────────

    def resolved(self, wanted: Sequence[Wanted], since: int, last: int) -> tuple[Wanted, ...]:
        """The same with the kind of every attribute, as found between two ticks."""
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
        parts = self._stream.parts()
        for number, part in enumerate(parts):
            upto = min(last, parts[number + 1].floor) if number + 1 < len(parts) else last
            first = max(since, part.floor + 1)
            if first > upto or part.is_lost:
                continue
            known = None
            try:
                if not isinstance(part, LivePart):
                    known = self._stream.shelf.kinds(part, names)
                if known is None:
                    known = self._sampled(names, first, upto)
            except (LogTrimmed, FileNotFoundError):
                if part in self._stream.parts():
                    raise
                continue  # it was removed, or moved: its kinds are a guess anyway
            for name in names:
                found[name] |= known[name]
        return found

    def _sampled(self, names: Sequence[str], since: int, upto: int) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in names}
        for batch in self._stream.batches(since, upto, None, SAMPLE_EVENTS):
            for record in batch.records if isinstance(batch, EventBatch) else ():
                for attributes, _ in contents_of(record) if isinstance(record, EventRun) else ():
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
