"""Texts as values: a kind is chosen only if nothing is bent by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from motet.errors import MisuseError
from motet.spark.replay import kinds
from motet.spark.replay.kinds import time_of
from motet.spark.replay.logs import LogFile, batches, look, together

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ([], kinds.TEXT),
        (["1", "-20", "9007199254740993"], kinds.INT),
        (["1", "007"], kinds.TEXT),
        (["1", "+1"], kinds.TEXT),
        (["-0"], kinds.TEXT),
        (["9223372036854775808"], kinds.TEXT),
        (["1", "2.50", "1e-05", "1.0E16"], kinds.FLOAT),
        (["1E5"], kinds.TEXT),
        (["0.1000000000000000055"], kinds.TEXT),
        (["1e+999"], kinds.TEXT),
        (["9007199254740993", "0.5"], kinds.TEXT),
        (["00.5"], kinds.TEXT),
        (["1,5"], kinds.TEXT),
        (["NaN"], kinds.TEXT),
        (["true", "FALSE"], kinds.BOOL),
        (["true", "1"], kinds.TEXT),
        (["2026-03-01T09:00:00Z", "2026-03-01 10:00:00+01:00"], kinds.TIME),
        (["2026-03-01 09:00", "2026-03-01"], kinds.TIME),
        (["2026-03-01T09:00:00Z", "2026-03-01T09:00:00"], kinds.TEXT),
        (["2026-03-01T09:00:00Z", ""], kinds.TEXT),
        ([" 1"], kinds.TEXT),
        (["\u0661"], kinds.TEXT),
    ],
)
def test_the_kind_of_a_column(texts: list[str], kind: str) -> None:
    assert kinds.kind_together({kinds.kind_of(text) for text in texts}) == kind
    for text in texts:
        value = kinds.value_in(kind, text)
        if kind in (kinds.TEXT, kinds.INT):
            assert str(value) == text


@pytest.mark.parametrize(
    ("text", "at", "is_zoned", "is_cut"),
    [
        ("2026-03-01T09:00:00Z", datetime(2026, 3, 1, 9), True, False),
        ("2026-03-01t09:00:00.25z", datetime(2026, 3, 1, 9, 0, 0, 250_000), True, False),
        ("2026-03-01 09:00:00,1234567", datetime(2026, 3, 1, 9, 0, 0, 123_456), False, True),
        ("2026-03-01T09:00:00.123456000Z", datetime(2026, 3, 1, 9, 0, 0, 123_456), True, False),
        ("2026-03-01T09:00:00+05:30", datetime(2026, 3, 1, 3, 30), True, False),
        ("2026-03-01T09:00:00-0800", datetime(2026, 3, 1, 17), True, False),
        ("2026-03-01T09:00+01", datetime(2026, 3, 1, 8), True, False),
        ("2026-03-01 09:00:00 UTC", datetime(2026, 3, 1, 9), True, False),
        ("2024-02-29", datetime(2024, 2, 29), False, False),
    ],
)
def test_times(text: str, at: datetime, is_zoned: bool, is_cut: bool) -> None:
    us = (at.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    assert time_of(text) == (us, is_zoned, is_cut)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10:00",
        "1700000000",
        "2026-02-30",
        "2026-03-01T24:00:00Z",
        "2026-03-01T09:00:60Z",
        "01.03.2026 09:00",
        "2026/03/01 09:00",
        "2026-03-01T09:00:00+25:00",
        "2026-03-01T09:00:00 Europe/Berlin",
        "0001-01-01T00:00:00+01:00",
        "2026-03-01T09:00:00Z\n",
    ],
)
def test_invalid_times(text: str) -> None:
    assert time_of(text) is None


def surveyed(folder: Path, *texts: str, format: str = "csv") -> Any:
    sources = []
    for at, text in enumerate(texts):
        path = folder / f"{at}.{format}"
        path.write_text(text)
        sources.append(LogFile(str(path), {"day": "monday"} if format == "csv" else {}))
    surveys = [look(each, format) for each in sources]
    for each in surveys:
        if each.problem:
            raise MisuseError(each.problem)
    return sources, together(sources, surveys, format)


def test_files_are_put_together_by_the_names_of_columns(tmp_path: Path) -> None:
    """Given files with other columns, in another order, then no value lands in a wrong one."""
    sources, found = surveyed(
        tmp_path, "case,n,time\nx,1,2026-03-01\n", "time,case,more\n2026-03-02,007,1\n", "n\n"
    )
    types = {"case": "text", "n": "int", "time": "time", "day": "text", "more": "int"}
    assert (found.rows, found.types, found.local, found.cut) == (2, types, ["time"], [])
    assert found.open == []
    rows = [
        row
        for source in sources
        for batch in batches(source, "csv", found.types)
        for row in pa.Table.from_batches([batch]).to_pylist()
    ]
    first, second = (datetime(2026, 3, day, tzinfo=UTC) for day in (1, 2))
    uris = [Path(source.path).as_uri() for source in sources]
    assert [list(row.values()) for row in rows] == [
        ["x", 1, first, "monday", None, uris[0], 0],
        ["007", None, second, "monday", 1, uris[1], 0],
    ]


def test_a_file_that_may_be_truncated_is_listed(tmp_path: Path) -> None:
    sources, found = surveyed(tmp_path, "n\n1\n", "n\n12")
    assert found.open == [sources[1].path]


def test_an_attribute_of_xes_has_one_kind_in_all_files(tmp_path: Path) -> None:
    log = '<log>\n<event><{} key="x" value="{}"/></event></log>'
    for one, other in (
        (("int", "1"), ("string", "1")),
        (("date", "2026-03-01T09:00:00Z"), ("date", "2026-03-01T09:00:00")),
    ):
        with pytest.raises(MisuseError, match=r"'x' is .* in line 2 of .*0\.xes, but .*1\.xes"):
            surveyed(tmp_path, log.format(*one), log.format(*other), format="xes")
    _, found = surveyed(
        tmp_path, log.format("id", "1"), log.format("string", "1"), "<log/>", format="xes"
    )
    assert found.types == {"x": "text"}


def test_a_file_that_cannot_be_read_is_told_and_not_raised(tmp_path: Path) -> None:
    """A task that fails would be tried again, and leave pages in the log of Spark."""
    path = tmp_path / "log.csv"
    path.write_text("a,b\n1,2\n1\n")
    assert "line 3" in look(LogFile(str(path), {}), "csv").problem
    assert "a folder name sets" in look(LogFile(str(path), {"a": "x"}), "csv").problem


def test_every_column_that_is_cut_is_told(tmp_path: Path) -> None:
    fine, finer = "2026-03-01T09:00:00Z", "2026-03-01T09:00:00.1234567Z"
    _, found = surveyed(
        tmp_path,
        f"time,due,note,n\n{finer},{finer},{finer},1\n{fine},{fine},{finer},2\n",
        f"time,due,note,n\n{fine},{fine},soon,3\n",
    )
    assert found.cut == ["due", "time"], "a note is no time, and stays as it is"


def test_a_value_in_a_folder_name_is_text(tmp_path: Path) -> None:
    """As it is of Parquet: `year=2026` here and `year=unknown` there are one column."""
    path = tmp_path / "log.csv"
    path.write_text("n\n1\n")
    said = {"year": "2026", "time": "2026-03-01T09:00:00.1234567Z"}
    source = LogFile(str(path), {**said})
    found = together([source], [look(source, "csv")], "csv")
    assert found.types == {"n": "int", "year": "text", "time": "text"}
    (batch,) = batches(source, "csv", found.types)
    assert pa.Table.from_batches([batch]).to_pylist()[0] == {
        **dict(zip(("c0", "c1", "c2"), (1, *said.values()), strict=True)),
        "_file": path.as_uri(),
        "_place": 0,
    }
