"""The table of steps, batch by batch, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from motet.spark.insight.report import Batches, StepTally
from motet.spark.insight.stream import CHECKPOINTS, VISITS, Moment, moment_of

SCHEMA = pyarrow.schema(
    [(name, pyarrow.string()) for name in ("process", "case", "step", "agent", "handed_by")]
    + [(name, pyarrow.float64()) for name in ("waiting_s", "handling_s", "sojourn_s")]
)


def visits(*rows: tuple[str, str, str | None, float | None]) -> pyarrow.Table:
    """Case, step, agent and how long it took, all in all."""
    return pyarrow.Table.from_pylist(
        [
            {"process": "p", "case": case, "step": step, "agent": agent, "sojourn_s": sojourn}
            for case, step, agent, sojourn in rows
        ],
        SCHEMA,
    )


def test_counts_and_shares_are_those_of_all_visits() -> None:
    tally = StepTally()
    tally.add(visits(*((f"c{n}", "a", "ann", float(n)) for n in range(20, 10, -1))))
    tally.add(visits(("c11", "a", "bob", 1.0), ("c1", "b", None, None)))
    tally.add(visits(*((f"c{n}", "a", None, float(n)) for n in range(2, 11))))
    a, b = tally.rows()
    assert (a["step"], a["visits"], a["cases"], a["agents"]) == ("a", 20, 19, 2)
    assert (a["sojourn_p50_s"], a["sojourn_p95_s"]) == (10.0, 19.0)
    assert a["waiting_p50_s"] is None
    assert (b["visits"], b["cases"], b["agents"], b["sojourn_p95_s"]) == (1, 1, 0, None)


def write(folder: Path, batch: int, *rows: tuple[str, str, str | None, float | None]) -> None:
    place = folder / f"batch={batch}"
    place.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(visits(*rows), place / "part-0.parquet")


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["step"]: row["visits"] for row in rows}


def test_each_batch_is_read_once_and_one_that_runs_again_counts_once(tmp_path: Path) -> None:
    batches = Batches(tmp_path)
    write(tmp_path, 0, ("c1", "a", "ann", 1.0))
    assert counts(batches.upto(0)) == {"a": 1}
    (tmp_path / "batch=0" / "part-0.parquet").write_bytes(b"nobody reads it again")
    write(tmp_path, 1, ("c1", "a", "ann", 1.0), ("c1", "b", "bob", 2.0))
    assert counts(batches.upto(1)) == {"a": 2, "b": 1}
    (tmp_path / "batch=2").mkdir()  # as Spark leaves it if nothing has ended
    assert counts(batches.upto(2)) == {"a": 2, "b": 1}

    write(tmp_path, 0, ("c1", "a", "ann", 1.0))
    later = Batches(tmp_path)
    write(tmp_path, 2, ("c2", "b", "bob", 2.0))
    write(tmp_path, 3, ("c9", "z", "zoe", 9.0))  # of a run that got further, and runs again
    assert counts(later.upto(2)) == {"a": 2, "b": 2}


def test_the_current_moment_is_the_last_complete_batch(tmp_path: Path) -> None:
    assert moment_of(tmp_path) is None
    checkpoint = tmp_path / CHECKPOINTS / VISITS
    for name in ("commits", "offsets"):
        (checkpoint / name).mkdir(parents=True)
    for batch in (8, 9, 10):
        text = f"v1\n{{}}\n{json.dumps({'p': {'B1.1': batch * 100}})}"
        (checkpoint / "offsets" / str(batch)).write_text(text)
    for name in ("8", "9", ".9.crc"):
        (checkpoint / "commits" / name).touch()
    assert moment_of(tmp_path) == Moment(9, {"B1.1": 900})


def test_files_of_batches_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    class Noted(pyarrow.parquet.ParquetFile):  # type: ignore[misc]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            opened.append(self)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Noted)
    write(tmp_path, 0, ("a", "c1", "Ann", 1.0))
    Batches(tmp_path).upto(0)
    assert [each.closed for each in opened] == [True]
