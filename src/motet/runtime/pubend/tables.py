"""Tables: what a reader gets, column by column, whether it lies in rows or in columns.

Rows are taken apart one by one; blocks of sealed files are not: what happens to them happens in
Arrow, for thousands of events at a time. Both must give the same.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
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


def split_bodies(arrow: Any, bodies: Any, payload_sizes: Any) -> tuple[Any, Any]:
    """The attributes and the payloads of bodies that are plain (see `Rows.are_plain`), by cutting
    each into four: its first byte, attributes, head of the payload, payload."""
    compute = arrow.compute
    count = len(bodies)
    first = bodies.offset
    offsets = arrow.Array.from_buffers(
        arrow.int32(), count + 1, [None, bodies.buffers()[1]], offset=first
    )
    one = arrow.scalar(1, arrow.int32())
    begin, end = offsets.slice(0, count), offsets.slice(1)
    sizes = payload_sizes.cast(arrow.int32())
    payload = compute.subtract(end, sizes)
    heads = compute.if_else(
        compute.less(sizes, 1 << 8), 2, compute.if_else(compute.less(sizes, 1 << 16), 3, 5)
    )
    head = compute.subtract(payload, heads.cast(arrow.int32()))
    cuts = arrow.concat_arrays(
        [begin, compute.add(begin, one), head, payload, end.slice(count - 1)]
    )
    weave, attributes_at, payloads_at = _weaving(arrow, count)
    woven = cuts.take(weave)
    quarters = arrow.Array.from_buffers(
        arrow.binary(), 4 * count, [None, woven.buffers()[1], bodies.buffers()[2]]
    )
    return quarters.take(attributes_at), quarters.take(payloads_at)


@lru_cache(16)
def _weaving(arrow: Any, count: int) -> tuple[Any, Any, Any]:
    """Four columns of cuts as one list of them, and where in it to find what is wanted."""
    weave = array("i", bytes(4 * (4 * count + 1)))
    for column in range(4):
        weave[column : 4 * count : 4] = array("i", range(column * count, (column + 1) * count))
    weave[4 * count] = 4 * count
    return (
        _ints(arrow, weave),
        _ints(arrow, array("i", range(1, 4 * count, 4))),
        _ints(arrow, array("i", range(3, 4 * count, 4))),
    )


def _ints(arrow: Any, numbers: array[int]) -> Any:
    return arrow.Array.from_buffers(arrow.int32(), len(numbers), [None, arrow.py_buffer(numbers)])
