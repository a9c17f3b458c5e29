"""One broker as a service: opened from its folder, run until a signal, and shut down in order."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from motet.audit.recorder import Recording
from motet.broker.core.cell.mate import MateCore
from motet.broker.core.rebuild import Core
from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.history import Lodger, SessionHistory, history_of
from motet.broker.driver.pubend import LoggedPubend, VolatilePubend
from motet.broker.driver.rule import rule_of
from motet.broker.driver.side_requests import Stagings
from motet.broker.folder.compaction import LEAST_BYTES, Compaction
from motet.broker.folder.journal import VOLATILE
from motet.broker.folder.recovery import open_folder
from motet.broker.folder.retention import DEFAULT, Upkeep, segment_bytes
from motet.broker.overlay.topology import Topology, Wiring
from motet.errors import InvariantError, LogCorrupted, MisuseError, MotetError, StorageError
from motet.model.ids import TICKS_PER_S
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Remembered
from motet.protocol.mobility.durable import DurableMobility
from motet.runtime.clock import SteadyClock, fresh_incarnation
from motet.runtime.log import Durability, FileLog
from motet.runtime.log.files import NEW, sync_folder, usable
from motet.runtime.loop import settle_memory
from motet.runtime.pubend import PubendLog, Retention
from motet.runtime.pubend.shelf import CATALOGUE

log = logging.getLogger("motet.broker")

PUBEND = "pubend"
"""The folder of a broker's log of exactly-once events, within its own."""
STAGING = "staging"
"""The folder of rows that are staged for sinks, within the broker's own."""
HAND_OVER_S = 0.0005
"""How long a busy loop may keep the interpreter from the thread that writes the journal. The thread
needs it for moments only, several times per group, and all requests wait for it."""


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
    """The broker of the folder `data`, in the state in which it stopped; if volatile, a new one
    that stores nothing. Raises `StorageError` with a way out if the folder cannot be used. With
    `accept_loss` it continues without events whose log is damaged or missing, and reports them as
    lost. Items of its log are recorded in the folder `history` as well, if given."""
    if settings.head:
        return BrokerDriver(MateCore(replace(settings, incarnation=fresh_incarnation())), wiring)
    if durability == VOLATILE:
        return volatile_broker(replace(settings, incarnation=fresh_incarnation()), wiring)
    rule = rule_of(settings.authorise)
    log.info("%s reads its journal in %s", settings.name, data)
    core, journal, replayed = open_folder(settings, data, Durability(durability))
    core.sessions.admission.authorise = rule
    clock = SteadyClock(core.durable.now)
    pubend: LoggedPubend | None = None
    remembered, upkeep, into = None, None, None
    if not settings.covering:  # covered subscriptions reach no pubend, and have no start there
        folder = data / PUBEND
        opening = partial(
            PubendLog.open,
            pubend=f"{core.config.name}.{core.config.incarnation}",
            retention=retention,
            segment_bytes=segment_bytes(retention),
            durability=Durability(durability),
            accept_loss=accept_loss,
        )
        try:
            events = _opened(opening, folder, core, clock, accept_loss)
        except BaseException:
            assert isinstance(journal.log, FileLog)
            journal.log.shut()
            raise
        into = Recording(history, f"broker-{settings.name}") if history is not None else None
        pubend = LoggedPubend(events, history=history_of(core.config, events, into))
        remembered = pubend.remembered()
        upkeep = Upkeep(events, folder)
    folder_of_rows = data / STAGING if pubend is not None and not settings.mates else None
    stagings = Stagings(
        core.config, folder_of_rows, core.durable.sinks.needed, core.sinks.objection_to
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
    if into is not None:
        driver.lodgers = SessionHistory(core.config.name, partial(_lodgers, core), into)
    if upkeep is not None:
        driver.retain = upkeep.retain
        driver.companions += [upkeep.trim, upkeep.seal]
    sessions = len(core.durable.sessions)
    log.info("%s replayed %d facts and has %d sessions", core.config.name, replayed, sessions)
    return driver


def _lodgers(core: Core) -> Iterator[Lodger]:
    """The sessions of a broker."""
    mobility = core.durable.room(DurableMobility)
    for session in core.durable.sessions:
        travel = mobility.travel(session.client, session.epoch)
        yield Lodger(session.client, session.epoch, travel.number if travel is not None else 0)


def volatile_broker(config: BrokerConfig, wiring: Wiring) -> BrokerDriver:
    """A broker that keeps everything in memory. With covering it has no pubend, because covered
    subscriptions would not reach it."""
    core = Core(config)
    core.sessions.admission.authorise = rule_of(config.authorise)
    if config.covering:
        return BrokerDriver(core, wiring)
    return BrokerDriver(core, wiring, pubend=VolatilePubend(), remembered=Remembered())


def _opened(
    opening: Callable[..., PubendLog],
    folder: Path,
    core: Core,
    clock: SteadyClock,
    accept_loss: bool,
) -> PubendLog:
    """The log of events. If it is missing or damaged, a new one replaces it that reports all events
    up to now as lost; but only if the operator accepts that."""
    hosted = core.durable.routing.state.hosted
    if hosted and not (folder / CATALOGUE).exists():
        problem = f"{folder} is missing or empty, but {hosted} has logged events there"
        if not accept_loss:
            raise LogCorrupted(f"{problem}; put it back, {_way_out(folder, core)}")
    else:
        try:
            return opening(folder)
        except LogCorrupted as damage:
            problem = str(damage)
            if not hosted:
                raise
            if not accept_loss:
                raise LogCorrupted(f"{problem}; {_way_out(folder, core)}") from None
    aside = _set_aside(folder)
    log.warning(
        "%s; all events of %s up to now are lost, and so are all named cursors, if there were any: "
        "set those again that are still needed%s",
        *(problem, hosted, f". The old files are now in {aside}" if aside else ""),
    )
    next_tick = core.durable.routing.starts.next_tick
    _begin_again(opening, folder, max(next_tick, int(clock.now() * TICKS_PER_S)))
    return opening(folder)


def _begin_again(opening: Callable[..., PubendLog], folder: Path, begin_behind: int) -> None:
    """Create a log that reports everything up to a tick as lost. It appears in its place only when
    that report is durable: otherwise a broker killed now would later find an empty log there, and
    would assign numbers of lost events again."""
    draft = folder.with_name(f"{folder.name}{NEW}")
    with usable(draft):
        shutil.rmtree(draft, ignore_errors=True)
        begun = opening(draft, begin_behind=begin_behind).log
        assert isinstance(begun, FileLog)
        begun.shut()
        if folder.is_dir():
            folder.rmdir()  # an empty folder; others were set aside
        draft.rename(folder)
        sync_folder(folder.parent)


def _way_out(folder: Path, core: Core) -> str:
    return (
        f"or start the broker once with `motet broker --topology FILE --name {core.config.name} "
        f"--data {folder.parent} --accept-loss`: then all events in it are reported as lost"
    )


def _set_aside(folder: Path) -> Path | None:
    """Move the remains of a log aside, in case the operator wants to recover something from it."""
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


def reload(
    driver: BrokerDriver, topology: Path, name: str, started_with: Topology | None = None
) -> None:
    """Apply a topology file. If it is wrong, or cannot be applied to a running broker, the error
    goes to the log and to the status, and the broker continues unchanged."""
    problem = ""
    try:
        plan = Topology.load(topology)
        if started_with is not None and plan.ordering != started_with.ordering:
            raise MisuseError(
                f"{topology}: ordering: cannot change while {name} runs; stop it and start it again"
            )
        driver.reconfigure(plan.config(name), plan.wiring(name), plan.durability)
        driver.retain(plan.retention_of(name))
    except MotetError as error:
        problem = str(error)
        log.error("the topology is not applied: %s", problem)
    else:
        log.info("the topology of %s is applied", topology)
    driver.reloads.append(problem)


async def serve(
    driver: BrokerDriver,
    *,
    ready: Callable[[BrokerDriver], None] | None = None,
    reload: Callable[[], None] | None = None,
) -> int:
    """Run one broker until SIGTERM or SIGINT; returns the exit status of its process.

    `ready` is called once the broker listens, `reload` on every SIGHUP. Raises `AddressError` if
    it cannot listen, and `StorageError` if the disk fails.
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
