"""Which filters match which events: Motet's own index, over batches of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from motet.matching import FilterIndex, create_index
from motet.model import as_filter, decode_attributes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REMEMBERED = 1 << 16
"""Bodies whose filters a task remembers: many events have the same attributes."""


def with_filters(frame: DataFrame, filters: dict[str, int]) -> DataFrame:
    """The numbers of all filters that match each row's `body`, in its place. No other column goes
    to Python: lists above all take Spark long to send."""
    from pyspark.sql import functions as F

    match = F.arrow_udf(_matching(tuple(filters)), "array<int>")
    return frame.withColumn("filters", match("body")).drop("body")


def _matching(texts: tuple[str, ...]) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    def match(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        index = _index(texts)
        known: dict[bytes | None, list[int]] = {None: []}
        for batch in batches:
            found: list[list[int]] = []
            for body in batch.to_pylist():
                numbers = known.get(body)
                if numbers is None:
                    numbers = index.match(decode_attributes(body))
                    if len(known) < REMEMBERED:
                        known[body] = numbers
                found.append(numbers)
            yield pa.array(found, pa.list_(pa.int32()))

    # Spark looks at what stands here, and does not understand it as text.
    match.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    return match


@lru_cache(maxsize=4)
def _index(texts: tuple[str, ...]) -> FilterIndex:
    """Filters are numbered in their order."""
    index = create_index()
    for number, text in enumerate(texts):
        index.add(number, as_filter(text), 0)
    return index
