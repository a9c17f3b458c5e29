"""Examines a broker's folder: its content, whether it is whole, and the state it restores.

Only reads, and continues where a broker would stop, so that every problem is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from motet.broker.core.durable import Durable
from motet.broker.core.records import FACT, MACHINE_VERSION, decode_fact
from motet.broker.folder.recovery import (
    JOURNAL,
    SNAPSHOT,
    open_log,
    read_durable,
    snapshots,
)
from motet.errors import MisuseError, MotetError
from motet.protocol.contract import Fact
from motet.runtime.log import SegmentReport, inspect, read_sealed
from motet.runtime.log.files import LOOKS, listing, steadily

WAY_OUT = (
    "restore the folder from a copy taken while the broker was stopped and nothing has happened "
    "since, or move it away and start the broker without it: it joins the overlay as a new "
    "broker, and its clients renew their sessions"
)


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
    machine_version: int = MACHINE_VERSION
    broker: dict[str, Any] = field(default_factory=dict)
    """The broker's identity and its state in brief; empty if it cannot be rebuilt."""
    problems: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.problems


def examine(directory: Path) -> Findings:
    """Verify every byte, then rebuild the broker from it."""
    if not (directory / JOURNAL).is_dir():
        raise MisuseError(
            f"{directory} is not the folder of a broker: there is no {directory / JOURNAL}; "
            "`motet up` keeps one for each broker, like run/B1"
        )
    for _ in range(LOOKS):
        before = listing(directory, directory / JOURNAL)
        found = _examined(directory)
        if found.whole or listing(directory, directory / JOURNAL) == before:
            break  # otherwise a running broker has changed the folder meanwhile
    return found


def _examined(directory: Path) -> Findings:
    found = Findings(
        str(directory), inspect(directory / JOURNAL), [_look(path) for path in snapshots(directory)]
    )
    found.problems += [f"{s.file}: {s.problem}" for s in found.segments if s.problem]
    found.problems += [shot.problem for shot in found.snapshots if shot.problem]
    try:
        durable, position = read_durable(directory)
        durable.validate()
    except MotetError as problem:
        if str(problem) not in found.problems:
            found.problems.append(str(problem))
    else:
        found.broker = _sum_up(durable, position)
    return found


def facts(directory: Path, first: int | None = None) -> Iterator[tuple[int, Fact]]:
    """The journaled facts with their numbers, from the oldest that is kept, or from `first`."""
    files = open_log(directory, writable=False)
    for record in files.read(files.first if first is None else first):
        if record.kind == FACT:
            yield record.sequence, decode_fact(record.payload)


def listed(directory: Path, first: int | None, most: int) -> list[tuple[int, Fact]]:
    """At most `most` facts; also works while the broker runs."""
    return steadily(
        lambda: list(islice(facts(directory, first), most)), directory, directory / JOURNAL
    )


def _look(path: Path) -> SnapshotReport:
    report = SnapshotReport(path.name, int(path.stem), 0)
    try:
        report.bytes = path.stat().st_size
        file = read_sealed(path, purpose=SNAPSHOT)
        report.version = file.version
        report.parts = sum(1 for _ in file)
    except MotetError as problem:
        report.problem = str(problem)
    except OSError as problem:
        report.problem = f"{path} cannot be read: {problem.strerror or problem}"
    return report


def _sum_up(durable: Durable, position: int) -> dict[str, Any]:
    state, config = durable.routing.state, durable.config
    return {
        "name": config.name,
        "incarnation": config.incarnation,
        "covering": config.covering,
        "facts": position,
        "time_s": durable.now,
        "sessions": len(durable.sessions),
        "clients": len(state.clients),
        "advertisements": len(state.advertisements),
        "subscriptions": len(state.subscriptions),
        "waiting_operations": len(state.waits),
        "links": {
            name: {
                "sent": ledger.record.sent,
                "received": ledger.record.received,
                "unacknowledged": len(ledger.outbox),
            }
            for name, ledger in durable.ledgers.items()
        },
        "digest": durable.digest(),
    }
