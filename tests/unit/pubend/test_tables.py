"""Tables: from rows and from columns the same, whole, and piece by piece."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.errors import MisuseError
from motet.model import Event, Filter, OpId, Value
from motet.model.ids import NO_LIMIT
from motet.protocol.reading.messages import START, STREAM_COLUMNS, VALUE_KINDS, Wanted
from motet.runtime.pubend import PubendLog, Start, sealing
from motet.runtime.pubend.tables import FITTING, Wishes
from tests.unit.model.strategies import attributes, filters
from tests.unit.pubend.ground import opened, settle, shut, without_syncs

STREAM = tuple(Wanted(name) for name in STREAM_COLUMNS if name != "pubend")
PLENTY = 1 << 30
EVERY = 5
"""A subscription begins behind so many runs."""
Events = list[dict[str, Value]]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with without_syncs():
        yield str(tmp_path_factory.mktemp("tables"))


def written(folder: Path, events: Events, *, seals: bool) -> PubendLog:
    pubend = opened(folder, segment_bytes=1 << 20)
    for number, each in enumerate(events):
        body = Event(each, b"p" * (number % 3 * 200)).encode()
        publisher = ("alice", "bob")[number // 3 % 2]
        sequence = pubend.state.last_published(publisher, "e1") + 1
        pubend.append_run(pubend.last_tick + 1, publisher, "e1", sequence, [body])
        if number % EVERY == 0:
            op = OpId("carol", "e2", number + 1)
            pubend.append_start(Start(pubend.last_tick + 2, op))
    pubend.roll()
    settle(pubend)
    if seals:
        assert pubend.seal_here() == 1
    return pubend


def read(
    pubend: PubendLog,
    wanted: tuple[Wanted, ...] = STREAM,
    filter: Filter | None = None,
    *,
    since: int = 1,
    starts: bool = False,
    most_rows: int = NO_LIMIT,
    most_bytes: int = PLENTY,
) -> tuple[list[Row], dict[str, int], int]:
    """All pieces: their rows, what did not fit, how many events were looked at."""
    found: list[Row] = []
    misfits: dict[str, int] = {}
    scanned, at, last = 0, since, pubend.durable_tick
    while at <= last:
        wishes = Wishes(wanted, frozenset({START}) if starts else frozenset())
        piece = pubend.tables.piece(at, last, filter, wishes, most_rows, most_bytes)
        assert (piece.since, piece.lost) == (at, False)
        assert piece.rows == sum(batch.num_rows for batch in piece.batches) <= most_rows
        assert at <= piece.upto <= last
        for batch in piece.batches:
            found += batch.to_pylist()
        for name, count in piece.misfits.items():
            misfits[name] = misfits.get(name, 0) + count
        scanned, at = scanned + piece.scanned, piece.upto + 1
    return found, dict(sorted(misfits.items())), scanned


@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(attributes(), min_size=1, max_size=30),
    filter=st.none() | filters(),
    kinds=st.lists(st.sampled_from(VALUE_KINDS), min_size=3, max_size=3),
    starts=st.booleans(),
    most_rows=st.sampled_from([1, 7, NO_LIMIT]),
    most_bytes=st.sampled_from([1, 500, PLENTY]),
    row_bytes=st.sampled_from([1, 1 << 20]),
    since=st.integers(1, 12),
)
def test_reading_rows_and_columns_gives_the_same_tables(
    root: str,
    events: Events,
    filter: Filter | None,
    kinds: list[str],
    starts: bool,
    most_rows: int,
    most_bytes: int,
    row_bytes: int,
    since: int,
) -> None:
    names = sorted({name for each in events for name in each} | {"nothing"})[:3]
    wanted = (*STREAM, *(Wanted(f"@{n}", n, k) for n, k in zip(names, kinds, strict=False)))
    with tempfile.TemporaryDirectory(dir=root) as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "LEAST_ROW_BYTES", row_bytes)  # few columns, or all
        patch.setattr(sealing, "BLOCK_ROWS", 8)
        by_rows = written(Path(name) / "rows", events, seals=False)
        by_columns = written(Path(name) / "columns", events, seals=True)
        limits = {"most_rows": most_rows, "most_bytes": most_bytes}
        one = read(by_rows, wanted, filter, since=since, starts=starts)
        two = read(by_columns, wanted, filter, since=since, starts=starts)
        assert repr(one) == repr(two)  # NaN is NaN here
        cut = read(by_columns, wanted, filter, since=since, starts=starts, **limits)
        assert repr(cut[:2]) == repr(one[:2])
        assert repr(read(by_rows, wanted, filter, since=since, starts=starts, **limits)[:2]) == (
            repr(one[:2])
        )
        check(one[0], one[1], events, filter, wanted, since, starts)
        shut(by_rows)
        shut(by_columns)


def check(
    found: list[Row],
    misfits: dict[str, int],
    events: Events,
    filter: Filter | None,
    wanted: tuple[Wanted, ...],
    since: int,
    starts: bool,
) -> None:
    """Against what was published, event by event."""
    tick, expected, wrong = 0, [], dict.fromkeys((each.name for each in wanted), 0)
    for number, each in enumerate(events):
        tick += 1
        if tick >= since and (filter is None or filter.matches(each)):
            row: Row = {"tick": tick, "kind": "event", "attributes": each}
            row["payload"] = b"p" * (number % 3 * 200)
            for column in wanted:
                value = each.get(column.attribute)
                if column.attribute and type(value) in FITTING[column.kind]:
                    row[column.name] = float(value) if column.kind == "float" else value  # type: ignore[arg-type]
                elif column.attribute:
                    row[column.name] = None
                    wrong[column.name] += value is not None
            expected.append(row)
        if number % EVERY == 0:
            tick += 2
            if starts and tick >= since:
                expected.append({"tick": tick, "kind": "start", "sequence": number + 1})
    assert len(found) == len(expected)
    for row, due in zip(found, expected, strict=True):
        if row["attributes"] is not None:
            row["attributes"] = msgspec.msgpack.decode(row["attributes"])
        assert repr({name: in_utc(row[name]) for name in due}) == repr(due)
    assert misfits == {name: count for name, count in wrong.items() if count}


def in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def test_bodies_that_are_not_written_in_the_shortest_way_are_decoded(tmp_path: Path) -> None:
    """Brokers pass on what foreign clients encode, as long as it is msgpack."""
    bodies = [
        b"\xdc\x00\x02\x81\xa1x\x01\xc4\x03abc",
        b"\x92\x81\xa1x\x02\xc6\x00\x00\x00\x03abc",
        b"\x92\x81\xa1x\x03\xc4\x03abc",
    ]
    for seals in (False, True):
        pubend = opened(tmp_path / str(seals), segment_bytes=1 << 20)
        pubend.append_run(1, "alice", "e1", 1, bodies)
        pubend.roll()
        settle(pubend)
        if seals:
            pubend.seal_here()
        found, _, _ = read(pubend)
        assert [msgspec.msgpack.decode(row["attributes"]) for row in found] == [
            {"x": 1},
            {"x": 2},
            {"x": 3},
        ]
        assert {row["payload"] for row in found} == {b"abc"}
        shut(pubend)


@pytest.mark.parametrize("seals", [False, True])
def test_the_kind_of_an_attribute_is_found_out(tmp_path: Path, seals: bool) -> None:
    events: Events = [{"i": 1, "f": 1.5, "n": 1, "m": 1}, {"n": 2.5, "m": "two", "t": "x"}]
    pubend = written(tmp_path, events, seals=seals)
    asked = [Wanted("tick"), *(Wanted(name, name) for name in ("i", "f", "n", "t", "none"))]
    columns = pubend.tables.resolved(asked, 1, pubend.durable_tick)
    assert [each.kind for each in columns] == ["", "int", "float", "float", "text", "text"]
    with pytest.raises(MisuseError, match=r"m are of several kinds here \(int, text\).*m:int or"):
        pubend.tables.resolved([Wanted("m", "m")], 1, pubend.durable_tick)
    shut(pubend)


def test_ticks_no_longer_kept_are_a_separate_lost_piece(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    for number in range(30):
        body = Event({"n": number}, b"x" * 60).encode()
        pubend.append_run(number + 1, "alice", "e1", number + 1, [body])
    settle(pubend)
    pubend.seal_here()
    pubend.acknowledged(20)
    floor = pubend.trim().floor
    assert 5 < floor <= 20
    wishes = Wishes((Wanted("tick"),), frozenset())
    piece = pubend.tables.piece(3, 30, None, wishes, PLENTY, PLENTY)
    assert (piece.since, piece.upto, piece.lost, piece.batches) == (3, floor, True, [])
    piece = pubend.tables.piece(3, 4, None, wishes, PLENTY, PLENTY)
    assert (piece.since, piece.upto, piece.lost) == (3, 4, True)
    piece = pubend.tables.piece(floor + 1, 30, None, wishes, PLENTY, PLENTY)
    assert (piece.upto, piece.rows, piece.lost) == (30, 30 - floor, False)
    shut(pubend)
