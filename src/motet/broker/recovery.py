"""A broker's folder: its journal, and the last snapshot beside it.

    DIR/journal/…             the log of facts
    DIR/<position>.snapshot   all state as it was after the fact with that number

Opening gives back the broker as it was. Whatever is wrong with the folder is an error that names
the file and the way out; nothing is ever mended silently but a tail that was never acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from motet.broker.config import BrokerConfig
from motet.broker.core import BrokerCore
from motet.broker.durable import Durable
from motet.broker.rebuild import Snapshot, core_of, founding, picture, rebuild
from motet.broker.records import FOUNDED, MACHINE_VERSION, encode
from motet.errors import LogCorrupted, MisuseError, StorageError
from motet.protocol.contract import Reconfigured
from motet.runtime.clock import fresh_incarnation
from motet.runtime.journal import LoggedJournal
from motet.runtime.log import Durability, FileLog, SealedFile, read_sealed, write_sealed

log = logging.getLogger("motet.broker")

JOURNAL = "journal"
SNAPSHOT = "snapshot"
"""Purposes, as the files name them."""


class Opened(NamedTuple):
    """A broker that goes on, and where it writes from now on."""

    core: BrokerCore
    journal: LoggedJournal
    replayed: int
    """Facts since the last snapshot."""


def open_folder(
    settings: BrokerConfig, directory: Path, durability: Durability = Durability.FSYNC
) -> Opened:
    """The broker of this folder; an empty folder becomes that of a new one."""
    directory.mkdir(parents=True, exist_ok=True)
    files = FileLog.open(
        directory / JOURNAL, purpose=JOURNAL, version=MACHINE_VERSION, durability=durability
    )
    try:
        return _opened(settings, files, last_snapshot(directory), durability)
    except BaseException:
        files.shut()
        raise


def _opened(
    settings: BrokerConfig, files: FileLog, last: SealedFile | None, durability: Durability
) -> Opened:
    journal = LoggedJournal(files, encode, durability.value)
    if last is None and not files.appended:
        config = replace(settings, incarnation=fresh_incarnation())
        files.append([founding(config)], FOUNDED)
        files.sync()
        return Opened(BrokerCore(config), journal, 0)
    began = _began(files, last)
    durable = rebuild(settings, _snapshot(last), _records(files, began + 1, journal))
    core = BrokerCore(durable.config, durable)
    replayed = max(files.appended - began, 0)
    _take_neighbours(core, settings.neighbours, journal)
    files.sync()
    return Opened(core, journal, replayed)


def _take_neighbours(core: BrokerCore, neighbours: tuple[str, ...], journal: LoggedJournal) -> None:
    """The overlay may have changed while the broker was down."""
    objection = core.objection_to(neighbours)
    if objection:
        raise MisuseError(
            f"{core.config.name} cannot start with the neighbours {', '.join(neighbours) or '–'}: "
            f"{objection}; start it with the neighbours it had before"
        )
    changes = core.step(Reconfigured(neighbours), core.durable.now)
    if changes.persist:
        journal.append(changes.persist)


def _records(
    files: FileLog, first: int, journal: LoggedJournal | None = None, upto: int | None = None
) -> Iterator[tuple[int, bytes]]:
    for record in files.read(first, upto):
        if journal is not None:
            journal.bytes += len(record.payload)
        yield record.kind, record.payload


def _began(files: FileLog, last: SealedFile | None) -> int:
    """The fact that the last snapshot goes up to. Between it and the journal nothing may miss."""
    began = last.first if last is not None else 0
    if files.first > began + 1:
        raise LogCorrupted(
            f"{files.directory} begins with fact {files.first}, but the snapshot of all facts "
            f"before it is missing from {files.directory.parent}; put it back, or move the folder "
            "away and start the broker without it: it joins the overlay anew"
        )
    return began


def _snapshot(last: SealedFile | None) -> Snapshot | None:
    if last is None:
        return None
    return Snapshot(last.version, (record.payload for record in last))


# ── reading only ─────────────────────────────────────────────────────────────────────────


def read_durable(directory: Path, upto: int | None = None) -> tuple[Durable, int]:
    """The state that a folder holds, after fact `upto` or at its end, and the number of that
    fact. Changes nothing, and may be used while the broker runs."""
    if not (directory / JOURNAL).is_dir():
        raise MisuseError(f"{directory} is not the folder of a broker: it has no {JOURNAL}/")
    last = last_snapshot(directory)
    files = FileLog.open(
        directory / JOURNAL, purpose=JOURNAL, version=MACHINE_VERSION, writable=False
    )
    began = _began(files, last)
    position = max(began, files.appended) if upto is None else upto
    records = _records(files, began + 1, None, position) if position > began else iter(())
    return rebuild(None, _snapshot(last), records), position


def read_core(directory: Path) -> BrokerCore:
    """The broker of a folder, to look at."""
    durable, _ = read_durable(directory)
    return core_of(durable)


# ── snapshots ────────────────────────────────────────────────────────────────────────────


def snapshots(directory: Path) -> list[Path]:
    """The finished ones, oldest first."""
    return sorted(path for path in directory.glob(f"*.{SNAPSHOT}") if path.stem.isdigit())


def last_snapshot(directory: Path) -> SealedFile | None:
    found = snapshots(directory)
    return read_sealed(found[-1], purpose=SNAPSHOT) if found else None


def take_snapshot(directory: Path, upto: int | None, acknowledged: dict[str, int]) -> Path:
    """Replay what the folder holds, up to this fact, and write the result down.

    `acknowledged` says how much of its control each neighbour has confirmed: that need not be
    kept. Older snapshots stay until somebody removes them."""
    durable, position = read_durable(directory, upto)
    for neighbour, received in acknowledged.items():
        if neighbour in durable.ledgers:
            durable.ledgers[neighbour].trim(received)
    path = directory / f"{position:020d}.{SNAPSHOT}"
    write_sealed(
        path, purpose=SNAPSHOT, version=MACHINE_VERSION, first=position, payloads=picture(durable)
    )
    return path


def forget_before(directory: Path, snapshot: Path) -> None:
    """Remove the snapshots that this one replaces."""
    for path in snapshots(directory):
        if path.stem < snapshot.stem:
            try:
                path.unlink(missing_ok=True)
            except OSError as problem:
                raise StorageError(f"{path} cannot be removed: {problem}") from None


def close_off(directory: Path) -> Path:
    """Replace the whole journal of a stopped broker by a snapshot that later releases can read."""
    if not (directory / JOURNAL).is_dir():
        raise MisuseError(f"{directory} is not the folder of a broker: it has no {JOURNAL}/")
    files = FileLog.open(directory / JOURNAL, purpose=JOURNAL, version=MACHINE_VERSION)
    try:
        path = take_snapshot(directory, None, {})
        forget_before(directory, path)
        files.roll()
        files.trim(files.appended)
        files.sync()
    finally:
        files.shut()
    return path
