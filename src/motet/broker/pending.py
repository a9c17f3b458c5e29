"""What a broker has published, until its log has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from motet.errors import InvariantError
from motet.model import OpId
from motet.protocol.contract import (
    LogCut,
    LogItem,
    LogRun,
    LogStart,
    Output,
    ReadStaged,
    RowsRead,
)
from motet.protocol.delivery.spans import CutRecord, Record, StartRecord
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Refusal
from motet.protocol.sinks.state import StagedBlock
from motet.protocol.transactions.state import Block, TxState

MOST_UNDER_WAY: Final = 4
"""Pieces of a batch between its files and the disk: enough to keep both busy."""


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
    copied: bool = False
    """It is a piece of a sink's batch."""

    @property
    def is_silence(self) -> bool:
        return not self.client and self.record is None and not self.batch


def silence_upto(number: int, upto: int) -> Pending:
    """What is announced then is that no event comes up to this tick."""
    return Pending(number, "", "", 0, (), upto, [])


class Gate(NamedTuple):
    """What stands behind waits for the journal to confirm this."""

    confirm: int


class Copying:
    """A sink's batch on its way into the log. What stands behind waits until all of it is there."""

    def __init__(self, block: StagedBlock, known: int) -> None:
        self.block = block
        self.at = max(known - block.tick, 0)
        """Rows that the log has, or has been given."""
        self.is_cut = known >= block.tick
        self.is_asked = False
        self.under_way = 0
        """Pieces that the log has been given and that are not durable."""


