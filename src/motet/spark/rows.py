"""Rows of a frame as events: which columns can be attributes, and how batches become bodies.

Each column is an attribute of its name; null is absence. `payload`, if it is binary, is the
payload; `attributes`, if it is a map, has further attributes, which columns overrule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
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

from motet.client.sinking import MOST_BYTES, MOST_ROWS
from motet.errors import EventError, MisuseError
from motet.model.values import check_name

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
    """`MisuseError` that names the column which cannot be written."""
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
    """All events, in pieces that a broker takes."""
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
