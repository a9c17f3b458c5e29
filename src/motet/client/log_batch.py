"""What a reader of a log gets: a piece of a stream, as an Arrow record batch or as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from motet.errors import FrameError
from motet.protocol.reading.messages import STREAM_COLUMNS, ReadAnswer, Wanted

if TYPE_CHECKING:
    import pyarrow

DEFAULT_COLUMNS: Final = tuple(name for name in STREAM_COLUMNS if name != "kind")

_decode_attributes: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode


class LogBatch:
    """The stream of `pubend` from tick `since` to tick `upto`: there is nothing else in it that was
    asked for. So whoever stores `upto` can go on behind it, even if the batch is empty.

    `records` is an Arrow record batch; `rows()` are plain dicts. Polars, DuckDB, pandas and all
    else that speaks Arrow's interface take the batch itself.
    """

    def __init__(self, answer: ReadAnswer, columns: tuple[Wanted, ...]) -> None:
        self.pubend = answer.pubend
        self.since = answer.since
        self.upto = answer.upto
        self.lost = answer.lost
        """These ticks are not kept any more; nobody knows what was in them."""
        self.scanned = answer.scanned
        """Events that the broker has looked at."""
        self.size = answer.rows
        self.misfits: Mapping[str, int] = answer.misfits
        """By column, how many values are null because they are of another kind."""
        self._columns = columns
        self._data = answer.data
        self._records: pyarrow.RecordBatch | None = None

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        """There is always something to know, also from an empty batch."""
        return True

    @property
    def records(self) -> pyarrow.RecordBatch:
        """Attributes that were not asked for by name are in `attributes`, as msgpack."""
        if self._records is None:
            self._records = _records(self)
            self._data = b""
        return self._records

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each event; `attributes` is a dict in it."""
        rows: list[dict[str, Any]] = self.records.to_pylist()
        if any(not each.attribute and each.name == "attributes" for each in self._columns):
            for row in rows:
                packed = row["attributes"]
                row["attributes"] = _decode_attributes(packed) if packed is not None else None
        return rows

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.records.__arrow_c_array__(requested_schema)

    def __repr__(self) -> str:
        what = "lost" if self.lost else f"{self.size} rows"
        return f"<LogBatch {self.pubend} {self.since}–{self.upto}: {what}>"


def _records(batch: LogBatch) -> pyarrow.RecordBatch:
    import pyarrow  # only who reads needs it: it is large

    found = {}
    if batch._data:
        try:
            with pyarrow.ipc.open_stream(batch._data) as stream:
                received = stream.read_next_batch()
        except (pyarrow.ArrowInvalid, StopIteration, OSError) as problem:
            raise FrameError(f"the broker sent what is no Arrow stream: {problem}") from None
        found = dict(zip(received.schema.names, received.columns, strict=True))
    fields, arrays = [], []
    for each in batch._columns:
        type_ = _type(pyarrow, each)
        if each.name == "pubend" and not each.attribute:
            array = pyarrow.repeat(batch.pubend, batch.size)
        else:
            array = found[each.name] if batch.size else pyarrow.nulls(0, type_)
        fields.append(pyarrow.field(each.name, type_))
        arrays.append(array if array.type == type_ else array.cast(type_))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=pyarrow.schema(fields))


def _type(arrow: Any, wanted: Wanted) -> Any:
    """The type of a column for those who use it."""
    time = arrow.timestamp("us", tz="UTC")
    if wanted.attribute:
        return {
            "bool": arrow.bool_(),
            "int": arrow.int64(),
            "float": arrow.float64(),
            "text": arrow.string(),
            "time": time,
        }[wanted.kind]
    match wanted.name:
        case "tick" | "sequence":
            return arrow.int64()
        case "time":
            return time
        case "attributes" | "payload":
            return arrow.binary()
    return arrow.string()
