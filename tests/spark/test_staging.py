"""What writers do, called as Spark calls them: faults between staging and commit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

import motet
from motet.errors import Disconnected, MisuseError, NotAdvertised, StagingLost
from motet.spark.sink import StreamWriter, commit_staged, drop_staged, sink_options_in, stage
from motet.spark.source import MotetSource
from tests.spark.ground import Pair
from tests.spark.sinks import SCHEMA, a_sink, arrow, blocks, shipped, writer


def staged_files(pair: Pair) -> set[Path]:
    return set((pair.brokers[0].data / "staging").rglob("*.rows"))


def test_a_broker_restarted_between_staging_and_commit(busy: Pair) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    made = writer(url, sink)
    staged = [shipped(made).write(iter([arrow(range(at, at + 9000))])) for at in (0, 9000)]
    assert blocks(url, sink) == {}, "nobody sees what is not committed"
    busy.restart(0)
    shipped(made).commit(shipped(staged))
    assert [sorted(ns) for ns in blocks(url, sink).values()] == [list(range(18_000))]


def test_a_commit_waits_for_an_absent_broker_up_to_its_timeout(busy: Pair) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    patient = sink_options_in({"brokers": url, "sink": sink})
    hasty = sink_options_in({"brokers": url, "sink": sink, "timeout": "1"})
    staged = stage(patient, "query", 0, iter([arrow(range(5))]))
    busy.brokers[0].kill()
    with pytest.raises(Disconnected, match="tried for 1 s"):
        commit_staged(hasty, "query", 0, [staged])
    drop_staged(hasty, "query", 0)  # as Spark does then: in vain
    asyncio.run(busy.brokers[0].start())
    commit_staged(patient, "query", 0, [staged])
    assert list(blocks(url, sink).values()) == [list(range(5))]


def test_a_commit_publishes_only_the_attempt_that_it_names(busy: Pair) -> None:
    """A speculative attempt, or a task that failed when it was done: both have staged all."""
    url, sink = busy.brokers[0].address, a_sink()
    made, before = writer(url, sink), staged_files(busy)
    _, second = (shipped(made).write(iter([arrow(range(5))])) for _ in range(2))
    made.commit([second, None])
    assert list(blocks(url, sink).values()) == [list(range(5))]
    assert staged_files(busy) == before, "nothing is left over"


def test_a_commit_is_done_once_and_its_abort_changes_nothing(busy: Pair) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    made = writer(url, sink)
    staged = [made.write(iter([arrow(range(5))]))]
    for _ in range(3):
        made.commit(staged)
        made.abort(staged)
    assert list(blocks(url, sink).values()) == [list(range(5))]


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_lost_staging_is_an_error_and_the_batch_runs_again(busy: Pair, damage: str) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    options = sink_options_in({"brokers": url, "sink": sink})
    before = staged_files(busy)
    staged = stage(options, "query", 0, iter([arrow(range(9000))]))
    (path,) = staged_files(busy) - before
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-1])
    else:
        path.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    with pytest.raises(StagingLost, match="write it again"):
        commit_staged(options, "query", 0, [staged])
    assert blocks(url, sink) == {}
    again = stage(options, "query", 0, iter([arrow(range(9000))]))
    commit_staged(options, "query", 0, [again])
    assert blocks(url, sink) == {f"{sink}/query/0": list(range(9000))}


def test_an_empty_batch_writes_nothing(busy: Pair) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    made = writer(url, sink)
    made.commit([made.write(iter([]))])
    assert blocks(url, sink) == {}


def test_rows_outside_of_what_is_advertised_are_refused(busy: Pair) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    made = writer(url, sink, advertise="n < 7")
    with pytest.raises(NotAdvertised, match="n < 7"):
        made.write(iter([arrow(range(8))]))
    made.commit([made.write(iter([arrow(range(7))]))])
    wider = writer(url, sink, advertise="n < 9")
    wider.commit([wider.write(iter([arrow(range(7, 9))]))])
    assert list(blocks(url, sink).values()) == [list(range(7)), [7, 8]]


def test_null_is_absence_and_payload_is_payload(busy: Pair) -> None:
    url, sink = busy.brokers[0].address, a_sink()
    made = writer(url, sink)
    pairs = pyarrow.array([[("a", "x"), ("n", "no")], None], pyarrow.map_("string", "string"))
    batch = pyarrow.record_batch({"n": [1, None], "payload": [b"p", None], "attributes": pairs})
    made.commit([made.write(iter([batch]))])
    rows = [
        (row["attributes"], row["payload"])
        for found in motet.read_sync(url, columns=["publisher", "attributes", "payload"])
        for row in found.rows()
        if row["publisher"] == sink
    ]
    assert rows == [({"a": "x", "n": 1}, b"p"), ({}, b"")]


@pytest.mark.parametrize(
    ("column", "kind", "said"),
    [
        ("price", DecimalType(10, 2), "'price' is decimal"),
        ("days", ArrayType(IntegerType()), "'days' is array"),
        ("payload", StringType(), "'payload' is string.*binary"),
        ("attributes", MapType(StringType(), BinaryType()), "'attributes' is map"),
        ("1st", IntegerType(), "'1st' cannot be written"),
        ("on", DateType(), "'on' is date"),
    ],
)
def test_columns_that_cannot_be_written(column: str, kind: DataType, said: str) -> None:
    source = MotetSource({"brokers": "motet://x:1", "sink": "s"})
    schema = StructType().add("n", IntegerType()).add(column, kind)
    for write in (source.writer, source.streamWriter):
        with pytest.raises(MisuseError, match=said):
            write(schema, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sink": "s"}, "exactly one broker"),
        ({"brokers": "motet://x:1,motet://y:1", "sink": "s"}, "exactly one broker"),
        ({"brokers": "motet://x:1"}, "option sink is missing"),
        ({"brokers": "motet://x:1", "sink": "s", "onNewQuery": "x"}, "takeover or fail"),
        ({"brokers": "motet://x:1", "sink": "s", "columns": "n"}, "unknown option 'columns'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        MotetSource(options).writer(SCHEMA, False)


def test_invalid_options_of_batch_and_stream_writers_are_misuse() -> None:
    said = {"brokers": "motet://x:1", "sink": "s"}
    with pytest.raises(MisuseError, match="append"):
        MotetSource(said).writer(SCHEMA, True)
    with pytest.raises(MisuseError, match="key"):
        StreamWriter(sink_options_in({**said, "key": "k"}), SCHEMA)
