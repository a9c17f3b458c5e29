"""Which files a log has, and what their columns are called."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from motet.errors import MisuseError
from motet.spark.replay import parquet_files
from motet.spark.replay.files import by_folder, files_in, name_within
from motet.spark.replay.logs import attributes_of
from motet.spark.replay.parquet_files import check_shapes, shape_of


def test_a_log_has_one_format(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="does not exist"):
        files_in(tmp_path / "none")
    with pytest.raises(MisuseError, match="is neither a file nor a folder"):
        files_in(Path(os.devnull))
    (tmp_path / "_log.csv").touch()
    with pytest.raises(MisuseError, match="Spark ignores files whose names begin"):
        files_in(tmp_path / "_log.csv")
    with pytest.raises(MisuseError, match="no logs to replay"):
        files_in(tmp_path)
    (tmp_path / "b.csv").touch()
    (tmp_path / "a.CSV.gz").touch()
    (tmp_path / "_note.json").touch()
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "half.csv").touch()
    format, files = files_in(tmp_path)
    assert (format, [each.name for each in files]) == ("csv", ["a.CSV.gz", "b.csv"])
    (tmp_path / "c.xes").touch()
    with pytest.raises(MisuseError, match=r"several formats \(csv, xes\)"):
        files_in(tmp_path)


def test_no_file_that_may_have_events_is_skipped(tmp_path: Path) -> None:
    log, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    log.mkdir()
    elsewhere.mkdir()
    (log / "a.csv").touch()
    (log / "b.csv.bz2").touch()
    with pytest.raises(MisuseError, match=r"the format of .*b\.csv\.bz2 is unknown"):
        files_in(log)
    (log / "b.csv.bz2").unlink()
    (log / "linked").symlink_to(elsewhere)
    with pytest.raises(MisuseError, match="linked is a link to a folder"):
        files_in(log)
    (log / "linked").unlink()
    (log / "_delta_log").mkdir()
    with pytest.raises(MisuseError, match="log is a Delta table, in which some files are obsolete"):
        files_in(log)


def test_a_part_of_an_archive_is_no_log(tmp_path: Path) -> None:
    """Files stay there for a while that others have replaced."""
    archive = tmp_path / "kept"
    (archive / "_versions").mkdir(parents=True)
    (archive / "events").mkdir()
    (archive / "events" / "a.parquet").touch()
    for part in (archive / "events", archive / "events" / "a.parquet"):
        with pytest.raises(MisuseError, match=r"is part of the archive .*kept; name the"):
            files_in(part)
    with pytest.raises(MisuseError, match="kept is an archive; replay it on its own"):
        files_in(tmp_path)


def test_patterns_are_not_expanded_and_a_file_may_be_called_like_one(tmp_path: Path) -> None:
    (tmp_path / "log[1].csv").touch()
    with pytest.raises(MisuseError, match=r"\*\.csv does not exist; patterns are not expanded"):
        files_in(tmp_path / "*.csv")
    assert files_in(tmp_path / "log[1].csv") == ("csv", [tmp_path / "log[1].csv"])


def test_an_unreadable_log_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.csv").touch()

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(MisuseError, match=r"log\.csv cannot be read: Permission denied"):
        files_in(tmp_path / "log.csv")


def test_folders_say_something_of_their_files() -> None:
    root = Path("/logs")
    assert by_folder(root / "day=007" / "at=a%3Db" / "x.csv", root) == {"day": "007", "at": "a=b"}
    assert by_folder(root / "day=__HIVE_DEFAULT_PARTITION__" / "x.csv", root) == {"day": None}
    assert by_folder(root / "plain" / "x.csv", root) == {}
    assert by_folder(root / "x.csv", root / "x.csv") == {}


@pytest.mark.parametrize(
    ("uri", "root", "name"),
    [
        ("file:///logs/a/b%20c.csv", "/logs", "a/b c.csv"),
        ("file:/logs/b.csv", "/logs/b.csv", "b.csv"),
        ("B1", "/kept", "B1"),
    ],
)
def test_names_of_files_tell_them_apart(uri: str, root: str, name: str) -> None:
    assert name_within(uri, root) == name


def test_columns_have_one_name_each() -> None:
    path = Path("log.csv")

    def named(*columns: str, **chosen: str) -> list[str | None]:
        return attributes_of(columns, {column: name for name, column in chosen.items()}, path)

    assert named("Case ID", "case", "time", case="Case ID") == ["case", None, "time"]
    with pytest.raises(MisuseError, match="the columns 'a b' and 'a-b' would both become"):
        named("a b", "a-b")
    with pytest.raises(MisuseError, match="would both become the attribute"):
        named("step", "Step")  # Spark does not tell them apart
    assert named("step", "Step", other="Step") == ["step", "other"]
    with pytest.raises(MisuseError, match="has no column 'c'; it has a, b"):
        named("a", "b", case="c")
    with pytest.raises(MisuseError, match="is not a valid attribute name"):
        named("x" * 200)


def test_parquet_means_the_same_in_all_files(tmp_path: Path) -> None:
    def shape(name: str, **columns: pa.Array) -> None:
        pq.write_table(pa.table(columns), tmp_path / name)
        shapes[tmp_path / name], rows = shape_of(tmp_path / name)
        assert rows == 1

    shapes = {}
    shape("a.parquet", n=pa.array([1]), x=pa.array(["a"]))
    shape("b.parquet", x=pa.array(["a"]).dictionary_encode(), more=pa.array([1.5]))
    shape("c.parquet", n=pa.array([None], pa.null()))
    check_shapes(shapes)
    shape("d.parquet", n=pa.array(["1"]))
    with pytest.raises(MisuseError, match=r"'n' is int64 in .*a\.parquet and string in .*d\.parq"):
        check_shapes(shapes)
    nested = pa.array([[1]], pa.list_(pa.timestamp("ns")))
    with pytest.raises(MisuseError, match="nested values with times in nanoseconds"):
        shape("e.parquet", n=nested)
    (tmp_path / "f.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-5])
    with pytest.raises(MisuseError, match=r"f\.parquet cannot be read as Parquet"):
        shape_of(tmp_path / "f.parquet")


def test_a_value_in_a_folder_name_of_parquet_is_text(tmp_path: Path) -> None:
    """As of CSV: what a column says as well, or in another type, is refused before Spark reads."""
    spark: Any = object()
    within = tmp_path / "day=7" / "a.parquet"
    within.parent.mkdir()
    pq.write_table(pa.table({"day": [7]}), within)
    with pytest.raises(MisuseError, match=r"a\.parquet has a column 'day', which a folder"):
        parquet_files.read(spark, [within], tmp_path)
    pq.write_table(pa.table({"n": [7]}), within)
    pq.write_table(pa.table({"day": [7]}), tmp_path / "b.parquet")
    with pytest.raises(MisuseError, match=r"'day' is string in .* and int64 in"):
        parquet_files.read(spark, [within, tmp_path / "b.parquet"], tmp_path)
