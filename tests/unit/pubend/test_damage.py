"""Sealed files that are changed, cut or removed: named, never passed over."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from motet.errors import LogCorrupted, StorageError
from motet.model import Filter
from motet.runtime.log.folder import CLOSED
from motet.runtime.pubend import Lost, PubendLog, Retention, Start
from tests.unit.pubend.ground import Item, Row, bodies, fill, opened, rows, settle, shut


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pubend that is sealed but for its last segment."""
    pubend = opened(tmp_path)
    fill(pubend)
    pubend.roll()
    settle(pubend)
    pubend.seal_here()
    pubend.append_run(pubend.last_tick + 1, "alice", "e1", 1000, bodies(5))
    shut(pubend)
    return tmp_path


def contents(folder: Path) -> list[Item]:
    pubend = opened(folder)
    try:
        return rows(pubend.read(1))
    finally:
        shut(pubend)


def is_kept(item: Item, gone: range) -> bool:
    return not isinstance(item, Lost) and item.tick not in gone


@pytest.mark.parametrize("ending", ["arrow", "index"])
def test_a_changed_byte_is_noticed_wherever_it_matters(folder: Path, ending: str) -> None:
    expected = contents(folder)
    filter = Filter.parse("step = 7 or step = 8")
    pubend = opened(folder)
    filtered = rows(pubend.read(1, filter=filter))
    shut(pubend)
    path = sorted(folder.glob(f"*.{ending}"))[1]
    whole = path.read_bytes()
    complaints: list[str] = []
    chance = random.Random(7)
    places = chance.sample(range(len(whole)), 60)
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        pubend = opened(folder)
        for asked, wanted in ((None, expected), (filter, filtered)):
            try:
                found = rows(pubend.read(1, filter=asked))
            except LogCorrupted as error:
                complaints.append(str(error))
            else:
                assert found == wanted
        shut(pubend)
    assert all(str(path) in each for each in complaints)
    assert len(complaints) > (100 if ending == "index" else 10)
    path.write_bytes(whole)
    assert contents(folder) == expected


@pytest.mark.parametrize("ending", ["arrow", "index"])
@pytest.mark.parametrize("harm", ["remove", "cut", "grow"])
def test_a_file_that_is_not_there_whole_is_named_at_once(
    folder: Path, ending: str, harm: str
) -> None:
    path = sorted(folder.glob(f"*.{ending}"))[1]
    data = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if harm == "cut" else data + b"x")
    with pytest.raises(LogCorrupted, match=path.name):
        opened(folder)


@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_a_loss_may_be_accepted_and_is_reported(folder: Path, harm: str) -> None:
    expected = contents(folder)
    path = sorted(folder.glob("*.arrow"))[1]
    data = path.read_bytes()
    path.unlink()
    if harm == "flip":
        path.write_bytes(data[:700] + bytes([data[700] ^ 1]) + data[701:])
    pubend = opened(folder, accept_loss=True)
    found = rows(pubend.read(1))
    (lost,) = [item for item in found if isinstance(item, Lost)]
    gone = range(lost.since, lost.upto + 1)
    assert [item for item in found if item is not lost] == [
        item for item in expected if is_kept(item, gone)
    ]
    assert (path.with_name(path.name + ".damaged").exists()) is (harm == "flip")
    assert pubend.holdings.lost_upto == lost.upto
    missing = [item for item in expected if isinstance(item, Row) and item.tick in gone]
    assert pubend.holdings.lost_events == len(missing) > 0
    assert rows(pubend.read(lost.since + 1, lost.upto - 1)) == [Lost(lost.since + 1, lost.upto - 1)]
    assert list(pubend.read(lost.upto, lost.upto)) == [Lost(lost.upto, lost.upto)]
    shut(pubend)
    for accept_loss in (False, True):
        again = opened(folder, accept_loss=accept_loss)
        assert rows(again.read(1)) == found
        assert (again.holdings.lost_upto, again.holdings.lost_events) == (lost.upto, len(missing))
        shut(again)


