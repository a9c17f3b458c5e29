"""Parquet, read by Spark once it is known that the columns of all files agree.

Spark takes the columns of one file for those of all, and file names for patterns. So the footers of
all files are read first, and files of the same shape are read together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark.replay.files import by_folder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_SETTINGS: Final = {
    # Pandas writes times in nanoseconds, which Spark otherwise refuses.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # Times without a zone are UTC, whatever the session's zone.
    "spark.sql.session.timeZone": "UTC",
    # Values in folder names are text: `number=007`.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
_STRICT: Final = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}
_PATTERN: Final = "{}[]*?\\"


class Shape(NamedTuple):
    """The columns of a file and their types."""

    types: tuple[tuple[str, str], ...]
    nanos: frozenset[str]
    local: frozenset[str]
    """Times without a zone."""


class Read(NamedTuple):
    """Columns `c0`, `c1` and so on, called `names` in the files; `_file` and `_place`."""

    frame: DataFrame
    rows: int
    """According to the files' footers, to compare with what Spark reads."""
    names: list[str]
    local: list[str]
    cut: list[str]


def read(spark: SparkSession, files: Sequence[Path], root: Path) -> Read:
    groups: dict[tuple[Shape, tuple[str, ...]], list[Path]] = {}
    rows = 0
    for each in files:
        said = tuple(by_folder(each, root))
        shape, size = shape_of(each)
        twice = next((name for name, _ in shape.types if name in said), None)
        if twice is not None:
            raise MisuseError(f"{each} has a column {twice!r}, which a folder name sets, too")
        groups.setdefault((shape, said), []).append(each)
        rows += size
    check_shapes(
        {
            members[0]: shape._replace(types=(*shape.types, *((name, "string") for name in said)))
            for (shape, said), members in groups.items()
        }
    )
    names = list(
        dict.fromkeys(
            name for shape, said in groups for name in (*(each for each, _ in shape.types), *said)
        )
    )
    with session_with(spark, _SETTINGS):
        parts = [
            _group(spark, members, root, shape, said, names)
            for (shape, said), members in groups.items()
        ]
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.unionByName(part, allowMissingColumns=True)
        columns = [f"c{at}" for at in range(len(names)) if f"c{at}" in frame.columns]
        local = [name for name in names if any(name in shape.local for shape, _ in groups)]
        cut = _cut(parts, names)
        kept = frame.select(*columns, "_file", "_place")
    return Read(kept, rows, [names[int(column[1:])] for column in columns], local, cut)


# ── shapes ───────────────────────────────────────────────────────────────────────────────


def shape_of(path: Path) -> tuple[Shape, int]:
    """The shape of a file, and its number of rows."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as problem:
        raise MisuseError(
            f"{path} cannot be read as Parquet: {str(problem).splitlines()[0].rstrip('. ')}. "
            f"If it is truncated or damaged, restore it from a copy"
        ) from None
    types: list[tuple[str, str]] = []
    for field in schema:
        if any(field.name == name for name, _ in types):
            raise MisuseError(f"{path} has two columns named {field.name!r}; rename one")
        type_ = _plain(field.type)
        if "timestamp[ns" in type_ and not type_.startswith("timestamp"):
            raise MisuseError(
                f"{path}: column {field.name!r} has nested values with times in nanoseconds, which "
                f"would become numbers; write them in microseconds"
            )
        if type_ != "null":  # a column without values
            types.append((field.name, type_))
    nanos = frozenset(name for name, type_ in types if type_.startswith("timestamp[ns"))
    local = frozenset(
        name
        for name, type_ in types
        if type_.startswith(("timestamp", "date")) and "tz=" not in type_
    )
    return Shape(tuple(types), nanos, local), rows


def _plain(type_: Any) -> str:
    """The logical type, whatever its representation in memory was."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(type_):
        type_ = type_.value_type
    text = str(type_)
    return {"large_string": "string", "string_view": "string", "large_binary": "binary"}.get(
        text, text
    )


def check_shapes(shapes: dict[Path, Shape]) -> None:
    known: dict[str, tuple[str, Path]] = {}
    for path, shape in shapes.items():
        for name, type_ in shape.types:
            other, where = known.setdefault(name, (type_, path))
            if other != type_:
                raise MisuseError(
                    f"column {name!r} is {other} in {where} and {type_} in {path}; use one type in "
                    f"all files, or replay them separately"
                )


# ── reading ──────────────────────────────────────────────────────────────────────────────


def _group(
    spark: SparkSession, files: Sequence[Path], root: Path, shape: Shape, said: Sequence[str],
    names: Sequence[str],
) -> DataFrame:  # fmt: skip
    """Files of the same shape."""
    reader = spark.read.options(**_STRICT)
    if said:
        reader = reader.option("basePath", _literal(root))
    frame = reader.parquet(*(_literal(each) for each in files))
    there = dict(frame.dtypes)
    columns: list[Column] = []
    for name in (*(each for each, _ in shape.types), *said):
        column, alias = F.col(quoted(name)), f"c{names.index(name)}"
        if name in shape.nanos and there[name] == "bigint":
            columns.append(F.pmod(column, F.lit(1000)).alias(f"_cut{names.index(name)}"))
            micros = F.expr(f"({quoted(name)} - pmod({quoted(name)}, 1000)) div 1000")
            column = F.timestamp_micros(micros)
        elif there[name] == "timestamp_ntz":
            column = column.cast("timestamp")
        columns.append(column.alias(alias))
    of_row = frame.metadataColumn("_metadata")  # even if the log has a column of this name
    file, place = of_row["file_path"], of_row["row_index"]
    return frame.select(*columns, file.alias("_file"), place.alias("_place"))


def _cut(parts: Sequence[DataFrame], names: Sequence[str]) -> list[str]:
    """Columns with times finer than microseconds."""
    found = set()
    for part in parts:
        finer = [name for name in part.columns if name.startswith("_cut")]
        if finer:
            (row,) = part.select(*(F.max(name).alias(name) for name in finer)).collect()
            found |= {names[int(name[4:])] for name in finer if row[name]}
    return sorted(found)


def _literal(path: Path) -> str:
    """A path that Spark does not take for a pattern."""
    text = str(path.absolute())
    return "".join(f"\\{char}" if char in _PATTERN else char for char in text)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def session_with(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
