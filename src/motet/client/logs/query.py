"""The arguments of a read, checked and encoded for the broker; and its results: records or rows of
a range of a stream, or an outline of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import msgspec

from motet.client.checks import check_past
from motet.errors import FrameError, MisuseError
from motet.model import Filter, as_filter
from motet.model.ids import LAST_TICK, NO_LIMIT, TICKS_PER_S
from motet.protocol.reading.messages import (
    EVENT,
    REST,
    STREAM_COLUMNS,
    VALUE_KINDS,
    LogStep,
    Outline,
    ReadAnswer,
    Wanted,
)

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "ATTRIBUTE",
    "REST",
    "LogBatch",
    "LogOutline",
    "LogQuery",
    "LogStep",
    "OnLoss",
    "Place",
]


ATTRIBUTE: Final = "attributes."
"""Prefix of an attribute that has the name of a column of the stream."""

OnLoss = Literal["raise", "tell"]
Place = int | datetime | Mapping[str, int] | None
"""A tick; a time; the tick of each pubend; None for the first or last one there is."""


class ReadOptions(TypedDict, total=False):
    """Keywords of `read`, for all of its forms."""

    pubend: str | None
    since: Place
    upto: Place
    filter: Filter | str | None
    columns: Sequence[str] | Mapping[str, str] | None
    limit: int | None
    starts: bool
    on_loss: OnLoss


class LogQuery:
    """The arguments of a read, checked."""

    def __init__(
        self,
        *,
        pubend: str | None = None,
        since: Place = None,
        upto: Place = None,
        filter: Filter | str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        limit: int | None = None,
        starts: bool = False,
        on_loss: OnLoss = "raise",
    ) -> None:
        if on_loss not in ("raise", "tell"):
            raise MisuseError(f'on_loss is "raise" or "tell", not {on_loss!r}')
        if limit is not None and (type(limit) is not int or not 1 <= limit <= NO_LIMIT):
            raise MisuseError(f"a limit is a number of events, 1 to {NO_LIMIT}, not {limit!r}")
        for what, place in (("since", since), ("upto", upto)):
            _check_place(what, place)
        self.pubend = pubend
        self.since = since
        self.upto = upto
        self.filter = None if filter is None else as_filter(filter)
        self.wanted = wanted_columns(columns, starts)
        self.left = NO_LIMIT if limit is None else limit
        self.kinds = (EVENT, "start") if starts else (EVENT,)
        self.on_loss = on_loss
        self.named = {name for each in (since, upto) if isinstance(each, Mapping) for name in each}
        """Pubends whose ticks were given individually."""

    def check_named(self, known: Sequence[str]) -> None:
        for name in self.named:
            if name not in known:
                there = ", ".join(known)
                raise MisuseError(
                    f"there is a tick for pubend {name!r}, but the broker has {there}"
                )


def wanted_columns(
    columns: Sequence[str] | Mapping[str, str] | None, starts: bool = False
) -> tuple[Wanted, ...]:
    """Columns as the application names them, encoded for the broker."""
    if columns is None:
        names = STREAM_COLUMNS if starts else DEFAULT_COLUMNS
        return tuple(Wanted(name) for name in names)
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise MisuseError(f"columns is a list of names, not {columns!r}: write [{columns!r}]")
    if isinstance(columns, Mapping):
        pairs = list(columns.items())
    else:
        pairs = [_name_and_kind(each) for each in columns]
    if not pairs:
        raise MisuseError("`columns` is empty; omit it to get the columns of the stream")
    return tuple(_wanted(name, kind) for name, kind in pairs)


def _name_and_kind(written: Any) -> tuple[Any, str]:
    if not isinstance(written, str):
        return written, ""
    name, colon, kind = written.partition(":")
    if colon and not kind:
        raise MisuseError(f"the type is missing after the colon of {written!r}")
    return name, kind


def _wanted(name: Any, kind: Any) -> Wanted:
    if not isinstance(name, str):
        raise MisuseError(f"a column is named by text, not by {name!r}")
    if not name:
        raise MisuseError("the name of a column is empty")
    if kind and kind not in VALUE_KINDS:
        raise MisuseError(f"unknown type {kind!r} of {name}; use one of {', '.join(VALUE_KINDS)}")
    if name in STREAM_COLUMNS:
        if kind:
            raise MisuseError(
                f"{name} is a column of the stream, whose type is fixed; write {ATTRIBUTE}{name} "
                f"for the attribute of that name"
            )
        return Wanted(name)
    return Wanted(name, name.removeprefix(ATTRIBUTE), kind)


def _check_place(what: str, place: Any) -> None:
    match place:
        case None:
            return
        case datetime():
            if place.tzinfo is None:
                raise MisuseError(f"`{what}` has no time zone; write datetime(…, tzinfo=UTC)")
            if what == "since":
                check_past(place)
            return
        case bool():
            pass
        case int() if _is_tick(place):
            return
        case Mapping() if all(_is_tick(tick) for tick in place.values()):
            return
    raise MisuseError(
        f"`{what}` is a tick from 1 to {LAST_TICK}, a time, or a mapping of pubends to ticks, "
        f"not {place!r}"
    )


def _is_tick(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LAST_TICK


def tick_of(place: Place, pubend: str, otherwise: int) -> int:
    if isinstance(place, datetime):
        return max(int(place.timestamp() * TICKS_PER_S), 1)
    if isinstance(place, Mapping):
        return place.get(pubend, otherwise)
    return otherwise if place is None else place


DEFAULT_COLUMNS: Final = tuple(name for name in STREAM_COLUMNS if name != "kind")

_decode_attributes: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode


class LogBatch:
    """The stream of `pubend` from tick `since` to tick `upto`: it has everything in this range that
    the query asked for. A reader that stores `upto` can continue after it, even if the batch is
    empty.

    `records` is an Arrow record batch; `rows()` are plain dicts. Polars, DuckDB, pandas and other
    users of Arrow's interface accept the batch itself.
    """

    def __init__(self, answer: ReadAnswer, columns: tuple[Wanted, ...]) -> None:
        self.pubend = answer.pubend
        self.since = answer.since
        self.upto = answer.upto
        self.lost = answer.lost
        """The ticks are no longer kept; their events are unknown."""
        self.scanned = answer.scanned
        """Events that the broker has read."""
        self.size = answer.rows
        self.misfits: Mapping[str, int] = answer.misfits
        """By column, how many values are null because they are of another type."""
        self._columns = columns
        self._data = answer.data
        self._records: pyarrow.RecordBatch | None = None

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        """An empty batch is true, too: it carries `upto`."""
        return True

    @property
    def records(self) -> pyarrow.RecordBatch:
        """Attributes that the query did not name are in `attributes`, as msgpack."""
        if self._records is None:
            self._records = _records(self)
            self._data = b""
        return self._records

    def rows(self) -> list[dict[str, Any]]:
        """One dict per event; its `attributes` are a dict, too."""
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
    import pyarrow  # large, and needed only here

    found = {}
    if batch._data:
        try:
            with pyarrow.ipc.open_stream(batch._data) as stream:
                received = stream.read_next_batch()
        except (pyarrow.ArrowInvalid, StopIteration, OSError) as problem:
            raise FrameError(f"the broker sent an invalid Arrow stream: {problem}") from None
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
    """The Arrow type of a column."""
    time = arrow.timestamp("us", tz="UTC")
    whole, text, raw = arrow.int64(), arrow.string(), arrow.binary()
    if wanted.attribute:
        kinds = {"bool": arrow.bool_(), "int": whole, "float": arrow.float64(), "text": text}
        return kinds.get(wanted.kind, time)
    columns = {"tick": whole, "sequence": whole, "time": time, "attributes": raw, "payload": raw}
    return columns.get(wanted.name, text)


class LogOutline:
    """The stream of a pubend from tick `since` to tick `upto`, in consecutive steps. A step with a
    `tx` has the events of one transaction; other steps do not end within a transaction."""

    def __init__(self, pubend: str, every_block: bool = False) -> None:
        self.pubend = pubend
        self.every_block = every_block
        """Whether transactions of this pubend alone are separate steps, too."""
        self.since = 0
        self.upto = -1
        self.last_tick = 0
        """The last durable tick."""
        self.steps: list[LogStep] = []
        self.lost: list[tuple[int, int]] = []
        """First and last ticks of ranges that are no longer kept."""
        self.events = 0
        self.size_bytes = 0

    def take(self, answer: Outline) -> None:
        """Append the next part."""
        self.since = self.since or answer.since
        self.upto = answer.upto
        self.last_tick = answer.last_tick
        if answer.lost:
            self.lost.append((answer.since, answer.upto))
        self.steps += answer.steps
        self.events += sum(each.events for each in answer.steps)
        self.size_bytes += sum(each.size_bytes for each in answer.steps)

    def until(self, upto: int) -> LogOutline | None:
        """The part up to this tick; None if no step ends there."""
        if upto == self.upto:
            return self
        steps = [each for each in self.steps if each.upto <= upto]
        if not steps or steps[-1].upto != upto:
            return None
        part = LogOutline(self.pubend, self.every_block)
        part.since, part.upto, part.last_tick, part.steps = self.since, upto, self.last_tick, steps
        part.lost = [each for each in self.lost if each[0] <= upto]
        part.events = sum(each.events for each in steps)
        part.size_bytes = sum(each.size_bytes for each in steps)
        return part

    def __repr__(self) -> str:
        return f"<LogOutline {self.pubend} {self.since}–{self.upto}: {self.events} events>"
