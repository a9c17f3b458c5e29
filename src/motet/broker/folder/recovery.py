"""The folder of a broker, or of another machine: its journal, and the last snapshot beside it.

    DIR/journal/…             the log of facts
    DIR/<position>.snapshot   all state as it was after the fact with that number

Opening restores the machine as it was. Any problem of the folder raises an error that names the
file and the way out; nothing is repaired silently except a tail that was never acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple

from msgspec.structs import replace

from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import BROKER
from motet.broker.core.rebuild import Core as BrokerCore
from motet.broker.folder.journal import LoggedJournal
from motet.errors import (
    LogCorrupted,
    MisuseError,
    MotetError,
    StorageError,
    WrittenByAnotherVersion,
)
from motet.protocol.config import BrokerConfig
from motet.protocol.machine import FOUNDED, Core, Machine, Settings, Snapshot, State
from motet.runtime.clock import fresh_incarnation
from motet.runtime.log import Durability, FileLog, SealedFile, read_sealed, write_sealed
from motet.runtime.log.files import NEW, remove_file, steadily, usable
from motet.runtime.loop import growing

log = logging.getLogger("motet.broker")

JOURNAL = "journal"
SNAPSHOT = "snapshot"
"""The names of files."""

AnyMachine = Machine[Any, Any, Any]


class OpenedFolder(NamedTuple, Generic[Core]):
    """A restored machine, and the journal that it writes from now on."""

    core: Core
    journal: LoggedJournal
    replayed: int
    """The number of facts since the last snapshot."""


def open_folder(
    settings: BrokerConfig, directory: Path, durability: Durability = Durability.FSYNC
) -> OpenedFolder[BrokerCore]:
    """The broker of this folder; an empty folder becomes that of a new broker."""
    return open_machine(BROKER, settings, directory, durability)


def open_machine(
    machine: Machine[Settings, State, Core],
    settings: Settings,
    directory: Path,
    durability: Durability = Durability.FSYNC,
) -> OpenedFolder[Core]:
    """The machine of this folder; an empty folder becomes that of a new one."""
    with usable(directory):
        directory.mkdir(parents=True, exist_ok=True)
    files = open_log(directory, durability, machine=machine)
    try:
        sweep(directory)
        return _opened(machine, settings, files, last_snapshot(directory, machine), durability)
    except BaseException:
        files.shut()
        raise


def open_log(
    directory: Path,
    durability: Durability = Durability.FSYNC,
    *,
    writable: bool = True,
    machine: AnyMachine = BROKER,
) -> FileLog:
    """The log in the folder of a machine."""
    try:
        return FileLog.open(
            directory / JOURNAL,
            purpose=machine.journal,
            version=machine.version,
            durability=durability,
            writable=writable,
        )
    except WrittenByAnotherVersion as problem:
        what, _, _ = str(problem).partition("; ")
        raise WrittenByAnotherVersion(
            f"{what}; facts mean something only to the release that wrote them: start that one, "
            f"stop it, run its `motet journal snapshot {directory}`, then start this one"
        ) from None


def sweep(directory: Path) -> None:
    """Remove snapshots that were unfinished when the process died. The caller holds the lock; a
    process that still writes one finds it removed and ends."""
    with usable(directory):
        for path in directory.glob(f"*.{SNAPSHOT}*{NEW}"):
            remove_file(path)


def _opened(
    machine: Machine[Settings, State, Core],
    settings: Settings,
    files: FileLog,
    last: SealedFile | None,
    durability: Durability,
) -> OpenedFolder[Core]:
    journal = LoggedJournal(files, machine.encode, durability.value, gathers=True)
    if last is None and not files.appended:
        founded = replace(settings, incarnation=fresh_incarnation())
        files.append([machine.founding(founded)], FOUNDED)
        files.sync()
        return OpenedFolder(machine.new(founded), journal, 0)
    began = _began(files, last, machine)
    reading = FolderReading(files, last, began, files.appended, machine)
    with reading.named(), growing():
        state = machine.rebuild(settings, reading.snapshot, reading)
    journal.bytes = reading.bytes
    replayed = max(files.appended - began, 0)
    with reading.named():
        core, changes = machine.continues(state, settings)
    if changes:
        journal.append(changes)
    files.sync()
    return OpenedFolder(core, journal, replayed)


class FolderReading:
    """The content of a folder, record by record: the last snapshot and the facts after it."""

    def __init__(
        self,
        files: FileLog,
        last: SealedFile | None,
        began: int,
        upto: int,
        machine: AnyMachine = BROKER,
    ) -> None:
        self.bytes = 0
        """The size of the facts read so far."""
        self.snapshot = None if last is None else Snapshot(last.version, self._parts(last))
        self._files = files
        self._machine = machine
        self._facts = range(began + 1, upto + 1)
        self._at = f"the journal in {files.directory}"
        self._fact = 0
        """The fact that was read last; formatted only for an error."""

    def _parts(self, last: SealedFile) -> Iterator[bytes]:
        for record in last:
            self._at = f"record {record.sequence} of {last.path}"
            yield record.payload

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        if not self._facts:
            return
        for record in self._files.read(self._facts[0], self._facts[-1]):
            self._fact = record.sequence
            self.bytes += len(record.payload)
            yield record.kind, record.payload

    @property
    def _place(self) -> str:
        return f"fact {self._fact} in {self._files.directory}" if self._fact else self._at

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the place in the folder to errors about its content."""
        directory = self._files.directory.parent
        try:
            yield
        except MotetError as problem:
            if str(directory) in str(problem):
                raise
            if isinstance(problem, MisuseError | WrittenByAnotherVersion):
                raise type(problem)(f"{directory}: {problem}") from None
            raise self._senseless(problem) from problem
        except OSError as problem:
            raise StorageError(f"{self._place} cannot be read: {problem}") from problem
        except Exception as problem:  # whole, by its checksum, but nothing that we would write
            raise self._senseless(problem) from problem

    def _senseless(self, problem: Exception) -> LogCorrupted:
        return LogCorrupted(
            f"{self._place} makes no sense: {problem}; was it written by another release? Start "
            f"that one, or {self._machine.without_folder}"
        )


