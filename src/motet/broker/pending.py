"""What a broker has published, until its log has it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from motet.model import OpId
from motet.protocol.contract import LogCut, LogItem, LogRun, LogStart, Output
from motet.protocol.delivery.spans import CutRecord, Record, StartRecord
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Refusal
from motet.protocol.transactions.state import Block, TxState


class Pending(NamedTuple):
    """Something that is answered once the log has `number` records of this life."""

    number: int
    client: str
    epoch: str
    upto: int
    refused: tuple[Refusal, ...]
    first_tick: int
    batch: list[Publication]
    record: Record | None = None
    cut: str = ""
    """The transaction whose block this completes."""

    @property
    def is_silence(self) -> bool:
        return not self.client and self.record is None and not self.batch


def silence_upto(number: int, upto: int) -> Pending:
    """What is announced then is that no event comes up to this tick."""
    return Pending(number, "", "", 0, (), upto, [])


class Unlogged:
    """What has gone to our log, or waits to go there, and is not durable; in order."""

    def __init__(self) -> None:
        self.appended = 0
        """Records that this life has given to the log."""
        self.pending: deque[Pending] = deque()
        self._gate = 0
        self._gated: list[LogItem] = []
        """What goes to the log when the journal has the cut before it."""

    def log(self, item: LogItem, out: Output) -> None:
        """Behind a cut that the journal does not have yet, everything waits for it: a cut must
        never be in the log and not in the journal, or it would be made again."""
        self.appended += 1
        if self._gate:
            self._gated.append(item)
        else:
            out.log.append(item)

    def wait_for(self, confirm: int) -> None:
        """What comes now waits for the journal to confirm this."""
        self._gate = confirm

    def persisted(self, confirmed: int, out: Output) -> None:
        if self._gate and self._gate <= confirmed:
            self._gate = 0
            out.log += self._gated
            self._gated = []

    def answer(
        self,
        client: str,
        epoch: str,
        upto: int,
        refused: tuple[Refusal, ...],
        tick: int = 0,
        batch: list[Publication] | None = None,
    ) -> None:
        """A client is told of its publications up to a number, behind all that was logged."""
        told = Pending(self.appended, client, epoch, upto, refused, tick, batch or [])
        self.pending.append(told)

    def start(self, tick: int, op: OpId, tentative: bool, out: Output) -> None:
        self.log(LogStart(tick, op, tentative), out)
        self._publish(tick, StartRecord(tick, op, tentative))

    def block(self, block: Block, known: int, out: Output) -> None:
        """A cut and its events, but for what the log has already, up to tick `known`."""
        switches = tuple((each.op, each.tick, each.ended) for each in block.switches)
        if block.tick > known:
            where = (block.pubends, block.last_tick)
            cut = (block.tick, block.tx, block.number, switches, *where, block.orders)
            self.log(LogCut(*cut), out)
            record = (block.tick, block.tx, switches, *where, block.number, block.orders)
            self._publish(block.tick, CutRecord(*record))
        for tick, event in enumerate(block.events, block.tick + 1):
            if tick > known:
                self.log(LogRun(tick, event.client, "", event.index + 1, [event.body]), out)
                publication = Publication(event.client, event.index + 1, event.body)
                self.pending.append(Pending(self.appended, "", "", 0, (), tick, [publication]))
        self.pending[-1] = self.pending[-1]._replace(cut=block.tx)

    def _publish(self, tick: int, record: Record) -> None:
        self.pending.append(Pending(self.appended, "", "", 0, (), tick, [], record))

    def silence(self, upto: int) -> None:
        """Behind all that was logged: no event comes up to this tick."""
        if self.pending[-1].is_silence:
            self.pending.pop()
        self.pending.append(silence_upto(self.appended, upto))

    def take(self, records: int) -> list[Pending]:
        """What is durable, now that the log has so many records of this life."""
        found: list[Pending] = []
        while self.pending and self.pending[0].number <= records:
            found.append(self.pending.popleft())
        return found


def runs_of(numbers: list[int]) -> list[tuple[int, int]]:
    """Stretches of consecutive numbers, as index ranges."""
    if not numbers:
        return []
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return [(0, len(numbers))]
    found, begin = [], 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            found.append((begin, index))
            begin = index
    return found


class LogStand(NamedTuple):
    """What our log has of our cuts, after a restart."""

    unwritten: list[Block]
    written: list[Block]
    upto: int
    """The last tick that is decided, and shown."""
    cut: tuple[int, int]
    """See `AckExpected.cut`."""


def stand_of(state: TxState, logged: int, last_tick: int) -> LogStand:
    """The log ends at tick `logged`; nothing new comes up to `last_tick`, but for cuts that the
    journal has and the log has not."""
    blocks = sorted(state.blocks.values(), key=lambda block: block.tick)
    unwritten = [each for each in blocks if each.last_tick > logged]
    written = [each for each in blocks if each.last_tick <= logged]
    if not unwritten:
        return LogStand(unwritten, written, max(last_tick, logged), state.last_cut)
    before = min(last_tick, unwritten[0].tick - 1)
    return LogStand(unwritten, written, max(before, logged), (unwritten[0].number - 1, before))
