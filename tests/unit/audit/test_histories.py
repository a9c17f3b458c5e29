"""Histories on disk: complete or not there, and all that a run has to tell."""

from __future__ import annotations

import logging
from math import inf
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from motet.audit.files import HistoryWriter, read_table, write_part
from motet.audit.recorder import Recording
from motet.audit.schema import NAMED, TABLES, arrow_schema, spark_schema
from motet.errors import MisuseError
from motet.model import decode_body, encode_event
from motet.testing.history import write_history
from motet.testing.simulation import observe, simulate


def rows_of(folder: Path, table: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for path in sorted((folder / table).glob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    return found


def test_missing_columns_of_a_history_row_get_defaults(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, run="one")
    writer.add("operations", op="a/e/1", since={"B1.1": 7})
    writer.flush()
    (row,) = rows_of(tmp_path, "operations")
    assert row["run"] == "one"
    assert row["since"] == [("B1.1", 7)]
    assert (row["filter"], row["handle"], row["ended_at"], row["is_gone"]) == ("", 0, inf, False)


def test_enough_rows_make_a_part(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, part="p", rows=2)
    for nth in range(5):
        writer.add("deliveries", nth=nth)
    assert len(rows_of(tmp_path, "deliveries")) == 4
    writer.flush()
    assert [row["nth"] for row in rows_of(tmp_path, "deliveries")] == list(range(5))


def test_a_history_part_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="int"):
        write_part(tmp_path, "deliveries", [{"nth": "not a number"}], "p")
    assert list(tmp_path.glob("deliveries/*.parquet")) == []


def test_every_table_has_a_schema_for_both_sides() -> None:
    for table, columns in TABLES.items():
        assert arrow_schema(table).names == ["run", *columns]
        assert spark_schema(table).count(",") >= len(columns)
    for table, key in NAMED.items():
        assert {*key, "version"} <= TABLES[table].keys()


def test_a_recording_is_written_by_a_background_thread(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "broker-B1")
    body = encode_event({"n": 1}, b"a payload that nobody needs")
    recording.add("logged", {"pubend": "B1.1", "tick": 3, "body": body})
    recording.close()
    recording.close()
    (row,) = rows_of(tmp_path, "logged")
    assert decode_body(row["body"]) == ({"n": 1}, b"")  # type: ignore[arg-type]
    assert not list(tmp_path.glob("*/.*"))


def test_a_disk_that_fails_ends_the_history_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = Recording(tmp_path, "broker-B1")
    (tmp_path / "logged").write_text("a file where a folder should be")
    recording.add("logged", {"tick": 1})
    with caplog.at_level(logging.ERROR, "motet.audit"):
        recording.close()
    assert "no history is written any more" in caplog.text


def test_a_simulated_run_is_told_in_full(tmp_path: Path) -> None:
    history, _ = observe(0, "transactions", chaos_s=3.0)
    write_history(history, tmp_path, "run")
    came = [row for row in rows_of(tmp_path, "deliveries") if row["came"]]
    assert len(came) == len(history.deliveries) > 0
    assert len(rows_of(tmp_path, "cuts")) == len(history.cuts)
    assert len(rows_of(tmp_path, "ends")) == len(history.ends) > 0
    assert len(rows_of(tmp_path, "transactions")) == len(history.deals) > 0
    deeds = sum(len(deal.deeds) for deal in history.deals.values())
    assert len(rows_of(tmp_path, "deeds")) == deeds
    logged = [event for event in history.events if event.tick and event.session]
    assert len(rows_of(tmp_path, "logged")) == len(logged)


def test_a_table_is_read_whole(tmp_path: Path) -> None:
    for part in "ab":
        write_part(tmp_path, "reached", [{"pubend": part, "tick": 7}], part)
    (tmp_path / "reached" / ".c.unfinished").write_bytes(b"PAR1 and no more")
    assert [row["pubend"] for row in read_table(tmp_path, "reached").to_pylist()] == ["a", "b"]


def test_a_damaged_or_foreign_history_file_is_named(tmp_path: Path) -> None:
    whole = write_part(tmp_path, "reached", [{"tick": 7}], "a")
    broken = tmp_path / "reached" / "b.parquet"
    broken.write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(MisuseError, match=r"b\.parquet cannot be read"):
        read_table(tmp_path, "reached")
    pq.write_table(pa.table({"run": ["r"], "process": ["p"]}), broken)
    with pytest.raises(MisuseError, match="not a history file: it has no column 'pubend'"):
        read_table(tmp_path, "reached")
    columns = {name: ["x"] for name in arrow_schema("reached").names}
    pq.write_table(pa.table(columns), broken)
    with pytest.raises(MisuseError, match=r"b\.parquet is not a history file"):
        read_table(tmp_path, "reached")


def test_a_table_is_one_chunk_even_if_some_of_its_files_are_empty(tmp_path: Path) -> None:
    """Spark takes an empty chunk for the end of a table, and what comes behind it is lost."""
    writer = HistoryWriter(tmp_path, run="full", part="full")
    writer.add("amnesia", one="B1", other="", since=0.0, until=1.0)
    writer.flush()
    (written,) = (tmp_path / "amnesia").glob("*.parquet")
    pq.write_table(pq.read_table(written).slice(0, 0), tmp_path / "amnesia" / "empty.parquet")
    found = read_table(tmp_path, "amnesia")
    assert found.num_rows == 1
    assert found.column("run").num_chunks == 1


def test_simulated_runs_of_ordered_topics_have_all_that_the_audit_needs(tmp_path: Path) -> None:
    result = simulate(0, "ordering", history=str(tmp_path))
    assert not result.violations
    given = rows_of(tmp_path, "order_given")
    assert {row["run"] for row in given} == {"ordering-0"}
    counts = result.ordering
    late = sum(bool(row["is_late"]) for row in given)
    assert (len(given) - late, late) == (counts["delivered"], counts.get("late", 0))
    receipts = [row["outcome"] for row in rows_of(tmp_path, "order_receipts")]
    assert receipts.count("published") == counts["receipts"]
    assert len(rows_of(tmp_path, "order_streams")) == counts["sessions"]
    published = {(row["client"], row["nth"]) for row in rows_of(tmp_path, "order_published")}
    assert {
        (row["client"], row["nth"])
        for row in rows_of(tmp_path, "order_receipts")
        if row["outcome"] == "published"
    } <= published
