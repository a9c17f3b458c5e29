"""The plain parts of replays: speeds, names, values, rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from motet.errors import EventError, MisuseError
from motet.spark.replay import logs, prepare
from motet.spark.replay.logs import attribute_name
from motet.spark.replay.publishers import Pace, Speed, event_of, value_of


@pytest.mark.parametrize(
    ("text", "span_s", "factor"),
    [
        ("10x", 50.0, 10.0),
        ("0.5x", 50.0, 0.5),
        ("max", 50.0, None),
        ("90s", 900.0, 10.0),
        ("2m", 1200.0, 10.0),
        ("1h", 0.0, None),
    ],
)
def test_speeds(text: str, span_s: float, factor: float | None) -> None:
    assert Speed.parse(text).factor_for(span_s) == factor


@pytest.mark.parametrize("text", ["", "10", "x", "-1x", "0x", "fast", "10 x"])
def test_invalid_speeds_are_misuse(text: str) -> None:
    with pytest.raises(MisuseError, match="a speed is like 10x"):
        Speed.parse(text)


def test_a_pace_counts_from_its_first_event() -> None:
    pace = Pace(10.0, 5_000_000, 100.0)
    assert pace.due_s(5_000_000) == 100.0
    assert pace.due_s(25_000_000) == pytest.approx(102.0)
    assert Pace(None, 0, 7.0).due_s(10**12) == 7.0


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("case:concept:name", "case"),
        ("org:resource", "agent"),
        ("case:channel", "case.channel"),
        ("Case ID", "Case_ID"),
        ("_hidden", "hidden"),
        ("2nd", "column_2nd"),
        ("größe", "gr__e"),
        ("", "column_"),
    ],
)
def test_columns_become_names(column: str, name: str) -> None:
    assert attribute_name(column, {}) == name
    assert attribute_name(column, {column: "chosen"}) == "chosen"


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (True, True),
        (7, 7),
        ("a", "a"),
        (datetime(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC)),
        (date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC)),
        (Decimal("1.5"), 1.5),
        (Decimal("9007199254740993"), 9007199254740993),
        (b"ab", "ab"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_values(value: Any, made: Any) -> None:
    assert value_of(value) == made
    assert type(value_of(value)) is type(made)


@pytest.mark.parametrize("value", [Decimal("0.12345678901234567890"), b"\xff"])
def test_values_that_would_lose_precision_are_refused(value: Any) -> None:
    with pytest.raises(EventError):
        value_of(value)


def test_rows_become_events() -> None:
    row = {"case": "c", "agent": None, "n": 1, "_time_us": 5, "_file": "f"}
    assert event_of(row) == ({"case": "c", "n": 1}, b"")
    packed = msgspec.msgpack.encode({"n": 1, "ratio": 0.5})
    assert event_of({"_packed": packed, "_payload": b"x"}) == ({"n": 1, "ratio": 0.5}, b"x")
    assert event_of({"_packed": packed, "_payload": None})[1] == b""


def test_a_replay_to_other_brokers_is_a_separate_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would say that all was published before."""
    log = tmp_path / "log.csv"
    log.touch()

    def write(_: object, folder: Path, __: int) -> None:
        folder.mkdir(parents=True)
        pq.write_table(
            pa.table({"_time_us": [1, 2], "_publisher": [0, 0]}), folder / "part.parquet"
        )

    monkeypatch.setattr(logs, "of_log", lambda *_: (None, 2, []))
    monkeypatch.setattr(logs, "write", write)
    spark: Any = object()

    def mark(*brokers: str, keys: bool = False) -> str:
        return prepare(spark, log, tmp_path / "work", brokers=brokers, keys=keys).mark

    marks = [mark("a", "b"), mark("a", "c"), mark("a", "b", keys=True)]
    assert len(set(marks)) == len(marks)
    assert mark("b", "a") == marks[0]
