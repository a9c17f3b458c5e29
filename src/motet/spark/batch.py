"""Batch reads: from one place to another, both fixed when the read is planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from motet.model import Filter
from motet.spark.brokers import Brokers
from motet.spark.columns import Columns
from motet.spark.course import Course
from motet.spark.options import Options
from motet.spark.positions import EARLIEST
from motet.spark.reading import read_slice
from motet.spark.slices import Slice, slices_between


class BatchReader(DataSourceReader):
    """It must not have `pushFilters`: with pushdown off, as it is unless it was asked for, Spark
    refuses readers that have."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self.filter: Filter | None = options.filter
        """What brokers are asked for."""

    def partitions(self) -> list[InputPartition]:
        options = self._options
        brokers = Brokers(options.brokers, options.timeout_s)
        try:
            course = Course(brokers, options)
            start = course.at(options.starting or EARLIEST)
            end = course.at(options.ending)
            return [*slices_between(brokers, start, end, options, course.outlines)]
        finally:
            brokers.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Slice):
            return iter(())  # Spark's own, where there is nothing to read
        return read_slice(partition, self._options, self._columns, self.filter)
