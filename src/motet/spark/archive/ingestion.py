"""From the brokers' logs into an archive, each tick once; and the archive as a frame.

The newest version says which ticks are archived already. So a batch that runs again, or a query
that has lost its checkpoint, adds no duplicates. A checkpoint that is ahead of its archive, for
example of an older copy, is refused.

Files that Spark has written are moved to the folder of their day and pubend, and synced. Compaction
makes few large files of many small ones; readers see the old files or the new.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from msgspec import Struct
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType

from motet.errors import MisuseError, StorageError
from motet.model import Filter
from motet.spark.archive.manifest import (
    CHECKPOINT,
    EVENTS,
    GRACE_S,
    STAGING,
    ArchiveFile,
    Manifest,
    Version,
    sync_folder,
)
from motet.spark.columns import KINDS, STREAM
from motet.spark.failures import briefly
from motet.spark.options import Options, Vector, options_in
from motet.spark.planner import Brokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


# ── an archive as a frame ────────────────────────────────────────────────────────────────


DAY, PUBEND = "day", "pubend"
KEPT: Final = (
    *("pubend", "tick", "time", "publisher", "epoch", "sequence"),
    *("transaction", "transaction_number", "packed", "payload", "attributes"),
)
"""Columns of every archive, besides the requested attributes and `day`."""


def schema_of(columns: Iterable[str]) -> StructType:
    fields = [StructField(name, STREAM[name]) for name in KEPT]
    for each in columns:
        name, _, kind = each.partition(":")
        fields.append(StructField(name.strip(), KINDS[kind.strip()]))
    return StructType([*fields, StructField(DAY, DateType())])


def read(spark: SparkSession, folder: Path, version: Version | None = None) -> DataFrame:
    """The newest version, or the given one; later changes of the archive do not affect it."""
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


# ── files in their places ────────────────────────────────────────────────────────────────


def place(frame: DataFrame, folder: Path) -> list[ArchiveFile]:
    """Write a frame that has days, and return its files, which no version names yet."""
    mark = uuid.uuid4().hex[:12]
    staging = folder / STAGING / mark
    writer = frame.write.partitionBy(DAY, PUBEND).option("compression", "zstd")
    writer.parquet(str(staging))
    written = sorted(staging.rglob("*.parquet"))
    placed = [_placed(path, staging, folder, f"{mark}-{at}") for at, path in enumerate(written)]
    for each in _folders([folder / file.path for file in placed], folder):
        sync_folder(each)
    shutil.rmtree(staging)
    return [file for file in placed if file.rows]


def _folders(files: Iterable[Path], top: Path) -> list[Path]:
    """All folders of these files, up to `top`, the deepest first: some of them may be new."""
    found = {each for file in files for each in file.parents if each == top or top in each.parents}
    return sorted(found, key=lambda each: (-len(each.parts), each))


def _placed(path: Path, staging: Path, folder: Path, name: str) -> ArchiveFile:
    parts = path.relative_to(staging).parts[:-1]
    keys = dict(part.split("=", 1) for part in parts)
    home = folder.joinpath(EVENTS, *parts)
    home.mkdir(parents=True, exist_ok=True)
    end = home / f"{name}.parquet"
    os.utime(path)  # a batch may take long; the grace period of `sweep` begins now
    os.rename(path, end)
    with end.open("rb") as file:
        os.fsync(file.fileno())
    rows, first, last = _ticks(end)
    return ArchiveFile(
        path=str(end.relative_to(folder)),
        day=unquote(keys[DAY]),
        pubend=unquote(keys[PUBEND]),
        rows=rows,
        size_bytes=end.stat().st_size,
        first_tick=first,
        last_tick=last,
    )


def _ticks(path: Path) -> tuple[int, int, int]:
    """Rows, first and last tick of a file, from its footer."""
    import pyarrow.parquet

    found = pyarrow.parquet.read_metadata(path)
    groups = [found.row_group(at) for at in range(found.num_row_groups)]
    if not found.num_rows:
        return 0, 0, 0
    at = next(
        number for number in range(found.num_columns) if found.schema.column(number).path == "tick"
    )
    known = [group.column(at).statistics for group in groups if group.num_rows]
    if any(each is None or not each.has_min_max for each in known):
        raise StorageError(f"{path} has no statistics of its ticks")
    return found.num_rows, min(each.min for each in known), max(each.max for each in known)


# ── the streaming job ────────────────────────────────────────────────────────────────────

log = logging.getLogger("motet.spark")

EVERY_S: Final = 10.0


def keep(
    spark: SparkSession,
    brokers: str,
    folder: Path,
    *,
    filter: str = "",
    columns: Iterable[str] = (),
    available_now: bool = False,
    every_s: float = EVERY_S,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start or resume. `options` are further options of the source."""
    manifest = Manifest(folder)
    text, wanted = check(folder, filter, columns)
    asked = options_in({"brokers": brokers, **(options or {})})
    version = manifest.begin(text, wanted, _first_ticks(asked) if not manifest.exists else {})
    checkpoint = manifest.folder / CHECKPOINT
    said = {
        "brokers": brokers,
        "columns": ",".join((*KEPT, *version.columns)),
        "startingPosition": _position(version),
        **({"filter": text} if text else {}),
        **(options or {}),
    }
    frame = spark.readStream.format("motet").options(**said).load()
    keeper = _Keeper(manifest, checkpoint)
    writer = frame.writeStream.foreachBatch(briefly(keeper.take))
    writer = writer.option("checkpointLocation", str(checkpoint)).queryName(f"archive {folder}")
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s:g} seconds").start()


