"""Replays: logs of others and archives as events, in order, once, whatever happens to the
replay."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import motet
from motet.errors import MisuseError, UnavailableError
from motet.spark.replay import Replay, ReplayPlan, ReplayProgress, Speed, prepare
from tests.spark.ground import Desk, Pair
from tests.spark.test_archive import kept

BEGIN = datetime(2026, 3, 1, 9, tzinfo=UTC)
XES = """<?xml version="1.0" encoding="UTF-8"?>
<log xes.version="1.0" xmlns="http://www.xes-standard.org/">
  <global scope="event"><string key="concept:name" value="none"/></global>
  <trace>
    <string key="concept:name" value="c1"/><int key="amount" value="7"/>
    <event>
      <string key="concept:name" value="check &amp; file"/><string key="org:resource" value="Ann"/>
      <date key="time:timestamp" value="2026-03-01T10:00:00.000+01:00"/>
      <float key="ratio" value="0.5"/><boolean key="ok" value="true"/>
    </event>
    <event>
      <string key="concept:name" value="decide"/>
      <date key="time:timestamp" value="2026-03-01T10:00:05+01:00"/>
    </event>
  </trace>
  <trace>
    <string key="concept:name" value="c2"/>
    <event>
      <string key="concept:name" value="check &amp; file"/>
      <date key="time:timestamp" value="2026-03-01T09:00:02Z"/>
    </event>
  </trace>
