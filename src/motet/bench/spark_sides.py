"""What Spark itself costs: a source that makes rows out of nothing, and a sink that drops them.

Both speak Arrow, as ours do, and run in Spark's Python workers, as ours do.
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
"""Of a batch; then they come again. Making them would cost more than sending them."""
SCHEMA: Final = (
    "tick bigint, time timestamp, publisher string, sequence bigint, sensor string, step bigint, "
    "level double, rare bigint, payload binary"
)
"""The columns that are read: those of the stream that tell where and when, every attribute, and
the payload."""


class Rows(InputPartition):
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
        return [Rows(upto - since) for since, upto in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Rows)
        batch = self._batch()
        for at in range(0, partition.rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, partition.rows - at))

    def _batch(self) -> Any:
        """Events of the backlog, with what the broker adds to each."""
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        from motet.bench.pubend import PUBLISHERS, sample_runs
        from motet.model import decode_body

        bodies = islice((body for run in sample_runs() for body in run), DISTINCT_ROWS)
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
    """Rows like those of the backlog, made where they are wanted."""

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
        """Nothing is there to commit."""


class NoopStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is there to commit."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nor to drop."""


class NoopSink(DataSource):
    """Takes everything and does nothing."""

    @classmethod
    def name(cls) -> str:
        return "motet-noop"

    def writer(self, schema: StructType, overwrite: bool) -> NoopWriter:
        del schema, overwrite
        return NoopWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoopStreamWriter:
        del schema, overwrite
        return NoopStreamWriter()
