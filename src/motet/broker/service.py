"""One broker as a service: opened from its folder, driven until a signal, left in good order."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from motet.audit.recording import Recording
from motet.broker.cell.mate import MateCore
from motet.broker.compaction import LEAST_BYTES, Compaction
from motet.broker.config import BrokerConfig
from motet.broker.core import BrokerCore
from motet.broker.driver import BrokerDriver
from motet.broker.pubend import LoggedPubend, Pubend, VolatilePubend
from motet.broker.recorded import recorded
from motet.broker.recovery import open_folder
from motet.broker.remembered import Remembered
from motet.broker.retaining import DEFAULT, segment_bytes
from motet.broker.staging import Stagings
from motet.broker.upkeep import Upkeep
from motet.errors import InvariantError, LogCorrupted, StorageError
from motet.model.ticks import TICKS_PER_S
from motet.runtime.clock import SteadyClock, fresh_incarnation
from motet.runtime.journal import VOLATILE
from motet.runtime.log import Durability, FileLog
from motet.runtime.loop import settle_memory
from motet.runtime.pubend import PubendLog, Retention
from motet.runtime.pubend.file_shelf import CATALOGUE
from motet.runtime.wiring import Wiring

log = logging.getLogger("motet.broker")

PUBEND = "pubend"
"""Where in its folder a broker logs exactly-once events."""
STAGING = "staging"
"""Where in its folder a broker stages rows for sinks."""
HAND_OVER_S = 0.0005
"""How long a busy loop may keep the interpreter from the thread that writes the journal. It needs
it for moments only, several times for each group, and all who ask for something wait for it."""


def open_broker(
    settings: BrokerConfig,
    wiring: Wiring,
    data: Path,
    durability: str = Durability.FSYNC.value,
    snapshot_bytes: int = LEAST_BYTES,
    retention: Retention = DEFAULT,
    accept_loss: bool = False,
    history: Path | None = None,
) -> BrokerDriver:
    """The broker of the folder `data`, as it was when it stopped; if it is to be volatile, a new
    one that keeps nothing. Raises `StorageError` with a way out if the folder cannot be used. With
    `accept_loss` it goes on without events whose log is damaged or gone, and reports them lost.
    What its log takes is written into the folder `history` as well, if there is one."""
    if settings.head:
        return BrokerDriver(MateCore(replace(settings, incarnation=fresh_incarnation())), wiring)
    if durability == VOLATILE:
        return volatile_broker(replace(settings, incarnation=fresh_incarnation()), wiring)
    log.info("%s reads its journal in %s", settings.name, data)
    core, journal, replayed = open_folder(settings, data, Durability(durability))
    clock = SteadyClock(core.durable.now)
    pubend: Pubend | None = None
    remembered, upkeep = None, None
    if not settings.covering:  # what is covered does not reach a pubend, and has no start there
        folder, kept = data / PUBEND, Durability(durability)
        opening = partial(_log_of, core, folder, retention, kept, accept_loss)
        try:
            events = _opened(opening, folder, core, clock, accept_loss)
        except BaseException:
            assert isinstance(journal.log, FileLog)
            journal.log.shut()
            raise
        logged = LoggedPubend(events, _after)
        remembered = logged.remembered()
        upkeep = Upkeep(events, folder)
        into = Recording(history, f"broker-{settings.name}") if history is not None else None
        pubend = recorded(logged, core.config, events, into)
    folder_of_rows = data / STAGING if pubend is not None and not settings.mates else None
    stagings = Stagings(
        core.config, folder_of_rows, core.durable.sinks.needed, core.sinking.objection_to
    )
    driver = BrokerDriver(
        core,
        wiring,
        clock=clock,
        journal=journal,
        pubend=pubend,
        remembered=remembered,
        stagings=stagings,
    )
    compaction = Compaction(data, journal, core.acknowledged, snapshot_bytes)
    driver.companions += [compaction.run, stagings.sweep]
    if upkeep is not None:
        driver.retain = upkeep.retain
        driver.companions += [upkeep.trim, upkeep.seal]
    sessions = len(core.durable.sessions)
    log.info("%s replayed %d facts and has %d sessions", core.config.name, replayed, sessions)
    return driver


def _after(seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, action)


def volatile_broker(config: BrokerConfig, wiring: Wiring) -> BrokerDriver:
    """A broker that keeps everything in memory. Where covering is on, it has no pubend: what is
    covered would not reach it."""
    core = BrokerCore(config)
    if config.covering:
        return BrokerDriver(core, wiring)
    pubend = VolatilePubend(lambda tell: asyncio.get_running_loop().call_soon(tell))
    return BrokerDriver(core, wiring, pubend=pubend, remembered=Remembered())


def _log_of(
    core: BrokerCore,
    folder: Path,
    retention: Retention,
    durability: Durability,
    accept_loss: bool,
    begin_behind: int = 0,
) -> PubendLog:
    return PubendLog.open(
        folder,
        f"{core.config.name}.{core.config.incarnation}",
        retention=retention,
        segment_bytes=segment_bytes(retention),
        durability=durability,
        accept_loss=accept_loss,
        begin_behind=begin_behind,
    )


def _opened(
    opening: Callable[..., PubendLog],
    folder: Path,
    core: BrokerCore,
    clock: SteadyClock,
    accept_loss: bool,
) -> PubendLog:
    """The log of events. If it is gone or damaged, a new one takes its place that reports all up
    to now as lost; but only if the operator accepts that."""
    hosted = core.durable.routing.state.hosted
    if hosted and not (folder / CATALOGUE).exists():
        problem = f"{folder} is gone, or what is in it, and {hosted} has logged events there"
        if not accept_loss:
            raise LogCorrupted(f"{problem}; put it back, {_way_out(folder, core)}")
    else:
        try:
            return opening()
        except LogCorrupted as damage:
            problem = str(damage)
            if not hosted:
                raise
            if not accept_loss:
                raise LogCorrupted(f"{problem}; {_way_out(folder, core)}") from None
    aside = _set_aside(folder)
    log.warning(
        "%s; all events of %s up to now are lost, and so are all named cursors, if there were any: "
        "whoever had one sets it again%s",
        *(problem, hosted, f". What was there is now in {aside}" if aside else ""),
    )
    next_tick = core.durable.routing.state.next_tick
    return opening(begin_behind=max(next_tick, int(clock.now() * TICKS_PER_S)))


def _way_out(folder: Path, core: BrokerCore) -> str:
    return (
        f"or start the broker once with `motet broker --topology FILE --name {core.config.name} "
        f"--data {folder.parent} --accept-loss`: then all events in it are reported as lost"
    )


def _set_aside(folder: Path) -> Path | None:
    """What is left of a log, for whoever wants to save something of it."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
    except OSError as problem:
        raise StorageError(f"{folder} cannot be set aside as {aside}: {problem}") from None
    return aside


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