def check(folder: Path, filter: str = "", columns: Iterable[str] = ()) -> tuple[str, list[str]]:
    """Filter and columns in the form that an archive records. `MisuseError` if they are invalid, or
    if the archive in this folder has others."""
    text = str(Filter.parse(filter)) if filter else ""
    wanted = [_checked(each) for each in columns]
    Manifest(folder).check(text, wanted)
    return text, wanted


def _checked(written: str) -> str:
    name, _, kind = (part.strip() for part in written.partition(":"))
    if name in STREAM or name == DAY:
        raise MisuseError(f"every archive has a column {name}; omit it from `columns`")
    if kind not in KINDS:
        raise MisuseError(
            f"column {name} has no known type; write {name}:int, or another of {', '.join(KINDS)}"
        )
    return f"{name}:{kind}"


def _first_ticks(asked: Options) -> Vector:
    brokers = Brokers(asked.brokers, asked.timeout_s)
    try:
        return {name: account.first_tick for name, account in brokers.describe().items()}
    finally:
        brokers.close()


def _position(version: Version) -> str:
    """Where to begin without a checkpoint: after the last archived tick."""
    return json.dumps(dict(version.upto)) if version.upto else "earliest"


class _Keeper:
    def __init__(self, manifest: Manifest, checkpoint: Path) -> None:
        self._manifest = manifest
        self._checkpoint = checkpoint

    def take(self, frame: DataFrame, batch: int) -> None:
        """Archive one batch completely; no-op if it is archived already."""
        there = self._manifest.newest().upto
        end = self._ticks(batch)
        if all(there.get(name, 0) >= tick for name, tick in end.items()):
            return
        self._check_no_gap(batch, there)
        new = [
            ~((F.col("pubend") == name) & (F.col("tick") < tick)) for name, tick in there.items()
        ]
        fresh = frame.where(reduce(lambda one, other: one & other, new)) if new else frame
        dated = fresh.withColumn(DAY, F.to_date("time"))
        self._manifest.append(place(dated, self._manifest.folder), end, there)

    def _check_no_gap(self, batch: int, there: Mapping[str, int]) -> None:
        if batch == 0:
            return
        for name, tick in self._ticks(batch - 1).items():
            if there.get(name, 0) < tick:
                raise StorageError(
                    f"{self._checkpoint} is ahead of its archive: {name} is archived up to tick "
                    f"{there.get(name, 0)}, but the query continues at {tick}; if the archive was "
                    f"restored from a copy, remove {self._checkpoint}: then the query continues "
                    f"at the end of the archive"
                )

    def _ticks(self, batch: int) -> Vector:
        """The end of a batch, which Spark has recorded before the batch began."""
        path = self._checkpoint / "offsets" / str(batch)
        found: Any = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        return dict(found["p"])


# ── compaction ───────────────────────────────────────────────────────────────────────────

TARGET_BYTES: Final = 128 << 20


class CompactionResult(Struct, frozen=True):
    partitions: int
    files_before: int
    files_after: int
    rows: int
    removed: int
    """Files replaced earlier that no reader needs any more."""


def compact(
    spark: SparkSession,
    folder: Path,
    *,
    target_bytes: int = TARGET_BYTES,
    grace_s: float = GRACE_S,
    tell: Callable[[str], None] = lambda _: None,
) -> CompactionResult:
    """Merge the small files of each day and pubend; then remove files that were replaced long
    ago."""
    manifest = Manifest(folder)
    version = manifest.newest()
    before, rows, done = len(version.files), 0, 0
    for (day, pubend), files in sorted(_worthwhile(version, target_bytes).items()):
        tell(f"{day} {pubend}: {len(files)} files")
        size = sum(each.size_bytes for each in files)
        frame = frame_of(spark, manifest.folder, version, files)
        frame = frame.repartitionByRange(max(ceil(size / target_bytes), 1), "tick")
        manifest.replace(files, place(frame.sortWithinPartitions("tick"), manifest.folder))
        rows += sum(each.rows for each in files)
        done += 1
    removed = manifest.sweep(grace_s)
    return CompactionResult(done, before, len(manifest.newest().files), rows, removed)


def _worthwhile(version: Version, target_bytes: int) -> dict[tuple[str, str], list[ArchiveFile]]:
    """By day and pubend, small files, if there are several."""
    small: dict[tuple[str, str], list[ArchiveFile]] = defaultdict(list)
    for each in version.files:
        if each.size_bytes < target_bytes // 2:
            small[each.day, each.pubend].append(each)
    return {key: files for key, files in small.items() if len(files) > 1}
