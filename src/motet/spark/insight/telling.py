"""A report as events: all of it in one transaction, through the sink, so that whoever listens has
all of it or nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from motet.spark.insight.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINK: Final = "insight"
SPACE: Final = "insight is not null"
KINDS: Final[dict[type, str]] = {
    bool: "boolean", int: "bigint", float: "double", datetime: "timestamp", str: "string",
}  # fmt: skip


def events_of(report: Report) -> list[dict[str, Any]]:
    """One event for each row of a report."""
    tables = {
        "step": report.steps,
        "handover": report.handovers,
        "open case": report.open_cases,
        "outlier": report.outliers,
    }
    return [event for what, rows in tables.items() for event in events_in(what, rows)]


def events_in(what: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each row of a table."""
    return [
        {"insight": what, **{name: each for name, each in row.items() if each is not None}}
        for row in rows
    ]


def publish(
    spark: SparkSession, events: Sequence[dict[str, Any]], broker: str, *, key: str = ""
) -> str:
    """All of them or none; the name of the transaction. With a key, once."""
    key = key or secrets.token_hex(8)
    schema = schema_of(events)
    names = [each.partition(" ")[0].strip("`") for each in schema]
    rows = [tuple(event.get(name) for name in names) for event in events]
    frame = spark.createDataFrame(rows, ", ".join(schema)).coalesce(1)
    sink = {"brokers": broker, "sink": SINK, "advertise": SPACE, "key": key}
    frame.write.format("motet").options(**sink).mode("append").save()
    return f"{SINK}/batch/{key}"


def schema_of(events: Iterable[dict[str, Any]]) -> list[str]:
    """All names that occur, each with its kind; a number that is whole only at times is none."""
    kinds: dict[str, str] = {}
    for event in events:
        for name, value in event.items():
            kind = KINDS[type(value)]
            if {kind, kinds.get(name, kind)} == {"bigint", "double"}:
                kind = "double"
            kinds[name] = kind
    return [f"`{name}` {kind}" for name, kind in kinds.items()]
