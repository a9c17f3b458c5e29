"""`format("motet")`: selects the reader or writer.

A batch read has a fixed start and end, chosen when it is planned. A streaming read advances from
position to position, none of which splits a transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import isnan
from typing import Any, Final

from pyspark.sql import datasource as pushed
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from motet.client.logs.query import ATTRIBUTE
from motet.errors import FilterError, MisuseError, MotetError
from motet.model import Filter, attr
from motet.model.ids import NO_LIMIT
from motet.spark.columns import Columns, check_kinds, check_schema, schema_of
from motet.spark.options import (
    EARLIEST,
    LATEST,
    Options,
    Vector,
    check_for_stream,
    mark_of,
    offset_at,
    options_in,
    vector_at,
)
from motet.spark.planner import Brokers, Planner
from motet.spark.sink import BatchWriter, StreamWriter, sink_options_in
from motet.spark.slices import Slice, read_slice, slices_between

# ── ranges without events ────────────────────────────────────────────────────────────────

MOVE_ON_S: Final = 600.0
LOOK_S: Final = 1.0
"""If checking a range takes longer than this, it is left to tasks."""


class QuietRanges:
    """Ranges whose events all fail the stream's filter.

    A batch of only such events would be empty. If a query writes into a log that it reads, each
    batch would even cause the next one, forever. So a stream stays at its position until an event
    matches. Every `MOVE_ON_S` it advances anyway: otherwise it would scan the same events again
    after a restart, and hold back retention.
    """

    def __init__(self, brokers: Brokers, filter: Filter) -> None:
        self._brokers = brokers
        self._filter = filter
        self._start: Vector | None = None
        self._passed: Vector = {}
        """No event between the start and here matches."""
        self._since_s = 0.0

    def is_wanted(self, start: Vector, end: Vector) -> bool:
        """Whether a batch from start to end is worthwhile."""
        now_s = time.monotonic()
        if start != self._start:
            self._start, self._passed, self._since_s = dict(start), dict(start), now_s
        if end.keys() != start.keys() or now_s - self._since_s > MOVE_ON_S:
            return True
        for pubend, tick in end.items():
            since = self._passed[pubend]
            if since < tick and not self._brokers.is_quiet(
                pubend, since, tick - 1, self._filter, LOOK_S
            ):
                return True
            self._passed[pubend] = max(since, tick)
        return False


# ── batch reads ──────────────────────────────────────────────────────────────────────────


class BatchReader(DataSourceReader):
    """Must not have `pushFilters`: Spark rejects readers that have it while pushdown is off, its
    default."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self.filter: Filter | None = options.filter
        """The filter that brokers apply."""

    def partitions(self) -> list[InputPartition]:
        options = self._options
        brokers = Brokers(options.brokers, options.timeout_s)
        try:
            planner = Planner(brokers, options)
            start = planner.at(options.starting or EARLIEST)
            end = planner.at(options.ending)
            return [*slices_between(brokers, start, end, options, planner.outlines)]
        finally:
            brokers.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Slice):
            return iter(())  # Spark's own placeholder when there is nothing to read
        return read_slice(partition, self._options, self._columns, self.filter)


# ── Spark's conditions, applied at the brokers ───────────────────────────────────────────

FITTING: Final = {"bool": bool, "int": int, "float": (int, float), "text": str}
"""By kind of column, the types of values for which brokers compare as Spark does."""
EXACT: Final = 2**53
"""From here on, a float column rounds some ints that brokers compare exactly."""


class PushdownReader(BatchReader):
    """Sends conditions to the brokers. Spark applies them again afterwards, so a broker may return
    more than is wanted, but never less."""

    def pushFilters(self, filters: list[pushed.Filter]) -> Iterable[pushed.Filter]:
        for each in filters:
            found = as_filter(each, self._columns)
            if found is not None:
                with suppress(FilterError):  # too complex together: Spark does the rest
                    self.filter = found if self.filter is None else self.filter & found
        return filters


def as_filter(condition: pushed.Filter, columns: Columns) -> Filter | None:
    """The condition as a filter for brokers; None if filters cannot express it."""
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    kind = columns.kinds.get(path[0]) if len(path) == 1 else None
    if kind not in FITTING:
        return None
    name = attr(path[0].removeprefix(ATTRIBUTE))
    if isinstance(condition, pushed.IsNotNull):
        return name.is_not_null()
    value: Any = getattr(condition, "value", None)
    values = value if isinstance(value, list) else [value]
    if not values or not all(_fits(each, kind) for each in values):
        return None
    try:
        return _compared(condition, name, value, kind)
    except FilterError:
        return None


