"""CSV, read strictly: every value in its column, or the line that is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from motet.errors import MisuseError
from motet.spark.replay.csv_files import LONGEST_ROW_CHARS, rows_of


def read(path: Path, data: str | bytes) -> list[tuple[int, dict[str, str | None]]]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return list(rows_of(path))


def values(path: Path, data: str | bytes) -> list[list[str | None]]:
    return [list(row.values()) for _, row in read(path, data)[1:]]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n1,2\n", [["1", "2"]]),
        ("a,b\r\n1,2", [["1", "2"]]),
        ('a,b\n"x ""y"" z",2\n', [['x "y" z', "2"]]),
        ('a,b\n"x\ny",2\n3,4\n', [["x\ny", "2"], ["3", "4"]]),
        ('a,b\n"x,y",007\n', [["x,y", "007"]]),
        ('a,b\n"",\n', [["", None]]),
        ("a,b\n\n1,2\n\n", [["1", "2"]]),
        ("a;b\n1,5;2\n", [["1,5", "2"]]),
        ("a\tb\n1\t 2\n", [["1", " 2"]]),
        ('"a;x",b\n1,2\n', [["1", "2"]]),
        ("a\n1\n", [["1"]]),
        ("a,b\n", []),
    ],
)
def test_rows(text: str, rows: list[list[str | None]], tmp_path: Path) -> None:
    assert values(tmp_path / "log.csv", text) == rows


def test_rows_have_lines_and_the_header_is_first(tmp_path: Path) -> None:
    found = read(tmp_path / "log.csv", b'\xef\xbb\xbfa,\n"x\ny",1\n2,3\n')
    assert found == [
        (1, {"a": None, "_c1": None}),
        (2, {"a": "x\ny", "_c1": "1"}),
        (4, {"a": "2", "_c1": "3"}),
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "log.csv is empty"),
        ("\n\n", "log.csv is empty; its first line must name the columns"),
        ("a,b\n1,2\n1,2,3\n", r"line 3: 3 fields, but the header has 2"),
        ("a,b\n1\n", r"line 2: 1 fields, but the header has 2"),
        ("a,b,a\n1,2,3\n", "line 1: two columns are named 'a'"),
        ("a,b;c\n1,2\n", r"line 1: columns could be separated by ',' or by ';'"),
        ('a,b\n1,"2\n3,4\n', "line 2: a quote is opened here but never closed"),
        ('a,b\n1,2" x\n3,"\n', "line 2, field 2: a quote in an unquoted field"),
        ('a,b\n"1" x,2\n', "line 2, field 1: text after the closing quote"),
        ("a,b\r1,2\r", r"line 1: a bare CR is not a line break"),
        ("a,b\n1,2\r3,4\n", r"line 2, field 2: a bare CR is not a line break"),
        ("a,b\n1,\xfc\n".encode("latin1"), "line 2: byte 3 is not UTF-8; convert the file"),
        ("a,b\n".encode("utf-16"), "UTF-16; save it as UTF-8"),
        (b"a,b\n1,\0\n", "line 2 has a NUL character"),
        (b"a,b\n1," + b"x" * LONGEST_ROW_CHARS, "line 2 has more than 4,194,304 bytes"),
        (gzip.compress(b"a,b\n"), "is compressed with gzip; rename it to end with .gz"),
        (b"PK\x03\x04rest", "is a zip archive"),
    ],
)
def test_an_error_in_a_log_file_is_told_with_its_line(
    data: str | bytes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(MisuseError, match=said) as told:
        read(tmp_path / "log.csv", data)
    assert str(tmp_path / "log.csv") in str(told.value)


def test_a_compressed_log_is_complete_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    packed = gzip.compress(b"a,b\n" + b"".join(b"%d,x\n" % at for at in range(5000)))
    assert len(read(path, packed)) == 5001
    with pytest.raises(MisuseError, match=r"log\.csv\.gz is truncated"):
        read(path, packed[:-20])
    with pytest.raises(MisuseError, match=r"log\.csv\.gz is damaged"):
        read(path, packed[:200] + bytes(20) + packed[220:])
    with pytest.raises(MisuseError, match=r"log\.csv\.gz is damaged"):
        read(path, b"a,b\n1,2\n")
