"""Batches of Arrow as bodies of events."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isnan

import pyarrow

from motet.model import decode_body
from motet.spark.sink import bodies_of, pieces_of


def test_values_of_all_kinds() -> None:
    at = datetime(2026, 1, 31, 9, 30, 0, 123456, UTC)
    batch = pyarrow.record_batch(
        {
            "small": pyarrow.array([1, None], pyarrow.int8()),
            "large": pyarrow.array([2**63 - 1, -(2**63)], pyarrow.int64()),
            "single": pyarrow.array([0.5, None], pyarrow.float32()),
            "double": pyarrow.array([0.1, float("nan")], pyarrow.float64()),
            "ok": [True, None],
            "text": ["grün", None],
            "at": pyarrow.array([at, None], pyarrow.timestamp("us", tz="Europe/Berlin")),
            "payload": pyarrow.array([b"\x00", None], pyarrow.binary()),
        }
    )
    (first, payload), (second, nothing) = map(decode_body, bodies_of(batch))
    assert first == {
        "small": 1,
        "large": 2**63 - 1,
        "single": 0.5,
        "double": 0.1,
        "ok": True,
        "text": "grün",
        "at": at,
    }
    assert list(map(type, first.values())) == [int, int, float, float, bool, str, datetime]
    assert second.keys() == {"large", "double"}
    assert isnan(second["double"])  # type: ignore[arg-type]
    assert (payload, nothing) == (b"\x00", b"")


def test_a_map_has_further_attributes() -> None:
    pairs = pyarrow.array(
        [[("a", 1), ("n", 2)], [], None, [("b", None)]], pyarrow.map_("string", "int64")
    )
    batch = pyarrow.record_batch({"n": [7, None, None, None], "attributes": pairs})
    found = [decode_body(body)[0] for body in bodies_of(batch)]
    assert found == [{"a": 1, "n": 7}, {}, {}, {}]
    alone = pyarrow.record_batch({"attributes": pairs})
    assert next(decode_body(body)[0] for body in bodies_of(alone)) == {"a": 1, "n": 2}


def test_pieces_are_bounded_and_nothing_is_missing() -> None:
    batches = [
        pyarrow.record_batch({"n": list(range(at, at + 3000))}) for at in range(0, 9000, 3000)
    ]
    sizes = [len(piece) for piece in pieces_of(batches)]
    assert sizes == [4096, 4096, 808]
    ns = [decode_body(body)[0]["n"] for piece in pieces_of(batches) for body in piece]
    assert ns == list(range(9000))
    heavy = pyarrow.record_batch({"payload": [b"x" * 600_000] * 3})
    assert [len(piece) for piece in pieces_of([heavy])] == [1, 1, 1]
    assert list(pieces_of([])) == []
