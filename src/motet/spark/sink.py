"""`write.format("motet")` and `writeStream.format("motet")`: each batch is one transaction.

Tasks stage their rows at the sink's home broker and report the names to the driver, which commits
these names (decision 29). Tasks send everything a commit needs in their messages, because Spark
rebuilds a stream's writer wherever it needs one. The writer of a batch is built once and copied,
with the name of the write in it.

Each column of a row is an attribute of that name; null means absent. `payload`, if binary, is the
payload; `attributes`, if a map, has further attributes, which columns override.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from motet.client.logs.stage import (
    MOST_BYTES,
    MOST_ROWS,
    Attempt,
    StagedPart,
    SyncStage,
    commit_sync,
    drop_sync,
)
from motet.errors import EventError, MisuseError, MotetError
from motet.model import EVERYTHING, Filter
from motet.model.limits import MAX_CLIENT_ID_CHARS
from motet.model.values import check_name
from motet.spark.options import TIMEOUT_S, GivenOptions

# ── options ──────────────────────────────────────────────────────────────────────────────

NAMES: Final = ("brokers", "sink", "advertise", "onNewQuery", "key", "timeout")
OF_SPARK: Final = ("checkpointLocation", "path", "queryName")
"""Spark passes these, too."""


class SinkOptions(Struct, frozen=True):
    home: str
    sink: str
    advertised: Filter
    takeover: bool
    key: str
    timeout_s: float


def sink_options_in(written: Mapping[str, str]) -> SinkOptions:
    options = GivenOptions(written, NAMES, OF_SPARK)
    homes = options.listed("brokers")
    if len(homes) != 1:
        raise MisuseError(
            'a sink needs exactly one broker: write .option("brokers", "motet://host:port")'
        )
    sink = options.text("sink")
    if not sink:
        raise MisuseError('the option sink is missing: write .option("sink", "a unique name")')
    if len(sink) > MAX_CLIENT_ID_CHARS or not sink.isprintable():
        raise MisuseError(
            f"the name of a sink must have 1 to {MAX_CLIENT_ID_CHARS} printable characters"
        )
    advertise = options.text("advertise")
    return SinkOptions(
        home=homes[0],
        sink=sink,
        advertised=Filter.parse(advertise) if advertise else EVERYTHING,
        takeover=options.chosen("onNewQuery", "takeover", "fail"),
        key=options.text("key"),
        timeout_s=options.seconds("timeout", TIMEOUT_S),
    )


# ── rows as events ───────────────────────────────────────────────────────────────────────

VALUES: Final = (
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    StringType,
    TimestampType,
)
PAYLOAD: Final = "payload"
ATTRIBUTES: Final = "attributes"

_encode: Final = msgspec.msgpack.Encoder().encode


def check_columns(schema: StructType) -> None:
    """Raises `MisuseError` naming the first column that cannot be written."""
    if not schema.fields:
        raise MisuseError("a frame without columns cannot be written as events")
    for field in schema.fields:
        name, type_ = field.name, field.dataType
        if name == PAYLOAD:
            if not isinstance(type_, BinaryType):
                raise _misfit(name, type_, "the payload is binary")
        elif name == ATTRIBUTES and isinstance(type_, MapType):
            if not isinstance(type_.keyType, StringType) or not isinstance(type_.valueType, VALUES):
                raise _misfit(name, type_, f"it maps string to one of {_values()}")
        elif not isinstance(type_, VALUES):
            raise _misfit(name, type_, f"attributes are {_values()}")
        else:
            try:
                check_name(name)
            except EventError as problem:
                raise MisuseError(f"the column {name!r} cannot be written: {problem}") from None
    if len({field.name for field in schema.fields}) < len(schema.fields):
        raise MisuseError("two columns have the same name; rename or drop one")


def _values() -> str:
    return ", ".join(type_().simpleString() for type_ in VALUES)


def _misfit(name: str, type_: DataType, known: str) -> MisuseError:
    return MisuseError(
        f"the column {name!r} is {type_.simpleString()} and cannot be written: {known}; cast it, "
        "or drop it"
    )


def bodies_of(batch: Any) -> Iterator[bytes]:
    """The events of an Arrow batch, encoded."""
    names: list[str] = []
    columns: list[list[Any]] = []
    payloads: list[bytes] | None = None
    maps: list[Any] | None = None
    gaps = False
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.to_pylist()
        if name == PAYLOAD:
            payloads = [each or b"" for each in values]
        elif name == ATTRIBUTES and str(column.type).startswith("map"):
            maps = values
        else:
            names.append(name)
            columns.append(values)
            gaps = gaps or column.null_count > 0
    rows: Iterable[dict[str, Any]]
    if not columns:
        rows = ({} for _ in range(batch.num_rows))
    elif gaps:
        rows = (
            {name: value for name, value in zip(names, row, strict=True) if value is not None}
            for row in zip(*columns, strict=True)
        )
    else:
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    if maps is not None:
        rows = (_merged(given, row) for given, row in zip(maps, rows, strict=True))
    if payloads is None:
        return (_encode((row, b"")) for row in rows)
    return (_encode(pair) for pair in zip(rows, payloads, strict=True))


def _merged(given: Any, row: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in given or () if value is not None}
    return found | row


def pieces_of(batches: Iterable[Any]) -> Iterator[list[bytes]]:
    """All events, in pieces small enough for a broker."""
    piece: list[bytes] = []
    size = 0
    for batch in batches:
        for body in bodies_of(batch):
            if len(piece) == MOST_ROWS or (piece and size + len(body) > MOST_BYTES):
                yield piece
                piece, size = [], 0
            piece.append(body)
            size += len(body)
    if piece:
        yield piece


# ── writers ──────────────────────────────────────────────────────────────────────────────

log = logging.getLogger("motet.spark")

QUERY: Final = "sql.streaming.queryId"
EPOCH: Final = "streaming.sql.batchId"
"""Where Spark passes query and batch to tasks of a stream. Undocumented, so a test checks it."""


class Staged(WriterCommitMessage):
    """What one task staged."""

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
        # Without a key from the user, the name of the write makes the commit idempotent, so that it
        # can be repeated if the answer is lost.
        commit_staged(self._options, self._job, None, staged, self._options.key or self._job)
        self.abort(messages)  # drops what was staged in vain if the key was already committed

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        del messages
        drop_staged(self._options, self._job, None)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.key:
            raise MisuseError(
                "key applies only to batch writes: omit it, a stream has its checkpoint"
            )
        check_columns(schema)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        job, epoch = whose_batch()
        return stage(self._options, job, epoch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [each for each in messages if isinstance(each, Staged)]
        if staged:  # all belong to one query
            commit_staged(self._options, staged[0].job, batchId, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """By query and batch: the names that failed tasks staged under are unknown."""
        for job in {each.job for each in messages if isinstance(each, Staged)}:
            drop_staged(self._options, job, batchId)


# ── staging and committing ───────────────────────────────────────────────────────────────


def whose_batch() -> tuple[str, int]:
    """The query and the batch that this task works for."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY) if context is not None else None
    epoch = context.getLocalProperty(EPOCH) if context is not None else None
    if not query or epoch is None:
        raise MotetError(
            f"this release of Spark does not tell tasks their query and batch ({QUERY}, {EPOCH}); "
            "use a release that Motet supports"
        )
    return query, int(epoch)


def stage(options: SinkOptions, job: str, epoch: int | None, batches: Iterator[Any]) -> Staged:
    """Stage all rows of a task; they are durable at the sink's home when this returns."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    number = context.taskAttemptId() if context is not None else 0
    # The next driver reuses attempt numbers.
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
    """Publish everything staged. Idempotent: repeated calls publish it once."""
    return commit_sync(
        *(options.home, options.sink, job, epoch, [each.part for each in staged]),
        advertised=options.advertised,
        key=key,
        takeover=options.takeover,
        timeout=options.timeout_s,
    )


def drop_staged(options: SinkOptions, job: str, epoch: int | None) -> None:
    """Best effort: the broker removes leftovers itself."""
    try:
        drop_sync(options.home, options.sink, job, epoch, timeout=min(options.timeout_s, 5.0))
    except MotetError as problem:
        log.info("staged rows of %s stay until the broker removes them: %s", options.sink, problem)
