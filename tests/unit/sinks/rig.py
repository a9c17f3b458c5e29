"""A broker's core whose journal, log and staged files are here, and which dies when it is told to.

Every fact, every record of the log, every piece that is staged and every batch that is dropped is
one write; after so many of them the broker is dead, and only what was written is there.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from msgspec import Raw

from motet.broker.core.broker import BrokerCore
from motet.broker.core.durable import Durable
from motet.broker.core.image import parts_of
from motet.broker.core.records import MACHINE_VERSION, decode_fact, decode_parts, encode
from motet.errors import StagingLost
from motet.model import EVERYTHING, decode_attributes, encode_event
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    CheckStaged,
    DropStaged,
    Input,
    LogCut,
    Logged,
    LogItem,
    LogRun,
    Output,
    Persisted,
    ReadStaged,
    Received,
    Remembered,
    RowsRead,
    StagingChecked,
)
from motet.protocol.delivery.stream import ReadWanted
from motet.protocol.frames import PROTOCOL_VERSION
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

CONFIG = BrokerConfig("A", (), incarnation=100)
SINK, QUERY = "levels", "q"
NEVER = 1 << 30
MOST_PUBLISHED = 8


class Dead(Exception):
    """The broker has died."""


class Rig:
    def __init__(self, folder: Path, writes_left: int = NEVER) -> None:
        self.folder = folder
        self.writes_left = writes_left
        self.writes = 0
        self.journal: list[bytes] = []
        self.log: list[LogItem] = []
        self.answers: dict[int, Done | Failed] = {}
        self.welcome: Welcome | None = None
        self._connections = 0
        self._attempts = 0
        self._requests: dict[int, int] = {}
        """By connection, the last one that was made."""
        self.publisher = 0
        """Somebody on this connection publishes an event whenever something happens."""
        self._published = 0
        self.now = 1.0
        self.rise()

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def rise(self) -> None:
        """From what was written, and nothing else."""
        durable = Durable(CONFIG)
        durable.replay(decode_fact(each) for each in self.journal)
        restored = Durable(CONFIG)
        payloads = [encode(part) for part in parts_of(durable)]
        restored.restore(decode_parts(MACHINE_VERSION, payloads))
        assert restored.digest() == durable.digest(), "the picture shows all there is"
        self.core = BrokerCore(CONFIG, restored)
        self.staging = Staging(self.folder)
        self._queue: deque[Input] = deque()
        self.is_slow = False
        self._logged = 0
        self.now = max(self.now, durable.now) + 1.0
        published: dict[tuple[str, str], int] = {}
        for item in self.log:
            if isinstance(item, LogRun) and item.epoch:
                last = item.first_sequence + len(item.bodies) - 1
                published[item.publisher, item.epoch] = last
        last_tick = max((last_tick_of(each) for each in self.log), default=0)
        self._carry(self.core.recover(self.now, Remembered(last_tick, published, {})))
        self.settle()

    def _write(self) -> None:
        if not self.writes_left:
            raise Dead
        self.writes_left -= 1
        self.writes += 1

    def step(self, given: Input) -> None:
        self._carry(self.core.step(given, self.now))

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
        for item in out.log:
            self._write()
            self.log.append(item)
            self._logged += 1
        if out.log:
            self._queue.append(Logged(self._logged))
        for fact in out.persist:
            self._write()
            self.journal.append(encode(fact))
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
        assert all(isinstance(want, ReadWanted) for want in out.reads)
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
        found: dict[str, list[int]] = {}
        cut: LogCut | None = None
        last = 0
        for item in self.log:
            first = item.first_tick if isinstance(item, LogRun) else item.tick
            assert first > last, "ticks ascend"
            last = last_tick_of(item)
            if isinstance(item, LogCut):
                assert cut is None or cut.last < first, "the block before is whole"
                assert item.tx not in found, "each block is there once"
                assert (item.number, len(item.pubends)) == (0, 1)
                cut, found[item.tx] = item, []
            elif isinstance(item, LogRun) and not item.epoch:
                assert cut is not None
                assert first == cut.tick + len(found[cut.tx]) + 1, "nothing is between"
                assert item.first_sequence == len(found[cut.tx]) + 1
                assert cut.tx.startswith(f"{item.publisher}/")
                found[cut.tx] += [decode_attributes(body)["n"] for body in item.bodies]  # type: ignore[misc]
            elif cut is not None:
                assert first > cut.last
        assert cut is None or cut.tick + len(found[cut.tx]) == cut.last, "the last one is whole"
        return found


def last_tick_of(item: LogItem) -> int:
    return item.first_tick + len(item.bodies) - 1 if isinstance(item, LogRun) else item.tick
