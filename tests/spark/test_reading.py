"""What a task does, without Spark around it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import motet
from motet.errors import Disconnected, EventsLost
from motet.spark import slices
from motet.spark.columns import Columns, as_map
from motet.spark.options import Options, options_in
from motet.spark.slices import LEAST_ROWS, MOST_ROWS, Slice, read_slice
from tests.spark.ground import Pair, Stock

N = Columns(StructType([StructField("n", LongType())]))
EVENTS = 16_000
BIG = b"x" * 1000


def of(stock: Stock | Pair, **said: str) -> Options:
    return options_in({"brokers": stock.urls, "timeout": "20", **said})


def test_a_broker_is_restarted_during_a_read(busy: Pair) -> None:
    """It goes on behind the last row that it has given, and gives each row once."""
    pair = busy
    before = len(pair.ticks(0))
    client = pair.clients[0]
    for n in range(EVENTS):
        client.send({"by": "one", "n": -1 - n}, payload=BIG)
    client.flush()
    ticks = pair.ticks(0)[before:]
    slice = Slice(pair.brokers[0].address, pair.pubend(0), ticks[0], ticks[-1], EVENTS)
    columns = Columns(StructType([*N.schema.fields, StructField("tick", LongType())]))
    options = of(pair)
    found: list[int] = []
    batches = read_slice(slice, options, columns, None)
    first: Any = next(batches)
    found += first.column("n").to_pylist()
    assert len(found) < EVENTS * 3 // 5, "no more than one piece of 4 MiB is on its way"
    pair.restart(0)
    for batch in batches:
        found += batch.column("n").to_pylist()
    assert found == [-1 - n for n in range(EVENTS)]


class Piece:
    """Of a log, as it comes from a broker."""

    misfits = ()

    def __init__(self, ns: range) -> None:
        values = pyarrow.array(ns, pyarrow.int64())
        self.records = pyarrow.RecordBatch.from_arrays([values], ["n"])

    def __len__(self) -> int:
        return int(self.records.num_rows)


def test_batches_are_neither_small_nor_large(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = LEAST_ROWS // 3, 3 * MOST_ROWS
    ends = list(accumulate([small] * 4 + [large, 0, small], initial=0))
    pieces = [Piece(range(*each)) for each in pairwise(ends)]
    monkeypatch.setattr(slices, "_batches", lambda *_: iter(pieces))
    nowhere = Slice("motet://127.0.0.1:9", "B1.1", 1, ends[-1], ends[-1])
    batches = list(read_slice(nowhere, options_in({"brokers": nowhere.url}), N, None))
    assert [n for batch in batches for n in batch.column("n").to_pylist()] == [*range(ends[-1])]
    *sizes, rest = [batch.num_rows for batch in batches]
    assert rest == small, "nothing comes behind it"
    assert min(sizes) >= LEAST_ROWS
    assert max(sizes) <= MOST_ROWS
    assert len(sizes) == 1 + -(-large // MOST_ROWS)


def test_planned_events_that_the_log_lacks_are_an_error(stock: Stock) -> None:
    pair = stock.pair
    last = pair.ticks(0)[-1]
    slice = Slice(pair.brokers[0].address, pair.pubend(0), last, last + 10, 1)
    with pytest.raises(EventsLost, match=f"from tick {last + 1} to {last + 10}"):
        list(read_slice(slice, of(stock), N, None))


def test_reading_gives_up_after_the_timeout() -> None:
    nobody = Slice("motet://127.0.0.1:9", "B1.1", 1, 9, 9)
    options = options_in({"brokers": nobody.url, "timeout": "0.3"})
    with pytest.raises(Disconnected, match=r"tried for 0.3 s"):
        list(read_slice(nobody, options, N, None))


def test_attributes_become_texts() -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    events = [{"a": 1, "b": True, "c": 0.1}, {}, {"d": "x", "e": when, "f": False}]
    bodies = [motet.Event(each).encode() for each in events]
    # A body is a pair of attributes and payload: one byte, the attributes, and two bytes.
    packed = pyarrow.array([b"\x80", *(body[1:-2] for body in bodies)], pyarrow.binary())
    type_ = pyarrow.map_(pyarrow.string(), pyarrow.string())
    assert [dict(each) for each in as_map(packed.slice(1), type_).to_pylist()] == [
        {"a": "1", "b": "true", "c": "0.1"},
        {},
        {"d": "x", "e": "2026-01-02T00:00:00+00:00", "f": "false"},
    ]
    assert as_map(packed.slice(4), type_).to_pylist() == []
