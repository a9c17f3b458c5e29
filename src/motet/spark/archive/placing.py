"""Files that Spark has written, put in their places for good: synced, and where their day and
pubend say."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from motet.errors import StorageError
from motet.spark.archive.frames import DAY, PUBEND
from motet.spark.archive.manifest import EVENTS, STAGING, ArchiveFile, sync_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def place(frame: DataFrame, folder: Path) -> list[ArchiveFile]:
    """Write a frame that has days; its files, which no version names yet."""
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
    """All that these files are in, up to `top`, the deepest first: some of them may be new."""
    found = {each for file in files for each in file.parents if each == top or top in each.parents}
    return sorted(found, key=lambda each: (-len(each.parts), each))


def _placed(path: Path, staging: Path, folder: Path, name: str) -> ArchiveFile:
    parts = path.relative_to(staging).parts[:-1]
    keys = dict(part.split("=", 1) for part in parts)
    home = folder.joinpath(EVENTS, *parts)
    home.mkdir(parents=True, exist_ok=True)
    end = home / f"{name}.parquet"
    os.utime(path)  # a batch may take long; who sweeps counts from now on
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
    """Rows, first and last tick of a file, as its end says."""
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
        raise StorageError(f"{path} does not say which ticks it has")
    return found.num_rows, min(each.min for each in known), max(each.max for each in known)
