"""This broker's pubend: items on their way into its log, and entries kept until events arrive.

A removed advertisement stays until everything published under it has arrived. A subscription that
a transaction has ended stays until its client has acknowledged everything that it is owed. After a
restart both are restored from the routing tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from motet.errors import InvariantError
from motet.model import OpId
from motet.protocol.changes import (
    Grouped,
    PubendDestroyed,
    PubendMoved,
    StartLapsed,
    SubscriptionEnding,
    SubscriptionSettled,
    SwitchKnown,
)
from motet.protocol.contract import (
    LogCut,
    LogItem,
    LogPredecessors,
    LogRun,
    LogStart,
    Output,
    ReadStaged,
    RowsRead,
)
from motet.protocol.delivery.facts import AdvertisementOver
from motet.protocol.delivery.spans import CutRecord, PredecessorRecord, Record, StartRecord
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Refusal
from motet.protocol.shared import SharedState
from motet.protocol.sinks.state import StagedBlock
from motet.protocol.transactions.facts import SubscriptionOver
from motet.protocol.transactions.state import Block, CutterState

if TYPE_CHECKING:
    from motet.protocol.delivery.soft import Streams

MOST_UNDER_WAY: Final = 4
"""Pieces of a batch that are not durable yet: enough to keep its files and the disk busy."""


class Pending(Struct):
    """An item that takes effect once `number` records of this life are durable in the log."""

    number: int
    client: str
    epoch: str
    upto: int
    refused: tuple[Refusal, ...]
    first_tick: int
    batch: list[Publication]
    record: Record | None = None
    cut: str = ""
    """The transaction whose block this item completes."""
    copied: bool = False
    """A piece of a sink's batch."""

    @property
    def is_silence(self) -> bool:
        return not self.client and self.record is None and not self.batch


class Gate(NamedTuple):
    """Later items wait until the journal confirms this."""

    confirm: int


class Copying:
    """A sink's batch on its way into the log. Later items wait until the log was given it."""

    def __init__(self, block: StagedBlock, known: int) -> None:
        self.block = block
        self.at = max(known - block.tick, 0)
        """Number of rows that the log has, or has been given."""
        self.is_cut = known >= block.tick
        self.is_asked = False
        self.under_way = 0
        """Number of pieces that the log has been given and that are not durable."""


