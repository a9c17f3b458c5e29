"""Examines the folder of a broker, or of another machine: its content, whether it is whole, and the
state it restores.

Only reads, and continues where the machine would stop, so that every problem is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from motet.broker.core.rebuild import BROKER
from motet.broker.folder.recovery import JOURNAL, AnyMachine, open_log, read_state, snapshots
from motet.errors import MisuseError, MotetError
from motet.protocol.contract import Fact
from motet.protocol.machine import FACT
from motet.runtime.log import SegmentReport, inspect, read_sealed
from motet.runtime.log.files import LOOKS, listing, steadily
from motet.runtime.log.folder import read_header
from motet.runtime.log.layout import BadHeader


class SnapshotReport(Struct):
    file: str
    position: int
    bytes: int
    version: int = 0
    parts: int = 0
    problem: str = ""


class Findings(Struct):
    directory: str
    segments: list[SegmentReport]
    snapshots: list[SnapshotReport]
    machine_version: int
    what: str
    way_out: str
    """What to do if it is damaged."""
    broker: dict[str, Any] = field(default_factory=dict)
    """The machine's identity and its state in brief; empty if it cannot be rebuilt."""
    problems: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.problems


def examine(directory: Path, machine: AnyMachine = BROKER) -> Findings:
    """Verify every byte, then rebuild the machine from it."""
    if not (directory / JOURNAL).is_dir():
        raise MisuseError(
            f"{directory} is not the folder of a {machine.what}: there is no "
            f"{directory / JOURNAL}; `motet up` keeps one for each broker, like run/B1"
        )
    for _ in range(LOOKS):
        before = listing(directory, directory / JOURNAL)
        found = _examined(directory, machine)
        if found.whole or listing(directory, directory / JOURNAL) == before:
            break  # otherwise a running process has changed the folder meanwhile
    return found


def _examined(directory: Path, machine: AnyMachine) -> Findings:
    found = Findings(
        str(directory),
        inspect(directory / JOURNAL),
        [_look(path, machine.snapshot) for path in snapshots(directory)],
        machine.version,
        machine.what,
        f"restore the folder from a copy taken while the {machine.what} was stopped and nothing "
        f"has happened since, or {machine.without_folder}",
    )
    found.problems += [f"{s.file}: {s.problem}" for s in found.segments if s.problem]
    found.problems += [shot.problem for shot in found.snapshots if shot.problem]
    try:
        state, position = read_state(machine, directory)
        state.validate()
    except MotetError as problem:
        if str(problem) not in found.problems:
            found.problems.append(str(problem))
    else:
        found.broker = machine.summary(state, position)
    return found


def facts(
    directory: Path, first: int | None = None, machine: AnyMachine = BROKER
) -> Iterator[tuple[int, Fact]]:
    """The journaled facts with their numbers, from the oldest that is kept, or from `first`."""
    files = open_log(directory, writable=False, machine=machine)
    for record in files.read(files.first if first is None else first):
        if record.kind == FACT:
            yield record.sequence, machine.decode_fact(record.payload)


def listed(
    directory: Path, first: int | None, most: int, machine: AnyMachine = BROKER
) -> list[tuple[int, Fact]]:
    """At most `most` facts; also works while the process runs."""
    return steadily(
        lambda: list(islice(facts(directory, first, machine), most)),
        directory,
        directory / JOURNAL,
    )


def machine_in(directory: Path, known: Sequence[AnyMachine]) -> AnyMachine:
    """The one of these machines whose folder this is: the headers of its files tell. The first one
    if they cannot be read."""
    for path in sorted((directory / JOURNAL).glob("*")):
        try:
            purpose = read_header(path).purpose
        except (BadHeader, OSError):
            continue
        for machine in known:
            if machine.journal == purpose:
                return machine
    return known[0]


def _look(path: Path, purpose: str) -> SnapshotReport:
    report = SnapshotReport(path.name, int(path.stem), 0)
    try:
        report.bytes = path.stat().st_size
        file = read_sealed(path, purpose=purpose)
        report.version = file.version
        report.parts = sum(1 for _ in file)
    except MotetError as problem:
        report.problem = str(problem)
    except OSError as problem:
        report.problem = f"{path} cannot be read: {problem.strerror or problem}"
    return report
