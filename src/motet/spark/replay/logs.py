"""Workflow logs of others as frames: Parquet, CSV and XES, plain or compressed, read in Spark.

Whatever the format, the frame has the attributes as columns, and besides `_file` and `_place`:
which file, and which of its rows or events, from 0 on. What cannot be read exactly is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.model.values import is_name
from motet.spark.replay import parquet_files, surveying
from motet.spark.replay.files import files_in
from motet.spark.replay.rows import attribute_name
from motet.spark.replay.times import LOCAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER: Final = ("_file", "_place")


class Log(NamedTuple):
    frame: DataFrame
    rows: int
    """As many as were seen in the files."""
    remarks: list[str]
    """What its reader should know."""


def load(
    spark: SparkSession, path: Path, names: Mapping[str, str], held: ExitStack | None = None
) -> Log:
    """A log as a frame, its columns named as attributes. `names` says which columns are called
    otherwise, by attribute: {"case": "Case ID"}. While `held` is open, Spark keeps what it has read
    of texts: else it would read them for every job."""
    format, files = files_in(path)
    if format == "parquet":
        frame, rows, columns, local, cut = parquet_files.read(spark, files, path)
        ends: list[str] = []
    else:
        sources = surveying.sources(files, path, format)
        rows, types, local, cut, ends = surveying.survey(spark, sources, format)
        columns = list(types)
        if columns:
            frame = surveying.frame(spark, sources, format, types)
            if held is not None:
                held.callback(frame.persist().unpersist)
    if not columns:
        raise MisuseError(f"{path} has no events")
    chosen = {column: attribute for attribute, column in names.items()}
    named = attributes_of(columns, chosen, path)
    kept = [F.col(f"c{at}").alias(name) for at, name in enumerate(named) if name is not None]
    called = dict(zip(columns, named, strict=True))
    remarks = _remarks(called, local, cut)
    remarks += [f"the last line of {each} has no end: is the file cut off?" for each in ends]
    return Log(frame.select(*kept, *ORDER), rows, remarks)


def attributes_of(
    columns: Sequence[str], chosen: Mapping[str, str], path: Path
) -> list[str | None]:
    """What each column is called as an attribute; None: what was chosen is called so."""
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
                f"{path}: no attribute can be called {name[:80]!r}; --column NAME={column[:80]!r} "
                f"calls it otherwise"
            )
        other = by.setdefault(name.lower(), column)
        if other != column:
            raise MisuseError(
                f"{path} has two columns that would be called {name!r}, {other!r} and {column!r}; "
                f"--column NAME={column!r} calls one otherwise"
            )
        named.append(name)
    return named


def _remarks(
    called: Mapping[str, str | None], local: Sequence[str], cut: Sequence[str]
) -> list[str]:
    found = []
    hidden = [column for column, name in called.items() if name is None]
    if hidden:
        found.append(f"columns are left out, since another was chosen: {', '.join(hidden)}")
    for said, columns in (
        (f"times without a zone are taken for {LOCAL}", local),
        ("times finer than microseconds, which events have, are cut", cut),
    ):
        attributes = [name for name in map(called.get, columns) if name is not None]
        if attributes:
            found.append(f"{said}: {', '.join(attributes)}")
    return found