class Unlogged:
    """Items that are not durable, in order: given to this broker's log, or waiting for it."""

    def __init__(self) -> None:
        self.appended = 0
        """Number of records given to the log in this life."""
        self.pending: deque[Pending] = deque()
        self._held: deque[LogItem | Pending | Gate | Copying] = deque()
        """Items that may not go to the log yet, because of the first one."""
        self._confirmed = 0

    @property
    def is_idle(self) -> bool:
        return not self.pending and not self._held

    def answers(self, client: str) -> bool:
        """Does a client still wait for the answer to a publication?"""
        if any(each.client == client for each in self.pending):
            return True
        return any(type(each) is Pending and each.client == client for each in self._held)

    def log(self, item: LogItem, out: Output) -> None:
        """A cut, and everything after it, waits until the journal has the cut: if only the log
        had it, it would be made again."""
        if self._held:
            self._held.append(item)
        else:
            self.appended += 1
            out.log.append(item)

    def _tell(self, pending: Pending) -> None:
        """A held item gets its number when it leaves."""
        if self._held:
            self._held.append(pending)
        else:
            self.pending.append(pending)

    def wait_for(self, confirm: int) -> None:
        """Items from now on wait until the journal confirms this."""
        self._held.append(Gate(confirm))

    def persisted(self, confirmed: int, out: Output) -> None:
        self._confirmed = max(confirmed, self._confirmed)
        if self._held:
            self._go_on(out)

    def _go_on(self, out: Output) -> None:
        """Release held items up to the first one that must still wait."""
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
                first.number = self.appended
                self.pending.append(first)
            else:
                self.appended += 1
                out.log.append(first)  # type: ignore[arg-type]
            held.popleft()

    # ── batches of sinks ─────────────────────────────────────────────────────────────────

    def copy(self, block: StagedBlock, known: int, out: Output) -> None:
        """Log a batch, except for the part up to tick `known`, which the log has already."""
        self._held.append(Copying(block, known))
        self._go_on(out)

    def _copy(self, copying: Copying, out: Output) -> bool:
        """Whether the log has been given all of it; otherwise request more rows."""
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
        """Rows of the batch that is being copied."""
        copying = self._held[0] if self._held else None
        if not isinstance(copying, Copying) or (copying.block.tx, copying.at) != news[:2]:
            raise InvariantError(f"rows of {news.tx} from {news.at} on were not requested")
        block, count = copying.block, len(news.bodies)
        tick, first = block.tick + copying.at + 1, copying.at + 1
        copying.at += count
        copying.is_asked = False
        copying.under_way += 1
        self.appended += 1
        out.log.append(LogRun(tick, block.client, "", first, news.bodies))
        batch = [Publication(block.client, n, body) for n, body in enumerate(news.bodies, first)]
        cut = block.tx if copying.at == block.rows else ""
        self.pending.append(_nobody(self.appended, tick, batch, cut=cut, copied=True))
        self._go_on(out)

    def copied(self, pieces: int, out: Output) -> None:
        """More pieces are durable."""
        copying = self._held[0] if self._held else None
        if isinstance(copying, Copying):
            copying.under_way = max(copying.under_way - pieces, 0)
            self._go_on(out)

    # ── other items ──────────────────────────────────────────────────────────────────────

    def answer(
        self,
        client: str,
        epoch: str,
        upto: int,
        refused: tuple[Refusal, ...],
        tick: int = 0,
        batch: list[Publication] | None = None,
    ) -> None:
        """Answer a client's publications up to a number, after everything logged so far."""
        self._tell(Pending(self.appended, client, epoch, upto, refused, tick, batch or []))

    def start(self, tick: int, op: OpId, tentative: bool, out: Output) -> None:
        self.log(LogStart(tick, op, tentative), out)
        self._tell(_nobody(self.appended, tick, [], StartRecord(tick, op, tentative)))

    def precede(self, item: LogPredecessors, out: Output) -> None:
        self.log(item, out)
        self._tell(_nobody(self.appended, item.tick, [], PredecessorRecord(*item[:4])))

    def block(self, block: Block, known: int, out: Output) -> None:
        """Log a cut and its events, except for the part up to `known`, which the log has."""
        switches = tuple((each.op, each.tick, each.ended) for each in block.switches)
        if block.tick > known:
            where = (block.pubends, block.last_tick)
            cut = (block.tick, block.tx, block.number, switches, *where, block.orders)
            self.log(LogCut(*cut), out)
            record = (block.tick, block.tx, switches, *where, block.number, block.orders)
            done = "" if block.events else block.tx
            self._tell(_nobody(self.appended, block.tick, [], CutRecord(*record), done))
        for tick, event in enumerate(block.events, block.tick + 1):
            if tick > known:
                self.log(LogRun(tick, event.client, "", event.index + 1, [event.body]), out)
                publication = Publication(event.client, event.index + 1, event.body)
                done = block.tx if tick == block.last_tick else ""
                self._tell(_nobody(self.appended, tick, [publication], None, done))

    def silence(self, upto: int) -> None:
        """Announce that no event comes up to this tick, after everything logged so far."""
        told = self._held or self.pending
        if told and type(told[-1]) is Pending and told[-1].is_silence:
            told.pop()
        self._tell(_nobody(self.appended, upto, []))

    def take(self, records: int) -> list[Pending]:
        """Items that are durable now that the log has this number of records of this life."""
        found: list[Pending] = []
        while self.pending and self.pending[0].number <= records:
            found.append(self.pending.popleft())
        return found


def _nobody(
    number: int,
    tick: int,
    batch: list[Publication],
    record: Record | None = None,
    cut: str = "",
    copied: bool = False,
) -> Pending:
    """An item without an answer to a client."""
    return Pending(number, "", "", 0, (), tick, batch, record, cut, copied)


