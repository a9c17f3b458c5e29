"""Opening a pubend again: what it knows, and how little it reads for that."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from motet.errors import DiskFailed, LogCorrupted, StorageError
from motet.runtime.log import FileLog, file_log
from motet.runtime.log.folder import CLOSED
from motet.runtime.pubend import Lost, sealing, shelf
from motet.runtime.pubend.pubend_log import PURPOSE
from motet.runtime.pubend.shelf import CATALOGUE
from motet.runtime.pubend.state import SealedPart
from tests.unit.pubend.ground import bodies, fill, opened, rows, settle, shut


def test_a_reopened_log_has_its_whole_state(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    expected = fill(pubend)
    pubend.cursors.set("spark", 17)
    pubend.acknowledged(20)
    pubend.append_run(pubend.last_tick + 5, "dave", "e9", 4, bodies(3))
    known = (
        pubend.last_tick,
        pubend.state.sessions(),
        pubend.cursors.ticks(),
        pubend.holdings.size_bytes,
    )
    for seals in (False, True, True):
        shut(pubend)
        pubend = opened(tmp_path)
        assert (pubend.last_tick, pubend.state.sessions(), pubend.cursors.ticks()) == known[:3]
        assert pubend.state.last_published("dave", "e9") == 6
        assert pubend.state.last_skipped("dave", "e9") == (1, 2, 3)
        assert pubend.state.last_skipped("alice", "e1") == ()
        assert pubend.state.last_published("alice", "e1") == 100
        assert rows(pubend.read(1))[: len(expected)] == expected
        if seals:
            pubend.roll()
            settle(pubend)
            pubend.seal_here()
        else:
            assert pubend.holdings.size_bytes == known[3]
    shut(pubend)


def test_only_the_last_segment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pubend = opened(tmp_path)
    fill(pubend)
    extents = pubend.log.extents
    assert len(extents) > 4
    shut(pubend)
    asked: list[tuple[int, int | None]] = []
    read = FileLog.read

    def spy(self: FileLog, first: int, last: int | None = None) -> object:
        asked.append((first, last))
        return read(self, first, last)

    monkeypatch.setattr(FileLog, "read", spy)
    shut(opened(tmp_path))
    heads = [(each.first, each.first) for each in extents]
    assert asked == [*heads, (extents[-1].first + 1, extents[-1].last)]


def test_ended_sessions_are_forgotten_permanently(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    fill(pubend)
    pubend.forget([("alice", "e1"), ("nobody", "e1")])
    assert pubend.state.sessions() == [("bob", "e1")]
    assert pubend.state.last_published("alice", "e1") == 0
    position = pubend.appended
    assert pubend.forget([("alice", "e1")]) == position
    shut(pubend)
    pubend = opened(tmp_path)
    assert pubend.state.sessions() == [("bob", "e1")]
    pubend.append_run(pubend.last_tick + 1, "alice", "e2", 1, bodies(1))
    pubend.roll()
    shut(pubend)
    pubend = opened(tmp_path)
    assert sorted(pubend.state.sessions()) == [("alice", "e2"), ("bob", "e1")]
    shut(pubend)


def test_a_crash_between_a_roll_and_its_checkpoint(tmp_path: Path) -> None:
    pubend = opened(tmp_path, segment_bytes=1 << 20)
    expected = fill(pubend)
    pubend.log.roll()
    shut(pubend)
    (tmp_path / CLOSED).unlink()
    for _ in range(2):
        pubend = opened(tmp_path, segment_bytes=1 << 20)
        assert pubend.state.last_published("alice", "e1") == 100
        assert rows(pubend.read(1)) == expected
        settle(pubend)
        assert pubend.seal_here() in (0, 1)
        assert rows(pubend.read(1)) == expected
        shut(pubend)


def crashed(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a crash leaves it during sealing: before the catalogue, or before the trim."""
    pubend = opened(tmp_path / "log")
    fill(pubend)
    copies: list[Path] = []

    def copy() -> None:
        copies.append(tmp_path / f"copy{len(copies)}")
        shutil.copytree(tmp_path / "log", copies[-1])

    replace, trim, add = shelf.replace_file, file_log.Writer._trim, shelf.FileShelf.add

    def replaced(path: Path, data: bytes) -> None:
        copy()
        replace(path, data)

    def trimmed(self: file_log.Writer, upto: int) -> None:
        copy()
        trim(self, upto)

    def added(self: shelf.FileShelf, part: SealedPart) -> None:
        """Sealing goes on when the copies are made."""
        add(self, part)
        settle(pubend)

    monkeypatch.setattr(shelf.FileShelf, "add", added)
    monkeypatch.setattr(shelf, "replace_file", replaced)
    monkeypatch.setattr(file_log.Writer, "_trim", trimmed)
    pubend.seal_here()
    shut(pubend)
    monkeypatch.undo()
    return copies[step]


