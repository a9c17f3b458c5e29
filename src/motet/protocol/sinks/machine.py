"""Which commits of a sink count: each epoch, and each key, once. Changed only by facts."""

from __future__ import annotations

from motet.model import OpId
from motet.protocol.session.messages import CommitRequest
from motet.protocol.sinks.state import Batch, Sink, SinkState, StagedBlock

MOST_KEYS = 1000
"""Keys of batch writes that a sink remembers."""
MOST_FORMER = 100

Refusal = tuple[str, str]


class Sinks:
    def __init__(self) -> None:
        self.state = SinkState()

    # ── looking ──────────────────────────────────────────────────────────────────────────

    def objection(self, client: str, request: CommitRequest) -> Refusal | None:
        """Why a commit cannot be: an error, and its text."""
        sink = self.state.sinks.get(client)
        query = request.job if request.is_stream else ""
        if sink is None or not query or query == sink.query:
            return None
        if query in sink.former:
            return (
                "SinkTaken",
                f"query {query} wrote into the sink {client} before query {sink.query} took it "
                "over: it cannot go on; stop it",
            )
        if sink.query and not request.takeover:
            return (
                "SinkTaken",
                f"the sink {client} belongs to query {sink.query}, whose last epoch is "
                f"{sink.epoch}. This is query {query}: is its checkpoint a new one? What that one "
                "has written would be written again. Give it the old checkpoint, or another sink; "
                'or, if this one is to go on instead, option("onNewQuery", "takeover")',
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
        """What is staged for these must stay: it is being copied."""
        return {block.batch for block in self.state.blocks.values()}

    def publishing(self) -> set[str]:
        """Clients whose rows are committed, and not all in the log."""
        return {block.client for block in self.state.blocks.values()}

    # ── facts ────────────────────────────────────────────────────────────────────────────

    def commit(
        self, op: OpId, request: CommitRequest, pubend: str, tick: int
    ) -> StagedBlock | None:
        """None if it was committed before, or nothing is in it. There was no objection."""
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
        """Is it not all in the log yet? Then whoever asks is told when it is."""
        block = self.state.blocks.get(tx)
        if block is not None and op not in block.waiting:
            block.waiting.append(op)
        return block is not None

    def logged(self, tx: str) -> list[OpId]:
        """The log has a block: who waits for that."""
        block = self.state.blocks.pop(tx, None)
        return [] if block is None else block.waiting


def _known(sink: Sink, request: CommitRequest) -> dict[str, str]:
    """Where the key of a batch write is remembered: one without a key has its job for it."""
    return sink.jobs if request.key == request.job else sink.keys