def runs_of(numbers: list[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, as index ranges."""
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
    """Which of this broker's cuts its log has after a restart."""

    unwritten: list[Block | StagedBlock]
    written: list[Block | StagedBlock]
    upto: int
    """The last tick that is decided and visible."""
    cut: tuple[int, int]
    """See `AckExpected.cut`."""


def stand_of(
    state: CutterState, staged: Iterable[StagedBlock], logged: int, last_tick: int
) -> LogStand:
    """The log ends at tick `logged`. Up to `last_tick` nothing new comes, except for cuts that are
    in the journal but not in the log."""
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


OWED_LESS = frozenset({StartLapsed, PubendDestroyed, PubendMoved})
MAY_GO = frozenset({SubscriptionSettled, SubscriptionEnding, SwitchKnown})


class Retirement:
    def __init__(
        self, streams: Streams, expect: Callable[[Output, float], None], shared: SharedState
    ) -> None:
        self._streams = streams
        self._expect = expect
        """Requests acknowledgements of this broker's pubend."""
        self._shared = shared
        self.last_ticks: dict[tuple[str, str], int] = {}
        """By client and epoch: the tick of the last publication, an upper bound if before this
        life. Publications in transactions are in the durable state instead."""
        self.retiring: dict[OpId, int] = {}
        """Retired advertisements, each with the last tick published under it."""
        self.ending: dict[OpId, None] = {}
        """Subscriptions that a transaction has ended."""
        self._unacknowledged: dict[str, dict[OpId, None]] = {}
        """By client: further ended subscriptions, which stay until it acknowledges more. With many
        transactions there are many, so they are not examined before that."""

    def look(self, out: Output, now: float) -> None:
        if self.retiring:
            self.let_go(out, now)
        if self.ending:
            self.let_pass(out, now)

    # ── ended subscriptions ──────────────────────────────────────────────────────────────

    def let_pass(self, out: Output, now: float, some: Iterable[OpId] | None = None) -> None:
        """Remove ended subscriptions once the decision is settled everywhere, so that all cuts are
        known, and their clients have acknowledged everything up to the cuts. `some`: examine only
        these, because nothing has changed for the others."""
        known = list(self.ending) if some is None else [op for op in some if op in self.ending]
        if not known:
            return
        ends, machine = self._shared.durable.routing.starts.ends, self._streams.machine
        undecided = self._shared.durable.transactions.decisions.ending()
        gone: list[OpId] = []
        for op in known:
            if op in undecided:
                continue
            passed = machine.clients.passed(op, ends.get(op, ()))
            if passed:
                gone.append(op)
            elif passed is None:
                self.ending.pop(op, None)
                self._unacknowledged.setdefault(op.client, {})[op] = None
        for op in gone:  # before journaling, which changes the tables and re-enters this method
            del self.ending[op]
        for op in gone:
            self._shared.journal(SubscriptionOver(op), out, now)

    def changed(self, changes: Grouped, out: Output, now: float) -> None:
        """Examine entries again after decisions have settled or cuts became known."""
        if self._unacknowledged and not OWED_LESS.isdisjoint(changes):
            self.look_again()
        if (self.ending or self._unacknowledged) and not MAY_GO.isdisjoint(changes):
            some: dict[OpId, None] = {}
            for kind in (SubscriptionSettled, SubscriptionEnding, SwitchKnown):
                for each in changes.get(kind, ()):
                    some[each.op] = None
            if self._unacknowledged:
                for op in some:
                    if op in self._unacknowledged.get(op.client, ()):
                        self.look_again(op.client)
            if self.ending:
                self.let_pass(out, now, some)
        if self.retiring:
            self.let_go(out, now)

    def acknowledged(self, client: str, out: Output, now: float) -> None:
        """A client has acknowledged more than before."""
        some = self._unacknowledged.pop(client, None)
        if some:
            self.ending |= some
            self.let_pass(out, now, some)

    def look_again(self, client: str | None = None) -> None:
        """The events that this client (None: any) was given or must acknowledge have changed."""
        for name in [client] if client is not None else list(self._unacknowledged):
            self.ending |= self._unacknowledged.pop(name, {})

    def is_over(self, op: OpId) -> None:
        self.ending.pop(op, None)
        self._unacknowledged.get(op.client, {}).pop(op, None)

    # ── retired advertisements ───────────────────────────────────────────────────────────

    def retire(self, ops: list[OpId], out: Output, now: float) -> None:
        """Keep these advertisements until everything published under them has arrived."""
        for op in ops:
            self.retiring[op] = self.last_of(op.client, op.epoch)
        if ops:
            self._ask_for_acks(out, now)

    def last_of(self, client: str, epoch: str) -> int:
        """The tick of the last publication of a session; an upper bound after a restart."""
        known = self.last_ticks.get((client, epoch))
        durable = self._shared.durable
        last = durable.delivery.lost_with(epoch) if known is None else known
        return max(last, durable.transactions.cutter.state.published.get(client, 0))

    def published(self, ticks: list[int], out: Output, now: float) -> None:
        self.let_go(out, now)
        # Events that were on their way into the log can be acknowledged only now.
        if ticks and any(ticks[0] <= tick <= ticks[-1] for tick in self.retiring.values()):
            self._ask_for_acks(out, now)

    def published_in(self, block: Block | StagedBlock) -> None:
        """Retired advertisements also wait for the events of this block."""
        if isinstance(block, StagedBlock):
            last = {block.client: block.last_tick}
        else:
            last = {event.client: tick for tick, event in enumerate(block.events, block.tick + 1)}
        for op in self.retiring:
            if op.client in last:
                self.retiring[op] = last[op.client]

    def _ask_for_acks(self, out: Output, now: float) -> None:
        self.let_go(out, now)
        if self.retiring:
            self._expect(out, now)

    def let_go(self, out: Output, now: float) -> None:
        upto = self._streams.done_with()
        durable = self._shared.durable
        staged = durable.transactions.staging() | durable.sinks.publishing()
        for op, tick in list(self.retiring.items()):
            if op.client in staged:
                continue  # a transaction has yet to publish under it
            if tick <= upto and self.retiring.pop(op, None) is not None:
                # 0, the end of an empty log, would say that a broker on the way has lost it.
                over = AdvertisementOver(op, max(self._streams.last_tick, 1))
                self._shared.journal(over, out, now)
                self.forget((op.client, op.epoch), out)

    def forget(self, session: tuple[str, str], out: Output) -> None:
        """Forget a session that is over, unless a retired advertisement needs its last tick."""
        durable = self._shared.durable
        if durable.sessions.current(*session) is not None:
            return
        retired = ((op.client, op.epoch) for op in durable.routing.state.retired)
        if session in self.last_ticks and session not in retired:
            del self.last_ticks[session]
            out.forgotten.append(session)
