"""`format("motet")`: which reader for which read."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from motet.spark.batch import BatchReader
from motet.spark.brokers import Brokers
from motet.spark.columns import Columns, check_kinds, schema_of
from motet.spark.options import check_for_stream, options_in
from motet.spark.pushing import PushingReader
from motet.spark.stream import StreamReader


class MotetSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = options_in(options)

    @classmethod
    def name(cls) -> str:
        return "motet"

    def schema(self) -> StructType:
        brokers = Brokers(self._options.brokers, self._options.timeout_s)
        try:
            return schema_of(self._options.columns, brokers)
        finally:
            brokers.close()

    def reader(self, schema: StructType) -> BatchReader:
        kind = PushingReader if self._options.pushdown else BatchReader
        return kind(self._options, Columns(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        check_for_stream(self._options)
        check_kinds(self._options.columns)
        return StreamReader(self._options, Columns(schema))
