"""Snapshots while the broker runs: another process replays the journal and writes the result.

The broker itself never stops for it: it begins a new segment, names the last fact of the old one,
and goes on. What the other process reads is immutable by then, and reading it back proves that it
can be replayed. When the snapshot is on disk, the segments before it go.

    python -m motet.broker.compaction DIR UPTO ACKNOWLEDGED    is that process
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from motet.broker.recovery import forget_before, snapshots, sweep, take_snapshot
from motet.errors import MotetError, StorageError
from motet.runtime.journal import LoggedJournal
from motet.runtime.log import FileLog

log = logging.getLogger("motet.broker")

LEAST_BYTES = 32 * 1024 * 1024
"""No snapshot before so much of journal: replaying it takes seconds."""
GROWTH = 2
"""Nor before the journal is so many times as large as the last snapshot."""
LOOK_EVERY_S = 0.5
TRY_AGAIN_S = 60.0
NICENESS = 10
"""The broker comes first."""

Acknowledged = Callable[[], dict[str, int]]


class Compaction:
    """Keeps the journal of one broker short. `run` until cancelled; `take` at once."""

    def __init__(
        self,
        directory: Path,
        journal: LoggedJournal,
        acknowledged: Acknowledged,
        least_bytes: int = LEAST_BYTES,
    ) -> None:
        assert isinstance(journal.log, FileLog)
        self._directory = directory
        self._journal = journal
        self._log = journal.log
        self._acknowledged = acknowledged
        self._least_bytes = least_bytes
        self._bytes = 0
        """Of the journal when the last snapshot was taken."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                if self._due():
                    await self.take()
            except (MotetError, OSError) as problem:
                # The journal has everything; without a snapshot it is only longer. OSError: no
                # descriptors or no processes are left, which others may give back.
                log.error("no snapshot was taken: %s; tried again later", problem)
                await asyncio.sleep(TRY_AGAIN_S)

    def _due(self) -> bool:
        grown = self._journal.bytes - self._bytes
        if grown < self._least_bytes:
            return False
        found = snapshots(self._directory)
        return grown >= GROWTH * (found[-1].stat().st_size if found else 0)

    async def take(self) -> Path:
        """A snapshot of what is durable now; returns when it is on disk."""
        bytes_before, acknowledged = self._journal.bytes, self._acknowledged()
        self._journal.hand_over()
        position = self._log.appended
        self._log.roll()
        await asyncio.to_thread(self._log.sync)  # rolled, and synced whatever the durability
        sweep(self._directory)  # one that a broker before us began, and may even be writing
        command = (sys.executable, "-m", "motet.broker.compaction", str(self._directory))
        # Not by the loop: it forks, which copies the tables of all our memory, and the loop
        # stands still for as long as that takes. This shares the memory until the other begins.
        process = Popen(
            (*command, str(position), json.dumps(acknowledged)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        try:
            out, err = await asyncio.to_thread(process.communicate)
        except asyncio.CancelledError:
            process.kill()
            raise
        if process.returncode:
            said = err.decode(errors="replace").strip().splitlines()
            raise StorageError(said[-1] if said else f"exit status {process.returncode}")
        path = Path(out.decode().strip())
        forget_before(self._directory, path)
        self._log.trim(position)
        self._bytes = bytes_before
        log.info("%s holds everything up to fact %d", path, position)
        return path


def main(directory: str, upto: str, acknowledged: str) -> int:
    os.nice(NICENESS)
    try:
        print(take_snapshot(Path(directory), int(upto), json.loads(acknowledged)))
    except (MotetError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
