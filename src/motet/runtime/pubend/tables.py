"""Tables: what a reader gets, column by column, whether it lies in rows or in columns.

Rows are taken apart one by one; blocks of sealed files are not: what happens to them happens in
Arrow, for thousands of events at a time. Both must give the same.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from motet.model import Value
from motet.protocol.reading.messages import CUT, EVENT, START, Wanted
from motet.runtime.pubend.columns import arrow_type
from motet.runtime.pubend.index import BOOL, FLOAT, INT, TEXT, TIME
from motet.runtime.pubend.records import Cut, Run, Start, Ticked, last_tick_of
from motet.runtime.pubend.survey import contents_of

KIND_NAMES: Final = ("", EVENT, START, CUT)
"""By the number that a record has in the log."""
FITTING: Final = {
    BOOL: (bool,),
    INT: (int,),
    FLOAT: (float, int),
    TEXT: (str,),
    TIME: (datetime,),
}
"""The values that a column may hold, by its kind."""
SPLIT: Final = ("attributes", "payload")

_encode: Final = msgspec.msgpack.Encoder().encode


class Tabled(NamedTuple):
    """A piece of the stream that ends with tick `upto`."""

    batch: Any
    """A record batch with the columns that were wanted; None if nothing is in it."""
    rows: int
    upto: int
    scanned: int
    misfits: dict[str, int]


class Wishes(NamedTuple):
    """What is wanted of every event. Columns have their kinds by now."""

    columns: tuple[Wanted, ...]
    others: frozenset[str]
    """What is wanted besides events: starts of subscriptions, cuts of transactions."""

    @property
    def attributes(self) -> list[str]:
        return [each.attribute for each in self.columns if each.attribute]

    @property
    def splits(self) -> bool:
        """Must attributes and payload be told apart?"""
        return any(not each.attribute and each.name in SPLIT for each in self.columns)


def field_type(arrow: Any, wanted: Wanted) -> Any:
    """The type of a column as it travels."""
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
    """Events on their way from records into columns."""

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._decodes = wishes.splits or bool(wishes.attributes)
        self.ticks = array("q")
        self.sequences = array("q")
        self.kinds = array("i")
        self.publishers: list[str] = []
        self.epochs: list[str] = []
        self.contents: list[tuple[dict[str, Value] | None, bytes | None]] = []

    def take_run(self, run: Run) -> None:
        self.ticks.extend(range(run.first_tick, run.last_tick + 1))
        self.sequences.extend(range(run.first_sequence, run.last_sequence + 1))
        self.kinds.extend([1] * run.count)
        self.publishers += [run.publisher] * run.count
        self.epochs += [run.epoch] * run.count
        if self._decodes:
            self.contents += contents_of(run)

    def take_start(self, start: Start) -> None:
        self.ticks.append(start.tick)
        self.sequences.append(start.op.sequence)
        self.kinds.append(2)
        self.publishers.append(start.op.client)
        self.epochs.append(start.op.epoch)
        self.contents.append((None, None))

    def take_cut(self, cut: Cut) -> None:
        """The transaction's name stands where an event has its epoch, its number for a sequence."""
        self.ticks.append(cut.tick)
        self.sequences.append(cut.number)
        self.kinds.append(3)
        self.publishers.append("")
        self.epochs.append(cut.tx)
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
) -> Tabled:
    """The table of these records, which are what was found up to a tick."""
    import pyarrow as arrow  # only where columns are needed: it is large

    rows = _Rows(wishes)
    for record in records:
        if len(rows.ticks) >= most_rows:
            upto = rows.ticks[-1]
            break
        if isinstance(record, Run):
            left = most_rows - len(rows.ticks)
            if record.count > left:
                record = record.part(record.first_tick, record.first_tick + left - 1)
                upto = last_tick_of(record)
            rows.take_run(record)
        elif isinstance(record, Start) and START in wishes.others:
            rows.take_start(record)
        elif isinstance(record, Cut) and CUT in wishes.others:
            rows.take_cut(record)
    if not rows.ticks:
        return Tabled(None, 0, upto, scanned, {})
    misfits: Counter[str] = Counter()
    found = {each.name: rows.column(arrow, each, misfits) for each in wishes.columns}
    return Tabled(
        as_batch(arrow, wishes.columns, found), len(rows.ticks), upto, scanned, dict(+misfits)
    )


# ── columns ──────────────────────────────────────────────────────────────────────────────


def kind_column(arrow: Any, kinds: Any) -> Any:
    words = arrow.array(KIND_NAMES, arrow.string())
    return arrow.DictionaryArray.from_arrays(kinds.cast(arrow.int32()), words)


def split_bodies(
    arrow: Any, bodies: Any, payload_sizes: Any, wanted: Iterable[str] = SPLIT
) -> dict[str, Any]:
    """The attributes and the payloads of bodies that are plain (see `Rows.are_plain`), as far as
    they are wanted, by cutting each into four: its first byte, attributes, head of the payload,
    payload."""
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
    """Of an array of int32 without nulls."""
    first = 4 * column.offset
    numbers = array("i")
    numbers.frombytes(memoryview(column.buffers()[1])[first : first + 4 * len(column)])
    return numbers


def _every_fourth(arrow: Any, first: int, count: int) -> Any:
    """`first`, `first` + 4, … : so many."""
    size = max(1 << (count - 1).bit_length(), 1 << 14) if count else 1
    return _fourths(arrow, first, size).slice(0, count)


@lru_cache(8)
def _fourths(arrow: Any, first: int, count: int) -> Any:
    numbers = arrow.py_buffer(array("i", range(first, first + 4 * count, 4)))
    return arrow.Array.from_buffers(arrow.int32(), count, [None, numbers])
