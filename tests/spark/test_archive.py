"""Archives: every event once, whatever fails; the same events after compaction; and a proof of
it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from motet.errors import MisuseError
from motet.spark import archive
from motet.spark.archive.manifest import CHECKPOINT, EVENTS, Manifest
from tests.spark.ground import Desk, Stock, ns
from tests.waiting import JOB_S


def kept(spark: SparkSession, urls: str, folder: Path, **options: str) -> Manifest:
    said = {"filter": options.pop("filter", ""), "columns": ["n:int"]}
    query = archive.keep(spark, urls, folder, available_now=True, options=options, **said)
    try:
        assert query.awaitTermination(JOB_S)
    finally:
        query.stop()
    return Manifest(folder)


def archived(spark: SparkSession, folder: Path) -> list[int]:
    return ns(archive.read(spark, folder))


def test_an_archive_is_kept_compacted_and_proved(
    spark: SparkSession, stock: Stock, tmp_path: Path
) -> None:
    manifest = kept(spark, stock.urls, tmp_path, maxEventsPerTrigger="300")
    assert archived(spark, tmp_path) == stock.ns
    small = manifest.newest()
    assert len(small.files) > 4
    assert {Path(each.path).parent.name for each in small.files} == {
        f"pubend={stock.pair.pubend(number)}" for number in (0, 1)
    }
    reader = archive.read(spark, tmp_path)  # one who began before

    done = archive.compact(spark, tmp_path)
    assert (done.files_before, done.files_after) == (len(small.files), 2)
    assert archived(spark, tmp_path) == ns(reader) == stock.ns
    proof = archive.prove(spark, stock.urls, tmp_path)
    assert proof.holds
    assert sum(each.log_rows for each in proof.pubends) == len(stock.ns)

    row = archive.read(spark, tmp_path).where("n = 7").collect()[0]
    assert msgspec.msgpack.decode(row["packed"]) == {
        "by": "one",
        "n": 7,
        "ratio": 0.5,
        "room": "cellar",
    }
    assert (row["attributes"]["ratio"], row["payload"]) == ("0.5", b"7")


def test_planted_differences_are_all_found(
    spark: SparkSession, stock: Stock, tmp_path: Path
) -> None:
    manifest = kept(spark, stock.urls, tmp_path)
    (one,) = [each for each in manifest.newest().files if each.rows == 1000 + 9 + 10]
    path = tmp_path / one.path
    rows = pyarrow.parquet.read_table(path)
    lost, doubled, changed, invented, bent = 10, 200, 300, 400, 500
    parts = [rows.slice(0, lost), rows.slice(lost + 1), rows.slice(doubled, 1)]
    table = pyarrow.concat_tables(parts)
    payloads = table.column("payload").to_pylist()
    payloads[changed - 1] = b"other"
    attributes = table.column("attributes").to_pylist()
    attributes[bent - 1] = [("n", "another")]
    ticks = table.column("tick").to_pylist()
    taken = set(rows.column("tick").to_pylist())
    ticks[invented - 1] = next(t for t in range(min(taken), max(taken)) if t not in taken)
    for name, values in (("payload", payloads), ("attributes", attributes), ("tick", ticks)):
        at = table.schema.get_field_index(name)
        column = pyarrow.array(values, table.schema.field(name).type)
        table = table.set_column(at, table.schema.field(name), column)
    pyarrow.parquet.write_table(table, path)
    proof = archive.prove(spark, stock.urls, tmp_path)
    assert proof.differences == {"changed": 2, "doubled": 1, "missing": 2, "surplus": 1}
    assert not proof.holds
    found = {(each.what, each.tick) for each in proof.examples}
    original = rows.column("tick").to_pylist()
    assert {
        *(("missing", original[lost]), ("doubled", original[doubled])),
        *(("changed", original[changed]), ("missing", original[invented])),
        ("changed", original[bent]),
    } <= found


def test_an_archive_continues_with_a_lost_or_newer_checkpoint(
    spark: SparkSession, desk: Desk, tmp_path: Path
) -> None:
    """Given a query that died behind its version; then one without a checkpoint; then a copy of the
    archive that is older than the checkpoint."""
    desk.publish(0, range(20))
    kept(spark, desk.urls, tmp_path, filter=desk.filter)
    for path in (tmp_path / CHECKPOINT / "commits").iterdir():
        path.unlink()
    desk.transact(range(20, 26))
    kept(spark, desk.urls, tmp_path, filter=desk.filter)
    expected = [desk.base + n for n in range(26)]
    assert archived(spark, tmp_path) == expected

    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "_versions", copy)
    shutil.rmtree(tmp_path / CHECKPOINT)
    desk.publish(1, range(26, 30))
    kept(spark, desk.urls, tmp_path, filter=desk.filter)
    assert archived(spark, tmp_path) == [desk.base + n for n in range(30)]
    assert archive.prove(spark, desk.urls, tmp_path).holds

    desk.publish(0, [30])
    kept(spark, desk.urls, tmp_path, filter=desk.filter)
    shutil.rmtree(tmp_path / "_versions")
    shutil.copytree(copy, tmp_path / "_versions")
    desk.publish(0, [31])
    with pytest.raises(Exception, match="is ahead of its archive"):
        kept(spark, desk.urls, tmp_path, filter=desk.filter)
    shutil.rmtree(tmp_path / CHECKPOINT)
    kept(spark, desk.urls, tmp_path, filter=desk.filter)
    assert archived(spark, tmp_path) == [desk.base + n for n in range(32)]
    with pytest.raises(MisuseError, match="was begun with the filter"):
        kept(spark, desk.urls, tmp_path, filter="n > 3")
    assert (tmp_path / EVENTS).is_dir()
