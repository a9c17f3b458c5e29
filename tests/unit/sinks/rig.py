"""A broker's core on the simulator's disks and on real staged files; it dies when it is told to.

Every fact, every record of the log, every piece that is staged and every batch that is dropped is
one write; after so many of them the broker is dead, and only what was written is there. The
simulator's own broker dies only between syncs, and stages nothing.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from msgspec import Raw

from motet.broker.core.rebuild import core_of, founding, picture, rebuild
from motet.broker.core.records import MACHINE_VERSION, encode
from motet.errors import StagingLost
from motet.model import EVERYTHING, decode_attributes, encode_event
from motet.model.ids import LAST_TICK
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    CheckStaged,
    DropStaged,
    Input,
    Logged,
    Output,
    Persisted,
    ReadStaged,
    Received,
    RowsRead,
    StagingChecked,
)
from motet.protocol.delivery.spans import CutRecord, Span
from motet.protocol.delivery.stream import ReadWanted
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.machine import FOUNDED, Snapshot
from motet.protocol.room import Objection
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    CommitRequest,
    Done,
    Failed,
    Publish,
    Welcome,
)
from motet.protocol.sinks.messages import Attempt, StagedPart
from motet.protocol.sinks.state import Batch
from motet.runtime.staging import Staging
from motet.testing.clock import Agenda
from motet.testing.log import SimulatedLog
from motet.testing.pubend import SimulatedPubend

CONFIG = BrokerConfig("A", (), incarnation=100)
SINK, QUERY, PUBLISHER = "levels", "q", "alice"
NEVER = 1 << 30
MOST_PUBLISHED = 8


class Dead(Exception):
    """The broker has died."""


class Rig:
    def __init__(self, folder: Path, writes_left: int = NEVER) -> None:
        self.folder = folder
        self.writes_left, self.writes = NEVER, 0
        self.agenda = Agenda()
        self.journal = SimulatedLog(self.agenda, self._write)
        self.journal.append([founding(CONFIG)], FOUNDED)
        self.pubend = SimulatedPubend(self.agenda, self._write)
        self.writes_left, self.writes = writes_left, 0
        self.answers: dict[int, Done | Failed] = {}
        self.welcome: Welcome | None = None
        self._connections = 0
        self._attempts = 0
        self._requests: dict[int, int] = {}
        """By connection, the last one that was made."""
        self.publisher = 0
        """Somebody on this connection publishes an event whenever something happens."""
        self._published = 0
        self.rise()

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def rise(self) -> None:
        """From what was written, and nothing else."""
        for log in (self.journal, self.pubend.log):
            log.crash(log.durable)
        durable = rebuild(CONFIG, None, (record[1:] for record in self.journal.read(1)))
        payloads = [payload for _, payload in picture(durable)]
        restored = rebuild(CONFIG, Snapshot(MACHINE_VERSION, payloads), ())
        assert restored.digest() == durable.digest(), "the picture shows all there is"
        self.core = core_of(restored)
        self.staging = Staging(self.folder)
        self._queue: deque[Input] = deque()
        self.is_slow = False
        self.agenda.now += 1.0
        self.pubend.watch(lambda _: None, lambda _: None)
        self._carry(self.core.recover(self.agenda.now, self.pubend.remembered()))
        self.settle()

    def _write(self) -> float:
        """A sync that takes no time, unless it is never done."""
        if not self.writes_left:
            raise Dead
        self.writes_left -= 1
        self.writes += 1
        return 0.0

    def step(self, given: Input) -> None:
        self._carry(self.core.step(given, self.agenda.now))

    def settle(self, most: int = NEVER) -> None:
        """Everything happens that is under way; if it is slow, later."""
        while self._queue and not self.is_slow and most:
            most -= 1
            self.step(self._queue.popleft())
            if self.publisher and self._published < MOST_PUBLISHED:
                self._published += 1
                self.publish(self.publisher, self._published, 1)

    def _carry(self, out: Output) -> None:
        """The log before the journal: nobody has promised another order."""
        if out.log:
            self.pubend.append(out.log)
            self._queue.append(Logged(self.pubend.durable))
        for fact in out.persist:
            self.journal.append([encode(fact)])
        if out.confirm:
            self._queue.append(Persisted(out.confirm))
        for wish in out.staged:
            match wish:
                case CheckStaged(ticket, client, request):
                    refused = None
                    batch = Batch(client, request.job, request.epoch or 0)
                    try:
                        self.staging.check(batch, request.parts)
                    except StagingLost as problem:
                        refused = Objection("StagingLost", str(problem))
                    self._queue.append(StagingChecked(ticket, refused))
                case ReadStaged(block, at):
                    bodies = self.staging.rows(block, at)
                    self._queue.append(RowsRead(block.tx, at, bodies))
                case DropStaged(block):
                    self._write()
                    self.staging.drop(block.batch, True)
        assert not out.reads
        for _, frame in out.deliver:
            if isinstance(frame, Done | Failed):
                self.answers[frame.sequence] = frame
            elif isinstance(frame, Welcome):
                self.welcome = frame

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def connect(self, client: str = SINK) -> int:
        """A new process of a durable client, whose session goes on if there is one."""
        self._connections += 1
        hello = ClientHello(PROTOCOL_VERSION, client, instance=f"p{self._connections}", keep_s=60.0)
        self.step(Received(self._connections, hello))
        self.settle()
        connection, welcome = self._connections, self.welcome
        assert welcome is not None
        self._requests[connection] = welcome.requests
        if not any(each.kind == "advertise" for each in welcome.standing):
            number = self.next_request(connection)
            self.ask(connection, AdvertiseRequest(number, EVERYTHING))
        return connection

    def next_request(self, connection: int) -> int:
        self._requests[connection] += 1
        return self._requests[connection]

    def ask(self, connection: int, request: Any) -> Done | Failed | None:
        self.answers.clear()
        self.step(Received(connection, request))
        self.settle()
        return self.answers.get(request.sequence)

    def publish(self, connection: int, first: int, count: int) -> None:
        """Ordinary events, which go their way between the batches."""
        bodies = [Raw(encode_event({"x": first + at}, b"")) for at in range(count)]
        self.step(Received(connection, Publish(first, bodies)))

    def stage(
        self, epoch: int, partition: int, ns: range, size: int = 2, sink: str = SINK
    ) -> StagedPart:
        """A task: events of these numbers, in pieces of this size."""
        self._attempts += 1
        attempt = Attempt(sink, QUERY, epoch, partition, f"a{self._attempts}")
        pieces = 0
        for at in range(0, len(ns), size):
            self._write()
            bodies = [Raw(encode_event({"n": n}, b"")) for n in ns[at : at + size]]
            self.staging.add(attempt, pieces, bodies)
            pieces += 1
        return self.staging.seal(attempt, pieces)

    def commit(
        self, connection: int, epoch: int | None, parts: list[StagedPart], **more: Any
    ) -> Done | Failed | None:
        said: dict[str, Any] = {"job": QUERY, "advertised": EVERYTHING, **more}
        number = self.next_request(connection)
        request = CommitRequest(number, epoch=epoch, parts=tuple(parts), **said)
        return self.ask(connection, request)

    # ── what is there ────────────────────────────────────────────────────────────────────

    def blocks(self) -> dict[str, list[int]]:
        """By transaction, the numbers in its block; every one whole, and in its place."""
        stream = self.stream()
        events = dict(zip(stream.ticks, stream.batch, strict=True))
        found: dict[str, list[int]] = {}
        for cut in stream.records:
            assert isinstance(cut, CutRecord)
            assert cut.tx not in found, "each block is there once"
            assert (cut.number, len(cut.pubends)) == (0, 1)
            ticks = range(cut.tick + 1, cut.last + 1)
            assert events.keys() >= set(ticks), "it is whole"
            block = [events.pop(tick) for tick in ticks]
            assert [each.sequence for each in block] == list(range(1, len(block) + 1))
            assert all(cut.tx.startswith(f"{each.publisher}/") for each in block)
            found[cut.tx] = [decode_attributes(each.body)["n"] for each in block]  # type: ignore[misc]
        assert {each.publisher for each in events.values()} <= {PUBLISHER}, "no row is outside"
        return found

    def stream(self) -> Span:
        (span,) = self.pubend.read(ReadWanted("", 1, LAST_TICK, NEVER, NEVER))
        return span
