"""Workflow logs of others as frames: Parquet, CSV and XES, plain or compressed, read by Spark.

Whatever the format, the frame has the attributes as columns, and besides `_file` and `_place`,
`_within`: which file, and where in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark.replay.rows import attribute_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ORDER: Final = ("_file", "_place", "_within")
FORMATS: Final = {
    "parquet": (".parquet",),
    "csv": (".csv", ".csv.gz"),
    "xes": (".xes", ".xes.gz"),
}
_PAIRS: Final = "array<struct<_key:string,_value:string>>"
_KINDS: Final = {
    "string": "string",
    "id": "string",
    "date": "timestamp",
    "int": "bigint",
    "float": "double",
    "boolean": "boolean",
}
"""The elements of XES that have a key and a value, and what their values are."""
_ELEMENTS: Final = ", ".join(f"`{kind}`: {_PAIRS}" for kind in _KINDS)
_TRACE: Final = (
    ", ".join(f"`{kind}` {_PAIRS}" for kind in _KINDS) + f", event array<struct<{_ELEMENTS}>>"
)
CASE: Final = "case:"
"""Before the names of attributes that a trace has."""


def files_in(path: Path) -> tuple[str, list[Path]]:
    """The format of a log, and its files."""
    if not path.exists():
        raise MisuseError(f"there is no {path}")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    files = [each for each in files if not each.name.startswith(("_", "."))]
    found = {format_of(each) for each in files} - {""}
    if len(found) != 1:
        there = "several formats" if found else "nothing to replay"
        known = ", ".join(end for ends in FORMATS.values() for end in ends)
        raise MisuseError(f"{path} has {there}; logs are files of one format among {known}")
    (format,) = found
    return format, [each for each in files if format_of(each) == format]


def format_of(path: Path) -> str:
    name = path.name.lower()
    return next((format for format, ends in FORMATS.items() if name.endswith(ends)), "")


def load(spark: SparkSession, path: Path, names: Mapping[str, str]) -> DataFrame:
    """A log as a frame, its columns named as attributes. `names` says which columns are called
    otherwise, by attribute: {"case": "Case ID"}."""
    format, files = files_in(path)
    chosen = {column: attribute for attribute, column in names.items()}
    paths = [str(each.absolute()) for each in files]
    match format:
        case "parquet":
            frame = _parquet(spark, files, paths)
        case "csv":
            reader = spark.read.option("header", True).option("inferSchema", True)
            frame = _placed(reader.csv(paths), F.monotonically_increasing_id())
        case _:
            frame = _xes(spark, paths)
    if set(frame.columns) <= set(ORDER):
        raise MisuseError(f"{path} has no events that can be read")
    missing = [column for column in chosen if column not in frame.columns]
    if missing:
        raise MisuseError(f"{path} has no column {missing[0]!r}; it has {_listed(frame)}")
    return _named(frame, chosen, path)


def _named(frame: DataFrame, chosen: Mapping[str, str], path: Path) -> DataFrame:
    columns = [name for name in frame.columns if name not in ORDER]
    attributes = [attribute_name(name, chosen) for name in columns]
    # What was chosen wins over what happens to be called so.
    taken = {chosen[name] for name in columns if name in chosen}
    kept = [
        (name, attribute)
        for name, attribute in zip(columns, attributes, strict=True)
        if name in chosen or attribute not in taken
    ]
    doubled = {each for _, each in kept if [other for _, other in kept].count(each) > 1}
    if doubled:
        raise MisuseError(f"{path} has two columns that would be called {sorted(doubled)[0]!r}")
    return frame.select(
        *(F.col(_quoted(name)).alias(attribute) for name, attribute in kept), *ORDER
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _listed(frame: DataFrame) -> str:
    return ", ".join(name for name in frame.columns if name not in ORDER)


def _placed(frame: DataFrame, place: Column, within: Column | None = None) -> DataFrame:
    return frame.select(
        *(F.col(_quoted(name)) for name in frame.columns),
        F.col("_metadata.file_path").alias("_file"),
        place.alias("_place"),
        (F.lit(0) if within is None else within).cast("long").alias("_within"),
    )


def _parquet(spark: SparkSession, files: list[Path], paths: list[str]) -> DataFrame:
    """Times in nanoseconds, as pandas writes them, are read as numbers and made times of ours."""
    import pyarrow
    import pyarrow.parquet

    try:
        types = pyarrow.parquet.read_schema(files[0])
    except pyarrow.ArrowInvalid as problem:
        raise MisuseError(f"{files[0]} cannot be read: {problem}") from None
    nanos = {field.name for field in types if str(field.type).startswith("timestamp[ns")}
    as_long = "spark.sql.legacy.parquet.nanosAsLong"
    before = spark.conf.get(as_long, "false")
    spark.conf.set(as_long, "true")
    try:
        frame = spark.read.parquet(*paths)
    finally:
        spark.conf.set(as_long, before or "false")
    placed = _placed(frame, F.col("_metadata.row_index"))
    for name in nanos:
        micros = F.floor(F.col(_quoted(name)) / 1000).cast("long")
        placed = placed.withColumn(name, F.timestamp_micros(micros))
    return placed


def _xes(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Events with their own attributes, and with those of their traces as `case:…`."""
    read = spark.read.format("xml").option("rowTag", "trace").schema(_TRACE)
    traces = _placed(read.load(paths), F.monotonically_increasing_id())
    events = traces.select("*", F.posexplode("event").alias("_at", "_event")).drop("event")
    columns = [
        _value(f"`{kind}`" if prefix else f"_event.`{kind}`", key, _KINDS[kind]).alias(prefix + key)
        for prefix, kind, key in _keys(traces)
    ]
    return events.select(*columns, "_file", "_place", F.col("_at").cast("long").alias("_within"))


def _keys(traces: DataFrame) -> list[tuple[str, str, str]]:
    """Whose, of which kind, and called what: all attributes that there are, found in one pass."""

    def named(prefix: str, kind: str, pairs: Column) -> Column:
        known = F.coalesce(pairs, F.array().cast(_PAIRS))
        return F.transform(
            known,
            lambda pair: F.struct(
                F.lit(prefix).alias("prefix"), F.lit(kind).alias("kind"), pair["_key"].alias("key")
            ),
        )

    def of_event(event: Column) -> Column:
        return F.concat(*(named("", kind, event[kind]) for kind in _KINDS))

    of_trace = [named(CASE, kind, F.col(f"`{kind}`")) for kind in _KINDS]
    both = F.concat(*of_trace, F.flatten(F.transform("event", of_event)))
    found = traces.select(F.explode(both).alias("each")).select("each.*").distinct().collect()
    return sorted((row["prefix"], row["kind"], row["key"]) for row in found if row["key"])


def _value(pairs: str, key: str, type_: str) -> Column:
    """What is not of its kind is null: other people's logs have such values."""
    quoted = key.replace("\\", "\\\\").replace("'", "\\'")
    first = F.expr(f"get(filter({pairs}, pair -> pair._key = '{quoted}'), 0)._value")
    return F.try_to_timestamp(first) if type_ == "timestamp" else first.try_cast(type_)
