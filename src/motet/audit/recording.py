"""What a running process tells, written behind its back by a thread of its own.

Whoever records must not wait for disks: rows are put down, and the thread takes all there are now
and then. If the disk fails, the history ends there and says so in the log of the process; nothing
else does.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from pathlib import Path
from typing import Any, Final

from motet.audit.schema import TABLES
from motet.audit.writing import write_part
from motet.model import decode_body, encode_event

log = logging.getLogger("motet.audit")

VARIABLE: Final = "MOTET_HISTORY"
"""The folder in which all processes write their histories, unless they are told another one."""
PAUSE_S: Final = 1.0


def folder_of(history: str | Path | None) -> Path | None:
    """Where to write, if at all."""
    found = history or os.environ.get(VARIABLE)
    return Path(found) if found else None


class Recording:
    """Rows of one process. `add` may be called by any thread, and takes no time."""

    def __init__(self, folder: Path, who: str) -> None:
        self.folder = folder
        self.who = who
        self._part = f"{who}-{os.getpid()}-{secrets.token_hex(4)}"
        self._parts = 0
        self._lock = threading.Lock()
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._over = threading.Event()
        self._failed = False
        folder.mkdir(parents=True, exist_ok=True)  # better refused now than in a thread
        self._thread = threading.Thread(target=self._run, name=f"history of {who}", daemon=True)
        self._thread.start()

    def add(self, table: str, row: dict[str, Any]) -> None:
        with self._lock:
            self._rows.setdefault(table, []).append(row)

    def close(self) -> None:
        """Write the rest. Twice is harmless."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, {}
        if self._failed:
            return
        self._parts += 1
        try:
            # What others refer to first: a part that is missing makes nothing look wrong.
            for table in TABLES:
                if table in rows:
                    found = [_lean(row) for row in rows[table]]
                    write_part(self.folder, table, found, f"{self._part}-{self._parts:06}")
        except Exception as problem:  # whatever it is: rows must not gather for ever
            self._failed = True
            log.error("no history is written any more, into %s: %s", self.folder, problem)


def _lean(row: dict[str, Any]) -> dict[str, Any]:
    """An event without its payload."""
    body = row.get("body")
    if body is None:
        return row
    attributes, payload = decode_body(bytes(body))
    return {**row, "body": encode_event(attributes, b"") if payload else bytes(body)}
