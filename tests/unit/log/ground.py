"""Logs to be damaged, and a look at what is left of them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from motet.runtime.log import FileLog
from motet.runtime.log.folder import CLOSED

PURPOSE = "journal"
VERSION = 3


def open_log(folder: Path, segment_bytes: int = 1 << 20, writable: bool = True) -> FileLog:
    return FileLog.open(
        folder, purpose=PURPOSE, version=VERSION, segment_bytes=segment_bytes, writable=writable
    )


def build(
    folder: Path,
    groups: Sequence[Sequence[bytes]],
    *,
    segment_bytes: int = 1 << 20,
    roll: bool = False,
    is_batched: bool = False,
) -> list[int]:
    """A log as a killed process leaves it; the size of its last file after every group. A group
    is one batch, or one for each of its records."""
    log = open_log(folder, segment_bytes)
    assert log._writer is not None
    sizes = []
    for group in groups:
        gate = threading.Event()
        log._writer.put(gate.wait)  # type: ignore[arg-type]
        for batch in [group] if is_batched else [[payload] for payload in group]:
            log.append(batch)
        gate.set()
        log.sync()
        sizes.append(segments(folder)[-1].stat().st_size)
    if roll:
        log.roll()
    log.shut()
    (folder / CLOSED).unlink()
    return sizes


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def contents(folder: Path) -> list[bytes]:
    """Everything in a log, verified; nothing is changed."""
    log = open_log(folder, writable=False)
    return [record.payload for record in log.read(log.first)]


def mended(folder: Path) -> tuple[list[bytes], int]:
    """Everything in a log after it was opened for writing, and how much that cut."""
    log = open_log(folder)
    found = [record.payload for record in log.read(log.first)]
    log.shut()
    return found, log.cut_bytes


def twin(folder: Path, name: str) -> Path:
    copy = folder.with_name(name)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    return copy
