"""Snapshots while a broker, or another machine, runs: another process replays its journal and
writes the result.

The machine itself never pauses for it: it begins a new segment, names the last fact of the old one,
and continues. The other process reads only immutable files, and by reading them it proves that they
can be replayed. The segments before the snapshot are removed when the snapshot is on disk.

    python -m motet.broker.folder.compaction DIR UPTO ACKNOWLEDGED MODULE:MACHINE

is that process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from motet.broker.core.rebuild import BROKER
from motet.broker.folder.journal import LoggedJournal
from motet.broker.folder.recovery import (
    AnyMachine,
    forget_before,
    snapshots,
    sweep,
    take_snapshot,
)
from motet.errors import MotetError, StorageError
from motet.runtime.log import FileLog
from motet.runtime.log.files import run_module

log = logging.getLogger("motet.broker")

LEAST_BYTES = 32 * 1024 * 1024
"""The least growth of the journal before a snapshot is taken: replaying it takes seconds."""
GROWTH = 2
"""The least growth of the journal as a multiple of the last snapshot's size."""
LOOK_EVERY_S = 0.5
TRY_AGAIN_S = 60.0
NICENESS = 10
"""The machine itself has priority."""

Acknowledged = Callable[[], dict[str, int]]


class Compaction:
    """Keeps the journal of one machine short. `run` works until cancelled; `take` acts at once."""

    def __init__(
        self,
        directory: Path,
        journal: LoggedJournal,
        acknowledged: Acknowledged,
        least_bytes: int = LEAST_BYTES,
        machine: AnyMachine = BROKER,
    ) -> None:
        assert isinstance(journal.log, FileLog)
        self._directory = directory
        self._journal = journal
        self._log = journal.log
        self._acknowledged = acknowledged
        self._least_bytes = least_bytes
        self._machine = machine
        self._bytes = 0
        """The size of the journal when the last snapshot was taken."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                if self._due():
                    await self.take()
            except (MotetError, OSError) as problem:
                # The journal has everything; without a snapshot it is only longer. OSError: no
                # descriptors or no processes are left, which may change.
                log.error("no snapshot was taken: %s; tried again later", problem)
                await asyncio.sleep(TRY_AGAIN_S)

    def _due(self) -> bool:
        grown = self._journal.bytes - self._bytes
        if grown < self._least_bytes:
            return False
        found = snapshots(self._directory)
        return grown >= GROWTH * (found[-1].stat().st_size if found else 0)

    async def take(self) -> Path:
        """Take a snapshot of all facts appended so far; returns when it is on disk."""
        bytes_before, acknowledged = self._journal.bytes, self._acknowledged()
        self._journal.hand_over()
        position = self._log.appended
        self._log.roll()
        await asyncio.to_thread(self._log.sync)  # rolled, and synced whatever the durability
        sweep(self._directory)  # remains of an earlier process, which may even be writing them
        words = ("-m", "motet.broker.folder.compaction", self._directory, str(position))
        code, printed, last_words = await run_module(
            *words, json.dumps(acknowledged), self._machine.where
        )
        if code:
            raise StorageError(last_words or f"exit status {code}")
        path = Path(printed.decode().strip())
        forget_before(self._directory, path)
        self._log.trim(position)
        self._bytes = bytes_before
        log.info("%s holds everything up to fact %d", path, position)
        return path


def main(directory: str, upto: str, acknowledged: str, where: str) -> int:
    os.nice(NICENESS)
    module, _, name = where.partition(":")
    machine: AnyMachine = getattr(import_module(module), name)
    try:
        print(take_snapshot(Path(directory), int(upto), json.loads(acknowledged), machine))
    except (MotetError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
