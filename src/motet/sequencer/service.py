"""One site as a service: opened from its folder, and run by the driver of brokers, in a process of
its own or in that of a broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from motet.audit.recorder import Recording, folder_of
from motet.broker.driver.driver import BrokerDriver
from motet.broker.folder.compaction import LEAST_BYTES, Compaction
from motet.broker.folder.journal import VOLATILE
from motet.broker.folder.recovery import open_machine
from motet.broker.overlay.topology import Topology, Wiring
from motet.errors import MisuseError
from motet.runtime.clock import SteadyClock, fresh_incarnation
from motet.runtime.log import Durability
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.sequencer.history import SiteHistory
from motet.sequencer.machine import SITE
from motet.sequencer.witness import WITNESS_MACHINE, WitnessConfig

log = logging.getLogger("motet.sequencer")

SEQUENCER = "sequencer"
"""The name of a site in the process of a broker, and of its folder."""


def open_site(
    settings: SiteConfig,
    wiring: Wiring,
    data: Path,
    durability: str = Durability.FSYNC.value,
    snapshot_bytes: int = LEAST_BYTES,
    history: Path | None = None,
) -> BrokerDriver:
    """The site of the folder `data`, in the state in which it stopped; if volatile, a new one that
    stores nothing. What it tells is recorded in the folder `history`, or in that of MOTET_HISTORY.
    Raises `AnotherLine` if it was founded with another line, mode or placement, and `StorageError`
    with a way out if the folder cannot be used."""
    settings.check()
    if durability == VOLATILE and (settings.waits or settings.other):
        raise MisuseError(
            "a volatile site has no standby and no witness: both need what is on disk; use "
            f"durability {Durability.FSYNC.value}, or omit them"
        )
    if durability == VOLATILE:
        core = SiteCore(replace(settings, incarnation=fresh_incarnation()))
        return _recorded(BrokerDriver(core, wiring, what=SITE.what), core, history)
    log.info("%s reads its journal in %s", settings.name, data)
    core, journal, replayed = open_machine(SITE, settings, data, Durability(durability))
    driver = BrokerDriver(
        core, wiring, clock=SteadyClock(core.durable.now), journal=journal, what=SITE.what
    )
    compaction = Compaction(data, journal, core.acknowledged, snapshot_bytes, SITE)
    driver.companions.append(compaction.run)
    topics = len(core.durable.site.ids)
    log.info("%s replayed %d facts and has %d topics", core.config.name, replayed, topics)
    core.pair.notice = log.info
    return _recorded(driver, core, history)


def _recorded(driver: BrokerDriver, core: SiteCore, history: Path | None) -> BrokerDriver:
    folder = folder_of(history)
    if folder is not None:
        driver.history = SiteHistory(core, Recording(folder, f"site-{core.config.name}"))
    return driver


def open_witness(
    settings: WitnessConfig,
    wiring: Wiring,
    data: Path,
    snapshot_bytes: int = LEAST_BYTES,
) -> BrokerDriver:
    """The witness of the folder `data`. Its registers are always on disk before it answers."""
    core, journal, _ = open_machine(WITNESS_MACHINE, settings, data, Durability.FSYNC)
    clock = SteadyClock(core.durable.now)
    what = WITNESS_MACHINE.what
    driver = BrokerDriver(core, wiring, clock=clock, journal=journal, what=what)
    compaction = Compaction(data, journal, core.acknowledged, snapshot_bytes, WITNESS_MACHINE)
    driver.companions.append(compaction.run)
    log.info("%s has %d registers", core.config.name, len(core.durable.registers))
    return driver


def open_beside(
    topology: Topology, data: Path, durability: str, listen: str | None = None
) -> BrokerDriver:
    """The sequencer of an overlay that has one; `data` is the folder of the broker beside it.
    `listen` replaces the address in the topology."""
    place = topology.ordering
    assert place is not None
    settings = SiteConfig(
        SEQUENCER,
        mode=place.mode,
        lease_s=place.lease_s,
        keep_s=place.keep_s,
        heartbeat_s=topology.heartbeat_s,
    )
    return open_site(settings, Wiring(listen or place.listen), data / SEQUENCER, durability)


@asynccontextmanager
async def sequencer_of(
    driver: BrokerDriver, topology: Topology | None, data: Path
) -> AsyncIterator[None]:
    """Run the sequencer of an overlay, if it belongs to the process of this broker. If one of the
    two fails, so does the other. To be entered before the broker starts."""
    if topology is None or driver.core.config.name != topology.ordering_host:
        yield
        return
    site = open_beside(topology, data, topology.durability)
    await site.start()
    driver.companions.append(site.finished)
    driver.accounts[SEQUENCER] = lambda: {"address": site.address}
    try:
        yield
    finally:
        await site.stop()
