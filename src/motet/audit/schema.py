"""The one schema of histories: what brokers and clients did and received.

A history is a folder with a folder per table, each with Parquet files. Simulated runs, clients and
brokers write the same tables, each those that it knows about. Times are seconds, and infinity means
never. An operation is named "client/epoch/number", as `OpId` prints it; a session by client and
epoch; an event by the session that published it and its number there, and, if it is exactly once,
by its place: pubend and tick.

Tables `order_…` are of order across topics, over any event service. Streams and clients are named
as sites know them. An event is named by its topic and number.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

Columns = dict[str, str]


def _columns(text: str) -> Columns:
    """Parse columns as `name:kind`, in order; the default kind is text."""
    pairs = (word.partition(":") for word in text.split())
    return {name: kind or "text" for name, _, kind in pairs}


TABLES: Final[dict[str, Columns]] = {
    "brokers": _columns("broker is_root:bool"),
    "links": _columns("one other"),
    "amnesia": _columns("one other since:time until:time"),
    "sessions": _columns(
        "client epoch process broker total_order:bool own_cursors:bool opened_at:time "
        "ended_at:time lasting:bool version:int"
    ),
    "moved": _columns("client epoch process broker at:time"),
    "moves": _columns(
        "client epoch process number:int source to at:time answered_at:time answer answers:int "
        "broker text version:int"
    ),
    "stays": _columns("client epoch broker number:int what to is_ordered:bool at:time"),
    "lives": _columns("broker at:time"),
    "runs": _columns("client broker process what at:time"),
    "operations": _columns(
        "op client epoch process handle:int number:int kind filter target position:int "
        "requested_at:time answered_at:time answer effective_at:time ended_at:time "
        "ended_position:int doubted_position:int finished_at:time is_gone:bool is_forgotten:bool "
        "stayed:bool lasting:bool tx since:ticks version:int"
    ),
    "events": _columns(
        "client epoch number:int position:int last_position:int sent_at:time settled_at:time fate "
        "is_sure:bool tx body:bytes"
    ),
    "logged": _columns("pubend tick:int client epoch number:int tx audience:texts body:bytes"),
    "starts": _columns("op pubend first:int tick:int"),
    "ends": _columns("op pubend tick:int"),
    "deliveries": _columns(
        "process handle:int op nth:int at:time publisher number:int pubend tick:int came:bool "
        "taken:bool"
    ),
    "losses": _columns("process pubend first:int last:int withdrawn:bool"),
    "reached": _columns("process pubend tick:int"),
    "logs": _columns("pubend lost_upto:int trimmed_upto:int"),
    "cuts": _columns("pubend tick:int last:int tx number:int at:time"),
    "transactions": _columns(
        "tx kind client epoch key at:time commit_at:time answered_at:time outcome version:int"
    ),
    "deeds": _columns(
        "tx place kind client epoch number:int at:time answer op event:int body:bytes "
        "is_carried:bool is_planned:bool stays:bool"
    ),
    "before": _columns("tx first then"),
    "words": _columns("tx who at:time asked_at:time outcome number:int"),
    "hearers": _columns("tx client epoch"),
    "calls": _columns("tx op client epoch at:time subscriptions:ints"),
    "order_sites": _columns("site line:texts mode elsewhere at:time"),
    "order_topics": _columns("site topic id:int"),
    "order_forgotten": _columns("site client at:time"),
    "order_numbers": _columns(
        "site client request:int topic number:int entries:ints nth:int at:time"
    ),
    "order_streams": _columns("stream client former mode at:time ended_at:time version:int"),
    "order_cuts": _columns("stream nth:int what topic number:int at:time"),
    "order_lost": _columns("stream nth:int topic number:int at:time"),
    "order_given": _columns(
        "stream client nth:int known:int topic number:int digest:int is_late:bool at:time"
    ),
    "order_published": _columns("client nth:int topic number:int digest:int place at:time"),
    "order_receipts": _columns("client nth:int topic number:int outcome at:time"),
    "recorded": _columns("pubend tick:int"),
}
"""By table: its columns and their kinds. The first column of every table is `run`. Rows that wait
are written in the order of these tables, so all that a row of `recorded` covers is there before."""

NAMED: Final = {
    "sessions": ("client", "epoch", "process"),
    "operations": ("op", "is_forgotten"),
    "transactions": ("tx",),
    "moves": ("process", "number"),
    "order_streams": ("stream",),
}
"""Tables in which a row may be written again when more is known, and their keys. The row with the
highest version counts."""

FILLED: Final = {"time": float("inf"), "text": "", "bool": False, "int": 0}
"""Values for absent columns; other kinds are null."""

_SPARK: Final = {
    "text": "string",
    "int": "bigint",
    "time": "double",
    "bool": "boolean",
    "bytes": "binary",
    "texts": "array<string>",
    "ints": "array<bigint>",
    "ticks": "map<string,bigint>",
}


@cache
def arrow_schema(table: str) -> Any:
    import pyarrow as pa  # slow to import, and most processes write no history

    kinds = {
        "text": pa.string(),
        "int": pa.int64(),
        "time": pa.float64(),
        "bool": pa.bool_(),
        "bytes": pa.binary(),
        "texts": pa.list_(pa.string()),
        "ints": pa.list_(pa.int64()),
        "ticks": pa.map_(pa.string(), pa.int64()),
    }
    columns = {"run": "text", **TABLES[table]}
    return pa.schema([pa.field(name, kinds[kind]) for name, kind in columns.items()])


def spark_type(kind: str) -> str:
    return _SPARK[kind]


def spark_schema(table: str) -> str:
    """The schema in Spark's notation."""
    columns = {"run": "text", **TABLES[table]}
    return ", ".join(f"`{name}` {_SPARK[kind]}" for name, kind in columns.items())
