"""CSV and XES as frames: tasks of Spark read the files, one each, twice.

First they look: is every file whole, and of which kinds are its values? Nothing is made of a log
that cannot be read to its end. Then they read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Struct

from motet.errors import MisuseError
from motet.spark.replay import csv_files, kinds, xes_files
from motet.spark.replay.files import by_folder, is_open
from motet.spark.replay.times import time_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS: Final = 1024
SHOWN_CHARS: Final = 40
_TYPES: Final = {
    kinds.TEXT: ("string", pa.string()),
    kinds.BOOL: ("boolean", pa.bool_()),
    kinds.INT: ("bigint", pa.int64()),
    kinds.FLOAT: ("double", pa.float64()),
    kinds.TIME: ("timestamp", pa.timestamp("us", tz="UTC")),
}


class Sight(Struct, frozen=True):
    """The first value of a kind."""

    line: int
    shown: str


class Survey(Struct):
    """What one file has."""

    rows: int = 0
    columns: dict[str, dict[str, Sight]] = {}
    """By name, and by the kind of a value."""
    cut: set[str] = set()
    """Columns with a time that is finer than microseconds."""
    is_open: bool = False
    """Its last line has no end: whether it is cut off, nobody can say."""
    problem: str = ""


class Source(NamedTuple):
    """A file, and what the names of its folders say of its rows."""

    path: str
    said: dict[str, str | None]

    def rows(
        self, format: str
    ) -> Iterator[tuple[int, Mapping[str, xes_files.Valued | str | None]]]:
        path = Path(self.path)
        if format == "xes":
            yield from xes_files.rows_of(path)
            return
        for line, row in csv_files.rows_of(path):
            twice = next((name for name in self.said if name in row), None)
            if twice is not None:
                raise MisuseError(f"{path} has a column {twice!r}, and a folder that says it, too")
            yield line, row | self.said


class Surveyed(NamedTuple):
    """What all files have."""

    rows: int
    types: dict[str, str]
    """The kind of each column."""
    local: list[str]
    """Columns with times without a zone."""
    cut: list[str]
    open: list[str]
    """Files whose last line has no end."""


def sources(files: Sequence[Path], root: Path, format: str) -> list[Source]:
    said = [by_folder(each, root) if format == "csv" else {} for each in files]
    return [Source(str(each.absolute()), row) for each, row in zip(files, said, strict=True)]


# ── looking ──────────────────────────────────────────────────────────────────────────────


def survey(spark: SparkSession, files: Sequence[Source], format: str) -> Surveyed:
    told = _tasks(spark, files, functools.partial(_look, files, format), "at bigint, told string")
    surveys = [msgspec.json.decode(row["told"], type=Survey) for row in told.sort("at").collect()]
    for each in surveys:
        if each.problem:
            raise MisuseError(each.problem)
    return together(files, surveys, format)


def look(source: Source, format: str) -> Survey:
    found = Survey(columns={})
    try:
        for line, row in source.rows(format):
            is_header = format == "csv" and not found.columns
            found.rows += not is_header
            for name, value in row.items():
                seen = found.columns.setdefault(name, {})
                if value is None or is_header:
                    continue
                # What a folder says is a text: `day=007`.
                kind, is_cut = _kind(value) if name not in source.said else (kinds.TEXT, False)
                if is_cut:
                    found.cut.add(name)
                if kind not in seen:
                    shown = value if isinstance(value, str) else str(value.value)
                    seen[kind] = Sight(line, shown[:SHOWN_CHARS])
        found.is_open = format == "csv" and is_open(Path(source.path))
    except MisuseError as problem:
        found.problem = str(problem)
    return found


def _kind(value: xes_files.Valued | str) -> tuple[str, bool]:
    if not isinstance(value, str):
        return value.kind, value.is_cut
    kind = kinds.kind_of(value)
    if kind not in (kinds.LOCAL, kinds.ZONED):
        return kind, False
    time = time_of(value)
    return kind, time is not None and time.is_cut


def together(files: Sequence[Source], surveys: Sequence[Survey], format: str) -> Surveyed:
    """The kind of each column, over all files."""
    seen: dict[str, dict[str, str]] = {}
    for file, each in zip(files, surveys, strict=True):
        for name, sights in each.columns.items():
            known = seen.setdefault(name, {})
            for kind, sight in sights.items():
                known.setdefault(kind, f"{kind} in line {sight.line} of {file.path}")
    if format == "xes":
        for name, known in seen.items():
            if len(known) > 1:
                one, other = list(known.values())[:2]
                raise MisuseError(f"{name!r} is {one}, and {other}: write it in one way everywhere")
    types = {name: kinds.kind_together(known) for name, known in seen.items()}
    local = [name for name, known in seen.items() if set(known) == {kinds.LOCAL}]
    finer = {name for each in surveys for name in each.cut}
    cut = sorted(name for name in finer if types[name] == kinds.TIME)
    ends = [file.path for file, each in zip(files, surveys, strict=True) if each.is_open]
    return Surveyed(sum(each.rows for each in surveys), types, local, cut, ends)


# ── reading ──────────────────────────────────────────────────────────────────────────────


def frame(
    spark: SparkSession, files: Sequence[Source], format: str, types: Mapping[str, str]
) -> DataFrame:
    """Columns `c0`, `c1` and so on, in the order of `types`, and `_file` and `_place`."""
    columns = ", ".join(f"c{at} {_TYPES[kind][0]}" for at, kind in enumerate(types.values()))
    schema = f"{columns}, _file string, _place bigint"
    return _tasks(spark, files, functools.partial(_read, files, format, dict(types)), schema)


def batches(source: Source, format: str, types: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    uri = Path(source.path).as_uri()
    rows = (row for _, row in source.rows(format))
    if format == "csv":
        next(rows)  # the header
    held: list[Mapping[str, Any]] = []
    place = 0
    for row in rows:
        held.append(row)
        if len(held) == BATCH_ROWS:
            yield _batch(held, types, uri, place)
            place += len(held)
            held = []
    if held:
        yield _batch(held, types, uri, place)


def _batch(
    rows: Sequence[Mapping[str, Any]], types: Mapping[str, str], uri: str, place: int
) -> pa.RecordBatch:
    arrays = [
        pa.array([_value(row.get(name), kind) for row in rows], _TYPES[kind][1])
        for name, kind in types.items()
    ]
    arrays.append(pa.array([uri] * len(rows), pa.string()))
    arrays.append(pa.array(range(place, place + len(rows)), pa.int64()))
    names = [*(f"c{at}" for at in range(len(types))), "_file", "_place"]
    return pa.RecordBatch.from_arrays(arrays, names)


def _value(value: xes_files.Valued | str | None, kind: str) -> Any:
    if value is None:
        return None
    return kinds.value_in(kind, value) if isinstance(value, str) else value.value


# ── tasks ────────────────────────────────────────────────────────────────────────────────

_Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _tasks(spark: SparkSession, files: Sequence[Source], task: _Task, schema: str) -> DataFrame:
    """One for each file."""
    numbers = spark.range(0, len(files), 1, len(files))
    return numbers.mapInArrow(task, schema)


def _numbers(given: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in given:
        yield from batch.column(0).to_pylist()


def _look(
    files: Sequence[Source], format: str, given: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for at in _numbers(given):
        told = msgspec.json.encode(look(files[at], format)).decode()
        yield pa.RecordBatch.from_arrays([pa.array([at]), pa.array([told])], ["at", "told"])


def _read(
    files: Sequence[Source], format: str, types: Mapping[str, str],
    given: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    for at in _numbers(given):
        yield from batches(files[at], format, types)
