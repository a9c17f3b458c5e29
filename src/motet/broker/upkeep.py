"""The upkeep of a pubend's log while the broker runs: what may go goes, what stays is sealed.

Neither keeps the event loop: sealing is the work of another process, the files that go are removed
by the thread of the log, and looking at the disk has a thread, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Final

from motet.errors import StorageError
from motet.runtime.pubend import Disk, PubendLog, Retention, Trimmed

log = logging.getLogger("motet.broker")

LOOK_EVERY_S: Final = 1.0
SEAL_AFTER_S: Final = 10.0
"""What everybody has by then goes without having been sealed, if nobody wants history."""
TRY_AGAIN_S: Final = 60.0


class Upkeep:
    """`trim` and `seal` until cancelled."""

    def __init__(self, events: PubendLog, folder: Path) -> None:
        self._events = events
        self._folder = folder
        self.look_every_s = LOOK_EVERY_S
        self.seal_after_s = SEAL_AFTER_S

    def retain(self, retention: Retention) -> None:
        """Keep everything for so long from now on."""
        self._events.retention = retention

    async def trim(self) -> None:
        while True:
            await asyncio.sleep(self.look_every_s)
            try:
                disk = await asyncio.to_thread(Disk.of, self._folder)
            except OSError as problem:
                log.warning("nobody knows how full the disk is: %s", problem)
                disk = None
            self._tell(self._events.trim(disk))

    def _tell(self, trimmed: Trimmed) -> None:
        for name in trimmed.expired:
            log.warning("the cursor %s was not set for too long, and is forgotten", name)
        if trimmed.lost_events:
            log.warning(
                "%s lets go of events that somebody is still owed, up to %d of them: it keeps no "
                "more (see retention); they are reported as lost up to tick %d",
                *(self._events.pubend, trimmed.lost_events, trimmed.floor),
            )
        elif trimmed.events:
            log.info("%s lets go of %d events", self._events.pubend, trimmed.events)

    async def seal(self) -> None:
        while True:
            await asyncio.sleep(self.look_every_s)
            try:
                await self._events.seal(time.time() - self.seal_after_s)
            except (StorageError, OSError) as problem:
                # Everything is there, in rows; reading it just takes longer.
                log.error("a part of the log stays as it is: %s; tried again later", problem)
                await asyncio.sleep(TRY_AGAIN_S)
