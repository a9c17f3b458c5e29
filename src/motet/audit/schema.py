"""The one schema of histories: who did what, and who received what.

A history is a folder with a folder per table, each with Parquet files. Simulated runs, clients and
brokers write the same tables; who knows nothing of one leaves it out. Times are seconds, and
infinity is never. An operation is named "client/epoch/number", as `OpId` prints it; a session by
client and epoch; an event by the session that published it and its number there, and, if it is
exactly once, by its place: pubend and tick.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

Columns = dict[str, str]

TABLES: Final[dict[str, Columns]] = {
    "brokers": {"broker": "text", "is_root": "bool"},
    "links": {"one": "text", "other": "text"},
    "amnesia": {"one": "text", "other": "text", "since": "time", "until": "time"},
    "sessions": {
        "client": "text",
        "epoch": "text",
        "process": "text",
        "broker": "text",
        "total_order": "bool",
        "own_cursors": "bool",
        "opened_at": "time",
        "ended_at": "time",
        "lasting": "bool",
        "version": "int",
    },
    "operations": {
        "op": "text",
        "client": "text",
        "epoch": "text",
        "process": "text",
        "handle": "int",
        "number": "int",
        "kind": "text",
        "filter": "text",
        "target": "text",
        "position": "int",
        "requested_at": "time",
        "answered_at": "time",
        "answer": "text",
        "effective_at": "time",
        "ended_at": "time",
        "ended_position": "int",
        "doubted_position": "int",
        "finished_at": "time",
        "is_gone": "bool",
        "is_forgotten": "bool",
        "stayed": "bool",
        "lasting": "bool",
        "tx": "text",
        "since": "ticks",
        "version": "int",
    },
    "events": {
        "client": "text",
        "epoch": "text",
        "number": "int",
        "position": "int",
        "last_position": "int",
        "sent_at": "time",
        "settled_at": "time",
        "fate": "text",
        "is_sure": "bool",
        "tx": "text",
        "body": "bytes",
    },
    "logged": {
        "pubend": "text",
        "tick": "int",
        "client": "text",
        "epoch": "text",
        "number": "int",
        "tx": "text",
        "audience": "texts",
        "body": "bytes",
    },
    "starts": {"op": "text", "pubend": "text", "first": "int", "tick": "int"},
    "deliveries": {
        "process": "text",
        "handle": "int",
        "op": "text",
        "nth": "int",
        "at": "time",
        "publisher": "text",
        "number": "int",
        "pubend": "text",
        "tick": "int",
        "came": "bool",
        "taken": "bool",
    },
    "losses": {
        "process": "text",
        "pubend": "text",
        "first": "int",
        "last": "int",
        "withdrawn": "bool",
    },
    "reached": {"process": "text", "pubend": "text", "tick": "int"},
    "logs": {"pubend": "text", "lost_upto": "int", "trimmed_upto": "int"},
    "cuts": {
        "pubend": "text",
        "tick": "int",
        "last": "int",
        "tx": "text",
        "number": "int",
        "at": "time",
    },
    "transactions": {
        "tx": "text",
        "kind": "text",
        "client": "text",
        "epoch": "text",
        "key": "text",
        "at": "time",
        "commit_at": "time",
        "answered_at": "time",
        "outcome": "text",
        "version": "int",
    },
    "deeds": {
        "tx": "text",
        "place": "text",
        "kind": "text",
        "client": "text",
        "epoch": "text",
        "number": "int",
        "at": "time",
        "answer": "text",
        "op": "text",
        "event": "int",
        "body": "bytes",
        "is_carried": "bool",
        "is_planned": "bool",
        "stays": "bool",
    },
    "before": {"tx": "text", "first": "text", "then": "text"},
    "words": {
        "tx": "text",
        "who": "text",
        "at": "time",
        "asked_at": "time",
        "outcome": "text",
        "number": "int",
    },
    "hearers": {"tx": "text", "client": "text", "epoch": "text"},
    "calls": {
        "tx": "text",
        "op": "text",
        "client": "text",
        "epoch": "text",
        "at": "time",
        "subscriptions": "ints",
    },
}
"""By table: its columns, each with its kind. All have `run` in front: which run it was."""

NAMED: Final = {
    "sessions": ("client", "epoch", "process"),
    "operations": ("op", "is_forgotten"),
    "transactions": ("tx",),
}
"""Tables in which a row may be written again when more is known: what names it. The one with the
highest version counts."""

FILLED: Final = {"time": float("inf"), "text": "", "bool": False, "int": 0}
"""What stands where nothing is said; other kinds are null there."""

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
    """As Spark writes schemas."""
    columns = {"run": "text", **TABLES[table]}
    return ", ".join(f"`{name}` {_SPARK[kind]}" for name, kind in columns.items())