def _compared(condition: pushed.Filter, name: Any, value: Any, kind: str) -> Filter | None:
    match condition:
        case pushed.EqualTo() | pushed.EqualNullSafe():
            found = name == value
        case pushed.In():
            found = name.isin(value)
        case pushed.LessThan():
            found = name < value
        case pushed.LessThanOrEqual():
            found = name <= value
        case pushed.GreaterThan() if kind != "float":  # Spark sorts NaN above everything
            found = name > value
        case pushed.GreaterThanOrEqual() if kind != "float":
            found = name >= value
        case pushed.StringStartsWith():
            found = name.startswith(value)
        case _:
            return None
    assert isinstance(found, Filter)
    return found


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool) != (kind == "bool"):
        return False
    if not isinstance(value, FITTING[kind]):  # type: ignore[arg-type]
        return False
    return kind != "float" or (not isnan(value) and abs(value) < EXACT)


# ── streaming reads ──────────────────────────────────────────────────────────────────────

log = logging.getLogger("motet.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver asks one copy for offsets; the copies in tasks only read."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._mark = mark_of(options.filter)
        self._target: Vector = {}
        """Where the query ends, with the trigger `availableNow`."""
        self._open: tuple[Brokers, Planner, QuietRanges | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    @property
    def _brokers(self) -> Brokers:
        return self._opened()[0]

    @property
    def _planner(self) -> Planner:
        return self._opened()[1]

    def _opened(self) -> tuple[Brokers, Planner, QuietRanges | None]:
        if self._open is None:
            brokers = Brokers(self._options.brokers, self._options.timeout_s)
            wanted = self._options.filter
            quiet = QuietRanges(brokers, wanted) if wanted is not None else None
            every_block = self._columns.tells_transactions
            planner = Planner(brokers, self._options, every_block=every_block)
            self._open = brokers, planner, quiet
        return self._open

    # ── on the driver ────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> dict[str, Any]:
        vector = self._planner.at(self._options.starting or LATEST)
        return offset_at(vector, self._mark)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        events, size = self._limits(limit)
        before = vector_at(start, self._mark)
        _, planner, quiet = self._opened()
        vector = planner.onward(before, events, size, self._target)
        # Beyond a limit there may be matching events. A query with `availableNow` ends, so its
        # cursor should advance to where it has read.
        is_all = not self._target and vector == planner.seen
        if quiet is not None and is_all and not quiet.is_wanted(before, vector):
            return offset_at(before, self._mark)
        return offset_at(vector, self._mark)

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return NO_LIMIT, NO_LIMIT
        events = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_events
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes
        return events, size

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_events)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        seen = self._planner.seen
        return offset_at(seen, self._mark) if seen else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = self._planner.planned(vector_at(start, self._mark), vector_at(end, self._mark))
        return slices_between(
            *(self._brokers, planned.first, planned.end, self._options, planned.outlines),
            every_block=self._columns.tells_transactions,
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Sets the cursor, which serves retention and monitoring; no row depends on it."""
        if not self._options.cursor:
            return
        for pubend, tick in vector_at(end, self._mark).items():
            try:
                self._brokers.set_cursor(self._options.cursor, pubend, tick - 1)
            except MotetError as problem:
                log.warning("could not set the cursor %s: %s", self._options.cursor, problem)

    def stop(self) -> None:
        if self._open is not None:
            self._open[0].close()
            self._open = None

    # ── in tasks ─────────────────────────────────────────────────────────────────────────

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Slice)
        return read_slice(partition, self._options, self._columns, self._options.filter)


# ── the format ───────────────────────────────────────────────────────────────────────────


class MotetSource(DataSource):
    @property
    def _read(self) -> Options:
        return options_in(self.options)

    @classmethod
    def name(cls) -> str:
        return "motet"

    def schema(self) -> StructType:
        options = self._read
        brokers = Brokers(options.brokers, options.timeout_s)
        try:
            return schema_of(options.columns, brokers)
        finally:
            brokers.close()

    def reader(self, schema: StructType) -> BatchReader:
        options = self._read
        check_schema(schema, options.columns)
        kind = PushdownReader if options.pushdown else BatchReader
        return kind(options, Columns(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        options = self._read
        check_for_stream(options)
        check_kinds(options.columns)
        check_schema(schema, options.columns)
        return StreamReader(options, Columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise MisuseError(
                "published events cannot be overwritten, so of Spark's modes (append, overwrite, "
                'error, ignore) a sink supports only append; write with .mode("append"), and with '
                '.option("key", …) if the same frame may be written again'
            )
        return BatchWriter(sink_options_in(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        del overwrite  # in complete mode, each batch has all rows
        return StreamWriter(sink_options_in(self.options), schema)