</log>
"""


def replayed(plan: ReplayPlan, urls: str, speed: str = "max", **options: Any) -> ReplayProgress:
    return asyncio.run(Replay(plan, urls.split(","), Speed.parse(speed), **options).run())


def found(pair: Pair, filter: str) -> list[dict[str, Any]]:
    """What is in the logs of both brokers, in order of publication."""
    columns = ["tick", "publisher", "attributes"]
    rows = [
        row
        for broker in pair.brokers
        for batch in motet.read_sync(broker.address, filter=filter, columns=columns)
        for row in batch.rows()
    ]
    return [row["attributes"] for row in sorted(rows, key=lambda row: row["tick"])]


def log_of(cases: int, path: Path) -> int:
    """A log with many events at the same time, whose order in the file matters; its size."""
    rows = [
        {
            "case:concept:name": f"c{case}",
            "concept:name": f"s{step}",
            "time:timestamp": (BEGIN + timedelta(seconds=step // 2)).replace(tzinfo=None),
            "row": step * cases + case,
        }
        for step in range(6)
        for case in range(cases)
    ]
    fields = {"time:timestamp": pyarrow.timestamp("ns")}
    table = pyarrow.Table.from_pylist(rows)
    at = table.schema.get_field_index("time:timestamp")
    times = table.column(at).cast(fields["time:timestamp"])
    pyarrow.parquet.write_table(table.set_column(at, "time:timestamp", times), path)
    return len(rows)


def test_xes_and_csv_become_events(spark: SparkSession, busy: Pair, tmp_path: Path) -> None:
    xes, csv = tmp_path / "permits.xes.gz", tmp_path / "sales.csv"
    with gzip.open(xes, "wt") as file:
        file.write(XES)
    csv.write_text(
        "Case ID,Activity,When,n\nx,a,2026-03-01T09:00:01Z,1\nx,b,2026-03-01T09:00:01Z,2\n"
    )
    plan = prepare(spark, xes, tmp_path / "work", keys=True)
    assert (plan.rows, plan.span_s) == (3, 5.0)
    assert replayed(plan, busy.urls, keys=True).published == 3
    first, second, third = found(busy, "process = 'permits'")
    assert [each.pop("source.row") for each in (first, second, third)] == [0, 2, 1]
    assert {each.pop("source.file") for each in (first, second, third)} == {"permits.xes.gz"}
    assert first == {
        "case": "c1",
        "step": "check & file",
        "agent": "Ann",
        "time": BEGIN,
        "case.amount": 7,
        "ratio": 0.5,
        "ok": True,
        "process": "permits",
    }
    assert [each["case"] for each in (second, third)] == ["c2", "c1"]

    names = {"case": "Case ID", "step": "Activity", "time": "When"}
    told = replayed(prepare(spark, csv, tmp_path / "work", names=names), busy.urls, keys=True)
    assert told.published == 2
    rows = found(busy, "process = 'sales'")
    assert [(row["step"], row["n"], row["source.row"]) for row in rows] == [
        ("a", 1, 0),
        ("b", 2, 1),
    ]
    with pytest.raises(MisuseError, match=r"has no column time; name"):
        prepare(spark, csv, tmp_path / "work")


T1, T2 = "2026-03-01T09:00:01Z", "2026-03-01T09:00:02Z"
HOSTILE = {
    "cut.xes": (XES[:-60], r"cut\.xes is truncated: it ends in line 2\d"),
    "short.csv": (f"case,time,n\nx,{T1},1\nx,{T1}\n", r"short\.csv, line 3: 2 fields"),
    "when.csv": (f"case,time\nx,{T1}\nx,\n", r"when\.csv, row 1 \(from 0\) has no time"),
    "what.csv": (
        f"case,time\nx,{T1}\nx,soon\n",
        r"what\.csv, row 1 \(from 0\): 'soon' is not a time",
    ),
    "zone.csv": (f"case,time\nx,{T1}\nx,{T1[:-1]}\n", r"row 1 .*01' has no zone, but other times"),
    "number.csv": ("case,time\nx,1700000000\n", r"number\.csv are of type bigint"),
    "head.csv": ("case,time\n", r"head\.csv has no events"),
    "cut.parquet": ("PAR1", r"cut\.parquet cannot be read as Parquet"),
}


def test_a_log_that_cannot_be_read_exactly_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name, (text, said) in HOSTILE.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(MisuseError, match=said):
            prepare(spark, tmp_path / name, tmp_path / "work")
    damaged = tmp_path / "damaged.parquet"
    log_of(100, damaged)
    data = damaged.read_bytes()
    damaged.write_bytes(data[:100] + bytes(100) + data[200:])
    with pytest.raises(MisuseError, match=r"damaged\.parquet cannot be read completely"):
        prepare(spark, damaged, tmp_path / "work")
    assert not list(tmp_path.glob("work/*")), "nothing half is left"


def planned(spark: SparkSession, log: Path, work: Path) -> tuple[ReplayPlan, list[dict[str, Any]]]:
    plan = prepare(spark, log, work)
    rows = [row for batch in plan.batches() for row in batch]
    return plan, [
        {name: value for name, value in row.items() if value is not None and name[0] != "_"}
        for row in rows
    ]


def test_files_with_other_columns_are_put_together_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    csv, parquet = tmp_path / "csv", tmp_path / "parquet[1]"
    (csv / "day=007" / "year=2026").mkdir(parents=True)
    (csv / "a.csv").write_text(f'case,time,n\n007,{T1},"a ""b""\nc"\n')
    (csv / "day=007" / "year=2026" / "b.csv").write_text(f"n;more;time;case\n;1,5;{T2};8\n")
    _, rows = planned(spark, csv, tmp_path / "work")
    times = [BEGIN + timedelta(seconds=1), BEGIN + timedelta(seconds=2)]
    assert rows == [
        {"case": "007", "n": 'a "b"\nc', "time": times[0], "process": "csv"},
        {
            "case": "8",
            "more": "1,5",
            "time": times[1],
            "process": "csv",
            "day": "007",
            "year": "2026",
        },
    ]
    parquet.mkdir()
    # As a number of 53 bits the first would be a microsecond earlier.
    nanos = pyarrow.array([1_700_000_000_000_006_000], pyarrow.timestamp("ns"))
    first = {"case": ["x"], "time": nanos, "n": pyarrow.nulls(1)}
    second = {"n": [1], "time": pyarrow.array([0], pyarrow.timestamp("ns")), "case": ["y"]}
    pyarrow.parquet.write_table(pyarrow.table(first), parquet / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table(second), parquet / "b.parquet")
    plan, rows = planned(spark, parquet, tmp_path / "work")
    at = datetime(2023, 11, 14, 22, 13, 20, 6, tzinfo=UTC)
    assert [(row["case"], row.get("n"), row["time"]) for row in rows] == [
        ("y", 1, datetime(1970, 1, 1, tzinfo=UTC)),
        ("x", None, at),
    ]
    assert plan.remarks == ("times without a zone are interpreted in UTC: time",)


KILLED = """
import asyncio, json, os, sys
from motet.spark.replay import ReplayPlan, Replay, Speed
import msgspec
plan = msgspec.json.decode(open(sys.argv[1]).read(), type=ReplayPlan)
def die(told):
    if told.published >= 1000:
        os.kill(os.getpid(), 9)
