"""Histories as files: rows are gathered, and written in parts that are complete or absent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from motet.audit.schema import FILLED, TABLES, arrow_schema
from motet.errors import MisuseError

ROWS: Final = 50_000
"""The number of rows of one table in a part."""


class HistoryWriter:
    """Rows of one process. They are written by `flush`, or when there are enough of them."""

    def __init__(
        self, folder: Path | str, *, run: str = "", part: str = "", rows: int = ROWS
    ) -> None:
        self.folder = Path(folder)
        self.run = run
        self.part = part or f"p{os.getpid()}"
        self.parts = 0
        self._most = rows
        self._rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}

    def add(self, table: str, **row: Any) -> None:
        rows = self._rows[table]
        rows.append(row)
        if len(rows) >= self._most:
            self.flush(table)

    def flush(self, *tables: str) -> None:
        """Write the gathered rows of these tables, or of all."""
        for table in tables or TABLES:
            rows = self._rows[table]
            if rows:
                self._rows[table] = []
                self.parts += 1
                write_part(self.folder, table, rows, f"{self.part}-{self.parts:06}", self.run)


def write_part(
    folder: Path, table: str, rows: list[dict[str, Any]], name: str, run: str = ""
) -> Path:
    """Write one file, under a temporary name until it is complete."""
    import pyarrow as pa  # slow to import, and most processes write no history
    import pyarrow.parquet as pq

    into = folder / table
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"{name}.parquet"
    unfinished = into / f".{name}.unfinished"
    columns = {each: _column(rows, each, kind) for each, kind in TABLES[table].items()}
    made = pa.table({"run": [row.get("run", run) for row in rows], **columns}, arrow_schema(table))
    with unfinished.open("wb") as file:
        pq.write_table(made, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    return path


def _column(rows: list[dict[str, Any]], name: str, kind: str) -> list[Any]:
    filled = FILLED.get(kind)
    values = [row.get(name, filled) for row in rows]
    if kind == "ticks":
        return [list(each.items()) if isinstance(each, Mapping) else each for each in values]
    return values


def read_table(folder: Path | str, table: str) -> Any:
    """All rows of one table, as Arrow, in one chunk: Spark ends a table at an empty chunk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(table)
    parts = []
    for path in sorted(Path(folder, table).glob("*.parquet")):
        try:
            part = pq.read_table(path, partitioning=None)
        except (pa.ArrowException, OSError) as problem:
            raise MisuseError(f"{path} cannot be read: {problem}") from None
        if missing := [name for name in schema.names if name not in part.column_names]:
            raise MisuseError(f"{path} is not a history file: it has no column {missing[0]!r}")
        try:
            parts.append(part.select(schema.names).cast(schema))
        except pa.ArrowException as problem:
            raise MisuseError(f"{path} is not a history file: {problem}") from None
    return pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()


def recent(folder: Path | str, table: str, who: str, parts: int) -> list[dict[str, Any]]:
    """The rows, without bodies, of the last parts of a table that `who` wrote."""
    import pyarrow.parquet as pq

    found = Path(folder, table).glob(f"{who}-*.parquet")
    paths = sorted(found, key=lambda path: path.stat().st_mtime)
    columns = [name for name, kind in TABLES[table].items() if kind != "bytes"]
    return [
        row for path in paths[-parts:] for row in pq.read_table(path, columns=columns).to_pylist()
    ]
