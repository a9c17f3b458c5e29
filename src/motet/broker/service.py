"""One broker as a service: opened from its folder, driven until a signal, left in good order."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from motet.broker.compaction import LEAST_BYTES, Compaction
from motet.broker.config import BrokerConfig
from motet.broker.core import BrokerCore
from motet.broker.driver import BrokerDriver
from motet.broker.recovery import open_folder
from motet.errors import InvariantError
from motet.runtime.clock import MonotonicClock, fresh_incarnation
from motet.runtime.journal import VOLATILE
from motet.runtime.log import Durability
from motet.runtime.loop import settle_memory
from motet.runtime.wiring import Wiring

log = logging.getLogger("motet.broker")

HAND_OVER_S = 0.0005
"""How long a busy loop may keep the interpreter from the thread that writes the journal. It needs
it for moments only, several times for each group, and all who ask for something wait for it."""


def open_broker(
    settings: BrokerConfig,
    wiring: Wiring,
    data: Path,
    durability: str = Durability.FSYNC.value,
    snapshot_bytes: int = LEAST_BYTES,
) -> BrokerDriver:
    """The broker of the folder `data`, as it was when it stopped; if it is to be volatile, a new
    one that keeps nothing. Raises `StorageError` with a way out if the folder cannot be used."""
    if durability == VOLATILE:
        return BrokerDriver(BrokerCore(replace(settings, incarnation=fresh_incarnation())), wiring)
    log.info("%s reads its journal in %s", settings.name, data)
    core, journal, replayed = open_folder(settings, data, Durability(durability))
    clock = MonotonicClock(core.durable.now)
    driver = BrokerDriver(core, wiring, clock=clock, journal=journal)
    compaction = Compaction(data, journal, core.acknowledged, snapshot_bytes)
    driver.companions.append(compaction.run)
    sessions = len(core.durable.sessions)
    log.info("%s replayed %d facts and has %d sessions", core.config.name, replayed, sessions)
    return driver


async def serve(
    driver: BrokerDriver,
    *,
    ready: Callable[[BrokerDriver], None] | None = None,
    reload: Callable[[], None] | None = None,
) -> int:
    """Run one broker until SIGTERM or SIGINT; the exit status of its process.

    `ready` is called once the broker listens, `reload` on every SIGHUP. Raises `AddressError` if
    it cannot listen, and `StorageError` if the disk fails it.
    """
    await driver.start()
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(
            number, lambda: stopping.append(asyncio.ensure_future(driver.stop()))
        )
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
    settle_memory()
    sys.setswitchinterval(HAND_OVER_S)
    if ready is not None:
        ready(driver)
    try:
        await driver.finished()
    except InvariantError:
        return 1
    return 0
