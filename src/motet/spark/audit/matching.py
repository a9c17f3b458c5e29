"""Which filters match which events: Motet's own index, over batches of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from motet.matching import FilterIndex, create_index
from motet.model import as_filter, decode_attributes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REMEMBERED = 1 << 16
"""Bodies whose filters a task remembers: many events have the same attributes."""


def with_filters(frame: DataFrame, filters: dict[str, int]) -> DataFrame:
    """The numbers of all filters that match each row's `body`, in its place."""
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

    kept = [field for field in frame.schema.fields if field.name != "body"]
    schema = StructType([*kept, StructField("filters", ArrayType(IntegerType()))])
    return frame.mapInArrow(_matching(tuple(filters)), schema)


def _matching(texts: tuple[str, ...]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def match(batches: Iterator[Any]) -> Iterator[Any]:
        index = _index(texts)
        known: dict[bytes | None, list[int]] = {None: []}
        for batch in batches:
            at = batch.schema.get_field_index("body")
            found: list[list[int]] = []
            for body in batch.column(at).to_pylist():
                numbers = known.get(body)
                if numbers is None:
                    numbers = index.match(decode_attributes(body))
                    if len(known) < REMEMBERED:
                        known[body] = numbers
                found.append(numbers)
            names = [name for name in batch.schema.names if name != "body"]
            columns = [batch.column(name) for name in names]
            column = pa.array(found, pa.list_(pa.int32()))
            yield pa.RecordBatch.from_arrays([*columns, column], [*names, "filters"])

    return match


@lru_cache(maxsize=4)
def _index(texts: tuple[str, ...]) -> FilterIndex:
    """Filters are numbered in their order."""
    index = create_index()
    for number, text in enumerate(texts):
        index.add(number, as_filter(text), 0)
    return index
