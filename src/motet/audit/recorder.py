"""Writes the history rows of a running process, from a background thread.

A process that records must not wait for disks: rows are queued, and the thread writes them
periodically. If the disk fails, the history ends there; the log of the process says so, and nothing
else fails.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from pathlib import Path
from typing import Any, Final

from motet.audit.files import write_part
from motet.audit.schema import TABLES
from motet.model import decode_body, encode_event

log = logging.getLogger("motet.audit")

VARIABLE: Final = "MOTET_HISTORY"
"""The default folder for the histories of all processes."""
PAUSE_S: Final = 1.0


def folder_of(history: str | Path | None) -> Path | None:
    """The folder to write to, or None."""
    found = history or os.environ.get(VARIABLE)
    return Path(found) if found else None


class Recording:
    """Rows of one process. `add` may be called by any thread, and never blocks on a disk."""

    def __init__(self, folder: Path, who: str) -> None:
        self.folder = folder
        self.who = who
        self._part = f"{who}-{os.getpid()}-{secrets.token_hex(4)}"
        self._parts = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._marks: dict[str, dict[str, Any]] = {}
        self._over = threading.Event()
        self._failed = False
        folder.mkdir(parents=True, exist_ok=True)  # fail here rather than in the thread
        self._thread = threading.Thread(target=self._run, name=f"history of {who}", daemon=True)
        self._thread.start()

    def add(self, table: str, row: dict[str, Any]) -> None:
        with self._lock:
            self._rows.setdefault(table, []).append(row)

    def mark(self, table: str, row: dict[str, Any]) -> None:
        """A row behind all that were added before; a later one replaces it until it is written."""
        with self._lock:
            self._marks[table] = row

    def write_now(self) -> None:
        """Write what was added, before this process does anything else."""
        self._write()

    def close(self) -> None:
        """Write the rest. Idempotent."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._writing:
            self._write_all()

    def _write_all(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, {}
            marks, self._marks = self._marks, {}
        if self._failed:
            return
        for table, row in marks.items():
            rows.setdefault(table, []).append(row)
        self._parts += 1
        try:
            # Referenced tables first: then a missing part causes no false violation.
            for table in TABLES:
                if table in rows:
                    found = [_lean(row) for row in rows[table]]
                    write_part(self.folder, table, found, f"{self._part}-{self._parts:06}")
        except Exception as problem:  # of any kind: rows must not accumulate forever
            self._failed = True
            log.error("no history is written any more, into %s: %s", self.folder, problem)


def _lean(row: dict[str, Any]) -> dict[str, Any]:
    """An event without its payload."""
    body = row.get("body")
    if body is None:
        return row
    attributes, payload = decode_body(bytes(body))
    return {**row, "body": encode_event(attributes, b"") if payload else bytes(body)}
