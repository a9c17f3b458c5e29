"""An archive as a frame; its columns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import DateType, StructField, StructType

from motet.spark.archive.manifest import EVENTS, ArchiveFile, Manifest, Version
from motet.spark.columns import KINDS, STREAM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY, PUBEND = "day", "pubend"
KEPT: Final = (
    *("pubend", "tick", "time", "publisher", "epoch", "sequence"),
    *("transaction", "transaction_number", "packed", "payload", "attributes"),
)
"""Columns of every archive, beside those of attributes that were asked for, and `day`."""


def schema_of(columns: Iterable[str]) -> StructType:
    fields = [StructField(name, STREAM[name]) for name in KEPT]
    for each in columns:
        name, _, kind = each.partition(":")
        fields.append(StructField(name.strip(), KINDS[kind.strip()]))
    return StructType([*fields, StructField(DAY, DateType())])


def read(spark: SparkSession, folder: Path, version: Version | None = None) -> DataFrame:
    """What is archived, as of now, whatever happens to the archive meanwhile."""
    manifest = Manifest(folder)
    found = version or manifest.newest()
    return frame_of(spark, manifest.folder, found, found.files)


def frame_of(
    spark: SparkSession, folder: Path, version: Version, files: Iterable[ArchiveFile]
) -> DataFrame:
    """Some files of a version."""
    schema = schema_of(version.columns)
    paths = [str(folder / each.path) for each in files]
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", str(folder / EVENTS))
    return reader.parquet(*paths).select(schema.names)