asyncio.run(Replay(plan, sys.argv[2].split(","), Speed.parse("max"), tell=die).run())
"""


def test_a_replay_that_is_killed_goes_on_and_publishes_nothing_twice(
    spark: SparkSession, busy: Pair, tmp_path: Path
) -> None:
    size = log_of(500, tmp_path / "killed.parquet")
    plan = prepare(spark, tmp_path / "killed.parquet", tmp_path / "work", publishers=3)
    note = os.path.join(plan.folder, "_plan.json")
    command = [sys.executable, "-c", KILLED, note, busy.urls]
    assert subprocess.run(command, check=False).returncode == -9
    again = prepare(None, tmp_path / "killed.parquet", tmp_path / "work", publishers=3)
    assert again == plan
    told = replayed(again, busy.urls)
    assert told.before > 0
    assert told.before + told.published == size
    rows = found(busy, "process = 'killed'")
    assert sorted(row["row"] for row in rows) == list(range(size))
    for case in range(0, 500, 50):
        steps = [row["step"] for row in rows if row["case"] == f"c{case}"]
        assert steps == [f"s{step}" for step in range(6)], "in order of time, then of the file"
    third = replayed(plan, busy.urls)
    assert (third.before, third.published) == (size, 0)


def test_a_replay_with_unknown_progress_is_refused(
    spark: SparkSession, busy: Pair, tmp_path: Path
) -> None:
    log_of(10, tmp_path / "forgotten.parquet")
    plan = prepare(spark, tmp_path / "forgotten.parquet", tmp_path / "work")
    plan.remember("_begun")
    with pytest.raises(UnavailableError, match="size is not known; --run NAME"):
        replayed(plan, busy.urls)
    anew = prepare(spark, tmp_path / "forgotten.parquet", tmp_path / "work", run="anew")
    assert anew.mark != plan.mark


def test_a_replay_keeps_its_pace(spark: SparkSession, busy: Pair, tmp_path: Path) -> None:
    """Two seconds of events, twenty times as fast; then in a third of a second."""
    log_of(2, tmp_path / "paced.parquet")
    for run, speed, least_s in (("a", "20x", 0.1), ("b", "0.3s", 0.3)):
        plan = prepare(spark, tmp_path / "paced.parquet", tmp_path / "work", run=run)
        assert replayed(plan, busy.urls, speed).took_s >= least_s


def test_an_archive_is_published_again_as_it_was(
    spark: SparkSession, desk: Desk, tmp_path: Path
) -> None:
    desk.publish(0, range(5), level=1.5, room="cellar")
    kept(spark, desk.urls, tmp_path / "kept", filter=desk.filter)
    before = found(desk.pair, desk.filter)
    plan = prepare(spark, tmp_path / "kept", tmp_path / "work")
    assert plan.kind == "archive"
    assert replayed(plan, desk.urls).published == 5
    assert found(desk.pair, desk.filter) == before + before
    assert json.loads(Path(plan.folder, "_plan.json").read_text())["rows"] == 5
