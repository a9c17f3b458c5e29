"""Foreign workflow logs as frames: Parquet, CSV and XES, plain or compressed, read in Spark; and
archives and logs in the order in which they are replayed.

In every format, the frame has the attributes as columns, plus `_file` and `_place`: the file, and
the index of the row or event in it, from 0. Input that cannot be read exactly is refused.

Spark tasks read CSV and XES twice, one file each. The first pass checks that every file can be read
to its end, and finds the types of its values. The second pass reads the values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.model.ids import is_name
from motet.spark import archive
from motet.spark.replay import csv_files, kinds, parquet_files, xes_files
from motet.spark.replay.files import by_folder, files_in, is_open, name_within
from motet.spark.replay.kinds import LIKE, LOCAL_ZONE, time_of
from motet.spark.replay.parquet_files import session_with
from motet.spark.replay.plan import PACKED, PAYLOAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from motet.spark.archive.manifest import Version


ORDER: Final = ("_file", "_place")
_OTHERS: Final = {"case:concept:name": "case", "concept:name": "step", "org:resource": "agent",
                  "org:group": "group", "time:timestamp": "time",
                  "lifecycle:transition": "transition"}  # fmt: skip
"""Names of the event log standard (XES), and the attribute names used here."""


class LoadedLog(NamedTuple):
    frame: DataFrame
    rows: int
    """Counted in the files."""
    remarks: list[str]
    """What the user should know."""


def load(
    spark: SparkSession, path: Path, names: Mapping[str, str], held: ExitStack | None = None
) -> LoadedLog:
    """A log as a frame whose columns are named as attributes. `names` maps attributes to columns
    with other names: {"case": "Case ID"}. While `held` is open, Spark caches what it has parsed;
    otherwise it would parse it again for every job."""
    format, files = files_in(path)
    if format == "parquet":
        frame, rows, columns, local, cut = parquet_files.read(spark, files, path)
        ends: list[str] = []
    else:
        sources = log_files(files, path, format)
        rows, types, local, cut, ends = survey(spark, sources, format)
        columns = list(types)
        if columns:
            frame = frame_of(spark, sources, format, types)
            if held is not None:
                held.callback(frame.persist().unpersist)
    if not columns:
        raise MisuseError(f"{path} has no events")
    chosen = {column: attribute for attribute, column in names.items()}
    named = attributes_of(columns, chosen, path)
    kept = [F.col(f"c{at}").alias(name) for at, name in enumerate(named) if name is not None]
    called = dict(zip(columns, named, strict=True))
    remarks = _remarks(called, local, cut)
    remarks += [f"the last line of {each} has no line break: is it truncated?" for each in ends]
    return LoadedLog(frame.select(*kept, *ORDER), rows, remarks)


def attribute_name(column: str, chosen: Mapping[str, str]) -> str:
    """The attribute name for a column of a foreign log. `chosen`: attribute by column."""
    name = chosen.get(column) or _OTHERS.get(column)
    if name is not None:
        return name
    name = "".join(
        char
        if char.isascii() and (char.isalnum() or char in "_.")
        else ("." if char == ":" else "_")
        for char in column.strip()
    ).lstrip("._")
    return name if is_name(name) else f"column_{name}"


def attributes_of(
    columns: Sequence[str], chosen: Mapping[str, str], path: Path
) -> list[str | None]:
    """The attribute name of each column; None if a chosen column has taken that name."""
    missing = [column for column in chosen if column not in columns]
    if missing:
        raise MisuseError(f"{path} has no column {missing[0]!r}; it has {', '.join(columns)}")
    taken = {attribute.lower() for attribute in chosen.values()}
    named: list[str | None] = []
    by: dict[str, str] = {}
    for column in columns:
        name = attribute_name(column, chosen)
        if column not in chosen and name.lower() in taken:
            named.append(None)
            continue
        if not is_name(name):
            raise MisuseError(
                f"{path}: {name[:80]!r} is not a valid attribute name; choose another with "
                f"--column NAME={column[:80]!r}"
            )
        other = by.setdefault(name.lower(), column)
        if other != column:
            raise MisuseError(
                f"{path}: the columns {other!r} and {column!r} would both become the attribute "
                f"{name!r}; choose another name with --column NAME={column!r}"
            )
        named.append(name)
    return named


def _remarks(
    called: Mapping[str, str | None], local: Sequence[str], cut: Sequence[str]
) -> list[str]:
    found = []
    hidden = [column for column, name in called.items() if name is None]
    if hidden:
        found.append(f"columns omitted because --column names another: {', '.join(hidden)}")
    for said, columns in (
        (f"times without a zone are interpreted in {LOCAL_ZONE}", local),
        ("times are truncated to microseconds", cut),
    ):
        attributes = [name for name in map(called.get, columns) if name is not None]
        if attributes:
            found.append(f"{said}: {', '.join(attributes)}")
    return found


# ── times and order ──────────────────────────────────────────────────────────────────────

KEY: Final = "_key"
"""Events with the same key stay in order: those of a case, or of a publisher."""
TIME: Final = "_time_us"
PUBLISHER: Final = "_publisher"
ROW: Final = "_row"
_TEXT: Final = "_text"
_PARSED: Final = "struct<us: bigint, zoned: boolean, cut: boolean>"


def of_archive(spark: SparkSession, folder: Path, version: Version) -> DataFrame:
    frame = archive.read(spark, folder, version)
    return frame.select(
        F.col("packed").alias(PACKED),
        F.col("payload").alias(PAYLOAD),
        F.col("publisher").alias(KEY),
        F.unix_micros("time").alias(TIME),
        F.col("pubend").alias("_file"),
        F.col("tick").alias("_place"),
    )


def of_log(
    spark: SparkSession, path: Path, names: Mapping[str, str], held: ExitStack | None = None
) -> LoadedLog:
    """A log with times, which its order needs."""
    frame, rows, remarks = load(spark, path, names, held)
    if "time" not in frame.columns:
        known = ", ".join(name for name in frame.columns if not name.startswith("_"))
        raise MisuseError(
            f"{path} has no column time; name the column of times with --column time=NAME; its "
            f"columns are {known}"
        )
    type_ = dict(frame.dtypes)["time"]
    if type_ == "string":
        frame, said = _parsed(frame, path)
        remarks += said
    elif type_ == "date":
        with session_with(spark, {"spark.sql.session.timeZone": LOCAL_ZONE}):
            frame = frame.withColumn("time", F.col("time").cast("timestamp"))
    elif type_ != "timestamp":
        raise MisuseError(
            f"the times of {path} are of type {type_}, which is not a time; write them like "
            f"{LIKE}, or name another column with --column time=NAME"
        )
    if "process" not in frame.columns:
        frame = frame.withColumn("process", F.lit(path.name.split(".")[0]))
    key = F.col("case") if "case" in frame.columns else F.lit("")
    timed = frame.withColumn(KEY, key.cast("string")).withColumn(TIME, F.unix_micros("time"))
    _refuse(timed.where(F.col(TIME).isNull()), path, "has no time; every event needs one")
    return LoadedLog(timed, rows, remarks)


def _parsed(frame: DataFrame, path: Path) -> tuple[DataFrame, list[str]]:
    """The frame with its text times parsed, and remarks about them."""
    parsed = frame.withColumn(_TEXT, F.col("time"))
    parsed = parsed.withColumn("time", F.udf(_time, _PARSED, useArrow=False)("time"))
    lost = parsed.where(F.col("time").isNull() & F.col(_TEXT).isNotNull())
    _refuse(lost, path, f"is not a time; write times like {LIKE}")
    is_zoned, is_cut = F.col("time.zoned"), F.col("time.cut")
    (told,) = parsed.select(
        F.bool_and(is_zoned).alias("all"), F.bool_or(is_zoned).alias("any"),
        F.bool_or(is_cut).alias("cut"),
    ).collect()  # fmt: skip
    if told["any"] and not told["all"]:
        _refuse(parsed.where(~is_zoned), path, "has no zone, but other times have one; add it")
    said = []
    if told["any"] is False:
        said.append(f"times without a zone are interpreted in {LOCAL_ZONE}: time")
    if told["cut"]:
        said.append("times are truncated to microseconds: time")
    return parsed.withColumn("time", F.timestamp_micros("time.us")).drop(_TEXT), said


def _time(text: str | None) -> tuple[int, bool, bool] | None:
    time = time_of(text.strip()) if text is not None else None
    return None if time is None else (time.us, time.is_zoned, time.is_cut)


def _refuse(bad: DataFrame, path: Path, problem: str) -> None:
    """Raises `MisuseError` naming the first of these rows, if there is one."""
    shown = [_TEXT] if _TEXT in bad.columns else []
    found: list[Any] = bad.orderBy(*ORDER).select(*ORDER, *shown).limit(1).collect()
    if found:
        file = name_within(found[0]["_file"], str(path))
        where = str(path) if file == path.name else f"{path}, {file}"
        what = f": {found[0][_TEXT]!r}" if shown else ""
        raise MisuseError(f"{where}, row {found[0]['_place']} (from 0){what} {problem}")


def write(frame: DataFrame, folder: Path, publishers: int) -> None:
    """Ordered by time; events of the same time in the order of the files."""
    ordered = frame.withColumn(
        PUBLISHER, F.pmod(F.xxhash64(F.coalesce(KEY, F.lit(""))), F.lit(publishers))
    ).orderBy(TIME, *ORDER)
    ordered.withColumnRenamed("_place", ROW).drop(KEY).write.parquet(str(folder))


# ── CSV and XES as frames ────────────────────────────────────────────────────────────────

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


class FileSurvey(Struct):
    """What one file contains."""

    rows: int = 0
    columns: dict[str, dict[str, Sight]] = {}
    """By column, then by kind of value."""
    cut: set[str] = set()
    """Columns with a time that is finer than microseconds."""
    is_open: bool = False
    """Its last line has no line break; it may be truncated."""
    problem: str = ""


class LogFile(NamedTuple):
    """A file, and the values that its folder names give to its rows."""

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
                raise MisuseError(f"{path} has a column {twice!r}, which a folder name sets, too")
            yield line, row | self.said


class Surveyed(NamedTuple):
    """What all files contain."""

    rows: int
    types: dict[str, str]
    """The kind of each column."""
    local: list[str]
    """Columns with times without a zone."""
    cut: list[str]
    open: list[str]
    """Files whose last line has no line break."""


def log_files(files: Sequence[Path], root: Path, format: str) -> list[LogFile]:
    said = [by_folder(each, root) if format == "csv" else {} for each in files]
    return [LogFile(str(each.absolute()), row) for each, row in zip(files, said, strict=True)]


# ── the first pass ───────────────────────────────────────────────────────────────────────


def survey(spark: SparkSession, files: Sequence[LogFile], format: str) -> Surveyed:
    told = _tasks(spark, files, functools.partial(_look, files, format), "at bigint, told string")
    surveys = [
        msgspec.json.decode(row["told"], type=FileSurvey) for row in told.sort("at").collect()
    ]
    for each in surveys:
        if each.problem:
            raise MisuseError(each.problem)
    return together(files, surveys, format)


def look(source: LogFile, format: str) -> FileSurvey:
    found = FileSurvey(columns={})
    try:
        for line, row in source.rows(format):
            is_header = format == "csv" and not found.columns
            found.rows += not is_header
            for name, value in row.items():
                seen = found.columns.setdefault(name, {})
                if value is None or is_header:
                    continue
                # Values of folder names are text: `day=007`.
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


def together(files: Sequence[LogFile], surveys: Sequence[FileSurvey], format: str) -> Surveyed:
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
                raise MisuseError(f"{name!r} is {one}, but {other}; use one type in all files")
    types = {name: kinds.kind_together(known) for name, known in seen.items()}
    local = [name for name, known in seen.items() if set(known) == {kinds.LOCAL}]
    finer = {name for each in surveys for name in each.cut}
    cut = sorted(name for name in finer if types[name] == kinds.TIME)
    ends = [file.path for file, each in zip(files, surveys, strict=True) if each.is_open]
    return Surveyed(sum(each.rows for each in surveys), types, local, cut, ends)


# ── the second pass ──────────────────────────────────────────────────────────────────────


def frame_of(
    spark: SparkSession, files: Sequence[LogFile], format: str, types: Mapping[str, str]
) -> DataFrame:
    """Columns `c0`, `c1` and so on, in the order of `types`, and `_file` and `_place`."""
    columns = ", ".join(f"c{at} {_TYPES[kind][0]}" for at, kind in enumerate(types.values()))
    schema = f"{columns}, _file string, _place bigint"
    return _tasks(spark, files, functools.partial(_read, files, format, dict(types)), schema)


def batches(source: LogFile, format: str, types: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
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


def _tasks(spark: SparkSession, files: Sequence[LogFile], task: _Task, schema: str) -> DataFrame:
    """One task per file."""
    numbers = spark.range(0, len(files), 1, len(files))
    return numbers.mapInArrow(task, schema)


def _numbers(given: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in given:
        yield from batch.column(0).to_pylist()


def _look(
    files: Sequence[LogFile], format: str, given: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for at in _numbers(given):
        told = msgspec.json.encode(look(files[at], format)).decode()
        yield pa.RecordBatch.from_arrays([pa.array([at]), pa.array([told])], ["at", "told"])


def _read(
    files: Sequence[LogFile], format: str, types: Mapping[str, str],
    given: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    for at in _numbers(given):
        yield from batches(files[at], format, types)
