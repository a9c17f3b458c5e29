"""The cost of Spark itself: a source that generates rows, and a sink that drops them.

Like Motet's, both use Arrow and run in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

BATCH_ROWS: Final = 10_000
DISTINCT_ROWS: Final = 1_000
"""Per batch, then repeated. Making them would cost more than sending them."""
SCHEMA: Final = (
    "tick bigint, time timestamp, publisher string, sequence bigint, sensor string, step bigint, "
    "level double, rare bigint, payload binary"
)
"""The columns that are read: those that say where and when, every attribute, and the payload."""


class RowCount(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class GeneratingReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._rows = int(options["rows"])
        self._parts = int(options["parts"])
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        bounds = [self._rows * part // self._parts for part in range(self._parts + 1)]
        return [RowCount(upto - since) for since, upto in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RowCount)
        batch = self._batch()
        for at in range(0, partition.rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, partition.rows - at))

    def _batch(self) -> Any:
        """Events of the backlog, with what the broker adds to each."""
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        from motet.model import decode_body
        from motet_labs.bench.workload import PUBLISHERS, runs

        bodies = islice((body for run in runs() for body in run), DISTINCT_ROWS)
        rows = []
        for number, body in enumerate(bodies):
            attributes, payload = decode_body(body)
            publisher = PUBLISHERS[number % len(PUBLISHERS)]
            where = {"tick": number, "time": number, "publisher": publisher, "sequence": number}
            rows.append({**where, **attributes, "payload": payload})
        schema = to_arrow_schema(self._schema, timezone="UTC")
        few = pyarrow.RecordBatch.from_pylist(rows, schema=schema)
        return pyarrow.concat_batches([few] * (BATCH_ROWS // DISTINCT_ROWS))


class GeneratingSource(DataSource):
    """Rows like those of the backlog, generated in the tasks."""

    @classmethod
    def name(cls) -> str:
        return "motet-generating"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> GeneratingReader:
        return GeneratingReader(self.options, schema)


class NoopWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """No-op."""


class NoopStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return NoopWriter.write(self, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """No-op."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """No-op."""


class NoopSink(DataSource):
    """Accepts everything and does nothing."""

    @classmethod
    def name(cls) -> str:
        return "motet-noop"

    def writer(self, schema: StructType, overwrite: bool) -> NoopWriter:
        del schema, overwrite
        return NoopWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoopStreamWriter:
        del schema, overwrite
        return NoopStreamWriter()
