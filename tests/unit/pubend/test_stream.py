"""Appending to a pubend and reading ranges of it, in rows and in columns."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.errors import MisuseError, StorageError
from motet.model import Event, Filter, OpId, decode_body
from motet.runtime.pubend import EventBatch, EventRun, Lost, PubendLog, Start
from motet.runtime.pubend.reading import BATCH_BYTES, SCANNED_EVENTS
from motet.runtime.pubend.shelf import FileShelf
from motet.testing.clock import Agenda
from motet.testing.log import SimulatedLog
from tests.unit.pubend.ground import (
    PUBEND,
    Item,
    Row,
    bodies,
    body,
    fill,
    opened,
    rows,
    settle,
    shut,
    without_syncs,
)

Filled = tuple[PubendLog, list[Item]]


@pytest.fixture(params=["rows", "columns"])
def filled(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[PubendLog, list[Item]]]:
    pubend = opened(tmp_path)
    expected = fill(pubend)
    if request.param == "columns":
        pubend.roll()
        settle(pubend)
        assert pubend.seal_here() > 2
        settle(pubend)
        assert len(list(tmp_path.glob("*.log"))) == 1
    yield pubend, expected
    shut(pubend)


def test_a_new_pubend_is_empty(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    assert (pubend.first_tick, pubend.last_tick, pubend.durable_tick) == (1, 0, 0)
    assert list(pubend.read(1)) == []
    assert pubend.state.last_published("alice", "e1") == 0
    assert pubend.seal_here() == 0
    shut(pubend)


def test_everything_comes_back_in_order(filled: Filled) -> None:
    pubend, expected = filled
    assert rows(pubend.read(1)) == expected
    assert pubend.last_tick == pubend.durable_tick == expected[-1].tick  # type: ignore[union-attr]


def test_every_range_of_ticks(filled: Filled) -> None:
    pubend, expected = filled
    last = pubend.last_tick
    for since in (*range(1, 40), last - 1, last):
        for upto in (since, since + 1, since + 17, last, last + 5):
            items = list(pubend.read(since, upto))
            assert items[0].since == since
            assert items[-1].upto == min(upto, last)
            wanted = [item for item in expected if since <= item.tick <= upto]  # type: ignore[union-attr]
            assert rows(items) == wanted
    assert list(pubend.read(last + 1)) == []
    with pytest.raises(MisuseError, match="no tick 0"):
        pubend.read(0)


def test_a_filter_keeps_events_and_every_other_record(filled: Filled) -> None:
    pubend, expected = filled
    filter = Filter.parse("step > 12 and step < 15")
    wanted = [
        item
        for item in expected
        if isinstance(item, Start) or filter.matches(decode_body(item.body)[0])  # type: ignore[union-attr]
    ]
    assert 0 < len(wanted) < len(expected)
    for since in (1, 2, 50, 111):
        items = list(pubend.read(since, filter=filter))
        assert rows(items) == [item for item in wanted if item.tick >= since]  # type: ignore[union-attr]
        scanned = sum(item.scanned for item in items if isinstance(item, EventBatch))
        events = [item for item in expected if isinstance(item, Row) and item.tick >= since]
        assert scanned == len(events)


@pytest.mark.parametrize("filter", [None, Filter.parse("step in (3, 4, 12)")])
def test_limits_end_a_read_where_the_next_one_begins(filled: Filled, filter: Filter | None) -> None:
    pubend, _ = filled
    whole = rows(pubend.read(1, filter=filter))
    for limit in (1, 7, 10, 33):
        found: list[Item] = []
        since = 1
        while since <= pubend.last_tick:
            items = list(pubend.read(since, filter=filter, limit_events=limit))
            assert sum(item.events for item in items if isinstance(item, EventBatch)) <= limit
            found += rows(items)
            since = items[-1].upto + 1
        assert found == whole
    with pytest.raises(MisuseError, match="limit_events must be at least 1"):
        pubend.read(1, limit_events=0)


def test_a_limit_of_bytes_is_kept_but_for_a_first_event(filled: Filled) -> None:
    pubend, expected = filled
    size = len(next(item.body for item in expected if isinstance(item, Row)))
    for limit, most in ((1, 1), (3 * size + 3, 3), (1 << 20, len(expected))):
        (batch, *rest) = pubend.read(1, limit_bytes=limit)
        assert not rest
        assert isinstance(batch, EventBatch)
        assert 1 <= batch.events <= most
        assert batch.size_bytes <= limit or batch.events == 1


def test_batches_are_bounded(tmp_path: Path) -> None:
    pubend = opened(tmp_path, segment_bytes=8 << 20)
    for number in range(60):
        pubend.append_run(1 + 500 * number, "alice", "e1", 1 + 500 * number, bodies(500))
    for number in range(3):
        pubend.append_run(40_000 + number, "bob", "e1", 1 + number, [body(b"x" * 900_000, step=1)])
    settle(pubend)
    for _ in range(2):
        for filter in (None, Filter.parse("step >= 0")):
            batches = [
                item for item in pubend.read(1, filter=filter) if isinstance(item, EventBatch)
            ]
            assert len(batches) > 1
            assert max(batch.scanned for batch in batches) <= SCANNED_EVENTS + 1000
            assert max(batch.size_bytes for batch in batches) <= BATCH_BYTES + 1_000_000
        pubend.roll()
        settle(pubend)
        pubend.seal_here()
    shut(pubend)


def test_ticks_and_sequences_only_grow(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    pubend.append_run(5, "alice", "e1", 3, bodies(2))
    with pytest.raises(MisuseError, match="tick 6 is not behind 6"):
        pubend.append_run(6, "alice", "e1", 9, bodies(1))
    with pytest.raises(MisuseError, match="tick 6 is not behind 6"):
        pubend.append_start(Start(6, OpId("carol", "e2", 1)))
    with pytest.raises(MisuseError, match="published up to 4"):
        pubend.append_run(7, "alice", "e1", 4, bodies(1))
    assert pubend.append_run(7, "alice", "e1", 4, []) == pubend.appended
    pubend.append_run(7, "alice", "e2", 1, bodies(1))
    assert [pubend.state.last_published("alice", epoch) for epoch in ("e1", "e2", "e3")] == [
        4,
        1,
        0,
    ]
    shut(pubend)


def test_several_starts_go_together_or_not_at_all(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    starts = [Start(tick, OpId("carol", "e2", tick)) for tick in (6, 7, 9)]
    before = pubend.appended
    with pytest.raises(MisuseError, match="tick 7 is not behind 9"):
        pubend.append_starts([starts[0], starts[2], starts[1]])
    assert (pubend.appended, pubend.last_tick) == (before, 0)
    assert pubend.append_starts(starts) == pubend.appended == before + 3
    settle(pubend)
    found = [record for batch in pubend.read(1) for record in batch.records]
    assert found == starts
    shut(pubend)


def test_several_runs_go_together_or_not_at_all(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    good = [
        EventRun.of(1, "alice", "e1", 1, bodies(2)),
        EventRun.of(3, "bob", "e1", 7, bodies(1)),
        EventRun.of(5, "carol", "e1", 1, []),
        EventRun.of(9, "alice", "e1", 3, bodies(3)),
    ]
    for bad in (
        EventRun.of(11, "bob", "e1", 8, bodies(1)),
        EventRun.of(12, "alice", "e1", 5, bodies(1)),
    ):
        with pytest.raises(MisuseError):
            pubend.append_runs([*good, bad])
        assert (pubend.last_tick, pubend.state.sessions(), pubend.holdings.size_bytes) == (0, [], 0)
    before = pubend.appended
    assert pubend.append_runs(good) == pubend.appended == before + 3
    assert pubend.append_runs([]) == before + 3
    settle(pubend)
    found = [(row.tick, row.sequence) for row in rows(pubend.read(1)) if isinstance(row, Row)]
    assert found == [(1, 1), (2, 2), (3, 7), (9, 3), (10, 4), (11, 5)]
    shut(pubend)
    again = opened(tmp_path)
    assert [again.state.last_published(who, "e1") for who in ("alice", "bob", "carol")] == [5, 7, 0]
    shut(again)


class EmptyShelf(FileShelf):
    """For a log that leaves everything in rows."""

    def __init__(self) -> None:
        self.sealed = self.given_up = ()
        self._begins = 1


def test_only_durable_ticks_are_read() -> None:
    """On a simulated log, where syncs take time."""
    agenda = Agenda()
    log = SimulatedLog(agenda, lambda: 0.01)
    pubend = PubendLog(log, PUBEND, shelf=EmptyShelf(), segment_bytes=2000, now_s=lambda: 0.0)
    agenda.run(1)
    told: list[int] = []
    failures: list[Exception] = []
    pubend.watch(lambda: told.append(pubend.durable_tick), failures.append)
    for number in range(10):
        pubend.append_run(1 + number * 10, "alice", "e1", 1 + number * 10, bodies(10))
        assert list(pubend.read(1)) == []
    agenda.run(2)
    assert not failures
    assert told[-1] == pubend.last_tick == 100
    assert len(rows(pubend.read(1))) == 100
    pubend.append_run(101, "alice", "e1", 101, bodies(10))
    assert (pubend.last_tick, pubend.durable_tick) == (110, 100)
    log.crash(log.durable)
    again = PubendLog(log, PUBEND, shelf=EmptyShelf(), segment_bytes=2000, now_s=lambda: 0.0)
    assert again.last_tick == again.state.last_published("alice", "e1") == 100


def test_a_range_before_the_oldest_tick_is_reported_lost(filled: Filled) -> None:
    pubend, expected = filled
    pubend.acknowledged(60)
    trimmed = pubend.trim()
    assert 0 < trimmed.floor <= 60
    assert pubend.first_tick == trimmed.floor + 1
    kept = [item for item in expected if item.tick > trimmed.floor]  # type: ignore[union-attr]
    for since in (1, 5, trimmed.floor):
        assert rows(pubend.read(since)) == [Lost(since, trimmed.floor), *kept]
    assert list(pubend.read(2, 5)) == [Lost(2, 5)]
    assert rows(pubend.read(trimmed.floor + 1)) == kept


def test_a_read_goes_on_while_segments_are_sealed_and_trimmed(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    expected = fill(pubend, 40)
    reading = pubend.read(1, filter=Filter.parse("step >= 0"))
    # A batch per record would be too good: read by small ranges instead.
    found = rows(pubend.read(1, 100))
    pubend.roll()
    settle(pubend)
    pubend.seal_here()
    settle(pubend)
    assert rows(reading) == expected
    halfway = pubend.read(101)
    assert found + rows(halfway) == expected
    late = pubend.read(1)
    pubend.acknowledged(pubend.last_tick)
    floor = pubend.trim().floor
    settle(pubend)
    assert rows(late) == [Lost(1, floor), *expected[len(expected) :]]
    shut(pubend)


def test_packed_bodies_are_what_was_appended(filled: Filled) -> None:
    pubend, _ = filled
    for item in pubend.read(1):
        assert isinstance(item, EventBatch)
        for record in item.records:
            if not isinstance(record, Start):
                assert [decode_body(each)[1][:7] for each in record.bodies] == [
                    b"payload"
                ] * record.count
                assert record.size_bytes == len(memoryview(record.packed))


def test_odd_spellings_of_a_body_survive_sealing(tmp_path: Path) -> None:
    """Clients may encode a number in more bytes than it needs: it stays as it came."""
    odd = b"\x92\x81\xa1a\xd3\0\0\0\0\0\0\0\x07\xc5\0\x02hi"  # 7 in nine bytes, a long payload
    assert decode_body(odd) == ({"a": 7}, b"hi")
    assert Event({"a": 7}, b"hi").encode() != odd
    pubend = opened(tmp_path)
    pubend.append_run(1, "alice", "e1", 1, [odd])
    pubend.roll()
    settle(pubend)
    assert pubend.seal_here() == 1
    for filter in (None, Filter.parse("a = 7")):
        (row,) = rows(pubend.read(1, filter=filter))
        assert isinstance(row, Row)
        assert row.body == odd
    shut(pubend)


def test_a_folder_of_another_pubend_is_refused(tmp_path: Path) -> None:
    shut(opened(tmp_path))
    with pytest.raises(StorageError, match=f"is of pubend {PUBEND}, not of b2/0"):
        PubendLog.open(tmp_path, "b2/0")


def test_importing_motet_does_not_import_arrow() -> None:
    program = "import sys, motet, motet.runtime.pubend; print('pyarrow' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "False"


def test_a_thread_reads_while_others_are_at_work(tmp_path: Path) -> None:
    """Whatever is appended, sealed and trimmed meanwhile: every tick comes once, or is lost."""
    pubend = opened(tmp_path, segment_bytes=3000)
    readings: list[list[Item]] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def follow(filter: Filter | None) -> None:
        try:
            found: list[Item] = []
            since = 1
            while not (is_over.is_set() and since > pubend.last_tick):
                for item in pubend.read(since, filter=filter):
                    found += rows([item])
                    since = item.upto + 1
            readings.append(found)
        except BaseException as failure:
            failures.append(failure)

    with without_syncs():
        threads = [
            threading.Thread(target=follow, args=(filter,))
            for filter in (None, Filter.parse("step >= 0"))
        ]
        for thread in threads:
            thread.start()
        expected: list[Item] = []
        for number in range(30):
            expected += fill(pubend, 6)
            if number % 3 == 0:
                pubend.seal_here()
            if number % 10 == 9:
                pubend.acknowledged(pubend.last_tick - 300)
                pubend.trim()
        is_over.set()
        for thread in threads:
            thread.join()
    assert not failures
    for found in readings:
        lost = [range(item.since, item.upto + 1) for item in found if isinstance(item, Lost)]
        kept = [item for item in found if not isinstance(item, Lost)]
        assert kept == [
            item
            for item in expected
            if not any(item.tick in gone for gone in lost)  # type: ignore[union-attr]
        ]
    shut(pubend)