def _began(files: FileLog, last: SealedFile | None, machine: AnyMachine) -> int:
    """The last fact in the snapshot. Raises if facts between it and the journal are missing."""
    began = last.first if last is not None else 0
    if files.first > began + 1:
        raise LogCorrupted(
            f"{files.directory} begins with fact {files.first}, but the snapshot of all facts "
            f"before it is missing from {files.directory.parent}; put it back, or "
            f"{machine.without_folder}"
        )
    chain = files.chain_before(began + 1)
    foreign = last is not None and last.chain and chain is not None and chain != last.chain
    if last is not None and (foreign or files.appended < began):
        raise LogCorrupted(
            f"{last.path} holds the facts up to {began}, but {files.directory} is not the journal "
            f"it was made from (its last fact is {files.appended}); put that one back, or "
            f"{machine.without_folder}"
        )
    return began


# ── reading only ─────────────────────────────────────────────────────────────────────────


def read_durable(directory: Path, upto: int | None = None) -> tuple[Durable, int]:
    """The state in the folder of a broker; see `read_state`."""
    return read_state(BROKER, directory, upto)


def read_state(
    machine: Machine[Any, State, Any], directory: Path, upto: int | None = None
) -> tuple[State, int]:
    """The state in a folder, after fact `upto` or at its end, and the number of that fact. Changes
    nothing, and works while the process runs."""
    _check_folder(machine, directory)
    return steadily(lambda: _read(machine, directory, upto), directory, directory / JOURNAL)


def _check_folder(machine: AnyMachine, directory: Path) -> None:
    if not (directory / JOURNAL).is_dir():
        raise MisuseError(
            f"{directory} is not the folder of a {machine.what}: it has no {JOURNAL}/"
        )


def _read(
    machine: Machine[Any, State, Any], directory: Path, upto: int | None
) -> tuple[State, int]:
    last = last_snapshot(directory, machine)
    files = open_log(directory, writable=False, machine=machine)
    began = _began(files, last, machine)
    position = files.appended if upto is None else upto
    if position > files.appended:
        raise LogCorrupted(f"{files.directory} has {files.appended} facts, not {position}")
    reading = FolderReading(files, last, began, position, machine)
    with reading.named(), growing():
        return machine.rebuild(None, reading.snapshot, reading), position


def read_core(directory: Path) -> BrokerCore:
    """The broker of a folder, for inspection."""
    durable, _ = read_durable(directory)
    return BROKER.core_of(durable)


# ── snapshots ────────────────────────────────────────────────────────────────────────────


def snapshots(directory: Path) -> list[Path]:
    """The finished snapshots, oldest first."""
    return sorted(path for path in directory.glob(f"*.{SNAPSHOT}") if path.stem.isdigit())


def last_snapshot(directory: Path, machine: AnyMachine = BROKER) -> SealedFile | None:
    found = snapshots(directory)
    return read_sealed(found[-1], purpose=machine.snapshot) if found else None


def take_snapshot(
    directory: Path, upto: int | None, acknowledged: dict[str, int], machine: AnyMachine = BROKER
) -> Path:
    """Replay the folder up to this fact, and write the result as a snapshot.

    `acknowledged` says how much control each neighbour has confirmed: that need not be kept. Older
    snapshots stay until `forget_before`."""
    state, position = read_state(machine, directory, upto)
    for neighbour, received in acknowledged.items():
        if neighbour in state.ledgers:
            state.ledgers[neighbour].trim(received)
    path = directory / f"{position:020d}.{SNAPSHOT}"
    chain = open_log(directory, writable=False, machine=machine).chain_before(position + 1)
    write_sealed(
        path,
        purpose=machine.snapshot,
        version=machine.version,
        first=position,
        payloads=machine.picture(state),
        chain=chain or 0,  # unknown unless a segment of the journal begins here
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


def close_off(directory: Path, machine: AnyMachine = BROKER) -> Path:
    """Replace the journal of a stopped process by a snapshot that later releases can read."""
    _check_folder(machine, directory)
    files = open_log(directory, machine=machine)
    try:
        sweep(directory)
        files.roll()
        files.sync()
        path = take_snapshot(directory, None, {}, machine)
        forget_before(directory, path)
        files.trim(files.appended)
        files.sync()
    finally:
        files.shut()
    return path