def test_events_before_an_accepted_loss_are_counted_as_lost(folder: Path) -> None:
    sorted(folder.glob("*.arrow"))[2].unlink()
    pubend = opened(folder, accept_loss=True)
    upto, before, size = (
        pubend.holdings.lost_upto,
        pubend.holdings.lost_events,
        pubend.holdings.size_bytes,
    )
    pubend.retention = Retention(max_bytes=size - 1)
    trimmed = pubend.trim()
    assert 0 < trimmed.floor < upto
    assert trimmed.lost_events > 0
    shut(pubend)
    again = opened(folder)
    assert (again.holdings.lost_upto, again.holdings.lost_events) == (
        upto,
        before + trimmed.lost_events,
    )
    shut(again)


def test_a_file_that_goes_while_the_log_is_open(folder: Path) -> None:
    pubend = opened(folder)
    path = sorted(folder.glob("*.arrow"))[1]
    path.unlink()
    with pytest.raises(LogCorrupted, match=f"{path.name} is damaged: it is missing"):
        rows(pubend.read(1))
    shut(pubend)


def test_a_sealed_file_missing_in_the_catalogue_is_reported(folder: Path) -> None:
    """An older catalogue, or a file of another log, must not make anything vanish."""
    path = sorted(folder.glob("*.arrow"))[1]
    stray = folder / f"{int(path.stem) + 1:020d}.arrow"
    stray.write_bytes(path.read_bytes())
    with pytest.raises(LogCorrupted, match=f"{stray.name} is not in the catalogue"):
        opened(folder)


def test_verifying_reads_everything(folder: Path) -> None:
    pubend = opened(folder)
    pubend.verify()
    path = sorted(folder.glob("*.arrow"))[-1]
    data = path.read_bytes()
    path.write_bytes(data[:9] + b"!" + data[10:])  # nobody would ever look there
    with pytest.raises(LogCorrupted, match=path.name):
        pubend.verify()
    shut(pubend)


def test_a_damaged_segment_is_named_like_any_other(folder: Path) -> None:
    (path,) = folder.glob("*.log")
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    (folder / CLOSED).unlink()
    with pytest.raises(LogCorrupted, match=path.name):
        opened(folder)


def test_a_torn_tail_is_cut_and_its_ticks_are_unknown_again(tmp_path: Path) -> None:
    """What was never durable is unknown again: its ticks and sequences may be used again."""
    pubend = opened(tmp_path, segment_bytes=1 << 20)
    expected = fill(pubend)
    known = pubend.last_tick, pubend.state.last_published("alice", "e1")
    (path,) = tmp_path.glob("*.log")
    size = path.stat().st_size
    pubend.append_run(pubend.last_tick + 1, "alice", "e1", 101, bodies(5))
    shut(pubend)
    (tmp_path / CLOSED).unlink()
    whole = path.read_bytes()
    for length in (size + 1, size + 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        pubend = opened(tmp_path, segment_bytes=1 << 20)
        assert (pubend.last_tick, pubend.state.last_published("alice", "e1")) == known
        assert rows(pubend.read(1)) == expected
        shut(pubend)
        (tmp_path / CLOSED).unlink()


def test_an_unknown_kind_of_record_stops_the_reader(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    pubend.append_run(1, "alice", "e1", 1, bodies(2))
    pubend.log.append([b"a record of tomorrow"], 15)
    shut(pubend)
    with pytest.raises(StorageError, match="kind 15, which this release does not know"):
        opened(tmp_path)


def test_an_event_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    pubend.append_run(1, "alice", "e1", 1, [*bodies(1), b"\x93\1\2\3"])
    settle(pubend)
    with pytest.raises(LogCorrupted, match="event of alice with a tick from 1 to 2"):
        rows(pubend.read(1, filter=Filter.parse("step = 1")))
    assert len(rows(pubend.read(1))) == 2
    pubend.roll()
    settle(pubend)
    with pytest.raises(LogCorrupted, match="event of alice with a tick from 1 to 2"):
        pubend.seal_here()
    shut(pubend)


def test_starts_survive(folder: Path) -> None:
    pubend: PubendLog = opened(folder)
    starts = [item for item in rows(pubend.read(1)) if isinstance(item, Start)]
    assert [start.op.sequence for start in starts] == [1, 6, 11, 16]
    shut(pubend)
