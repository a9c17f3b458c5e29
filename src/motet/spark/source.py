"""`format("motet")`: which reader for which read, which writer for which write."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from motet.errors import MisuseError
from motet.spark.batch import BatchReader
from motet.spark.brokers import Brokers
from motet.spark.columns import Columns, check_kinds, check_schema, schema_of
from motet.spark.options import Options, check_for_stream, options_in
from motet.spark.pushing import PushingReader
from motet.spark.sink import BatchWriter, StreamWriter
from motet.spark.sink_options import sink_options_in
from motet.spark.stream import StreamReader


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
        kind = PushingReader if options.pushdown else BatchReader
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
                "what was published stays, and cannot be overwritten: of Spark's modes (append, "
                'overwrite, error, ignore) a sink has one; write with .mode("append"), and with '
                '.option("key", …) if the same frame may be written again'
            )
        return BatchWriter(sink_options_in(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        del overwrite  # in complete mode, each batch has all rows
        return StreamWriter(sink_options_in(self.options), schema)
