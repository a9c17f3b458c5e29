"""One case, event by event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from motet.spark.insight.events import Case, Happened, Visit
from motet.spark.insight.report import events_in, schema_of

BEGIN = datetime(2026, 3, 1, 9, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def test_a_case_passes_from_one_resource_to_the_next() -> None:
    case = Case()
    ended = case.take(
        [
            Happened(at(0), "a", "ann", "start"),
            Happened(at(5), "a", "ann", "complete"),
            Happened(at(8), "b", "bob", "start"),
        ]
    )
    assert ended == [Visit("a", "ann", None, None, at(0), at(5))]
    # What it remembers fits into a message, and the rest of it may come much later.
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(case), type=Case)
    assert kept.take([Happened(at(9), "b", "bob", "complete")]) == [
        Visit("b", "bob", "ann", at(5), at(8), at(9))
    ]


def test_unknown_starts_and_resources_stay_unknown() -> None:
    case = Case()
    ended = case.take(
        [Happened(at(0), "a", None, "complete"), Happened(at(5), "a", "bob", "complete")]
    )
    assert ended == [
        Visit("a", None, None, None, None, at(0)),
        Visit("a", "bob", None, at(0), None, at(5)),
    ]


def test_cases_do_not_share_what_they_remember() -> None:
    one, other = Case(), Case()
    one.take([Happened(at(0), "a", "ann", "start")])
    assert other.take([Happened(at(1), "a", "ann", "complete")])[0].start is None


def test_a_table_of_events_has_one_kind_for_each_name() -> None:
    rows = [{"step": "a", "wait_s": 1, "end": at(0)}, {"step": "b", "wait_s": 0.5, "agent": None}]
    events = events_in("step", rows)
    assert "agent" not in events[1]
    kinds = ["`insight` string", "`step` string", "`wait_s` double", "`end` timestamp"]
    assert schema_of(events) == kinds
    assert sorted(schema_of(events[::-1])) == sorted(kinds)
