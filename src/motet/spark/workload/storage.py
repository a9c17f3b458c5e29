"""A workload as Parquet, with a note of its parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from motet.spark.output_folder import filling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


NOTE: Final = "_workload.json"
"""Spark ignores files whose names begin with an underscore."""


def store(frame: DataFrame, folder: Path, made_by: dict[str, Any], *, files: int = 0) -> int:
    """Write the frame and return the number of rows. `made_by`: how to reproduce it."""
    if files:
        frame = frame.coalesce(files)
    with filling(folder):
        frame.write.mode("append").parquet(str(folder))
        rows = rows_in(folder)
        (folder / NOTE).write_text(json.dumps({**made_by, "rows": rows}) + "\n", encoding="utf-8")
    return rows


def rows_in(folder: Path) -> int:
    """According to the files' footers."""
    import pyarrow.parquet

    files = folder.rglob("*.parquet")
    return sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
