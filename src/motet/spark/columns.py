"""Columns of a stream: as text, as Spark's schema, and as Arrow.

Every stream has the columns of `STREAM`; any other name is an attribute. `level:float` declares the
type of its values; a column has one type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

import msgspec
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from motet.client.logs.query import ATTRIBUTE
from motet.errors import MisuseError
from motet.model import attr
from motet.spark.planner import Brokers

STREAM: Final[Mapping[str, DataType]] = {
    "pubend": StringType(),
    "tick": LongType(),
    "time": TimestampType(),
    "publisher": StringType(),
    "epoch": StringType(),
    "sequence": LongType(),
    "transaction": StringType(),
    "transaction_number": LongType(),
    "attributes": MapType(StringType(), StringType()),
    "packed": BinaryType(),
    "payload": BinaryType(),
}
"""Columns that every event has."""
ON_DEMAND: Final = ("epoch", "packed")
DEFAULT: Final = tuple(name for name in STREAM if name not in ON_DEMAND)
PACKED: Final = "packed"
"""The attributes as brokers send them: in msgpack, which preserves their types."""
TRANSACTION: Final = ("transaction", "transaction_number")
"""Brokers do not send these: the transaction of an event follows from its tick."""
KINDS: Final[Mapping[str, DataType]] = {
    "bool": BooleanType(),
    "int": LongType(),
    "float": DoubleType(),
    "text": StringType(),
    "time": TimestampType(),
}
NUMBERS: Final = {"int", "float"}

_decode: Final = msgspec.msgpack.Decoder(list[dict[str, Any]]).decode


# ── as text ──────────────────────────────────────────────────────────────────────────────


def schema_of(columns: Sequence[str], brokers: Brokers) -> StructType:
    """The schema of these columns. Types that are not given are looked up at the brokers."""
    pairs = [_split(each) for each in columns] if columns else [(name, "") for name in DEFAULT]
    unknown = [name for name, kind in pairs if name not in STREAM and not kind]
    found = _found_kinds(unknown, brokers) if unknown else {}
    fields = [
        StructField(name, STREAM[name] if name in STREAM else KINDS[kind or found[name]])
        for name, kind in pairs
    ]
    return StructType(fields)


def check_kinds(columns: Sequence[str]) -> None:
    """Reject untyped columns: types found in the log might differ after a restart."""
    for name, kind in map(_split, columns):
        if name not in STREAM and not kind:
            raise MisuseError(
                f"column {name} has no type, and a stream needs one: write {name}:int, or another "
                f"of {', '.join(KINDS)}"
            )


def check_schema(schema: StructType, columns: Sequence[str]) -> None:
    """A schema of the user replaces `columns`; if both are given, they must agree."""
    if not columns:
        return
    asked = [_split(each) for each in columns]
    given = [(each.name, each.dataType) for each in schema.fields]
    if [name for name, _ in asked] == [name for name, _ in given] and all(
        not kind or KINDS[kind] == type_ for (_, kind), (_, type_) in zip(asked, given, strict=True)
    ):
        return
    there = ", ".join(f"{name} {type_.simpleString()}" for name, type_ in given)
    raise MisuseError(
        f"the schema ({there}) and the option columns ({', '.join(columns)}) differ: "
        f"omit one of them"
    )


def _split(written: str) -> tuple[str, str]:
    name, colon, kind = written.partition(":")
    name, kind = name.strip(), kind.strip()
    if colon and kind not in KINDS:
        raise MisuseError(f"unknown type {kind!r} of {name}; use one of {', '.join(KINDS)}")
    if kind and name in STREAM:
        raise MisuseError(
            f"{name} is a column of the stream, whose type is fixed; write {ATTRIBUTE}{name} for "
            f"the attribute of that name"
        )
    return name, kind


def _found_kinds(names: Sequence[str], brokers: Brokers) -> dict[str, str]:
    found: dict[str, set[str]] = {name: set() for name in names}
    for pubend, account in brokers.describe().items():
        for name in names:
            has = attr(name.removeprefix(ATTRIBUTE)).is_not_null()
            batch = brokers.first_batch(account.url, pubend, filter=has, columns=[name])
            if batch is not None:
                found[name].add(_kind_of(str(batch.records.schema.field(name).type)))
    return {name: _one_kind(name, kinds) for name, kinds in found.items()}


def _kind_of(arrow_type: str) -> str:
    kinds = {"bool": "bool", "int64": "int", "double": "float", "string": "text"}
    return kinds.get(arrow_type, "time")


def _one_kind(name: str, kinds: set[str]) -> str:
    if len(kinds) > 1 and kinds != NUMBERS:
        ways = " or ".join(f"{name}:{kind}" for kind in KINDS if kind in kinds)
        raise MisuseError(f"{name} has values of several types at these brokers; write {ways}")
    return "float" if kinds == NUMBERS else next(iter(kinds), "text")


# ── as Arrow ─────────────────────────────────────────────────────────────────────────────


class Columns:
    """What a schema asks for, and how to build it from what brokers send."""

    def __init__(self, schema: StructType) -> None:
        self.schema = schema
        self.kinds: dict[str, str] = {}
        """By column, the type of an attribute."""
        for field in schema.fields:
            if field.name in STREAM:
                _check_type(field.name, field.dataType, STREAM[field.name])
            else:
                self.kinds[field.name] = _kind_in(field)
                if not field.nullable:
                    raise MisuseError(
                        f"the schema declares {field.name} as not null, but an event may lack any "
                        f"attribute: declare it nullable, and filter out events without it"
                    )
        self.names = [field.name for field in schema.fields]
        for name, count in Counter(self.names).items():
            if count > 1:
                raise MisuseError(f"the column {name} is listed {count} times; list it once")
        self.tells_transactions = any(name in TRANSACTION for name in self.names)
        asked = ("attributes" if name == PACKED else name for name in self.names)
        sent = [name for name in dict.fromkeys(asked) if name not in TRANSACTION]
        if self.tells_transactions and "tick" not in sent:
            sent.append("tick")
        self.sent = [f"{name}:{self.kinds[name]}" if name in self.kinds else name for name in sent]
        """Columns requested from brokers."""
        if not self.sent:
            self.sent = ["tick"]

    def arrow_schema(self) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.schema, timezone="UTC")

    def batch(self, records: Any, transactions: Transactions | None, schema: Any) -> Any:
        """A batch from a broker in the form that Spark expects."""
        import pyarrow

        places = None
        if transactions is not None:
            places = transactions.places(records.column("tick"))
        arrays = []
        for field in schema:
            if transactions is not None and field.name in TRANSACTION:
                array = transactions.column(field.name, places)
            else:
                array = records.column("attributes" if field.name == PACKED else field.name)
            if pyarrow.types.is_map(field.type):
                array = as_map(array, field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


class Transactions:
    """Looks up the transaction of an event by its tick."""

    def __init__(
        self, uptos: list[int], names: list[str | None], numbers: list[int | None]
    ) -> None:
        import numpy
        import pyarrow

        self._uptos = numpy.array(uptos, dtype=numpy.int64)
        # One more entry for ticks after the last step; there are none.
        self._columns = {
            "transaction": pyarrow.array([*names, None], pyarrow.string()),
            "transaction_number": pyarrow.array([*numbers, None], pyarrow.int64()),
        }

    def places(self, ticks: Any) -> Any:
        import numpy
        import pyarrow

        return pyarrow.array(numpy.searchsorted(self._uptos, ticks.to_numpy(), side="left"))

    def column(self, name: str, places: Any) -> Any:
        return self._columns[name].take(places)


def as_map(packed: Any, type_: Any) -> Any:
    """Attributes in msgpack, as maps of text to text."""
    import pyarrow

    maps = _decode(_one_array(packed))
    names = [name for each in maps for name in each]
    values = [
        value if type(value) is str else TEXTS[type(value)](value)
        for each in maps
        for value in each.values()
    ]
    return pyarrow.MapArray.from_arrays(
        pyarrow.array([*accumulate(map(len, maps), initial=0)], pyarrow.int32()),
        pyarrow.array(names, pyarrow.string()),
        pyarrow.array(values, pyarrow.string()),
        type=type_,
    )


def _one_array(packed: Any) -> bytes:
    """Concatenated msgpack maps as one msgpack array, to decode them in one call."""
    count = len(packed)
    offsets = memoryview(packed.buffers()[1]).cast("i")
    begin, end = offsets[packed.offset], offsets[packed.offset + count]
    head = b"\xdd" + count.to_bytes(4, "big")
    return head + memoryview(packed.buffers()[2])[begin:end] if count else head


def _text_of_bool(value: bool) -> str:
    return "true" if value else "false"


TEXTS: Final[Mapping[type, Callable[[Any], str]]] = {
    bool: _text_of_bool,
    int: int.__str__,
    float: float.__repr__,
    datetime: datetime.isoformat,
}
"""Conversions of values to text."""


def _check_type(name: str, given: DataType, known: DataType) -> None:
    if given != known:
        raise MisuseError(
            f"the schema declares {name} as {given.simpleString()}, but it is "
            f"{known.simpleString()}: declare it so"
        )


def _kind_in(field: StructField) -> str:
    for kind, type_ in KINDS.items():
        if field.dataType == type_:
            return kind
    there = ", ".join(type_.simpleString() for type_ in KINDS.values())
    raise MisuseError(
        f"the attribute {field.name} cannot be {field.dataType.simpleString()}: attributes are "
        f"{there}; cast it after the read"
    )
