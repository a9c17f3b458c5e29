"""Few large files for many small ones. The events are the same; readers see the old files or the
new."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from motet.spark.archive.frames import frame_of
from motet.spark.archive.manifest import GRACE_S, ArchiveFile, Manifest, Version
from motet.spark.archive.placing import place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES: Final = 128 << 20


class Compaction(Struct, frozen=True):
    partitions: int
    files_before: int
    files_after: int
    rows: int
    removed: int
    """Files that were replaced before, and which nobody needs any more."""


def compact(
    spark: SparkSession,
    folder: Path,
    *,
    target_bytes: int = TARGET_BYTES,
    grace_s: float = GRACE_S,
    tell: Callable[[str], None] = lambda _: None,
) -> Compaction:
    """Each day of each pubend that has several small files gets fewer; then those go that were
    replaced long ago."""
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
    return Compaction(done, before, len(manifest.newest().files), rows, removed)


def _worthwhile(version: Version, target_bytes: int) -> dict[tuple[str, str], list[ArchiveFile]]:
    """By day and pubend, small files, if there are several."""
    small: dict[tuple[str, str], list[ArchiveFile]] = defaultdict(list)
    for each in version.files:
        if each.size_bytes < target_bytes // 2:
            small[each.day, each.pubend].append(each)
    return {key: files for key, files in small.items() if len(files) > 1}