@pytest.mark.parametrize("step", range(4))
def test_a_crash_while_sealing(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = crashed(tmp_path, step, monkeypatch)
    whole = opened(tmp_path / "log")
    expected = rows(whole.read(1))
    shut(whole)
    pubend = opened(folder)
    assert rows(pubend.read(1)) == expected
    settle(pubend)
    sealed = {path.stem for path in folder.glob("*.arrow")}
    assert sealed == {path.stem for path in folder.glob("*.index")}
    assert not sealed & {path.stem for path in folder.glob("*.log")}
    pubend.seal_here()
    assert rows(pubend.read(1)) == expected
    shut(pubend)


def test_a_crash_while_rows_are_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue says that they have gone, and they are still there."""
    pubend = opened(tmp_path / "log")
    expected = fill(pubend)
    trim = file_log.Writer._trim

    def trimmed(self: file_log.Writer, upto: int) -> None:
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        trim(self, upto)

    monkeypatch.setattr(file_log.Writer, "_trim", trimmed)
    pubend.acknowledged(100)
    floor = pubend.trim().floor
    settle(pubend)
    monkeypatch.undo()
    kept = [item for item in expected if item.tick > floor]  # type: ignore[union-attr]
    shut(pubend)
    assert len(list((tmp_path / "copy").glob("*.log"))) > len(
        list((tmp_path / "log").glob("*.log"))
    )
    for name in ("log", "copy"):
        again = opened(tmp_path / name)
        assert again.first_tick == floor + 1
        assert rows(again.read(1)) == [Lost(1, floor), *kept]
        settle(again)
        assert rows(again.read(1)) == [Lost(1, floor), *kept]
        shut(again)


def test_a_disk_that_is_full_while_sealing_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pubend = opened(tmp_path)
    expected = fill(pubend)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(sealing, "replace_file", full)
        with pytest.raises(DiskFailed, match=r"No space left.*\.log is as it was before"):
            pubend.seal_here()
    assert rows(pubend.read(1)) == expected
    pubend.append_run(pubend.last_tick + 1, "alice", "e1", 101, bodies(1))
    assert pubend.seal_here() > 3
    assert rows(pubend.read(1, expected[-1].tick)) == expected  # type: ignore[union-attr]
    shut(pubend)


async def test_segments_are_sealed_by_a_separate_process(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    expected = fill(pubend, 8)
    pubend.roll()
    settle(pubend)
    segments = len(list(tmp_path.glob("*.log"))) - 1
    assert await pubend.seal() == segments == len(list(tmp_path.glob("*.arrow")))
    assert rows(pubend.read(1)) == expected
    await pubend.close()


async def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    fill(pubend)
    path = pubend.log.extents[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorrupted, match=rf"{path}.*is broken"):
        await pubend.seal()
    await pubend.close()


async def test_a_process_that_dies_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pubend = opened(tmp_path)
    fill(pubend)
    monkeypatch.setattr(shelf, "SEALING", "motet.no.such.module")
    with pytest.raises(StorageError, match=r"could not be sealed.*No module named"):
        await pubend.seal()
    await pubend.close()


async def test_a_segment_may_be_trimmed_while_it_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pubend = opened(tmp_path)
    expected = fill(pubend)
    seal = shelf.FileShelf.seal
    behind = expected[-1].tick  # type: ignore[union-attr]

    async def slow(self: shelf.FileShelf, extent: object) -> object:
        sealed = await seal(self, extent)  # type: ignore[arg-type]
        pubend.acknowledged(behind)
        pubend.trim()
        return sealed

    monkeypatch.setattr(shelf.FileShelf, "seal", slow)
    assert await pubend.seal() == 0
    kept = [item for item in expected if item.tick >= pubend.first_tick]  # type: ignore[union-attr]
    assert rows(pubend.read(pubend.first_tick)) == kept
    await pubend.close()
    again = opened(tmp_path)
    assert not list(tmp_path.glob("*.arrow"))
    assert rows(again.read(pubend.first_tick)) == kept
    shut(again)


def test_a_failed_disk_fails_the_pubend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pubend = opened(tmp_path)
    fill(pubend)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_log, "write_all", full)
    last = pubend.durable_tick
    pubend.append_run(pubend.last_tick + 1, "alice", "e1", 101, bodies(1))
    with pytest.raises(DiskFailed, match="No space left on device"):
        settle(pubend)
    assert pubend.durable_tick == last
    with pytest.raises(DiskFailed, match="make room"):
        pubend.append_run(pubend.last_tick + 1, "alice", "e1", 102, bodies(1))
    with pytest.raises(DiskFailed):
        shut(pubend)


def test_without_its_catalogue_a_log_is_not_opened(tmp_path: Path) -> None:
    pubend = opened(tmp_path)
    fill(pubend)
    pubend.seal_here()
    shut(pubend)
    catalogue = tmp_path / CATALOGUE
    data = catalogue.read_bytes()
    catalogue.unlink()
    with pytest.raises(LogCorrupted, match="catalogue is missing"):
        opened(tmp_path)
    catalogue.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    with pytest.raises(LogCorrupted, match="catalogue is damaged"):
        opened(tmp_path)
    catalogue.write_bytes(data)
    shut(opened(tmp_path))


def test_a_sealing_process_without_its_broker_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker is gone, and another one may be at work in the folder."""
    pubend = opened(tmp_path)
    fill(pubend)
    path = pubend.log.extents[0].path
    with monkeypatch.context() as patch:
        patch.setattr(os, "getppid", iter(range(100)).__next__)
        with pytest.raises(StorageError, match="was left alone"):
            sealing.seal_segment(path, tmp_path, PURPOSE)
    assert not list(tmp_path.glob("*.arrow*"))
    shut(pubend)
