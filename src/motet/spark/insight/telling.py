"""A report as events: all of it in one transaction, so that whoever listens has all of it or
nothing.

What is larger than one transaction may be is refused: reports are short, and their frames can be
written by Spark's own way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from motet.client.sync import connect_sync
from motet.errors import MisuseError
from motet.spark.insight.report import Report
from motet.spark.replay.rows import value_of

MOST_EVENTS: Final = 2048
"""Brokers take so many in one transaction."""
TIMEOUT_S: Final = 60.0
SPACE: Final = "insight is not null"


def events_of(report: Report, most: int = 500) -> list[dict[str, Any]]:
    """One event for each row; of open cases and outliers, the first."""
    tables = {
        "step": report.steps,
        "handover": report.handovers[:most],
        "open case": report.open_cases[:most],
        "outlier": report.outliers[:most],
    }
    return [event for what, rows in tables.items() for event in events_in(what, rows)]


def events_in(what: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each row of a table."""
    return [
        {
            "insight": what,
            **{name: value_of(each) for name, each in row.items() if each is not None},
        }
        for row in rows
    ]


def publish(
    events: Iterable[dict[str, Any]], broker: str, *, client_id: str = "insight", key: str = ""
) -> str:
    """All of them or none; the name of the transaction. With a key, once."""
    told = list(events)
    if len(told) > MOST_EVENTS:
        raise MisuseError(
            f"{len(told):,} results are too many for one transaction of {MOST_EVENTS:,}"
        )
    with connect_sync(broker, client_id=client_id) as client:
        client.advertise(SPACE)
        with client.transaction(isolation="none", key=key, timeout=TIMEOUT_S) as tx:
            for event in told:
                tx.publish(event)
        return tx.id