class Unlogged:
    """What has gone to our log, or waits to go there, and is not durable; in order."""

    def __init__(self) -> None:
        self.appended = 0
        """Records that this life has given to the log."""
        self.pending: deque[Pending] = deque()
        self._held: deque[LogItem | Pending | Gate | Copying] = deque()
        """What may not go to the log yet: the first one says what for."""
        self._confirmed = 0

    @property
    def is_idle(self) -> bool:
        return not self.pending and not self._held

    def answers(self, client: str) -> bool:
        """Is a client still to be told of publications?"""
        if any(each.client == client for each in self.pending):
            return True
        return any(type(each) is Pending and each.client == client for each in self._held)

    def log(self, item: LogItem, out: Output) -> None:
        """Behind a cut that the journal does not have yet, everything waits for it: a cut must
        never be in the log and not in the journal, or it would be made again."""
        if self._held:
            self._held.append(item)
        else:
            self.appended += 1
            out.log.append(item)

    def _tell(self, pending: Pending) -> None:
        """What is held gets its number when it goes."""
        if self._held:
            self._held.append(pending)
        else:
            self.pending.append(pending)

    def wait_for(self, confirm: int) -> None:
        """What comes now waits for the journal to confirm this."""
        self._held.append(Gate(confirm))

    def persisted(self, confirmed: int, out: Output) -> None:
        self._confirmed = max(confirmed, self._confirmed)
        if self._held:
            self._go_on(out)

    def _go_on(self, out: Output) -> None:
        """Everything goes that waits for nothing any more."""
        held = self._held
        while held:
            first = held[0]
            if isinstance(first, Copying):
                if not self._copy(first, out):
                    return
            elif type(first) is Gate:
                if first.confirm > self._confirmed:
                    return
            elif type(first) is Pending:
                self.pending.append(first._replace(number=self.appended))
            else:
                self.appended += 1
                out.log.append(first)  # type: ignore[arg-type]
            held.popleft()

    # ── batches of sinks ─────────────────────────────────────────────────────────────────

    def copy(self, block: StagedBlock, known: int, out: Output) -> None:
        """A batch, but for what the log has already, up to tick `known`."""
        self._held.append(Copying(block, known))
        self._go_on(out)

    def _copy(self, copying: Copying, out: Output) -> bool:
        """Whether the log has been given all of it; else, more rows are asked for."""
        block = copying.block
        if not copying.is_cut:
            copying.is_cut = True
            where = ((block.pubend,), block.last_tick)
            self.appended += 1
            out.log.append(LogCut(block.tick, block.tx, 0, (), *where))
            record = CutRecord(block.tick, block.tx, (), *where)
            self.pending.append(_nobody(self.appended, block.tick, [], record))
        if copying.at >= block.rows:
            return True
        if not copying.is_asked and copying.under_way < MOST_UNDER_WAY:
            copying.is_asked = True
            out.staged.append(ReadStaged(block, copying.at))
        return False

    def rows(self, news: RowsRead, out: Output) -> None:
        """Some rows of the batch that is being copied."""
        copying = self._held[0] if self._held else None
        if not isinstance(copying, Copying) or (copying.block.tx, copying.at) != news[:2]:
            raise InvariantError(f"rows of {news.tx} from {news.at} on, which nobody wants")
        block, count = copying.block, len(news.bodies)
        tick, first = block.tick + copying.at + 1, copying.at + 1
        copying.at += count
        copying.is_asked = False
        copying.under_way += 1
        self.appended += 1
        out.log.append(LogRun(tick, block.client, "", first, news.bodies))
        batch = [Publication(block.client, n, body) for n, body in enumerate(news.bodies, first)]
        cut = block.tx if copying.at == block.rows else ""
        told = _nobody(self.appended, tick, batch)
        self.pending.append(told._replace(cut=cut, copied=True))
        self._go_on(out)

    def copied(self, pieces: int, out: Output) -> None:
        """So many pieces are durable."""
        copying = self._held[0] if self._held else None
        if isinstance(copying, Copying):
            copying.under_way = max(copying.under_way - pieces, 0)
            self._go_on(out)

    # ── all others ───────────────────────────────────────────────────────────────────────

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
        self._tell(Pending(self.appended, client, epoch, upto, refused, tick, batch or []))

    def start(self, tick: int, op: OpId, tentative: bool, out: Output) -> None:
        self.log(LogStart(tick, op, tentative), out)
        self._tell(_nobody(self.appended, tick, [], StartRecord(tick, op, tentative)))

    def block(self, block: Block, known: int, out: Output) -> None:
        """A cut and its events, but for what the log has already, up to tick `known`."""
        switches = tuple((each.op, each.tick, each.ended) for each in block.switches)
        if block.tick > known:
            where = (block.pubends, block.last_tick)
            cut = (block.tick, block.tx, block.number, switches, *where, block.orders)
            self.log(LogCut(*cut), out)
            record = (block.tick, block.tx, switches, *where, block.number, block.orders)
            done = "" if block.events else block.tx
            told = _nobody(self.appended, block.tick, [], CutRecord(*record))
            self._tell(told._replace(cut=done))
        for tick, event in enumerate(block.events, block.tick + 1):
            if tick > known:
                self.log(LogRun(tick, event.client, "", event.index + 1, [event.body]), out)
                publication = Publication(event.client, event.index + 1, event.body)
                done = block.tx if tick == block.last_tick else ""
                self._tell(_nobody(self.appended, tick, [publication])._replace(cut=done))

    def silence(self, upto: int) -> None:
        """Behind all that was logged: no event comes up to this tick."""
        told = self._held or self.pending
        if told and type(told[-1]) is Pending and told[-1].is_silence:
            told.pop()
        self._tell(silence_upto(self.appended, upto))

    def take(self, records: int) -> list[Pending]:
        """What is durable, now that the log has so many records of this life."""
        found: list[Pending] = []
        while self.pending and self.pending[0].number <= records:
            found.append(self.pending.popleft())
        return found


def _nobody(
    number: int, tick: int, batch: list[Publication], record: Record | None = None
) -> Pending:
    """What no client is answered for."""
    return Pending(number, "", "", 0, (), tick, batch, record)


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

    unwritten: list[Block | StagedBlock]
    written: list[Block | StagedBlock]
    upto: int
    """The last tick that is decided, and shown."""
    cut: tuple[int, int]
    """See `AckExpected.cut`."""


def stand_of(
    state: TxState, staged: Iterable[StagedBlock], logged: int, last_tick: int
) -> LogStand:
    """The log ends at tick `logged`; nothing new comes up to `last_tick`, but for cuts that the
    journal has and the log has not."""
    blocks: list[Block | StagedBlock] = [*state.blocks.values(), *staged]
    blocks.sort(key=lambda block: block.tick)
    unwritten = [each for each in blocks if each.last_tick > logged]
    written = [each for each in blocks if each.last_tick <= logged]
    if not unwritten:
        return LogStand(unwritten, written, max(last_tick, logged), state.last_cut)
    before = min(last_tick, unwritten[0].tick - 1)
    decided = [each.number for each in unwritten if isinstance(each, Block)]
    cut = (decided[0] - 1, before) if decided else state.last_cut
    return LogStand(unwritten, written, max(before, logged), cut)
