"""Streaming reads: from place to place, each of which tears no transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from motet.errors import MotetError
from motet.model.ticks import NO_LIMIT
from motet.spark.brokers import Brokers
from motet.spark.columns import Columns
from motet.spark.course import Course
from motet.spark.offsets import Vector, mark_of, offset_at, vector_at
from motet.spark.options import Options
from motet.spark.passing import Passing
from motet.spark.positions import LATEST
from motet.spark.reading import read_slice
from motet.spark.slices import Slice, slices_between

log = logging.getLogger("motet.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One process on the driver asks it for offsets; tasks have copies, which only read."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._mark = mark_of(options.filter)
        self._target: Vector = {}
        """Where the query ends, if it is for what is available now."""
        self._open: tuple[Brokers, Course, Passing | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    @property
    def _brokers(self) -> Brokers:
        return self._opened()[0]

    @property
    def _course(self) -> Course:
        return self._opened()[1]

    def _opened(self) -> tuple[Brokers, Course, Passing | None]:
        if self._open is None:
            brokers = Brokers(self._options.brokers, self._options.timeout_s)
            wanted = self._options.filter
            passing = Passing(brokers, wanted) if wanted is not None else None
            self._open = brokers, Course(brokers, self._options), passing
        return self._open

    # ── on the driver ────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> dict[str, Any]:
        vector = self._course.at(self._options.starting or LATEST)
        return offset_at(vector, self._mark)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        events, size = self._limits(limit)
        before = vector_at(start, self._mark)
        _, course, passing = self._opened()
        vector = course.onward(before, events, size, self._target)
        # Behind a limit there may be something; and a query for what is available now ends, so that
        # its cursor should be where it has come to.
        is_all = not self._target and vector == course.seen
        if passing is not None and is_all and not passing.is_wanted(before, vector):
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
        seen = self._course.seen
        return offset_at(seen, self._mark) if seen else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._course.latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = vector_at(end, self._mark)
        first = self._course.kept_of(vector_at(start, self._mark), last)
        return slices_between(self._brokers, first, last, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """For retention and for those who look: no row depends on it."""
        if not self._options.cursor:
            return
        for pubend, tick in vector_at(end, self._mark).items():
            try:
                self._brokers.set_cursor(self._options.cursor, pubend, tick - 1)
            except MotetError as problem:
                log.warning("the cursor %s stays behind: %s", self._options.cursor, problem)

    def stop(self) -> None:
        if self._open is not None:
            self._open[0].close()
            self._open = None

    # ── in tasks ─────────────────────────────────────────────────────────────────────────

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Slice)
        return read_slice(partition, self._options, self._columns, self._options.filter)
