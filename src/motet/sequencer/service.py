"""One site as a service: opened from its folder, and run by the driver of brokers."""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec.structs import replace

from motet.broker.driver.driver import BrokerDriver
from motet.broker.folder.compaction import LEAST_BYTES, Compaction
from motet.broker.folder.journal import VOLATILE
from motet.broker.folder.recovery import open_machine
from motet.broker.overlay.topology import Wiring
from motet.runtime.clock import SteadyClock, fresh_incarnation
from motet.runtime.log import Durability
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.sequencer.machine import SITE

log = logging.getLogger("motet.sequencer")


def open_site(
    settings: SiteConfig,
    wiring: Wiring,
    data: Path,
    durability: str = Durability.FSYNC.value,
    snapshot_bytes: int = LEAST_BYTES,
) -> BrokerDriver:
    """The site of the folder `data`, in the state in which it stopped; if volatile, a new one that
    stores nothing. Raises `AnotherLine` if it was founded with another line, mode or placement, and
    `StorageError` with a way out if the folder cannot be used."""
    settings.check()
    if durability == VOLATILE:
        core = SiteCore(replace(settings, incarnation=fresh_incarnation()))
        return BrokerDriver(core, wiring, what=SITE.what)
    log.info("%s reads its journal in %s", settings.name, data)
    core, journal, replayed = open_machine(SITE, settings, data, Durability(durability))
    driver = BrokerDriver(
        core, wiring, clock=SteadyClock(core.durable.now), journal=journal, what=SITE.what
    )
    compaction = Compaction(data, journal, core.acknowledged, snapshot_bytes, SITE)
    driver.companions.append(compaction.run)
    topics = len(core.durable.site.ids)
    log.info("%s replayed %d facts and has %d topics", core.config.name, replayed, topics)
    return driver
