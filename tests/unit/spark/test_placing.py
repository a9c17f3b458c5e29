"""Files that Spark has written are synced with all folders that they are in, and young again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from motet.spark.archive import ingestion
from motet.spark.archive.manifest import STAGING, Manifest

HOME = Path("events", "day=2026-01-02", "pubend=B1.1")


class Frame:
    """Writes one file, long ago."""

    @property
    def write(self) -> Frame:
        return self

    def partitionBy(self, *_: str) -> Frame:
        return self

    def option(self, *_: str) -> Frame:
        return self

    def parquet(self, path: str) -> None:
        part = Path(path, *HOME.parts[1:], "part-0.parquet")
        part.parent.mkdir(parents=True)
        pq.write_table(pa.table({"tick": [7, 9]}), part)
        os.utime(part, (0, 0))


def test_placed_files_are_durable_and_never_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(ingestion, "sync_folder", synced.append)
    manifest = Manifest(tmp_path)
    manifest.begin("", (), {})
    frame: Any = Frame()
    (placed,) = ingestion.place(frame, tmp_path)
    assert (placed.day, placed.pubend) == ("2026-01-02", "B1.1")
    assert (placed.rows, placed.first_tick, placed.last_tick) == (2, 7, 9)
    assert synced == [tmp_path / HOME, *((tmp_path / HOME).parents[at] for at in range(3))]
    assert [*(tmp_path / STAGING).iterdir()] == []
    assert manifest.sweep() == 0, "no version names it yet, but that will come"
    assert (tmp_path / placed.path).exists()
