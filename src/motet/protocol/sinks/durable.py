"""The durable half of sinks: a commit publishes what is staged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from motet.model import OpId
from motet.protocol.changes import BlockMade
from motet.protocol.room import Bus, DurableRoom, Handler, Objection
from motet.protocol.routing.machine import Routing
from motet.protocol.session.durable import DurableSessions, Terms
from motet.protocol.session.messages import CommitRequest, Done
from motet.protocol.sinks.state import (
    Batch,
    Sink,
    SinksImage,
    SinkState,
    StagedBlock,
)
from motet.protocol.transactions.facts import CutLogged
from motet.protocol.transactions.machine import Transactions

MOST_KEYS = 1000
"""Keys of batch writes that a sink remembers."""
MOST_FORMER = 100


class Sinks:
    """Which commits of a sink count: each epoch, and each key, once. Changed only by facts."""

    def __init__(self) -> None:
        self.state = SinkState()

    # ── queries ──────────────────────────────────────────────────────────────────────────

    def objection(self, client: str, request: CommitRequest) -> Objection | None:
        """Why a commit is refused: the sink belongs to another query."""
        sink = self.state.sinks.get(client)
        query = request.job if request.is_stream else ""
        if sink is None or not query or query == sink.query:
            return None
        if query in sink.former:
            return Objection(
                "SinkTaken",
                f"query {query} wrote into the sink {client} before query {sink.query} took it "
                "over, so it cannot continue; stop it",
            )
        if sink.query and not request.takeover:
            return Objection(
                "SinkTaken",
                f"the sink {client} belongs to query {sink.query}, whose last epoch is "
                f"{sink.epoch}. This is query {query}, probably with a new checkpoint; it would "
                "write the same rows again. Give it the old checkpoint, or another sink; or, to "
                'continue with this query instead, set option("onNewQuery", "takeover")',
            )
        return None

    def is_committed(self, client: str, request: CommitRequest) -> bool:
        sink = self.state.sinks.get(client)
        if sink is None:
            return False
        if request.tx(client) in self.state.blocks:
            return True
        if not request.is_stream:
            return bool(request.key) and request.key in _known(sink, request)
        return request.job == sink.query and (request.epoch or 0) <= sink.epoch

    def needed(self) -> set[Batch]:
        """Batches whose staged files must stay, because they are being copied."""
        return {block.batch for block in self.state.blocks.values()}

    def publishing(self) -> set[str]:
        """Clients with committed rows that are not all in the log."""
        return {block.client for block in self.state.blocks.values()}

    # ── facts ────────────────────────────────────────────────────────────────────────────

    def commit(
        self, op: OpId, request: CommitRequest, pubend: str, tick: int
    ) -> StagedBlock | None:
        """None if it was committed before, or is empty. The caller has checked `objection`."""
        client = op.client
        if self.is_committed(client, request):
            return None
        sink = self.state.sinks.setdefault(client, Sink())
        tx = request.tx(client)
        if request.is_stream:
            self._take(sink, request.job)
            sink.epoch = request.epoch or 0
        elif request.key:
            known = _known(sink, request)
            known[request.key] = tx
            if len(known) > MOST_KEYS:
                del known[next(iter(known))]
        rows = sum(part.rows for part in request.parts)
        if not rows:
            return None
        parts = tuple(sorted(request.parts, key=lambda part: (part.partition, part.name)))
        named = (tx, client, pubend, request.job, request.epoch or 0)
        block = StagedBlock(*named, tick, rows, parts)
        self.state.blocks[tx] = block
        return block

    def _take(self, sink: Sink, query: str) -> None:
        if sink.query and sink.query != query:
            sink.former = [*sink.former, sink.query][-MOST_FORMER:]
        sink.query = query

    def wait(self, op: OpId, tx: str) -> bool:
        """Whether the block is not all in the log yet; then `op` is answered when it is."""
        block = self.state.blocks.get(tx)
        if block is not None and op not in block.waiting:
            block.waiting.append(op)
        return block is not None

    def logged(self, tx: str) -> list[OpId]:
        """The log has the block. Returns the requests that wait for that."""
        block = self.state.blocks.pop(tx, None)
        return [] if block is None else block.waiting


def _known(sink: Sink, request: CommitRequest) -> dict[str, str]:
    """Where the key of a batch write is remembered; a write without a key uses its job as key."""
    return sink.jobs if request.key == request.job else sink.keys


class DurableSinks(DurableRoom):
    def __init__(
        self,
        bus: Bus,
        sinks: Sinks,
        routing: Routing,
        transactions: Transactions,
        answers: DurableSessions,
    ) -> None:
        self._bus = bus
        self._sinks = sinks
        self._routing = routing
        self._transactions = transactions
        self._answers = answers
        answers.requests[CommitRequest] = self._commit

    def facts(self) -> Mapping[type, Handler]:
        return {CutLogged: self._logged}

    def parts(self) -> Mapping[type[Struct], Iterable[Any]]:
        return {SinksImage: [SinksImage(self._sinks.state)] if self._sinks.state else []}

    def takers(self) -> Mapping[type[Struct], Handler]:
        return {SinksImage: self._take}

    def _take(self, part: SinksImage) -> None:
        self._sinks.state = part.state

    def _commit(self, op: OpId, request: CommitRequest, terms: Terms) -> None:
        """From now on what is staged will be published, even after a crash."""
        wrong = terms.refused or self._sinks.objection(op.client, request)
        if wrong is not None:
            self._answers.refuse(op, wrong)
            return
        block = self._sinks.commit(op, request, self._routing.state.hosted, terms.tick)
        if block is not None:
            self._routing.starts.advance(block.last_tick + 1)
            self._transactions.cutter.note_published(op.client, block.last_tick)
            self._bus.emit(BlockMade(block))
        tx = request.tx(op.client)
        if not self._sinks.wait(op, tx):
            self._answers.answer(op, Done(op.sequence, tx))

    def _logged(self, fact: CutLogged) -> None:
        for op in self._sinks.logged(fact.tx):
            self._answers.answer(op, Done(op.sequence, fact.tx))
