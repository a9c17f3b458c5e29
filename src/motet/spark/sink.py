"""`write.format("motet")` and `writeStream.format("motet")`: each batch is one transaction.

Tasks stage their rows at the sink's home broker and tell the driver under which names; the driver
commits these names (decision 29). What a commit must know travels in the messages of the tasks:
Spark builds a writer of a stream anew wherever it needs one. That of a batch is built once, and
copied to wherever it is needed, with the name of the write in it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from motet.client.sinking import Attempt, StagedPart
from motet.client.sync_sinking import SyncStage, commit_sync, drop_sync
from motet.errors import MisuseError, MotetError
from motet.spark.rows import check_columns, pieces_of
from motet.spark.sink_options import SinkOptions

log = logging.getLogger("motet.spark")

QUERY: Final = "sql.streaming.queryId"
EPOCH: Final = "streaming.sql.batchId"
"""Where Spark tells tasks of a stream what they work for. Undocumented: a test looks."""


class Staged(WriterCommitMessage):
    """What a task has staged."""

    def __init__(self, job: str, epoch: int | None, part: StagedPart) -> None:
        self.job = job
        self.epoch = epoch
        self.part = part


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._job = secrets.token_hex(16)

    def write(self, iterator: Iterator[Any]) -> Staged:
        return stage(self._options, self._job, None, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = [each for each in messages if isinstance(each, Staged)]
        # Without a key of the user, the name of the write: should the answer be lost, it is asked
        # for again.
        commit_staged(self._options, self._job, None, staged, self._options.key or self._job)
        self.abort(messages)  # what was staged in vain, because the key was known

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        del messages
        drop_staged(self._options, self._job, None)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.key:
            raise MisuseError("a key is for batch writes: a stream has its checkpoint")
        check_columns(schema)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        job, epoch = whose_batch()
        return stage(self._options, job, epoch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [each for each in messages if isinstance(each, Staged)]
        if staged:  # all are of one query
            commit_staged(self._options, staged[0].job, batchId, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """By its key: of tasks that failed nothing is known, but that they belong to it."""
        for job in {each.job for each in messages if isinstance(each, Staged)}:
            drop_staged(self._options, job, batchId)


# ── what they do ─────────────────────────────────────────────────────────────────────────


def whose_batch() -> tuple[str, int]:
    """The query that this task works for, and its batch."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY) if context is not None else None
    epoch = context.getLocalProperty(EPOCH) if context is not None else None
    if not query or epoch is None:
        raise MotetError(
            f"Spark does not tell which batch of which query this is ({QUERY}, {EPOCH}): this "
            "release of Spark is not known to Motet"
        )
    return query, int(epoch)


def stage(options: SinkOptions, job: str, epoch: int | None, batches: Iterator[Any]) -> Staged:
    """All rows of a task, durable at the sink's home when this returns."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    number = context.taskAttemptId() if context is not None else 0
    # Numbers of attempts come again with the next driver.
    name = f"{number}-{secrets.token_hex(8)}"
    attempt = Attempt(options.sink, job, epoch or 0, partition, name)
    pieces = pieces_of(batches)
    first = next(pieces, None)
    if first is None:
        return Staged(job, epoch, StagedPart(partition, name, 0, 0, 0))
    with SyncStage(options.home, attempt, options.advertised, timeout=options.timeout_s) as staging:
        staging.add(first)
        for piece in pieces:
            staging.add(piece)
        return Staged(job, epoch, staging.seal())


def commit_staged(
    options: SinkOptions, job: str, epoch: int | None, staged: Sequence[Staged], key: str = ""
) -> str:
    """All of it is published when this returns, once however often it is called."""
    return commit_sync(
        *(options.home, options.sink, job, epoch, [each.part for each in staged]),
        advertised=options.advertised,
        key=key,
        takeover=options.takeover,
        timeout=options.timeout_s,
    )


def drop_staged(options: SinkOptions, job: str, epoch: int | None) -> None:
    """As far as that can be done now: what is left goes by itself."""
    try:
        drop_sync(options.home, options.sink, job, epoch, timeout=min(options.timeout_s, 5.0))
    except MotetError as problem:
        log.info("what was staged for %s stays for a while: %s", options.sink, problem)
